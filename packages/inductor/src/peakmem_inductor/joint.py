"""The joint graph of forward and backward before it is parted: what to save, and a model of the step that follows.

A set of saved values parts the graph: the forward computes the results and the set, the backward the gradients from the set
and the arguments, computing again whatever else it needs. Every part is modelled as a program: which loops Inductor will
fuse, and what it will overwrite, is guessed here. So the model only says which sets are worth generating; bytes that anybody
is told come from the generated programs. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from peakmem.model import Buffer, Program, Statement
from peakmem.ordering import order_program

EFFORT = 50_000
"""For ordering one modelled program, in the units of `peakmem.ordering.order_program`: the same answer everywhere."""

SIDEWAYS = 2
"""Moves in a row that a descent makes although they gain nothing: two gradients at their peak may need two moves."""

LARGEST = 64
"""Loops that Inductor fuses into one kernel at most."""

Kind = Literal["argument", "view", "loop", "call", "tuple", "part"]
Saved = frozenset[int]


@dataclass(frozen=True)
class Value:
    """One node.

    Attributes
    ----------
    name : str
        Torch's name of the node.
    inputs : tuple of int
        Values that it reads, all of them earlier.
    kind : str
        ``argument`` (also a constant); ``view``, which takes no memory; ``loop``, which Inductor generates and may fuse;
        ``call`` of an operator; ``tuple``, a call of several results, each of which is a ``part``.
    bytes : int
    points : int
        Iterations of a loop: the elements of its result, or of what it sums. Loops of the same number may be fused; it is
        negative for sums along other dimensions than the last, which are nested the other way round.
    sums : bool
        Whether the loop sums, so that its result is never computed inside of another loop.
    macs, workspace : int
        Of computing it once.
    forward, backward : bool
        Whether the results need it; whether it depends on the gradient of the loss.
    barred : str
        Why it is never computed a second time, or the empty string.
    savable : bool
    """

    name: str
    inputs: tuple[int, ...] = ()
    kind: Kind = "loop"
    bytes: int = 0
    points: int = 0
    sums: bool = False
    macs: int = 0
    workspace: int = 0
    forward: bool = True
    backward: bool = False
    barred: str = ""
    savable: bool = True


@dataclass(frozen=True)
class Split:
    """Values computed by forward and backward, ascending; what is saved beside the arguments; what the backward needs of the
    forward and is not saved, arguments included."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    saved: Saved
    again: tuple[int, ...]


@dataclass(frozen=True, order=True)
class Estimate:
    """Modelled bytes above the start of the step, and MACs of it; ``both`` adds the peaks of forward and backward."""

    peak: int
    both: int
    macs: int


