"""Offsets: valid, no worse than greedy, exact where said so; lifetimes agree with the timeline."""

from __future__ import annotations

import random
import time
from itertools import combinations, pairwise, permutations
from types import SimpleNamespace
from typing import Any

import pytest
from peakmem.arena import (
    Item,
    Placement,
    check_placement,
    first_fit,
    greedy_by_size,
    greedy_portfolio,
    least_offsets,
    lifetimes,
    liveness_peak,
    plan,
)
from peakmem.arena.greedy import arena_size, relations
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


def least_bytes(items: list[Item], pairs: set[tuple[int, int]], groups: list[list[int]], forced: bool = False) -> int:
    """Least arena by trying every offset of every item, byte by byte of every step."""
    steps = range(min(i.first for i in items), max(i.last for i in items) + 1)
    follows = {j: i for group in groups for i, j in pairwise(group)}
    ranked = sorted(range(len(items)), key=lambda k: (k in follows, next((g.index(k) for g in groups if k in g), 0)))

    def together(i: int, j: int, at: list[int]) -> bool:
        for t in steps:
            if items[i].first <= t <= items[i].last and items[j].first <= t <= items[j].last:
                mine = set(range(at[i], at[i] + items[i].size))
                if mine & set(range(at[j], at[j] + items[j].size)):
                    for a, o in ((i, j), (j, i)):
                        if (a, o) in pairs and t == items[a].last == items[o].first and at[i] == at[j]:
                            break
                    else:
                        return False
        return True

    def place(height: int, k: int, at: list[int]) -> bool:
        if k == len(ranked):
            return not forced or all(at[a] == at[o] for a, o in pairs)
        i = ranked[k]
        wanted = range(height - items[i].size + 1)
        if i in follows:
            wanted = [x for x in wanted if x == at[follows[i]] + items[follows[i]].size]
        for at[i] in wanted:
            if all(together(i, j, at) for j in ranked[:k]) and place(height, k + 1, at):
                break
        else:
            return False
        return True

    return next(h for h in range(sum(i.size for i in items) + 1) if place(h, 0, [0] * len(items)))


def staircase(*spans: tuple[int, int, int]) -> list[Item]:
    return [Item(f"i{k}", size, first, last) for k, (first, last, size) in enumerate(spans)]


@pytest.mark.parametrize(
    ("items", "pairs", "liveness", "least", "forced"),
    [
        # one item of the union of lives and the largest size would need 4
        (staircase((1, 2, 2), (2, 3, 1), (3, 3, 2)), [(0, 1)], 3, 3, 3),
        # permissions, not orders: with both taken it needs 6
        (staircase((0, 2, 2), (0, 3, 3), (2, 4, 1), (3, 4, 1), (4, 4, 3)), [(0, 2), (1, 3)], 5, 5, 6),
        # above the liveness peak because of the shared byte
        (staircase((0, 1, 2), (0, 1, 3), (1, 2, 1), (1, 2, 1), (2, 2, 3)), [(0, 2), (1, 3)], 5, 6, 6),
    ],
)
def test_counter_examples_of_overlays(items, pairs, liveness, least, forced):
    assert liveness_peak(items, pairs) == liveness
    assert least_bytes(items, set(pairs), []) == least
    assert least_bytes(items, set(pairs), [], forced=True) == forced
    placement = plan(items, may_share=pairs)
    assert check_placement(items, placement.offsets, may_share=pairs) == placement.size == least
    assert placement.least


def random_pairs(rng: random.Random, items: list[Item]) -> list[tuple[int, int]]:
    meet = [(a, o) for a in range(len(items)) for o in range(len(items)) if a != o and items[a].last == items[o].first]
    return rng.sample(meet, k=min(len(meet), rng.randint(1, 4)))


def test_shared_first_bytes_against_brute_force():
    rng = random.Random(8)
    shared = saved = chains = 0
    for _ in range(150):
        items = random_items(rng, rng.randint(2, 5), steps=4)
        pairs = random_pairs(rng, items)
        meet = {(a, o) for a, o in pairs if items[a].first < items[a].last}
        least = least_bytes(items, meet, [])
        peak = liveness_peak(items, pairs)
        assert peak <= least
        known = relations(items, pairs)
        best = min(greedy_portfolio(items, known), key=lambda o: arena_size(items, o))
        assert check_placement(items, best, may_share=pairs) == arena_size(items, best) >= least
        placement = least_offsets(items, best, may_share=pairs)
        assert check_placement(items, placement.offsets, may_share=pairs) == placement.size == least == placement.lower_bound
        shared += any(placement.offsets[a] == placement.offsets[o] for a, o in meet)
        saved += least < least_bytes(items, set(), [])
        chains += any(a == o for a, _ in meet for _, o in meet)
    assert shared and saved and chains


def test_liveness_with_pairs_by_definition():
    """At one step a saving is a matching: brute force over all sets of pairs in which nothing occurs twice."""
    rng = random.Random(9)
    several = 0
    for _ in range(300):
        items = random_items(rng, rng.randint(2, 7), steps=3)
        pairs = random_pairs(rng, items)
        peaks = []
        for t in range(6):
            meet = [(a, o) for a, o in pairs if items[a].first < items[a].last == items[o].first == t]
            gains = [
                sum(min(items[a].size, items[o].size) for a, o in chosen)
                for k in range(len(meet) + 1)
                for chosen in combinations(meet, k)
                if len({x for pair in chosen for x in pair}) == 2 * k
            ]
            peaks.append(sum(i.size for i in items if i.first <= t <= i.last) - max(gains))
            several += len({a for a, _ in meet}) > 1 and len({o for _, o in meet}) > 1
        assert liveness_peak(items, pairs) == max(peaks)
    assert several


