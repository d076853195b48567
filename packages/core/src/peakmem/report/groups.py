"""Who is live at the peak, when they are many: groups by operator, by layer and by lifetime."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from peakmem.model import Timeline

MOST = 8
"""Groups of a grouping that are named; the finest names are taken with which so many make up `ENOUGH`."""

ENOUGH = 0.9
"""Share of the bytes live at the peak that named groups shall make up."""

_DEEPEST = 6
_SEPARATORS = re.compile(r"[/.:]+")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Group:
    """What some buffers have in common, how many they are, and their bytes."""

    name: str
    count: int
    size: int


@dataclass(frozen=True)
class Grouping:
    """All buffers live at one step, in groups.

    Attributes
    ----------
    by : str
        What they are grouped by.
    groups : tuple of Group
        Largest first: as few as make up `ENOUGH`, at most `MOST`.
    rest : Group or None
        All other buffers.
    """

    by: str
    groups: tuple[Group, ...]
    rest: Group | None

    @property
    def size(self) -> int:
        """Bytes of all buffers."""
        return sum(g.size for g in self.groups) + (self.rest.size if self.rest is not None else 0)


def makers(line: Timeline) -> list[str]:
    """For each buffer the operator that writes it first, or what it is if none does. O(program)."""
    program = line.program
    found = [f"({b.kind})" for b in program.buffers]
    for v in reversed(line.order):
        statement = program.statements[v]
        for b in statement.writes:
            found[b] = statement.op or _NUMBER.sub("", statement.name) or "(no operator)"
    return found


def groupings(line: Timeline) -> tuple[Grouping, ...]:
    """Buffers live at the peak by operator, by layer (the beginning of their names) and by lifetime. O(program)."""
    buffers, steps = line.program.buffers, len(line.order)
    live = [b for b in line.live_at(line.peak_step) if buffers[b].size] if steps else []
    if not live:
        return ()
    made = makers(line)
    operators: list[Callable[[int], str]] = [lambda b: made[b], lambda b: _SEPARATORS.split(made[b])[0], lambda b: _stem(made[b])]
    layers = [(lambda b, depth=depth: _prefix(buffers[b].name, depth)) for depth in range(_DEEPEST, 0, -1)]
    found = [
        _grouped("operator", live, line, operators),
        _grouped("layer", live, line, [*layers, lambda b: _stem(_prefix(buffers[b].name, 1))]),
        _grouped("lifetime", live, line, [lambda b: _span(line.first[b], line.last[b], steps)]),
    ]
    layered = any(_SEPARATORS.search(buffers[b].name.strip("/.:")) for b in live)
    return tuple(g for g in found if layered or g.by != "layer")


def _grouped(by: str, live: Sequence[int], line: Timeline, names: Sequence[Callable[[int], str]]) -> Grouping:
    """The finest of the names, finest first, with which few groups are enough."""
    buffers = line.program.buffers
    whole = sum(buffers[b].size for b in live)
    for k, name in enumerate(names):
        sums: dict[str, list[int]] = {}
        for b in live:
            entry = sums.setdefault(name(b), [0, 0])
            entry[0] += 1
            entry[1] += buffers[b].size
        ranked = sorted((Group(key, count, size) for key, (count, size) in sums.items()), key=lambda g: (-g.size, g.name))
        few, reached = 0, 0
        while few < min(MOST, len(ranked)) and reached < ENOUGH * whole:
            reached += ranked[few].size
            few += 1
        if reached >= ENOUGH * whole or k == len(names) - 1:
            break
    left = ranked[few:]
    if len(left) == 1 and few < MOST:  # its name is no longer than "others"
        few, left = few + 1, []
    rest = Group("others", sum(g.count for g in left), sum(g.size for g in left)) if left else None
    return Grouping(by, tuple(ranked[:few]), rest)


def _stem(name: str) -> str:
    """A name up to its first number."""
    return _NUMBER.split(name)[0] or name


def _prefix(name: str, depth: int) -> str:
    """The layer a buffer belongs to: at most ``depth`` parts of its name, without the last one, which is its own."""
    parts = [part for part in _SEPARATORS.split(name) if part]
    return "/".join(parts[: min(depth, len(parts) - 1)]) if len(parts) > 1 else name


def _span(first: int, last: int, steps: int) -> str:
    """A class of lifetimes."""
    if first < 0:
        return "from entry to the end" if last >= steps else "from entry"
    if last >= steps:
        return "to the end"
    length, least = last - first + 1, 1
    for most in (2, 10, 100, 1000):
        if length <= most:
            return f"{least:,} to {most:,} steps"
        least = most + 1
    return "more than 1,000 steps"
