"""Refutations by precedences, written out and judged by the checker; see also test_precedence.py."""

from __future__ import annotations

import random
from collections import Counter

import oracles
import pytest
from peakmem.model import Buffer, Program, Statement, peak_of
from peakmem.ordering.bounds import backward_trap_bound, forward_trap_bound, statement_bound
from peakmem.ordering.evidence import Evidence, Writer
from peakmem.ordering.precedence import propagate
from peakmem.ordering.problem import problem_of
from peakmem.proof import check, schema_of


def certificate(program: Program, proof: dict[str, object]) -> dict[str, object]:
    order = list(range(len(program)))
    return {
        "schema": schema_of(program, {"": proof}),
        "program": {"digest": program.digest},
        "artifact": None,
        "lower_bound": proof["lower_bound"],
        "orders": {"": order},
        "peak": peak_of(program),
        "proofs": {"": proof},
    }


@pytest.mark.parametrize(("count", "overlays"), [(300, False), (150, True)])
def test_refuted_budgets_are_refuted_and_the_checker_agrees(count: int, overlays: bool) -> None:
    """Every node kind of a refutation occurs, and none refutes a budget that can be kept."""
    kinds: Counter[str] = Counter()
    refuted = 0
    for seed in range(count):
        rng = random.Random(seed)
        program = oracles.random_program(rng, rng.choice([4, 6, 8, 9]))
        if overlays:
            program = oracles.with_overlays(rng, program)
        optimum = oracles.optimum(program)
        problem = problem_of(program)
        kept = propagate(problem, optimum, wanted=len(program), depth=3)
        assert kept.refutation is None, f"seed {seed}: the optimum itself was refuted"
        if optimum == 0:
            continue
        found = propagate(problem, optimum - 1, wanted=len(program), depth=3)
        if found.refutation is None:
            continue
        refuted += 1
        proof = Writer(Evidence(optimum, problem, len(program), refutation=found.refutation)).write()
        report = check(program, certificate(program, proof))
        assert report.lower_bound == optimum
        kinds.update(node["kind"] for node in proof["nodes"])
    assert refuted > 0.7 * count
    assert {"forward", "backward", "precedence", "branch"} <= set(kinds), kinds


def test_a_cycle_refutes() -> None:
    """Two pairs, each of which must run before the other under the budget."""
    kinds: Counter[str] = Counter()
    for seed in range(3000):
        rng = random.Random(seed)
        program = oracles.random_program(rng, 6)
        problem = problem_of(program)
        budget = oracles.optimum(program) - 1
        if budget < 0:
            continue
        found = propagate(problem, budget, wanted=len(program))
        if found.refutation is not None and found.refutation.cycle:
            proof = Writer(Evidence(budget + 1, problem, len(program), refutation=found.refutation)).write()
            assert check(program, certificate(program, proof)).lower_bound == budget + 1
            kinds.update(node["kind"] for node in proof["nodes"])
            if kinds["cycle"] > 3:
                return
    pytest.fail("no cycle in 3000 programs: the generator has changed")


@pytest.mark.parametrize("bound", [statement_bound, forward_trap_bound, backward_trap_bound])
def test_bounds_as_values_never_exceed_the_optimum(bound: object) -> None:
    tight = 0
    for seed in range(400):
        rng = random.Random(10_000 + seed)
        program = oracles.random_program(rng, rng.choice([3, 5, 8, 9]))
        optimum = oracles.optimum(program)
        value = bound(problem_of(program))  # type: ignore[operator]
        assert value <= optimum, f"seed {10_000 + seed}"
        tight += value == optimum
    assert tight > 150


def test_both_traps_dominate_the_statement_bound_somewhere() -> None:
    """Two branches that each grow and shrink: no single statement shows what the trap does."""
    buffers = [Buffer("x", 4, "input", pinned=True)]
    statements = []
    for i in range(2):
        a, b, c = (len(buffers) + k for k in range(3))
        buffers += [Buffer(f"a{i}", 4), Buffer(f"b{i}", 6), Buffer(f"c{i}", 4)]
        first = len(statements)
        statements += [
            Statement(f"f{i}", reads=(0,), writes=(a,)),
            Statement(f"g{i}", reads=(a,), writes=(b,), dependences=(first,)),
            Statement(f"h{i}", reads=(b,), writes=(c,), dependences=(first + 1,)),
        ]
    buffers.append(Buffer("y", 1, "output", pinned=True))
    statements.append(Statement("join", reads=(3, 6), writes=(7,), dependences=(2, 5)))
    program = Program(tuple(buffers), tuple(statements))
    problem = problem_of(program)
    optimum = oracles.optimum(program)
    assert statement_bound(problem) < optimum
    assert optimum in (forward_trap_bound(problem), backward_trap_bound(problem))
