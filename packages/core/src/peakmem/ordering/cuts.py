"""The cheapest state at which a statement can run: one minimum cut.

``cut(v | L, U) = min { mem(S, v) : L <= S <= U, S a down-set }``. Buffer b costs [some birth in S] minus [all touchers
in S], a coverage term minus a supermodular one, so the minimum is a minimum cut: a node for each undecided statement, an
unlimited arc to each of its predecessors, and for each buffer a node entered with capacity bytes(b) from its birth and
left by unlimited arcs to its touchers. ``L`` merges into the source and everything outside ``U`` into the sink, so a cut
sees undecided statements only. Values are 64-bit integers; "unlimited" is the total of all bytes plus one, since larger
numbers on parallel arcs overflow the solver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from peakmem.model import first_touchers
from peakmem.ordering.problem import Problem, State

SOURCE, SINK = 0, 1


@lru_cache(maxsize=1)
def _solver() -> Any:
    from ortools.graph.python import max_flow

    return max_flow.SimpleMaxFlow


@dataclass(frozen=True)
class Cut:
    """A cheapest state.

    Attributes
    ----------
    value : int
        ``cut(v | L, U)``, or the least ``rest`` when there is no v; bytes.
    chosen : tuple of int
        The undecided statements of a cheapest state, ascending; the state is ``L`` and these. It is the one with the
        fewest statements.
    flow : list of (node, node, int) or None
        Witness on request; nodes as in `peakmem.certificate` with this problem's ids: ``"s"``, ``"t"``, statement ids,
        ``("b", buffer)``, ``("j", buffer)``.
    """

    value: int
    chosen: tuple[int, ...]
    flow: list[tuple[Any, Any, int]] | None = None


def cheapest_state(
    problem: Problem,
    lower: State,
    undecided: Sequence[int],
    v: int | None,
    *,
    births: Sequence[tuple[int, ...]] | None = None,
    want_flow: bool = False,
) -> Cut:
    """Minimum of ``mem(S, v)`` (of ``rest(S)`` without v) over down-sets S between ``lower`` and ``lower`` + ``undecided``.

    Parameters
    ----------
    problem : Problem
    lower : State
        L. It is not changed.
    undecided : sequence of int
        U - L; L + undecided is a down-set and v, if given, is not in it.
    v : int or None
    births : sequence of tuple of int, optional
        Births of each buffer; needed only where buffers have several (see `births_of`).
    want_flow : bool

    Notes
    -----
    One maximum flow (OR-tools push-relabel) on nodes for undecided statements and the buffers they touch. A buffer that
    no undecided statement touches costs the same at every state.
    """
    size, touchers, touched = problem.size, problem.touchers, problem.touched
    born, remaining = lower.born, lower.remaining
    own = frozenset(touched[v]) if v is not None else frozenset()
    constant = lower.rest + (problem.workspace[v] if v is not None else 0)
    for b in own:
        if not (born[b] and remaining[b]):
            constant += size[b]
    node_of = {u: i + 2 for i, u in enumerate(undecided)}
    buffers = sorted({b for u in undecided for b in touched[u] if size[b] and b not in own})
    infinity = sum(size[b] for b in buffers) + 1
    tails: list[int] = []
    heads: list[int] = []
    capacities: list[int] = []
    node = len(node_of) + 2
    labels: list[Any] = ["s", "t", *undecided]
    surely = 0
    entered = 0
    for b in buffers:
        live = born[b] > 0
        all_births: Sequence[int] = ()
        # Is it held at the top, that is, has it a toucher outside U or is it pinned?
        inside_touchers = [t for t in touchers[b] if t in node_of]
        kept = remaining[b] > len(inside_touchers)
        if live:
            constant -= size[b]  # it was counted in lower.rest (it has an undecided toucher)
            if kept:
                surely += size[b]
                continue
            sources = None
        else:
            all_births = births[b] if births is not None else inside_touchers[:1]
            sources = [t for t in all_births if t in node_of]
            if not sources:
                continue
        here = node
        labels.append(("b", b))
        node += 1
        if sources is None:
            tails.append(SOURCE)
            heads.append(here)
            capacities.append(size[b])
            entered += size[b]
        elif len(all_births) == 1:
            tails.append(node_of[sources[0]])
            heads.append(here)
            capacities.append(size[b])
        else:
            joint = node
            labels.append(("j", b))
            node += 1
            for s in sources:
                tails.append(node_of[s])
                heads.append(joint)
                capacities.append(infinity)
            tails.append(joint)
            heads.append(here)
            capacities.append(size[b])
        if kept:
            tails.append(here)
            heads.append(SINK)
            capacities.append(infinity)
        else:
            for t in inside_touchers:
                tails.append(here)
                heads.append(node_of[t])
                capacities.append(infinity)
    constant += surely
    if entered == 0:
        # Nothing can flow: staying at L is cheapest.
        return Cut(constant, (), [] if want_flow else None)
    for u, i in node_of.items():
        for p in problem.preds[u]:
            if p in node_of:
                tails.append(i)
                heads.append(node_of[p])
                capacities.append(infinity)
    if SINK not in heads:
        # No buffer is kept at the top, so U itself holds none of them.
        return Cut(constant, tuple(sorted(node_of)), [] if want_flow else None)
    import numpy as np

    # Arrays made here: while the solver's binding converts a list, it takes Ctrl-C for arguments of a wrong type.
    ends = np.array([tails, heads], dtype=np.int32)
    flow = _solver()()
    arcs = flow.add_arcs_with_capacity(ends[0], ends[1], np.array(capacities, dtype=np.int64))
    if flow.solve(SOURCE, SINK) != flow.OPTIMAL:
        raise ArithmeticError("the maximum-flow solver failed")
    value = constant + flow.optimal_flow()
    side = flow.get_source_side_min_cut()
    first_buffer = len(node_of) + 2
    chosen = tuple(sorted(undecided[i - 2] for i in side if 2 <= i < first_buffer))
    witness = None
    if want_flow:
        amounts = flow.flows(arcs)
        witness = [
            (labels[tail], labels[head], int(amount))
            for tail, head, amount in zip(tails, heads, amounts)
            if amount
        ]
    return Cut(value, chosen, witness)


def births_of(problem: Problem) -> list[tuple[int, ...]] | None:
    """Births of each buffer, or None when none has more than one (then the first toucher is the birth).

    O(touchers) where later touchers depend on the first directly, else a search between them.
    """
    result = []
    several = False
    for b, touchers in enumerate(problem.touchers):
        births = () if problem.entry[b] else first_touchers(problem.preds, touchers)
        several = several or len(births) > 1
        result.append(births)
    return result if several else None
