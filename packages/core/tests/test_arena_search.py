"""The canonical search: right answers, the same in both versions; plans that never get worse with effort."""

from __future__ import annotations

import csv
import random
import time
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import TypeVar

import pytest
from peakmem.arena import Item, Placement, check_placement, first_fit, liveness_peak, plan, spread
from peakmem.arena.canonical import PREORDERS, parts, search
from peakmem.arena.greedy import arena_size, greedy_by_size
from peakmem.arena.lowering import Lowering
from peakmem.model import InputError, Refused
from peakmem.system import compiled

HARD = Path(__file__).resolve().parents[4] / "shared" / "data" / "arena"
CAPACITY = 1_048_576
T = TypeVar("T")

needs_library = pytest.mark.skipif(compiled.library() is None, reason="needs the distribution peakmem-native, built and not switched off")


def both(monkeypatch: pytest.MonkeyPatch, run: Callable[[], T]) -> T:
    """What ``run`` gives, which must be the same with peakmem-native and without."""
    first = run()
    with monkeypatch.context() as patch:
        patch.setenv("PEAKMEM_PURE", "1")
        assert compiled.library() is None
        assert run() == first
    return first


def random_items(rng: random.Random, n: int, steps: int, largest: int = 5) -> list[Item]:
    items = []
    for i in range(n):
        first = rng.randrange(steps)
        items.append(Item(f"i{i}", rng.randint(0, largest), first, min(steps - 1, first + rng.randrange(4))))
    return items


def perfect(rng: random.Random, width: int, height: int, n: int) -> list[Item]:
    """A full rectangle cut into items at random: an arena of exactly ``height`` exists."""
    rectangles = [(0, width, 0, height)]
    while len(rectangles) < n:
        first, end, low, high = rectangles.pop(max(range(len(rectangles)), key=lambda k: (rng.random(), k)))
        if rng.random() < 0.5 and end - first > 1:
            cut = rng.randrange(first + 1, end)
            rectangles += [(first, cut, low, high), (cut, end, low, high)]
        elif high - low > 1:
            cut = rng.randrange(low + 1, high)
            rectangles += [(first, end, low, cut), (first, end, cut, high)]
        else:
            rectangles.append((first, end, low, high))
    rng.shuffle(rectangles)
    return [Item(f"{k}", high - low, first, end - 1) for k, (first, end, low, high) in enumerate(rectangles)]


def test_answers_against_brute_force(monkeypatch):
    """Some least placement is a first fit in some sequence (push every item down, sort by offset)."""
    monkeypatch.setenv("PEAKMEM_PURE", "1")
    rng = random.Random(1)
    answers: dict[str, int] = {}
    for _ in range(120):
        for part in parts(items := random_items(rng, rng.randint(2, 6), steps=5)):
            own = [items[i] for i in part.members]
            least = min(arena_size(own, first_fit(own, s)) for s in permutations(range(len(own))))
            for capacity in range(least - 2, least + 2):
                for preorder in range(len(PREORDERS)):
                    answer, offsets, left = search(part, preorder, capacity, 10_000)
                    answers[answer] = answers.get(answer, 0) + 1
                    assert left < 10_000
                    assert answer == ("found" if capacity >= least else "refuted")
                    assert answer == "refuted" or check_placement(own, offsets) <= capacity
    assert answers.keys() == {"found", "refuted"}


@needs_library
def test_both_versions_open_the_same_nodes(monkeypatch):
    rng = random.Random(2)
    answers: dict[str, int] = {}
    for k in range(300):
        items = random_items(rng, rng.randint(2, 12), rng.randint(2, 12)) if k % 3 else perfect(rng, 12, 30, 24)
        for part in parts(items):
            sizes = part.size
            capacity = liveness_peak(items) if k % 3 == 0 else rng.randint(max(sizes), sum(sizes))
            preorder, nodes = rng.randrange(len(PREORDERS)), rng.choice((1, 10, 30, 300))
            answer = both(monkeypatch, lambda part=part, rest=(preorder, capacity, nodes): search(part, *rest))[0]
            answers[answer] = answers.get(answer, 0) + 1
    assert min(answers.get(a, 0) for a in ("found", "refuted", "open")) > 10


@needs_library
def test_both_versions_lower_alike(monkeypatch):
    rng = random.Random(3)
    lowered = 0
    for _ in range(6):
        items = perfect(rng, 20, 60, 40)
        offsets = first_fit(items, range(len(items)))
        start = Placement(offsets, arena_size(items, offsets), liveness_peak(items))
        for nodes in (50, 1500):
            found = both(monkeypatch, lambda items=items, start=start, nodes=nodes: Lowering(items, start).run(nodes))
            assert check_placement(items, found.offsets) == found.size <= start.size
            lowered += found.size < start.size
    assert lowered


def test_bounds_of_the_search_are_true():
    """Eight items of live peak 5 that need 6 bytes: the search says so by itself."""
    spans = [(0, 0, 4), (0, 2, 1), (1, 1, 3), (1, 3, 1), (2, 4, 2), (2, 2, 1), (3, 3, 2), (4, 4, 3)]
    items = [Item(f"{k}", 16 * size, first, last) for k, (first, last, size) in enumerate(spans)]
    start = Placement(first_fit(items, (0, 5, 6, 3, 4, 1, 2, 7)), 144, 80)
    assert check_placement(items, start.offsets) == 144
    lowered = Lowering(items, start).run(10_000)
    assert (lowered.size, lowered.lower_bound) == (96, 96)
    content = Lowering(items, start, enough=100).run(10_000)
    assert content.size == 96 and content.lower_bound == 80  # nobody asked whether 80 can be reached


