"""Dynamic programming on a tree decomposition of the retention graph.

Variables are eliminated one after the other; eliminating one joins all that meet it in a constraint, in one table. Two
orders are tried: along time, which carries the values present from one event to the next (a path decomposition),
and one from a min-fill tree decomposition (networkx). The narrower one is used. Work and memory grow with
``2 ** width``, and only linearly with the length of the program.

It wins on programs that keep few values at a time, since no solver has to be loaded; on wide ones it declines.

Source: bucket elimination (Dechter 1999); min-fill as in `networkx.algorithms.approximation.treewidth_min_fill_in`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from peakmem.transform.recompute.integer import Answer
from peakmem.transform.recompute.retention import Retention, merged

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LARGEST_TABLE = 2**14
"""Entries of the largest table; a wider problem is left to another solver."""

MOST_VARIABLES = 400
"""More than this, and min-fill is not tried: its heuristic is cubic."""

LARGEST_SUM = 2**53
"""Prices are added as floating-point numbers, without rounding as long as they sum to less."""


@dataclass(frozen=True)
class _Factor:
    scope: tuple[int, ...]
    table: NDArray[np.float64]


@dataclass(frozen=True)
class Elimination:
    """An order of the variables and how wide its tables are.

    Attributes
    ----------
    order : tuple of int
    width : int
        Most variables in one table, less one: the width of the decomposition.
    table : int
        Entries of the largest table.
    kind : {"time", "min-fill"}
    """

    order: tuple[int, ...]
    width: int
    table: int
    kind: str


def _counters(model: Retention) -> list[tuple[int, int | None, int]]:
    """Rerun variables whose cap can bind, each with the counter before it (None for the first of a group) and after it.

    The cap would join all reruns of a group. It is carried along time instead: a counter after each rerun variable, numbered
    after the model's own variables, meets only that variable and the counter before it.
    """
    found: list[tuple[int, int | None, int]] = []
    for runs in model.runs.values():
        if len(runs) >= model.problem.cap:
            for j, x in enumerate(runs):
                counter = model.size + len(found)
                found.append((x, counter - 1 if j else None, counter))
    return found


def _scopes(model: Retention) -> tuple[list[int], list[tuple[int, ...]]]:
    """Domain sizes of all variables, counters included, and what meets in a constraint."""
    counters = _counters(model)
    scopes = [tuple(sorted({x for _, x in row.terms})) for row in model.rows if row.terms]
    scopes += [tuple(y for y in met if y is not None) for met in counters]
    return [2] * model.size + [model.problem.cap] * len(counters), scopes


def eliminations(model: Retention) -> list[Elimination]:
    """Both orders with their widths, the narrower first."""
    domains, scopes = _scopes(model)
    found = [_measure(domains, scopes, _along_time(model), "time")]
    if len(domains) <= MOST_VARIABLES:
        found.append(_measure(domains, scopes, _min_fill(domains, scopes), "min-fill"))
    return sorted(found, key=lambda e: (e.table, e.width))


def solve_treewidth(model: Retention, *, budget: int | None, largest_table: int = LARGEST_TABLE) -> Answer | None:
    """Least MACs, or None if the tables would exceed ``largest_table`` entries."""
    if any(not row.terms and row.bound < 0 for row in model.rows):
        return Answer(None, None, True, "treewidth")
    if sum(model.prices) >= LARGEST_SUM:
        return None
    domains, scopes = _scopes(model)
    if any(prod(domains[x] for x in s) > largest_table for s in scopes):
        return None
    best = _measure(domains, scopes, _along_time(model), "time", largest_table)
    if best.table > 2**12 and len(domains) <= MOST_VARIABLES:
        best = min(best, _measure(domains, scopes, _min_fill(domains, scopes), "min-fill"), key=lambda e: e.table)
    if best.table > largest_table:
        return None
    values, cost = _eliminate(domains, _factors(model), best.order)
    if values is None or (budget is not None and cost > budget):
        return Answer(None, None, True, "treewidth", best.width)
    return Answer(tuple(values[: model.size]), cost, True, "treewidth", best.width)


def _along_time(model: Retention) -> tuple[int, ...]:
    """The model's variables as they were made, each counter right after its rerun variable: so one of a group is alive."""
    after = {x: [counter] for x, _, counter in _counters(model)}
    return tuple(y for x in range(model.size) for y in (x, *after.get(x, ())))


