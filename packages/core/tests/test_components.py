"""Components against exhaustive search: what is lifted is true, and canonical orders merge to an optimum."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from oracles import bottleneck, random_program, tangled_program, with_overlays
from peakmem.model import Buffer, Overlay, Program, Statement
from peakmem.ordering import order_program
from peakmem.ordering.bounds import forward_trap
from peakmem.ordering.components import Component, Lift, canonical, components, least_rest, merged
from peakmem.ordering.cuts import births_of
from peakmem.ordering.evidence import Beside, Evidence, Writer
from peakmem.ordering.portfolio import Solver
from peakmem.ordering.precedence import propagate
from peakmem.ordering.problem import Problem, State, problem_of
from peakmem.ordering.rules import Rules
from peakmem.proof import check, schema_of


def union(rng: random.Random, programs: Sequence[Program]) -> Program:
    """The programs side by side, their statements shuffled into one another, and a pinned input that all may read."""
    buffers = [Buffer("everybody's", rng.randint(0, 5), "input", pinned=True)]
    rows: list[list[Statement]] = []
    for k, program in enumerate(programs):
        first = len(buffers)
        buffers += [Buffer(f"{k}{b.name}", b.size, b.kind, b.pinned) for b in program.buffers]
        rows.append([
            Statement(
                f"{k}{s.name}",
                reads=(*(b + first for b in s.reads), *((0,) if rng.random() < 0.3 else ())),
                writes=tuple(b + first for b in s.writes),
                dependences=s.dependences,
                workspace=s.workspace,
                overlay=s.overlay and Overlay(s.overlay.output + first, tuple(a + first for a in s.overlay.inputs)),
            )
            for s in program.statements
        ])  # fmt: skip
    places: list[list[int]] = [[] for _ in rows]
    statements: list[Statement] = []
    while any(len(p) < len(row) for p, row in zip(places, rows)):
        k = rng.choice([k for k, row in enumerate(rows) if len(places[k]) < len(row)])
        s = rows[k][len(places[k])]
        needs = tuple(places[k][u] for u in s.dependences)
        places[k].append(len(statements))
        statements.append(replace(s, dependences=needs))
    return Program(tuple(buffers), tuple(statements))


def unions(seed: int, count: int) -> Iterator[Program]:
    rng = random.Random(seed)
    for _ in range(count):
        k = 2 if rng.random() < 0.75 else 3
        kind = rng.choice((random_program, tangled_program))
        yield union(rng, [kind(rng, rng.randint(1, 7 if k == 2 else 5)) for _ in range(k)])


def best(problem: Problem) -> list[int]:
    solver = Solver(problem, rules=Rules(components=False))
    assert solver.run()
    return solver.best


def proved(program: Program, evidence: Evidence, optimum: int) -> set[str]:
    """Kinds of the nodes of a proof that the checker accepts."""
    proof = Writer(evidence).write()
    document = {
        "schema": schema_of(program, {"": proof}),
        "program": {"digest": program.digest},
        "artifact": None,
        "lower_bound": proof["lower_bound"],
        "orders": {"": list(range(len(program)))},
        "peak": problem_of(program).order_peak(range(len(program))),
        "proofs": {"": proof},
    }
    assert evidence.level <= check(program, document).lower_bound <= optimum
    return {node["kind"] for node in proof["nodes"]}


def test_canonical_orders_merge_to_an_optimum() -> None:
    counts: Counter[int] = Counter()
    for program in unions(1, 400):
        problem = problem_of(program)
        parts, base = components(problem)
        if not parts:
            continue
        orders = [canonical(part, best, effort=3) for part in parts]
        assert all(sorted(order) == list(range(len(part.problem))) for part, order in zip(parts, orders))
        for part, order in zip(parts, orders):
            assert part.problem.order_peak(order) == part.problem.order_peak(best(part.problem))
        order = merged(parts, orders)
        program.validate_order(order)
        assert problem.order_peak(order) == bottleneck(program)
        assert base >= program.buffers[0].size
        counts[len(parts)] += 1
    assert counts[2] > 50
    assert sum(counts[k] for k in counts if k > 2) > 50


def test_lifted_bounds_hold_and_the_checker_accepts_them() -> None:
    """With nothing but components: the evidence of each, carried over, at every effort; traps, precedences and entries."""
    kinds: Counter[str] = Counter()
    for i, program in enumerate(unions(2, 300)):
        optimum = bottleneck(program)
        solver = Solver(problem_of(program), rules=Rules(hot_statements=False, start_traps=i % 2 == 0))
        for effort in range(3):
            for part in solver._open():
                solver._merge(part, effort)
        assert solver.bound <= optimum == solver.peak
        kinds["closed"] += solver.bound == solver.peak
        kinds["open"] += solver.bound < solver.peak
        for evidence in solver.evidence:
            kinds.update(proved(program, evidence, optimum))
    assert kinds["closed"] > 2 * kinds["open"]
    assert min(kinds[kind] for kind in ("forward", "reverse")) > 0, kinds


def test_every_kind_of_refutation_is_carried_over() -> None:
    """Precedences, branches, cycles and backward traps of one component, with the rest of the union beside it."""
    kinds: Counter[str] = Counter()
    for seed in range(500):
        rng = random.Random(seed)
        program = union(rng, [tangled_program(rng, rng.randint(5, 9)), random_program(rng, rng.randint(1, 4))])
        problem = problem_of(program)
        parts, base = components(problem)
        for part in parts:
            offset = base + sum(other.least for other in parts) - part.least
            solver = Solver(part.problem, )
            solver.run()
            for inner in solver.parts:
                found = propagate(inner.problem, solver.peak - 1, wanted=rng.choice((1, 2, 8)), depth=3)
                if found.refutation is None:
                    continue
                own = Evidence(
                    solver.peak, inner.problem, len(part.problem), tuple(range(inner.before)), refutation=found.refutation
                )
                lifted = Lift(problem, part, offset).lifted(own)
                assert lifted is not None
                mirrored, level, why = lifted
                assert level == solver.peak + offset
                evidence = Evidence(level, problem, len(problem), (), mirrored, **why)
                kinds.update(proved(program, evidence, bottleneck(program)))
    assert min(kinds[kind] for kind in ("forward", "backward", "precedence", "branch")) > 3, kinds
    assert kinds["cycle"] > 0, kinds


def test_traps_behind_safe_moves_are_carried_over_with_them_or_without() -> None:
    counts: Counter[bool] = Counter()
    for program in unions(4, 400):
        problem = problem_of(program)
        parts, base = components(problem)
        for part in parts:
            budget = part.problem.order_peak(best(part.problem)) - 1
            state = State(part.problem)
            for v in range(len(part.problem)):
                if v in state.ready and state.mem(v) <= budget and state.step(v)[1] <= 0:
                    state.push(v)
            steps = tuple((v,) for v in state.path)
            trap = forward_trap(part.problem, budget, state=state, births=part.births, raising=False)
            if not steps or not trap.exits:
                continue
            own = Evidence(trap.level, part.problem, len(part.problem), steps=steps, trap=trap)
            lifted = Lift(problem, part, base + sum(other.least for other in parts) - part.least).lifted(own)
            assert lifted is not None
            mirrored, level, why = lifted
            proved(program, Evidence(level, problem, len(problem), (), mirrored, **why), bottleneck(program))
            counts[bool(why["steps"])] += 1
    assert min(counts[True], counts[False]) > 10, counts


def test_every_proof_of_a_component_holds_beside_the_others() -> None:
    """Whatever a component's evidence is, also what no trap of the union says: searches, waypoints, parts of parts."""
    kinds: Counter[str] = Counter()
    for seed in range(250):
        rng = random.Random(seed)
        program = union(rng, [tangled_program(rng, rng.randint(3, 7)), random_program(rng, rng.randint(1, 5))])
        if seed % 2:
            program = with_overlays(rng, program)
        problem = problem_of(program)
        parts, base = components(problem)
        for part in parts:
            offset = base + sum(other.least for other in parts) - part.least
            solver = Solver(part.problem, rules=Rules(hot_statements=False, start_traps=False, search_traps=False))
            solver.run()
            inner = [Evidence(level, part.problem, len(part.problem)) for level in (solver.peak, solver.peak - 1)]
            for own in (e for e in (*solver.evidence, *inner) if e.level > 0):
                evidence = Evidence(
                    own.level + offset, problem, len(problem), inside=Beside(problem, part.problem, own, offset)
                )
                found = proved(program, evidence, bottleneck(program))
                assert "components" in found
                kinds.update(found)
    assert min(kinds[k] for k in ("entry", "expand", "waypoint", "reverse", "forward", "move", "jump")) > 3, kinds


