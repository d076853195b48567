"""The program model: a straight line of statements over buffers.

Terms
-----
*Buffer*
    One storage. Every name that aliases it (views, in-place reuse, reshapes) is the same buffer.
*Statement*
    One step of the program. What it reads or writes it *touches*.
*State*
    A down-set of executed statements.
*rest(S)*
    Bytes of all buffers born in ``S`` or at entry that are pinned or have a toucher outside ``S``.
*mem(S, v)*
    Bytes while ``v`` runs at ``S``: its workspace, what it touches, and what ``rest(S)`` holds of the others, less what an
    overlay saves.
*Overlay*
    A statement may write an output on top of one of its inputs, where that one dies with it: then the smaller of the two
    is saved while the statement runs.

A buffer is born at its first toucher in the order and dies at the end of its last toucher; a pinned one never dies.
Inputs are resident from entry; an input that nothing touches is resident only when it is pinned. Constants are
reported, not scheduled: they never count.

Statements are listed in the *given order* and their ids are their positions in it, so every dependence points to a
smaller id and a program is acyclic by construction.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from peakmem_check.model.errors import InputError

SCHEMA = "peakmem.program/1"
LARGEST_TOTAL = 2**62
"""Sizes of a program must sum to less than this, so that every solver works in 64-bit integers."""

Kind = Literal["input", "constant", "intermediate", "output"]
KINDS: tuple[Kind, ...] = ("input", "constant", "intermediate", "output")
QUANTITIES = ("live_peak", "bytes_above_entry")
"""What a file's ``"quantity"`` may be: what reports about the program speak of. No proof depends on it."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """One storage.

    Attributes
    ----------
    name : str
        Unique within its program.
    size : int
        Bytes that the realizing allocator charges for it (rounded or aligned as it does).
    kind : {"input", "constant", "intermediate", "output"}
        An input is resident from entry. A constant is reported, never scheduled.
    pinned : bool, optional
        Never freed inside the program: outputs (which is the default), and inputs whose owner is the caller.
    """

    name: str
    size: int
    kind: Kind = "intermediate"
    pinned: bool = None  # type: ignore[assignment]  # settled below, so that it is a bool for everybody

    def __post_init__(self) -> None:
        if self.pinned is None:
            object.__setattr__(self, "pinned", self.kind == "output")


@dataclass(frozen=True, slots=True)
class Overlay:
    """Permission to write one output of a statement on top of one of its dying inputs.

    Attributes
    ----------
    output : int
        A buffer that this statement and no other bears.
    inputs : tuple of int
        The buffers that the output may lie on, one at a time: each read and not written here, neither pinned nor constant.
        One that lives on, because a toucher of it is still to run, cannot be used.
    """

    output: int
    inputs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Statement:
    """One step.

    Attributes
    ----------
    name : str
        Unique within its program.
    op : str
        Operator type, for people and for the cost table.
    reads, writes : tuple of int
        Buffer ids; together they are what the statement touches.
    dependences : tuple of int
        Statements that must run before this one. Stored, not derived: the adapter knows which writes commute.
    workspace : int
        The most bytes in use at any moment inside the statement beyond what it touches and what is resident anyway.
    cost : int
        MACs of one execution (see `peakmem_check.model.cost`).
    pure : bool
        May run twice: deterministic, no effects.
    effects : tuple of str
        Tokens of ordered effects (random numbers, variables, I/O). Informative: the order they demand is already
        in ``dependences``.
    bodies : tuple of Program
        Bodies of a control-flow statement. The largest peak of a body is added to ``workspace``.
    overlay : Overlay or None
        What may be written on top of what, if the kernel allows it.
    """

    name: str
    op: str = ""
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    dependences: tuple[int, ...] = ()
    workspace: int = 0
    cost: int = 0
    pure: bool = True
    effects: tuple[str, ...] = ()
    bodies: tuple[Program, ...] = ()
    overlay: Overlay | None = None


@dataclass(frozen=True)
class Program:
    """A straight-line program: buffers and statements in the given order, validated once.

    Raises
    ------
    InputError
        From the constructor, when a size is negative or the total is `LARGEST_TOTAL` or more, an id is out of
        range, a name stands twice, a dependence points to itself or forward, a buffer that is not resident at
        entry is read before anything has touched it, or an overlay is none.
    """

    buffers: tuple[Buffer, ...]
    statements: tuple[Statement, ...]
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        _validate(self)

    def __len__(self) -> int:
        return len(self.statements)

    # -- derived, computed once ------------------------------------------------------------------------------

    @cached_property
    def touched(self) -> tuple[tuple[int, ...], ...]:
        """For each statement the buffers it touches, ascending, constants left out."""
        constant = [b.kind == "constant" for b in self.buffers]
        return tuple(tuple(sorted({b for b in (*s.reads, *s.writes) if not constant[b]})) for s in self.statements)

    @cached_property
    def touchers(self) -> tuple[tuple[int, ...], ...]:
        """For each buffer the statements that touch it, ascending; empty for constants."""
        result: list[list[int]] = [[] for _ in self.buffers]
        for v, touched in enumerate(self.touched):
            for b in touched:
                result[b].append(v)
        return tuple(map(tuple, result))

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """Direct dependences of each statement, ascending, each once."""
        return tuple(tuple(sorted(set(s.dependences))) for s in self.statements)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """Statements that depend directly on each statement, ascending."""
        result: list[list[int]] = [[] for _ in self.statements]
        for v, before in enumerate(self.predecessors):
            for u in before:
                result[u].append(v)
        return tuple(map(tuple, result))

    @cached_property
    def births(self) -> tuple[tuple[int, ...], ...]:
        """For each buffer its touchers that have no other toucher among their ancestors; empty if at entry.

        Nearly always one statement, the writer. O(touchers) where readers depend on the writer directly;
        otherwise a search between the first and the last toucher.
        """
        return tuple(
            () if b.kind in ("input", "constant") else first_touchers(self.predecessors, self.touchers[i])
            for i, b in enumerate(self.buffers)
        )

    @cached_property
    def workspaces(self) -> tuple[int, ...]:
        """Workspace of each statement with its bodies in their given order, in bytes."""
        return tuple(
            s.workspace + max((body.live_bytes(range(len(body)), body.workspaces)[0] for body in s.bodies), default=0)
            for s in self.statements
        )

    @cached_property
    def gains(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """For each statement the inputs of its overlay, as listed, with the bytes saved where that input dies."""
        size = [b.size for b in self.buffers]
        return tuple(
            tuple((a, min(size[a], size[s.overlay.output])) for a in s.overlay.inputs) if s.overlay else ()
            for s in self.statements
        )

    @cached_property
    def has_overlays(self) -> bool:
        """Whether a statement of the program or of a body has an overlay."""
        return any(s.overlay or any(body.has_overlays for body in s.bodies) for s in self.statements)

    def without_overlays(self) -> Program:
        """The program with no overlays, in bodies neither; itself where it has none."""
        if not self.has_overlays:
            return self
        statements = (
            replace(s, overlay=None, bodies=tuple(body.without_overlays() for body in s.bodies)) for s in self.statements
        )
        return Program(self.buffers, tuple(statements), self.name)

    def live_bytes(
        self, order: Sequence[int], workspaces: Sequence[int]
    ) -> tuple[int, list[int], list[int], list[int]]:
        """Peak of an order, bytes at each of its steps, and the first and last step of each buffer.

        The steps are those of `peakmem_check.model.liveness.Timeline`, which is how to ask for them. O(statements + touches).
        """
        n = len(self.statements)
        first = [0] * len(self.buffers)
        last = [-1] * len(self.buffers)
        seen = [False] * len(self.buffers)
        for step, v in enumerate(order):
            for b in self.touched[v]:
                if not seen[b]:
                    seen[b] = True
                    first[b] = step
                last[b] = step
        change = [0] * (n + 2)  # change[i + 1]: what is gained when step i starts; index 0 is entry
        for b, buffer in enumerate(self.buffers):
            if buffer.kind == "constant":
                continue
            if buffer.kind == "input" and (seen[b] or buffer.pinned):
                first[b] = -1
            elif not seen[b]:
                continue
            if buffer.pinned:
                last[b] = n
            change[first[b] + 1] += buffer.size
            if last[b] < n:
                change[last[b] + 2] -= buffer.size
        now = change[0]
        bytes_at = []
        for step, v in enumerate(order):
            now += change[step + 1]
            gains = self.gains[v]
            saved = max((gain for a, gain in gains if last[a] == step), default=0) if gains else 0
            bytes_at.append(now + workspaces[v] - saved)
        return max(bytes_at, default=self.entry_bytes), bytes_at, first, last

    @cached_property
    def entry(self) -> tuple[int, ...]:
        """Buffers resident at entry: inputs that are pinned or that something touches."""
        return tuple(i for i, b in enumerate(self.buffers) if b.kind == "input" and (b.pinned or self.touchers[i]))

    @cached_property
    def entry_bytes(self) -> int:
        """rest of the empty state."""
        return sum(self.buffers[i].size for i in self.entry)

    @cached_property
    def digest(self) -> str:
        """``sha256:...`` of the canonical JSON; two programs with the same digest are the same program.

        The program's own name does not count; the names of buffers and statements do.
        """
        return "sha256:" + hashlib.sha256(self._canonical(outermost=True).encode("ascii")).hexdigest()

    def _canonical(self, *, outermost: bool) -> str:
        """The one JSON text of `to_json`: sorted keys, no white space, ASCII. Written straight out, as the document of a large
        program takes longer to make than all else that a checker does with it."""
        buffer_ids = [_quoted(b.name) for b in self.buffers]
        statement_ids = [_quoted(s.name) for s in self.statements]
        truth = {True: "true", False: "false"}
        buffers = ",".join(
            f'{{"bytes":{b.size},"id":{name},"kind":"{b.kind}","pinned":{truth[b.pinned]}}}'
            for b, name in zip(self.buffers, buffer_ids)
        )
        rows = []
        for s, name in zip(self.statements, statement_ids):
            bodies = overlay = ""
            if s.bodies:
                bodies = f'"bodies":[{",".join(body._canonical(outermost=False) for body in s.bodies)}],'
            if s.overlay:
                inputs = ",".join([buffer_ids[a] for a in s.overlay.inputs])
                overlay = f'"overlay":{{"inputs":[{inputs}],"output":{buffer_ids[s.overlay.output]}}},'
            rows.append(
                f'{{{bodies}"cost":{s.cost},"dependences":[{",".join([statement_ids[u] for u in s.dependences])}],'
                f'"effects":[{",".join(map(_quoted, s.effects))}],"id":{name},"op":{_quoted(s.op)},{overlay}'
                f'"pure":{truth[s.pure]},"reads":[{",".join([buffer_ids[b] for b in s.reads])}],"workspace":{s.workspace},'
                f'"writes":[{",".join([buffer_ids[b] for b in s.writes])}]}}'
            )
        own = "" if outermost else f'"name":{_quoted(self.name)},'
        return f'{{"buffers":[{buffers}],{own}"schema":"{SCHEMA}","statements":[{",".join(rows)}]}}'

    def bodies(self, prefix: str = "") -> Iterator[tuple[str, Program]]:
        """All bodies at any depth with their paths, innermost first.

        The path of body ``k`` of statement ``v`` is ``"v/k"``, below another body ``"outer/v/k"``; the program
        itself has the path ``""`` and is not listed.
        """
        for v, statement in enumerate(self.statements):
            for k, body in enumerate(statement.bodies):
                path = f"{prefix}{v}/{k}"
                yield from body.bodies(path + "/")
                yield path, body

    def validate_order(self, order: Sequence[int]) -> None:
        """Raise `InputError` unless ``order`` is a permutation of the statements that honours every dependence."""
        n = len(self.statements)
        position = [-1] * n
        for i, v in enumerate(order):
            if not 0 <= v < n or position[v] >= 0:
                raise InputError(f"order: entry {i} is {v}, which is unknown or stands twice")
            position[v] = i
        if len(order) != n:
            raise InputError(f"order: has {len(order)} statements, the program has {n}")
        for v, before in enumerate(self.predecessors):
            for u in before:
                if position[u] > position[v]:
                    raise InputError(
                        f"order: {self.statements[v].name!r} runs before {self.statements[u].name!r}, "
                        "on which it depends"
                    )

    # -- JSON ------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """The document ``peakmem.program/1``, which refers to buffers and statements by name."""
        names = [b.name for b in self.buffers]
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "name": self.name,
            "buffers": [{"id": b.name, "bytes": b.size, "kind": b.kind, "pinned": b.pinned} for b in self.buffers],
            "statements": [],
        }
        for s in self.statements:
            row: dict[str, Any] = {
                "id": s.name,
                "op": s.op,
                "reads": [names[b] for b in s.reads],
                "writes": [names[b] for b in s.writes],
                "dependences": [self.statements[u].name for u in s.dependences],
                "workspace": s.workspace,
                "cost": s.cost,
                "pure": s.pure,
                "effects": list(s.effects),
            }
            if s.bodies:
                row["bodies"] = [body.to_json() for body in s.bodies]
            if s.overlay:
                row["overlay"] = {"output": names[s.overlay.output], "inputs": [names[a] for a in s.overlay.inputs]}
            document["statements"].append(row)
        return document

    @classmethod
    def from_json(cls, document: object, *, where: str = "program") -> Program:
        """Read a ``peakmem.program/1`` document.

        ``op``, ``workspace``, ``cost``, ``pure``, ``effects``, ``bodies``, ``overlay``, ``pinned`` and ``kind`` may be
        left out.
        Statements may be listed in any order that honours the dependences.

        Raises
        ------
        InputError
            With the place in the document, for anything that is not such a program.
        """
        return _Reader(where).program(document)


_quoted = json.encoder.encode_basestring_ascii


def first_touchers(predecessors: Sequence[Sequence[int]], touchers: Sequence[int]) -> tuple[int, ...]:
    """Touchers that have no other one among their ancestors, where ids ascend along dependences; see `Program.births`."""
    if len(touchers) <= 1:
        return tuple(touchers)
    first = touchers[0]
    # Which statements in the window follow a toucher (or are one)? Ids ascend along dependences.
    covered: dict[int, bool] = dict.fromkeys(touchers, True)
    births = [first]
    for t in touchers[1:]:
        before = predecessors[t]
        i = bisect_left(before, first)  # nearly always the first toucher itself; a scan of many predecessors is dear
        if (i < len(before) and before[i] == first) or any(covered.get(p, False) for p in before):
            continue
        # Depth-first towards earlier statements, never below the first toucher.
        stack = [p for p in predecessors[t] if p > first]
        seen = set(stack)
        found = False
        while stack and not found:
            u = stack.pop()
            for p in predecessors[u]:
                if covered.get(p, False):
                    found = True
                    break
                if p > first and p not in seen and p not in covered:
                    seen.add(p)
                    stack.append(p)
        if found:
            continue
        for u in seen:
            covered[u] = False
        births.append(t)
    return tuple(births)


def _validate(program: Program) -> None:
    where = f"program {program.name!r}" if program.name else "program"
    n_buffers = len(program.buffers)
    names: set[str] = set()
    total = 0
    for b in program.buffers:
        if b.name in names:
            raise InputError(f"{where}: two buffers are called {b.name!r}")
        names.add(b.name)
        if b.size < 0:
            raise InputError(f"{where}: buffer {b.name!r} has a negative size ({b.size})")
        if b.kind not in KINDS:
            raise InputError(f"{where}: buffer {b.name!r} is of unknown kind {b.kind!r}")
        total += b.size
    names.clear()
    for v, s in enumerate(program.statements):
        if s.name in names:
            raise InputError(f"{where}: two statements are called {s.name!r}")
        names.add(s.name)
        if s.workspace < 0 or s.cost < 0:
            raise InputError(f"{where}: statement {s.name!r} has a negative workspace or cost")
        total += s.workspace
        for b_id in (*s.reads, *s.writes):
            if not 0 <= b_id < n_buffers:
                raise InputError(f"{where}: statement {s.name!r} touches buffer {b_id}, which does not exist")
        for u in s.dependences:
            if not 0 <= u < v:
                raise InputError(
                    f"{where}: statement {s.name!r} (at {v}) depends on statement {u}, which does not stand before it"
                )
    if total >= LARGEST_TOTAL:
        raise InputError(f"{where}: the sizes sum to {total} bytes, more than the 2^62 - 1 that peakmem can add up")
    for b_id, births in enumerate(program.births):
        for v in births:
            if b_id in program.statements[v].reads and b_id not in program.statements[v].writes:
                raise InputError(
                    f"{where}: statement {program.statements[v].name!r} reads buffer "
                    f"{program.buffers[b_id].name!r} before anything it depends on has written it"
                )
    for v, s in enumerate(program.statements):
        if s.overlay:
            _validate_overlay(program, v, s.overlay, f"{where}: the overlay of statement {s.name!r}")


def _validate_overlay(program: Program, v: int, overlay: Overlay, where: str) -> None:
    statement, buffers = program.statements[v], program.buffers
    for b in (overlay.output, *overlay.inputs):
        if not 0 <= b < len(buffers):
            raise InputError(f"{where} names buffer {b}, which does not exist")
    if program.births[overlay.output] != (v,):
        raise InputError(f"{where} has the output {buffers[overlay.output].name!r}, which is not born by this statement alone")
    if not overlay.inputs:
        raise InputError(f"{where} names no input")
    if len(set(overlay.inputs)) < len(overlay.inputs):
        raise InputError(f"{where} names an input twice")
    # That an input is there when the statement runs is known by now: no birth of a buffer only reads it.
    for a in overlay.inputs:
        if a not in statement.reads or a in statement.writes:
            raise InputError(f"{where} has the input {buffers[a].name!r}, which the statement does not just read")
        if buffers[a].pinned or buffers[a].kind == "constant":
            raise InputError(f"{where} has the input {buffers[a].name!r}, which is never freed")


class _Reader:
    """Reads ``peakmem.program/1`` and says where it is wrong."""

    def __init__(self, source: str, body: str = "") -> None:
        self.source = source
        self.body = body  # the path of the body that is read, as in `Program.bodies`, with a slash after it
        self.where = f"{source}: body {body[:-1]}" if body else source

    def fail(self, place: str, what: str) -> InputError:
        return InputError(f"{self.where}: {place}: {what}")

    def number(self, row: Mapping[str, Any], key: str, place: str, default: int | None = None) -> int:
        value = row.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(place, f"'{key}' must be a whole number, not {_show(value)}")
        if value < 0:
            raise self.fail(place, f"'{key}' must not be negative")
        if value >= LARGEST_TOTAL:
            raise self.fail(place, f"'{key}' must be less than 2^62")
        return value

    def text(self, row: Mapping[str, Any], key: str, place: str, default: str | None = None) -> str:
        value = row.get(key, default)
        if not isinstance(value, str):
            raise self.fail(place, f"'{key}' must be a text, not {_show(value)}")
        return value

    def flag(self, row: Mapping[str, Any], key: str, place: str, default: bool) -> bool:
        value = row.get(key, default)
        if not isinstance(value, bool):
            raise self.fail(place, f"'{key}' must be true or false, not {_show(value)}")
        return value

    def rows(self, row: Mapping[str, Any], key: str, place: str, default: list[Any] | None = None) -> list[Any]:
        value = row.get(key, default)
        if not isinstance(value, list):
            raise self.fail(place, f"'{key}' must be a list, not {_show(value)}")
        return value

    def refs(self, row: Mapping[str, Any], key: str, place: str, ids: Mapping[str, int]) -> tuple[int, ...]:
        found = []
        for name in self.rows(row, key, place, []):
            if not isinstance(name, str) or name not in ids:
                raise self.fail(place, f"'{key}' names {_show(name)}, which is unknown here or listed later")
            found.append(ids[name])
        return tuple(found)

    def overlay(self, row: Mapping[str, Any], place: str, ids: Mapping[str, int]) -> Overlay | None:
        if "overlay" not in row:
            return None
        value = row["overlay"]
        if not isinstance(value, dict):
            raise self.fail(place, f"'overlay' must be an object, not {_show(value)}")
        output = self.text(value, "output", f"{place}: 'overlay'")
        if output not in ids:
            raise self.fail(place, f"'overlay' names {_show(output)}, which is unknown here")
        return Overlay(ids[output], self.refs(value, "inputs", f"{place}: 'overlay'", ids))

    def program(self, document: object, depth: int = 0) -> Program:
        if not isinstance(document, dict):
            raise self.fail("top", f"must be an object, not {_show(document)}")
        if depth > 32:
            raise self.fail("bodies", "nested more than 32 deep")
        if document.get("schema") != SCHEMA:
            raise self.fail("'schema'", f"must be {SCHEMA!r}, not {_show(document.get('schema'))}")
        if document.get("quantity", QUANTITIES[0]) not in QUANTITIES:
            raise self.fail("'quantity'", f"must be one of {', '.join(QUANTITIES)}, not {_show(document['quantity'])}")
        buffers: list[Buffer] = []
        buffer_ids: dict[str, int] = {}
        for i, row in enumerate(self.rows(document, "buffers", "top")):
            place = f"buffers[{i}]"
            if not isinstance(row, dict):
                raise self.fail(place, "must be an object")
            name = self.text(row, "id", place)
            if name in buffer_ids:
                raise self.fail(place, f"'id' {name!r} stands twice")
            kind = self.text(row, "kind", place, "intermediate")
            if kind not in KINDS:
                raise self.fail(place, f"'kind' must be one of {', '.join(KINDS)}, not {kind!r}")
            pinned = self.flag(row, "pinned", place, kind == "output")
            buffer_ids[name] = i
            buffers.append(Buffer(name, self.number(row, "bytes", place), kind, pinned))
        statements: list[Statement] = []
        ids: dict[str, int] = {}
        rows = self.rows(document, "statements", "top")
        listed = {row.get("id"): i for i, row in enumerate(rows) if isinstance(row, dict) and isinstance(row.get("id"), str)}
        for i, row in enumerate(rows):
            place = f"statements[{i}]"
            if not isinstance(row, dict):
                raise self.fail(place, "must be an object")
            name = self.text(row, "id", place)
            if name in ids:
                raise self.fail(place, f"'id' {name!r} stands twice")
            for other in self.rows(row, "dependences", place, []):
                if isinstance(other, str) and other not in ids and other in listed:
                    raise self.fail(
                        place,
                        f"{name!r} depends on {other!r}, which is listed at statements[{listed[other]}], not before it "
                        "(list statements in an order that honours the dependences; a cycle has none)",
                    )
            bodies = tuple(
                _Reader(self.source, f"{self.body}{i}/{k}/").program(body, depth + 1)
                for k, body in enumerate(self.rows(row, "bodies", place, []))
            )
            effects = tuple(self.rows(row, "effects", place, []))
            if not all(isinstance(effect, str) for effect in effects):
                raise self.fail(place, "'effects' must be a list of texts")
            statements.append(
                Statement(
                    name=name,
                    op=self.text(row, "op", place, ""),
                    reads=self.refs(row, "reads", place, buffer_ids),
                    writes=self.refs(row, "writes", place, buffer_ids),
                    dependences=self.refs(row, "dependences", place, ids),
                    workspace=self.number(row, "workspace", place, 0),
                    cost=self.number(row, "cost", place, 0),
                    pure=self.flag(row, "pure", place, not effects),
                    effects=effects,
                    bodies=bodies,
                    overlay=self.overlay(row, place, buffer_ids),
                )
            )
            ids[name] = i
        name = self.text(document, "name", "top", "")
        try:
            return Program(tuple(buffers), tuple(statements), name)
        except InputError as error:
            raise InputError(f"{self.where}: {error}") from None


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
