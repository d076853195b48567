"""The built-in frontend ``program``: bare programs in JSON, without a runtime; ``docs/reference/documents.md`` has their formats."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from peakmem_check.jsonfile import parse_json, read_bytes

from peakmem.frontends.contract import Frontend, Model, Structure, Verification
from peakmem.frontends.structure import Part, Step, compare
from peakmem.model import (
    LARGEST_TOTAL,
    SCHEMA,
    Buffer,
    InputError,
    Kind,
    Orders,
    Program,
    RuntimeMissing,
    Schedule,
    Statement,
    UsageError,
    peak_of,
)
from peakmem.system.files import write_atomically
from peakmem.system.progress import Progress

NO_RUNTIME = "a bare program has no runtime, so nothing can be run, measured or compared"

_RULES = {
    "live_peak": "inputs are resident from entry; a pinned one to the end, any other until its last use",
    "bytes_above_entry": (
        "inputs that the program frees are resident from entry until their last use and subtracted at the end; "
        "inputs that belong to the caller are left out"
    ),
}


class ProgramModel(Model):
    """A bare program; see `peakmem.frontends.Model`.

    Parameters
    ----------
    program : Program
    path : Path, optional
    digest : str, optional
        Of the file that was read; of `to_bytes` if not given.
    quantity : {"live_peak", "bytes_above_entry"}
    """

    frontend = "program"

    def __init__(
        self, program: Program, path: Path | None = None, digest: str | None = None, quantity: str = "live_peak"
    ) -> None:
        self._program, self._path, self._quantity, self._digest = program, path, quantity, digest

    @property
    def program(self) -> Program:
        return self._program

    @property
    def path(self) -> Path | None:
        return self._path

    @property
    def quantity(self) -> str:
        return self._quantity

    @cached_property
    def digest(self) -> str:
        return self._digest or _digest(self.to_bytes())

    @property
    def input_rule(self) -> str:
        return _RULES[self.quantity]

    @property
    def realized_offset(self) -> int:
        """Bytes of the live peak that the quantity leaves out: those resident at entry, or none."""
        return self.program.entry_bytes if self.quantity == "bytes_above_entry" else 0

    @property
    def predicted_bytes(self) -> int:
        return peak_of(self.program) - self.realized_offset

    def apply(self, schedule: Schedule) -> ProgramModel:
        """The program with its statements listed in the scheduled order."""
        program = self.program if schedule.expansion is None else schedule.expansion.program
        ordered = permuted(program, schedule.orders)
        return ProgramModel(ordered, quantity=self.quantity)

    def to_bytes(self) -> bytes:
        """The file's bytes: ``peakmem.program/1``, a statement a line."""
        document = self.program.to_json()
        if self.quantity != "live_peak":
            document["quantity"] = self.quantity
        return program_bytes(document)

    def save(self, path: str | Path, *, force: bool = False) -> None:
        write_atomically(path, self.to_bytes(), source=self.path, force=force)

    def structure(self, other: Model) -> Structure:
        return compare(_part(self.program), _part(self.same_kind(other).program), noun="statements")

    def verify(self, other: Model, *, progress: Progress | None = None) -> Verification:
        """Always raises `RuntimeMissing`."""
        self.same_kind(other)
        raise RuntimeMissing(NO_RUNTIME)

    def extras(self, other: Model, verification: Verification | None) -> dict[str, Any]:
        return {"entry_bytes": self.program.entry_bytes, "subtracted_bytes": self.realized_offset}


class ProgramFrontend(Frontend):
    """Reads bare programs."""

    name = "program"
    description = "bare programs in JSON: peakmem.program/1 and statement graphs; no runtime"

    def sniff(self, path: Path, head: bytes) -> bool:
        """A JSON object that names statements or buffers early, or any JSON object in a file called ``*.json``."""
        text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
        if not text.startswith(b"{"):
            return False
        return path.suffix.lower() == ".json" or b'"statements"' in text or b'"buffers"' in text

    def load(self, path: Path, options: Mapping[str, Any]) -> ProgramModel:
        data = read_bytes(path)
        document = parse_json(data, str(path))
        where = str(path)
        if isinstance(document, dict) and "schema" not in document and "statements" in document:
            program, quantity = _Graph(where).program(document)
        else:
            _refuse_other_schema(document, where)
            program = Program.from_json(document, where=where)
            quantity = document.get("quantity", "live_peak")
        return ProgramModel(program, path, _digest(data), quantity)


