"""All solvers against a shortest path over machine states, and plans against independent simulators."""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from generators import ladder, random_order, random_program
from peakmem.model import Expansion, Program, timeline
from peakmem.transform.recompute import RerunProblem, expand, floor, make_plan, order_expansion, prune, solve, trace
from peakmem.transform.recompute.horizon import Horizon
from peakmem.transform.recompute.integer import Scaled, solve_cpsat, solve_highs, solve_integer
from peakmem.transform.recompute.oracle import free_order
from peakmem.transform.recompute.plan import Plan, allowed
from peakmem.transform.recompute.retention import build
from peakmem.transform.recompute.treewidth import eliminations, solve_treewidth
from slots import assert_least, tight_steps
from test_recompute_oracle import shortest_path


def problems(count: int, statements: int, **kind: bool) -> list[RerunProblem]:
    return [
        RerunProblem(p, random_order(seed, p), cap=2 + seed % 2)
        for seed in range(count)
        for p in [random_program(seed, 3 + seed % (statements - 2), **kind)]
    ]


def targets(problem: RerunProblem) -> list[int]:
    peak, low = trace(problem, ()).peak, floor(problem.program).size
    return sorted({low - 1, low, (low + peak) // 2, peak - 1} & set(range(low - 1, peak)))


KINDS: dict[str, dict[str, bool]] = {
    "plain": {},
    "several_outputs": {"several_outputs": True},
    "in_place": {"in_place": True},
    "reduced": {"in_place": True, "reduced": True},
    "all": {"several_outputs": True, "in_place": True, "impure": True},
}


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"reduced"}))
def test_all_methods_find_the_price_of_the_shortest_path(kind: str) -> None:
    feasible = infeasible = 0
    for problem in problems(30, 7, **KINDS[kind]):
        for target in targets(problem):
            truth = shortest_path(problem, target)
            feasible, infeasible = feasible + (truth is not None), infeasible + (truth is None)
            assert_least(problem, target, truth)
    assert feasible > 4
    assert infeasible > 4


def test_a_budget_below_the_price_is_infeasible_and_at_the_price_is_not() -> None:
    checked = 0
    for problem in problems(30, 7):
        for target in targets(problem):
            price = shortest_path(problem, target)
            if price:
                checked += 1
                for budget, status in ((price, "exact"), (price - 1, "infeasible")):
                    limited = RerunProblem(problem.program, problem.order, cap=problem.cap, max_extra_macs=budget)
                    assert solve(limited, target, time_limit=600).status == status
    assert checked > 5


def test_no_copy_where_the_cap_is_one() -> None:
    for problem in problems(20, 7):
        once = RerunProblem(problem.program, problem.order, cap=1)
        peak = trace(once, ()).peak
        assert solve(once, peak).plan == make_plan(once, ())
        assert solve(once, peak - 1).status == "infeasible"


@cache
def some_plans(count: int = 60, **kind: bool) -> list[tuple[Plan, int]]:
    """Plans that solve found, each with its target."""
    found = []
    for problem in problems(count, 9, **kind):
        for target in targets(problem):
            outcome = solve(problem, target, time_limit=600)
            if outcome.plan is not None and outcome.plan.reruns:
                found.append((outcome.plan, target))
    return found


def random_plans(count: int, **kind: bool) -> list[Plan]:
    """Reruns at random within windows and cap: no use to anybody, but legal."""
    found = []
    for seed, problem in enumerate(problems(count, 9, **kind)):
        rng = random.Random(seed)
        chosen = []
        for i, u in enumerate(problem.units):
            chosen += [(rng.randint(u.ready + 1, u.deadline), i) for _ in range(rng.randint(0, problem.cap - 1))]
        reruns = sorted(chosen, key=lambda r: r[0])
        counts = Counter(problem.units[u].group for _, u in reruns)
        reruns = [r for r in reruns if counts[problem.units[r[1]].group] < problem.cap]
        if reruns:
            assert allowed(problem, reruns)
            found.append(make_plan(problem, reruns))
    return found


def simulate(program: Program) -> int:
    """Peak by allocating and freeing, one statement after the other; shares nothing with the library."""
    last = {}
    for v, s in enumerate(program.statements):
        for b in (*s.reads, *s.writes):
            last[b] = v
    held = {b for b, x in enumerate(program.buffers) if x.kind == "input" and (x.pinned or b in last)}
    peak = sum(program.buffers[b].size for b in held)
    for v, s in enumerate(program.statements):
        held |= {b for b in (*s.reads, *s.writes) if program.buffers[b].kind != "constant"}
        peak = max(peak, s.workspace + sum(program.buffers[b].size for b in held))
        held -= {b for b in held if last.get(b) == v and not program.buffers[b].pinned}
    return peak


