"""Offsets: valid, no worse than greedy, exact where said so; lifetimes agree with the timeline."""

from __future__ import annotations

import random
import time
from itertools import permutations
from types import SimpleNamespace

import pytest
from peakmem.arena import (
    Item,
    check_placement,
    first_fit,
    greedy_by_size,
    greedy_portfolio,
    least_offsets,
    lifetimes,
    liveness_peak,
    plan,
)
from peakmem.model import Buffer, InputError, Program, Statement, scheduled_timeline


def random_items(rng: random.Random, n: int, steps: int = 6, unit: int = 1) -> list[Item]:
    items = []
    for i in range(n):
        first = rng.randrange(steps)
        items.append(Item(f"i{i}", unit * rng.randint(1, 5), first, min(steps - 1, first + rng.randrange(4))))
    return items


def least_arena(items: list[Item]) -> int:
    """Brute force: some optimal placement is a first fit in some sequence (push every item down, sort by offset)."""
    return min(
        max(o + i.size for o, i in zip(first_fit(items, sequence), items))
        for sequence in permutations(range(len(items)))
    )


def test_peak_by_definition():
    rng = random.Random(1)
    for _ in range(300):
        items = random_items(rng, rng.randint(1, 9))
        assert liveness_peak(items) == max(sum(i.size for i in items if i.first <= t <= i.last) for t in range(-1, 8))
    assert liveness_peak([]) == 0


def test_exact_against_brute_force():
    rng = random.Random(2)
    missed = fragmented = 0
    for _ in range(150):
        items = random_items(rng, rng.randint(3, 6))
        greedy = greedy_by_size(items)
        size = check_placement(items, greedy)
        placement = least_offsets(items, greedy)
        least = least_arena(items)
        assert check_placement(items, placement.offsets) == placement.size == least
        assert placement.least
        assert placement.lower_bound == least
        missed += size > least
        fragmented += least > liveness_peak(items)
    assert missed  # greedy is not always right, so the solver was needed


def fragmented(unit: int = 1) -> list[Item]:
    """Eight items of live peak 5 that need 6 bytes, whatever the offsets; in units."""
    spans = [(0, 0, 4), (0, 2, 1), (1, 1, 3), (1, 3, 1), (2, 4, 2), (2, 2, 1), (3, 3, 2), (4, 4, 3)]
    return [Item(f"{k}", size * unit, first, last) for k, (first, last, size) in enumerate(spans)]


def test_unavoidable_fragmentation():
    items = fragmented()
    assert liveness_peak(items) == 5
    placement = plan(items)
    assert placement.size == placement.lower_bound == 6
    assert least_arena(items) == 6


class Scripted:
    """A solver whose answers to the two questions (can the peak be reached? what is least?) are given."""

    def __init__(self, *answers: tuple[str, tuple[int, ...], float]) -> None:
        self.answers = list(answers)

    def __call__(self) -> Scripted:
        self.parameters = SimpleNamespace()
        self.status, self.offsets, self.best_objective_bound = self.answers.pop(0)
        return self

    def solve(self, model: object) -> int:
        from ortools.sat.python import cp_model

        return getattr(cp_model, self.status)

    def value(self, variable: object) -> int:
        return self.offsets[int(str(variable).removeprefix("offset"))]  # in the model's units, as a solver gives it


UNKNOWN, REFUTED = ("UNKNOWN", (), 0.0), ("INFEASIBLE", (), 0.0)
LEAST = (0, 4, 0, 3, 0, 2, 4, 2)  # of fragmented(): 6 units


@pytest.mark.parametrize(
    ("answers", "size", "bound"),
    [
        ((UNKNOWN, UNKNOWN), 9, 5),  # nothing found, nothing refuted: the peak is all that is known
        ((REFUTED, UNKNOWN), 9, 6),
        ((UNKNOWN, REFUTED), 9, 9),
        ((UNKNOWN, ("FEASIBLE", LEAST, 0.0)), 6, 5),  # found and stopped: no proof that it is least
        ((UNKNOWN, ("FEASIBLE", LEAST, 5.0)), 6, 5),
        ((UNKNOWN, ("FEASIBLE", LEAST, 5.1)), 6, 6),  # sizes are whole units
        ((REFUTED, ("FEASIBLE", LEAST, 3.0)), 6, 6),
        ((REFUTED, ("OPTIMAL", LEAST, 6.0)), 6, 6),
        ((UNKNOWN, ("OPTIMAL", LEAST, 6.0)), 6, 6),
    ],
)
@pytest.mark.parametrize("unit", [1, 16])
def test_a_solver_that_was_stopped_proves_nothing(monkeypatch, answers, size, bound, unit):
    from ortools.sat.python import cp_model

    items = fragmented(unit)
    assert check_placement(items, [unit * o for o in LEAST]) == 6 * unit
    incumbent = first_fit(items, (0, 5, 6, 3, 4, 1, 2, 7))
    assert check_placement(items, incumbent) == 9 * unit
    solver = Scripted(*answers)
    monkeypatch.setattr(cp_model, "CpSolver", solver)
    placement = least_offsets(items, incumbent)
    assert (placement.size, placement.lower_bound) == (size * unit, bound * unit)
    assert placement.least is (size == bound)
    assert not solver.answers


