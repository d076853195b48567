"""The reductions: solving the program solves the classical problem, and the other way round.

Each turns an instance of a classical problem into a `Program`; independent solvers of the classical problem check it.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import networkx as nx
import pytest
from peakmem.model import Buffer, Program, Statement, timeline
from peakmem.transform.recompute import RerunProblem, solve, trace


@dataclass(frozen=True)
class Knapsack:
    """A knapsack instance as a recomputation problem; see `knapsack`."""

    program: Program
    target: int


def knapsack(weights: Sequence[int], values: Sequence[int], capacity: int) -> Knapsack:
    """The 0/1 knapsack problem with one binding step, a forced order and a series-parallel graph.

    The path ``p_1 .. p_k, h, z_k .. z_1`` carries a value of 0 bytes; ``p_i`` writes ``b_i`` of ``weights[i]`` bytes
    at the price ``values[i]``, which only ``z_i`` reads: nested bypasses. ``h`` needs so much workspace that what is
    kept across it must fit into ``capacity``. So the least extra MACs are ``sum(values)`` less the value of the best
    knapsack, and the kept values are its contents.
    """
    k = len(weights)
    room = sum(weights) + 1
    buffers = [Buffer("x", 0, "input", True)]
    rows: list[Statement] = []

    def add(name: str, size: int, kind: str = "intermediate") -> int:
        buffers.append(Buffer(name, size, "output" if kind == "output" else "intermediate", kind == "output"))
        return len(buffers) - 1

    path = 0
    items = []
    for i in range(k):
        item, link = add(f"b{i}", weights[i]), add(f"p{i}", 0)
        rows.append(
            Statement(f"p{i}", "P", (path,), (item, link), tuple(range(i and i - 1, i)), cost=values[i])
        )
        items.append(item)
        path = link
    link = add("h", 0)
    rows.append(Statement("h", "H", (path,), (link,), (k - 1,) if k else (), workspace=room, pure=False))
    for i in range(k - 1, -1, -1):
        path, link = link, add(f"z{i}", 0, "output" if i == 0 else "intermediate")
        rows.append(Statement(f"z{i}", "Z", (path, items[i]), (link,), tuple(sorted({i, len(rows) - 1}))))
    return Knapsack(Program(tuple(buffers), tuple(rows)), room + capacity)


@dataclass(frozen=True)
class Arrangement:
    """A minimum cut linear arrangement instance as an ordering problem; see `cut_arrangement`.

    Attributes
    ----------
    program : Program
    vertices : dict of str to int
        Vertex name -> its statement.
    offset : int
        The least peak of ``program`` is ``offset`` plus the cutwidth (twice the weights are carried along, so the
        unit is the cutwidth itself).
    """

    program: Program
    vertices: dict[str, int]
    offset: int


def cut_arrangement(edges: Mapping[tuple[str, str], int], form: str = "plain") -> Arrangement:
    """Minimum cut linear arrangement of a weighted graph as the least peak of a program.

    Each edge ``e`` of weight ``c_e`` is a buffer of ``2 c_e`` bytes touched by its two ends. Each vertex ``v`` writes
    a pinned output of ``z_v`` bytes, the weights at ``v``, and needs ``D - z_v`` of workspace, ``D`` the largest
    ``z``. With ``C`` the sum of weights, an order has the peak ``2 C + D + its cutwidth``: before ``v`` runs, edges
    not yet finished have ``2 (C - finished)`` bytes, outputs ``2 finished + cut``, and ``v`` adds ``D``.

    Parameters
    ----------
    edges : mapping of (str, str) to int
        Positive weights; no loops.
    form : {"plain", "gate", "series-parallel"}
        ``plain``: edges are freeable inputs, and there are no dependences at all. ``gate``: a source writes each
        edge's buffer, and a statement that depends on all sources stands before all vertices: one output a
        statement, a graph of treewidth 2. ``series-parallel``: one source writes all buffers, one sink follows all
        vertices.

    Notes
    -----
    Nothing can be recomputed to advantage in ``plain`` (inputs cannot be made again, outputs are pinned), so it holds
    for every cap; in the other forms sources are impure for the same reason.
    """
    names = sorted({v for e in edges for v in e})
    weight = {v: sum(c for e, c in edges.items() if v in e) for v in names}
    total, largest = sum(edges.values()), max(weight.values(), default=0)
    plain = form == "plain"
    buffers = [
        Buffer(f"{a}-{b}", 2 * c, "input" if plain else "intermediate", False) for (a, b), c in edges.items()
    ]
    rows: list[Statement] = []
    if form == "gate":
        for i, (a, b) in enumerate(edges):
            rows.append(Statement(f"source {a}-{b}", "Source", (), (i,), (), pure=False))
        buffers.append(Buffer("gate", 0))
        rows.append(Statement("gate", "Gate", (), (len(buffers) - 1,), tuple(range(len(edges))), pure=False))
    elif form == "series-parallel":
        rows.append(Statement("source", "Source", (), tuple(range(len(edges))), (), pure=False))
    first = len(rows)
    vertices = {}
    for v in names:
        touching = tuple(i for i, e in enumerate(edges) if v in e)
        buffers.append(Buffer(v, weight[v], "output", True))
        vertices[v] = len(rows)
        rows.append(
            Statement(v, "Vertex", touching, (len(buffers) - 1,), () if plain else (first - 1,),
                      workspace=largest - weight[v])
        )
    if form == "series-parallel":
        buffers.append(Buffer("sink", 0, "output", True))
        rows.append(Statement("sink", "Sink", (), (len(buffers) - 1,), tuple(range(first, len(rows))), pure=False))
    return Arrangement(Program(tuple(buffers), tuple(rows)), vertices, 2 * total + largest)


def cutwidth(edges: Mapping[tuple[str, str], int]) -> int:
    """Least cutwidth by dynamic programming over vertex subsets, O(2^n n), independent of the program model."""
    names = sorted({v for e in edges for v in e})
    index = {v: i for i, v in enumerate(names)}
    ends = [((1 << index[a]), (1 << index[b]), c) for (a, b), c in edges.items()]
    n = len(names)
    cut = [sum(c for a, b, c in ends if bool(s & a) != bool(s & b)) for s in range(1 << n)]
    best = [0] * (1 << n)
    for s in range(1, 1 << n):
        best[s] = max(cut[s], min(best[s & ~(1 << i)] for i in range(n) if s >> i & 1))
    return best[-1]


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
        problem = RerunProblem(instance.program, tuple(range(len(instance.program))))
        outcome = solve(problem, instance.target, time_limit=600)
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
            problem = RerunProblem(instance.program, order, cap=cap)
            peak = trace(problem, ()).peak
            assert solve(problem, peak - 1).status == "infeasible"
