"""Programs with known answers: random small ones, and the reductions that show how hard the problems are.

Each reduction turns an instance of a classical problem into a `Program` so that solving one solves the other. They are
used by tests, which compare with independent solvers of the classical problem, and by ``docs/recompute.md``.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from peakmem.model import Buffer, Kind, Program, Statement


def random_program(
    seed: int,
    statements: int,
    *,
    several_outputs: bool = False,
    in_place: bool = False,
    impure: bool = False,
    reduced: bool = False,
) -> Program:
    """A small random program, the same for the same arguments.

    Parameters
    ----------
    seed, statements : int
    several_outputs : bool
        Some statements write two buffers.
    in_place : bool
        Some statements rewrite a buffer that they read.
    impure : bool
        Some statements may not run twice.
    reduced : bool
        Dependences that others imply are left out, as some adapters do.
    """
    rng = random.Random(seed)
    buffers = [
        Buffer(f"in{i}", rng.randint(0, 6), "input", rng.random() < 0.5) for i in range(rng.randint(1, 2))
    ]
    writers: list[list[int]] = [[] for _ in buffers]
    readers: list[list[int]] = [[] for _ in buffers]
    rows: list[Statement] = []
    for v in range(statements):
        pool = list(range(len(buffers)))
        if rng.random() < 0.6:
            pool = pool[-5:]
        reads = rng.sample(pool, min(rng.randint(1, 3), len(pool)))
        dependences = {w for b in reads for w in writers[b]}
        writes: list[int] = []
        if in_place and rng.random() < 0.35:
            own = [b for b in reads if buffers[b].kind != "input"]
            if own:
                writes.append(rng.choice(own))
                dependences.update(readers[writes[0]])
        if not writes or rng.random() < 0.2:
            for _ in range(2 if several_outputs and rng.random() < 0.25 else 1):
                writes.append(len(buffers))
                buffers.append(Buffer(f"b{len(buffers)}", rng.randint(1, 9)))
                writers.append([])
                readers.append([])
        rows.append(
            Statement(
                f"s{v}",
                rng.choice("AB"),
                tuple(reads),
                tuple(writes),
                tuple(sorted(dependences)),
                workspace=rng.choice([0, 0, 1, 3]),
                cost=rng.choice([0, 1, 2, 5, 9]),
                pure=not impure or rng.random() < 0.85,
            )
        )
        for b in reads:
            if b not in writes:
                readers[b].append(v)
        for b in writes:
            writers[b].append(v)
            readers[b] = []
    if reduced:
        rows = _reduced(rows)
    last = set(rows[-1].writes) if rows else set()
    kept = [
        Buffer(b.name, b.size, "output", True)
        if b.kind != "input" and (i in last or rng.random() < 0.1)
        else b
        for i, b in enumerate(buffers)
    ]
    return Program(tuple(kept), tuple(rows))


def random_chains(seed: int, statements: int) -> Program:
    """A small random program in which several statements, each with a source of its own, fill most buffers.

    Every buffer is begun by one statement, rewritten in place by up to two more or filled part by part, then left idle
    and read late: bringing it back takes a row of reruns, and memory half way through the row decides.
    """
    rng = random.Random(seed)
    buffers = [Buffer(f"in{i}", rng.randint(1, 4), "input", rng.random() < 0.5) for i in range(2)]
    rows: list[Statement] = []
    writers: dict[int, list[int]] = {0: [], 1: []}
    readers: dict[int, list[int]] = {0: [], 1: []}

    def add(reads: Sequence[int], writes: Sequence[int], workspace: int) -> None:
        needs = {w for b in (*reads, *writes) for w in writers[b]} | {r for b in writes for r in readers[b]}
        rows.append(
            Statement(f"s{len(rows)}", "S", tuple(reads), tuple(writes), tuple(sorted(needs)), workspace,
                      rng.choice([0, 1, 2, 5]))
        )
        for b in reads:
            if b not in writes:
                readers[b].append(len(rows) - 1)
        for b in writes:
            writers[b].append(len(rows) - 1)

    def fresh(size: int, kind: Kind = "intermediate") -> int:
        buffers.append(Buffer(f"b{len(buffers)}", size, kind, kind == "output"))
        writers[len(buffers) - 1], readers[len(buffers) - 1] = [], []
        return len(buffers) - 1

    idle: list[int] = []
    while len(rows) < statements - 2:
        if rng.random() < 0.3:
            idle.append(fresh(rng.randint(1, 5)))
            add([rng.choice([0, 1])], [idle[-1]], 0)
            continue
        b = fresh(rng.randint(4, 9))
        for part in range(rng.randint(2, 3)):
            source = rng.choice([0, 1, *idle])
            own = [b] if part and rng.random() < 0.7 else []
            also = [fresh(rng.randint(1, 4))] if rng.random() < 0.2 else []
            add([source, *own], [b, *also], rng.choice([0, 0, 2, 4]))
            idle += also
        idle.append(b)
    wide = fresh(1)
    add([rng.choice([0, 1])], [wide], rng.randint(6, 14))
    add([wide, *rng.sample(idle, min(len(idle), 3))], [fresh(1, "output")], 0)
    return Program(tuple(buffers), tuple(rows))


def _reduced(rows: Sequence[Statement]) -> list[Statement]:
    above: list[set[int]] = []
    result = []
    for s in rows:
        implied = {a for u in s.dependences for a in above[u]}
        above.append(implied | set(s.dependences))
        result.append(replace(s, dependences=tuple(u for u in s.dependences if u not in implied)))
    return result


def random_order(seed: int, program: Program) -> tuple[int, ...]:
    """A random order that honours the dependences."""
    rng = random.Random(seed)
    order: list[int] = []
    left = set(range(len(program)))
    while left:
        ready = [v for v in sorted(left) if left.isdisjoint(program.predecessors[v])]
        order.append(rng.choice(ready))
        left.remove(order[-1])
    return tuple(order)


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


def ladder(rungs: int, width: int, *, seed: int = 0) -> Program:
    """A long program whose retention graph has a chosen width, for benchmarks.

    ``rungs`` stages in a row; in each, ``width`` cheap values are made from the stage's value, a wide statement is the
    local peak, and then the values are read in reverse. Only the cheap values may be made again, so no stage looks
    back further than its own value.
    """
    rng = random.Random(seed)
    buffers = [Buffer("x", 4, "input", True)]
    rows: list[Statement] = []

    def add(name: str, size: int, reads: Sequence[int], makers: Sequence[int], cost: int, workspace: int = 0) -> int:
        buffers.append(Buffer(name, size))
        rows.append(
            Statement(
                name, "S", tuple(reads), (len(buffers) - 1,), tuple(sorted(set(makers))), workspace, cost, name[0] == "k"
            )
        )
        return len(buffers) - 1

    made = {0: -1}

    def maker(b: int) -> list[int]:
        return [made[b]] if made[b] >= 0 else []

    stage = 0
    for r in range(rungs):
        keep = []
        for w in range(width):
            b = add(f"k{r}.{w}", rng.randint(4, 12), [stage], maker(stage), rng.randint(1, 9))
            made[b] = len(rows) - 1
            keep.append(b)
        wide = add(f"w{r}", 8, [stage], [*maker(stage), *(made[b] for b in keep)], 50, workspace=4 * width)
        made[wide] = len(rows) - 1
        for w in range(width - 1, -1, -1):
            after = add(f"j{r}.{w}", 4, [wide, keep[w]], [made[wide], made[keep[w]]], 1)
            made[after] = len(rows) - 1
            wide = after
        stage = wide
    buffers[stage] = Buffer(buffers[stage].name, buffers[stage].size, "output", True)
    return Program(tuple(buffers), tuple(rows))
