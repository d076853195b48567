"""A fast heuristic: lower the worst moment, again and again, by the rerun that buys most bytes per MAC."""

from __future__ import annotations

import time
from collections.abc import Sequence

from peakmem.recompute.plan import Rerun, Trace, allowed, cost_of, trace
from peakmem.recompute.problem import Problem

CANDIDATES = 24
"""How many of the idle values at the worst moment are tried, the most promising first."""


def greedy(
    problem: Problem, target: int, *, start: Sequence[Rerun] = (), deadline: float | None = None
) -> list[Rerun] | None:
    """Reruns that reach ``target``, or None if the heuristic gets stuck or the ``deadline`` passes.

    At the worst moment, each resident value that is idle there and can be made again is a candidate: it is dropped
    after its last read and rerun right before its next one, once with the sources kept and once with dead sources
    rerun as well. The choice maximizes the reduction of the bytes above the target, summed over time, per MAC.
    """
    reruns = list(start)
    now = trace(problem, reruns)
    while now.peak > target:
        over = _over(now, target)
        best: tuple[float, int, list[Rerun], Trace] | None = None
        for attempt in _moves(problem, reruns, now):
            if deadline is not None and time.monotonic() > deadline:
                return None
            if not allowed(problem, attempt):
                continue
            then = trace(problem, attempt)
            gain = over - _over(then, target)
            if gain <= 0:
                continue
            price = cost_of(problem, attempt) - cost_of(problem, reruns)
            score = (price + 1) / gain
            if best is None or (score, len(attempt)) < best[:2]:
                best = (score, len(attempt), attempt, then)
        if best is None:
            return None
        reruns, now = best[2], best[3]
    return reruns


def _over(now: Trace, target: int) -> int:
    return sum(b - target for b in now.bytes_at if b > target)


def _moves(problem: Problem, reruns: list[Rerun], now: Trace) -> list[list[Rerun]]:
    worst = now.bytes_at.index(now.peak)
    sizes = problem.program.buffers
    idle: dict[int, int] = {}
    for i, (b, first, last) in enumerate(now.instances):
        if first <= worst < last < len(now.statements) and i not in now.touches[worst] and b in problem.units_of:
            idle[i] = b
    following: dict[int, int] = {}
    for event in range(worst + 1, len(now.touches)):
        for i in now.touches[event]:
            if i in idle:
                following.setdefault(i, event)
    ranked = []
    for i, event in following.items():
        u = problem.unit_at(idle[i], now.base_step[event])
        if u is not None:
            ranked.append(((problem.units[u].cost + 1) / sizes[idle[i]].size, i, event, u))
    attempts = []
    for _, _, event, u in sorted(ranked)[:CANDIDATES]:
        gap = now.base_step[event]
        at = now.block[event]
        if at < 0:
            at = sum(1 for g, _ in reruns if g <= gap)
        attempts.append([*reruns[:at], (gap, u), *reruns[at:]])
        chain = _chain(problem, now, u, gap, event)
        if len(chain) > 1:
            attempts.append([*reruns[:at], *((gap, w) for w in chain), *reruns[at:]])
    return attempts


def _chain(problem: Problem, now: Trace, unit: int, gap: int, event: int) -> list[int]:
    """``unit`` and, before it, all units whose results it needs and that are no longer resident."""
    resident = {b for b, first, last in now.instances if first < event <= last}
    wanted = {unit}
    stack = [unit]
    while stack:
        for b in problem.units[stack.pop()].sources:
            u = problem.unit_at(b, gap)
            if u is not None and b not in resident and u not in wanted:
                wanted.add(u)
                stack.append(u)
    return sorted(wanted)
