"""Which regions to split, and in how many bands: the front of more MACs against bytes.

First every region of the base order is estimated (`peakmem.transform.split.estimate`), and dynamic programming over the
order finds, for each number of bytes, the regions of fewest MACs that stay below it, all regions of the order considered
together. Then the points that matter are laid out and ordered in earnest, and improved by small changes of their regions,
each of them ordered as well; what is kept is what the ordered programs need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, product
from typing import TypeAlias

from peakmem.frontends.splitting import Axis, Region, Splittable
from peakmem.model import InputError, Program, Refused
from peakmem.ordering.meter import Meter
from peakmem.ordering.portfolio import Solver
from peakmem.ordering.problem import problem_of
from peakmem.system import clock
from peakmem.system.progress import Progress, silent
from peakmem.transform.split.estimate import Candidate, Estimator
from peakmem.transform.split.layout import lay_out

BANDS = (2, 3, 4, 5, 7, 10)
"""Numbers of bands that are estimated; small changes go beyond them."""

KEPT_BANDS = (2, 3, 4, 6)
"""The same for regions whose halos are kept."""

SHARES = (0.95, 0.85, 0.7, 0.55, 0.4)
"""Where the unsplit program holds such a share of its peak, regions whose halos are kept are looked at."""

FURTHER = 1
"""Statements by which such a region may begin before that, or end behind it."""

MOST_KEPT = 200
"""Bands of statements of such a region."""

SEEDS = 3
"""Numbers of bands in which such a region is ordered whatever was estimated: where values have many readers, their order is all."""

MISSES = 2
"""Numbers of bands in a row that need no less than fewer do, after which no more are estimated for a region."""

LONGEST = 16
"""Statements of a region."""

WORTH = 0.35
"""A region is looked at only where the unsplit program holds this share of its peak."""

THRESHOLDS = 40
"""Points of the estimated front that are worked out."""

EARLY = 6
"""Points of the front of one base order that are ordered before the next base order is estimated, lowest first."""

EFFORT = 200_000
"""Units of work (`peakmem.ordering.meter`) for the order of one split program while it is compared with others."""

TRIALS = 120
"""Split programs that are ordered in a search."""

PATIENCE = 30
"""Small changes in a row that lower nothing, after which no more are tried."""

GLANCE = 20_000
"""Statements of bands that `glance` estimates, half of them for each axis."""


Estimated: TypeAlias = tuple[int, int, tuple[int, ...], tuple[Region, ...]]
"""Bytes and MACs as estimated, base order, regions."""


@dataclass(frozen=True)
class Point:
    """Regions, and what the ordered split program needs.

    Attributes
    ----------
    peak : int
        Live peak in bytes of the best order found.
    extra_macs : int
    added : int
        Statements more than in the original.
    regions : tuple of Region
    order : tuple of int
        The base order that regions count by.
    """

    peak: int
    extra_macs: int
    added: int
    regions: tuple[Region, ...]
    order: tuple[int, ...] = ()

    @property
    def keeps(self) -> bool:
        """Whether halos of a region are kept."""
        return any(r.kept for r in self.regions)

    def value(self, weight: int = 0) -> int:
        """What is to be small: the live peak and ``weight`` bytes for each further statement."""
        return self.peak + weight * self.added


@dataclass
class Searched:
    """The points found: none is worse than another in bytes and in MACs; cheapest first.

    Attributes
    ----------
    points : list of Point
    trials : int
        Split programs that were ordered.
    complete : bool
        Whether the search came to its own end.
    stopped : bool
        Ctrl-C ended it.
    ordered : list of Point
        All that were ordered.
    """

    points: list[Point]
    trials: int = 0
    complete: bool = True
    stopped: bool = False
    ordered: list[Point] = field(default_factory=list)


def candidates(estimator: Estimator, peak: int, axes: Sequence[Axis], out: Callable[[], bool]) -> list[Candidate]:
    """Every region that is worth estimating and would need less than ``peak``, the best numbers of bands of each.

    O(statements * LONGEST * len(BANDS)) estimates.
    """
    found: list[Candidate] = []
    n = len(estimator.order)
    for axis in axes:
        for first in range(n):
            hot = 0
            for last in range(first, min(n, first + LONGEST)):
                if isinstance(estimator.source.rule(estimator.order[last], axis), str):
                    break
                hot = max(hot, estimator.live[last])
                if hot < WORTH * peak:
                    continue
                if out():
                    return found
                shape = estimator.region(first, last, axis)
                if isinstance(shape, str) or shape.joined >= peak:
                    continue
                here: list[Candidate] = []
                least, misses = 0, 0
                for bands in BANDS:
                    one = shape.in_bands(bands)
                    if one is not None and one.peak < peak and all(one.peak < c.peak or one.extra < c.extra for c in here):
                        here.append(one)
                    if one is not None and (not least or one.peak < least):
                        least, misses = one.peak, 0
                    else:
                        misses += 1
                    if misses == MISSES:
                        break
                found += here
    return found


def kept_candidates(estimator: Estimator, peak: int, out: Callable[[], bool]) -> list[Candidate]:
    """Regions of rows whose halos are kept: they cost few MACs at any length, so there are only those around what is large."""
    found: list[Candidate] = []
    for first, last in hot_spans(estimator, peak, FURTHER):
        shape = estimator.region(first, last, "rows", kept=True)
        if isinstance(shape, str) or shape.joined >= peak:
            continue
        for bands in KEPT_BANDS:
            if out():
                return found
            one = shape.halos_kept(bands) if bands * (last - first + 1) <= MOST_KEPT else None
            if one is not None and one.peak < peak:
                found.append(one)
    return found


def hot_spans(estimator: Estimator, peak: int, further: int = 0) -> list[tuple[int, int]]:
    """First and last place of runs of statements with rows where much is held, and of those ``further`` at either end; in order."""
    banded = [not isinstance(estimator.source.rule(v, "rows"), str) for v in estimator.order]
    found: set[tuple[int, int]] = set()
    for share in SHARES:
        hot = [here and size > share * peak for here, size in zip(banded, estimator.live)]
        for is_hot, run in groupby(range(len(hot)), key=hot.__getitem__):
            places = list(run) if is_hot else []
            for before, behind in product(range(further + 1), repeat=2) if places else ():
                first, last = places[0] - before, places[-1] + behind
                if first >= 0 and last < len(hot) and all(banded[first : last + 1]):
                    found.add((first, last))
    return sorted(found)


def estimated_front(
    estimator: Estimator, found: Sequence[Candidate], peak: int
) -> Iterator[tuple[int, int, tuple[Region, ...]]]:
    """For descending numbers of bytes the regions of fewest MACs, by the estimates: bytes, MACs, regions.

    One dynamic program over the base order for each number of bytes: a place either runs whole, or ends a region.
    """
    n = len(estimator.order)
    by_end: list[list[Candidate]] = [[] for _ in range(n)]
    for c in found:
        by_end[c.last].append(c)

    def least(limit: int) -> tuple[int, tuple[Region, ...]] | None:
        best: list[tuple[int, int] | None] = [(0, 0)] + [None] * n  # MACs, regions
        came: list[Candidate | None] = [None] * (n + 1)
        for k in range(n):
            options: list[tuple[tuple[int, int], Candidate | None]] = []
            here = best[k]
            if here is not None and estimator.live[k] <= limit:
                options.append((here, None))
            for c in by_end[k]:
                before = best[c.first]
                if c.peak <= limit and before is not None:
                    options.append(((before[0] + c.extra, before[1] + c.bands), c))
            if options:
                best[k + 1], came[k + 1] = min(options, key=lambda o: o[0])
        if best[n] is None:
            return None
        regions, k = [], n
        while k:
            ended = came[k]
            if ended is not None:
                regions.append(Region(ended.first, ended.last, ended.bands, ended.axis, ended.kept))
            k = k - 1 if ended is None else ended.first
        total = best[n]
        assert total is not None
        return total[0], tuple(reversed(regions))

    levels = sorted({c.peak for c in found} | {v for v in estimator.live if v < peak})
    low, high = 0, len(levels)
    while low < high:
        middle = (low + high) // 2
        if least(levels[middle]) is None:
            low = middle + 1
        else:
            high = middle
    levels = levels[low:]
    step = max(1, len(levels) // THRESHOLDS)
    seen: set[tuple[Region, ...]] = set()
    for level in reversed([*levels[::step]]):
        made = least(level)
        if made is not None and made[1] and made[1] not in seen:
            seen.add(made[1])
            yield level, made[0], made[1]


def live_peak(program: Program, effort: int = EFFORT, deadline: float | None = None) -> int:
    """Live peak in bytes of the best order that little work finds."""
    solver = Solver(problem_of(program, list(program.workspaces)), Meter(deadline, effort))
    solver.run(2)
    return solver.peak


@dataclass
class Search:
    """One search; anytime.

    Parameters
    ----------
    source : Splittable
    weight : int
        Bytes that each further statement counts beside the live peak.
    orders : sequence of sequence of int
        Base orders, whose consecutive statements may be regions: the best one of the unsplit program, and others.
    peak : int
        Live peak of the best order in bytes.
    most : int
        MACs that may be added.
    goal : int
        A peak that is low enough.
    axes : sequence of Axis
    deadline : float, optional
        A moment of `peakmem.system.clock`.
    """

    source: Splittable
    orders: Sequence[tuple[int, ...]]
    peak: int
    most: int
    goal: int = 0
    weight: int = 0
    axes: Sequence[Axis] = ("rows", "channels")
    deadline: float | None = None
    progress: Progress | None = None
    seen: dict[tuple[tuple[int, ...], tuple[Region, ...]], Point | None] = field(default_factory=dict)
    trials: int = 0

    @property
    def keeping(self) -> bool:
        """Whether regions with kept halos are looked at: not where bands lie in their join, where each is written to be ordered."""
        return "rows" in self.axes and not self.source.in_place

    def run(self, limit: int = TRIALS) -> Searched:
        """Search until nothing is better, the trials are used up, the time is, or Ctrl-C."""
        say = self.progress or silent
        complete, stopped = True, False
        try:
            within: list[Estimated] = []
            first: tuple[Estimator, list[Candidate]] | None = None
            for order in dict.fromkeys(map(tuple, self.orders)):
                say("estimating regions" + (f", best {self.lowest():,} B" if self.trials else ""))
                estimator = Estimator(self.source, order)
                found = candidates(estimator, self.peak, self.axes, self.out)
                first = first or (estimator, found)
                here = self.affordable(estimator, found)
                within += here
                self.look_at(here[:EARLY], limit // 2, say)
            self.look_at(sorted(within), limit // 2, say)
            self.improve(limit, say, kept=False)
            if first is not None and self.keeping:
                # Last, since halos that are kept cost statements, and arenas of fewer reach their live peak more often.
                estimator, found = first
                more = limit // 2 + self.trials
                found = found + kept_candidates(estimator, self.peak, self.out)
                self.look_at(self.affordable(estimator, found)[:EARLY] + self.seeds(estimator), more, say)
                self.improve(more, say, kept=True)
            complete = not self.out()
        except KeyboardInterrupt:
            complete, stopped = False, True
        return Searched(pareto(self.points, self.weight), self.trials, complete, stopped, self.points)

    def affordable(self, estimator: Estimator, found: Sequence[Candidate]) -> list[Estimated]:
        """The estimated front as far as its MACs may be spent, the lowest first: they are the ones asked for."""
        front = estimated_front(estimator, found, self.peak)
        return sorted((level, macs, estimator.order, regions) for level, macs, regions in front if macs <= self.most)

    def seeds(self, estimator: Estimator) -> list[Estimated]:
        """Regions around what is large whose halos are kept, in few bands, as `look_at` takes them; the estimates unknown."""
        return [
            (0, 0, estimator.order, (Region(first, last, bands, kept=True),))
            for first, last in hot_spans(estimator, self.peak)
            for bands in range(2, 2 + SEEDS) if bands * (last - first + 1) <= MOST_KEPT
        ]  # fmt: skip

    def look_at(self, rows: Sequence[Estimated], limit: int, say: Progress) -> None:
        """Order what was estimated, until so many trials are used up."""
        for _, _, order, regions in rows:
            if self.trials >= limit or self.out():
                return
            self.look(order, regions)
            say(f"ordering split programs: {self.trials}, best {self.lowest():,} B")

    @property
    def points(self) -> list[Point]:
        return [p for p in self.seen.values() if p is not None]

    def out(self) -> bool:
        return clock.late(self.deadline)

    def lowest(self) -> int:
        return min((p.peak for p in self.points), default=self.peak)

    def look(self, order: tuple[int, ...], regions: tuple[Region, ...]) -> Point | None:
        """What the split program needs, ordered; None where it cannot be or costs too much."""
        regions = tuple(sorted(regions))
        if (order, regions) in self.seen:
            return self.seen[order, regions]
        point = None
        try:
            split = lay_out(self.source, order, regions)
            program = self.source.in_memory(split) if split.extra_macs <= self.most else None
        except (Refused, InputError):
            program = None
        if program is not None:
            self.trials += 1
            peak = live_peak(program, deadline=self.deadline)
            point = Point(peak, split.extra_macs, len(split.steps) - len(order), regions, order)
        self.seen[order, regions] = point
        return point

    def improve(self, limit: int, say: Progress, kept: bool) -> None:
        """Small changes to the points of the front, the lowest first, as long as any is better; without ``kept`` halos, or with."""
        tried: set[tuple[tuple[int, ...], tuple[Region, ...]]] = set()

        def lowest() -> int:
            return min((p.peak for p in self.points if kept or not p.keeps), default=self.peak)

        before, least = self.trials, lowest()
        while True:
            front = pareto([p for p in self.points if kept or not p.keeps], self.weight)
            best = next((p for p in reversed(front) if (p.order, p.regions) not in tried), None)
            if best is None or (self.goal and best.peak <= self.goal):
                return
            tried.add((best.order, best.regions))
            for regions in neighbours(best.regions, len(best.order)):
                if self.trials >= min(limit, before + PATIENCE) or self.out():
                    return
                if any(r.kept for r in regions) and not kept:
                    continue
                found = self.look(best.order, regions)
                say(f"ordering split programs: {self.trials}, best {self.lowest():,} B")
                if lowest() < least:
                    before, least = self.trials, lowest()
                if found is not None and (found.value(self.weight), found.extra_macs) < (best.value(self.weight), best.extra_macs):
                    break


def glance(source: Splittable, order: tuple[int, ...], peak: int, most: int, work: int = GLANCE) -> Searched:
    """One base order, estimated until so much work is done, and the lowest estimate ordered: what a search finds at the least.

    The same on every machine. ``complete`` says that all regions of that order were estimated.
    """
    estimator = Estimator(source, order)
    found: list[Candidate] = []
    complete = True
    axes: tuple[Axis, Axis] = ("rows", "channels")
    for k, axis in enumerate(axes, 1):

        def out(limit: int = work * k // 2) -> bool:
            return estimator.work > limit

        found += candidates(estimator, peak, (axis,), out)
        complete &= not out()
    search = Search(source, [order], peak, most)
    within = [(level, macs, regions) for level, macs, regions in estimated_front(estimator, found, peak) if macs <= most]
    if within:
        search.look(order, min(within)[2])
    return Searched([p for p in search.points if p.peak < peak], search.trials, complete)


def neighbours(regions: tuple[Region, ...], length: int) -> Iterator[tuple[Region, ...]]:
    """The regions with one of them changed: bands, halos kept or not, ends, or gone; ends move a neighbour's along where they meet."""
    for k, region in enumerate(regions):
        rest = (*regions[:k], *regions[k + 1 :])
        for more in (1, -1, 2, -2, 3):
            if region.bands + more >= 2:
                yield (*rest, replace(region, bands=region.bands + more))
        if region.axis == "rows":
            yield (*rest, replace(region, kept=not region.kept))
        for first, last in ((-1, 0), (1, 0), (0, 1), (0, -1)):
            moved = replace(region, first=region.first + first, last=region.last + last)
            if 0 <= moved.first <= moved.last < length:
                clear = [r for r in rest if r.last < moved.first or r.first > moved.last]
                if len(clear) == len(rest):
                    yield (*rest, moved)
                else:  # the neighbour gives way
                    others = tuple(
                        r if r in clear else replace(r, first=r.first + last, last=r.last + first) for r in rest
                    )
                    if all(r.first <= r.last for r in others):
                        yield (*others, moved)
        if rest:
            yield rest


def pareto(points: Sequence[Point], weight: int = 0) -> list[Point]:
    """Those than which none has a lower `Point.value` for as few MACs; cheapest first, equal ones by fewest statements."""
    kept: list[Point] = []
    for p in sorted(points, key=lambda p: (p.extra_macs, p.value(weight), p.added, p.regions, p.order)):
        if not kept or p.value(weight) < kept[-1].value(weight):
            kept.append(p)
    return kept
