"""The checker's networks against the definitions: every arc that must be there, none that must not."""

from __future__ import annotations

import random
from collections import Counter

from oracles import Model, programs
from peakmem_check.model import Program
from peakmem_check.proof.check import Proof
from peakmem_check.proof.graph import Candidates, Dag, buffer_of, mirror
from tinyprover import Prover


def strengthened(rng: random.Random, program: Program) -> tuple[Dag, tuple[frozenset[int], ...], Prover]:
    """The program's dependences and a few more that fit a random order."""
    model = Model(program)
    prover = Prover(program, model.workspace, 0, rng)
    place = list(range(model.n))
    dag = [frozenset(p) for p in model.before]
    arcs = set()
    for _ in range(rng.choice((0, 0, 1, 3))):
        u, v = sorted(rng.sample(place, 2))
        arcs.add((u, v))
        dag[v] |= {u}
    return Dag(program, frozenset(arcs)), tuple(dag), prover


def down_set(
    prover: Prover, dag: tuple[frozenset[int], ...], rng: random.Random, within: frozenset[int]
) -> frozenset[int]:
    chosen: frozenset[int] = frozenset()
    for v in range(prover.n):
        if v in within and rng.random() < 0.4:
            chosen |= prover.ancestors(dag, v) | {v}
    return chosen


def test_networks_have_exactly_the_arcs_of_the_format() -> None:
    met: Counter[str] = Counter()
    for i, program in programs(500, 300, range(3, 9), overlays=True):
        rng = random.Random(i)
        dag, sets, prover = strengthened(rng, program)
        checker = Proof(program, prover.model.workspace, {"lower_bound": 0, "root": 0, "nodes": []}, "proof").whole
        for _ in range(3):
            v = rng.choice([None, *range(len(program))])
            if v is None:
                high = down_set(prover, sets, rng, prover.all)
                low = down_set(prover, sets, rng, high)
            else:
                free = prover.all - {v} - prover.descendants(sets, v)
                low = prover.ancestors(sets, v) | down_set(prover, sets, rng, free)
                high = low | down_set(prover, sets, rng, free)
            overlay = None if v is None else prover.model.overlay[v]
            way = None if overlay is None else rng.randrange(len(overlay.inputs))
            lies_on = None if overlay is None or way is None else overlay.inputs[way]
            graph, constant = prover.network(sets, v, low, high, lies_on)
            inside, outside = (sum(1 << u for u in part) for part in (low, prover.all - high))
            scheduled = Candidates(b for b, buffer in enumerate(program.buffers) if buffer.kind != "constant")
            ours = checker.networks(dag, v, inside, outside, scheduled)[way or 0]
            assert ours.constant == constant
            # The candidates that the checker takes are enough.
            state = high if rng.random() < 0.5 else low
            fewer = checker.networks(dag, v, inside, outside, checker.live(sum(1 << u for u in state)))[way or 0]
            assert fewer.constant == constant
            buffers = range(len(program.buffers) + 1)
            nodes = ["s", "t", "g", *range(-1, len(program) + 1), *(f"b{b}" for b in buffers), *(f"j{b}" for b in buffers)]
            for tail in nodes:
                for head in nodes:
                    expected = graph.edges[tail, head].get("capacity") if graph.has_edge(tail, head) else "none"
                    try:
                        found: object = ours.capacity(tail, head)
                    except ValueError:
                        found = "none"
                    if found != expected and isinstance(tail, str) and tail[0] == "j":
                        # The tiny prover leaves out joins that no undecided birth reaches; no flow can enter them.
                        assert not [u for u in program.births[int(tail[1:])] if u in high - low]
                        continue
                    if found != expected and isinstance(tail, str) and tail[0] == "b":
                        # ... and what leaves such a buffer.
                        assert not graph.has_node(tail) or not list(graph.predecessors(tail))
                        continue
                    assert found == expected, (program, v, low, high, tail, head)
                    if found != "none":
                        met[
                            f"{str(tail)[0] if isinstance(tail, str) else 'v'}{str(head)[0] if isinstance(head, str) else 'v'}"
                        ] += 1
    assert set(met) == {"vv", "sb", "vb", "vj", "jb", "bv", "bt", "sg", "gv", "gt"}
    assert min(met.values()) > 5


def test_graphs() -> None:
    for i, program in programs(501, 300, range(2, 10)):
        rng = random.Random(i)
        dag, sets, prover = strengthened(rng, program)
        assert dag.acyclic
        for v in range(len(program)):
            assert set(dag.predecessors[v]) == sets[v]
            assert set(dag.successors[v]) == {w for w in range(len(program)) if v in sets[w]}
            for mask, expected in (
                (dag.ancestors(v), prover.ancestors(sets, v)),
                (dag.descendants(v), prover.descendants(sets, v)),
                (Dag(program)._search(v, False), Model(program).ancestors(v)),
            ):
                assert {u for u in range(len(program)) if (mask >> u) & 1} == set(expected)
        for b in range(len(program.buffers)):
            if program.births[b]:
                assert set(dag.births(b)) == prover.births(sets, b)
    cyclic = Dag(program, frozenset({(0, 1), (1, 0)}))
    assert not cyclic.acyclic


def test_names_of_buffer_nodes() -> None:
    assert buffer_of("b0") == 0
    assert buffer_of("j17") == 17
    for text in ("", "b", "b01", "b-1", "b+1", "b 1", "b1 ", "b1_0", "b\u0661", "x1", "s", "b" + "9" * 30):
        assert buffer_of(text) is None


def test_the_mirror_image() -> None:
    """The memory of an order at each step is that of the reversed order in the mirror image."""
    for i, program in programs(502, 200, range(9)):
        rng = random.Random(i)
        workspaces = [s.workspace for s in program.statements]
        here, there = Model(program), Model(mirror(program), workspaces[::-1])
        n = here.n
        state: set[int] = set()
        while len(state) < n:
            v = rng.choice(here.ready(frozenset(state)))
            later = {n - 1 - u for u in range(n) if u not in state and u != v}
            assert here.mem(state, v) == there.mem(later, n - 1 - v)
            state.add(v)
        assert here.rest(set()) == there.rest(set(range(n)))
