"""Heuristics: eviction, and plans of few units."""

from __future__ import annotations

import random
import sys
from dataclasses import replace

import pytest
from generators import ladder, random_order, random_program
from peakmem.model import Program, Statement
from peakmem.transform.recompute import RerunProblem, floor, make_plan, prune, solve, trace
from peakmem.transform.recompute.eviction import RULES, Eviction
from peakmem.transform.recompute.horizon import Horizon
from peakmem.transform.recompute.intervals import solve_intervals
from peakmem.transform.recompute.plan import _Removal, allowed
from test_recompute_oracle import shortest_path
from test_recompute_solvers import KINDS, problems, random_plans, targets


@pytest.mark.parametrize("kind", KINDS)
def test_plans_of_beams_reach_the_target_and_are_never_cheaper_than_the_least_price(kind: str) -> None:
    found = missed = 0
    for problem in problems(20, 7, **KINDS[kind]):
        for target in targets(problem):
            if target < floor(problem.program).size:
                continue
            truth = shortest_path(problem, target)
            beam = Eviction(problem, target)
            for width, rules in [*((1, (rule,)) for rule in RULES), (20, ("ratio", "stale", "large+"))]:
                reruns = beam.search(width, rules)
                assert reruns == beam.search(width, rules)
                if reruns is None:
                    missed += truth is not None
                    continue
                found += 1
                plan = make_plan(problem, reruns)
                assert allowed(problem, reruns)
                assert plan.peak <= target
                assert truth is not None
                assert plan.extra_macs >= truth
    assert found > 2 * missed


def test_a_beam_gives_up_what_cannot_beat_a_known_plan() -> None:
    problem = RerunProblem(ladder(3, 4), tuple(range(len(ladder(3, 4)))))
    beam = Eviction(problem, (trace(problem, ()).peak + floor(problem.program).size) // 2)
    reruns = beam.search(8)
    assert reruns is not None
    plan = make_plan(problem, reruns)
    assert beam.search(8, below=(plan.extra_macs, len(reruns) + 1)) == reruns
    cheaper = beam.search(8, below=(plan.extra_macs, len(reruns)))
    assert cheaper is None or (make_plan(problem, cheaper).extra_macs, len(cheaper)) < (plan.extra_macs, len(reruns))


@pytest.mark.parametrize("kind", KINDS)
def test_relaxations_alone_still_find_the_price_of_the_shortest_path(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    solver = sys.modules["peakmem.transform.recompute.solver"]
    monkeypatch.setattr(solver, "_heuristics", lambda *_: None)
    monkeypatch.setattr(solver, "_near", lambda *_: None)
    for problem in problems(25, 7, **KINDS[kind]):
        for target in targets(problem):
            truth = shortest_path(problem, target)
            outcome = solve(problem, target, time_limit=600)
            assert outcome.status == ("infeasible" if truth is None else "exact")
            assert truth is None or outcome.lower_bound == truth


def test_intervals_of_some_units_give_plans_of_these_units_and_of_all_units_the_price() -> None:
    dearer = alone = 0
    for seed, problem in list(enumerate(problems(36, 8)))[16:]:  # two of these show it
        only = [i for i in range(len(problem.units)) if random.Random(seed + i).random() < 0.6]
        for target in targets(problem):
            truth = shortest_path(problem, target)
            whole = solve_intervals(Horizon(problem, target), time_limit=600, effort=60)
            part = solve_intervals(Horizon(problem, target, None, only), time_limit=600, effort=60)
            assert whole is not None and whole.bound == truth
            assert part is not None
            if part.reruns is None:
                alone += truth is not None
                continue
            assert {u for _, u in part.reruns} <= set(only)
            assert allowed(problem, part.reruns)
            plan = make_plan(problem, part.reruns)
            assert plan.peak <= target
            assert plan.extra_macs == part.bound
            assert truth is not None and part.bound is not None and part.bound >= truth
            dearer += part.bound > truth
    assert dearer or alone  # otherwise the units did not matter


def test_intervals_that_would_exceed_64_bits_or_take_too_long_to_write_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    program = ladder(3, 4)
    huge = Program(tuple(replace(b, size=b.size << 50) for b in program.buffers), program.statements)
    problem = RerunProblem(huge, tuple(range(len(huge))))
    assert solve_intervals(Horizon(problem, trace(problem, ()).peak - 1), time_limit=600, effort=60) is None
    problem = RerunProblem(program, tuple(range(len(program))))
    horizon = Horizon(problem, trace(problem, ()).peak - 1)
    assert solve_intervals(horizon, time_limit=600, effort=60) is not None
    monkeypatch.setattr(sys.modules["peakmem.transform.recompute.intervals"], "LARGEST_PLAN", 10)
    assert solve_intervals(horizon, time_limit=600, effort=60) is None


def test_free_reruns_that_buy_nothing_are_left_out() -> None:
    for seed in range(40):
        program = random_program(seed, 8)
        free = Program(
            program.buffers,
            tuple(
                Statement(s.name, s.op, s.reads, s.writes, s.dependences, s.workspace) for s in program.statements
            ),
        )
        problem = RerunProblem(free, random_order(seed, free))
        for target in targets(problem):
            outcome = solve(problem, target, time_limit=600)
            if outcome.plan is not None:
                assert outcome.plan.extra_macs == 0
                assert prune(outcome.plan, outcome.plan.peak) == outcome.plan


@pytest.mark.parametrize("kind", KINDS)
def test_the_peak_without_one_rerun_is_that_of_a_simulation(kind: str) -> None:
    checked = 0
    for plan in random_plans(100, **KINDS[kind]):
        removal = _Removal(plan.problem, plan.reruns)
        for k in range(len(plan.reruns)):
            rest = [*plan.reruns[:k], *plan.reruns[k + 1 :]]
            assert removal.peak_without(k) == trace(plan.problem, rest).peak
            checked += 1
    assert checked > 100
