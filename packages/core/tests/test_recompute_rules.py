"""Shortcuts that look right and are false, each with a program on which it gives a wrong answer.

None of them is used. The programs are kept so that nobody brings one in again.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

import pytest
from generators import random_order, random_program
from peakmem.model import Buffer, Program, Statement, timeline
from peakmem.transform.recompute import RerunProblem, expand, floor, make_plan, solve, trace
from peakmem.transform.recompute.horizon import Horizon
from slots import assert_least, tight_steps
from test_recompute_oracle import shortest_path

Rule = Callable[[int, int], bool]


def least(
    problem: RerunProblem,
    target: int,
    may_drop: Rule = lambda b, t: True,
    may_rerun: Rule = lambda u, t: True,
    forgetful: bool = False,
) -> int | None:
    """Least extra MACs where buffer ``b`` may be dropped, and unit ``u`` rerun, before step ``t`` only if the rule allows.

    ``forgetful``: a state gives way to one of no higher price with all its values, whatever that one has rerun.
    """
    program, n = problem.program, len(problem.order)
    size = [b.size for b in program.buffers]
    entry = frozenset(b for b, x in enumerate(program.buffers) if x.kind == "input" and (x.pinned or program.touchers[b]))
    start: tuple[int, frozenset[int], tuple[int, ...]] = (0, entry, ())
    best, tick = {start: 0}, itertools.count()
    queue = [(0, next(tick), start)]
    done: dict[int, list[frozenset[int]]] = {}
    while queue:
        cost, _, state = heapq.heappop(queue)
        if cost > best[state]:
            continue
        step, here, runs = state
        if forgetful and any(here < richer for richer in done.get(step, ())):
            continue
        done.setdefault(step, []).append(here)
        if step == n:
            return cost
        held = sum(size[b] for b in here)
        following = [
            (0, (step, here - {b}, runs)) for b in here if not program.buffers[b].pinned and may_drop(b, step)
        ]
        for i, u in enumerate(problem.units):
            if (
                u.ready < step <= u.deadline
                and runs.count(u.group) + 1 < problem.cap
                and here.issuperset(u.sources)
                and held + u.charge <= target
                and may_rerun(i, step)
            ):
                following.append((u.cost, (step, here | set(u.delivers), tuple(sorted((*runs, u.group))))))
        v = problem.order[step]
        touched = set(program.touched[v])
        old = {b for b in touched if problem.born[b] < step and size[b]}
        if here >= old and problem.charged[v] + sum(size[b] for b in here | touched) <= target:
            following.append((0, (step + 1, here | touched, runs)))
        for price, then in following:
            if cost + price < best.get(then, cost + price + 1):
                best[then] = cost + price
                heapq.heappush(queue, (cost + price, next(tick), then))
    return None


def problem_of(seed: int, statements: int) -> RerunProblem:
    return RerunProblem(random_program(seed, statements), tuple(range(statements)))


def over(problem: RerunProblem, target: int) -> list[int]:
    return [i for i, b in enumerate(timeline(problem.program, problem.order).bytes_at) if b > target]


def answers(problem: RerunProblem, target: int) -> int | None:
    """What everybody who is right says."""
    truth = least(problem, target)
    assert shortest_path(problem, target) == truth
    assert_least(problem, target, truth, tree=False)
    return truth


def test_false_values_not_live_across_a_step_over_the_target_need_not_be_dropped() -> None:
    problem, target = problem_of(133, 4), 18
    alive = timeline(problem.program, problem.order)
    crossing = {
        b
        for b in range(len(problem.program.buffers))
        for s in over(problem, target)
        if alive.first[b] < s < alive.last[b] and b not in problem.program.touched[problem.order[s]]
    }
    assert answers(problem, target) == 6
    assert least(problem, target, may_drop=lambda b, t: b in crossing or problem.last_use[b] < t) is None


def test_false_a_value_past_its_last_reader_is_absent() -> None:
    problem, target = problem_of(5, 3), 19
    assert answers(problem, target) == 0

    def sources_live(u: int, gap: int) -> bool:
        return all(problem.last_use[b] >= gap for b in problem.units[u].sources)

    assert least(problem, target, may_rerun=sources_live) is None


def test_false_a_candidate_costs_its_whole_chain() -> None:
    problem, target = problem_of(8, 4), 15
    assert answers(problem, target) == 5

    def chain(u: int) -> int:
        seen, stack = {u}, [u]
        while stack:
            for b in problem.units[stack.pop()].sources:
                new = set(problem.units_of.get(b, ())) - seen
                seen |= new
                stack.extend(new)
        return sum(problem.units[i].cost for i in seen)

    assert least(problem, target, may_rerun=lambda u, _: chain(u) <= 5) is None


def test_false_reruns_come_after_the_first_step_over_the_target() -> None:
    problem, target = problem_of(110, 5), 27
    assert answers(problem, target) == 9
    first = over(problem, target)[0]
    assert least(problem, target, may_rerun=lambda _, gap: gap > first) is None


def test_false_more_values_for_no_more_macs_dominate_whatever_has_been_rerun() -> None:
    problem, target = problem_of(176, 7), 24
    assert answers(problem, target) == 2

    assert least(problem, target, forgetful=True) is None


def test_the_relaxation_alone_is_not_the_answer() -> None:
    """Memory enforced at base steps only: a lower bound that some programs do not reach."""
    from peakmem.transform.recompute.integer import solve_integer
    from peakmem.transform.recompute.retention import build

    settled = below = 0
    for seed in range(250):
        problem = problem_of(seed, 6)
        for target in range(floor(problem.program).size, trace(problem, ()).peak):
            horizon = Horizon(problem, target)
            model = build(horizon, tight_steps(horizon))
            bound = None if model is None else solve_integer(model, budget=None, time_limit=600).bound
            truth = shortest_path(problem, target)
            if truth is None or bound == truth:
                settled += 1
            else:
                assert bound is not None
                assert bound < truth
                below += 1
            if bound is None:
                assert truth is None
    assert 0 < below < settled


# -- buffers with several writers -----------------------------------------------------------------------------------


def chain_program() -> Program:
    """``conv`` writes b, ``relu`` rewrites it in place, ``early`` and ``late`` read it; ``wide`` is the peak."""
    return Program(
        (
            Buffer("x", 1, "input", True),
            Buffer("b", 8),
            Buffer("e", 2),
            Buffer("w", 9),
            Buffer("n", 1),
            Buffer("y", 1, "output", True),
        ),
        (
            Statement("conv", "Conv", (0,), (1,), (), cost=7),
            Statement("relu", "Relu", (1,), (1,), (0,)),
            Statement("early", "Pool", (1,), (2,), (1,)),
            Statement("wide", "Up", (2,), (3,), (2,)),
            Statement("narrow", "Pool", (3,), (4,), (3,)),
            Statement("late", "Add", (1, 4), (5,), (1, 4)),
        ),
    )


def test_a_buffer_rewritten_in_place_comes_back_by_rerunning_all_its_writers() -> None:
    program = chain_program()
    problem = RerunProblem(program, tuple(range(6)))
    assert trace(problem, ()).peak == 20
    outcome = solve(problem, 12)
    assert outcome.status == "exact"
    assert outcome.plan is not None
    assert outcome.plan.extra_macs == 7
    enlarged = expand(outcome.plan)
    names = [s.name for s in enlarged.program.statements]
    assert names == ["conv", "relu", "early", "wide", "narrow", "conv#2", "relu#2", "late"]
    assert [b.name for b in enlarged.program.buffers][-1] == "b#2"


def test_a_rerun_between_two_writers_repeats_only_those_that_have_run() -> None:
    program = chain_program()
    rows = list(program.statements)
    # The same, but the in-place statement stands right before the late reader, and the early reader before it.
    order = ["conv", "early", "wide", "narrow", "relu", "late"]
    early = Statement("early", "Pool", (1,), (2,), (0,))
    by_name = {s.name: s for s in rows} | {"early": early}
    by_name["wide"] = Statement("wide", "Up", (2,), (3,), (1,))
    by_name["narrow"] = Statement("narrow", "Pool", (3,), (4,), (2,))
    by_name["relu"] = Statement("relu", "Relu", (1,), (1,), (0, 1))
    by_name["late"] = Statement("late", "Add", (1, 4), (5,), (3, 4))
    problem = RerunProblem(Program(program.buffers, tuple(by_name[name] for name in order)), tuple(range(6)))
    outcome = solve(problem, 12)
    assert outcome.plan is not None
    assert outcome.plan.extra_macs == 7
    assert [s.name for s in expand(outcome.plan).program.statements] == [
        "conv", "early", "wide", "narrow", "conv#2", "relu", "late",
    ]  # fmt: skip


def test_nothing_is_rerun_from_a_source_that_was_overwritten() -> None:
    program = Program(
        (Buffer("s", 4), Buffer("b", 8), Buffer("w", 9), Buffer("y", 1, "output", True), Buffer("x", 1, "input", True)),
        (
            Statement("fill", "Fill", (4,), (0,), ()),
            Statement("read", "Conv", (0,), (1,), (0,), cost=1),
            Statement("clobber", "Fill", (0,), (0,), (0, 1)),
            Statement("use", "Up", (1,), (2,), (1,)),
            Statement("again", "Add", (0, 1, 2), (3,), (1, 2, 3)),
        ),
    )
    problem = RerunProblem(program, tuple(range(5)))
    unit = next(u for u in problem.units if u.delivers == (1,))
    assert unit.deadline == 2


def test_who_rewrites_a_copy_waits_for_all_its_readers_in_the_same_row() -> None:
    program = Program(
        (Buffer("x", 1, "input", True), Buffer("b", 5), Buffer("c", 3), Buffer("y", 1, "output", True)),
        (
            Statement("first", "Fill", (0,), (1, 2), ()),
            Statement("second", "Mix", (1, 2), (1,), (0,)),
            Statement("third", "Relu", (2,), (2,), (1,)),
            Statement("end", "Add", (1, 2), (3,), (1, 2)),
        ),
    )
    problem = RerunProblem(program, tuple(range(4)))
    row = next(i for i, u in enumerate(problem.units) if u.members == (0, 1))
    enlarged = expand(make_plan(problem, [(2, row)])).program
    names = [s.name for s in enlarged.statements]
    assert names == ["first", "second", "first#2", "second#2", "third", "end"]
    assert {names[d] for d in enlarged.statements[4].dependences} >= {"first#2", "second#2"}


def test_a_part_that_somebody_else_wrote_cannot_be_brought_back() -> None:
    """``second`` reads an output that ``outside`` and ``first`` have filled; ``first`` and ``second`` share ``b``."""
    program = Program(
        (Buffer("x", 1, "input", True), Buffer("b", 5), Buffer("c", 3, "output", True), Buffer("y", 1, "output", True)),
        (
            Statement("outside", "Fill", (0,), (2,), ()),
            Statement("first", "Fill", (0,), (1, 2), (0,)),
            Statement("second", "Mix", (1, 2), (1,), (1,)),
            Statement("end", "Add", (1,), (3,), (2,)),
        ),
    )
    units = RerunProblem(program, tuple(range(4))).units
    assert [u.members for u in units] == [(1,)]


def test_units_that_need_each_other_do_not_run_in_a_row() -> None:
    """``a`` and ``b`` each have two writers, and the second writer of each reads the other's."""
    program = Program(
        (Buffer("x", 1, "input", True), Buffer("a", 3), Buffer("b", 3), Buffer("p", 2), Buffer("q", 2),
         Buffer("y", 1, "output", True)),
        (
            Statement("a1", "A", (0,), (1, 3), ()),
            Statement("b1", "B", (0,), (2, 4), ()),
            Statement("a2", "A", (1, 4), (1,), (0, 1)),
            Statement("b2", "B", (2, 3), (2,), (0, 1)),
            Statement("end", "E", (1, 2), (5,), (2, 3)),
        ),
    )  # fmt: skip
    problem = RerunProblem(program, tuple(range(5)))
    position = {u: i for i, u in enumerate(problem.units)}
    for u in problem.units:
        for b in u.sources:
            for m in problem.units_of.get(b, ()):
                if problem.units[m].ready < u.deadline:
                    assert m < position[u]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"cap": 0}, "cap: 0 is below 1"),
        ({"max_extra_macs": -1}, "extra MACs: -1 is negative"),
        ({"thresholds": {"Cnov": 4}}, "no operator 'Cnov'"),
        ({"thresholds": {"Conv": -4}}, "-4 bytes for 'Conv' is negative"),
    ],
)
def test_bad_settings_are_refused_in_one_sentence(change: dict[str, object], sentence: str) -> None:
    from peakmem.model import UsageError

    with pytest.raises(UsageError, match=sentence) as error:
        RerunProblem(chain_program(), tuple(range(6)), **change)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("text", "value"), [("0.5%", 500), ("100%", 100_000), ("0", 0), ("250_000", 250_000)])
