"""What a region in bands needs, estimated without ordering it: fast enough to ask of every region.

The bands run one after the other. Their input is cut as they come, or from some band on all that is left of it at once,
so that the whole of it can go; the cheapest moment for that is taken. Orders that interleave regions are better still,
which the exact search finds afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from peakmem.frontends.splitting import Axis, Splittable
from peakmem.model import Refused
from peakmem.transform.split.bands import Band, Body, band, body
from peakmem.transform.split.layout import MOST_DEFERRED, Writer, kept


@dataclass(frozen=True, slots=True)
class Candidate:
    """A region with what it would need at its worst moment, in bytes, and more MACs."""

    first: int
    last: int
    bands: int
    axis: Axis
    peak: int
    extra: int
    kept: bool = False


class Estimator:
    """A base order of a program, and what regions of it would need.

    Parameters
    ----------
    source : Splittable
    order : sequence of int
        The base order.
    """

    def __init__(self, source: Splittable, order: Sequence[int]) -> None:
        self.source = source
        self.order = tuple(order)
        self.work = 0  # statements of bands that were looked at
        program = source.program
        _, self.live, self.first, self.last = program.live_bytes(self.order, program.workspaces)

    def live_across(self, region: Body, first: int, last: int) -> tuple[int, int]:
        """Bytes that live as long as the region runs; of its banded inputs, those that end in it."""
        across = ending = 0
        for b, buffer in enumerate(self.source.program.buffers):
            if buffer.kind == "constant" or self.first[b] > last or self.last[b] < first or b in region.made:
                continue
            if self.last[b] <= last and b in region.inputs:
                ending += buffer.size
            else:
                across += buffer.size
        return across, ending

    def region(self, first: int, last: int, axis: Axis, *, kept: bool = False) -> Shape | str:
        """These places of the order as a region, or why they cannot be one."""
        found = body(self.source, self.order[first : last + 1], axis, kept=kept)
        return found if isinstance(found, str) else Shape(self, found, first, last)


@dataclass(frozen=True)
class Shape:
    """A region of an order, before it is known in how many bands."""

    estimator: Estimator
    body: Body
    first: int
    last: int

    @cached_property
    def around(self) -> tuple[int, int]:
        return self.estimator.live_across(self.body, self.first, self.last)

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """Banded inputs that nothing reads behind the region."""
        return tuple(b for b in self.body.inputs if self.estimator.last[b] <= self.last)

    @cached_property
    def joined(self) -> int:
        """Bytes while the bands are joined, the largest output first: no number of bands needs less. O(buffers)."""
        source = self.estimator.source
        sizes = [source.program.buffers[b].size for b in self.body.outputs]
        return self.around[0] + sum(sizes) + (0 if source.in_place else max(sizes))

    @cached_property
    def macs(self) -> int:
        """Of the statements run whole."""
        return sum(self.estimator.source.program.statements[v].cost for v in self.body.statements)

    @cached_property
    def last_reader(self) -> dict[int, int]:
        """Place of the last statement in the region that reads a buffer in bands."""
        return {b: places[-1] for b, places in self.body.readers.items()}

    def in_bands(self, bands: int) -> Candidate | None:
        """What so many bands would need; None where they cannot be. O(bands * statements)."""
        cuts = self.body.cuts(bands)
        if cuts is None:
            return None
        source, axis = self.estimator.source, self.body.axis
        across, ending = self.around
        cut: list[int] = []  # bytes of each band's cuts
        inner: list[int] = []  # the most that a band holds while it runs, its cuts included
        pieces: list[int] = []  # bytes of what each band delivers
        whole: list[int] = []  # bytes of inputs that end in the region and that a band reads whole
        macs = 0
        for wanted in cuts:
            self.estimator.work += len(self.body.statements)
            worked = band(self.body, wanted)
            if worked is None:
                return None
            taken, most, delivered, cost = self._one(worked)
            cut.append(taken)
            whole.append(sum(source.program.buffers[b].size for b in self.ends if b in worked.taken and self._uncut(b, worked)))
            inner.append(most)
            pieces.append(delivered)
            macs += cost
        n = len(cuts)
        done = [0, *accumulate(pieces)]
        left = [*[*accumulate(reversed(cut))][::-1], 0]  # cuts of band k and all behind it
        going = [*accumulate((ending + done[k] + max(inner[k], cut[k]) for k in range(n)), max)]
        rest = [0] * (n + 1)
        for k in range(n - 1, -1, -1):
            rest[k] = max(rest[k + 1], left[k + 1] + done[k] + inner[k] + max(whole[k:]))
        best = min(
            max(going[k - 1] if k else 0, ending + done[k] + left[k], rest[k]) for k in range(n)
        )
        return Candidate(self.first, self.last, bands, axis, max(across + best, self.joined), macs - self.macs)

    def halos_kept(self, bands: int) -> Candidate | None:
        """What so many bands would need whose halos are kept: laid out, in the base order or band by band, whichever needs less."""
        ways = [self._laid_out(bands, deferred) for deferred in (0, MOST_DEFERRED)]
        found = [way for way in ways if way is not None]
        return Candidate(self.first, self.last, bands, self.body.axis, *min(found), kept=True) if found else None

    def _laid_out(self, bands: int, deferred: int) -> tuple[int, int] | None:
        """The live peak of a region with kept halos as it is laid out, and more MACs. O(steps)."""
        out = Writer(self.estimator.source)
        try:
            kept(out, self.body, bands, deferred)
        except Refused:
            return None
        self.estimator.work += len(out.steps)
        across, ending = self.around
        goes = {b: k for k, step in enumerate(out.steps) for b in step.reads}
        here = {b for step in out.steps for b in step.writes} | set(self.ends)
        live, most = across + ending, 0
        for k, s in enumerate(out.statements):
            live += sum(out.buffers[b].size for b in s.writes)
            most = max(most, live + s.workspace)
            live -= sum(out.buffers[b].size for b in set(s.reads) if b in here and goes[b] == k and b not in self.body.outputs)
        return most, sum(s.cost for s in out.statements) - self.macs

    def _uncut(self, buffer: int, worked: Band) -> bool:
        """Whether a band reads the whole of an input."""
        rows = worked.taken[buffer]
        return (rows.start, rows.count) == (0, self.estimator.source.extent(buffer, self.body.axis))

    def _one(self, worked: Band) -> tuple[int, int, int, int]:
        """Bytes of its cuts, the most it holds, bytes of what it delivers, MACs."""
        source, axis = self.estimator.source, self.body.axis
        alive: dict[int, int] = {}
        taken = 0
        for b, rows in worked.taken.items():
            if not self._uncut(b, worked):
                alive[b] = source.size(b, axis, rows.count)
                taken += alive[b]
        most, cost = taken, 0
        last = self.last_reader
        have = {b: (r.start, r.end) for b, r in worked.taken.items()}
        for q, given, rows in worked.runs:
            v = self.body.statements[q]
            y = self.body.writes[q]
            crops = sum(
                source.size(b, axis, r.count) for b, r in given.items() if have.get(b) != (r.start, r.end)
            )
            workspace, macs = source.price(v, axis, {b: (r.start, r.count) for b, r in given.items()}, rows.count)
            cost += macs
            size = source.size(y, axis, rows.count)
            most = max(most, sum(alive.values()) + crops + size + workspace)
            alive[y], have[y] = size, (rows.start, rows.end)
            for b in given:
                if last[b] <= q and b in alive and b not in worked.wanted:
                    del alive[b]
        delivered = 0
        for b, (low, high) in worked.wanted.items():
            piece = source.size(b, axis, high - low)
            if have[b] != (low, high):
                most = max(most, sum(alive.values()) + piece)
                alive[b] = piece
            delivered += piece
        return taken, most, delivered, cost
