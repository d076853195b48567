"""From regions to a split program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from peakmem.frontends.splitting import Axis, Part, Region, Rows, Split, Splittable, Step, exactly
from peakmem.model import Buffer, Program, Refused, Statement
from peakmem.transform.split.bands import Body, band, body, crop

MOST_DEFERRED = 64
"""Values made one for the other only when a band needs the last of them."""


@dataclass
class Writer:
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

    def run(self, statement: int, axis: Axis, given: Mapping[int, Rows], operands: Mapping[int, int], made: Rows) -> int:
        """One band of a statement, with ``operands`` in the place of those that it reads of the original; what it computes."""
        s = self.source.program.statements[statement]
        new = self.part(s.writes[0], axis, made.start, made.count)
        workspace, cost = self.source.price(statement, axis, {b: (r.start, r.count) for b, r in given.items()}, made.count)
        reads = tuple(operands.get(b, b) for b in s.reads)
        self.add("run", s.op, reads, (new,), statement=statement, axis=axis, workspace=workspace, cost=cost)
        return new

    def rows_of(self, buffer: int, original: int, axis: Axis, have: tuple[int, int], wanted: tuple[int, int]) -> int:
        """A buffer that holds the wanted rows: this one if it has no others, else a cut of it."""
        if have == wanted:
            return buffer
        new = self.part(original, axis, wanted[0], wanted[1] - wanted[0])
        self.add("cut", self.source.cut, (buffer,), (new,), axis=axis)
        return new

    def join(self, pieces: list[tuple[int, int, int]], original: int, axis: Axis, into: int | None = None) -> int:
        """Bands (buffer, start, end) of a buffer put together, into itself if not said; where they are too many, some of them first."""
        most = self.source.most_joined
        while len(pieces) > most:
            size = min(most, len(pieces) - most + 1)
            head = pieces[:size]
            inner = self.part(original, axis, head[0][1], head[-1][2] - head[0][1])
            self.add("join", self.source.join, [p[0] for p in head], (inner,), axis=axis)
            pieces = [(inner, head[0][1], head[-1][2]), *pieces[size:]]
        into = original if into is None else into
        self.add("join", self.source.join, [p[0] for p in pieces], (into,), axis=axis)
        return into


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
    out = Writer(source)
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


def _region(out: Writer, statements: Sequence[int], region: Region) -> None:
    where = f"region {region.first}..{region.last} in {region.bands} bands"
    found = body(out.source, statements, region.axis, kept=region.kept)
    if isinstance(found, str):
        raise Refused(f"{where}: {found}")
    try:
        if region.bands < 2:
            raise Refused("one band is none")
        (kept if region.kept else _computed)(out, found, region.bands)
    except Refused as error:
        raise Refused(f"{where}: {error}") from None


def _computed(out: Writer, region: Body, bands: int) -> None:
    """Each band computes all that it needs, rows that others need as well among them."""
    source, axis = out.source, region.axis
    cuts = region.cuts(bands)
    if cuts is None:
        raise Refused(f"there are not as many {axis}")
    pieces: dict[int, list[tuple[int, int, int]]] = {b: [] for b in region.outputs}
    for k, wanted in enumerate(cuts):
        worked = band(region, wanted)
        if worked is None:
            raise Refused(f"no range of {axis} gives band {k}")
        value: dict[int, tuple[int, tuple[int, int]]] = {}
        for b, rows in worked.taken.items():
            ends = (rows.start, rows.end)
            value[b] = (out.rows_of(b, b, axis, (0, source.extent(b, axis)), ends), ends)
        for q, given, made in worked.runs:
            y = region.writes[q]
            operands = {b: out.rows_of(value[b][0], b, axis, value[b][1], (r.start, r.end)) for b, r in given.items()}
            value[y] = (out.run(region.statements[q], axis, given, operands, made), (made.start, made.end))
        for b, (low, high) in wanted.items():
            pieces[b].append((out.rows_of(value[b][0], b, axis, value[b][1], (low, high)), low, high))
    for b, rows_ in pieces.items():
        out.join(rows_, b, axis)


def kept(out: Writer, region: Body, bands: int, most_deferred: int = MOST_DEFERRED) -> None:
    """Each value is made in pieces, one a band, every row once; what a band needs is put together from them.

    Inputs that only this region reads, and more than once, are cut into such pieces too. What a single other statement reads is
    made when a band of that one needs it, ``most_deferred`` such values one for the other at most; all else in the given order.

    Raises
    ------
    Refused
    """
    source, axis, program = out.source, region.axis, out.source.program
    place = {y: q for q, y in enumerate(region.writes)}
    inside = set(region.statements)
    own = [
        b for b in region.inputs
        if len(region.readers[b]) > 1 and not program.buffers[b].pinned and source.extent(b, axis) >= bands
        and all(t in inside or b in program.statements[t].writes for t in program.touchers[b])
    ]  # fmt: skip
    edges = region.edges([*region.writes, *own], bands)
    if edges is None:
        raise Refused(f"there are not as many {axis}")
    pieces: dict[tuple[int, int], int] = {}
    ranges: dict[tuple[int, int, int], int] = {}
    joined: set[int] = set()

    def piece(b: int, k: int) -> int:
        """Rows ``edges[b][k]`` to ``edges[b][k + 1]`` of a buffer."""
        if (b, k) not in pieces:
            low, high = edges[b][k], edges[b][k + 1]
            if b in place:
                q = place[b]
                rule, v = region.rules[q], region.statements[q]
                if rule.banded:
                    found = crop(rule, {x: exactly(0, source.extent(x, axis)) for x in rule.banded}, (low, high))
                else:
                    free = rule.map.output(exactly(low, high))
                    found = None if free is None else ({}, free)
                if found is None:
                    raise Refused(f"no range of {axis} gives band {k}")
                given, made = found
                operands = {x: rows(x, r.start, r.end) for x, r in given.items()}
                operands |= {x: whole(x) for x in program.statements[v].reads if x in place and x not in given}
                run = out.run(v, axis, given, operands, made)
                pieces[b, k] = out.rows_of(run, b, axis, (made.start, made.end), (low, high))
            else:
                pieces[b, k] = out.rows_of(b, b, axis, (0, source.extent(b, axis)), (low, high))
        return pieces[b, k]

    def rows(b: int, low: int, high: int) -> int:
        """A buffer that holds these rows and no others."""
        if b not in edges:
            if (b, low, high) not in ranges:
                ranges[b, low, high] = out.rows_of(b, b, axis, (0, source.extent(b, axis)), (low, high))
            return ranges[b, low, high]
        if (low, high) == (0, edges[b][-1]):
            return whole(b)
        if (b, low, high) not in ranges:
            parts = []
            for k, (start, end) in enumerate(pairwise(edges[b])):
                a, e = max(low, start), min(high, end)
                if a < e:
                    parts.append((out.rows_of(piece(b, k), b, axis, (start, end), (a, e)), a, e))
            new = parts[0][0] if len(parts) == 1 else out.join(parts, b, axis, out.part(b, axis, low, high - low))
            ranges[b, low, high] = new
        return ranges[b, low, high]

    def whole(b: int) -> int:
        if b in place and b not in joined:
            joined.add(b)
            out.join([(piece(b, k), low, high) for k, (low, high) in enumerate(pairwise(edges[b]))], b, axis)
        return b

    deferred: dict[int, int] = {}  # value -> how many are deferred for it, itself included
    for q, b in enumerate(region.writes):
        depth = 1 + max((deferred.get(x, 0) for x in region.rules[q].banded), default=0)
        if b not in region.outputs and len(region.readers.get(b, ())) == 1 and depth <= most_deferred:
            deferred[b] = depth
        else:
            for k in range(bands):
                piece(b, k)
    for b in region.outputs:
        whole(b)