@pytest.mark.parametrize("kind", KINDS)
def test_the_enlarged_program_has_the_peak_and_the_price_of_the_plan(kind: str) -> None:
    plans = [*(plan for plan, _ in some_plans(**KINDS[kind])), *random_plans(60, **KINDS[kind])]
    assert len(plans) > 40
    for plan in plans:
        enlarged = expand(plan)
        program, original = enlarged.program, plan.problem.program
        assert simulate(program) == timeline(program).peak == plan.peak
        assert sum(s.cost for s in program.statements) - sum(s.cost for s in original.statements) == plan.extra_macs
        for v, s in zip(enlarged.statement_of, program.statements):
            assert tuple(enlarged.buffer_of[b] for b in s.reads) == original.statements[v].reads
            assert tuple(enlarged.buffer_of[b] for b in s.writes) == original.statements[v].writes


def contents(
    program: Program, order: list[int], enlarged: Expansion | None = None
) -> tuple[dict[int, set[object]], dict[str, object]]:
    """Run symbolically: what each original statement reads in all its runs, and the contents of the outputs.

    What a statement writes is a function of what it is, what it reads, and (it may write a part) what was there.
    """
    held: dict[int, object] = {b: ("entry", b) for b, x in enumerate(program.buffers) if x.kind == "input"}
    read: dict[int, set[object]] = {}
    for v in order:
        s = program.statements[v]
        origin = v if enlarged is None else enlarged.statement_of[v]
        seen = tuple(held.get(b) for b in s.reads)
        read.setdefault(origin, set()).add(seen)
        made = {b: hash((origin, k, seen, held.get(b))) for k, b in enumerate(s.writes)}
        held.update(made)
    return read, {x.name: held.get(b) for b, x in enumerate(program.buffers) if x.pinned}


@pytest.mark.parametrize("kind", KINDS)
def test_every_run_of_a_statement_reads_the_same_in_every_order_of_the_enlarged_program(kind: str) -> None:
    several = 0
    for plan in [*(plan for plan, _ in some_plans(**KINDS[kind])), *random_plans(100, **KINDS[kind])]:
        problem = plan.problem
        several += any(len(problem.units[u].members) > 1 for _, u in plan.reruns)
        truth, outputs = contents(problem.program, list(problem.order))
        enlarged = expand(plan)
        for seed in range(6):
            order = random_order(seed, enlarged.program) if seed else range(len(enlarged.program))
            read, results = contents(enlarged.program, list(order), enlarged)
            assert results == outputs
            assert read == truth
    if KINDS[kind].get("in_place"):
        assert several > 10  # otherwise this test says nothing about units of several statements


def test_reordering_the_enlarged_program_never_raises_its_peak() -> None:
    for plan, _ in some_plans(40):
        enlarged = expand(plan)
        ordering = order_expansion(enlarged, time_limit=600)
        enlarged.program.validate_order(ordering.orders[""])
        assert timeline(enlarged.program, ordering.orders[""]).peak == ordering.peak <= plan.peak


def test_pruned_plans_need_every_rerun() -> None:
    for plan, target in some_plans(40):
        pruned = prune(plan, target)
        assert pruned.peak <= target
        for k in range(len(pruned.reruns)):
            rest = (*pruned.reruns[:k], *pruned.reruns[k + 1 :])
            assert trace(pruned.problem, rest).peak > target


def test_a_free_order_is_never_dearer_and_sometimes_cheaper_or_alone_in_reaching_the_target() -> None:
    cheaper = alone = 0
    for seed in range(30):
        program = random_program(seed, 6)
        order = random_order(seed, program)
        problem = RerunProblem(program, order)
        for target in targets(problem):
            fixed, free = shortest_path(problem, target), free_order(program, target)
            if fixed is not None:
                assert free is not None
                assert free <= fixed
                cheaper += free < fixed
            else:
                alone += free is not None
    assert cheaper
    assert alone


def test_without_time_the_answer_is_a_bound_and_what_was_found() -> None:
    problem = RerunProblem(ladder(30, 6), tuple(range(len(ladder(30, 6)))))
    target = (trace(problem, ()).peak + floor(problem.program).size) // 2
    outcome = solve(problem, target, time_limit=0.0)
    assert outcome.status == "gap"
    assert outcome.lower_bound >= 0