def test_little_effort_never_claims_too_much():
    """However early the real solver is stopped: no bound above what brute force reaches."""
    rng = random.Random(7)
    open_ones = 0
    for _ in range(25):
        items = random_items(rng, 6)
        worst = max(permutations(range(len(items))), key=lambda s: max(o + i.size for o, i in zip(first_fit(items, s), items)))
        least = least_arena(items)
        for effort in (1e-9, 1e-5, 1e-4):
            placement = least_offsets(items, first_fit(items, worst), effort=effort)
            assert liveness_peak(items) <= placement.lower_bound <= least <= placement.size
            open_ones += not placement.least
    assert open_ones


def test_a_gap_of_the_very_size_is_used():
    items = [Item("below", 16, 0, 2), Item("gone", 16, 1, 1), Item("above", 16, 1, 2), Item("fits", 16, 2, 2)]
    assert first_fit(items, range(4)) == (0, 16, 32, 16)


def test_plan_is_never_worse_than_any_greedy_rule():
    rng = random.Random(3)
    for _ in range(60):
        items = random_items(rng, 14, steps=10, unit=16)
        placement = plan(items, alignment=16)
        assert placement.size <= min(check_placement(items, o) for o in greedy_portfolio(items))
        assert placement.lower_bound >= liveness_peak(items)
        assert all(o % 16 == 0 for o in placement.offsets)
        assert plan(items, alignment=16) == placement


def test_edges():
    assert plan([]).size == 0
    assert plan([Item("a", 0, 0, 3), Item("b", 16, 0, 0)], alignment=16).size == 16
    assert plan([Item("a", 2**40, -1, -1), Item("b", 2**40, 0, 5)]).size == 2**40


def test_deadline_keeps_the_incumbent():
    rng = random.Random(4)
    items = random_items(rng, 60, steps=30, unit=16)
    placement = plan(items, alignment=16, deadline=time.monotonic())
    assert check_placement(items, placement.offsets) == placement.size


@pytest.mark.parametrize(
    ("offsets", "what"),
    [((0, 0), "overlap"), ((0, 15), "overlap"), ((-16, 16), "multiple"), ((8, 32), "multiple"), ((0,), "1 offsets")],
)
def test_what_is_no_placement(offsets, what):
    items = [Item("a", 16, 0, 1), Item("b", 16, 1, 2)]
    with pytest.raises(InputError, match=what):
        check_placement(items, offsets, alignment=1 if 15 in offsets else 16)


def random_program(rng: random.Random, depth: int = 1) -> Program:
    buffers = [Buffer("in", 16 * rng.randint(1, 4), "input", pinned=rng.random() < 0.3)]
    statements = []
    writer = {0: None}
    for v in range(rng.randint(1, 6)):
        reads = tuple(rng.sample(range(len(buffers)), k=min(len(buffers), rng.randint(1, 2))))
        output = rng.random() < 0.2
        buffers.append(Buffer(f"b{v}", 16 * rng.randint(1, 5), "output" if output else "intermediate", pinned=output))
        bodies = ()
        if depth and rng.random() < 0.3:
            bodies = tuple(random_program(rng, depth - 1) for _ in range(rng.randint(1, 2)))
        statements.append(
            Statement(
                f"s{v}",
                reads=reads,
                writes=(len(buffers) - 1,),
                dependences=tuple(sorted({writer[b] for b in reads} - {None})),
                workspace=16 * rng.choice((0, 0, 1, 3)),
                bodies=bodies,
            )
        )
        writer[len(buffers) - 1] = v
    return Program(tuple(buffers), tuple(statements))


def test_lifetimes_have_the_peak_of_the_timeline():
    rng = random.Random(5)
    for _ in range(400):
        program = random_program(rng, depth=2)
        items = lifetimes(program)
        assert liveness_peak(items) == scheduled_timeline(program, {}).peak
        assert len({i.name for i in items}) == len(items)


def test_lifetimes_follow_the_orders():
    program = Program(
        (Buffer("x", 16, "input"), Buffer("a", 64), Buffer("b", 32), Buffer("y", 16, "output", pinned=True)),
        (
            Statement("f", reads=(0,), writes=(1,)),
            Statement("g", reads=(0,), writes=(2,)),
            Statement("h", reads=(1, 2), writes=(3,), dependences=(0, 1)),
        ),
    )
    assert {i.name: (i.first, i.last) for i in lifetimes(program, {"": (1, 0, 2)})} == {
        "x": (0, 2), "a": (2, 3), "b": (1, 3), "y": (3, 3),
    }  # fmt: skip
