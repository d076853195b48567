"""Groups of what is live at the peak: all of it, few of them, and the finest names that make them few."""

from __future__ import annotations

from oracles import programs
from peakmem.model import Buffer, Program, Statement, timeline
from peakmem.report.groups import ENOUGH, MOST, groupings


def of_names(names: list[str], ops: list[str], sizes: list[int]) -> Program:
    """A program that makes all buffers and then reads all of them."""
    buffers = tuple(Buffer(name, size) for name, size in zip(names, sizes))
    made = [Statement(f"make{i}", op=op, writes=(i,)) for i, op in enumerate(ops)]
    everyone = tuple(range(len(names)))
    return Program(buffers, (*made, Statement("all", op="all", reads=everyone, dependences=everyone)))


def test_every_grouping_holds_every_live_byte_once() -> None:
    for _, program in programs(811, 200, range(1, 10)):
        line = timeline(program)
        live = [b for b in line.live_at(line.peak_step) if program.buffers[b].size]
        for grouping in groupings(line):
            everyone = [*grouping.groups, *([grouping.rest] if grouping.rest else [])]
            assert sum(g.count for g in everyone) == len(live)
            assert sum(g.size for g in everyone) == grouping.size == sum(program.buffers[b].size for b in live)
            assert list(grouping.groups) == sorted(grouping.groups, key=lambda g: (-g.size, g.name))
            named = sum(g.size for g in grouping.groups)
            assert named >= ENOUGH * grouping.size or len(grouping.groups) == MOST


def test_the_finest_names_that_are_few_are_taken() -> None:
    names = [f"model/block{i // 4}/conv{i % 4}/out" for i in range(40)]
    program = of_names(names, [f"conv{i % 3}x{i % 3}/{i}" for i in range(40)], [100] * 40)
    by = {g.by: [(x.name, x.count) for x in (*g.groups, *((g.rest,) if g.rest else ()))] for g in groupings(timeline(program))}
    # 40 operators are too many, their kinds are three; 40 and 10 layers are too many, so the model is left.
    assert by["operator"] == [("conv0x0", 14), ("conv1x1", 13), ("conv2x2", 13)]
    assert by["layer"] == [("model", 40)]
    few = of_names(names[:8], ["conv"] * 8, [100] * 8)
    assert [g.name for g in groupings(timeline(few))[1].groups][:2] == ["model/block0/conv0", "model/block0/conv1"]


def test_names_without_layers_are_not_grouped_by_layer() -> None:
    program = of_names(["b0", "b1"], ["a", "b"], [2, 1])
    assert [g.by for g in groupings(timeline(program))] == ["operator", "lifetime"]


def test_lifetimes_are_told_apart() -> None:
    buffers = (Buffer("x", 8, kind="input"), Buffer("a", 4), Buffer("y", 2, kind="output"))
    statements = (Statement("s", reads=(0,), writes=(1, 2)), Statement("t", reads=(1,), dependences=(0,)))
    by = groupings(timeline(Program(buffers, statements)))[-1]
    assert {g.name for g in by.groups} | {by.rest.name if by.rest else ""} >= {"from entry", "1 to 2 steps"}


def test_nothing_live_has_no_groups() -> None:
    assert groupings(timeline(Program((), ()))) == ()