frontend = ProgramFrontend()


def permuted(program: Program, orders: Orders, prefix: str = "") -> Program:
    """The same program listed in another order, bodies included.

    Parameters
    ----------
    program : Program
    orders : map of body path to order
        Bodies that it does not name keep their order. Paths refer to ``program``, not to the result.

    Raises
    ------
    UsageError
        When an order violates a dependence.
    """
    order = orders.get(prefix.rstrip("/"), tuple(range(len(program))))
    try:
        program.validate_order(order)
    except InputError as error:
        raise UsageError(f"this schedule does not fit the program: {error}") from None
    position = {v: step for step, v in enumerate(order)}
    statements = tuple(
        replace(
            program.statements[v],
            dependences=tuple(sorted(position[u] for u in program.predecessors[v])),
            bodies=tuple(
                permuted(body, orders, f"{prefix}{v}/{k}/") for k, body in enumerate(program.statements[v].bodies)
            ),
        )
        for v in order
    )
    return Program(program.buffers, statements, program.name)


def _part(program: Program) -> Part:
    """What a bare program holds: it knows names, not what is computed, so a value is what its buffer is called."""
    plain = [re.sub(r"(#\d+)?'*$", "", b.name) for b in program.buffers]  # a copy's buffers are called after the originals
    steps = []
    for s in program.statements:
        what = (re.sub(r"(#\d+)?'*$", "", s.name), s.op, s.workspace, s.cost, s.pure, *(plain[b] for b in s.writes))
        bodies = tuple(_part(body) for body in s.bodies)
        reads = tuple(plain[b] for b in s.reads)
        steps.append(Step(s.name, "\n".join(map(str, what)), reads, (), s.effects, bodies))
    given = {name: f"{name} {b.size} {b.kind} {b.pinned}" for name, b in zip(plain, program.buffers)}
    return Part(given, steps, tuple(name for name, b in zip(plain, program.buffers) if b.pinned))


