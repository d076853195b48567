"""Statements that sound right and are false, each with a small program found by random search.

The true form of each is checked beside it, on the same program and on many random ones.
"""

from __future__ import annotations

import random

import falsehoods as f
from oracles import bottleneck, build, programs


def test_lazy_heap_of_stale_prices() -> None:
    """Stale prices are upper bounds: popping the least of them, as a lazy heap does, proves what is not so."""
    program = build("@a=1 @b=2 x=2", "A b >", "B a > x", "C > x | after A | use 1")
    assert f.trap_value(program, lazy=True) > bottleneck(program)
    assert f.trap_value(program, lazy=False) <= bottleneck(program)
    for _, other in programs(20, 80, range(2, 7)):
        assert f.trap_value(other, lazy=False) <= bottleneck(other)


def test_jump_to_a_state_that_merely_holds_no_more() -> None:
    """rest(T) <= rest(S) is not enough: running A and B holds one byte before and after, but only after B alone is
    there room for C."""
    program = build("@in=1 !out=1", "A > out", "B in >", "C > | use 1")
    c = f.Completions(program)
    s, t = frozenset[int](), frozenset({0, 1})
    assert t in c.reached_from(s, 1)
    assert c.model.rest(t) <= c.model.rest(s)
    assert c.least(s) == 1
    assert c.least(t) == 2
    assert c.model.rest(frozenset({1})) < c.model.rest(t)  # so T does not hold the least on the way
    for _, other in programs(21, 150, range(2, 6)):
        assert not f.jump_to_least(other)


def test_safe_move_keeps_the_budget_not_the_optimum() -> None:
    """A is safe for two bytes; taken at once it costs two, after B only one."""
    program = build("@in=1", "A > | use 1", "B in >")
    c = f.Completions(program)
    s = frozenset[int]()
    assert c.model.rest(frozenset({0})) <= c.model.rest(s)
    assert c.least(s) == 1
    assert max(c.model.mem(s, 0), c.least(frozenset({0}))) == 2
    for _, other in programs(22, 200, range(2, 6)):
        assert not f.move_keeps_feasibility(other)


def test_decomposition_forgets_what_leaves_the_first_part() -> None:
    """An input read before and after the gate stays to the end of the first part."""
    program = build("@in=1", "A in >", "B > | use 1", "gate > | after A B", "D in > | after gate")
    assert f.decomposed(program, 2, "shared") < f.decomposed(program, 2) == bottleneck(program) == 2


def test_decomposition_forgets_what_is_needed_later() -> None:
    """An input that only the second part reads is there during the first."""
    program = build("@in=1", "A > | use 1", "gate in > | after A", "C > | after gate")
    assert f.decomposed(program, 1, "later") < f.decomposed(program, 1) == bottleneck(program) == 2


def test_decomposition_forgets_what_is_kept() -> None:
    """A pinned buffer of the first part is there during the second."""
    program = build("@!in=1", "A >", "gate > | after A", "C > | after gate | use 1")
    assert f.decomposed(program, 1, "pinned") < f.decomposed(program, 1) == bottleneck(program) == 2


def test_decomposition_with_all_charges_is_exact() -> None:
    split = 0
    for _, program in programs(23, 1500, range(3, 9)):
        c = f.middle(program)
        if c is not None:
            split += 1
            assert f.decomposed(program, c) == bottleneck(program)
    assert split > 50


def test_an_arena_can_need_more_than_the_peak() -> None:
    """Eight buffers with a liveness peak of 5 that no offsets place below 6."""
    lives = [(0, 0, 4), (0, 2, 1), (1, 1, 3), (1, 3, 1), (2, 4, 2), (2, 2, 1), (3, 3, 2), (4, 4, 3)]
    assert f.peak_of_lives(lives) == 5
    assert not f.fits(lives, 5)
    assert f.fits(lives, 6)
    rng = random.Random(0)
    for _ in range(20):  # nothing fits below its peak
        some = [(a, a + rng.randint(0, 2), rng.randint(1, 3)) for a in (rng.randint(0, 4) for _ in range(5))]
        assert not f.fits(some, f.peak_of_lives(some) - 1)
