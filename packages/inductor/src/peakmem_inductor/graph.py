"""A wrapper as a program that can be permuted, and from an order back to text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from peakmem.liveness import peak_of
from peakmem.program import Program

from peakmem_inductor.forms import Access, Wrapper
from peakmem_inductor.profile import Profile
from peakmem_inductor.regions import Region


@dataclass
class Step:
    """One statement of the program: a call and everything that must stay with it."""

    name: str
    op: str
    parts: list[tuple[str, tuple[str, ...]]]
    accesses: list[tuple[str, Access, Region | None]] = field(default_factory=list)
    uses: list[str] = field(default_factory=list)
    defines: list[str] = field(default_factory=list)
    scratch: list[str] = field(default_factory=list)
    barrier: bool = False
    random: bool = False
    workspace: int = 0
    cost: int = 0


@dataclass(frozen=True)
class Definition:
    """A name that is bound when first needed: an allocation, a view, another name."""

    text: str
    needs: tuple[str, ...]


@dataclass(frozen=True)
class Graph:
    """A wrapper as a program that can be permuted.

    Attributes
    ----------
    program : Program
        Statement i is ``steps[i]``.
    data_dependent : bool
        Some size depends on data: bytes are those of the recorded run.
    """

    wrapper: Wrapper
    profile: Profile
    steps: tuple[Step, ...]
    definitions: dict[str, Definition]
    buffer_of: dict[str, int]
    names_of: tuple[tuple[str, ...], ...]
    prologue: tuple[str, ...]
    program: Program
    data_dependent: bool

    def predicted(self, order: Sequence[int] | None = None) -> int:
        """Bytes above entry of the emitted program in an order (the given one if None)."""
        return peak_of(self.program, order) - self.program.entry_bytes

    def emit(self, order: Sequence[int]) -> str:
        """The whole source with the statements of ``call`` in ``order``; `InputError` if the order is not allowed."""
        self.program.validate_order(order)
        wrapper = self.wrapper
        body = list(wrapper.preamble)
        inner: list[str] = [*self.prologue]
        bound = set(wrapper.inputs)
        for step in self.steps:
            bound.difference_update(step.defines)
        produced = {name for step in self.steps for name in step.defines}

        def bind(name: str) -> None:
            if name in bound or name in produced or name not in self.definitions:
                return
            bound.add(name)
            for need in self.definitions[name].needs:
                bind(need)
            inner.append(self.definitions[name].text)

        last = {}
        for position, v in enumerate(order):
            for b in {self.buffer_of[n] for n, _, _ in self.steps[v].accesses if n in self.buffer_of}:
                last[b] = position
        dying: list[list[int]] = [[] for _ in order]
        for b, position in last.items():
            if self.program.buffers[b].kind != "output" and not self._returned(b):
                dying[position].append(b)
        for position, v in enumerate(order):
            step = self.steps[v]
            for text, uses in step.parts:
                for name in uses:
                    bind(name)
                inner.append(text)
            bound.update(step.defines)
            gone = list(step.scratch)
            for b in sorted(dying[position]):
                gone.extend(n for n in self.names_of[b] if n in bound)
            if gone:
                inner.append("del " + ", ".join(gone))
        for name in wrapper.returns.uses:
            bind(name)
        inner.append(wrapper.returns.text)
        if wrapper.context:
            body.append(wrapper.context)
            inner = ["    " + line for text in inner for line in text.splitlines()]
        rows = [wrapper.indent + line if line else line for text in (*body, *inner) for line in text.splitlines()]
        source = wrapper.source.splitlines()
        first, final = wrapper.body_lines
        return "\n".join((*source[: first - 1], *rows, *source[final:])) + "\n"

    def _returned(self, b: int) -> bool:
        return any(self.buffer_of.get(n) == b for n in self.wrapper.outputs)
