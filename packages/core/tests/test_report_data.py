"""What the figures of a report show, against the definitions."""

from __future__ import annotations

import itertools
import random

from oracles import Model, build, programs, random_order
from peakmem.arena import lifetimes, plan
from peakmem.model import Buffer, Program, Statement, timeline
from peakmem.report.data import ALL_STEPS, COLUMNS, NAMED, Bar, arena, bars, curve, live, planned, thin


def test_short_curves_are_whole_and_name_what_is_live() -> None:
    for i, program in programs(700, 300, range(11)):
        model = Model(program)
        order = random_order(random.Random(i), program)
        found = curve(timeline(program, order))
        assert (found.steps, found.peak, found.thinned) == (len(order), model.peak(order), False)
        assert [m.step for m in found.moments] == list(range(len(order)))
        state: set[int] = set()
        for moment, v in zip(found.moments, order):
            assert moment.size == model.mem(state, v)
            assert moment.statement == program.statements[v].name
            here = model.resident(state) | model.touches[v]
            ranked = sorted(((program.buffers[b].name, model.size[b]) for b in here if model.size[b]), key=lambda row: -row[1])
            assert [size for _, size in moment.largest] == [size for _, size in ranked[:NAMED]]
            assert set(moment.largest) <= set(ranked)
            state.add(v)
        if order:
            assert found.top is not None and found.top.size == found.peak == max(m.size for m in found.moments)
        else:
            assert found.top is None


