"""From an order of statements, perhaps with some of them twice, back to the text of a wrapper.

Allocations and views are written right before the first statement that needs them, a ``del`` right after the last. A
statement that runs again writes buffers of its own, so all names in those buffers get names of their own
(``buf3_copy1``); statements that read a copy are written with the copy's names. Nothing else in a statement changes.
"""

from __future__ import annotations

import ast
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from peakmem.model import Expansion, PeakmemError, Program, Refused, peak_of

from peakmem_inductor.forms import Wrapper, lines_of
from peakmem_inductor.graph import Graph, Step, dying
from peakmem_inductor.profile import Layout, Profile
from peakmem_inductor.simulation import simulate
from peakmem_inductor.wrapper import parse_wrapper


@dataclass(frozen=True)
class Emitted:
    """The whole source of a wrapper, and the profile it would have been recorded with."""

    source: str
    profile: Profile


def emit(graph: Graph, order: Sequence[int], expansion: Expansion | None = None) -> Emitted:
    """Write the statements of ``call`` in an order.

    Parameters
    ----------
    graph : Graph
    order : sequence of int
        Of the statements of ``graph.program``, or of the enlarged program.
    expansion : Expansion, optional
        ``graph.program`` enlarged by copies.

    Raises
    ------
    InputError
        If the order is not allowed.
    Refused
        If a statement runs twice that may not.

    Notes
    -----
    Linear in the text that is written.
    """
    return _Emitter(graph, order, expansion).run()


def realize(graph: Graph, order: Sequence[int], expansion: Expansion | None = None) -> tuple[Wrapper, Profile]:
    """The wrapper with its statements in ``order``, read back and simulated, and its profile.

    Raises
    ------
    PeakmemError
        If the text does not have the modelled peak, which would be a fault of peakmem.
    """
    program = expansion.program if expansion is not None else graph.program
    emitted = emit(graph, order, expansion)
    wrapper = parse_wrapper(emitted.source, where="the permuted wrapper")
    profile = replace(emitted.profile, digest=wrapper.digest, measured_peak=None)
    modelled = peak_of(program, order) - program.entry_bytes
    simulated = simulate(wrapper, profile)
    if simulated != modelled:
        raise PeakmemError(
            f"the permuted text needs {simulated:,} bytes where the model says {modelled:,}; this is a fault of "
            "peakmem, please report it with the file"
        )
    return wrapper, profile