@dataclass
class Joint:
    """Values in an order in which they can be computed, results of the forward, and gradients."""

    values: Sequence[Value]
    results: Sequence[int]
    gradients: Sequence[int]
    _estimates: dict[Saved, Estimate | None] = field(default_factory=dict, repr=False, init=False)

    def __post_init__(self) -> None:
        self._root = list(range(len(self.values)))
        for i, value in enumerate(self.values):
            if value.kind == "view" and value.inputs:
                self._root[i] = self._root[value.inputs[0]]

    def names(self, saved: Iterable[int]) -> tuple[str, ...]:
        return tuple(self.values[i].name for i in sorted(saved))

    def barred(self, saved: Collection[int]) -> str:
        """Why the backward may not compute again what this set makes it compute, with the value; empty if it may."""
        again = self._backward(saved)[1]
        return next((f"{self.values[i].name}: {self.values[i].barred}" for i in again if self.values[i].barred), "")

    def split(self, saved: Collection[int]) -> Split:
        """Part the graph; what the backward does not ask for is not saved."""
        backward, again, asked = self._backward(saved)
        wanted = [i for i in (*self.results, *asked) if self.values[i].kind != "argument"]
        return Split(self._closure(wanted), backward, asked, again)

    def _closure(self, wanted: Iterable[int]) -> tuple[int, ...]:
        found, stack = set(), list(wanted)
        while stack:
            i = stack.pop()
            if i not in found and self.values[i].kind != "argument":
                found.add(i)
                stack += self.values[i].inputs
        return tuple(sorted(found))

    def _backward(self, saved: Collection[int]) -> tuple[tuple[int, ...], tuple[int, ...], Saved]:
        found, asked, stack = set(), set(), list(self.gradients)
        while stack:
            i = stack.pop()
            value = self.values[i]
            if i in saved and not value.backward and value.kind != "argument":
                asked.add(i)
            elif i not in found:
                found.add(i)
                stack += value.inputs
        rows = tuple(sorted(i for i in found if self.values[i].kind != "argument"))
        # A barred argument is one whose bytes the forward overwrites: reading it later would be computing it again.
        again = tuple(sorted(i for i in found if self.values[i].forward and not self.values[i].backward))
        return rows, again, frozenset(asked)

    # -- the model -------------------------------------------------------------------------------------------

    def estimate(self, saved: Saved) -> Estimate | None:
        """The step with the best orders found; None where something would be computed again that must not be."""
        if saved not in self._estimates:
            self._estimates[saved] = None if self.barred(saved) else self._estimate(self.split(saved))
        return self._estimates[saved]

    @property
    def estimates(self) -> Mapping[Saved, Estimate | None]:
        """All sets that were looked at."""
        return self._estimates

    def _estimate(self, split: Split) -> Estimate:
        given = {self._root[i] for i in self.results}
        kept = {r for i in split.saved if self.values[r := self._root[i]].kind != "argument"}  # an argument's view is no more
        forward = _peak(_Lowering(self, split.forward, given | kept, {}).program())
        entry = {r: r in given for r in kept}
        program = _Lowering(self, split.backward, {self._root[i] for i in self.gradients}, entry).program()
        beside = sum(self.values[r].bytes for r in given if self.values[r].kind != "argument" and r not in kept)
        backward = beside + _peak(program)
        macs = sum(self.values[i].macs for part in (split.forward, split.backward) for i in part)
        return Estimate(max(forward, backward), forward + backward, macs)

    # -- moves -----------------------------------------------------------------------------------------------

    def neighbours(self, saved: Saved) -> Iterator[Saved]:
        """Sets that differ by one decision: a value not saved, one saved more, one saved in place of another.

        In its place: a smaller one that it is computed from, or one that is computed from it.
        """
        split = self.split(saved)
        again = set(split.again)
        for i in sorted(split.saved):
            less = split.saved - {i}
            yield self.split(less).saved
            for j in self.split(less).again:
                if j not in again and self._may_save(j) and self.values[j].bytes < self.values[i].bytes:
                    yield self.split(less | {j}).saved
        for j in split.again:
            if self._may_save(j):
                yield self.split(split.saved | {j}).saved
                for i in self._from(j, split.saved):
                    yield self.split((split.saved - {i}) | {j}).saved

    def _from(self, j: int, saved: Saved) -> list[int]:
        """Saved values that one is computed from without another saved one between."""
        found, stack = set(), list(self.values[j].inputs)
        while stack:
            i = stack.pop()
            if i in found or self.values[i].kind == "argument":
                continue
            found.add(i)
            if i not in saved:
                stack += self.values[i].inputs
        return sorted(found & saved)

    def _may_save(self, i: int) -> bool:
        return self.values[i].savable and self.values[i].kind in ("loop", "call", "part")

    def descend(
        self, start: Saved, evaluations: int, *, ceiling: int | None = None, avoid: Collection[Saved] = ()
    ) -> Saved | None:
        """The best set found by going to the best of all neighbours again and again; None if none is better than the start.

        Parameters
        ----------
        start : Saved
        evaluations : int
            The most sets to model.
        ceiling : int, optional
            Look for the fewest MACs of a peak within it, instead of the least peak.
        avoid : collection of Saved
            Sets that are never taken.
        """

        def key(estimate: Estimate) -> tuple[int, ...]:
            if ceiling is None:
                return (estimate.peak, estimate.both, estimate.macs)
            return (max(0, estimate.peak - ceiling), estimate.macs, estimate.peak)

        stop = len(self._estimates) + evaluations
        best, here = start, self.estimate(start)
        if here is None:
            return None
        least, place, visited, sideways = key(here), start, {start, *avoid}, 0
        while sideways <= SIDEWAYS:
            nearest: tuple[tuple[int, ...], tuple[int, ...], Saved] | None = None
            for near in self.neighbours(place):
                if near in visited or (near not in self._estimates and len(self._estimates) >= stop):
                    continue
                estimate = self.estimate(near)
                if estimate is not None:
                    row = (key(estimate), tuple(sorted(near)), near)
                    nearest = row if nearest is None or row[:2] < nearest[:2] else nearest
            if nearest is None:
                break
            place = nearest[2]
            visited.add(place)
            sideways += 1
            if nearest[0] < least:
                least, best, sideways = nearest[0], place, 0
        return best if best != start else None


def _peak(program: Program) -> int:
    return order_program(program, effort=EFFORT).peak if len(program) else program.entry_bytes


