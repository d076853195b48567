"""The front, several base orders, and the refusal when a target is out of reach."""

from __future__ import annotations

from dataclasses import replace

import pytest
from generators import ladder, random_order, random_program
from peakmem.frontends.programfile import ProgramModel
from peakmem.model import Buffer, Program, Refused, Statement, peak_of, scheduled_timeline
from peakmem.transform.recompute import (
    RerunProblem,
    base_orders,
    enlarge,
    expand,
    floor,
    front,
    least_peak,
    order_expansion,
    reach,
    recompute,
    trace,
)
from test_recompute_oracle import shortest_path


def brute(problem: RerunProblem) -> list[tuple[int, int]]:
    """(peak, extra MACs) of every trade-off, by asking a shortest path for every target."""
    result: list[tuple[int, int]] = []
    peak = trace(problem, ()).peak
    for target in range(peak, floor(problem.program).size - 1, -1):
        price = shortest_path(problem, target)
        if price is None:
            break
        if result and price == result[-1][1]:
            result[-1] = (target, price)
        else:
            result.append((target, price))
    return result


def test_a_complete_front_is_the_front() -> None:
    longest = 0
    programs = [random_program(seed, 6, in_place=seed % 2 == 1) for seed in range(60)]
    for seed, program in enumerate([*programs, ladder(1, 3), ladder(1, 4)]):
        problem = RerunProblem(program, random_order(seed, program))
        found = front(problem, time_limit=600)
        assert found.complete
        assert [(p.peak, p.extra_macs) for p in found.points] == brute(problem)
        assert all(p.exact and trace(problem, p.plan.reruns).peak == p.peak for p in found.points)
        longest = max(longest, len(found.points))
    assert longest > 2


def test_several_base_orders_give_the_lower_envelope() -> None:
    better = 0
    for seed in range(40):
        program = random_program(seed, 6)
        orders = [random_order(seed, program), *base_orders(program, range(6))]
        problems = [RerunProblem(program, order) for order in dict.fromkeys(orders)]
        together = front(problems, time_limit=600)
        assert together.complete
        every = [pair for problem in problems for pair in brute(problem)]
        for p in together.points:
            assert (p.peak, p.extra_macs) in brute(problems[p.base])
            assert not any(peak <= p.peak and macs < p.extra_macs for peak, macs in every)
        better += any(p.base for p in together.points)
    assert better


def test_without_time_the_front_is_the_given_order_and_says_so() -> None:
    program = ladder(3, 4)
    found = front(RerunProblem(program, tuple(range(len(program)))), time_limit=0.0)
    assert not found.complete
    assert found.points[0].extra_macs == 0


