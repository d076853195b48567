"""Memory of an order, step by step, against the definitions."""

from __future__ import annotations

import random

from oracles import Model, build, programs, random_order, scheduled_peak
from peakmem_check.model import Buffer, Program, Statement, body_workspaces, peak_of, scheduled_timeline, timeline


def test_every_step_is_mem_of_its_state() -> None:
    for i, program in programs(300, 500, range(11)):
        model = Model(program)
        order = random_order(random.Random(i), program)
        line = timeline(program, order)
        state: set[int] = set()
        for step, v in enumerate(order):
            assert line.bytes_at[step] == model.mem(state, v)
            live = set(line.live_at(step))
            assert live == model.resident(state) | model.touches[v]
            assert line.bytes_at[step] == line.workspaces[v] + sum(program.buffers[b].size for b in live)
            state.add(v)
        assert line.peak == model.peak(order) == peak_of(program, order)
        if order:
            assert line.bytes_at[line.peak_step] == line.peak
            assert max(line.bytes_at[: line.peak_step], default=-1) < line.peak


def test_bodies_enter_as_workspace() -> None:
    for i, program in programs(301, 200, range(6), bodies=True):
        rng = random.Random(i)
        orders = {path: random_order(rng, part) for path, part in [("", program), *program.bodies()]}
        assert scheduled_timeline(program, orders).peak == scheduled_peak(program, orders)
        given = {path: range(len(part)) for path, part in [("", program), *program.bodies()]}
        assert timeline(program).peak == scheduled_peak(program, given)
        assert program.workspaces == body_workspaces(program, {})


def test_live_buffers_are_listed_largest_first() -> None:
    program = build("@a=3 b=3 c=5", "A a > b", "B b > c | after A")
    assert timeline(program).live_at(1) == (2, 1)


def test_untouched_inputs() -> None:
    """An input that nothing touches is resident only if it is pinned; an untouched intermediate never."""
    buffers = (
        Buffer("a", 1, "input", True),
        Buffer("b", 10, "input"),
        Buffer("c", 100, "output", True),
        Buffer("d", 1000),
    )
    assert peak_of(Program(buffers, (Statement("A"),))) == 1
    assert peak_of(Program(buffers, ())) == 1


def test_a_buffer_only_one_statement_touches_dies_with_it() -> None:
    program = build("a=4 b=1", "A > a", "B > b")
    assert timeline(program).bytes_at == (4, 1)


def test_constants_never_count() -> None:
    program = Program((Buffer("w", 50, "constant"), Buffer("a", 1)), (Statement("A", reads=(0,), writes=(1,)),))
    assert peak_of(program) == 1


def test_large_numbers_are_exact() -> None:
    size = 2**60 + 1
    program = Program(
        (Buffer("a", size), Buffer("b", size)),
        (Statement("A", writes=(0,)), Statement("B", reads=(0,), writes=(1,), dependences=(0,))),
    )
    assert peak_of(program) == 2**61 + 2