def test_more_effort_is_never_worse():
    rng = random.Random(4)
    lowered = 0
    for _ in range(6):
        items = perfect(rng, 12, 1000, 100)
        sizes = [plan(items, effort=effort).size for effort in (0.0, 0.1, 0.3, 0.5)]
        assert sizes == sorted(sizes, reverse=True)
        lowered += sizes[-1] < sizes[0]
    assert lowered


def test_a_course_in_pieces_is_the_course():
    items = perfect(random.Random(0), 8, 1000, 60)
    offsets = first_fit(items, range(len(items)))
    start = Placement(offsets, arena_size(items, offsets), liveness_peak(items))
    whole, pieces = Lowering(items, start), Lowering(items, start)
    sizes = [pieces.run(nodes).size for nodes in (1, 400, 600, 3000)]
    assert whole.run(4001) == pieces.best
    assert start.size == sizes[0] > sizes[2] > sizes[3]


def test_a_stop_keeps_what_there_is():
    items = perfect(random.Random(6), 60, 500, 150)
    assert check_placement(items, plan(items, deadline=time.monotonic()).offsets)

    def stop() -> bool:
        raise KeyboardInterrupt

    part = parts(items)[0]
    with pytest.raises(KeyboardInterrupt):  # the first question is asked at a whole number of pulses
        search(part, 0, liveness_peak(items), 1 << 14, stop)


def test_long_chains_are_no_problem_for_the_plain_version(monkeypatch):
    monkeypatch.setenv("PEAKMEM_PURE", "1")
    items = [Item(f"{k}", 1 + k % 3, k, k + 1) for k in range(1500)]
    (part,) = parts(items)
    answer, offsets, _ = search(part, 0, 10, 10_000)
    assert answer == "found" and check_placement(items, offsets) <= 10


def hard(name: str) -> list[Item]:
    path = HARD / f"{name}.{CAPACITY}.csv"
    if not path.is_file():
        pytest.skip("the shared data is not there")
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    return [Item(r["id"], int(r["size"]), int(r["lower"]), int(r["upper"]) - 1) for r in rows]


@needs_library
@pytest.mark.parametrize("name", "ACEGIJ")
def test_hard_cases_are_planned_alike(monkeypatch, name):
    """What the first 4,000 nodes do on the first sections of a hard case, and a plan that reaches the liveness peak soon."""
    items = hard(name)
    end = sorted(item.first for item in items)[len(items) // 2]
    some = [item for item in items if item.last < end]
    offsets = first_fit(some, range(len(some)))
    start = Placement(offsets, arena_size(some, offsets), liveness_peak(some))
    found = both(monkeypatch, lambda: Lowering(some, start).run(4_000))
    assert check_placement(some, found.offsets) == found.size < start.size
    if name == "C":
        assert both(monkeypatch, lambda: plan(items, effort=0.1)).least


@needs_library
@pytest.mark.parametrize("name", "ACEGIJ")
def test_hard_cases_fit(name):
    items = hard(name)
    assert arena_size(items, greedy_by_size(items)) > 1.1 * CAPACITY
    placement = plan(items, enough=CAPACITY)
    assert check_placement(items, placement.offsets) <= CAPACITY
    if name in "AEJ":  # without being told what is enough; the least that J needs is not known
        assert plan(items).size <= 1.05 * CAPACITY


def test_sizes_beyond_64_bits(monkeypatch):
    items = perfect(random.Random(8), 8, 40, 20)
    huge = [Item(item.name, item.size << 62, item.first, item.last) for item in items]
    offsets = first_fit(items, range(len(items)))
    small = Lowering(items, Placement(offsets, arena_size(items, offsets), 40)).run(2_000)
    start = Placement(tuple(offset << 62 for offset in offsets), arena_size(items, offsets) << 62, 40 << 62)
    large = both(monkeypatch, lambda: Lowering(huge, start).run(2_000))
    assert large.offsets == tuple(offset << 62 for offset in small.offsets)


def test_memories_hold_what_they_take():
    rng = random.Random(7)
    refused = used = 0
    for _ in range(60):
        items = random_items(rng, rng.randint(1, 14), steps=8)
        heat = [rng.randint(0, 3) for _ in items]
        groups = [rng.sample(range(len(items)), k=2)] if len(items) > 3 else []
        capacities = [rng.randint(0, 9), rng.randint(0, 9), liveness_peak(items) // 2 + 4]
        try:
            found = spread(items, capacities, heat=heat, contiguous=groups, effort=0.1)
        except Refused as error:
            assert "found no place in 3 memories" in str(error)
            refused += 1
            continue
        for m, capacity in enumerate(capacities):
            inside = [i for i in range(len(items)) if found.memory[i] == m]
            own = [group for group in groups if found.memory[group[0]] == m]
            at = [[inside.index(i) for i in group] for group in own]  # a torn group would not be found here
            placed = [items[i] for i in inside]
            size = check_placement(placed, [found.offsets[i] for i in inside], contiguous=at)
            assert size == found.sizes[m] <= capacity
        used += len(set(found.memory)) > 1
    assert refused and used


def test_the_hottest_come_first():
    items = [Item(name, 16, 0, 1) for name in "abc"]
    assert spread(items, [32, 32], heat=[1, 3, 2]).memory == (1, 0, 0)
    assert spread(items, [32, 32]).memory == (0, 0, 1)
    with pytest.raises(Refused, match="'c' the first"):
        spread(items, [32])
    with pytest.raises(InputError, match="2 heats for 3 items"):
        spread(items, [32], heat=[1, 2])