def test_a_search_in_one_component_certifies_the_union() -> None:
    """Without traps from the start or during the search, all that a component leaves is that its search found nothing."""
    rules = Rules(hot_statements=False, start_traps=False, search_traps=False)
    counts: Counter[str] = Counter()
    for program in unions(5, 150):
        solver = Solver(problem_of(program), rules=rules)
        optimum = bottleneck(program)
        for effort in range(3):
            for part in solver._open():
                solver._merge(part, effort)
        assert solver.bound <= optimum
        for evidence in solver.evidence:
            if evidence.inside is not None:
                assert "components" in proved(program, evidence, optimum)
                counts["inside"] += 1
                counts["closed"] += evidence.level == solver.peak
    assert min(counts.values()) > 10, counts


def test_unions_are_certified() -> None:
    for program in unions(3, 300):
        found = order_program(program)
        assert found.peak == found.lower_bound == bottleneck(program)


def test_two_optimal_orders_need_not_merge_to_an_optimum() -> None:
    """X reads an input of 4 and has a workspace of 2. A reads an input of 1; K writes t of 1; L reads it with a workspace of 3."""
    x = Program((Buffer("e", 4, "input"),), (Statement("X", reads=(0,), workspace=2),))
    q = Program(
        (Buffer("i", 1, "input"), Buffer("t", 1)),
        (Statement("A", reads=(0,)), Statement("K", writes=(1,)), Statement("L", reads=(1,), dependences=(1,), workspace=3)),
    )
    both = union(random.Random(0), [x, q])
    parts = []
    for k, program in enumerate((x, q)):
        problem = problem_of(program)
        names = [v for v, s in enumerate(both.statements) if s.name.startswith(str(k))]
        own = Problem(**{**problem.__dict__, "names": names})
        parts.append(Component(own, births_of(own), least_rest(own, births_of(own))))
    constant = both.buffers[0].size
    a, k = parts[1].problem, (0, 1, 2)
    assert a.order_peak((0, 1, 2)) == a.order_peak((1, 0, 2)) == 4
    peaks = [problem_of(both).order_peak(merged(parts, [[0], order])) - constant for order in ((0, 1, 2), (1, 0, 2))]
    assert peaks == [6, 7]
    assert canonical(parts[1], best, effort=3) == list(k)
    assert bottleneck(both) - constant == 6


