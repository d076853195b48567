"""The cheapest state at which a statement can run: one minimum cut.

``cut(v | L, U) = min { mem(S, v) : L <= S <= U, S a down-set }``. Buffer b costs [some birth in S] minus [all touchers
in S], a coverage term minus a supermodular one, so the minimum is a minimum cut: a node for each undecided statement, an
unlimited arc to each of its predecessors, and for each buffer a node entered with capacity bytes(b) from its birth and
left by unlimited arcs to its touchers. ``L`` merges into the source and everything outside ``U`` into the sink, so a cut
sees undecided statements only. Values are 64-bit integers; "unlimited" is the total of all bytes plus one, since larger
numbers on parallel arcs overflow the solver.

Where v has an overlay there is one cut for each input that its output may lie on, and the least of them counts: which input is
used is decided at the step itself and changes nothing later. The bytes saved are taken off, and one more node gives them back
where the input does not die with v: it is entered from the source with that capacity and left by unlimited arcs to the other
touchers of the input; in the mirror image, where one of these having run is what keeps it, it is entered from them and left to
the sink.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from peakmem.model import first_touchers
from peakmem.ordering import native
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
    flows : tuple of list of (node, node, int)
        Witness on request; nodes as in `peakmem.certificate` with this problem's ids: ``"s"``, ``"t"``, ``"g"``, statement ids,
        ``("b", buffer)``, ``("j", buffer)``. One flow, or one for each input of the overlay.
    """

    value: int
    chosen: tuple[int, ...]
    flows: tuple[Flow, ...] = ()


Flow = list[tuple[Any, Any, int]]


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
    One maximum flow (OR-tools push-relabel) on nodes for undecided statements and the buffers they touch, or one for each way
    to overlay v. A buffer that no undecided statement touches costs the same at every state.
    """
    ways = problem.gains[v] if v is not None else ()
    if not ways:
        return _cut(problem, lower, undecided, v, births, want_flow, None)
    if not want_flow and len(ways) > 1:
        # Without a witness, ways that can save nothing are looked at only where there is no other.
        some = set(undecided)
        ways = tuple(way for way in ways if not _kept(problem, lower, some, way[0])) or ways[:1]
    cuts = [_cut(problem, lower, undecided, v, births, want_flow, way) for way in ways]
    best = min(cuts, key=lambda cut: cut.value)
    return Cut(best.value, best.chosen, tuple(flow for cut in cuts for flow in cut.flows))


def _kept(problem: Problem, lower: State, undecided: Container[int], a: int) -> bool:
    """Whether an input of a statement outlives it at every state (in the mirror image: was there before)."""
    if problem.mirrored:
        return lower.born[a] > 0
    return lower.remaining[a] - 1 > sum(t in undecided for t in problem.touchers[a])


def _cut(
    problem: Problem,
    lower: State,
    undecided: Sequence[int],
    v: int | None,
    births: Sequence[tuple[int, ...]] | None,
    want_flow: bool,
    way: tuple[int, int] | None,
) -> Cut:
    """`cheapest_state` for one way to overlay v: an input, and the bytes saved where it dies with v."""
    size, touchers, touched = problem.size, problem.touchers, problem.touched
    born, remaining = lower.born, lower.remaining
    own = frozenset(touched[v]) if v is not None else frozenset()
    constant = lower.rest + (problem.workspace[v] if v is not None else 0)
    for b in own:
        if not (born[b] and remaining[b]):
            constant += size[b]
    buffers = sorted({b for u in undecided for b in touched[u] if size[b] and b not in own})
    kernel = native.kernel() if way is None and not want_flow else None
    if kernel is not None and kernel.fits(problem):
        more, entered, sink, ends, limits = kernel.network(problem, lower, undecided, buffers, births)
        constant += more
        if not entered:
            return Cut(constant, ())
        if not sink:
            return Cut(constant, tuple(sorted(undecided)))
        value, side = least_cut(ends, limits)
        return _chosen(constant + value, undecided, side)
    node_of = {u: i + 2 for i, u in enumerate(undecided)}
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
    if way is not None:
        a, gain = way
        others = [t for t in touchers[a] if t in node_of]
        kept = _kept(problem, lower, node_of, a)
        constant -= 0 if kept and (problem.mirrored or not want_flow) else gain
        infinity += gain
        if problem.mirrored and others and not kept:
            labels.append("g")
            tails += [node_of[t] for t in others] + [node]
            heads += [node] * len(others) + [SINK]
            capacities += [infinity] * len(others) + [gain]
        elif not problem.mirrored and (others or kept) and (want_flow or not kept):
            labels.append("g")
            ends = [SINK] if kept else [node_of[t] for t in others]
            tails += [SOURCE] + [node] * len(ends)
            heads += [node, *ends]
            capacities += [gain] + [infinity] * len(ends)
            entered += gain
    if entered == 0:
        # Nothing can flow: staying at L is cheapest.
        return Cut(constant, (), ([],) if want_flow else ())
    for u, i in node_of.items():
        for p in problem.preds[u]:
            if p in node_of:
                tails.append(i)
                heads.append(node_of[p])
                capacities.append(infinity)
    if SINK not in heads:
        # No buffer is kept at the top, so U itself holds none of them.
        return Cut(constant, tuple(sorted(node_of)), ([],) if want_flow else ())
    import numpy as np

    # Arrays made here: while the solver's binding converts a list, it takes Ctrl-C for arguments of a wrong type.
    flow, arcs = _flow(np.array([tails, heads], dtype=np.int32), np.array(capacities, dtype=np.int64))
    cut = _chosen(constant + flow.optimal_flow(), undecided, flow.get_source_side_min_cut())
    if not want_flow:
        return cut
    amounts = flow.flows(arcs)
    witness = [
        (labels[tail], labels[head], int(amount))
        for tail, head, amount in zip(tails, heads, amounts)
        if amount
    ]
    return Cut(cut.value, cut.chosen, (witness,))


def _flow(ends: Any, capacities: Any) -> tuple[Any, Any]:
    """A maximum flow, and the solver's numbers of the arcs."""
    flow = _solver()()
    arcs = flow.add_arcs_with_capacity(ends[0], ends[1], capacities)
    if flow.solve(SOURCE, SINK) != flow.OPTIMAL:
        raise ArithmeticError("the maximum-flow solver failed")
    return flow, arcs


def least_cut(ends: Any, capacities: Any) -> tuple[int, list[int]]:
    """The least cut between source and sink: its capacity, and the nodes on the source's side, as few as may be."""
    flow, _ = _flow(ends, capacities)
    return int(flow.optimal_flow()), list(flow.get_source_side_min_cut())


def _chosen(value: int, undecided: Sequence[int], side: Sequence[int]) -> Cut:
    """The cheapest state that a least cut shows."""
    after = len(undecided) + 2
    return Cut(value, tuple(sorted(undecided[i - 2] for i in side if 2 <= i < after)))


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