class _Lowering:
    """A guess at the program that Inductor makes of some values.

    Parameters
    ----------
    values : tuple of int
        Those it computes.
    results : set of int
        Roots that it returns.
    entry : mapping of int to bool
        Roots that it is given beside the arguments, and whether the caller holds them.
    """

    def __init__(self, joint: Joint, values: Sequence[int], results: set[int], entry: Mapping[int, bool]) -> None:
        self.all, self.root = joint.values, joint._root
        self.values, self.results, self.entry = values, results, entry
        self.members: list[list[int]] = []  # what each group computes
        self.group_of: dict[int, int] = {}
        self.before: list[int] = []  # ancestors of each group, as a bit set
        self.loops: dict[int, set[int]] = {}  # groups of loops that read or hold a root
        self.sources: dict[int, set[int]] = {}  # roots in memory that a value is computed from

    def program(self) -> Program:
        called = {r for i in self.values if self.all[i].kind in ("call", "tuple") for r in self._read(i)}
        inlined: dict[int, set[int]] = {}
        for i in self.values:
            value = self.all[i]
            if value.kind == "view" or i in self.entry:
                continue
            sources: set[int] = set()
            for r in self._read(i):
                sources |= inlined.get(r, {r} if r in self.group_of or r in self.entry else set())
            if value.kind == "part":
                self.group_of[i] = self.group_of[value.inputs[0]]
                self.members[self.group_of[i]].append(i)
                continue
            if value.kind == "loop" and not value.sums and i not in self.results and i not in called:
                inlined[i] = sources
                continue
            self.sources[i] = sources
            self._place(i, sources)
        return self._build()

    def _read(self, i: int) -> set[int]:
        return {self.root[j] for j in self.all[i].inputs if self.all[self.root[j]].kind != "argument" or self.root[j] in self.entry}

    def _place(self, i: int, sources: set[int]) -> None:
        """Into the group that shares most with it, of those that this closes no circle with; else into one of its own."""
        value = self.all[i]
        reads = {self.group_of[r] for r in sources if r in self.group_of}
        above = 0
        for s in reads:
            above |= self.before[s] | 1 << s
        if value.kind == "loop":
            shared: dict[int, int] = {}
            for r in sources:
                for g in self.loops.get(r, ()):
                    shared[g] = shared.get(g, 0) + self.all[r].bytes
            fits = [g for g in shared if self.all[self.members[g][0]].points == value.points and len(self.members[g]) < LARGEST]
            fits = [g for g in fits if not any(self.before[s] >> g & 1 for s in reads)]
            if fits:
                g = max(fits, key=lambda g: (shared[g], -g))
                above &= ~(1 << g)
                for d, mask in enumerate(self.before):
                    if d == g or mask >> g & 1:
                        self.before[d] |= above
            else:
                g = self._open(above)
            for r in (i, *sources):
                self.loops.setdefault(r, set()).add(g)
        else:
            g = self._open(above)
        self.members[g].append(i)
        self.group_of[i] = g

    def _open(self, above: int) -> int:
        self.members.append([])
        self.before.append(above)
        return len(self.members) - 1

    def _build(self) -> Program:
        readers: dict[int, set[int]] = {}
        for i, sources in self.sources.items():
            for r in sources:
                readers.setdefault(r, set()).add(i)
        order = sorted(range(len(self.members)), key=lambda g: (self.before[g].bit_count(), g))
        order = _topological(order, self.before)
        buffers: list[Buffer] = []
        place: dict[int, int] = {}
        for r, held in self.entry.items():
            place[r] = len(buffers)
            pinned = held or r in self.results or not readers.get(r)
            buffers.append(Buffer(self.all[r].name, self.all[r].bytes, "input", pinned))
        position = {g: k for k, g in enumerate(order)}
        statements = []
        taken: set[int] = set()
        for g in order:
            members = self.members[g]
            sources = {r for m in members for r in self.sources.get(m, ()) if self.group_of.get(r) != g or r in self.entry}
            writes = []
            for m in members:
                value = self.all[m]
                inside = all(self.group_of[i] == g for i in readers.get(m, ()))
                if value.kind == "tuple" or (value.kind == "loop" and inside and m not in self.results):
                    continue
                over = next((r for r in sorted(sources) if value.kind == "loop" and self._overwrites(r, m, readers, taken)), None)
                if over is not None:
                    taken.add(over)
                    place[m] = place[over]
                    old = buffers[place[over]]
                    buffers[place[over]] = replace(old, pinned=m in self.results)
                else:
                    place[m] = len(buffers)
                    buffers.append(Buffer(value.name, value.bytes, "output" if m in self.results else "intermediate"))
                writes.append(place[m])
            before = {position[self.group_of[r]] for r in sources if r in self.group_of}
            first = self.all[members[0]]
            statements.append(
                Statement(
                    first.name,
                    reads=tuple(sorted({place[r] for r in sources})),
                    writes=tuple(sorted(set(writes))),
                    dependences=tuple(sorted(before)),
                    workspace=max(self.all[m].workspace for m in members),
                )
            )
        return Program(tuple(buffers), tuple(statements))

    def _overwrites(self, r: int, m: int, readers: Mapping[int, set[int]], taken: set[int]) -> bool:
        """Whether a kernel writes a value over one that no other one reads, not even in the same kernel."""
        same = self.all[r].bytes == self.all[m].bytes and readers.get(r) == {m}
        return same and r not in self.results and r not in taken and not self.entry.get(r, False)


def _topological(order: Sequence[int], before: Sequence[int]) -> list[int]:
    done, found, waiting = 0, [], list(order)
    while waiting:
        rest = []
        for g in waiting:
            if before[g] & ~done:
                rest.append(g)
            else:
                done |= 1 << g
                found.append(g)
        waiting = rest
    return found