def test_ctrl_c_keeps_the_best_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    solver = sys.modules["peakmem.transform.recompute.solver"]
    program = ladder(3, 4)
    problem = RerunProblem(program, tuple(range(len(program))))
    target = trace(problem, ()).peak - 1

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(solver, "_answer", interrupt)
    outcome = solve(problem, target)
    assert outcome.interrupted
    assert outcome.status == "gap"
    assert outcome.plan is not None
    assert outcome.plan.peak <= target


def test_the_width_is_reported_and_grows_with_the_values_kept_not_with_the_length() -> None:
    def width(rungs: int, kept: int) -> int:
        program = ladder(rungs, kept)
        problem = RerunProblem(program, tuple(range(len(program))))
        horizon = Horizon(problem, (trace(problem, ()).peak + floor(program).size) // 2)
        model = build(horizon, tight_steps(horizon))
        assert model is not None
        return eliminations(model)[0].width

    assert width(2, 2) <= width(6, 2) <= width(2, 2) + 2
    assert width(3, 5) > width(3, 2)


def test_answers_are_the_same_each_time() -> None:
    program = ladder(4, 4)
    problem = RerunProblem(program, tuple(range(len(program))))
    target = trace(problem, ()).peak - 5
    first, second = (solve(problem, target, time_limit=600) for _ in range(2))
    assert first.plan == second.plan
    assert first.lower_bound == second.lower_bound


def test_models_that_grow_step_by_step_find_the_price_of_the_shortest_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first relaxation of a large program holds few of the steps over the target; here it holds one."""
    solver = sys.modules["peakmem.transform.recompute.solver"]
    asked = []
    grow = solver.grow

    def watched(horizon: Horizon, steps: set[int], broken: dict[int, int], largest: int) -> bool:
        more = grow(horizon, steps, broken, largest)
        asked.append(set(broken) - steps)
        return bool(more)

    monkeypatch.setattr(solver, "FIRST_MODEL", 1)
    monkeypatch.setattr(solver, "grow", watched)
    for problem in problems(30, 7):
        for target in targets(problem):
            truth = shortest_path(problem, target)
            outcome = solve(problem, target, time_limit=600)
            assert outcome.status == ("infeasible" if truth is None else "exact")
            assert truth is None or outcome.lower_bound == truth
    assert any(asked)


def test_cpsat_highs_and_the_tree_decomposition_agree_on_relaxations() -> None:
    compared = infeasible = 0
    for kind in KINDS.values():
        for problem in problems(12, 8, **kind):
            for target in targets(problem):
                horizon = Horizon(problem, target)
                model = build(horizon, tight_steps(horizon))
                tree = None if model is None else solve_treewidth(model, budget=None, largest_table=2**18)
                if model is None or tree is None:
                    continue
                first = solve_cpsat(Scaled(model, None), time_limit=600, effort=60)
                assert first is not None
                for answer in (first, solve_highs(Scaled(model, None), time_limit=600)):
                    assert answer.exact
                    assert answer.bound == tree.bound
                infeasible += tree.bound is None
                compared += 1
    assert compared > 20
    assert infeasible


def test_common_divisors_go_and_sums_too_large_for_cpsat_are_left_to_highs(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds, answers = [], []
    for factor in (1, 2**50):
        program = ladder(2, 4)
        buffers = tuple(replace(b, size=b.size * factor) for b in program.buffers)
        rows = tuple(replace(s, cost=s.cost * factor, workspace=s.workspace * factor) for s in program.statements)
        problem = RerunProblem(Program(buffers, rows), tuple(range(len(program))))
        horizon = Horizon(problem, (trace(problem, ()).peak + floor(problem.program).size) // 2)
        model = build(horizon, tight_steps(horizon))
        assert model is not None
        scaled = Scaled(model, None)
        assert scaled.unit == factor
        answers.append((scaled.rows, scaled.objective))
        answer = solve_integer(model, budget=None, time_limit=600)
        assert answer.method == "cp-sat" and answer.exact and answer.bound
        bounds.append(answer.bound)
        with monkeypatch.context() as patch:
            patch.setattr(sys.modules["peakmem.transform.recompute.integer"], "LARGEST_SUM", scaled.largest_sum)
            assert solve_cpsat(scaled, time_limit=600) is None
            other = solve_integer(model, budget=None, time_limit=600)
        assert (other.method, other.bound, other.exact) == ("highs", answer.bound, True)
    assert answers[0] == answers[1]
    assert bounds[1] == bounds[0] * 2**50
