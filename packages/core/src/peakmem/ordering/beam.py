"""Beam search: many partial orders side by side, the best kept at each length."""

from __future__ import annotations

from time import monotonic

from peakmem.problem import Problem, State


def beam(problem: Problem, width: int, ceiling: int, deadline: float | None = None) -> tuple[list[int], int]:
    """An order of peak at most ``ceiling`` by beam search, or an empty one.

    At each length the ``width`` states of least (peak so far, rest) are kept; equal states are merged. O(width x n x
    ready statements).
    """
    n = len(problem)
    # A layer: mask -> (peak so far, rest, order as linked list)
    start = State(problem)
    layer: dict[int, tuple[int, int, tuple[object, ...] | None]] = {0: (start.rest, start.rest, None)}
    for depth in range(n):
        following: dict[int, tuple[int, int, tuple[object, ...] | None]] = {}
        if deadline is not None and not depth & 7 and monotonic() > deadline:
            return [], 0
        for mask, (peak, _, path) in layer.items():
            _goto(start, path)
            for v in start.ready:
                mem, change = start.step(v)
                if mem > ceiling:
                    continue
                key = mask | 1 << v
                entry = (max(peak, mem), start.rest + change, (v, path))
                old = following.get(key)
                if old is None or entry[:2] < old[:2]:
                    following[key] = entry
        if not following:
            return [], 0
        best = sorted(following.items(), key=lambda item: (item[1][0], item[1][1], item[0]))[:width]
        layer = dict(best)
    ((peak, _, path),) = layer.values()
    return _unlink(path), peak


def _unlink(path: tuple[object, ...] | None) -> list[int]:
    order: list[int] = []
    while path is not None:
        v, path = path  # type: ignore[assignment,misc]
        order.append(v)  # type: ignore[arg-type]
    order.reverse()
    return order


def _goto(state: State, path: tuple[object, ...] | None) -> None:
    order = _unlink(path)
    common = 0
    for a, b in zip(order, state.path):
        if a != b:
            break
        common += 1
    state.unwind(common)
    state.advance(order[common:])
