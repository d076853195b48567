"""The recomputation problem of one base order: what may run twice, what that brings back, what it costs.

A *unit* is what is rerun as a whole. Usually it is one statement. A buffer that several statements write (a
convolution and the activation that rewrites its result in place, a result and its reshaped alias, or the parts of a
concatenation) is brought back by rerunning in a row, into one fresh buffer, *the writers that have run so far*: each
prefix of the writers is a unit of its own, which may rerun between its last writer and the next one. So the buffer is
always restored to what it holds at that moment of the base order. ``docs/recompute.md`` has the proof.

A statement that gives a buffer another name (a reshape without a copy) must be listed as writing it; otherwise its
result would not be copied with the buffer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from peakmem.model import Program, UsageError, did_you_mean

NEVER = -1


@dataclass(frozen=True, slots=True)
class Unit:
    """Statements that are rerun together.

    Attributes
    ----------
    group : int
        The statement by which all units with common members are known; together they obey the cap.
    members : tuple of int
        Statements in base order, run in a row.
    sources : tuple of int
        Buffers of positive size that it reads and does not write; all must be resident while it reruns.
    delivers : tuple of int
        Buffers it brings back: candidates for being dropped.
    inner : tuple of int
        While each member runs, the bytes of its workspace and of the fresh buffers that the row itself still needs.
        A fresh buffer is charged from its first writer to its last toucher in the row.
    read_until : tuple of int
        For each source the index of the last member that reads it: it may be dropped after that.
    made_by : tuple of int
        For each delivered buffer the index of its last toucher in the row: it is kept from there on, or dropped.
    charge : int
        Most bytes that a rerun adds to its sources, if it keeps all that it delivers.
    cost : int
        MACs of one rerun.
    ready : int
        Base step of its last member; it may rerun in gaps after that (gap ``t`` stands before base step ``t``).
    deadline : int
        The last gap in which it may rerun: its sources still hold what it read the first time, and the next writer
        of what it delivers has not run.
    """

    group: int
    members: tuple[int, ...]
    sources: tuple[int, ...]
    delivers: tuple[int, ...]
    inner: tuple[int, ...]
    read_until: tuple[int, ...]
    made_by: tuple[int, ...]
    charge: int
    cost: int
    ready: int
    deadline: int


@dataclass(frozen=True)
class RerunProblem:
    """Recomputation for one base order.

    Attributes
    ----------
    program : Program
    order : tuple of int
        The base order; honours the dependences.
    cap : int
        The most times any statement runs (2: once more).
    max_extra_macs : int or None
        Budget for all reruns together.
    thresholds : mapping of str to int
        Operator -> bytes: its results are candidates only if they are larger.
    workspaces : tuple of int or None
        Workspace to charge for each statement; None takes `Program.workspaces`.

    Raises
    ------
    UsageError
        From the constructor: cap below 1, a negative budget or threshold, an operator that the program does not
        have.
    InputError
        If ``order`` is no order of the program.
    """

    program: Program
    order: tuple[int, ...]
    cap: int = 2
    max_extra_macs: int | None = None
    thresholds: Mapping[str, int] = field(default_factory=dict)
    workspaces: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.cap < 1:
            raise UsageError(f"cap: {self.cap} is below 1; every operator runs at least once")
        if self.max_extra_macs is not None and self.max_extra_macs < 0:
            raise UsageError(f"extra MACs: {self.max_extra_macs} is negative; give 0 or more")
        known = {s.op for s in self.program.statements}
        for op, size in self.thresholds.items():
            if op not in known:
                raise UsageError(
                    f"threshold: the program has no operator {op!r} (it has {', '.join(sorted(known)) or 'none'})"
                    + did_you_mean(op, known)
                )
            if size < 0:
                raise UsageError(f"threshold: {size} bytes for {op!r} is negative; give 0 or more")
        self.program.validate_order(self.order)

    # -- the base order --------------------------------------------------------------------------------------

    @cached_property
    def position(self) -> tuple[int, ...]:
        """Base step of each statement."""
        result = [0] * len(self.order)
        for step, v in enumerate(self.order):
            result[v] = step
        return tuple(result)

    @cached_property
    def charged(self) -> tuple[int, ...]:
        """Workspace of each statement, in bytes."""
        return self.program.workspaces if self.workspaces is None else self.workspaces

    @cached_property
    def born(self) -> tuple[int, ...]:
        """Base step of each buffer's first toucher; -1 for inputs, n for what nothing touches."""
        n = len(self.order)
        return tuple(
            -1 if b.kind == "input" else min((self.position[v] for v in self.program.touchers[i]), default=n)
            for i, b in enumerate(self.program.buffers)
        )

    @cached_property
    def last_use(self) -> tuple[int, ...]:
        """Base step of each buffer's last toucher; n if pinned, -1 if nothing touches it."""
        n = len(self.order)
        return tuple(
            n if b.pinned else max((self.position[v] for v in self.program.touchers[i]), default=-1)
            for i, b in enumerate(self.program.buffers)
        )

    @cached_property
    def uses(self) -> tuple[tuple[int, ...], ...]:
        """Base steps of each buffer's touchers, ascending."""
        return tuple(tuple(sorted(self.position[v] for v in t)) for t in self.program.touchers)

    @cached_property
    def writes(self) -> tuple[tuple[int, ...], ...]:
        """Buffers that each statement writes, constants left out, each once."""
        buffers = self.program.buffers
        return tuple(
            tuple(b for b in dict.fromkeys(s.writes) if buffers[b].kind != "constant") for s in self.program.statements
        )

    @cached_property
    def writers(self) -> tuple[tuple[int, ...], ...]:
        """Statements that write each buffer, in base order; empty for constants."""
        found: list[list[int]] = [[] for _ in self.program.buffers]
        for v in self.order:
            for b in self.writes[v]:
                found[b].append(v)
        return tuple(map(tuple, found))

    # -- units -----------------------------------------------------------------------------------------------

    def _reads(self, v: int) -> tuple[int, ...]:
        buffers = self.program.buffers
        return tuple(b for b in dict.fromkeys(self.program.statements[v].reads) if buffers[b].kind != "constant")

    def _rerunnable(self, v: int) -> bool:
        s = self.program.statements[v]
        return s.pure and not s.effects and not s.bodies

    @cached_property
    def excluded(self) -> dict[str, int]:
        """Operators that never run twice because of what they are (random, stateful, control flow, overwriting an input,
        of unknown price), with counts."""
        names = Counter(s.op or s.name for v, s in enumerate(self.program.statements) if not self._rerunnable(v))
        return dict(sorted(names.items()))

    @cached_property
    def units(self) -> tuple[Unit, ...]:
        """All units that may rerun under the cap, such that a unit's sources are delivered by earlier ones."""
        if self.cap < 2:
            return ()
        found = []
        for group in self._groups():
            for i in range(1, len(group) + 1):
                end = self.position[group[i]] if i < len(group) else len(self.order) - 1
                unit = self._unit(group[:i], end)
                if unit is not None:
                    found.append(unit)
        return _acyclic(sorted(found, key=lambda u: (u.ready, u.members)))

    @cached_property
    def units_of(self) -> dict[int, tuple[int, ...]]:
        """Buffer -> indices of the units that deliver it; their windows do not overlap."""
        found: dict[int, list[int]] = {}
        for i, u in enumerate(self.units):
            for b in u.delivers:
                found.setdefault(b, []).append(i)
        return {b: tuple(units) for b, units in found.items()}

    def unit_at(self, b: int, gap: int) -> int | None:
        """The unit that can bring ``b`` back in ``gap``."""
        for i in self.units_of.get(b, ()):
            if self.units[i].ready < gap <= self.units[i].deadline:
                return i
        return None

    def _groups(self) -> list[tuple[int, ...]]:
        """Statements joined when they write one buffer that could be dropped; each group in base order."""
        from networkx.utils import UnionFind

        joined = UnionFind(self.order)
        for b, writers in enumerate(self.writers):
            buffer = self.program.buffers[b]
            if len(writers) > 1 and not buffer.pinned and buffer.kind != "input":
                joined.union(*writers)
        groups: dict[int, list[int]] = {}
        for v in self.order:
            groups.setdefault(joined[v], []).append(v)
        return [tuple(g) for g in groups.values()]

    def _unit(self, members: tuple[int, ...], deadline: int) -> Unit | None:
        """The unit of these members, which must run in a row before anything else writes what they write."""
        program, position = self.program, self.position
        if not all(self._rerunnable(v) for v in members):
            return None
        inside = set(members)
        ready = position[members[-1]]
        sources: dict[int, None] = {}
        begun: set[int] = set()
        for v in members:
            for b in self._reads(v):
                writers = [w for w in self.writers[b] if position[w] <= ready]
                if any(w in inside for w in writers):
                    # Copies work on fresh storage, so all that filled it must be copied, before it is read.
                    if b not in begun or program.buffers[b].kind == "input" or not inside.issuperset(writers):
                        return None
                else:
                    deadline = min([deadline, *(position[w] for w in self.writers[b] if position[w] > position[v])])
                    if program.buffers[b].size:
                        sources[b] = None
            begun.update(self.writes[v])
        if deadline <= ready or (len(members) > 1 and self._feeds_itself(members, sources)):
            return None
        written = dict.fromkeys(b for v in members for b in self.writes[v])
        delivers = tuple(b for b in written if self._delivered(b, inside, ready))
        if not delivers:
            return None
        touched = {b: [i for i, v in enumerate(members) if b in program.touched[v]] for b in (*sources, *written)}
        made_by = [touched[b][-1] for b in delivers]
        sizes = program.buffers
        inner = [
            self.charged[v] + sum(sizes[b].size for b in written if touched[b][0] <= i <= touched[b][-1])
            for i, v in enumerate(members)
        ]
        return Unit(
            group=members[0],
            members=members,
            sources=tuple(sources),
            delivers=delivers,
            inner=tuple(inner),
            read_until=tuple(touched[b][-1] for b in sources),
            made_by=tuple(made_by),
            charge=max(
                x + sum(sizes[b].size for b, last in zip(delivers, made_by) if last < i) for i, x in enumerate(inner)
            ),
            cost=sum(program.statements[v].cost for v in members),
            ready=ready,
            deadline=deadline,
        )

    def _delivered(self, b: int, inside: set[int], ready: int) -> bool:
        """Whether a rerun brings back what ``b`` holds after base step ``ready``, and ``b`` is a candidate."""
        buffer = self.program.buffers[b]
        if buffer.pinned or buffer.kind == "input" or not buffer.size:
            return False
        if not inside.issuperset(w for w in self.writers[b] if self.position[w] <= ready):
            return False
        return all(buffer.size > self.thresholds.get(self.program.statements[w].op, -1) for w in self.writers[b])

    def _feeds_itself(self, members: tuple[int, ...], sources: Mapping[int, None]) -> bool:
        """Whether a source is made from what the unit makes, so that it cannot run in a row."""
        program = self.program
        inside, reached = set(members), set(members)
        last = self.position[members[-1]]
        for v in self.order[self.position[members[0]] : last]:
            if v not in reached and any(p in reached for p in program.predecessors[v]):
                reached.add(v)
        return any(w in reached and w not in inside for b in sources for w in self.writers[b])

    # -- how long things are worth keeping -------------------------------------------------------------------

    def needed_through(self, usable: Sequence[bool] | None = None) -> tuple[list[int], list[int]]:
        """How long a buffer is of use to base runs and reruns.

        Parameters
        ----------
        usable : sequence of bool, optional
            Which units may rerun; default all.

        Returns
        -------
        buffers : list of int
            For each buffer the last base step or gap that may read it (n if pinned, -1 if none).
        units : list of int
            For each unit the last gap in which a rerun may be of use (-1 if it may not rerun).
        """
        through = list(self.last_use)
        last = [NEVER] * len(self.units)
        for i in range(len(self.units) - 1, -1, -1):
            unit = self.units[i]
            if usable is not None and not usable[i]:
                continue
            last[i] = min(unit.deadline, max(through[b] for b in unit.delivers))
            if last[i] <= unit.ready:
                last[i] = NEVER
                continue
            for b in unit.sources:
                through[b] = max(through[b], last[i])
        return through, last

    @cached_property
    def total_macs(self) -> int:
        return sum(s.cost for s in self.program.statements)


