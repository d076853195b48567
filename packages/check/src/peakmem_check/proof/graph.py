"""Graphs and flow networks as the checker of certificates sees them, and readers of untrusted values.

Part of `peakmem_check.proof.check`; like it, knows the program model and nothing else of peakmem.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

from peakmem_check.model.errors import Refused
from peakmem_check.model.program import Buffer, Program, Statement

_TABLE = 8192  # up to so many statements closures are tabulated; above, the program's own DAG is searched on demand


# -- graphs -----------------------------------------------------------------------------------------------------------


class Dag:
    """The program's dependences and added precedences. Everything is computed when first asked for.

    Sets of statements are bit masks (Python integers). ``members`` are the statements of the part that `restricted` made the
    program of; all if not given.
    """

    def __init__(
        self, program: Program, arcs: frozenset[tuple[int, int]] = frozenset(), members: int | None = None
    ) -> None:
        self.program = program
        self.arcs = arcs
        self.n = len(program)
        self.everything = (1 << self.n) - 1 if members is None else members
        self._searched: dict[tuple[bool, int], int] = {}
        self._births: dict[int, tuple[int, ...]] = {}

    @cached_property
    def predecessors(self) -> Sequence[Sequence[int]]:
        """Direct predecessors of each statement, ascending."""
        if not self.arcs:
            return self.program.predecessors
        sets = [set(p) for p in self.program.predecessors]
        for u, v in self.arcs:
            sets[v].add(u)
        return [sorted(s) for s in sets]

    @cached_property
    def successors(self) -> Sequence[Sequence[int]]:
        if not self.arcs:
            return self.program.successors
        result: list[list[int]] = [[] for _ in range(self.n)]
        for v, before in enumerate(self.predecessors):
            for u in before:
                result[u].append(v)
        return result

    @cached_property
    def topological(self) -> list[int]:
        """A topological order; shorter than the program if there is a cycle."""
        if not self.arcs:
            return list(range(self.n))
        missing = [len(p) for p in self.predecessors]
        order = [v for v in range(self.n) if not missing[v]]
        for v in order:  # grows while it is walked
            for w in self.successors[v]:
                missing[w] -= 1
                if not missing[w]:
                    order.append(w)
        return order

    @property
    def acyclic(self) -> bool:
        return len(self.topological) == self.n

    @cached_property
    def _ancestors(self) -> list[int]:
        return _closure(self.topological, self.predecessors)

    @cached_property
    def _descendants(self) -> list[int]:
        return _closure(reversed(self.topological), self.successors)

    def ancestors(self, v: int) -> int:
        """Strict ancestors."""
        return self._ancestors[v] if self._tabulated else self._search(v, False)

    def descendants(self, v: int) -> int:
        """Strict descendants."""
        return self._descendants[v] if self._tabulated else self._search(v, True)

    @property
    def _tabulated(self) -> bool:
        return bool(self.arcs) or self.n <= _TABLE

    def _search(self, v: int, forward: bool) -> int:
        if (forward, v) not in self._searched:
            if len(self._searched) * self.n > 2**31:  # keep the store under about 256 MB
                self._searched.clear()
            step = self.successors if forward else self.predecessors
            seen = bytearray(b"0") * self.n
            stack = [v]
            while stack:
                for u in step[stack.pop()]:
                    if seen[u] == 48:
                        seen[u] = 49
                        stack.append(u)
            self._searched[forward, v] = int(seen[::-1], 2)
        return self._searched[forward, v]

    def births(self, b: int) -> tuple[int, ...]:
        """Touchers of b without a toucher among their ancestors: in a strengthened DAG there may be fewer."""
        births = self.program.births[b]
        if len(births) < 2 or not self.arcs:
            return births
        if b not in self._births:
            touching = mask_of(births, self.n)
            self._births[b] = tuple(t for t in births if not self.ancestors(t) & touching)
        return self._births[b]


def mirror(program: Program) -> Program:
    """The mirror image: the program run backwards in time.

    Statement i becomes n - 1 - i, dependences turn round, every touch is a write, what is resident at entry becomes
    pinned and what is pinned becomes resident at entry. An order and its reversal have the same memory at every step,
    so both programs have the same least peak. Bodies are left out: their peaks are workspace. Overlays are left out too, since the
    mirror image of one is none: see `Overlaid`.
    """
    top = len(program) - 1
    buffers = tuple(
        Buffer(
            b.name,
            b.size,
            "constant" if b.kind == "constant" else "input" if b.pinned else "intermediate",
            b.kind == "input",
        )
        for b in program.buffers
    )
    statements = tuple(
        Statement(
            program.statements[v].name,
            writes=program.touched[v],
            dependences=tuple(top - w for w in reversed(program.successors[v])),
        )
        for v in range(top, -1, -1)
    )
    return Program(buffers, statements)


def restricted(program: Program, members: int, buffers: Container[int]) -> Program:
    """The program of some statements and buffers alone, which keep their ids; bodies and overlays are left out.

    The places of the others are filled with statements that touch nothing and with constants. Nothing but pinned inputs may
    connect the statements to the others. O(program).
    """
    return Program(
        tuple(
            b if i in buffers or b.kind == "constant" else Buffer(b.name, 0, "constant", False)
            for i, b in enumerate(program.buffers)
        ),
        tuple(
            Statement(s.name, reads=s.reads, writes=s.writes, dependences=s.dependences) if taken == "1" else Statement(s.name)
            for s, taken in zip(program.statements, bits_of(members, len(program)))
        ),
    )


def mask_of(statements: Collection[int], n: int) -> int:
    """Bit mask of a set of statements. O(n), whatever their number; O(n / 64) for each if they are few."""
    if len(statements) < 16:
        mask = 0
        for v in statements:
            mask |= 1 << v
        return mask
    digits = bytearray(b"0") * (n + 1)
    for v in statements:
        digits[n - v] = 49
    return int(digits, 2)


def bits_of(mask: int, n: int) -> str:
    """``"1"`` at the place of every member."""
    return format(mask, f"0{n}b")[::-1]


def _holds(ascending: Sequence[int], v: int) -> bool:
    i = bisect_left(ascending, v)
    return i < len(ascending) and ascending[i] == v


def _closure(order: Iterable[int], step: Sequence[Sequence[int]]) -> list[int]:
    result = [0] * len(step)
    for v in order:
        reached = 0
        for u in step[v]:
            reached |= result[u] | (1 << u)
        result[v] = reached
    return result


# -- flows ---------------------------------------------------------------------------------------------------------

Node = int | str


class Candidates(frozenset[int]):
    """Buffers that may be resident at all states of an interval, and sums over those that are.

    The exits of one trap often have the same L and U; then the sum is added up once.
    """

    sums: dict[tuple[int, int], int]

    def __new__(cls, buffers: Iterable[int]) -> Candidates:
        self = super().__new__(cls, buffers)
        self.sums = {}
        return self


class Overlaid(NamedTuple):
    """One way to overlay the statement of a cut.

    Attributes
    ----------
    buffer : int
        The input that the output lies on.
    gain : int
        Bytes saved unless a toucher in the way keeps the input: one that is still to run, or in the mirror image one that
        has run.
    touchers : int
        Those touchers, as a mask: all but the statement itself.
    mirrored : bool
    """

    buffer: int
    gain: int
    touchers: int
    mirrored: bool


class Network:
    """The network of cut(v | L, U), or of the least rest on [L, U] where ``statement`` is None.

    ``inside`` is L, ``outside`` everything not in U (v among it), as masks; ``candidates`` contains every buffer that
    the constant may hold; ``overlaid`` is the way to overlay v that the cut is for, None where it has no overlay. Buffers that are
    ``foreign`` count nowhere.
    """

    def __init__(
        self,
        dag: Dag,
        statement: int | None,
        workspace: int,
        inside: int,
        outside: int,
        candidates: Candidates,
        overlaid: Overlaid | None = None,
        foreign: Container[int] = (),
    ) -> None:
        self.dag, self.statement, self.workspace = dag, statement, workspace
        self.inside, self.outside, self.candidates = inside, outside, candidates
        self.overlaid, self.foreign = overlaid, foreign
        self.touched = frozenset(() if statement is None else dag.program.touched[statement])

    def born_before(self, b: int) -> bool:
        """Resident from entry or born in L. L is a down-set, so a birth is in L if any toucher is."""
        program = self.dag.program
        return program.buffers[b].kind == "input" or "1" in map(self._is_inside, program.touchers[b])

    def kept_after(self, b: int) -> bool:
        program = self.dag.program
        return program.buffers[b].pinned or "1" in map(self._is_outside, program.touchers[b])

    @cached_property
    def _is_inside(self) -> Callable[[int], str]:
        return bits_of(self.inside, self.dag.n).__getitem__

    @cached_property
    def _is_outside(self) -> Callable[[int], str]:
        return bits_of(self.outside, self.dag.n).__getitem__

    @cached_property
    def held(self) -> list[int]:
        """Buffers that v does not touch and that are resident at every state of [L, U]."""
        return [b for b in sorted(self.candidates) if b not in self.touched and self.born_before(b) and self.kept_after(b)]

    @cached_property
    def constant(self) -> int:
        """Bytes resident at every state of [L, U] while the statement runs, its workspace included."""
        buffers = self.dag.program.buffers
        sums = self.candidates.sums
        key = self.inside, self.outside
        if key not in sums:
            sums[key] = sum(buffers[b].size for b in self.candidates if self.born_before(b) and self.kept_after(b))
        own = sum(
            buffers[b].size
            for b in self.touched
            if not (b in self.candidates and self.born_before(b) and self.kept_after(b))
        )
        return self.workspace + sums[key] + own - self.saved

    @property
    def saved(self) -> int:
        """What the overlay saves before anything is decided: all, unless a toucher in L keeps the input in the mirror image."""
        way = self.overlaid
        return 0 if way is None or self._never(way) else way.gain

    def _never(self, way: Overlaid) -> bool:
        return way.mirrored and bool(way.touchers & self.inside)

    def undecided(self, v: int) -> bool:
        return self._undecided[v] == "1"

    @cached_property
    def _undecided(self) -> str:
        return bits_of(self.dag.everything & ~(self.inside | self.outside), self.dag.n)

    def capacity(self, tail: Node, head: Node) -> int | None:
        """Capacity of an arc, None for unlimited; ValueError with the reason where the network has no such arc."""
        program = self.dag.program
        for node in (tail, head):
            if isinstance(node, int):
                if not 0 <= node < self.dag.n or not self.undecided(node):
                    raise ValueError(f"{show(node)} is no undecided statement")
            elif node == "g":
                if self.overlaid is None or self._never(self.overlaid):
                    raise ValueError("'g' is no node")
            elif node not in ("s", "t"):
                b = buffer_of(node)
                if b is None or b >= len(program.buffers) or program.buffers[b].kind == "constant" or b in self.foreign:
                    raise ValueError(f"{show(node)} is no node")
                if b in self.touched:
                    raise ValueError(f"the statement itself touches buffer {b}")
                if self.born_before(b) and self.kept_after(b):
                    raise ValueError(f"buffer {b} is resident at every state and counted in the constant")
        if self.overlaid is not None and "g" in (tail, head):
            return self._overlaid_capacity(self.overlaid, tail, head)
        if isinstance(tail, int) and isinstance(head, int):
            if _holds(self.dag.predecessors[tail], head):
                return None
        elif isinstance(head, str) and head not in ("s", "t"):
            b = buffer_of(head) or 0
            births = self.dag.births(b)
            size = program.buffers[b].size
            if head[0] == "b":
                if tail == "s" and self.born_before(b):
                    return size
                if not self.born_before(b) and (tail == f"j{b}" if len(births) > 1 else births == (tail,)):
                    return size
            elif isinstance(tail, int) and not self.born_before(b) and len(births) > 1 and tail in births:
                return None
        elif isinstance(tail, str) and tail[0] == "b":
            b = buffer_of(tail) or 0
            if head == "t" and self.kept_after(b):
                return None
            if isinstance(head, int) and _holds(program.touchers[b], head):
                return None
        raise ValueError("the network has no such arc")

    def _overlaid_capacity(self, way: Overlaid, tail: Node, head: Node) -> int | None:
        """Capacity of an arc at the node "g"."""
        if (tail, head) == (("g", "t") if way.mirrored else ("s", "g")):
            return way.gain
        end = tail if way.mirrored else head
        if (tail, head) == ((end, "g") if way.mirrored else ("g", end)):
            if isinstance(end, int) and (way.touchers >> end) & 1:
                return None
            if end == "t" and way.touchers & self.outside:
                return None
        raise ValueError("the network has no such arc")

    def value(self, flow: object, where: str) -> int:
        """The lower bound that a flow shows: the constant and what leaves the source.

        Raises
        ------
        Refused
            When it is not a feasible flow of this network.
        """
        excess: dict[Node, int] = {}
        seen: set[tuple[Node, Node]] = set()
        total = self.constant
        for i, triple in enumerate(read_sequence(flow, f"{where}: 'flow'")):
            place = f"{where}: flow[{i}]"
            row = read_sequence(triple, place)
            if len(row) != 3:
                refuse(f"{place} must be [from, to, amount]")
            tail, head, amount = row
            if type(tail) not in (int, str) or type(head) not in (int, str):
                refuse(f"{place} must lead between nodes, not from {show(tail)} to {show(head)}")
            if type(amount) is not int or amount <= 0:
                refuse(f"{place} must carry a positive whole number of bytes, not {show(amount)}")
            if (tail, head) in seen:
                refuse(f"{place} repeats the arc from {show(tail)} to {show(head)}")
            seen.add((tail, head))
            try:
                capacity = self.capacity(tail, head)
            except ValueError as error:
                refuse(f"{place} uses an arc from {show(tail)} to {show(head)}: {error}")
            if capacity is not None and amount > capacity:
                refuse(f"{place} carries {show(amount)} bytes over a capacity of {capacity}")
            if tail == "s":
                total += amount
            else:
                excess[tail] = excess.get(tail, 0) - amount
            if head != "t":
                excess[head] = excess.get(head, 0) + amount
        for node, amount in excess.items():
            if amount:
                refuse(f"{where}: the flow is not conserved at node {show(node)}")
        return total


def buffer_of(node: str) -> int | None:
    """Buffer id of a node ``b<i>`` or ``j<i>``, None for any other text."""
    digits = node[1:]
    if node[:1] in ("b", "j") and 0 < len(digits) < 19 and digits.isascii() and digits.isdecimal():
        value = int(digits)
        if str(value) == digits:
            return value
    return None


# -- reading untrusted values ------------------------------------------------------------------------------------------


def refuse(sentence: str) -> NoReturn:
    raise Refused(f"certificate: {sentence}")


def read_object(value: object, where: str) -> Mapping[Any, Any]:
    if not isinstance(value, dict):
        refuse(f"{where} must be an object, not {show(value)}")
    return value


def read_sequence(value: object, where: str) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        refuse(f"{where} must be a list, not {show(value)}")
    return value


def read_natural(value: object, where: str) -> int:
    if type(value) is not int or value < 0:
        refuse(f"{where} must be a whole number of bytes, not {show(value)}")
    return value


def read_statements(value: object, n: int, where: str) -> list[int]:
    items = read_sequence(value, where)
    seen = bytearray(n)
    for v in items:
        if type(v) is not int or not 0 <= v < n:
            refuse(f"{where} must list statements of the program, not {show(v)}")
        if seen[v]:
            refuse(f"{where} lists statement {v} twice")
        seen[v] = 1
    return list(items)


def name_of(program: Program, v: int) -> str:
    return show(program.statements[v].name)


def show(value: object) -> str:
    """A short text of any value, however large or deep."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "...")
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value) if value.bit_length() <= 128 else f"a number of {value.bit_length()} bits"
    return "null" if value is None else repr(value)[:60]
