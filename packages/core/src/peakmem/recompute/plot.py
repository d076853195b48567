"""The front as a picture."""

from __future__ import annotations

from collections.abc import Sequence

from peakmem.report.svg import Drawing, Frame, count, fit, marks, pixel, ticks
from peakmem.sizes import exact as in_bytes


def front_svg(points: Sequence[tuple[int, int, bool]], *, floor: int, title: str = "") -> bytes:
    """Live peak against extra MACs, as a file.

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
        The document, UTF-8, the same for the same front. A filled mark is exact, a hollow one the best found. Between
        two marks the line is a step: a target between two peaks costs as much as the lower one.
    """
    return front_drawing(points, floor=floor, title=title).document()


def front_drawing(
    points: Sequence[tuple[int, int, bool]], *, floor: int, title: str = "", width: int = 720, key: str = "front",
    headed: bool = True,
) -> Drawing:
    """The picture of `front_svg`, for a page or a file, in any width of pixels; ``headed``: with its title above."""
    wide = width > 500
    height = 440 if wide else 320
    most = max((macs for macs, _, _ in points), default=0) or 1
    high = max((peak for _, peak, _ in points), default=floor)
    low = min(floor, high)
    margin = max(1, (high - low) // 12)
    bottom, top = max(0, low - margin), high + margin
    last = points[-1] if points else None
    found = f"; the last has {in_bytes(last[1])} for {last[0]:,} extra MACs" if last is not None else ""
    picture = Drawing(
        width, height, title=title, description=f"{len(points)} plans{found}; the floor is {in_bytes(floor)}", key=key, kind="front"
    )
    start = 40 if headed else 16
    frame = Frame(96 if wide else 64, start + 18, width - 24, height - 56, most, top, bottom)
    if headed:
        picture.text(8, 20, fit(title, width - 16, 13), "strong")
    if len({proved for _, _, proved in points}) > 1:
        picture.text(frame.right, start, "filled: exact for its base order; hollow: best found", "soft", "end")
    picture.grid(frame, marks(bottom, top))
    for value in ticks(0, most):
        x = frame.x(value)
        picture.path(f"M{x} {pixel(frame.foot)}v5", "axis")
        if wide or len(count(value)) < 6:
            picture.text(x, frame.foot + 20, count(value), "soft", "middle")
    picture.path(f"M{pixel(frame.left)} {pixel(frame.top)}V{pixel(frame.foot)}H{pixel(frame.right)}", "axis")
    picture.text((frame.left + frame.right) / 2, height - 14, "extra MACs", "soft", "middle")
    picture.text(8, frame.top - 8, "live peak", "soft")
    picture.path(f"M{pixel(frame.left)} {frame.y(floor)}H{pixel(frame.right)}", "bound")
    at = float(frame.y(floor))
    picture.text(frame.right, at + 16 if at + 20 < frame.foot else at - 6, f"floor {in_bytes(floor)}", "halo", "end")
    if points:
        first = points[0]
        line = f"M{frame.x(first[0])} {frame.y(first[1])}"
        line += "".join(f"H{frame.x(macs)}V{frame.y(peak)}" for macs, peak, _ in points[1:])
        picture.path(f"{line}H{pixel(frame.right)}", "line after")
    for macs, peak, proved in points:
        known = "exact for its base order" if proved else "best found"
        style = "full after" if proved else "after"
        picture.dot(frame.x(macs), frame.y(peak), style, f"{in_bytes(peak)} for {macs:,} extra MACs, {known}")
    return picture