def test_a_thinned_curve_keeps_every_visible_extreme() -> None:
    rng = random.Random(5)
    for n in (1, 2, 7, 60, 61, 997, 5000):
        for columns in (1, 3, 20, n):
            sizes = [rng.randrange(50) for _ in range(n)]
            kept = thin(sizes, columns, 0)
            assert kept == sorted(set(kept)) and len(kept) <= 4 * columns
            width = -(-n // columns)
            for start in range(0, n, width):
                column = sizes[start : start + width]
                shown = [sizes[i] for i in kept if start <= i < start + width]
                assert (shown[0], shown[-1], min(shown), max(shown)) == (column[0], column[-1], min(column), max(column))


def test_long_programs_are_thinned_without_losing_the_peak() -> None:
    rng = random.Random(8)
    for n in (ALL_STEPS, ALL_STEPS + 1, 4 * ALL_STEPS):
        sizes = [rng.randrange(1, 1000) for _ in range(n)]
        buffers = tuple(Buffer(f"b{i}", size) for i, size in enumerate(sizes))
        program = Program(buffers, tuple(Statement(f"s{i}", writes=(i,)) for i in range(n)))
        line = timeline(program)
        found = curve(line)
        assert found.thinned == (n > ALL_STEPS) and len(found.moments) <= max(ALL_STEPS, 4 * COLUMNS)
        assert found.top is not None and found.top.size == max(sizes)
        assert all(m.size == line.bytes_at[m.step] and m.largest == ((f"b{m.step}", sizes[m.step]),) for m in found.moments)


def test_the_table_of_the_peak_adds_up() -> None:
    for i, program in programs(701, 300, range(11)):
        model = Model(program)
        order = random_order(random.Random(i), program)
        line = timeline(program, order)
        most = i % 4
        found = live(line, most)
        assert sum(r.size for r in found.rows) + found.left_out_bytes + found.workspace == found.peak == model.peak(order)
        assert len(found.rows) <= most
        if not order:
            assert found.step is None
            continue
        step = next(s for s in range(len(order)) if model.mem(set(order[:s]), order[s]) == found.peak)
        here = model.resident(set(order[:step])) | model.touches[order[step]]
        assert (found.step, found.statement) == (step, program.statements[order[step]].name)
        assert len(found.rows) + found.left_out == sum(1 for b in here if model.size[b])
        assert [r.size for r in found.rows] == sorted((model.size[b] for b in here if model.size[b]), reverse=True)[:most]


def covers(bar: Bar, step: int) -> bool:
    return bar.begin <= step < bar.end


def test_bars_are_the_lifetimes_step_by_step() -> None:
    for i, program in programs(702, 300, range(1, 11)):
        model = Model(program)
        order = random_order(random.Random(i), program)
        line = timeline(program, order)
        found = bars(line, 10**6)
        assert found.left_out == 0
        for step, v in enumerate(order):
            here = model.resident(set(order[:step])) | model.touches[v]
            names = {program.buffers[b].name for b in here if model.size[b]}
            assert {bar.name for bar in found.bars if covers(bar, step)} == names
        assert {bar.name for bar in found.bars if bar.at_peak} == {b.name for b in found.bars if covers(b, line.peak_step)}
        few = bars(line, 3)
        assert sum(b.size for b in few.bars) + few.left_out_bytes == sum(b.size for b in found.bars)
        assert len(few.bars) + few.left_out == len(found.bars)
        shown = {b.name for b in few.bars}
        for hot in (True, False):  # of those live at the peak, and of the others, the largest
            left = [b.size for b in found.bars if b.at_peak is hot and b.name not in shown]
            assert not left or min((b.size for b in few.bars if b.at_peak is hot), default=10**18) >= max(left)


def test_most_bars_are_of_buffers_live_at_the_peak() -> None:
    sizes = [1000 + i for i in range(60)] + [10 + i for i in range(60)]
    buffers = tuple(Buffer(f"b{i}", size) for i, size in enumerate(sizes))
    # The large ones come and go one by one; the small ones are live together at the last step.
    one_by_one = [Statement(f"s{i}", writes=(i,)) for i in range(60)]
    small = [Statement(f"s{i}", writes=(i,)) for i in range(60, 120)]
    last = Statement("last", reads=tuple(range(60, 120)), dependences=tuple(range(60, 120)), workspace=5000)
    line = timeline(Program(buffers, (*one_by_one, *small, last)))
    assert line.peak_step == 120
    found = bars(line, 40)
    assert [len([b for b in found.bars if b.at_peak is hot]) for hot in (True, False)] == [30, 10]
    assert sorted(b.size for b in found.bars if b.at_peak) == sorted(sizes[60:])[30:]
    assert sorted(b.size for b in found.bars if not b.at_peak) == sizes[50:60]
    assert len(bars(line, 1000).bars) == 120


def test_blocks_of_a_plan_never_share_a_byte() -> None:
    for i, program in programs(703, 150, range(1, 10)):
        order = random_order(random.Random(i), program)
        line = timeline(program, order)
        items = lifetimes(program, {"": order})
        placement = plan(items, effort=0.1)
        places = []
        for item, offset in zip(items, placement.offsets):
            kind = "workspace" if item.name.startswith("workspace of ") else "buffer"
            places.append((kind, item.name.removeprefix("workspace of "), offset, item.size))
        found = arena(line, places)
        assert found.height == placement.size and (found.unplaced, found.left_out) == (0, 0)
        for step, size in enumerate(line.bytes_at):
            here = sorted((b.offset, b.offset + b.size) for b in found.bars if covers(b, step))
            assert sum(end - begin for begin, end in here) == size
            assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(here))


def test_what_has_no_place_is_counted() -> None:
    program = build("a=4 b=1 c=2", "A > a | use 3", "B a > b | after A", "C b > c | after B")
    line = timeline(program)
    found = arena(line, planned(line, {"a": 0, "c": 8, "unknown": 64}))
    assert [(b.name, b.offset) for b in found.bars] == [("a", 0), ("c", 8)]
    assert (found.unplaced, found.height) == (2, 10)  # b, and the workspace of A
    few = arena(line, [("buffer", "a", 0, 4), ("buffer", "b", 4, 1), ("workspace", "A", 4, 3)], most=1)
    assert ([b.name for b in few.bars], few.left_out, few.left_out_bytes, few.unplaced) == (["a"], 2, 4, 1)
