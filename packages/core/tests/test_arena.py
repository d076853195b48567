"""Offsets: valid, no worse than greedy, exact where said so; lifetimes agree with the timeline."""

from __future__ import annotations

import random
import time
from itertools import permutations

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


def test_unavoidable_fragmentation():
    """Eight items of live peak 5 that need 6 bytes, whatever the offsets."""
    spans = [(0, 0, 4), (0, 2, 1), (1, 1, 3), (1, 3, 1), (2, 4, 2), (2, 2, 1), (3, 3, 2), (4, 4, 3)]
    items = [Item(f"{k}", size, first, last) for k, (first, last, size) in enumerate(spans)]
    assert liveness_peak(items) == 5
    placement = plan(items)
    assert placement.size == placement.lower_bound == 6
    assert least_arena(items) == 6


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