def test_what_a_pair_permits():
    items = [Item("a", 32, 0, 1), Item("o", 16, 1, 3), Item("later", 16, 2, 3)]
    assert check_placement(items, (0, 0, 16), may_share=[(0, 1)]) == 32
    with pytest.raises(InputError, match=r"overlap in time and in bytes$"):
        check_placement(items, (0, 0, 16))
    with pytest.raises(InputError, match="first byte"):
        check_placement(items, (0, 16, 32), may_share=[(0, 1)])
    with pytest.raises(InputError, match="overlap"):  # declared the wrong way round
        check_placement(items, (0, 0, 16), may_share=[(1, 0)])
    for first, last in ((0, 2), (0, 0), (1, 1)):  # lives on; died before; not there before
        other = [Item("a", 32, first, last), *items[1:]]
        assert liveness_peak(other, [(0, 1)]) == liveness_peak(other)
        if last:
            with pytest.raises(InputError, match="overlap"):
                check_placement(other, (0, 0, 16), may_share=[(0, 1)])
    for pair in ((0, 3), (-1, 1), (1, 1)):
        with pytest.raises(InputError, match="does not name two"):
            plan(items, may_share=[pair])


def test_contiguous_parts_against_brute_force():
    rng = random.Random(10)
    dearer = shared = 0
    for _ in range(150):
        items = random_items(rng, rng.randint(3, 5), steps=4)
        numbers = rng.sample(range(len(items)), k=len(items))
        groups = [numbers[:2], numbers[2:4]] if rng.random() < 0.3 else [numbers[: rng.randint(2, 3)]]
        pairs = random_pairs(rng, items) if rng.random() < 0.5 else []
        meet = {(a, o) for a, o in pairs if items[a].first < items[a].last}
        least = least_bytes(items, meet, groups)
        known = relations(items, pairs, groups)
        for offsets in greedy_portfolio(items, known):
            assert check_placement(items, offsets, may_share=pairs, contiguous=groups) >= least
        placement = least_offsets(items, offsets, may_share=pairs, contiguous=groups)
        assert check_placement(items, placement.offsets, may_share=pairs, contiguous=groups) == placement.size
        assert placement.size == least == placement.lower_bound
        planned = plan(items, may_share=pairs, contiguous=groups)
        assert planned.size == planned.lower_bound == least
        dearer += least > least_bytes(items, meet, [])
        shared += any(placement.offsets[a] == placement.offsets[o] for a, o in meet)
    assert dearer and shared


def test_what_is_no_contiguous_group():
    items = [Item("a", 16, 0, 1), Item("b", 16, 1, 2), Item("c", 16, 2, 2)]
    assert check_placement(items, (0, 16, 32), contiguous=[[0, 1, 2]]) == 48
    assert plan(items, contiguous=[[0, 1, 2]]).size == 48  # never all resident at once, yet side by side
    with pytest.raises(InputError, match="'b' does not follow 'a'"):
        check_placement(items, (0, 32, 16), contiguous=[[0, 1]])
    for groups, what in (([[0, 3]], "not among"), ([[0, 1], [1, 2]], "twice"), ([[0, 0]], "twice")):
        with pytest.raises(InputError, match=what):
            plan(items, contiguous=groups)


def test_ctrl_c_keeps_what_was_found_for_several_memories(monkeypatch: pytest.MonkeyPatch) -> None:
    from peakmem.arena import memories

    items = [Item(f"i{k}", 8 * (k % 5 + 1), k % 7, k % 7 + 3) for k in range(30)]
    planned = memories.plan

    def interrupted(*arguments: Any, found: Any, **settings: Any) -> Placement:
        if settings["effort"]:
            planned(*arguments, **{**settings, "effort": 0.0}, found=found)
            raise KeyboardInterrupt
        return planned(*arguments, **settings, found=found)

    monkeypatch.setattr(memories, "plan", interrupted)
    found = memories.spread(items, [120, 10_000])
    assert found.interrupted
    assert set(found.memory) == {0, 1}
    for m, size in enumerate(found.sizes):
        inside = [k for k in range(len(items)) if found.memory[k] == m]
        check_placement([items[k] for k in inside], [found.offsets[k] for k in inside])
        assert size <= [120, 10_000][m]
    monkeypatch.setattr(memories, "plan", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):  # nothing was found
        memories.spread(items, [120, 10_000])


def test_bytes_saved_at_one_step_are_a_heaviest_matching(monkeypatch: pytest.MonkeyPatch) -> None:
    nx = pytest.importorskip("networkx", reason="needs networkx: pip install networkx")
    from peakmem.arena import items as module

    for seed in range(300):
        rng = random.Random(seed)
        items = [Item(f"i{k}", rng.randint(1, 9), 0, 1) for k in range(12)]
        pairs = sorted({(rng.randrange(6), 6 + rng.randrange(6)) for _ in range(rng.randint(1, 14))})
        graph = nx.Graph()
        for a, o in pairs:
            graph.add_edge(a, o, weight=min(items[a].size, items[o].size))
        most = sum(graph.edges[edge]["weight"] for edge in nx.max_weight_matching(graph))
        assert module._saved(items, pairs) == most
        with monkeypatch.context() as patch:
            patch.setattr(module, "MOST_MATCHED", 1)
            assert module._saved(items, pairs) >= most
