"""What the figures show, as plain records: pure functions of timelines and offsets.

Everything here is exact. Where a program is too large to draw every step or buffer, what is left out is counted, and
the curve keeps, of every column of steps, the first, the last, the lowest and the highest: at the width it is drawn,
no peak and no valley changes.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from peakmem.liveness import Timeline

ALL_STEPS = 1200
"""With more steps than this a curve is thinned."""

COLUMNS = 600
"""Columns of steps of a thinned curve; each keeps at most four steps."""

NAMED = 3
"""Live buffers that are named for each step of a curve."""


@dataclass(frozen=True)
class Moment:
    """One step of a curve.

    Attributes
    ----------
    step : int
        From 0.
    size : int
        Bytes while it runs.
    statement : str
        Name of the statement.
    largest : tuple of (str, int)
        The largest buffers live there, with their bytes.
    """

    step: int
    size: int
    statement: str
    largest: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Curve:
    """Memory over the steps of one order.

    Attributes
    ----------
    steps : int
        How many there are in all.
    moments : tuple of Moment
        The steps that are drawn, ascending; all of them unless ``thinned``.
    peak : int
        Bytes; the largest of all steps, or what is resident at entry without any.
    peak_step : int
        The first step that reaches it; among ``moments``.
    """

    steps: int
    moments: tuple[Moment, ...]
    peak: int
    peak_step: int

    @property
    def thinned(self) -> bool:
        return len(self.moments) < self.steps

    @property
    def top(self) -> Moment | None:
        """The step of the peak; None without steps."""
        return next((m for m in self.moments if m.step == self.peak_step), None)


@dataclass(frozen=True)
class Row:
    """One buffer of the table of what is live at the peak; ``first`` is -1 for entry, ``last`` is -1 for the end."""

    name: str
    kind: str
    size: int
    first: int
    last: int


@dataclass(frozen=True)
class Live:
    """What is live at the peak.

    Attributes
    ----------
    peak : int
        Bytes.
    step : int or None
        None for a program without statements.
    statement, op : str
    rows : tuple of Row
        Largest first.
    left_out, left_out_bytes : int
        Smaller buffers that are not listed.
    workspace : int
        Bytes of the statement itself. Rows, left-out bytes and this sum to the peak.
    """

    peak: int
    step: int | None
    statement: str
    op: str
    rows: tuple[Row, ...]
    left_out: int
    left_out_bytes: int
    workspace: int


@dataclass(frozen=True)
class Bar:
    """One buffer over time and, in an arena, over addresses.

    Attributes
    ----------
    begin, end : int
        It is resident from the start of step ``begin`` to the start of step ``end``; 0 is the start of the first step
        (and entry), the number of steps the end.
    at_peak : bool
    offset : int
        Bytes from the start of the arena; 0 without a plan.
    """

    name: str
    size: int
    begin: int
    end: int
    at_peak: bool
    offset: int = 0


@dataclass(frozen=True)
class Bars:
    """Lifetimes, or the blocks of an arena.

    Attributes
    ----------
    steps, peak_step : int
    bars : tuple of Bar
        By birth; of an arena by offset.
    left_out, left_out_bytes : int
        Resident buffers that are not shown: the smaller ones.
    unplaced : int
        Of an arena, resident buffers and workspaces without an offset in the plan.
    """

    steps: int
    peak_step: int
    bars: tuple[Bar, ...]
    left_out: int
    left_out_bytes: int
    unplaced: int = 0

    @property
    def height(self) -> int:
        """The largest end of a block, in bytes."""
        return max((bar.offset + bar.size for bar in self.bars), default=0)


def thin(sizes: Sequence[int], columns: int = COLUMNS, whole: int = ALL_STEPS) -> list[int]:
    """Indices to draw: all of up to ``whole``, else of each column the first, last, lowest and highest. O(n).

    >>> thin([5, 1, 9, 5, 7, 7, 7, 7], columns=2, whole=4)
    [0, 1, 2, 3, 4, 7]
    """
    n = len(sizes)
    if n <= whole:
        return list(range(n))
    width = -(-n // columns)
    kept = []
    for start in range(0, n, width):
        column = range(start, min(start + width, n))
        low, high = min(column, key=sizes.__getitem__), max(column, key=sizes.__getitem__)
        kept += sorted({column[0], low, high, column[-1]})
    return kept


def curve(line: Timeline) -> Curve:
    """The curve of an order, thinned where it is long. O((steps + buffers) log buffers)."""
    program = line.program
    kept = thin(line.bytes_at)
    largest = _largest(line, kept)
    moments = tuple(
        Moment(
            step,
            line.bytes_at[step],
            program.statements[line.order[step]].name,
            tuple((program.buffers[b].name, program.buffers[b].size) for b in buffers),
        )
        for step, buffers in zip(kept, largest)
    )
    return Curve(len(line.order), moments, line.peak, line.peak_step)


def _largest(line: Timeline, kept: Sequence[int]) -> list[list[int]]:
    """For each of the ascending steps the `NAMED` largest live buffers that are not empty, as `Timeline.live_at`."""
    sizes = [b.size for b in line.program.buffers]
    births = sorted((line.first[b], -sizes[b], b) for b in _resident(line) if sizes[b])
    heap: list[tuple[int, int]] = []
    found, born = [], 0
    for step in kept:
        while born < len(births) and births[born][0] <= step:
            heapq.heappush(heap, births[born][1:])
            born += 1
        alive: list[tuple[int, int]] = []
        while heap and len(alive) < NAMED:
            entry = heapq.heappop(heap)
            if line.last[entry[1]] >= step:  # what has died never comes back
                alive.append(entry)
        for entry in alive:
            heapq.heappush(heap, entry)
        found.append([b for _, b in alive])
    return found


def live(line: Timeline, most: int = 12) -> Live:
    """The table of what is live at the peak, with at most ``most`` buffers."""
    program = line.program
    buffers = line.live_at(line.peak_step) if line.order else tuple(b for b in _resident(line) if line.first[b] < 0)
    buffers = tuple(sorted((b for b in buffers if program.buffers[b].size), key=lambda b: (-program.buffers[b].size, b)))
    rows = tuple(
        Row(
            program.buffers[b].name,
            program.buffers[b].kind,
            program.buffers[b].size,
            line.first[b],
            -1 if line.last[b] >= len(line.order) else line.last[b],
        )
        for b in buffers[:most]
    )
    rest = buffers[most:]
    statement = program.statements[line.order[line.peak_step]] if line.order else None
    return Live(
        line.peak,
        line.peak_step if line.order else None,
        statement.name if statement else "",
        statement.op if statement else "",
        rows,
        len(rest),
        sum(program.buffers[b].size for b in rest),
        line.workspaces[line.order[line.peak_step]] if line.order else 0,
    )


def bars(line: Timeline, most: int = 40) -> Bars:
    """Lifetimes of the ``most`` largest buffers."""
    return _bars(line, _resident(line), {}, most)


def arena(line: Timeline, offsets: Mapping[str, int], most: int = 1500) -> Bars:
    """The ``most`` largest blocks of an arena; ``offsets`` by the name of the buffer, in bytes."""
    resident = _resident(line)
    placed = [b for b in resident if line.program.buffers[b].name in offsets]
    unplaced = len(resident) - len(placed) + sum(1 for size in line.workspaces if size)
    found = _bars(line, placed, offsets, most)
    ordered = tuple(sorted(found.bars, key=lambda bar: (bar.offset, bar.begin, bar.name)))
    return Bars(found.steps, found.peak_step, ordered, found.left_out, found.left_out_bytes, unplaced)


def _bars(line: Timeline, buffers: Sequence[int], offsets: Mapping[str, int], most: int) -> Bars:
    sizes = line.program.buffers
    steps = len(line.order)
    ranked = sorted((b for b in buffers if sizes[b].size), key=lambda b: (-sizes[b].size, b))
    shown = sorted(ranked[:most], key=lambda b: (line.first[b], line.last[b], b))
    return Bars(
        steps,
        line.peak_step,
        tuple(
            Bar(
                sizes[b].name,
                sizes[b].size,
                max(0, line.first[b]),
                min(line.last[b] + 1, steps),
                line.first[b] <= line.peak_step <= line.last[b],
                offsets.get(sizes[b].name, 0),
            )
            for b in shown
        ),
        len(ranked) - len(shown),
        sum(sizes[b].size for b in ranked[most:]),
    )


def _resident(line: Timeline) -> list[int]:
    """Buffers that are resident at some step (or at entry)."""
    return [
        b
        for b, buffer in enumerate(line.program.buffers)
        if buffer.kind != "constant" and line.first[b] <= line.last[b]
    ]
