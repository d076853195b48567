"""Running statements of a graph twice, for ``options={"max_extra_macs": ...}``."""

from __future__ import annotations

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
    from peakmem.transform.recompute.run import enlarge

    found = enlarge(program, {"": order}, max_extra_macs=max_extra_macs, cap=cap, time_limit=time_limit)
    point, again = found.point, found.reordering
    if point is None or found.expansion is None or again is None or again.peak >= found.ordered_peak:
        return None
    runs = len(found.expansion.program) - len(program)
    return Recomputed(found.expansion, again.orders[""], again.peak, runs, point.extra_macs, point.exact)
