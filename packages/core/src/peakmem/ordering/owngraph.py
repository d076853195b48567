"""Graphs of one's own: from a networkx graph, or a dict of reads and writes, to an order with names."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from heapq import heapify, heappop, heappush
from operator import index
from typing import Any

from peakmem.model import Buffer, InputError, Overlay, Program, Statement, did_you_mean
from peakmem.ordering import Ordering
from peakmem.proof import CheckedCertificate, explain

Name = Hashable


@dataclass(frozen=True)
class Ordered:
    """The best order found of a graph, in its own names.

    Attributes
    ----------
    ordering : Ordering
        The same by number, with the program that was made of the graph.
    order : tuple
        Names of the statements.
    """

    ordering: Ordering
    order: tuple[Any, ...]

    @property
    def peak(self) -> int:
        """Most bytes that are live at once in `order`."""
        return self.ordering.peak

    @property
    def lower_bound(self) -> int:
        """No order has a lower peak, in bytes."""
        return self.ordering.lower_bound

    @property
    def certificate(self) -> CheckedCertificate | None:
        """Proof of `lower_bound`; present only if the independent checker accepted it."""
        return self.ordering.certificate

    @property
    def optimal(self) -> bool:
        """The peak equals the lower bound, and a checked certificate proves that bound."""
        return self.certificate is not None and self.peak == self.lower_bound

    @property
    def program(self) -> Program:
        """What the certificate speaks about."""
        return self.ordering.program

    def explain(self) -> list[str]:
        """Sentences that say why no order needs less than `lower_bound`; none without a certificate."""
        return [] if self.certificate is None else explain(self.program, self.certificate.to_json())


@dataclass
class _Row:
    """One statement by names."""

    reads: list[Name]
    writes: list[Name]
    workspace: int = 0
    overlay: tuple[Name, list[Name]] | None = None


def program_from_graph(
    graph: Any,
    sizes: Mapping[Any, Any] | str,
    *,
    outputs: Iterable[Any] | None = None,
    pinned: Iterable[Any] = (),
    workspace: Mapping[Any, Any] | None = None,
    overlays: Mapping[Any, Any] | None = None,
) -> tuple[Program, tuple[Any, ...]]:
    """The program of a graph, and the names of its statements; see `peakmem.order` for what is taken.

    Raises
    ------
    InputError
        One sentence that names the place.
    """
    if isinstance(graph, Mapping):
        rows = {name: _row(name, value) for name, value in graph.items()}
    elif hasattr(graph, "predecessors") and hasattr(graph, "nodes"):
        if isinstance(sizes, str):
            sizes = {node: _attribute(data, sizes, node) for node, data in graph.nodes(data=True)}
        rows = {node: _Row(list(dict.fromkeys(graph.predecessors(node))), [node]) for node in graph.nodes}
        for node, row in rows.items():
            if node in row.reads:
                raise InputError(f"the statements wait for each other in a circle: {node!r} -> {node!r}")
    elif hasattr(graph, "nodes"):
        raise InputError("the graph has no direction; give a networkx.DiGraph, its edges from a statement to those that read it")
    else:
        raise InputError(f"order() takes a networkx.DiGraph or a dict of reads and writes, not {_show(graph)}")
    if not isinstance(sizes, Mapping):
        raise InputError(f"sizes must be a dict from names to bytes, not {_show(sizes)}")
    for word, given in (("workspace", workspace), ("overlays", overlays)):
        if given is not None and not isinstance(given, Mapping):
            raise InputError(f"{word} must be a dict by statement, not {_show(given)}")
    for name, bytes_ in (workspace or {}).items():
        if name not in rows:
            raise _unknown("workspace", name, rows)
        rows[name].workspace = _natural(bytes_, f"workspace of {name!r}")
    for name, pair in (overlays or {}).items():
        if name not in rows:
            raise _unknown("overlays", name, rows)
        rows[name].overlay = _overlay(name, pair, rows[name])
    return _program(rows, sizes, outputs, pinned)


def _row(name: Name, value: Any) -> _Row:
    if isinstance(value, Mapping):
        for key in value:
            if key not in ("reads", "writes", "workspace"):
                raise InputError(f"statement {name!r}: {key!r} is unknown; there are 'reads', 'writes' and 'workspace'")
        reads, writes, extra = value.get("reads", ()), value.get("writes", ()), value.get("workspace", 0)
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)) and len(value) == 2:
        (reads, writes), extra = value, 0
    else:
        raise InputError(
            f"statement {name!r}: must be a pair of lists (reads, writes), or a dict with these keys, not {_show(value)}"
        )
    found: list[list[Name]] = []
    for word, names in (("reads", reads), ("writes", writes)):
        if isinstance(names, (str, bytes)) or not isinstance(names, Iterable):
            raise InputError(f"statement {name!r}: {word} must be a list of names, not {_show(names)}")
        try:
            found.append(list(dict.fromkeys(_in_order(names))))
        except TypeError:
            raise InputError(f"statement {name!r}: {word} must be names that a dict could have, not {_show(names)}") from None
    return _Row(found[0], found[1], _natural(extra, f"workspace of {name!r}"))


def _in_order(names: Iterable[Name]) -> list[Name]:
    """As listed; a set is in another order in every process, and the program must be the same one."""
    return sorted(names, key=repr) if isinstance(names, (set, frozenset)) else list(names)


def _overlay(name: Name, pair: Any, row: _Row) -> tuple[Name, list[Name]]:
    if not isinstance(pair, Sequence) or isinstance(pair, (str, bytes)) or len(pair) != 2:
        raise InputError(f"overlays: {name!r} must have a pair of an output and a list of inputs, not {_show(pair)}")
    output, inputs = pair
    if isinstance(inputs, (str, bytes)) or not isinstance(inputs, Iterable):
        raise InputError(f"overlays: the inputs of {name!r} must be a list of names, not {_show(inputs)}")
    inputs = _in_order(inputs)
    for word, b, known in (("output", output, row.writes), *(("input", b, row.reads) for b in inputs)):
        if b not in known:
            raise InputError(f"overlays: {_show(b)} is no {word} of {name!r}{did_you_mean(str(b), map(str, known))}")
    return output, inputs


def _program(
    rows: dict[Any, _Row], sizes: Mapping[Any, Any], outputs: Iterable[Any] | None, pinned: Iterable[Any]
) -> tuple[Program, tuple[Any, ...]]:
    readers: dict[Any, list[int]] = {}
    writers: dict[Any, list[int]] = {}
    for v, row in enumerate(rows.values()):
        for b in row.reads:
            readers.setdefault(b, []).append(v)
        for b in row.writes:
            writers.setdefault(b, []).append(v)
    touched = list(dict.fromkeys(b for row in rows.values() for b in (*row.reads, *row.writes)))
    known = dict.fromkeys(touched)
    for b in sizes:
        if b not in known:
            raise _unknown("sizes", b, known)
    kept = {b for b in writers if b not in readers} if outputs is None else set(outputs)
    held = kept.union(pinned)
    for word, group in (("outputs", kept), ("pinned", held)):
        for b in group:
            if b not in known:
                raise _unknown(word, b, known)
    needs: list[set[int]] = [set() for _ in rows]
    called = _distinct(touched)
    buffers = []
    for b in touched:
        if b not in sizes:
            raise InputError(f"sizes: {b!r} is missing")
        reads, writes = readers.get(b, []), writers.get(b, [])
        at_entry = not writes
        if len(writes) == 1 and writes[0] not in reads:
            for v in reads:
                needs[v].add(writes[0])
        elif writes:  # written again, or in place: what is listed first comes first
            at_entry = min(reads, default=writes[-1] + 1) <= writes[0]
            _in_turn(sorted({*reads, *writes}), set(writes), needs)
        kind: Any = "input" if at_entry else "output" if b in kept else "intermediate"
        size = _natural(sizes[b], f"size of {b!r}")
        buffers.append(Buffer(called[b], size, kind, b in held))
    order = _legal(needs, list(rows))
    new = {v: i for i, v in enumerate(order)}
    number = {b: i for i, b in enumerate(touched)}
    names = list(rows)
    words = _distinct(names)
    statements = []
    for v in order:
        row = rows[names[v]]
        statements.append(
            Statement(
                words[names[v]],
                reads=tuple(number[b] for b in row.reads),
                writes=tuple(number[b] for b in row.writes),
                dependences=tuple(sorted(new[u] for u in needs[v])),
                workspace=row.workspace,
                overlay=Overlay(number[row.overlay[0]], tuple(number[b] for b in row.overlay[1])) if row.overlay else None,
            )
        )
    return Program(tuple(buffers), tuple(statements)), tuple(names[v] for v in order)


def _in_turn(touchers: Sequence[int], writers: set[int], needs: list[set[int]]) -> None:
    """A write waits for all touches since the last write, and every touch for the last write."""
    last: int | None = None
    since: list[int] = []
    for v in touchers:
        if last is not None:
            needs[v].add(last)
        if v in writers:
            needs[v].update(since)
            last, since = v, []
        else:
            since.append(v)


def _legal(needs: Sequence[set[int]], names: Sequence[Any]) -> list[int]:
    """Positions in an order that honours the needs, as listed where that is one."""
    after: list[list[int]] = [[] for _ in needs]
    for v, before in enumerate(needs):
        for u in before:
            after[u].append(v)
    missing = [len(before) for before in needs]
    ready = [v for v, m in enumerate(missing) if not m]
    heapify(ready)
    order = []
    while ready:
        v = heappop(ready)
        order.append(v)
        for w in after[v]:
            missing[w] -= 1
            if not missing[w]:
                heappush(ready, w)
    if len(order) < len(needs):
        try:
            TopologicalSorter(dict(enumerate(needs))).prepare()
        except CycleError as error:
            circle = " -> ".join(repr(names[v]) for v in error.args[1])
            raise InputError(f"the statements wait for each other in a circle: {circle}") from None
    return order


def _natural(value: Any, what: str) -> int:
    """A whole number of bytes; numpy's integers are welcome, booleans and floats (NaN among them) are not."""
    if not isinstance(value, bool):
        try:
            number = index(value)
        except TypeError:
            pass
        else:
            if number < 0:
                raise InputError(f"{what} must not be negative, and is {number}")
            return number
    raise InputError(f"{what} must be a whole number of bytes, not {_show(value)}")


def _attribute(data: Mapping[str, Any], key: str, node: Name) -> Any:
    if key not in data:
        raise InputError(f"node {node!r} has no attribute {key!r}")
    return data[key]


def _unknown(where: str, name: Any, known: Iterable[Any]) -> InputError:
    return InputError(f"{where}: {name!r} is no name of the graph{did_you_mean(str(name), map(str, known))}")


def _distinct(names: Sequence[Any]) -> dict[Any, str]:
    """A text for each name; what looks alike (1 and "1") is told apart."""
    texts = [str(name) for name in names]
    if len(set(texts)) < len(texts):
        texts = [repr(name) for name in names]
    if len(set(texts)) < len(texts):
        texts = [f"{text} ({i})" for i, text in enumerate(texts)]
    return dict(zip(names, texts))


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