def program_bytes(document: Mapping[str, Any]) -> bytes:
    """A program document as a file: one buffer or statement a line, ASCII, a trailing newline."""
    lines = []
    for key, value in document.items():
        name = json.dumps(key)
        if key in ("buffers", "statements") and value:
            rows = ",\n".join("  " + json.dumps(row) for row in value)
            lines.append(f" {name}: [\n{rows}\n ]")
        else:
            lines.append(f" {name}: {json.dumps(value)}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode("ascii")


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def _refuse_other_schema(document: object, where: str) -> None:
    """Say what the file is when it is another document of ours."""
    if not isinstance(document, dict):
        raise InputError(f"{where}: must hold a JSON object with 'schema': {SCHEMA!r}")
    schema = document.get("schema")
    if isinstance(schema, str) and schema.startswith("peakmem.program/") and schema != SCHEMA:
        raise InputError(f"{where}: is a program file of another version, {schema[:60]}; this peakmem reads {SCHEMA}")
    if isinstance(schema, str) and schema.startswith("peakmem.") and schema != SCHEMA:
        raise InputError(f"{where}: is a {schema[:60]} document, not a program; give the model or program itself")


class _Graph:
    """Reads statement graphs and says where they are wrong."""

    def __init__(self, where: str) -> None:
        self.where = where

    def fail(self, place: str, what: str) -> InputError:
        return InputError(f"{self.where}: {place}: {what}")

    def program(self, document: Mapping[str, Any]) -> tuple[Program, str]:
        statement_rows = self.rows(document, "statements")
        buffer_rows = self.rows(document, "buffers")
        recorded = any("relaxed_deps" in row for row in statement_rows)
        buffers: list[Buffer] = []
        buffer_ids: dict[int, int] = {}
        names: set[str] = set()
        for i, row in enumerate(buffer_rows):
            place = f"buffers[{i}]"
            buffer_ids[self.new_id(row, place, buffer_ids)] = i
            buffer = self.buffer(row, place, recorded)
            if buffer.name in names:  # recordings reuse a name when its storage is reused: the id tells them apart
                buffer = replace(buffer, name=f"{buffer.name}#{row['id']}")
            names.add(buffer.name)
            buffers.append(buffer)
        ids: dict[int, int] = {}
        for i, row in enumerate(statement_rows):
            ids[self.new_id(row, f"statements[{i}]", ids)] = i
        order = self.order(document, ids)
        position = {index: step for step, index in enumerate(order)}
        statements: list[Statement] = []
        for index in order:
            row, place = statement_rows[index], f"statements[{index}]"
            deps = self.ids(row, "relaxed_deps" if "relaxed_deps" in row else "deps", place, ids)
            late = [u for u in deps if position[u] >= position[index]]
            if late:
                raise self.fail(
                    place, f"depends on statement {statement_rows[late[0]]['id']}, which original_order does not run before it"
                )
            text = row.get("text", "")
            if not isinstance(text, str):
                raise self.fail(place, "'text' must be a text")
            statements.append(
                Statement(
                    name=f"s{row['id']}",
                    op=text,
                    reads=self.ids(row, "reads", place, buffer_ids),
                    writes=self.ids(row, "writes", place, buffer_ids),
                    dependences=tuple(sorted({position[u] for u in deps})),
                    workspace=self.number(row, "transient", place, 0),
                )
            )
        name = document.get("name", "")
        try:
            program = Program(tuple(buffers), tuple(statements), name if isinstance(name, str) else "")
        except InputError as error:
            raise InputError(f"{self.where}: {error}") from None
        return program, "bytes_above_entry" if recorded else "live_peak"

    def buffer(self, row: Mapping[str, Any], place: str, recorded: bool) -> Buffer:
        kind = row.get("kind")
        if kind not in ("input", "intermediate", "output", "constant"):
            raise self.fail(place, "'kind' must be input, intermediate, output or constant")
        ours: Kind = kind
        if recorded and kind == "input" and row.get("really_freed") is not True:
            ours = "constant"
        name = row.get("name", f"b{row['id']}")
        if not isinstance(name, str):
            raise self.fail(place, "'name' must be a text")
        return Buffer(name, self.number(row, "bytes", place), ours, pinned=kind == "output")

    def rows(self, document: Mapping[str, Any], key: str) -> Sequence[Mapping[str, Any]]:
        rows = document.get(key)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise self.fail("top", f"'{key}' must be a list of objects")
        return rows

    def number(self, row: Mapping[str, Any], key: str, place: str, default: int | None = None) -> int:
        value = row.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self.fail(place, f"'{key}' must be a whole number, not negative")
        if value >= LARGEST_TOTAL:
            raise self.fail(place, f"'{key}' must be less than 2^62")
        return value

    def new_id(self, row: Mapping[str, Any], place: str, known: Mapping[int, int]) -> int:
        value = self.number(row, "id", place)
        if value in known:
            raise self.fail(place, f"'id' {value} stands twice")
        return value

    def ids(self, row: Mapping[str, Any], key: str, place: str, known: Mapping[int, int]) -> tuple[int, ...]:
        values = row.get(key, [])
        if not isinstance(values, list):
            raise self.fail(place, f"'{key}' must be a list")
        for value in values:
            if isinstance(value, bool) or not isinstance(value, int) or value not in known:
                raise self.fail(place, f"'{key}' names an id that is unknown ({str(value)[:40]})")
        return tuple(known[value] for value in values)

    def order(self, document: Mapping[str, Any], ids: Mapping[int, int]) -> tuple[int, ...]:
        if "original_order" not in document:
            return tuple(range(len(ids)))
        order = self.ids(document, "original_order", "top", ids)
        if len(order) != len(ids) or len(set(order)) != len(ids):
            raise self.fail("top", f"'original_order' must name each of the {len(ids)} statements once")
        return order
