"""Which rows of what each band of a region computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from peakmem.frontends.splitting import Axis, Rows, Rule, Splittable, exactly

MOST_SLACK = 4
"""Rows by which inputs of a band are tried to begin or end further out, each."""


@dataclass(frozen=True)
class Body:
    """Consecutive statements of the base order that can run in bands, looked at once.

    Attributes
    ----------
    source : Splittable
    statements : tuple of int
    axis : Axis
    rules : tuple of Rule
        Of each statement.
    """

    source: Splittable
    statements: tuple[int, ...]
    axis: Axis
    rules: tuple[Rule, ...]

    @cached_property
    def writes(self) -> tuple[int, ...]:
        """The buffer that each statement writes."""
        return tuple(self.source.program.statements[v].writes[0] for v in self.statements)

    @cached_property
    def made(self) -> dict[int, int]:
        """Buffer -> the statement of the region that writes it."""
        return dict(zip(self.writes, self.statements))

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """Buffers from outside that are read in bands, in the order in which they are met."""
        return tuple(dict.fromkeys(b for rule in self.rules for b in rule.banded if b not in self.made))

    @cached_property
    def outputs(self) -> tuple[int, ...]:
        """Buffers that are read outside, or outputs of the program."""
        inside = set(self.statements)
        program = self.source.program
        return tuple(
            b for b in self.made if program.buffers[b].pinned or any(t not in inside for t in program.touchers[b])
        )

    @cached_property
    def readers(self) -> dict[int, list[int]]:
        """Places in ``statements`` that read a buffer in bands, by buffer."""
        found: dict[int, list[int]] = {}
        for q, rule in enumerate(self.rules):
            for b in rule.banded:
                found.setdefault(b, []).append(q)
        return found

    def edges(self, buffers: Sequence[int], bands: int) -> dict[int, list[int]] | None:
        """Where each of these buffers is cut, both ends included, at the same heights; None where one has too few rows."""
        extents = {b: self.source.extent(b, self.axis) for b in buffers}
        least = min(extents.values(), default=0)
        if least < bands:
            return None
        whole = {b: n // least if n % least == 0 else n / least for b, n in extents.items()}
        return {b: [round(round(k * least / bands) * whole[b]) for k in range(bands + 1)] for b in extents}

    def cuts(self, bands: int) -> list[dict[int, tuple[int, int]]] | None:
        """Rows of each output that each band delivers; None where an output has too few rows."""
        edges = self.edges(self.outputs, bands)
        return None if edges is None else [{b: (at[k], at[k + 1]) for b, at in edges.items()} for k in range(bands)]


def body(source: Splittable, statements: Sequence[int], axis: Axis, *, kept: bool = False) -> Body | str:
    """The statements as a region, one whose halos are ``kept``; a sentence that names the first that cannot belong to it."""
    program = source.program
    rules: list[Rule] = []
    made: set[int] = set()
    for v in statements:
        statement = program.statements[v]
        rule = source.rule(v, axis)
        if isinstance(rule, str):
            return rule
        if not kept and made & (set(statement.reads) - set(rule.banded)):
            return f"{statement.name} reads the whole of what stands before it"
        rules.append(rule)
        made.add(statement.writes[0])
    found = Body(source, tuple(statements), axis, tuple(rules))
    return found if found.outputs else "nothing reads what these operators compute"


@dataclass
class Band:
    """One band of a region, worked out.

    Attributes
    ----------
    taken : dict of int to Rows
        Input -> rows taken from it.
    runs : list of (int, dict, Rows)
        Place in the region, buffer -> rows it is given, rows it computes.
    """

    taken: dict[int, Rows]
    runs: list[tuple[int, dict[int, Rows], Rows]]
    wanted: dict[int, tuple[int, int]]
    crops: int


def band(region: Body, wanted: dict[int, tuple[int, int]]) -> Band | None:
    """The band that delivers these rows; None where the maps do not allow it.

    Backwards from what is wanted each statement asks for the rows that its own are computed from; forwards, what the
    kernels make of them is followed. Where operands have not the same rows, or a kernel's own padding does not fit,
    rows are cropped; inputs that begin or end some rows further out often need no crop, so that is tried.
    """
    need: dict[int, tuple[int, int]] = dict(wanted)
    slack = 1
    for q in range(len(region.statements) - 1, -1, -1):
        y = region.writes[q]
        if y not in need:
            continue
        rule = region.rules[q]
        slack = min(MOST_SLACK, slack * rule.map.slack)
        a, e = rule.map.need(*need[y])
        for b in rule.banded:
            low, high = need.get(b, (a, e))
            need[b] = (min(a, low), max(e, high))
    best: Band | None = None
    for more in sorted(((u, d) for u in range(slack) for d in range(slack)), key=lambda p: (sum(p), p)):
        best = _forward(region, wanted, need, more, best.crops if best is not None else None) or best
        if best is not None and not best.crops:
            break
    return best


def _forward(
    region: Body,
    wanted: dict[int, tuple[int, int]],
    need: dict[int, tuple[int, int]],
    more: tuple[int, int],
    below: int | None,
) -> Band | None:
    """The band whose inputs begin and end so many rows further out, if it needs fewer crops than ``below``."""
    have: dict[int, Rows] = {}
    for b in region.inputs:
        if b in need:
            a, e = need[b]
            have[b] = exactly(max(0, a - more[0]), min(region.source.extent(b, region.axis), e + more[1]))
    result = Band(dict(have), [], wanted, 0)
    for q, rule in enumerate(region.rules):
        y = region.writes[q]
        if y not in need:
            continue
        if not rule.banded:
            free = rule.map.output(exactly(*need[y]))
            if free is None:
                return None
            have[y] = free
            result.runs.append((q, {}, free))
            continue
        given = {b: have[b] for b in rule.banded}
        out = _run(rule, given)
        if out is None or not out.holds(*need[y]):
            cropped = crop(rule, given, need[y])
            if cropped is None:
                return None
            result.crops += sum((have[b].start, have[b].end) != (r.start, r.end) for b, r in cropped[0].items())
            if below is not None and result.crops >= below:
                return None
            given, out = cropped
        have[y] = out
        result.runs.append((q, given, out))
    return result


def crop(
    rule: Rule, have: dict[int, Rows], wanted: tuple[int, int]
) -> tuple[dict[int, Rows], Rows] | None:
    """The fewest rows that all operands have and that give what is wanted, and what they give."""
    a, e = rule.map.need(*wanted)
    top, bottom = max(r.start for r in have.values()), min(r.end for r in have.values())
    best: tuple[dict[int, Rows], Rows] | None = None
    least = bottom - top + 1
    for start in range(a, max(top, a - 2 * rule.map.slack) - 1, -1):
        for end in range(e, min(bottom, e + 2 * rule.map.slack) + 1):
            if end - start >= least:
                break
            given = {b: Rows(start, end - start, max(r.low, start), min(r.high, end)) for b, r in have.items()}
            out = _run(rule, given)
            if out is not None and out.holds(*wanted):
                best, least = (given, out), end - start
                break
    return best


def _run(rule: Rule, given: dict[int, Rows]) -> Rows | None:
    """The band of the output, if all operands stand for the same rows."""
    first, *others = given.values()
    if not others:
        return rule.map.output(first)
    low, high = first.low, first.high
    for rows in others:
        if rows.start != first.start or rows.count != first.count:
            return None
        low, high = max(low, rows.low), min(high, rows.high)
    return rule.map.output(Rows(first.start, first.count, low, high)) if low < high else None
