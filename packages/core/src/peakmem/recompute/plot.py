"""The front as a picture: SVG, written directly, the same bytes for the same front."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 720, 440
LEFT, RIGHT, TOP, BOTTOM = 96, 24, 40, 56
"""Pixels: the picture, and the margins around the axes."""

BINARY = [2**k for k in range(8)]
"""Multiples of a unit of bytes that look round."""


def front_svg(points: Sequence[tuple[int, int, bool]], *, floor: int, title: str = "") -> bytes:
    """Live peak against extra MACs.

    Parameters
    ----------
    points : sequence of (int, int, bool)
        Extra MACs, live peak in bytes, and whether the price is exact for its base order; cheapest first.
    floor : int
        Bytes that no schedule undercuts; drawn as a dashed line.
    title : str
        Stands above the axes.

    Returns
    -------
    bytes
        The document, UTF-8. A filled mark is exact, a hollow one the best found. Between two marks the line is a
        step: a target between two peaks costs as much as the lower one.
    """
    most = max((macs for macs, _, _ in points), default=0) or 1
    high = max((peak for _, peak, _ in points), default=floor)
    low = min(floor, high)
    margin = max(1, (high - low) // 12)
    bottom, top = max(0, low - margin), high + margin

    def x(macs: float) -> str:
        return f"{LEFT + (WIDTH - LEFT - RIGHT) * macs / most:.1f}"

    def y(peak: float) -> str:
        return f"{HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (peak - bottom) / (top - bottom):.1f}"

    def text(at_x: float | str, at_y: float | str, words: str, anchor: str = "middle", extra: str = "") -> str:
        return f'<text x="{at_x}" y="{at_y}" text-anchor="{anchor}"{extra}>{escape(words)}</text>'

    right, foot = WIDTH - RIGHT, HEIGHT - BOTTOM
    rows = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#222">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        text(LEFT, 24, title, "start", ' font-size="14"'),
    ]
    unit, name = _unit(top)
    for value in _ticks(bottom / unit, top / unit, binary=unit > 1):
        rows.append(f'<path d="M{LEFT} {y(value * unit)}H{right}" stroke="#ddd"/>')
        rows.append(text(LEFT - 8, f"{float(y(value * unit)) + 4:.1f}", f"{value:g} {name}", "end"))
    for value in _ticks(0, most, binary=False):
        rows.append(f'<path d="M{x(value)} {foot}v5" stroke="#222"/>')
        rows.append(text(x(value), foot + 20, _short(value)))
    rows.append(f'<path d="M{LEFT} {TOP}V{foot}H{right}" fill="none" stroke="#222"/>')
    rows.append(text((LEFT + right) / 2, HEIGHT - 14, "extra MACs"))
    rows.append(text(18, (TOP + foot) / 2, "live peak", extra=f' transform="rotate(-90 18 {(TOP + foot) / 2})"'))
    rows.append(f'<path d="M{LEFT} {y(floor)}H{right}" stroke="#a33" stroke-dasharray="6 4"/>')
    rows.append(text(right, f"{float(y(floor)) + 16:.1f}", f"floor {floor:,} B", "end", ' style="fill:#a33"'))
    if points:
        first = points[0]
        line = f"M{x(first[0])} {y(first[1])}" + "".join(f"H{x(macs)}V{y(peak)}" for macs, peak, _ in points[1:])
        rows.append(f'<path d="{line}H{right}" fill="none" stroke="#25c" stroke-width="1.5"/>')
    for macs, peak, exact in points:
        known = "exact for its base order" if exact else "best found"
        rows.append(
            f'<circle cx="{x(macs)}" cy="{y(peak)}" r="4" fill="{"#25c" if exact else "#fff"}" stroke="#25c">'
            f"<title>{peak:,} B for {macs:,} extra MACs, {known}</title></circle>"
        )
    if any(exact for _, _, exact in points) and not all(exact for _, _, exact in points):
        rows.append(text(right, 24, "filled: exact for its base order; hollow: best found", "end"))
    return ("\n".join(rows) + "\n</svg>\n").encode()


def _unit(size: float) -> tuple[int, str]:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= 2 * unit:
            return unit, name
    return 1, "B"


def _ticks(low: float, high: float, *, binary: bool) -> Iterator[float]:
    """About five round numbers from ``low`` to ``high``."""
    rough = max((high - low) / 5, 1e-9)
    if binary and rough >= 1:
        step = float(next((k for k in BINARY if k >= rough), math.ceil(rough / 256) * 256))
    else:
        scale = 10 ** math.floor(math.log10(rough))
        step = next(k * scale for k in (1, 2, 5, 10) if k * scale >= rough * 0.999)
    value = math.ceil(low / step) * step
    while value <= high:
        yield round(value, 9)
        value += step


def _short(macs: float) -> str:
    for size, letter in ((10**9, " G"), (10**6, " M"), (10**3, " k")):
        if macs >= size:
            return f"{macs / size:g}{letter}"
    return f"{macs:g}"
