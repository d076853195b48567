"""Rows of several statements: memory half way through a row, against a statement-level shortest path and brute force."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator

import pytest
from peakmem.model import Program
from peakmem.transform.recompute import Problem, expand, floor, make_plan, solve, trace
from peakmem.transform.recompute.generators import random_chains, random_order, random_program
from peakmem.transform.recompute.oracle import shortest_path
from peakmem.transform.recompute.plan import Rerun

METHODS = ("auto", "frontier", "milp", "treewidth")


def chains(seed: int) -> Problem:
    program = random_chains(seed, 4 + seed % 5)
    return Problem(program, random_order(seed, program))


def check(problem: Problem, target: int, truth: int | None) -> None:
    for method in METHODS:
        outcome = solve(problem, target, time_limit=60, method=method)  # type: ignore[arg-type]
        if method == "treewidth" and outcome.status == "gap":
            continue  # too wide
        assert outcome.status == ("infeasible" if truth is None else "exact"), (method, target)
        if truth is not None:
            assert outcome.plan is not None
            assert outcome.plan.extra_macs == outcome.lower_bound == truth
            assert outcome.plan.peak <= target


@pytest.mark.parametrize(
    ("seed", "target", "price"),
    [
        (33, 27, 4), (34, 21, 22), (43, 24, 8), (47, 23, 4), (50, 19, 2), (64, 26, 7), (72, 21, 1), (112, 26, 1),
        (113, 18, 8), (143, 15, 6), (181, 18, 2), (187, 20, 12),
    ],
)  # fmt: skip
def test_a_source_may_go_after_its_last_reader_in_the_row(seed: int, target: int, price: int) -> None:
    """A model that holds all sources, or all that is delivered, through the whole row calls these dearer or impossible."""
    problem = chains(seed)
    assert shortest_path(problem, target) == price
    check(problem, target, price)


def test_all_methods_find_the_price_of_the_shortest_path() -> None:
    rows = 0
    for seed in range(40):
        problem = chains(seed)
        low, peak = floor(problem.program).size, trace(problem, ()).peak
        for target in {low, (low + peak) // 2, peak - 1} & set(range(low, peak)):
            check(problem, target, shortest_path(problem, target))
        rows += any(any(u.early) for u in problem.units)
    assert rows > 10  # otherwise this test says nothing


def peak_of(program: Program) -> int:
    """Peak by allocating and freeing; shares nothing with the library."""
    last = {b: v for v, s in enumerate(program.statements) for b in (*s.reads, *s.writes)}
    held = {b for b, x in enumerate(program.buffers) if x.kind == "input" and (x.pinned or b in last)}
    peak = 0
    for v, s in enumerate(program.statements):
        held |= {*s.reads, *s.writes}
        peak = max(peak, s.workspace + sum(program.buffers[b].size for b in held))
        held -= {b for b in held if last.get(b) == v and not program.buffers[b].pinned}
    return peak


def all_plans(problem: Problem) -> Iterator[tuple[Rerun, ...]]:
    """Every list of reruns under a cap of 2: a unit and a gap for each group, or none, in every order inside a gap."""
    groups: dict[int, list[Rerun | None]] = {}
    for i, u in enumerate(problem.units):
        groups.setdefault(u.group, [None]).extend((gap, i) for gap in range(u.ready + 1, u.deadline + 1))
    for chosen in itertools.product(*groups.values()):
        reruns = [r for r in chosen if r is not None]
        gaps: dict[int, list[Rerun]] = {}
        for r in sorted(reruns):
            gaps.setdefault(r[0], []).append(r)
        for parts in itertools.product(*(itertools.permutations(g) for g in gaps.values())):
            yield tuple(r for part in parts for r in part)


def test_no_list_of_reruns_is_cheaper_than_the_answer() -> None:
    """Each list is written out as a program with copies, which is then simulated."""
    compared = used = 0
    for seed in range(0, 100, 5):
        problem = chains(seed)  # four statements
        plans = list(itertools.islice(all_plans(problem), 3001))
        if len(plans) > 3000 or not any(len(u.members) > 1 for u in problem.units):
            continue
        known = [(peak_of(expand(make_plan(problem, r)).program), make_plan(problem, r)) for r in plans]
        for target in range(floor(problem.program).size, trace(problem, ()).peak):
            reached = [plan for peak, plan in known if peak <= target]
            check(problem, target, min((p.extra_macs for p in reached), default=None))
            compared += 1
            used += bool(reached)
    assert compared > 20
    assert used > 5


def test_too_few_slots_never_prove_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer slots than reruns in a gap the model lacks solutions, so that it has none is no proof."""
    solver = sys.modules["peakmem.transform.recompute.solver"]
    monkeypatch.setattr(solver, "SLOTS", 1)
    monkeypatch.setattr(solver, "_frontier", lambda *_: False)
    for seed, target in ((491, 38), (491, 39), *((s, t) for s in range(0, 60, 6) for t in (20, 25, 30))):
        program = random_program(seed, 4 + seed % 4, in_place=seed % 2 == 0)
        problem = Problem(program, random_order(seed, program), cap=2 + seed % 2)
        outcome, truth = solve(problem, target, time_limit=60), shortest_path(problem, target)
        assert truth is None or (outcome.status != "infeasible" and outcome.lower_bound <= truth)
        assert outcome.status != "exact" or (outcome.plan is not None and outcome.plan.extra_macs == truth)
