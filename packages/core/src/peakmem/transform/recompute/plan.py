"""A plan: which units rerun, and where; and what memory it needs.

A plan is only a list of reruns. Drops follow from it: every read is served by the newest copy of a value, and a copy
is dropped at the end of its last read. Serving the newest is never worse, because a rerun that delivers a second copy
lets the first one go before it (`docs/recompute.md`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peakmem.system import clock
from peakmem.transform.recompute.reruns import RerunProblem

Rerun = tuple[int, int]
"""Gap and unit: the unit reruns after base step ``gap - 1`` and before base step ``gap``."""


@dataclass(frozen=True)
class Trace:
    """Memory of a plan, event by event.

    An event is one execution of one statement, base or rerun.

    Attributes
    ----------
    statements : tuple of int
        What runs, as statement ids.
    base_step : tuple of int
        For each event the base step that it is or stands before.
    block : tuple of int
        For each event the index of the rerun it belongs to; -1 for base runs.
    bytes_at : tuple of int
    peak : int
    instances : tuple of (int, int, int)
        Each copy of a buffer: buffer, first event, last event (-1: from entry; the number of events: to the end).
    touches : tuple of tuple of int
        For each event the instances it touches.
    """

    statements: tuple[int, ...]
    base_step: tuple[int, ...]
    block: tuple[int, ...]
    bytes_at: tuple[int, ...]
    peak: int
    instances: tuple[tuple[int, int, int], ...]
    touches: tuple[tuple[int, ...], ...]


def trace(problem: RerunProblem, reruns: Sequence[Rerun]) -> Trace:
    """Run the plan through the memory model.

    Parameters
    ----------
    problem : RerunProblem
    reruns : sequence of Rerun
        In execution order, so gaps never descend.

    Notes
    -----
    O(events x touches). Does not check caps and windows; see `allowed`.
    """
    program = problem.program
    touched, sizes = program.touched, [b.size for b in program.buffers]
    owner = list(range(len(sizes)))  # instance -> buffer; the first ones are the originals
    current = list(owner)  # buffer -> its newest instance
    first = [-1 if b.kind == "input" else -2 for b in program.buffers]
    last = [-2] * len(owner)
    statements: list[int] = []
    steps: list[int] = []
    block: list[int] = []
    touches: list[tuple[int, ...]] = []

    def run(v: int, step: int, rerun: int, seen: tuple[int, ...]) -> None:
        event = len(statements)
        for i in seen:
            if first[i] == -2:
                first[i] = event
            last[i] = event
        statements.append(v)
        steps.append(step)
        block.append(rerun)
        touches.append(seen)

    k = 0
    for step, v in enumerate(problem.order):
        while k < len(reruns) and reruns[k][0] == step:
            unit = problem.units[reruns[k][1]]
            fresh: dict[int, int] = {}
            for m in unit.members:
                for b in problem.writes[m]:
                    if b not in fresh:
                        fresh[b] = len(owner)
                        owner.append(b)
                        first.append(-2)
                        last.append(-2)
                run(m, step, k, tuple([fresh.get(b, current[b]) for b in touched[m]]))
            for b in unit.delivers:
                current[b] = fresh[b]
            k += 1
        run(v, step, -1, tuple([current[b] for b in touched[v]]))
    events = len(statements)
    change = [0] * (events + 2)
    instances = []
    for i, b in enumerate(owner):
        pinned = i < len(sizes) and program.buffers[b].pinned
        if program.buffers[b].kind == "constant" or first[i] == -2 or (last[i] == -2 and not pinned):
            instances.append((b, 0, -1))
            continue
        end = events if pinned else last[i]
        instances.append((b, first[i], end))
        change[first[i] + 1] += sizes[b]
        if end < events:
            change[end + 2] -= sizes[b]
    now = change[0]
    bytes_at = []
    for event, v in enumerate(statements):
        now += change[event + 1]
        bytes_at.append(now + problem.charged[v])
    peak = max(bytes_at, default=program.entry_bytes)
    return Trace(
        tuple(statements), tuple(steps), tuple(block), tuple(bytes_at), peak, tuple(instances), tuple(touches)
    )


def cost_of(problem: RerunProblem, reruns: Sequence[Rerun]) -> int:
    """MACs of all reruns."""
    return sum(problem.units[u].cost for _, u in reruns)


def allowed(problem: RerunProblem, reruns: Sequence[Rerun]) -> bool:
    """Whether every rerun lies in its window, no unit exceeds the cap, and the MACs stay within the budget."""
    counts: dict[int, int] = {}
    before = 0
    for gap, u in reruns:
        unit = problem.units[u]
        counts[unit.group] = counts.get(unit.group, 0) + 1
        if gap < before or not unit.ready < gap <= unit.deadline:
            return False
        if counts[unit.group] >= problem.cap:
            return False
        before = gap
    return problem.max_extra_macs is None or cost_of(problem, reruns) <= problem.max_extra_macs


@dataclass(frozen=True)
class Plan:
    """Reruns for one base order, with what they cost and reach.

    Attributes
    ----------
    problem : RerunProblem
        Holds the base order.
    reruns : tuple of Rerun
        In execution order.
    extra_macs : int
    peak : int
        Bytes, by the memory model; equals the peak of the expanded program.
    """

    problem: RerunProblem
    reruns: tuple[Rerun, ...]
    extra_macs: int
    peak: int


def make_plan(problem: RerunProblem, reruns: Sequence[Rerun]) -> Plan:
    """Simulate a list of reruns."""
    return Plan(problem, tuple(reruns), cost_of(problem, reruns), trace(problem, reruns).peak)


def prune(plan: Plan, target: int, *, deadline: float | None = None) -> Plan:
    """Leave out reruns that ``target`` does not need, the dearest first, and of those that cost the same the last.

    No single rerun of the result can be left out, unless the ``deadline`` (a moment of `peakmem.system.clock`) cut it short; so
    free reruns that buy nothing go, too. Passes over all reruns until one leaves out none; a simulation for each rerun
    left out, and for the others a look at what would change.
    """
    problem, kept = plan.problem, list(range(len(plan.reruns)))
    now = _Removal(problem, plan.reruns)
    before = None
    while kept != before:
        before = list(kept)
        for k in sorted(before, key=lambda k: (-problem.units[plan.reruns[k][1]].cost, -k)):
            if clock.late(deadline):
                break
            if now.peak_without(kept.index(k)) <= target:
                kept = [j for j in kept if j != k]
                now = _Removal(problem, [plan.reruns[j] for j in kept])
    return Plan(problem, tuple(now.reruns), cost_of(problem, now.reruns), now.now.peak)


class _Removal:
    """A list of reruns, and what its peak would be without one of them."""

    def __init__(self, problem: RerunProblem, reruns: Sequence[Rerun]) -> None:
        import numpy as np

        self.problem, self.reruns = problem, list(reruns)
        self.now = trace(problem, reruns)
        self.memory = np.array(self.now.bytes_at, dtype=np.int64)
        self.events: dict[int, list[int]] = {}  # instance -> events that touch it
        self.copies: dict[int, list[int]] = {}  # buffer -> its instances, oldest first
        self.event = [-1] * len(self.reruns)
        for event, touches in enumerate(self.now.touches):
            for i in touches:
                self.events.setdefault(i, []).append(event)
            if self.now.block[event] >= 0:
                self.event[self.now.block[event]] = event
        for i, (b, _, _) in enumerate(self.now.instances):
            self.copies.setdefault(b, []).append(i)

    def peak_without(self, k: int) -> int:
        """Peak without rerun ``k``: its copies go, what read them reads older ones, its sources may go earlier."""
        problem, now, originals = self.problem, self.now, len(self.problem.program.buffers)
        unit = problem.units[self.reruns[k][1]]
        event = self.event[k]
        changes: list[tuple[int, int, int]] = []  # first event, last event, bytes
        simple = len(unit.members) == 1
        for i in now.touches[event] if simple else ():
            b, first, last = now.instances[i]
            size = problem.program.buffers[b].size
            if last < first or not size:
                continue
            if i >= originals and first == event:
                older = now.instances[self.copies[b][self.copies[b].index(i) - 1]]
                simple = simple and older[1] < event and older[2] >= older[1]
                changes.append((first, last, -size))
                if last > event:
                    changes.append((older[2] + 1, last, size))
            elif last == event:
                touches = self.events[i]
                simple = simple and len(touches) > 1
                if simple:
                    changes.append((touches[-2] + 1, event, -size))
        if not simple:
            return trace(problem, [*self.reruns[:k], *self.reruns[k + 1 :]]).peak
        memory = self.memory.copy()
        for first, last, size in changes:
            memory[first : last + 1] += size
        memory[event] = 0
        return int(memory.max(initial=0))
