"""A plan: which units rerun, and where; and what memory it needs.

A plan is only a list of reruns. Drops follow from it: every read is served by the newest copy of a value, and a copy
is dropped at the end of its last read. Serving the newest is never worse, because a rerun that delivers a second copy
lets the first one go before it (`docs/recompute.md`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from peakmem.recompute.problem import Problem

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
    """

    statements: tuple[int, ...]
    base_step: tuple[int, ...]
    block: tuple[int, ...]
    bytes_at: tuple[int, ...]
    peak: int
    instances: tuple[tuple[int, int, int], ...]
    """Each copy of a buffer: buffer, first event, last event (-1: from entry; the number of events: to the end)."""
    touches: tuple[tuple[int, ...], ...]
    """For each event the instances it touches."""


def trace(problem: Problem, reruns: Sequence[Rerun]) -> Trace:
    """Run the plan through the memory model.

    Parameters
    ----------
    problem : Problem
    reruns : sequence of Rerun
        In execution order, so gaps never descend.

    Notes
    -----
    O(events x touches). Does not check caps and windows; see `check_plan`.
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
    k = 0
    for step, v in enumerate(problem.order):
        while k < len(reruns) and reruns[k][0] == step:
            unit = problem.units[reruns[k][1]]
            fresh: dict[int, int] = {}
            for m in unit.members:
                event = len(statements)
                for b in program.statements[m].writes:
                    if b not in fresh and program.buffers[b].kind != "constant":
                        fresh[b] = len(owner)
                        owner.append(b)
                        first.append(event)
                        last.append(event)
                seen = tuple(fresh.get(b, current[b]) for b in touched[m])
                for i in seen:
                    last[i] = event
                statements.append(m)
                steps.append(step)
                block.append(k)
                touches.append(seen)
            for b in unit.delivers:
                current[b] = fresh[b]
            k += 1
        event = len(statements)
        seen = tuple(current[b] for b in touched[v])
        for i in seen:
            if first[i] == -2:
                first[i] = event
            last[i] = event
        statements.append(v)
        steps.append(step)
        block.append(-1)
        touches.append(seen)
    events = len(statements)
    change = [0] * (events + 2)
    instances = []
    for i, b in enumerate(owner):
        if program.buffers[b].kind == "constant":
            instances.append((b, 0, -1))
            continue
        pinned = i < len(sizes) and program.buffers[b].pinned
        if first[i] == -2 or (last[i] == -2 and not pinned):
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
    return Trace(
        tuple(statements),
        tuple(steps),
        tuple(block),
        tuple(bytes_at),
        max(bytes_at, default=program.entry_bytes),
        tuple(instances),
        tuple(touches),
    )


def cost_of(problem: Problem, reruns: Sequence[Rerun]) -> int:
    """MACs of all reruns."""
    return sum(problem.units[u].cost for _, u in reruns)


def allowed(problem: Problem, reruns: Sequence[Rerun]) -> bool:
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
    problem : Problem
        Holds the base order.
    reruns : tuple of Rerun
        In execution order.
    extra_macs : int
    peak : int
        Bytes, by the memory model; equals the peak of the expanded program.
    """

    problem: Problem
    reruns: tuple[Rerun, ...]
    extra_macs: int
    peak: int

    def sentence(self) -> str:
        """What is rerun, for people."""
        program = self.problem.program
        names = [
            "+".join(program.statements[v].name for v in self.problem.units[u].members)
            + f" again before {program.statements[self.problem.order[gap]].name}"
            for gap, u in self.reruns
        ]
        return "; ".join(names) or "nothing is rerun"


def make_plan(problem: Problem, reruns: Sequence[Rerun], target: int | None = None) -> Plan:
    """Simulate, and (with ``target``) leave out reruns that the target does not need.

    Leaving out goes from the dearest to the cheapest, so a plan never keeps a rerun whose removal alone would do.
    """
    reruns = tuple(reruns)
    peak = trace(problem, reruns).peak
    if target is not None and peak <= target:
        index = sorted(range(len(reruns)), key=lambda k: (-problem.units[reruns[k][1]].cost, k))
        kept = set(index)
        for k in index:
            shorter = tuple(r for j, r in enumerate(reruns) if j in kept and j != k)
            less = trace(problem, shorter).peak
            if less <= target:
                kept.remove(k)
                peak = less
        reruns = tuple(r for j, r in enumerate(reruns) if j in kept)
    return Plan(problem, reruns, cost_of(problem, reruns), peak)
