"""Running statements of a graph twice, for ``options={"max_extra_macs": ...}``."""

from __future__ import annotations

import time
from dataclasses import dataclass

from peakmem.model import Expansion, Program


@dataclass(frozen=True)
class Recomputed:
    """A program with copies, and what they buy.

    Attributes
    ----------
    expansion : Expansion
    order : tuple of int
        Of the enlarged program.
    peak : int
        Bytes of it in that order.
    reruns : int
        Statements that run once more.
    extra_macs : int
    exact : bool
        No plan for the same base order reaches this peak for less MACs.
    """

    expansion: Expansion
    order: tuple[int, ...]
    peak: int
    reruns: int
    extra_macs: int
    exact: bool


def recompute_program(
    program: Program, order: tuple[int, ...], *, max_extra_macs: str, cap: int, time_limit: float
) -> Recomputed | None:
    """The least peak within a budget of MACs; None if running something twice does not help.

    Parameters
    ----------
    program : Program
    order : tuple of int
        The best order without copies.
    max_extra_macs : str
        ``"0.5%"`` of the program's MACs, or a number.
    cap : int
        The most times any statement runs.
    time_limit : float
        Seconds.
    """
    from peakmem.model import peak_of
    from peakmem.transform.recompute.expand import expand, order_expansion
    from peakmem.transform.recompute.floors import floor
    from peakmem.transform.recompute.pareto import base_orders, front, make_problems
    from peakmem.transform.recompute.problem import parse_extra_macs

    begin = time.monotonic()
    peak = peak_of(program, order)
    if cap < 2 or peak <= floor(program).size:
        return None
    budget = parse_extra_macs(max_extra_macs, sum(s.cost for s in program.statements))
    problems = make_problems(program, base_orders(program, order), cap=cap, max_extra_macs=budget)
    point = front(problems, time_limit=time_limit * 0.8).points[-1]
    if not point.plan.reruns or point.peak >= peak:
        return None
    expansion = expand(point.plan)
    again = order_expansion(expansion, time_limit=max(0.0, begin + time_limit - time.monotonic()))
    runs = len(expansion.program) - len(program)
    return Recomputed(expansion, again.orders[""], again.peak, runs, point.extra_macs, point.exact)
