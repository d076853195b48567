"""One page about one artifact, and its figures as files.

    >>> import peakmem
    >>> result = peakmem.optimize(peakmem.load("model.tflite"))    # doctest: +SKIP
    >>> html = peakmem.report.render(result)                       # doctest: +SKIP
    >>> svg = peakmem.report.figure(result, "memory")              # doctest: +SKIP

``data`` works out what is shown, ``figures`` and ``svg`` draw it, ``story`` gathers it, and ``page`` writes the HTML.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from peakmem.report.pair import Pair
    from peakmem.report.pair import compare as compare
    from peakmem.result import Result
    from peakmem.transform.recompute import Recomputation
    from peakmem.transform.split import Splitting

    Found: TypeAlias = Result | Recomputation | Pair | Splitting

FIGURES = ("memory", "lifetimes", "arena", "front")
"""What `figure` can draw."""

__all__ = ["FIGURES", "compare", "figure", "render"]


def render(
    found: Found | Sequence[Found], *, settings: Mapping[str, object] | None = None, name: str | None = None
) -> str:
    """The report as one self-contained HTML page.

    Parameters
    ----------
    found : Result, Recomputation, Pair or Splitting, or a sequence of them
        From `peakmem.optimize`, `peakmem.recompute`, `compare` or `peakmem.split`; several models become one page.
    settings : mapping of str to object, optional
        Options that were given; named in the page.
    name : str, optional
        What the page calls the artifact; the name of its file if not given. Of one model only.

    Returns
    -------
    str
        The same text for the same input: no time of day, no seconds. Nothing in it is loaded from elsewhere.
    """
    from peakmem.model import UsageError
    from peakmem.report.page import page
    from peakmem.report.story import tell

    several = list(found) if isinstance(found, Sequence) else [found]
    if not several:
        raise UsageError("a report needs a result")
    return page([tell(each, settings=settings, name=name if len(several) == 1 else None) for each in several])


def figure(found: Result | Recomputation | Pair | Splitting, kind: str = "memory", *, name: str | None = None) -> bytes:
    """One figure as an SVG file.

    Parameters
    ----------
    found : Result, Recomputation, Pair or Splitting
    kind : {"memory", "lifetimes", "arena", "front"}
    name : str, optional
        As in `render`.

    Raises
    ------
    Refused
        When there is no such figure: an arena without planned offsets, a front that was not computed.
    UsageError
        On any other kind.
    """
    from peakmem.model import Refused, UsageError, did_you_mean
    from peakmem.report import data, figures
    from peakmem.report.front import front_drawing
    from peakmem.report.story import tell

    if kind not in FIGURES:
        raise UsageError(f"no figure is called {kind!r} (there are {', '.join(FIGURES)})" + did_you_mean(kind, FIGURES))
    story = tell(found, name=name)
    if kind == "memory":
        before, after = data.curve(story.before), data.curve(story.after)
        return figures.memory(before, after, story.bounds, title=f"{story.name}: memory over steps").document()
    if kind == "front":
        if story.front is None:
            raise Refused("front: there is none; neither recomputation nor splitting was asked for, or it cannot help")
        points, floor = story.front
        return front_drawing(points, floor=floor, title=f"{story.name}: memory for extra MACs").document()
    if kind == "lifetimes":
        return figures.lifetimes(data.bars(story.after), title=f"{story.name}: lifetimes, after").document()
    if not story.arenas:
        raise Refused("arena: there is none; the schedule has no offsets and the frontend knows of none")
    what, blocks = story.arenas[-1]
    return figures.arena(blocks, title=f"{story.name}: the arena {what}").document()


def __getattr__(name: str) -> Any:
    if name == "compare":
        from peakmem.report.pair import compare

        return compare
    raise AttributeError(f"module 'peakmem.report' has no attribute {name!r}")
