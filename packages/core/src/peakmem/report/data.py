"""What the figures show, as plain records: pure functions of timelines and offsets.

Everything here is exact. Where a program is too large to draw every step or buffer, what is left out is counted, and
the curve keeps, of every column of steps, the first, the last, the lowest and the highest: at the width it is drawn,
no peak and no valley changes.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from peakmem.model import Timeline

ALL_STEPS = 1200
"""With more steps than this a curve is thinned."""

COLUMNS = 600
"""Columns of steps of a thinned curve; each keeps at most four steps."""

NAMED = 3
"""Live buffers that are named for each step of a curve."""


Place = tuple[str, str, int, int]
"""Where something is put in an arena: ``"buffer"`` or ``"workspace"``, the name of the buffer or of the statement that asks
for the workspace, its offset and its size in bytes."""


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
        Bytes of the statement itself.
    saved : int
        Bytes that its output shares with a dying input. Rows, left-out bytes and workspace, less this, sum to the peak.
    """

    peak: int
    step: int | None
    statement: str
    op: str
    rows: tuple[Row, ...]
    left_out: int
    left_out_bytes: int
    workspace: int
    saved: int = 0


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
        Of an arena, resident buffers and workspaces without a place.
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
        line.saved_at(line.peak_step) if line.order else 0,
    )


def bars(line: Timeline, most: int = 40) -> Bars:
    """Lifetimes of ``most`` buffers: the largest that are live at the peak, and in the last quarter the largest others."""
    buffers = line.program.buffers
    largest = sorted((b for b in _resident(line) if buffers[b].size), key=lambda b: (-buffers[b].size, b))
    hot = [b for b in largest if line.first[b] <= line.peak_step <= line.last[b]]
    cold = [b for b in largest if not line.first[b] <= line.peak_step <= line.last[b]]
    others = min(len(cold), max(most // 4, most - len(hot)))
    ranked = [*hot[: most - others], *cold[:others], *hot[most - others :], *cold[others:]]
    shown = sorted(ranked[:most], key=lambda b: (line.first[b], line.last[b], b))
    return Bars(
        len(line.order),
        line.peak_step,
        tuple(_bar(line, buffers[b].name, buffers[b].size, line.first[b], line.last[b]) for b in shown),
        len(ranked) - len(shown),
        sum(buffers[b].size for b in ranked[most:]),
    )


def planned(line: Timeline, offsets: Mapping[str, int]) -> list[Place]:
    """Places from the offsets of a schedule, which it has by the name of the buffer, in bytes."""
    buffers = line.program.buffers
    return [("buffer", b.name, offsets[b.name], b.size) for b in buffers if b.name in offsets]


def arena(line: Timeline, places: Sequence[Place], most: int = 1500) -> Bars:
    """The ``most`` largest blocks of an arena, each where it is put while it is resident.

    Places of what the program does not know or never holds are left aside. O((buffers + places) log).
    """
    program = line.program
    ids = {program.buffers[b].name: b for b in _resident(line) if program.buffers[b].size}
    steps = {program.statements[v].name: step for step, v in enumerate(line.order)}
    without = set(ids.values())
    silent = {v for v, size in enumerate(line.workspaces) if size}
    found = []
    for kind, name, offset, size in places:
        if kind == "buffer" and name in ids:
            b = ids[name]
            without.discard(b)
            found.append(_bar(line, name, size, line.first[b], line.last[b], offset))
        elif kind == "workspace" and name in steps:
            step = steps[name]
            silent.discard(line.order[step])
            found.append(_bar(line, f"workspace of {name}", size, step, step, offset))
    ranked = sorted((bar for bar in found if bar.size), key=lambda bar: (-bar.size, bar.offset, bar.begin, bar.name))
    shown = sorted(ranked[:most], key=lambda bar: (bar.offset, bar.begin, bar.name))
    left = ranked[most:]
    return Bars(len(line.order), line.peak_step, tuple(shown), len(left), sum(b.size for b in left), len(without) + len(silent))


def _bar(line: Timeline, name: str, size: int, first: int, last: int, offset: int = 0) -> Bar:
    at_peak = first <= line.peak_step <= last
    return Bar(name, size, max(0, first), min(last + 1, len(line.order)), at_peak, offset)


def _resident(line: Timeline) -> list[int]:
    """Buffers that are resident at some step (or at entry)."""
    return [
        b
        for b, buffer in enumerate(line.program.buffers)
        if buffer.kind != "constant" and line.first[b] <= line.last[b]
    ]
