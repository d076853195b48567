"""Drawings: SVG written directly, the same bytes for the same picture.

A drawing is coloured by classes alone. Inside a page the page's style sheet holds `style`; a file of its own carries it
with it. Colours are told apart by people who see no red or no green, and change with a dark desktop. Plain rules without
variables, so that viewers that are no browsers follow them too.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape
from unicodedata import east_asian_width

from peakmem.report.words import clean, shorten

FONT = 'system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,"DejaVu Sans",sans-serif'

LIGHT = {
    "paper": "#ffffff", "ink": "#1f2328", "soft": "#57606a", "grid": "#e2e6ea",
    "before": "#b4532a", "after": "#1d6f8b", "rest": "#b7c3cc",
}  # fmt: skip
DARK = {
    "paper": "#15181b", "ink": "#e8eaed", "soft": "#a3adb6", "grid": "#30363c",
    "before": "#f2a07b", "after": "#69c3df", "rest": "#4a555e",
}  # fmt: skip

_COLOURED = (
    ("text", "fill", "ink"), ("text.soft", "fill", "soft"), ("text.before", "fill", "before"),
    ("text.after", "fill", "after"), ("text.halo", "stroke", "paper"), (".paper", "fill", "paper"),
    (".grid", "stroke", "grid"), (".axis", "stroke", "soft"), (".line.before", "stroke", "before"),
    (".line.after", "stroke", "after"), (".area.before", "fill", "before"), (".area.after", "fill", "after"),
    (".swatch.before", "fill", "before"), (".swatch.after", "fill", "after"), (".dot", "fill", "paper"),
    (".dot.before", "stroke", "before"), (".dot.after", "stroke", "after"), (".dot.full.after", "fill", "after"),
    (".bound", "stroke", "ink"), (".floor", "stroke", "soft"), (".at", "stroke", "before"), (".bar", "fill", "rest"),
    (".block", "fill", "rest"), (".block", "stroke", "paper"), (".hot", "fill", "after"),
)  # fmt: skip
_PLAIN = """\
svg.peakmem text.strong{font-weight:600}
svg.peakmem text.halo{paint-order:stroke;stroke-width:4px;stroke-linejoin:round}
svg.peakmem .line,svg.peakmem .grid,svg.peakmem .axis,svg.peakmem .bound,svg.peakmem .floor,svg.peakmem .at{fill:none}
svg.peakmem .line{stroke-width:1.75;stroke-linejoin:round}
svg.peakmem .area.before{fill-opacity:.16}
svg.peakmem .area.after{fill-opacity:.3}
svg.peakmem .dot{stroke-width:2}
svg.peakmem .bound{stroke-width:1.5;stroke-dasharray:6 4}
svg.peakmem .floor{stroke-width:1.5;stroke-dasharray:2 3}
svg.peakmem .at{stroke-width:1.25;stroke-dasharray:3 3}
svg.peakmem .block{stroke-width:.75}
"""


def style() -> str:
    """The style sheet of every drawing."""

    def rules(palette: dict[str, str]) -> str:
        return "".join(f"svg.peakmem {which}{{{what}:{palette[name]}}}\n" for which, what, name in _COLOURED)

    return f"{rules(LIGHT)}{_PLAIN}@media (prefers-color-scheme:dark){{\n{rules(DARK)}}}\n"


@dataclass(frozen=True)
class Frame:
    """A rectangle of pixels that shows ``across`` units from left to right and ``up`` units from the foot to the top."""

    left: float
    top: float
    right: float
    foot: float
    across: float
    up: float
    base: float = 0
    """The value at the foot."""

    def x(self, value: float) -> str:
        return pixel(self.left + (self.right - self.left) * (value / self.across))

    def y(self, value: float) -> str:
        return pixel(self.foot - (self.foot - self.top) * ((value - self.base) / (self.up - self.base)))


def pixel(value: float) -> str:
    """A coordinate to a tenth of a pixel.

    >>> pixel(12.04), pixel(7.96)
    ('12', '8')
    """
    text = f"{value:.1f}"
    return text.removesuffix(".0")


class Drawing:
    """Rows of SVG under a title and a description for screen readers.

    Parameters
    ----------
    width, height : int
        Pixels; the picture scales to the space it gets.
    title, description : str
        Cleaned and escaped here, like all text.
    key : str
        Prefix of the ids in it, unique on a page.
    kind : str
        A further class of the picture.
    """

    def __init__(self, width: int, height: int, *, title: str, description: str, key: str, kind: str = "") -> None:
        self.width, self.height, self.key, self.kind = width, height, key, kind
        self.title, self.description = title, description
        self.data: dict[str, object] = {}
        self.rows: list[str] = []

    def path(self, d: str, style: str) -> None:
        self.rows.append(f'<path class="{style}" d="{d}"/>')

    def rect(self, x: str, y: str, width: float, height: float, style: str, tip: str = "", span: tuple[int, int] | None = None) -> None:
        """``span``: the first step in which it is there, and the first in which it is not, for what a page does with it."""
        shown = f' data-begin="{span[0]}" data-end="{span[1]}"' if span is not None else ""
        inner = f"><title>{word(tip)}</title></rect>" if tip else "/>"
        self.rows.append(
            f'<rect class="{style}" x="{x}" y="{y}" width="{pixel(width)}" height="{pixel(height)}"{shown}{inner}'
        )

    def dot(self, x: str, y: str, style: str, tip: str = "") -> None:
        inner = f"><title>{word(tip)}</title></circle>" if tip else "/>"
        self.rows.append(f'<circle class="dot {style}" cx="{x}" cy="{y}" r="4"{inner}')

    def text(self, x: float | str, y: float | str, words: str, style: str = "", anchor: str = "") -> None:
        at = f' text-anchor="{anchor}"' if anchor else ""
        named = f' class="{style}"' if style else ""
        self.rows.append(f'<text x="{_place(x)}" y="{_place(y)}"{at}{named}>{word(words)}</text>')

    def grid(self, frame: Frame, values: Iterable[tuple[float, str]]) -> None:
        """Lines across at values of the vertical axis, labelled at the left."""
        for value, label in values:
            self.path(f"M{pixel(frame.left)} {frame.y(value)}H{pixel(frame.right)}", "grid")
            self.text(frame.left - 8, float(frame.y(value)) + 4, label, "soft", "end")

    def inline(self) -> str:
        """For a page that holds `style`."""
        return self._svg("", "")

    def document(self) -> bytes:
        """As a file, with its style and a paper of its own; UTF-8."""
        paper = f'<rect class="paper" width="{self.width}" height="{self.height}"/>'
        attributes = f' xmlns="http://www.w3.org/2000/svg" width="{self.width}" height="{self.height}"'
        return (self._svg(attributes, f"<style>\n{style()}</style>\n{paper}\n") + "\n").encode()

    def _svg(self, attributes: str, start: str) -> str:
        data = "".join(f' data-{name}="{value}"' for name, value in self.data.items())
        kind = f" {self.kind}" if self.kind else ""
        rows = "\n".join(self.rows)
        return (
            f'<svg{attributes} class="peakmem{kind}" viewBox="0 0 {self.width} {self.height}" '
            f"font-family='{FONT}' font-size=\"12\" role=\"img\" "
            f'aria-labelledby="{self.key}-title {self.key}-description"{data}>\n'
            f'<title id="{self.key}-title">{word(self.title)}</title>\n'
            f'<desc id="{self.key}-description">{word(self.description)}</desc>\n{start}{rows}\n</svg>'
        )


def word(text: str) -> str:
    """Text from anywhere, for the inside of an element or an attribute: no control characters, everything escaped."""
    return escape(clean(text))


def fit(text: str, pixels: float, size: float = 12) -> str:
    """A name shortened in the middle to about ``pixels`` of width."""
    cleaned, room = clean(text), max(9, int(pixels / (0.58 * size)))
    wide = sum(1 for c in cleaned if not c.isascii() and east_asian_width(c) in "WF")
    return shorten(cleaned, room * len(cleaned) // (len(cleaned) + wide) if wide else room)


def _place(value: float | str) -> str:
    return value if isinstance(value, str) else pixel(value)


# -- axes ----------------------------------------------------------------------------------------------------------


def unit_of(size: float) -> tuple[int, str]:
    """The unit that sizes up to ``size`` bytes are marked in."""
    for power, name in ((2**60, "EiB"), (2**50, "PiB"), (2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= 2 * power:
            return power, name
    return 1, "B"


def marks(low: float, high: float) -> Iterator[tuple[float, str]]:
    """About five round sizes from ``low`` to ``high`` bytes, with their labels."""
    unit, name = unit_of(high)
    for value in ticks(low / unit, high / unit, binary=unit > 1):
        yield value * unit, f"{value:g} {name}"


def ticks(low: float, high: float, *, binary: bool = False) -> Iterator[float]:
    """About five round numbers from ``low`` to ``high``."""
    rough = max((high - low) / 5, 1e-9)
    if binary and rough >= 1:
        step = float(2 ** math.ceil(math.log2(rough))) if rough <= 128 else float(math.ceil(rough / 256) * 256)
    else:
        scale = 10 ** math.floor(math.log10(rough))
        step = next(k * scale for k in (1, 2, 5, 10) if k * scale >= rough * 0.999)
    value = math.ceil(low / step) * step
    while value <= high:
        yield round(value, 9)
        value += step


def count(number: float) -> str:
    """``1.5 M`` for large counts."""
    for size, letter in ((10**9, " G"), (10**6, " M"), (10**3, " k")):
        if number >= size:
            return f"{number / size:g}{letter}"
    return f"{number:g}"
