"""Among orders of equal peak, one close to the given order.

Distance is the number of inversions: pairs of statements that run in the other order than they were given in.
"""

from __future__ import annotations

from collections.abc import Sequence

from peakmem.ordering.meter import Meter
from peakmem.ordering.problem import Problem, State


def closest(problem: Problem, order: Sequence[int], budget: int, meter: Meter | None = None) -> list[int]:
    """Swap neighbours of ``order`` towards the given order (0, 1, 2, ...) while its peak stays within ``budget``.

    Each swap removes one inversion and changes two steps only, so a sweep is O(n). The result is a local optimum: no
    single swap of neighbours brings it closer.
    """
    result = list(order)
    n = len(result)
    preds = [frozenset(p) for p in problem.preds]
    for _ in range(n):
        state = State(problem)
        changed = False
        i = 0
        while i < n - 1:
            a, b = result[i], result[i + 1]
            if b < a and a not in preds[b] and state.mem(b) <= budget:
                state.push(b)
                if state.mem(a) <= budget:
                    result[i], result[i + 1] = b, a
                    changed = True
                    # b may sink further on the next sweep; a goes on from here.
                    i += 1
                    continue
                state.pop()
            state.push(result[i])
            i += 1
        if meter is not None:
            meter.spend(2 * n)
        if not changed or (meter is not None and meter.out):
            break
    return result
