"""Rows of several statements: memory half way through a row, against a statement-level shortest path and brute force."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest
from generators import random_order
from peakmem.model import Buffer, Kind, Program, Statement
from peakmem.transform.recompute import RerunProblem, expand, floor, make_plan, trace
from peakmem.transform.recompute.plan import Rerun
from slots import assert_least, early
from test_recompute_oracle import shortest_path


def random_chains(seed: int, statements: int) -> Program:
    """A small random program in which several statements, each with a source of its own, fill most buffers.

    Every buffer is begun by one statement, rewritten in place by up to two more or filled part by part, then left idle
    and read late: bringing it back takes a row of reruns, and memory half way through the row decides.
    """
    rng = random.Random(seed)
    buffers = [Buffer(f"in{i}", rng.randint(1, 4), "input", rng.random() < 0.5) for i in range(2)]
    rows: list[Statement] = []
    writers: dict[int, list[int]] = {0: [], 1: []}
    readers: dict[int, list[int]] = {0: [], 1: []}

    def add(reads: Sequence[int], writes: Sequence[int], workspace: int) -> None:
        needs = {w for b in (*reads, *writes) for w in writers[b]} | {r for b in writes for r in readers[b]}
        rows.append(
            Statement(f"s{len(rows)}", "S", tuple(reads), tuple(writes), tuple(sorted(needs)), workspace,
                      rng.choice([0, 1, 2, 5]))
        )
        for b in reads:
            if b not in writes:
                readers[b].append(len(rows) - 1)
        for b in writes:
            writers[b].append(len(rows) - 1)

    def fresh(size: int, kind: Kind = "intermediate") -> int:
        buffers.append(Buffer(f"b{len(buffers)}", size, kind, kind == "output"))
        writers[len(buffers) - 1], readers[len(buffers) - 1] = [], []
        return len(buffers) - 1

    idle: list[int] = []
    while len(rows) < statements - 2:
        if rng.random() < 0.3:
            idle.append(fresh(rng.randint(1, 5)))
            add([rng.choice([0, 1])], [idle[-1]], 0)
            continue
        b = fresh(rng.randint(4, 9))
        for part in range(rng.randint(2, 3)):
            source = rng.choice([0, 1, *idle])
            own = [b] if part and rng.random() < 0.7 else []
            also = [fresh(rng.randint(1, 4))] if rng.random() < 0.2 else []
            add([source, *own], [b, *also], rng.choice([0, 0, 2, 4]))
            idle += also
        idle.append(b)
    wide = fresh(1)
    add([rng.choice([0, 1])], [wide], rng.randint(6, 14))
    add([wide, *rng.sample(idle, min(len(idle), 3))], [fresh(1, "output")], 0)
    return Program(tuple(buffers), tuple(rows))


def chains(seed: int) -> RerunProblem:
    program = random_chains(seed, 4 + seed % 5)
    return RerunProblem(program, random_order(seed, program))


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
    assert_least(problem, target, price)


def test_all_methods_find_the_price_of_the_shortest_path() -> None:
    rows = 0
    for seed in range(20):
        problem = chains(seed)
        low, peak = floor(problem.program).size, trace(problem, ()).peak
        for target in {low, (low + peak) // 2, peak - 1} & set(range(low, peak)):
            assert_least(problem, target, shortest_path(problem, target))
        rows += any(any(early(u)) for u in problem.units)
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


def all_plans(problem: RerunProblem) -> Iterator[tuple[Rerun, ...]]:
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
            assert_least(problem, target, min((p.extra_macs for p in reached), default=None))
            compared += 1
            used += bool(reached)
    assert compared > 20
    assert used > 5
