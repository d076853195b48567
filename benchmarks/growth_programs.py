"""Programs of any length for `growth.py`: chains of cells after published genotypes, and their training steps.

A cell takes the outputs of the two cells before it. One statement is one kernel; a separable convolution is four of
them (depthwise and pointwise, twice). Sizes are bytes of float32 activations. Every so often a reduction cell halves
the sides and doubles the channels, so that sizes differ along the chain; after the fourth they are as at first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from peakmem.model import Buffer, Program, Statement

Genotype = tuple[tuple[tuple[str, int], ...], tuple[int, ...]]

NASNET_NORMAL: Genotype = (
    (("sep", 1), ("sep", 0), ("sep", 0), ("sep", 0), ("pool", 1), ("skip", 0), ("pool", 0), ("pool", 0), ("sep", 1),
     ("skip", 1)),
    (2, 3, 4, 5, 6),
)  # fmt: skip
NASNET_REDUCTION: Genotype = (
    (("sep", 1), ("sep", 0), ("pool", 1), ("sep", 0), ("pool", 1), ("sep", 0), ("skip", 3), ("pool", 2), ("sep", 2),
     ("pool", 1)),
    (3, 4, 5, 6),
)  # fmt: skip
DARTS_NORMAL: Genotype = (
    (("sep", 0), ("sep", 1), ("sep", 0), ("sep", 1), ("sep", 1), ("skip", 0), ("skip", 0), ("dil", 2)),
    (2, 3, 4, 5),
)
DARTS_REDUCTION: Genotype = (
    (("pool", 0), ("pool", 1), ("skip", 2), ("pool", 1), ("pool", 0), ("skip", 2), ("skip", 2), ("pool", 1)),
    (2, 3, 4, 5),
)

KERNELS = {"sep": 4, "dil": 2, "pool": 1, "skip": 0}
"""Statements of each operation."""


@dataclass
class Tape:
    """Statements as they are recorded, forward and then backward."""

    buffers: list[Buffer] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    writer: dict[int, int] = field(default_factory=dict)

    def buffer(self, size: int, kind: str = "intermediate") -> int:
        self.buffers.append(Buffer(f"b{len(self.buffers)}", size, kind, kind == "output"))  # type: ignore[arg-type]
        return len(self.buffers) - 1

    def run(self, op: str, reads: tuple[int, ...], size: int, kind: str = "intermediate") -> int:
        """One statement with one result."""
        result = self.buffer(size, kind)
        needs = tuple(sorted({self.writer[b] for b in reads if b in self.writer}))
        self.writer[result] = len(self.statements)
        self.statements.append(Statement(f"s{len(self.statements)}", op, reads, (result,), needs))
        return result

    def keep(self, b: int) -> None:
        """Make a buffer an output."""
        self.buffers[b] = Buffer(self.buffers[b].name, self.buffers[b].size, "output", True)

    def program(self, name: str) -> Program:
        return Program(tuple(self.buffers), tuple(self.statements), name)


def _cell(tape: Tape, genotype: Genotype, before: int, here: int, size: int) -> int:
    edges, joined = genotype
    values = [tape.run("conv", (before,), size), tape.run("conv", (here,), size)]
    for i in range(0, len(edges), 2):
        ends = []
        for op, source in edges[i : i + 2]:
            value = values[source]
            for _ in range(KERNELS[op]):
                value = tape.run("pool" if op == "pool" else "conv", (value,), size)
            ends.append(value)
        values.append(tape.run("add", tuple(dict.fromkeys(ends)), size))
    return tape.run("concat", tuple(values[j] for j in joined), size * len(joined))


def _cells(tape: Tape, statements: int, normal: Genotype, reduction: Genotype, side: int, channels: int) -> int:
    """Cells until there are so many statements; the last value."""
    image = tape.buffer(3 * side * side * 4, "input")
    before = here = tape.run("conv", (image,), 4 * side * side * channels)
    stage = k = 0
    while len(tape.statements) < statements:
        k += 1
        reducing = k % 5 == 0
        if reducing:
            stage = (stage + 1) % 4  # halving sides and doubling channels halves the bytes
        size = (4 * side * side * channels) >> stage
        before, here = here, _cell(tape, reduction if reducing else normal, before, here, size)
    return here


def nasnet_chain(statements: int) -> Program:
    """Inference of NASNet-A cells."""
    tape = Tape()
    tape.keep(_cells(tape, statements, NASNET_NORMAL, NASNET_REDUCTION, 56, 11))
    return tape.program(f"nasnet_chain_{statements}")


def darts_chain(statements: int) -> Program:
    """Inference of DARTS-V2 cells."""
    tape = Tape()
    tape.keep(_cells(tape, statements, DARTS_NORMAL, DARTS_REDUCTION, 56, 12))
    return tape.program(f"darts_chain_{statements}")


def residual_blocks(tape: Tape, statements: int) -> int:
    """Bottleneck blocks: three convolutions, each followed by a normalization, and an addition."""
    size = 4 * 64 * 56 * 56
    value = tape.run("conv", (tape.buffer(3 * 224 * 224 * 4, "input"),), size)
    k = 0
    while len(tape.statements) < statements:
        k += 1
        wide = size >> (k // 4 % 4)
        branch = value
        for part in (wide // 4, wide // 4, wide):
            branch = tape.run("norm", (tape.run("conv", (branch,), part),), part)
        short = value if tape.buffers[value].size == wide else tape.run("conv", (value,), wide)
        value = tape.run("add", (branch, short), wide)
    return value


def _training(tape: Tape, last: int, name: str) -> Program:
    """Append the backward pass.

    A convolution or normalization reads its input again and gives the gradient of its input and that of its weights (a
    statement each; the latter is an output); a pooling reads its input again; additions and concatenations hand their
    gradient on, in slices. A value read several times has its gradients added up, two at a time.
    """
    forward = list(tape.statements)
    gradient: dict[int, int] = {last: tape.run("loss", (last,), tape.buffers[last].size)}

    def give(value: int, part: int) -> None:
        old = gradient.get(value)
        gradient[value] = part if old is None else tape.run("accumulate", (old, part), tape.buffers[value].size)

    for s in reversed(forward):
        above = gradient.get(s.writes[0])
        if above is None:
            continue
        for value in s.reads:
            if s.op in ("conv", "norm"):
                tape.run("grad_weight", (above, value), 4 * 4096 if s.op == "conv" else 512, "output")
            if value not in tape.writer:
                continue  # nobody wants the gradient of the image
            size = tape.buffers[value].size
            if s.op == "add":
                give(value, above)
            elif s.op == "concat":
                give(value, tape.run("slice", (above,), size))
            else:
                saved = () if s.op == "conv" else (value,)
                give(value, tape.run("grad_input", (above, *saved), size))
    return tape.program(name)


def nasnet_training(statements: int) -> Program:
    """A training step of a chain of NASNet-A cells: about a third of the statements are forward."""
    tape = Tape()
    last = _cells(tape, round(statements / 3.3), NASNET_NORMAL, NASNET_REDUCTION, 56, 11)
    return _training(tape, last, f"nasnet_training_{statements}")


def residual_training(statements: int) -> Program:
    """A training step of a chain of bottleneck blocks."""
    tape = Tape()
    last = residual_blocks(tape, round(statements / 3))
    return _training(tape, last, f"residual_training_{statements}")


FAMILIES: dict[str, Callable[[int], Program]] = {
    "nasnet": nasnet_chain,
    "darts": darts_chain,
    "nasnet training": nasnet_training,
    "residual training": residual_training,
}
