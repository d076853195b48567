"""The switches of the search change how long it takes, never what is true."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
from oracles import Model, bottleneck, programs
from peakmem.model import Program
from peakmem.ordering import portfolio, walk
from peakmem.ordering.bounds import Pricer
from peakmem.ordering.portfolio import Solver
from peakmem.ordering.problem import problem_of
from peakmem.ordering.rules import ALL, REASONS, Rules

NAMES = tuple(f.name for f in fields(Rules))

@cache
def samples() -> tuple[tuple[Program, int], ...]:
    """Small programs of both kinds with their optima."""
    found = [p for _, p in programs(41, 120, range(3, 10))]
    found += [p for _, p in programs(42, 150, range(8, 14), tangled=True)]
    return tuple((p, bottleneck(p)) for p in found)


def solve(program: Program, rules: Rules) -> Solver:
    solver = Solver(problem_of(program), rules=rules)
    solver.run()
    return solver


def assert_optimal(program: Program, optimum: int, rules: Rules) -> None:
    solver = solve(program, rules)
    found = solver.result()
    assert max(e.level for e in found.evidence) == found.bound <= optimum
    assert Model(program).peak(found.order) == found.peak == optimum
    assert found.bound == optimum


@pytest.mark.parametrize("name", NAMES)
def test_without_one_rule(name: str) -> None:
    for program, optimum in samples():
        assert_optimal(program, optimum, replace(ALL, **{name: False}))


def test_with_some_rules() -> None:
    rng = random.Random(7)
    for program, optimum in samples():
        assert_optimal(program, optimum, Rules(**{name: rng.random() < 0.5  for name in NAMES}))


def test_without_any_rule() -> None:
    for program, optimum in samples():
        assert_optimal(program, optimum, Rules(**dict.fromkeys(NAMES, False)))


def test_samples_are_not_trivial() -> None:
    """Else the tests above would say little: often the given order is not optimal and no floor is the optimum."""
    hard = 0
    for program, optimum in samples():
        problem = problem_of(program)
        floor = max([problem.entry_bytes, problem.exit_bytes, *problem.floor])
        hard += floor < optimum < problem.order_peak(range(len(problem)))
    assert hard > 50


def test_every_rule_has_a_sentence_of_its_own() -> None:
    assert REASONS.keys() == set(NAMES)
    assert len(set(REASONS.values())) == len(NAMES)
    assert all(text.endswith(".") for text in REASONS.values())


def _jumps(solver: Solver) -> int:
    return sum(len(step) > 1 for e in solver.evidence for step in e.steps)


@pytest.mark.parametrize(
    ("name", "others", "used"),
    [
        ("waypoints", {}, lambda s: len(s.parts) > 1),
        ("safe_jumps", {"start_traps": False, "waypoints": False}, _jumps),
    ],
)
def test_a_rule_that_is_off_leaves_no_trace(
    name: str, others: dict[str, bool], used: Callable[[Solver], int]
) -> None:
    base = replace(ALL, **others)
    assert sum(used(solve(p, base)) for p, _ in samples()) > 0
    assert sum(used(solve(p, replace(base, **{name: False}))) for p, _ in samples()) == 0


@pytest.mark.parametrize(
    ("name", "owner", "function"),
    [
        ("start_traps", portfolio, "forward_trap"),
        ("safe_moves", walk._Pass, "_take_safe_moves"),
        ("absorption", Pricer, "_absorb"),
    ],
)
def test_a_rule_that_is_off_is_not_run(
    name: str, owner: Any, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PEAKMEM_PURE", "1")  # the compiled loops have rules of their own, which tests hold to these
    calls = 0
    original = getattr(owner, function)

    def counted(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        return original(*args, **named)

    monkeypatch.setattr(owner, function, counted)
    for program, _ in samples():
        solve(program, ALL)
    assert calls > 0
    calls = 0
    for program, _ in samples():
        solve(program, replace(ALL, **{name: False}))
    assert calls == 0


def test_without_mirror_nothing_is_tried_from_the_far_end(monkeypatch: pytest.MonkeyPatch) -> None:
    sides: set[bool] = set()
    original = Solver._improve

    def noted(self: Solver, part: portfolio.Part, mirrored: bool, order: Any) -> bool:
        sides.add(mirrored)
        return original(self, part, mirrored, order)

    monkeypatch.setattr(Solver, "_improve", noted)
    for program, _ in samples():
        solve(program, ALL)
    assert sides == {False, True}
    sides.clear()
    for program, _ in samples():
        solve(program, replace(ALL, mirror=False))
    assert sides == {False}
