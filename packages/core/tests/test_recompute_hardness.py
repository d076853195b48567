"""The reductions: solving the program solves the classical problem, and the other way round."""

from __future__ import annotations

import itertools
import random

import networkx as nx
import pytest
from peakmem.model import Program, timeline
from peakmem.transform.recompute import Problem, solve, trace
from peakmem.transform.recompute.generators import cut_arrangement, cutwidth, knapsack


def best_knapsack(weights: list[int], values: list[int], capacity: int) -> int:
    """The textbook table over capacities."""
    best = [0] * (capacity + 1)
    for w, v in zip(weights, values):
        for c in range(capacity, w - 1, -1):
            best[c] = max(best[c], best[c - w] + v)
    return best[capacity]


def test_recomputation_with_one_binding_step_is_knapsack() -> None:
    for seed in range(25):
        rng = random.Random(seed)
        k = rng.randint(1, 9)
        weights = [rng.randint(1, 20) for _ in range(k)]
        values = [rng.randint(1, 50) for _ in range(k)]
        capacity = rng.randint(0, sum(weights) - 1)
        instance = knapsack(weights, values, capacity)
        problem = Problem(instance.program, tuple(range(len(instance.program))))
        outcome = solve(problem, instance.target, time_limit=60)
        assert outcome.status == "exact"
        assert outcome.plan is not None
        assert outcome.plan.extra_macs == sum(values) - best_knapsack(weights, values, capacity)
        dropped = {problem.units[u].members[0] for _, u in outcome.plan.reruns}
        assert sum(w for i, w in enumerate(weights) if i not in dropped) <= capacity


def graph_of(program: Program) -> nx.DiGraph:
    """Statements and direct dependences."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(program)))
    graph.add_edges_from((u, v) for v, before in enumerate(program.predecessors) for u in before)
    return graph


def is_two_terminal_series_parallel(graph: nx.DiGraph) -> bool:
    """Series and parallel reductions of arcs until one is left."""
    arcs = nx.MultiDiGraph(graph)
    changed = True
    while changed:
        changed = False
        for u, v in list(arcs.edges()):
            if arcs.number_of_edges(u, v) > 1:
                arcs.remove_edge(u, v)
                changed = True
        for v in list(arcs.nodes):
            if arcs.in_degree(v) == 1 == arcs.out_degree(v):
                ((u, _),) = arcs.in_edges(v)
                ((_, w),) = arcs.out_edges(v)
                arcs.remove_node(v)
                arcs.add_edge(u, w)
                changed = True
    return arcs.number_of_edges() == 1


def test_the_knapsack_graph_is_series_parallel() -> None:
    instance = knapsack([3, 1, 4, 1], [2, 7, 1, 8], 5)
    assert is_two_terminal_series_parallel(graph_of(instance.program))


def orders(program: Program) -> list[tuple[int, ...]]:
    """All orders."""
    found = []

    def extend(done: list[int]) -> None:
        if len(done) == len(program):
            found.append(tuple(done))
        for v in range(len(program)):
            if v not in done and set(program.predecessors[v]) <= set(done):
                extend([*done, v])

    extend([])
    return found


def random_edges(seed: int, tree: bool) -> dict[tuple[str, str], int]:
    rng = random.Random(seed)
    names = "abcde"[: rng.randint(2, 5)]
    edges = {}
    for i in range(1, len(names)):
        edges[(names[rng.randrange(i)], names[i])] = rng.randint(1, 9)
    if not tree:
        for a, b in itertools.combinations(names, 2):
            if (a, b) not in edges and rng.random() < 0.4:
                edges[(a, b)] = rng.randint(1, 9)
    return edges


@pytest.mark.parametrize("tree", [True, False])
def test_the_least_peak_is_the_cutwidth(tree: bool) -> None:
    for seed in range(12):
        edges = random_edges(seed, tree)
        instance = cut_arrangement(edges)
        peaks = [timeline(instance.program, order).peak for order in orders(instance.program)]
        assert min(peaks) == instance.offset + cutwidth(edges)
        assert not any(instance.program.predecessors)
        assert max(len(t) for t in instance.program.touchers) <= 2


def test_every_order_has_the_cutwidth_of_its_arrangement() -> None:
    edges = random_edges(3, tree=False)
    instance = cut_arrangement(edges)
    name = {s: v for v, s in instance.vertices.items()}
    for order in orders(instance.program):
        place = {name[s]: i for i, s in enumerate(order)}
        widest = max(
            sum(c for (a, b), c in edges.items() if min(place[a], place[b]) <= i < max(place[a], place[b]))
            for i in range(len(order))
        )
        assert timeline(instance.program, order).peak == instance.offset + widest


@pytest.mark.parametrize("form", ["gate", "series-parallel"])
def test_with_one_writer_of_everything_the_answer_is_the_same(form: str) -> None:
    for seed in range(8):
        edges = random_edges(seed, tree=True)
        if len(edges) > 3:
            continue  # the sources could stand in any order: too many for brute force
        instance = cut_arrangement(edges, form)
        least = min(timeline(instance.program, order).peak for order in orders(instance.program))
        assert least == instance.offset + cutwidth(edges)


def test_the_forms_have_the_shapes_that_are_claimed() -> None:
    edges = random_edges(4, tree=True)
    gate = cut_arrangement(edges, "gate").program
    assert all(len(s.writes) == 1 for s in gate.statements)
    # Sources and vertices meet only in the gate, and edge buffers join a source with two vertices of a tree.
    graph = nx.Graph(graph_of(gate))
    width, _ = nx.algorithms.approximation.treewidth_min_fill_in(graph)
    assert width <= 2
    assert is_two_terminal_series_parallel(graph_of(cut_arrangement(edges, "series-parallel").program))


@pytest.mark.parametrize("cap", [2, 3])
def test_no_cap_helps_below_the_cutwidth(cap: int) -> None:
    for seed in range(8):
        instance = cut_arrangement(random_edges(seed, tree=False))
        for order in orders(instance.program)[:10]:
            problem = Problem(instance.program, order, cap=cap)
            peak = trace(problem, ()).peak
            assert solve(problem, peak - 1).status == "infeasible"
