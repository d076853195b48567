"""The figures of a report, each drawn for any width: memory over steps, lifetimes, an arena."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peakmem.report.data import Bar, Bars, Curve
from peakmem.report.svg import Drawing, Frame, fit, marks, pixel, ticks
from peakmem.report.words import at_step
from peakmem.system.sizes import human, in_bytes, short

WIDE, NARROW = 860, 360
"""Pixels of a page on a desk and on a telephone."""


@dataclass(frozen=True)
class Bound:
    """A dashed line: bytes and what they are; ``floor`` is the second kind of line."""

    size: int
    label: str
    floor: bool = False


def memory(
    before: Curve, after: Curve, bounds: Sequence[Bound] = (), *, title: str, width: int = WIDE, key: str = "memory",
    headed: bool = True,
) -> Drawing:
    """Bytes over steps, both orders on one axis, the bounds dashed, the peaks marked and named.

    Curves that agree in every step are drawn once. ``headed``: the title stands above, and not for screen readers only.
    """
    same = before == after
    curves = [("after", after)] if same else [("before", before), ("after", after)]
    wide = width > 500
    lines = [_legend(name if not same else "before and after", c, width) for name, c in curves]
    start = 40 if headed else 14
    head = start + 18 * (len(lines) + len(bounds)) + 6
    height = head + (300 if wide else 220) + 44
    picture = Drawing(
        width, height, title=title, key=key, kind="memory",
        description=". ".join([*lines, *(f"{b.label}: {human(b.size)}" for b in bounds)]),
    )  # fmt: skip
    steps = max(before.steps, after.steps, 1)
    top = max(before.peak, after.peak, *(b.size for b in bounds), 1) * 1.04
    left = 74 if wide else 62
    frame = Frame(left, head, width - 14, height - 44, steps, top)
    if headed:
        picture.text(8, 18, fit(title, width - 16, 13), "strong")
    y = start
    for (name, _), line in zip(curves, lines):
        picture.rect("8", pixel(y - 10), 12, 10, f"swatch {name}")
        picture.text(26, y, line, name)
        y += 18
    for bound in bounds:
        picture.path(f"M8 {y - 4}h14", "floor" if bound.floor else "bound")
        size = human(bound.size) if wide else in_bytes(bound.size)
        picture.text(26, y, f"{bound.label}: {size}")
        y += 18
    picture.grid(frame, marks(0, top))
    picture.path(f"M{pixel(frame.left)} {pixel(frame.top)}V{pixel(frame.foot)}H{pixel(frame.right)}", "axis")
    _step_axis(picture, frame, steps)
    for name, c in curves:
        outline = _outline(c, frame)
        if outline:
            picture.path(f"{outline}V{pixel(frame.foot)}H{frame.x(0)}Z", f"area {name}")
            picture.path(outline, f"line {name}")
    for bound in bounds:
        line = "floor" if bound.floor else "bound"
        picture.path(f"M{pixel(frame.left)} {frame.y(bound.size)}H{pixel(frame.right)}", line)
    _peaks(picture, frame, curves)
    picture.data = _edges(frame, steps)
    return picture


def _edges(frame: Frame, steps: int) -> dict[str, object]:
    """What a page must know to find the step under a pointer, and the place of a step."""
    edges = {"left": frame.left, "right": frame.right, "top": frame.top, "foot": frame.foot}
    return {"steps": steps, **{edge: pixel(at) for edge, at in edges.items()}}


def _legend(name: str, c: Curve, width: int) -> str:
    top = c.top
    if top is None:
        return f"{name}: {human(c.peak)} resident at entry, no statements"
    if width > 500:
        words = f"{name}: peak {human(c.peak)} at {at_step(top.step, c.steps)}, "
    else:
        words = f"{name}: {in_bytes(c.peak)}, step {top.step}: "
    return words + fit(top.statement, width - 40 - 6.6 * len(words))


def _outline(c: Curve, frame: Frame) -> str:
    """The stairs of a curve as one path; a run of equal steps is one line."""
    parts: list[str] = []
    last = ""
    for moment in c.moments:
        y = frame.y(moment.size)
        if not parts:
            parts.append(f"M{frame.x(0)} {y}")
        elif y != last:
            parts.append(f"H{frame.x(moment.step)}V{y}")
        last = y
    return "".join([*parts, f"H{frame.x(c.steps)}"]) if parts else ""


def _peaks(picture: Drawing, frame: Frame, curves: Sequence[tuple[str, Curve]]) -> None:
    placed: list[tuple[float, float]] = []
    for name, c in curves:
        if c.top is None:
            continue
        x, y = frame.x(c.peak_step + 0.5), frame.y(c.peak)
        tip = f"peak {name}: {in_bytes(c.peak)} at step {c.peak_step:,}, {c.top.statement}"
        picture.dot(x, y, f"full {name}" if name == "after" else name, tip)
        label_y = float(y) - 9
        if all(abs(label_y - other_y) > 15 or abs(float(x) - other_x) > 110 for other_x, other_y in placed):
            near_left, near_right = float(x) - frame.left < 60, frame.right - float(x) < 60
            anchor = "start" if near_left else "end" if near_right else "middle"
            at = frame.left + 4 if near_left else frame.right if near_right else float(x)
            picture.text(at, label_y, f"peak {short(c.peak)}", f"{name} strong halo", anchor)
            placed.append((float(x), label_y))


def _step_axis(picture: Drawing, frame: Frame, steps: int) -> None:
    """Numbers of steps under their middles."""
    shown = {0, steps - 1} | {int(value) for value in ticks(0, steps - 1) if value == int(value)}
    last = -1e9
    end = float(frame.x(steps - 0.5))
    for step in sorted(shown):
        x = float(frame.x(step + 0.5))
        if x - last < 44 or (step != steps - 1 and end - x < 44):
            continue
        last = x
        picture.path(f"M{pixel(x)} {pixel(frame.foot)}v4", "axis tick")
        last_one = step == steps - 1 and step >= 999
        picture.text(frame.right + 8 if last_one else x, frame.foot + 18, f"{step:,}", "soft tick", "end" if last_one else "middle")
    picture.text((frame.left + frame.right) / 2, frame.foot + 36, "step", "soft", "middle")


def lifetimes(found: Bars, *, title: str, width: int = WIDE, key: str = "lifetimes", headed: bool = True) -> Drawing:
    """A bar for each buffer from its birth to its death, those live at the peak highlighted."""
    wide = width > 500
    row, head = 17, 54 if headed else 28
    height = head + row * len(found.bars) + 44
    picture = Drawing(width, height, title=title, description=_described(found), key=key, kind="lifetimes")
    names = 214 if wide else 104
    frame = Frame(names, head, width - (96 if wide else 66), height - 44, max(found.steps, 1), 1)
    picture.data = _edges(frame, max(found.steps, 1))
    _hot_legend(picture, title if headed else "", width)
    _step_axis(picture, frame, max(found.steps, 1))
    picture.path(f"M{pixel(frame.left)} {pixel(frame.foot)}H{pixel(frame.right)}", "axis")
    for i, bar in enumerate(found.bars):
        y = head + row * i
        begin = float(frame.x(bar.begin))
        picture.text(names - 8, y + 12, fit(bar.name, names - 12), "" if bar.at_peak else "soft", "end")
        length = max(1.5, float(frame.x(bar.end)) - begin)
        picture.rect(pixel(begin), pixel(y + 3), length, row - 5, "bar hot" if bar.at_peak else "bar", _tip(bar, found), (bar.begin, bar.end))
        picture.text(frame.right + 6, y + 12, short(bar.size), "" if bar.at_peak else "soft")
    _peak_line(picture, frame, found)
    return picture


def arena(
    found: Bars, *, title: str, width: int = WIDE, key: str = "arena", headed: bool = True, top: int | None = None
) -> Drawing:
    """Blocks as rectangles: steps across, addresses up, to ``top`` bytes if that is more than the highest end."""
    wide = width > 500
    head = 54 if headed else 28
    height = head + (340 if wide else 280) + 44
    picture = Drawing(width, height, title=title, description=_described(found), key=key, kind="arena")
    highest = found.height or 1
    top = max(top or 0, highest)
    frame = Frame(74 if wide else 62, head + 10, width - 14, height - 44, max(found.steps, 1), top * 1.03)
    picture.data = _edges(frame, max(found.steps, 1))
    _hot_legend(picture, title if headed else "", width)
    picture.grid(frame, marks(0, top * 1.03))
    _step_axis(picture, frame, max(found.steps, 1))
    for bar in found.bars:
        begin, high = float(frame.x(bar.begin)), float(frame.y(bar.offset + bar.size))
        across, up = max(1.0, float(frame.x(bar.end)) - begin), max(0.8, float(frame.y(bar.offset)) - high)
        picture.rect(pixel(begin), pixel(high), across, up, "block hot" if bar.at_peak else "block", _tip(bar, found, True), (bar.begin, bar.end))
    picture.path(f"M{pixel(frame.left)} {frame.y(highest)}H{pixel(frame.right)}", "bound")
    picture.text(frame.right, float(frame.y(highest)) - 5, f"highest end {in_bytes(highest)}", "halo", "end")
    _peak_line(picture, frame, found)
    picture.path(f"M{pixel(frame.left)} {pixel(frame.top)}V{pixel(frame.foot)}H{pixel(frame.right)}", "axis")
    return picture


def _hot_legend(picture: Drawing, title: str, width: int) -> None:
    y = 40 if title else 14
    if title:
        picture.text(8, 18, fit(title, width - 16, 13), "strong")
    picture.rect("8", pixel(y - 10), 12, 10, "bar hot")
    picture.text(26, y, "live at the peak", "after")
    picture.rect("136", pixel(y - 10), 12, 10, "bar")
    picture.text(154, y, "not live there", "soft")
    picture.path(f"M252 {y - 4}h14", "at")
    picture.text(272, y, "peak step", "before")


def _peak_line(picture: Drawing, frame: Frame, found: Bars) -> None:
    if found.steps:
        picture.path(f"M{frame.x(found.peak_step + 0.5)} {pixel(frame.top)}V{pixel(frame.foot)}", "at")


def _tip(bar: Bar, found: Bars, addressed: bool = False) -> str:
    span = f"steps {bar.begin:,} to {bar.end - 1:,}" if bar.end - bar.begin > 1 else f"step {bar.begin:,}"
    where = f", bytes {bar.offset:,} to {bar.offset + bar.size - 1:,} of the arena" if addressed else ""
    return f"{fit(bar.name, 700)}: {in_bytes(bar.size)}, {span}{where}"


def _described(found: Bars) -> str:
    hot = [bar for bar in found.bars if bar.at_peak]
    return (
        f"{len(found.bars)} buffers over {found.steps} steps; {len(hot)} of them with {in_bytes(sum(b.size for b in hot))} "
        f"are live at the peak, step {found.peak_step}"
    )
