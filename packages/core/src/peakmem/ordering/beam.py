"""Beam search: many partial orders side by side, the best kept at each length."""

from __future__ import annotations

from time import monotonic

from peakmem.problem import Problem, State

Path = tuple[int, "Path"] | None


def beam(problem: Problem, width: int, ceiling: int, deadline: float | None = None) -> list[int]:
    """An order of peak at most ``ceiling`` by beam search, or an empty one.

    At each length the ``width`` states of least ``rest`` are kept; equal states are merged. O(width x n x
    ready statements).
    """
    n = len(problem)
    # A layer: mask -> (rest, order as linked list)
    state = State(problem)
    layer: dict[int, tuple[int, Path]] = {0: (state.rest, None)}
    for _ in range(n):
        following: dict[int, tuple[int, Path]] = {}
        for mask, (_, path) in layer.items():
            if deadline is not None and monotonic() > deadline:
                return []
            _goto(state, path)
            for v in state.ready:
                mem, change = state.step(v)
                if mem <= ceiling:
                    following.setdefault(mask | 1 << v, (state.rest + change, (v, path)))
        if not following:
            return []
        layer = dict(sorted(following.items(), key=lambda item: (item[1][0], item[0]))[:width])
    ((_, path),) = layer.values()
    return _unlink(path)


def _unlink(path: Path) -> list[int]:
    order: list[int] = []
    while path is not None:
        order.append(path[0])
        path = path[1]
    order.reverse()
    return order


def _goto(state: State, path: Path) -> None:
    order = _unlink(path)
    common = 0
    for a, b in zip(order, state.path):
        if a != b:
            break
        common += 1
    state.unwind(common)
    state.advance(order[common:])