def test_shared_inputs_connect_unless_they_are_pinned() -> None:
    for pinned, count in ((False, 0), (True, 2)):
        buffers = (Buffer("x", 3, "input", pinned), Buffer("a", 1), Buffer("b", 2))
        statements = tuple(Statement(f"s{i}", reads=(0,), writes=(i,)) for i in (1, 2))
        parts, base = components(problem_of(Program(buffers, statements)))
        assert len(parts) == count
        assert base == (3 if pinned else 0)


@pytest.mark.parametrize("depth", [1, 3])
def test_components_within_components(depth: int) -> None:
    """A statement before and one after two such programs side by side, so that a part of a part falls apart again."""
    rng = random.Random(depth)
    for _ in range(40):
        program = nested(rng, depth)
        found = order_program(program)
        if len(program) <= 18:
            assert found.peak == bottleneck(program)
        assert found.peak == found.lower_bound


def nested(rng: random.Random, depth: int) -> Program:
    if not depth:
        return tangled_program(rng, rng.randint(1, 3))
    inner = union(rng, [nested(rng, depth - 1), tangled_program(rng, rng.randint(1, 3))])
    buffers = (*inner.buffers, Buffer("head", rng.randint(0, 3), "output", pinned=True), Buffer("foot", 1))
    n, b = len(inner), len(inner.buffers)
    middle = [
        Statement(s.name + "'", "", s.reads, s.writes, tuple({u + 1 for u in s.dependences} | {0}), s.workspace)
        for s in inner.statements
    ]
    head = Statement("head", writes=(b,), workspace=rng.randint(0, 3))
    foot = Statement("foot", writes=(b + 1,), dependences=tuple(range(n + 1)), workspace=rng.randint(0, 3))
    return Program(
        tuple(Buffer(x.name + "'", x.size, x.kind, x.pinned) for x in buffers),
        (Statement("head", head.op, (), head.writes, (), head.workspace), *middle, foot),
    )