def _min_fill(domains: Sequence[int], scopes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """An elimination order that a min-fill tree decomposition allows: leaves first."""
    import networkx as nx
    from networkx.algorithms.approximation import treewidth_min_fill_in

    graph: Any = nx.Graph()
    graph.add_nodes_from(range(len(domains)))
    for scope in scopes:
        graph.add_edges_from((a, b) for i, a in enumerate(scope) for b in scope[i + 1 :])
    order: list[int] = []
    for component in sorted(nx.connected_components(graph), key=min):
        if len(component) == 1:
            order.extend(component)
            continue
        _, tree = treewidth_min_fill_in(graph.subgraph(sorted(component)))
        root = max(tree.nodes, key=lambda bag: (len(bag), sorted(bag)))
        placed: set[int] = set()
        parents = {bag: above for above, bag in nx.bfs_edges(tree, root)}
        for bag in reversed([root, *parents]):
            above = parents.get(bag, frozenset())
            private = sorted(set(bag) - set(above) - placed)
            placed.update(private)
            order.extend(private)
    return tuple(order)


def _measure(
    domains: Sequence[int], scopes: Sequence[tuple[int, ...]], order: Sequence[int], kind: str, limit: int | None = None
) -> Elimination:
    neighbours: list[set[int]] = [set() for _ in domains]
    for scope in scopes:
        for x in scope:
            neighbours[x].update(scope)
    width, table = 0, 1
    for x in order:
        met = neighbours[x] - {x}
        width = max(width, len(met))
        table = max(table, domains[x] * prod(domains[y] for y in met))
        if limit is not None and table > limit:
            break
        for y in met:
            neighbours[y] |= met
            neighbours[y].discard(x)
    return Elimination(tuple(order), width, table, kind)


def _factors(model: Retention) -> list[_Factor]:
    import numpy as np

    factors = [_Factor((x,), np.array([0.0, float(p)])) for x, p in enumerate(model.prices) if p]
    for row in model.rows:
        if row.terms:
            coefficients = merged(row.terms)
            scope = tuple(sorted(coefficients))
            total = sum(np.ix_(*([0, coefficients[x]] for x in scope)))
            factors.append(_Factor(scope, np.where(total <= row.bound, 0.0, np.inf)))
    cap = model.problem.cap
    count = np.full((2, cap, cap), np.inf)  # whether it reruns, the counter before, the counter after
    for r in range(2):
        for c in range(cap - r):
            count[r, c, c + r] = 0.0
    for x, before, counter in _counters(model):
        factors.append(
            _Factor((x, counter), count[:, 0]) if before is None else _Factor((x, before, counter), count)
        )
    return factors


def _eliminate(
    domains: Sequence[int], factors: Sequence[_Factor], order: Sequence[int]
) -> tuple[list[int] | None, int]:
    import numpy as np

    rank = {x: i for i, x in enumerate(order)}
    buckets: list[list[_Factor]] = [[] for _ in order]
    for f in factors:
        buckets[min(rank[x] for x in f.scope)].append(f)
    constant = 0.0
    choices: list[tuple[int, tuple[int, ...], NDArray[np.intp]]] = []
    for i, x in enumerate(order):
        rest = tuple(sorted({y for f in buckets[i] for y in f.scope} - {x}))
        scope = (x, *rest)
        table = np.zeros(tuple(domains[y] for y in scope))
        for f in buckets[i]:
            axes = sorted(range(len(f.scope)), key=lambda k: scope.index(f.scope[k]))
            ordered = [f.scope[k] for k in axes]
            shape = [domains[y] if y in ordered else 1 for y in scope]
            table = table + f.table.transpose(axes).reshape(shape)
        choices.append((x, rest, table.argmin(axis=0)))
        least = table.min(axis=0)
        if rest:
            buckets[min(rank[y] for y in rest)].append(_Factor(rest, least))
        else:
            constant += float(least)
    if constant == np.inf:
        return None, 0
    values = [0] * len(domains)
    for x, rest, choice in reversed(choices):
        values[x] = int(choice[tuple(values[y] for y in rest)])
    return values, round(constant)
