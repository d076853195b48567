"""From regions to a split program: which rows of what each band computes, and the program that does so."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from peakmem.frontends.splitting import Axis, Part, Region, Rows, Rule, Split, Splittable, Step, exactly
from peakmem.model import Buffer, Program, Refused, Statement

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

    def cuts(self, bands: int) -> list[dict[int, tuple[int, int]]] | None:
        """Rows of each output that each band delivers; None where an output has too few rows."""
        extents = {b: self.source.extent(b, self.axis) for b in self.outputs}
        least = min(extents.values(), default=0)
        if least < bands:
            return None
        edges = [round(k * least / bands) for k in range(bands + 1)]
        whole = {b: n // least if n % least == 0 else n / least for b, n in extents.items()}
        rows = {b: [round(e * whole[b]) for e in edges] for b in extents}
        return [{b: (rows[b][k], rows[b][k + 1]) for b in extents} for k in range(bands)]


def body(source: Splittable, statements: Sequence[int], axis: Axis) -> Body | str:
    """The statements as a region; a sentence that names the first that cannot belong to it."""
    program = source.program
    rules: list[Rule] = []
    made: set[int] = set()
    for v in statements:
        statement = program.statements[v]
        rule = source.rule(v, axis)
        if isinstance(rule, str):
            return rule
        if made & (set(statement.reads) - set(rule.banded)):
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
            cropped = _crop(rule, given, need[y])
            if cropped is None:
                return None
            result.crops += sum((have[b].start, have[b].end) != (r.start, r.end) for b, r in cropped[0].items())
            if below is not None and result.crops >= below:
                return None
            given, out = cropped
        have[y] = out
        result.runs.append((q, given, out))
    return result


def _crop(
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


@dataclass
class _Writer:
    """Collects the split program."""

    source: Splittable
    parts: list[Part] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    maker: dict[int, int] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.buffers = list(self.source.program.buffers)
        self.taken = {b.name for b in self.buffers}

    def part(self, buffer: int, axis: Axis, start: int, count: int) -> int:
        """A new buffer for these rows of a buffer of the original."""
        name = f"{self.buffers[buffer].name} [{axis} {start}:{start + count}]"
        while name in self.taken:
            name += "'"
        self.taken.add(name)
        self.parts.append(Part(name, buffer, axis, start, count))
        self.buffers.append(Buffer(name, self.source.size(buffer, axis, count)))
        return len(self.buffers) - 1

    def add(
        self, kind: str, op: str, reads: Sequence[int], writes: Sequence[int], *, statement: int = -1,
        axis: Axis = "rows", workspace: int = 0, cost: int = 0, after: Iterable[int] = (),
    ) -> None:  # fmt: skip
        k = len(self.steps)
        self.steps.append(Step(kind, statement, tuple(reads), tuple(writes), axis))  # type: ignore[arg-type]
        before = {self.maker[b] for b in reads if b in self.maker} | set(after)
        self.statements.append(
            Statement(f"{k}:{op}", op, tuple(reads), tuple(writes), tuple(sorted(before)), workspace, cost)
        )
        self.maker.update((b, k) for b in writes)

    def rows_of(self, buffer: int, original: int, axis: Axis, have: tuple[int, int], wanted: tuple[int, int]) -> int:
        """A buffer that holds the wanted rows: this one if it has no others, else a cut of it."""
        if have == wanted:
            return buffer
        new = self.part(original, axis, wanted[0], wanted[1] - wanted[0])
        self.add("cut", self.source.cut, (buffer,), (new,), axis=axis)
        return new

    def join(self, pieces: list[tuple[int, int, int]], output: int, axis: Axis) -> None:
        """Bands (buffer, start, end) of one buffer put together; where they are too many, some of them first."""
        most = self.source.most_joined
        while len(pieces) > most:
            size = min(most, len(pieces) - most + 1)
            head = pieces[:size]
            inner = self.part(output, axis, head[0][1], head[-1][2] - head[0][1])
            self.add("join", self.source.join, [p[0] for p in head], (inner,), axis=axis)
            pieces = [(inner, head[0][1], head[-1][2]), *pieces[size:]]
        self.add("join", self.source.join, [p[0] for p in pieces], (output,), axis=axis)


def lay_out(source: Splittable, order: Sequence[int], regions: Sequence[Region]) -> Split:
    """The split program for these regions of a base order.

    Raises
    ------
    Refused
        With a sentence, where a region cannot run in that many bands.
    """
    program = source.program
    regions = sorted(regions, key=lambda r: r.first)
    at = {r.first: r for r in regions}
    covered = [k for r in regions for k in range(r.first, r.last + 1)]
    if len(set(covered)) < len(covered) or any(not 0 <= k < len(order) for k in covered):
        raise Refused("two regions overlap, or a region names operators that do not exist")
    out = _Writer(source)
    last_of: dict[int, int] = {}  # original statement -> its last step
    writers = {b: v for v, s in enumerate(program.statements) for b in s.writes}
    k = 0
    while k < len(order):
        if k in at:
            region = at[k]
            _region(out, [order[i] for i in range(k, region.last + 1)], region)
            for i in range(k, region.last + 1):
                last_of[order[i]] = len(out.steps) - 1
            k = region.last + 1
            continue
        v = order[k]
        s = program.statements[v]
        data = {writers[b] for b in s.reads if b in writers}
        others = [last_of[u] for u in s.dependences if u not in data]
        out.add("keep", s.op, s.reads, s.writes, statement=v, workspace=s.workspace, cost=s.cost, after=others)
        out.statements[-1] = _like(out.statements[-1], s)
        last_of[v] = len(out.steps) - 1
        k += 1
    made = Program(tuple(out.buffers), tuple(out.statements), program.name)
    extra = sum(s.cost for s in made.statements) - sum(s.cost for s in program.statements)
    return Split(made, tuple(out.steps), tuple(out.parts), tuple(regions), tuple(order), extra)


def _like(new: Statement, old: Statement) -> Statement:
    """A kept statement has all that the original has beside what it touches."""
    return Statement(
        new.name, old.op, new.reads, new.writes, new.dependences, old.workspace, old.cost, old.pure, old.effects, old.bodies
    )


def _region(out: _Writer, statements: Sequence[int], region: Region) -> None:
    source, axis = out.source, region.axis
    where = f"region {region.first}..{region.last} in {region.bands} bands"
    found = body(source, statements, axis)
    if isinstance(found, str):
        raise Refused(f"{where}: {found}")
    cuts = found.cuts(region.bands)
    if region.bands < 2 or cuts is None:
        raise Refused(f"{where}: there are not as many {axis}")
    pieces: dict[int, list[tuple[int, int, int]]] = {b: [] for b in found.outputs}
    for k, wanted in enumerate(cuts):
        worked = band(found, wanted)
        if worked is None:
            raise Refused(f"{where}: no range of {axis} gives band {k}")
        value: dict[int, tuple[int, tuple[int, int]]] = {}
        for b, rows in worked.taken.items():
            whole = (0, source.extent(b, axis))
            ends = (rows.start, rows.end)
            value[b] = (out.rows_of(b, b, axis, whole, ends), ends)
        for q, given, made in worked.runs:
            v = statements[q]
            s = source.program.statements[v]
            instead = {
                b: out.rows_of(value[b][0], b, axis, value[b][1], (rows.start, rows.end)) for b, rows in given.items()
            }
            y = s.writes[0]
            new = out.part(y, axis, made.start, made.count)
            workspace, cost = source.price(v, axis, {b: (r.start, r.count) for b, r in given.items()}, made.count)
            out.add(
                "run", s.op, tuple(instead.get(b, b) for b in s.reads), (new,), statement=v, axis=axis,
                workspace=workspace, cost=cost,
            )  # fmt: skip
            value[y] = (new, (made.start, made.end))
        for b, (low, high) in wanted.items():
            pieces[b].append((out.rows_of(value[b][0], b, axis, value[b][1], (low, high)), low, high))
    for b, rows_ in pieces.items():
        out.join(rows_, b, axis)
