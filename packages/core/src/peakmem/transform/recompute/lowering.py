"""A fast heuristic: lower the worst moment, again and again, by the rerun that buys most bytes per MAC.

It wins where a few reruns suffice, starts fronts, and lowers what the reruns of a relaxation leave above the target.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from peakmem.system import clock
from peakmem.transform.recompute.plan import Rerun, Trace, allowed, cost_of, trace
from peakmem.transform.recompute.reruns import RerunProblem

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TRIES = 12
"""How many of the most promising moves are simulated before the heuristic gives up."""


def greedy(
    problem: RerunProblem, target: int, *, start: Sequence[Rerun] = (), deadline: float | None = None
) -> list[Rerun] | None:
    """Reruns that reach ``target``, or None if the heuristic gets stuck or the ``deadline`` passes.

    At the worst moment, each resident value that is idle there and can be made again is a candidate: it is dropped
    after its last read and rerun right before its next one, once with the sources kept and once with dead sources
    rerun as well. The choice maximizes the reduction of the bytes above the target, summed over time, per MAC; moves
    are ranked by an estimate and the best is simulated.
    """
    reruns = list(start)
    now = trace(problem, reruns)
    while now.peak > target:
        over = sum(b - target for b in now.bytes_at if b > target)
        view = _View(problem, reruns, now, target)
        found = []
        for move in view.moves():
            if clock.late(deadline):
                return None
            if move is not None:
                found.append(move)
        for _, event, units in sorted(found)[:TRIES]:
            if clock.late(deadline):
                return None
            at, gap = now.block[event], now.base_step[event]
            if at < 0:
                at = sum(1 for g, _ in reruns if g <= gap)
            attempt = [*reruns[:at], *((gap, u) for u in units), *reruns[at:]]
            if not allowed(problem, attempt):
                continue
            then = trace(problem, attempt)
            if sum(b - target for b in then.bytes_at if b > target) < over:
                reruns, now = attempt, then
                break
        else:
            return None
    return reruns


_Move = tuple[float, int, tuple[int, ...]]
"""MACs per byte, the event before which units rerun, and which: the least is tried first."""


class _View:
    """One plan's memory over time, and estimates of what a rerun would change."""

    def __init__(self, problem: RerunProblem, reruns: Sequence[Rerun], now: Trace, target: int) -> None:
        import numpy as np

        self.problem, self.now, self.target = problem, now, target
        self.sizes = [b.size for b in problem.program.buffers]
        self.worst = now.bytes_at.index(now.peak)
        self.memory: NDArray[np.int64] = np.array(now.bytes_at, dtype=np.int64)
        events = len(now.statements)
        change = [0] * (events + 2)
        self.newest: dict[int, list[int]] = {}  # buffer -> its instances in order of birth
        for i, (b, first, last) in enumerate(now.instances):
            if last >= 0 or first < 0:
                self.newest.setdefault(b, []).append(i)
            if first < last:
                change[first + 1] += self.sizes[b]
                change[min(last, events) + 1] -= self.sizes[b]
        self.resting = list(accumulate(change))  # what rests between event e - 1 and event e
        self.spent = cost_of(problem, reruns)
        self.runs: dict[int, int] = {}
        for _, u in reruns:
            group = problem.units[u].group
            self.runs[group] = self.runs.get(group, 0) + 1

    def moves(self) -> Iterator[_Move | None]:
        """All moves that promise a gain; None for each that does not."""
        problem, now, worst = self.problem, self.now, self.worst
        idle: dict[int, int] = {}
        for i, (b, first, last) in enumerate(now.instances):
            if first <= worst < last < len(now.statements) and i not in now.touches[worst] and b in problem.units_of:
                idle[i] = b
        before: dict[int, int] = {i: now.instances[i][1] for i in idle}
        for event in range(worst):
            for i in now.touches[event]:
                if i in idle:
                    before[i] = event
        after: dict[int, int] = {}
        for event in range(worst + 1, len(now.touches)):
            for i in now.touches[event]:
                if i in idle:
                    after.setdefault(i, event)
        for i, event in after.items():
            gap = now.base_step[event]
            u = problem.unit_at(idle[i], gap)
            if u is None or self.runs.get(problem.units[u].group, 0) + 1 >= problem.cap:
                continue
            chain = self.chain(u, gap, event)
            for units in dict.fromkeys([(u,), chain]):
                score = self.score(idle[i], before[i], event, units)
                yield None if score is None else (score, event, units)

    def instance(self, b: int, event: int) -> int | None:
        """The copy of ``b`` that a rerun right before ``event`` would read."""
        found = None
        for i in self.newest.get(b, ()):
            if self.now.instances[i][1] < event:
                found = i
        return found

    def chain(self, unit: int, gap: int, event: int) -> tuple[int, ...]:
        """``unit`` and, before it, all units whose results it needs and that are no longer resident."""
        wanted, stack = {unit}, [unit]
        while stack:
            for b in self.problem.units[stack.pop()].sources:
                i = self.instance(b, event)
                u = self.problem.unit_at(b, gap) if i is None or self.now.instances[i][2] < event else None
                if u is not None and u not in wanted:
                    wanted.add(u)
                    stack.append(u)
        return tuple(sorted(wanted))

    def score(self, dropped: int, since: int, event: int, units: Sequence[int]) -> float | None:
        """MACs per byte above the target saved, estimated; None without a gain."""
        import numpy as np

        problem, target = self.problem, self.target
        price = sum(problem.units[u].cost for u in units)
        if problem.max_extra_macs is not None and self.spent + price > problem.max_extra_macs:
            return None
        made = {b for u in units for b in problem.units[u].delivers}
        last_reader = {b: k for k, u in enumerate(units) for b in problem.units[u].sources}
        low = since + 1
        kept: list[tuple[int, int]] = []
        for b in last_reader.keys() - made:
            i = self.instance(b, event)
            if i is None:
                return None
            last = self.now.instances[i][2]
            if last < event:
                kept.append((last + 1, self.sizes[b]))
                low = min(low, last + 1)
        part = self.memory[low:event].copy()
        over = int(np.maximum(part - target, 0).sum())
        part[since + 1 - low :] -= self.sizes[dropped]
        for start, size in kept:
            part[start - low :] += size
        then = int(np.maximum(part - target, 0).sum())
        resting = self.resting[event] - self.sizes[dropped] + sum(size for _, size in kept)
        freed = [0] * len(units)
        for b in made & last_reader.keys():
            freed[last_reader[b]] += self.sizes[b]
        for k, u in enumerate(units):
            then += max(0, resting + problem.units[u].charge - target)
            resting += sum(self.sizes[b] for b in problem.units[u].delivers if b in last_reader or k == len(units) - 1)
            resting -= freed[k]
        gain = over - then
        return (price + 1) / gain if gain > 0 else None
