"""Is one wrapper the other with its statements permuted, and some of them run again? Read off both texts; nothing runs.

What a wrapper holds is listed for `peakmem.frontends.structure`: every call with its text, in which tensors are numbered and
described by their layouts, since copies have other names. Storages are followed by the parts that are written: slices of a
concatenation may be written in any order, and whoever reads the whole reads all parts. Generators of random numbers are a
value, and so is what a barrier may change, which every statement reads that may not run twice.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable

from peakmem.frontends import Structure
from peakmem.frontends.structure import Part, compare
from peakmem.frontends.structure import Step as Row

from peakmem_inductor.emitting import rename
from peakmem_inductor.forms import lines_of
from peakmem_inductor.graph import Graph, Step
from peakmem_inductor.regions import Region, overlap

_FENCE, _GENERATOR = "what a barrier may change", "the generator"


def compare_graphs(first: Graph, second: Graph) -> Structure:
    """What ``second`` is to ``first``; see `peakmem.frontends.Model.structure`. Linear in the texts, but for regions."""
    for what, x, y in (
        ("kernels, or other text outside of call,", _outside(first), _outside(second)),
        ("arguments", list(first.wrapper.inputs), list(second.wrapper.inputs)),
        ("first lines of call", [*first.wrapper.preamble, first.wrapper.context], [*second.wrapper.preamble, second.wrapper.context]),
        ("symbols and guards", list(first.prologue), list(second.prologue)),
    ):  # fmt: skip
        if x != y:
            line = next((b for a, b in zip(x, y) if a != b), "")
            return Structure(difference=f"their {what} differ" + (f", first in {line.strip()[:60]!r}" if line else ""))
    # What nobody holds any more is no result: a reuse that only overwrites it may have become an allocation.
    gone = {n for g in (first, second) for n in (*g.wrapper.donated, *(g.profile.freed if g.profile.recorded else ()))}
    return compare(_Listing(first, gone).part(), _Listing(second, gone).part(), noun="statements")


def _outside(graph: Graph) -> list[str]:
    """The text around the body of ``call``."""
    rows = lines_of(graph.wrapper.source)
    start, end = graph.wrapper.body_lines
    return [*rows[: start - 1], *rows[end:]]


class _Listing:
    """The statements of a graph as rows, with the parts of each storage that have been written so far."""

    def __init__(self, graph: Graph, gone: Collection[str]) -> None:
        self.graph, self.gone = graph, gone
        self.written: dict[int, list[Region | None]] = {}

    def part(self) -> Part:
        graph = self.graph
        given = {}
        for i, name in enumerate(graph.wrapper.inputs):
            b = graph.buffer_of.get(name)
            if b is not None and b not in self.written:
                self.written[b] = [None]
                given[self._cell(b, None)] = f"input {i} {self._layout(name)}"
        rows = [self._row(v, step) for v, step in enumerate(graph.steps)]
        # What is returned, and what the caller's arguments hold in the end.
        kept = [n for n in graph.wrapper.inputs if n not in self.gone]
        names = [n for n in (*graph.wrapper.returns.uses, *kept) if n in graph.buffer_of]
        reads = [cell for name in names for cell in self._reads(graph.buffer_of[name], None)]
        text = self._text([(graph.wrapper.returns.text, graph.wrapper.returns.uses)], ())
        return Part(given, [*rows, Row("return", text, tuple(reads), ("result",))], ("result",))

    def _row(self, v: int, step: Step) -> Row:
        graph = self.graph
        own = [n for n in step.defines if n not in graph.buffer_of]  # numbers, and what is no tensor
        statement = graph.program.statements[v]
        # A statement that may run twice sees nothing of what a barrier changes unseen.
        reads = [*([] if statement.pure else [_FENCE]), *(n for n in step.uses if n not in graph.buffer_of)]
        writes = list(own)
        for name, access, region in step.accesses:
            b = graph.buffer_of[name]
            if access != "w":
                reads += self._reads(b, region)
        for name, access, region in step.accesses:
            if access != "r":
                writes += self._writes(graph.buffer_of[name], region, reads)
        if step.random or step.barrier:
            reads.append(_GENERATOR)
            writes.append(_GENERATOR)
        if step.barrier:
            writes.append(_FENCE)
        return Row(step.name, self._text(step.parts, step.scratch), tuple(reads), tuple(writes), once=not statement.pure)

    def _reads(self, b: int, region: Region | None) -> list[str]:
        """The parts of a storage that a reader of ``region`` sees, in an order that does not tell who wrote first."""
        return sorted(self._cell(b, part) for part in self.written.get(b, []) if overlap(region, part))

    def _writes(self, b: int, region: Region | None, reads: list[str]) -> list[str]:
        parts = self.written.setdefault(b, [])
        if region is None:
            parts[:] = [None]
            return [self._cell(b, None)]
        # Written parts that overlap without being equal hold something of both writers from now on.
        mixed = [part for part in parts if part is not None and part != region and overlap(region, part)]
        reads += [self._cell(b, part) for part in mixed]
        if region not in parts:
            parts.append(region)
        return [self._cell(b, part) for part in (region, *mixed)]

    def _cell(self, b: int, region: Region | None) -> str:
        return f"{region} of storage {b}"

    def _text(self, parts: Iterable[tuple[str, Iterable[str]]], scratch: Iterable[str]) -> str:
        """The texts with tensors and tuples numbered as they appear, and what the tensors look like; the operator first."""
        numbers: dict[str, str] = {}
        rows = []
        for text, _ in parts:
            for name in _names(text):
                if name in self.graph.buffer_of or name in scratch:
                    numbers.setdefault(name, f"tensor{len(numbers)}")
            rows.append(rename(text, numbers))
        kind = rows[0].split("(", 1)[0].rpartition("=")[2].strip() if rows else ""
        return "\n".join((kind, *rows, *(self._layout(name) for name in numbers)))

    def _layout(self, name: str) -> str:
        layout = self.graph.profile.names.get(name)
        return "" if layout is None else f"{layout.shape} {layout.stride} {layout.offset} {layout.dtype}"


def _names(text: str) -> list[str]:
    """Names of a statement, those it binds too, in order of appearance."""
    found = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name)]
    return [n.id for n in sorted(found, key=lambda n: (n.lineno, n.col_offset))]