def test_ctrl_c_keeps_the_points_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    pareto = sys.modules["peakmem.transform.recompute.pareto"]
    program = ladder(3, 4)
    problem = RerunProblem(program, tuple(range(len(program))))
    whole = front(problem, time_limit=600)
    assert len(whole.points) > 3
    original, calls = pareto.solve, []

    def third_time(*arguments: object, **options: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(pareto, "solve", third_time)
    part = front(problem, time_limit=600)
    assert part.interrupted
    assert not part.complete
    assert {(p.peak, p.extra_macs) for p in whole.points[:3]} <= {(p.peak, p.extra_macs) for p in part.points}


def test_ctrl_c_in_a_search_without_a_plan_ends_the_front(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no sign that this base order has no plan, after which the next one would be tried."""
    import sys

    pareto = sys.modules["peakmem.transform.recompute.pareto"]
    program = ladder(3, 4)
    problems = [RerunProblem(program, random_order(seed, program)) for seed in range(3)]
    original, calls = pareto.solve, []

    def interrupted(problem: RerunProblem, target: int, **options: object) -> object:
        calls.append(problem)
        return replace(original(problem, target, **options), plan=None, status="gap", interrupted=True)

    monkeypatch.setattr(pareto, "solve", interrupted)
    found = front(problems, time_limit=600)
    assert found.interrupted
    assert not found.complete
    assert calls == problems[:1]


def test_the_least_peak_is_where_the_front_ends() -> None:
    for seed in range(40):
        program = random_program(seed, 6)
        problem = RerunProblem(program, random_order(seed, program))
        outcome = least_peak(problem, time_limit=600)
        assert outcome.status == "exact"
        assert outcome.plan is not None
        assert (outcome.plan.peak, outcome.plan.extra_macs) == brute(problem)[-1]


def test_a_target_below_the_floor_is_refused_with_the_floor_and_the_least_peak() -> None:
    program = ladder(2, 3)
    problem = RerunProblem(program, tuple(range(len(program))))
    peak, macs = brute_end(problem)
    low = floor(program).size
    with pytest.raises(Refused) as error:
        reach([problem], low - 1, time_limit=600)
    assert error.value.exit_code == 1
    for part in (f"{low - 1:,} bytes", f"floor of {low:,} bytes", f"{peak:,} bytes for {macs:,} extra MACs"):
        assert part in str(error.value)


def brute_end(problem: RerunProblem) -> tuple[int, int]:
    last = front(problem, time_limit=600).points[-1]
    return last.peak, last.extra_macs


def test_a_target_out_of_reach_is_refused_and_a_budget_is_named() -> None:
    program = ladder(2, 3)
    order = tuple(range(len(program)))
    points = front(RerunProblem(program, order), time_limit=600).points
    assert len(points) > 2
    limited = RerunProblem(program, order, max_extra_macs=points[1].extra_macs)
    with pytest.raises(Refused) as error:
        reach([limited], points[2].peak, time_limit=600)
    for part in (
        f"within {points[1].extra_macs:,} extra MACs",
        f"floor is {floor(program).size:,} bytes",
        f"{points[1].peak:,} bytes for {points[1].extra_macs:,} extra MACs",
    ):
        assert part in str(error.value)
    base, outcome = reach([RerunProblem(program, order)], points[2].peak, time_limit=600)
    assert base == 0
    assert outcome.plan is not None
    assert outcome.plan.extra_macs == points[2].extra_macs


def with_bodies() -> Program:
    """A stem that is read again after a branch: its copy shifts nothing before the first branch, all after it."""
    def body(*workspaces: int) -> Program:
        """Results pile up, so the largest workspace should run first; it is listed last."""
        buffers = tuple(Buffer(f"r{i}", 3, "output", True) for i in range(len(workspaces)))
        return Program(buffers, tuple(Statement(f"t{i}", writes=(i,), workspace=w) for i, w in enumerate(workspaces)))

    def branch(name: str, read: int, write: int, after: tuple[int, ...], *bodies: Program) -> Statement:
        return Statement(name, "If", (read,), (write,), after, bodies=bodies)

    return Program(
        (
            Buffer("x", 1, "input", True), Buffer("a", 20), Buffer("b", 2), Buffer("c", 1), Buffer("d", 1),
            Buffer("y", 1, "output", True),
        ),
        (
            Statement("stem", "Conv", (0,), (1,), (), cost=5),
            Statement("down", "Pool", (1,), (2,), (0,)),
            branch("first", 2, 3, (1,), body(1, 30), body(1, 2, 40)),
            Statement("join", "Add", (1, 3), (4,), (0, 2)),
            branch("last", 4, 5, (3,), body(4, 25), body(4, 4, 30)),
        ),
    )  # fmt: skip


def test_orders_of_bodies_belong_to_the_enlarged_program() -> None:
    program = with_bodies()
    model = ProgramModel(program, None, program.digest)
    found = recompute(model, max_extra_macs="100%", time_limit=600)
    assert found.point is not None and found.point.plan.reruns
    assert found.expansion is not None and found.reordering is not None and found.model is not None
    where = {s.name: i for i, s in enumerate(found.expansion.program.statements)}
    assert where["last"] == 5
    assert set(found.reordering.orders) == {"", "2/0", "2/1", "5/0", "5/1"}
    assert peak_of(found.model.program) == found.reordering.peak == found.point.peak
    assert found.expansion.body_orders_before(found.reordering.orders) == {
        "2/0": (1, 0), "2/1": (2, 0, 1), "4/0": (1, 0), "4/1": found.reordering.orders["5/1"]
    }  # fmt: skip
    # Without time the bodies keep the orders for which the plan was made.
    hurried = order_expansion(found.expansion, bodies=found.ordering.orders, time_limit=0.0)
    assert hurried.peak <= found.point.peak
    assert scheduled_timeline(found.expansion.program, hurried.orders).peak == hurried.peak


def test_a_point_found_apart_joins_the_front_and_drops_what_it_beats() -> None:
    program = ladder(3, 4)
    problem = RerunProblem(program, tuple(range(len(program))))
    whole = front(problem)
    assert len(whole.points) > 3
    best = whole.points[2]
    dearer = replace(best, plan=replace(best.plan, extra_macs=best.extra_macs + 1))
    worse = replace(whole, points=(*whole.points[:2], dearer, *whole.points[3:]))
    assert worse.including(best).points == whole.points
    assert whole.including(dearer) is whole


@pytest.mark.parametrize("seed", [2, 7, 9, 14, 27])
def test_a_cheaper_plan_that_reaches_the_target_once_it_is_ordered_again_is_taken(seed: int) -> None:
    from peakmem.report.words import recomputed

    program = random_program(seed, 14)
    model = ProgramModel(program, None, program.digest)
    points = [p for p in recompute(model, max_extra_macs="100%", measure=False).front.points if p.plan.reruns]
    taken = 0
    for point in points:
        found = recompute(model, target_peak=point.peak, measure=False)
        _, outcome = reach(found.problems, point.peak)
        assert found.point.extra_macs <= outcome.plan.extra_macs
        order = found.reordering.orders[""]
        assert peak_of(found.expansion.program, order) == found.reordering.peak <= point.peak
        again = sum(s.cost for s in found.expansion.program.statements) - sum(s.cost for s in program.statements)
        assert again == found.point.extra_macs
        assert peak_of(found.model.program) <= point.peak
        if found.point.peak > point.peak:
            taken += 1
            assert f"exact for {found.point.peak:,} B in its base order" in recomputed(found)
    assert taken, "no target of this program shows it"


def test_a_program_is_enlarged_as_an_artifact_is_and_a_budget_takes_the_cheapest_plan_that_gets_as_low() -> None:
    helped = cheaper = 0
    for seed in range(8):
        program = random_program(seed, 10)
        model = ProgramModel(program, None, program.digest)
        whole = recompute(model, max_extra_macs="100%", measure=False)
        found = enlarge(program, whole.ordering.orders, max_extra_macs="100%")
        assert (found.ordered_peak, found.point, found.expansion) == (whole.ordering.peak, whole.point, whole.expansion)
        if found.expansion is None or found.point is None or found.reordering is None or found.front is None:
            continue
        helped += 1
        last = found.front.points[-1]
        again = order_expansion(expand(last.plan))
        assert peak_of(found.expansion.program, found.reordering.orders[""]) == found.reordering.peak <= again.peak
        assert found.point.extra_macs <= last.extra_macs
        cheaper += found.point.extra_macs < last.extra_macs
    assert helped
    assert cheaper, "no program shows the choice"