class _Emitter:
    def __init__(self, graph: Graph, order: Sequence[int], expansion: Expansion | None) -> None:
        self.graph = graph
        self.order = order
        self.program: Program = expansion.program if expansion is not None else graph.program
        self.program.validate_order(order)
        self.statement_of = expansion.statement_of if expansion is not None else range(len(self.program))
        self.buffer_of = expansion.buffer_of if expansion is not None else range(len(self.program.buffers))
        self.originals = len(graph.program.buffers)
        self.bound = set(graph.wrapper.inputs)
        self.produced = {name for step in graph.steps for name in step.defines}
        self.bound -= self.produced
        self.rows: list[str] = [*graph.prologue]
        self.suffix = _suffixes(self.buffer_of, _words(graph.wrapper.source))
        # What the profile lacks: layouts of new names, and what is recorded by the text of a statement.
        self.layouts: dict[str, Layout] = {}
        self.texts: dict[str, tuple[str, Mapping[str, str]]] = {}

    def run(self) -> Emitted:
        gone = dying(self.program, self.order, lambda b: b < self.originals and self.graph.returned(b))
        wrapper = self.graph.wrapper
        for position, s in enumerate(self.order):
            self.statement(s, gone[position])
        for name in wrapper.returns.uses:
            self.bind(name, {})
        self.rows.append(wrapper.returns.text)
        body, inner = list(wrapper.preamble), self.rows
        if wrapper.context:
            body.append(wrapper.context)
            inner = ["    " + line for text in inner for line in lines_of(text)]
        rows = [wrapper.indent + line if line else line for text in (*body, *inner) for line in lines_of(text)]
        source = lines_of(wrapper.source)
        first, final = wrapper.body_lines
        return Emitted("\n".join((*source[: first - 1], *rows, *source[final:])) + "\n", self.profile())

    def profile(self) -> Profile:
        old = self.graph.profile
        if not self.texts and not self.layouts:
            return old

        def again(table: Mapping[str, int]) -> dict[str, int]:
            return {**table, **{new: table[text] for new, (text, _) in self.texts.items() if text in table}}

        requests = {
            new: tuple((names.get(n, n), change) for n, change in old.requests[text])
            for new, (text, names) in self.texts.items()
            if text in old.requests
        }
        return replace(
            old,
            names={**old.names, **self.layouts},
            workspaces=again(old.workspaces),
            residues=again(old.residues),
            requests={**old.requests, **requests},
        )

    def statement(self, s: int, dead: Sequence[int]) -> None:
        v = self.statement_of[s]
        step = self.graph.steps[v]
        original, now = self.graph.program.statements[v], self.program.statements[s]
        where = dict(zip((*original.reads, *original.writes), (*now.reads, *now.writes)))
        repeated = now.name != original.name
        if repeated and not original.pure:
            raise Refused(f"statement {original.name!r} may not run twice")
        names = self.renamed(step, where, now.writes if repeated else ())
        for text, uses in step.parts:
            for name in uses:
                self.bind(name, where)
            changed = rename(text, names)
            if changed != text:
                self.texts[changed] = (text, names)
            self.rows.append(changed)
        self.bound.update(names.get(n, n) for n in step.defines)
        gone = [names.get(n, n) for n in step.scratch]
        for b in dead:
            gone.extend(n for n in (self.called(x, b) for x in self.graph.names_of[self.buffer_of[b]]) if n in self.bound)
        if gone:
            self.rows.append("del " + ", ".join(gone))
            self.bound.difference_update(gone)

    def renamed(self, step: Step, where: Mapping[int, int], written: Sequence[int]) -> dict[str, str]:
        """New names in a statement: all those of copied buffers, and the tuples that a repeated call binds besides
        (``written`` are a repeated call's buffers, which are nobody else's)."""
        names: dict[str, str] = {}
        copies = {b: now for b, now in where.items() if now >= self.originals}
        for b, now in copies.items():
            names.update((n, self.called(n, now)) for n in self.graph.names_of[b])
        if written and step.scratch:
            end = self.suffix[written[0]]
            names.update((n, n + end) for n in step.scratch)
        for old, new in names.items():
            self.describe(old, new, names)
        return names

    def describe(self, old: str, new: str, names: Mapping[str, str]) -> None:
        layout = self.graph.profile.names.get(old)
        if layout is not None and new not in self.layouts:
            self.layouts[new] = replace(layout, storage=names.get(layout.storage, layout.storage))

    def called(self, name: str, b: int) -> str:
        """What a name of the original program is called in a buffer of the enlarged one."""
        return name if b < self.originals else name + self.suffix[b]

    def bind(self, name: str, where: Mapping[int, int]) -> None:
        """Write the definition of a name, after those that it needs."""
        if name in self.produced or name not in self.graph.definitions:
            return
        b = self.graph.buffer_of[name]
        now = where.get(b, b)
        called = self.called(name, now)
        if called in self.bound:
            return
        self.bound.add(called)
        definition = self.graph.definitions[name]
        for need in definition.needs:
            self.bind(need, where)
        if now < self.originals:
            self.rows.append(definition.text)
        else:
            self.rows.append(rename(definition.text, {n: self.called(n, now) for n in self.graph.names_of[b]}))


def rename(text: str, names: Mapping[str, str]) -> str:
    """Statements with some variables called otherwise; nothing else changes.

    >>> rename("k(a, out=b)  # a", {"a": "c", "out": "x"})
    'k(c, out=b)  # a'
    """
    if not names or not any(w in names for w in _words(text)):
        return text
    lines = [line.encode() for line in text.split("\n")]
    found = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Name) and n.id in names]
    for node in sorted(found, key=lambda n: (n.lineno, n.col_offset), reverse=True):
        row = lines[node.lineno - 1]
        lines[node.lineno - 1] = row[: node.col_offset] + names[node.id].encode() + row[node.end_col_offset :]
    return "\n".join(line.decode() for line in lines)


def _words(text: str) -> set[str]:
    """Words of a text as Python compares them."""
    text = text if text.isascii() else unicodedata.normalize("NFKC", text)
    return set(re.findall(r"[^\W\d]\w*", text))


def _suffixes(buffer_of: Sequence[int], taken: set[str]) -> dict[int, str]:
    """For each copied buffer what is appended to its names; no name so made stands in the wrapper."""
    mark = "_copy"
    while any(mark in word for word in taken):
        mark += "_"
    count: dict[int, int] = {}
    result = {}
    for b, original in enumerate(buffer_of):
        k = count.get(original, 0)
        count[original] = k + 1
        if k:
            result[b] = f"{mark}{k}"
    return result
