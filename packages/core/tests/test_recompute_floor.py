"""The floor: never above what any schedule reaches, and an answer with a reason where a program sits on it."""

from __future__ import annotations

from generators import random_program
from peakmem.model import Buffer, Program, Statement
from peakmem.transform.recompute import floor
from peakmem.transform.recompute.oracle import free_order


def test_no_schedule_in_any_order_goes_below_the_floor() -> None:
    at_floor = above = 0
    for seed in range(120):
        program = random_program(seed, 2 + seed % 4)
        low = floor(program).size
        # Three runs of everything: more freedom than the default cap.
        assert free_order(program, low - 1, cap=3) is None
        if free_order(program, low, cap=3) is None:
            above += 1
        else:
            at_floor += 1
    assert at_floor > above


def test_a_statement_that_fills_the_floor_is_named_with_what_it_holds() -> None:
    program = Program(
        (
            Buffer("x", 5, "input"),
            Buffer("late", 3, "input"),
            Buffer("w", 0, "constant"),
            Buffer("a", 7),
            Buffer("kept", 2, "output", True),
            Buffer("y", 1, "output", True),
        ),
        (
            Statement("first", "A", (0,), (4,), ()),
            Statement("big", "B", (0, 2), (3,), (0,), workspace=4),
            Statement("last", "C", (1, 3), (5,), (1,)),
        ),
    )
    low = floor(program)
    # x and a and workspace; the input that only a descendant reads; the output of an ancestor.
    assert (low.size, low.rule, low.statement) == (5 + 7 + 4 + 3 + 2, "statement", 1)
    sentence = low.sentence(program)
    for part in ("'big'", "21 bytes", "a (7)", "late (3)", "kept (2)", "workspace (4)"):
        assert part in sentence


def test_the_first_statement_meets_all_inputs() -> None:
    inputs = tuple(Buffer(f"x{i}", 4, "input") for i in range(3))
    program = Program(
        (*inputs, Buffer("a", 3), Buffer("b", 2), Buffer("y", 1, "output", True)),
        (
            Statement("p", "P", (0,), (3,), ()),
            Statement("q", "Q", (1,), (4,), ()),
            Statement("r", "R", (2, 3, 4), (5,), (0, 1)),
        ),
    )
    low = floor(program)
    assert (low.rule, low.statement, low.size) == ("first", 1, 12 + 2)


def test_what_is_never_freed_is_a_floor_even_without_statements() -> None:
    program = Program((Buffer("x", 9, "input", True), Buffer("y", 9, "input")), ())
    low = floor(program)
    assert (low.rule, low.size, low.statement) == ("pinned", 9, None)
    assert "never freed" in low.sentence(program)


def test_bodies_count_with_their_own_floor_whatever_their_order() -> None:
    body = Program(
        (Buffer("i", 6), Buffer("j", 6), Buffer("k", 1, "output", True)),
        (
            Statement("i", "I", (), (0,), ()),
            Statement("j", "J", (), (1,), ()),
            Statement("k", "K", (0,), (2,), (0,)),
            Statement("l", "L", (1,), (2,), (1, 2)),
        ),
    )
    program = Program((Buffer("x", 2, "input", True),), (Statement("if", "If", (0,), (), (), bodies=(body,)),))
    assert floor(body).size < 13
    assert floor(program).size == 2 + floor(body).size