def test_budgets_are_macs_or_a_share(text: str, value: int) -> None:
    from peakmem.transform.recompute import parse_extra_macs

    assert parse_extra_macs(text, 100_000) == value


@pytest.mark.parametrize("text", ["101%", "-1%", "-5", "much", "", "nan%", "%"])
def test_other_budgets_are_refused(text: str) -> None:
    from peakmem.model import UsageError
    from peakmem.transform.recompute import parse_extra_macs

    with pytest.raises(UsageError):
        parse_extra_macs(text, 100_000)


def test_thresholds_and_impure_statements_keep_values_where_they_are() -> None:
    program = chain_program()
    assert solve(RerunProblem(program, tuple(range(6)), thresholds={"Conv": 7}), 12).status == "exact"
    assert solve(RerunProblem(program, tuple(range(6)), thresholds={"Conv": 8}), 12).status == "infeasible"
    rows = list(program.statements)
    rows[0] = Statement("conv", "Conv", (0,), (1,), (), cost=7, pure=False)
    random = RerunProblem(Program(program.buffers, tuple(rows)), tuple(range(6)))
    assert random.excluded == {"Conv": 1}
    assert solve(random, 12).status == "infeasible"
    assert make_plan(random, ()).peak == 20


def test_a_group_may_rerun_up_to_its_last_gap_and_its_count_matters_until_then() -> None:
    program = random_program(1109, 6, in_place=True)
    problem, target = RerunProblem(program, random_order(1109, program)), 14
    assert answers(problem, target) == 9
