"""The front, several base orders, and the refusal when a target is out of reach."""

from __future__ import annotations

import pytest
from peakmem.errors import Refused
from peakmem.recompute import Problem, base_orders, floor, front, least_peak, make_problems, reach, trace
from peakmem.recompute.generators import ladder, random_order, random_program
from peakmem.recompute.oracle import shortest_path


def brute(problem: Problem) -> list[tuple[int, int]]:
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
        problem = Problem(program, random_order(seed, program))
        found = front(problem, time_limit=60)
        assert found.complete
        assert [(p.peak, p.extra_macs) for p in found.points] == brute(problem)
        assert all(p.exact and trace(problem, p.plan.reruns).peak == p.peak for p in found.points)
        longest = max(longest, len(found.points))
    assert longest > 2


def test_several_base_orders_give_the_lower_envelope() -> None:
    better = 0
    for seed in range(40):
        program = random_program(seed, 6)
        problems = make_problems(program, [random_order(seed, program), *base_orders(program, range(6))])
        together = front(problems, time_limit=60)
        assert together.complete
        every = [pair for problem in problems for pair in brute(problem)]
        for p in together.points:
            assert (p.peak, p.extra_macs) in brute(problems[p.base])
            assert not any(peak <= p.peak and macs < p.extra_macs for peak, macs in every)
        better += any(p.base for p in together.points)
    assert better


def test_without_time_the_front_is_the_given_order_and_says_so() -> None:
    program = ladder(3, 4)
    found = front(Problem(program, tuple(range(len(program)))), time_limit=0.0)
    assert not found.complete
    assert found.points[0].extra_macs == 0


def test_ctrl_c_keeps_the_points_found(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    pareto = sys.modules["peakmem.recompute.pareto"]
    program = ladder(3, 4)
    problem = Problem(program, tuple(range(len(program))))
    whole = front(problem, time_limit=60)
    assert len(whole.points) > 3
    original, calls = pareto.solve, []

    def third_time(*arguments: object, **options: object) -> object:
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    monkeypatch.setattr(pareto, "solve", third_time)
    part = front(problem, time_limit=60)
    assert part.interrupted
    assert not part.complete
    assert {(p.peak, p.extra_macs) for p in whole.points[:3]} <= {(p.peak, p.extra_macs) for p in part.points}


def test_the_least_peak_is_where_the_front_ends() -> None:
    for seed in range(40):
        program = random_program(seed, 6)
        problem = Problem(program, random_order(seed, program))
        outcome = least_peak(problem, time_limit=60)
        assert outcome.status == "exact"
        assert outcome.plan is not None
        assert (outcome.plan.peak, outcome.plan.extra_macs) == brute(problem)[-1]


def test_a_target_below_the_floor_is_refused_with_the_floor_and_the_least_peak() -> None:
    program = ladder(2, 3)
    problem = Problem(program, tuple(range(len(program))))
    peak, macs = brute_end(problem)
    low = floor(program).size
    with pytest.raises(Refused) as error:
        reach([problem], low - 1, time_limit=60)
    assert error.value.exit_code == 1
    for part in (f"{low - 1:,} bytes", f"floor of {low:,} bytes", f"{peak:,} bytes for {macs:,} extra MACs"):
        assert part in str(error.value)


def brute_end(problem: Problem) -> tuple[int, int]:
    last = front(problem, time_limit=60).points[-1]
    return last.peak, last.extra_macs


def test_a_target_out_of_reach_is_refused_and_a_budget_is_named() -> None:
    program = ladder(2, 3)
    order = tuple(range(len(program)))
    points = front(Problem(program, order), time_limit=60).points
    assert len(points) > 2
    limited = Problem(program, order, max_extra_macs=points[1].extra_macs)
    with pytest.raises(Refused) as error:
        reach([limited], points[2].peak, time_limit=60)
    for part in (
        f"within {points[1].extra_macs:,} extra MACs",
        f"floor is {floor(program).size:,} bytes",
        f"{points[1].peak:,} bytes for {points[1].extra_macs:,} extra MACs",
    ):
        assert part in str(error.value)
    base, outcome = reach([Problem(program, order)], points[2].peak, time_limit=60)
    assert base == 0
    assert outcome.plan is not None
    assert outcome.plan.extra_macs == points[2].extra_macs
