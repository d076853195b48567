"""The frontend ``tape``: the smallest artifact that can be ordered, rewritten, run and measured.

A tape is a text file. Its first line is ``#tape``; then one line a value, in execution order::

    #tape
    in x 64
    a 128 = x
    b 32 = a x
    out b

``in`` names an input and its bytes; ``a 128 = x`` computes a value of 128 bytes from others; ``out`` names the values
that the caller gets. This module imports nothing heavy: the runtime is `peakmem_tape.machine`, imported when it runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from peakmem.frontends import Frontend, Model, Option, Progress, RuntimeStatus, Structure, Verification
from peakmem.frontends.structure import Part, Step, compare
from peakmem.model import Buffer, InputError, Program, Schedule, Statement, UsageError, peak_of
from peakmem.system.files import write_atomically


@dataclass(frozen=True)
class Tape:
    """The parsed file: inputs and outputs, and its lines in execution order (name, bytes, operands)."""

    inputs: dict[str, int]
    lines: tuple[tuple[str, int, tuple[str, ...]], ...]
    outputs: tuple[str, ...]

    def text(self) -> str:
        rows = ["#tape", *(f"in {name} {size}" for name, size in self.inputs.items())]
        rows += [f"{name} {size} = {' '.join(operands)}".rstrip() for name, size, operands in self.lines]
        return "\n".join([*rows, " ".join(("out", *self.outputs)), ""])


@dataclass(frozen=True)
class TapeModel(Model):
    """A tape and its program; see `peakmem.frontends.Model`."""

    tape: Tape
    file: Path | None
    sha256: str
    options: Mapping[str, Any]

    frontend = "tape"
    quantity = "tape_bytes"

    @property
    def path(self) -> Path | None:
        return self.file

    @property
    def digest(self) -> str:
        return self.sha256

    @cached_property
    def program(self) -> Program:
        return _program(self.tape, self.options)

    @property
    def input_rule(self) -> str:
        if self.options["keep_inputs"]:
            return "inputs belong to the caller and stay resident"
        return "inputs are freed after their last use"

    @property
    def predicted_bytes(self) -> int:
        return peak_of(self.program)

    def apply(self, schedule: Schedule) -> TapeModel:
        if schedule.expansion is not None:
            raise UsageError("a tape computes every value once")
        order = schedule.orders[""]
        self.program.validate_order(order)
        lines = tuple(self.tape.lines[v] for v in order)
        tape = Tape(self.tape.inputs, lines, self.tape.outputs)
        return _model(tape, None, tape.text().encode(), self.options)

    def save(self, path: Path, *, force: bool = False) -> None:
        write_atomically(path, self.tape.text().encode(), source=self.path, force=force)

    def structure(self, other: Model) -> Structure:
        return compare(self.part(), self.same_kind(other).part(), noun="lines")

    def part(self) -> Part:
        """What the tape holds, for `structure`."""
        given = {name: f"input {name} {size}" for name, size in self.tape.inputs.items()}
        steps = [Step(name, f"mix {size}", operands, (name,)) for name, size, operands in self.tape.lines]
        return Part(given, steps, self.tape.outputs)

    def verify(self, other: Model, *, progress: Progress | None = None) -> Verification:
        from peakmem_tape.machine import VERSION, run

        other = self.same_kind(other)
        keep = bool(self.options["keep_inputs"])
        before, first = run(self.tape, keep_inputs=keep)
        after, second = run(other.tape, keep_inputs=keep)
        same = first == second
        return Verification(
            runtime="tape machine",
            version=VERSION,
            quantity=self.quantity,
            baseline_bytes=before,
            optimized_bytes=after,
            baseline_predicted=self.predicted_bytes,
            predicted_bytes=other.predicted_bytes,
            bitwise_identical=same,
            compared=f"all {len(first)} outputs",
            failures=() if same else ("the outputs of the two tapes differ",),
        )

    def extras(self, other: Model, verification: Verification | None) -> dict[str, Any]:
        return {"lines": len(self.tape.lines)}


class TapeFrontend(Frontend):
    """Reads tapes; see `peakmem.frontends.Frontend`."""

    name = "tape"
    description = "programs on a tape, for tests and as an example of a plugin"
    options = (
        Option("keep-inputs", "flag", "Inputs belong to the caller and are never freed.", default=False),
        Option("align", "size", "Round every size up to a multiple of this.", default=1),
        Option("only", "choice", "Values to keep as outputs: all that are named, or the last.", "all", ("all", "last")),
        Option("size", "text", "Bytes of an input.", default=(), multiple=True, metavar="NAME=BYTES"),
    )

    def sniff(self, path: Path, head: bytes) -> bool:
        return head.startswith(b"#tape")

    def load(self, path: Path, options: Mapping[str, Any]) -> TapeModel:
        try:
            data = path.read_bytes()
            text = data.decode()
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: byte {error.start} is not UTF-8") from None
        return _model(_parse(text, str(path), options), path, data, options)

    def runtimes(self) -> tuple[RuntimeStatus, ...]:
        return (RuntimeStatus("tape machine", "1", "pip install peakmem-tape"),)


frontend = TapeFrontend()


def _model(tape: Tape, path: Path | None, data: bytes, options: Mapping[str, Any]) -> TapeModel:
    return TapeModel(tape, path, "sha256:" + hashlib.sha256(data).hexdigest(), options)


def _parse(text: str, where: str, options: Mapping[str, Any]) -> Tape:
    inputs: dict[str, int] = {}
    sizes: dict[str, int] = {}
    lines: list[tuple[str, int, tuple[str, ...]]] = []
    outputs: tuple[str, ...] = ()
    align = max(1, options["align"])
    rows = text.splitlines()
    if rows[:1] != ["#tape"]:
        raise InputError(f"{where}: line 1: must be '#tape'")
    for number, row in enumerate(rows[1:], 2):
        match row.split():
            case []:
                continue
            case ["in", name, size] if size.isdecimal() and len(size) < 10:
                inputs[name] = sizes[name] = -(-int(size) // align) * align
            case ["out", *names]:
                outputs = tuple(names)
            case [name, size, "=", *operands] if size.isdecimal() and len(size) < 10:
                unknown = [o for o in operands if o not in sizes]
                if unknown:
                    raise InputError(f"{where}: line {number}: {unknown[0]!r} is not computed yet")
                if name in sizes:
                    raise InputError(f"{where}: line {number}: {name!r} is computed twice")
                sizes[name] = -(-int(size) // align) * align
                lines.append((name, sizes[name], tuple(operands)))
            case _:
                raise InputError(f"{where}: line {number}: must be 'in NAME BYTES', 'NAME BYTES = NAMES' or 'out NAMES'")
    for given in options["size"]:
        name, _, size = given.partition("=")
        if name not in inputs or not size.isdecimal():
            raise UsageError(f"--size {given}: must be NAME=BYTES with the name of an input")
        inputs[name] = int(size)
    for name in outputs:
        if name not in sizes:
            raise InputError(f"{where}: output {name!r} is never computed")
    return Tape(inputs, tuple(lines), outputs if options["only"] == "all" else outputs[-1:])


def _program(tape: Tape, options: Mapping[str, Any]) -> Program:
    buffers = [Buffer(name, size, "input", bool(options["keep_inputs"])) for name, size in tape.inputs.items()]
    for name, size, _ in tape.lines:
        out = name in tape.outputs
        buffers.append(Buffer(name, size, "output" if out else "intermediate", out))
    ids = {buffer.name: i for i, buffer in enumerate(buffers)}
    steps = {name: v for v, (name, _, _) in enumerate(tape.lines)}
    statements = tuple(
        Statement(
            name=name,
            op="mix",
            reads=tuple(ids[o] for o in operands),
            writes=(ids[name],),
            dependences=tuple(sorted({steps[o] for o in operands if o in steps})),
        )
        for name, _, operands in tape.lines
    )
    return Program(tuple(buffers), statements)
