"""Draw memory over the steps of a model, before and after, with the lower bound as a dashed line.

    python docs/make_picture.py MODEL OUT.svg [--frontend NAME]

Every number is computed here: the model is optimized, and the two timelines and the bound are drawn as they are.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from html import escape
from pathlib import Path

import peakmem
from peakmem.liveness import Timeline, timeline
from peakmem.sizes import human, short

WIDTH, HEIGHT = 760, 330
LEFT, RIGHT, TOP, BOTTOM = 78, 16, 54, 40
BEFORE, AFTER, BOUND, INK = "#b4532a", "#1d6f8b", "#3c3c3c", "#3c3c3c"


def draw(title: str, before: Timeline, after: Timeline, bound: int, *, certified: bool) -> str:
    """The SVG text."""
    top = max(before.peak, after.peak) * 1.06 or 1
    steps = max(len(before.order), 1)

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / steps

    def y(size: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * size / top

    def stairs(heights: Sequence[int]) -> str:
        points = [f"{x(0):.1f},{y(0):.1f}"]
        for step, size in enumerate(heights):
            points += [f"{x(step):.1f},{y(size):.1f}", f"{x(step + 1):.1f},{y(size):.1f}"]
        return " ".join([*points, f"{x(steps):.1f},{y(0):.1f}"])

    def text(left: float, base: float, words: str, *, color: str = INK, anchor: str = "start", size: int = 12) -> str:
        return (
            f'<text x="{left:.1f}" y="{base:.1f}" fill="{color}" text-anchor="{anchor}" font-size="{size}">'
            f"{escape(words)}</text>"
        )

    def area(heights: Sequence[int], color: str, opacity: float) -> str:
        return (
            f'<polygon points="{stairs(heights)}" fill="{color}" fill-opacity="{opacity}" '
            f'stroke="{color}" stroke-width="1.5"/>'
        )

    proof = "certified lower bound of every order" if certified else "lower bound of every order"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
            text(LEFT, 20, title, size=14),
            text(LEFT, 40, f"before: peak {human(before.peak)}", color=BEFORE),
            text(LEFT + 230, 40, f"after: peak {human(after.peak)}", color=AFTER),
            text(LEFT + 410, 40, f"- -  {proof}", color=BOUND),
            area(before.bytes_at, BEFORE, 0.25),
            area(after.bytes_at, AFTER, 0.45),
            f'<line x1="{x(0):.1f}" y1="{y(bound):.1f}" x2="{x(steps):.1f}" y2="{y(bound):.1f}" '
            f'stroke="{BOUND}" stroke-width="1.5" stroke-dasharray="6 4"/>',
            f'<line x1="{x(0):.1f}" y1="{y(0):.1f}" x2="{x(steps):.1f}" y2="{y(0):.1f}" stroke="{INK}"/>',
            *(
                text(LEFT - 8, y(size) + 4, short(size), anchor="end")
                for size in sorted({0, bound, before.peak})
            ),
            text(x(0), HEIGHT - 16, "first step"),
            text(x(steps), HEIGHT - 16, f"step {steps}", anchor="end"),
            "</svg>",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--frontend")
    given = parser.parse_args()
    result = peakmem.optimize(peakmem.load(given.model, frontend=given.frontend), measure=False)
    before, after = timeline(result.source.program), timeline(result.model.program)
    title = f"{given.model.name}: live memory over its {len(before.order)} operators"
    certified = result.certificate is not None
    given.out.write_text(draw(title, before, after, result.lower_bound, certified=certified))


if __name__ == "__main__":
    main()