def _acyclic(units: list[Unit]) -> tuple[Unit, ...]:
    """Units in an order in which sources are delivered first; those that need each other are left out.

    Two units of several statements may need each other's results although no single one feeds itself.
    """
    import networkx as nx

    makers: dict[int, list[int]] = {}
    for i, u in enumerate(units):
        for b in u.delivers:
            makers.setdefault(b, []).append(i)
    graph: nx.DiGraph[int] = nx.DiGraph()
    graph.add_nodes_from(range(len(units)))
    graph.add_edges_from(
        (m, i) for i, u in enumerate(units) for b in u.sources for m in makers.get(b, ()) if units[m].ready < u.deadline
    )
    for component in list(nx.strongly_connected_components(graph)):
        if len(component) > 1:
            graph.remove_nodes_from(component)
    return tuple(units[i] for i in nx.lexicographical_topological_sort(graph))


def parse_extra_macs(text: str, total: int) -> int:
    """A budget given as MACs (``"250000"``) or as a share of the program's MACs (``"0.5%"``).

    Raises
    ------
    UsageError
        On anything else, on negative numbers and on more than 100 %.
    """
    plain = text.strip().replace("_", "").replace(",", "")
    try:
        if plain.endswith("%"):
            share = float(plain[:-1])
            if not 0 <= share <= 100:
                raise UsageError(f"extra MACs: {text!r} is not between 0% and 100%")
            return int(total * share / 100)
        if (value := int(plain)) < 0:
            raise UsageError(f"extra MACs: {text!r} is negative; give 0 or more")
        return value
    except ValueError:
        raise UsageError(f"extra MACs: {text!r} is neither a whole number nor a percentage such as 0.5%") from None
