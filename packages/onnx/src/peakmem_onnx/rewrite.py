"""Rewriting the protobuf: nodes permuted, nodes copied; nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from peakmem.model import Expansion, InputError, Program, Refused

from peakmem_onnx.graph import Graph, Node, all_names, body_attributes, is_constant, read_graph
from peakmem_onnx.rules import alias_of


def permute_level(graph: Any, order: Sequence[int]) -> None:
    """Put the executed nodes of a ``GraphProto`` into ``order``, Constant nodes first; each keeps its bytes."""
    before = [node.SerializeToString() for node in graph.node]
    constants = [data for data, node in zip(before, graph.node, strict=True) if is_constant(node)]
    executed = [data for data, node in zip(before, graph.node, strict=True) if not is_constant(node)]
    if sorted(order) != list(range(len(executed))):
        raise InputError("the order is not a permutation of the graph's nodes")
    after = [*constants, *(executed[v] for v in order)]
    if after != before:
        replace_nodes(graph, after)


def replace_nodes(graph: Any, data: Sequence[bytes]) -> None:
    """Give a ``GraphProto`` other nodes, from their bytes."""
    del graph.node[:]
    for item in data:
        graph.node.add().ParseFromString(item)


def permute(graph: Any, orders: Mapping[str, Sequence[int]], prefix: str = "") -> None:
    """Permute a graph and its bodies by a map of body paths (see `peakmem.model.Program.bodies`)."""
    for v, node in enumerate(node for node in graph.node if not is_constant(node)):
        for k, (_, body) in enumerate(body_attributes(node)):
            permute(body, orders, f"{prefix}{v}/{k}/")
    order = orders.get(prefix.rstrip("/"))
    if order is not None:
        permute_level(graph, order)


def expand(proto: Any, program: Program, root: Mapping[str, str], expansion: Expansion, order: Sequence[int]) -> dict[str, str]:
    """Write the enlarged program of an expansion, in ``order``, into the graph.

    A copied statement becomes a node that writes values of its own. A statement that touches a copied buffer reads the
    copy's values instead; where it reads the storage through an alias (a Reshape), the alias is repeated too, which
    costs nothing.

    Parameters
    ----------
    proto : ModelProto
        Changed in place; statement ``i`` of ``program`` is its ``i``-th executed node.
    program : Program
    root : mapping of str to str
        Value -> the value that names its buffer.
    expansion : Expansion
    order : sequence of int
        Permutation of the enlarged program.

    Returns
    -------
    dict of str to str
        New node or value -> what it repeats.

    Raises
    ------
    Refused
        When a statement is copied that may not run twice, or a body would have to read a copy.
    """
    graph = read_graph(proto.graph)
    writer = _Copies(graph, root, all_names([graph]) | {node.name for node in graph.nodes})
    names = [buffer.name for buffer in program.buffers]
    result: list[bytes] = []
    for s in order:
        statement = expansion.program.statements[s]
        v = expansion.statement_of[s]
        storages = {}  # original buffer name -> enlarged buffer, where that is a copy
        for b in (*statement.reads, *statement.writes):
            original = names[expansion.buffer_of[b]]
            if expansion.program.buffers[b].name != original:
                storages[original] = b
        if statement.name == program.statements[v].name:
            result.extend(writer.reader(graph.nodes[v], storages))
        elif not program.statements[v].pure:
            raise Refused(f"node {graph.nodes[v].name!r} may not run twice")
        else:
            result.extend(writer.copy(graph.nodes[v], storages))
    constants = [node.SerializeToString() for node in proto.graph.node if is_constant(node)]
    replace_nodes(proto.graph, [*constants, *result])
    return writer.repeats


class _Copies:
    """Nodes of an enlarged graph, one statement after the other."""

    def __init__(self, graph: Graph, root: Mapping[str, str], names: set[str]) -> None:
        self.graph = graph
        self.root = root
        self.names = names
        self.producer = graph.producer
        self.repeats: dict[str, str] = {}
        self.values: dict[int, dict[str, str]] = {}  # copied buffer -> original value -> its value there
        self.aliases: list[bytes] = []

    def reader(self, node: Node, storages: Mapping[str, int]) -> list[bytes]:
        """The node with its inputs redirected, after the aliases it needs."""
        proto = self._redirected(node, storages)
        return [*self._taken(), proto.SerializeToString()]

    def copy(self, node: Node, storages: Mapping[str, int]) -> list[bytes]:
        """A repetition of the node, writing new values."""
        proto = self._redirected(node, storages)
        for i, name in enumerate(node.outputs):
            if name:
                fresh = self._fresh(name)
                proto.output[i] = fresh
                storage = storages.get(self.root[name])
                if storage is not None:
                    self.values.setdefault(storage, {})[name] = fresh
        proto.name = self._fresh(node.name)
        return [*self._taken(), proto.SerializeToString()]

    def _redirected(self, node: Node, storages: Mapping[str, int]) -> Any:
        if any(self.root.get(name) in storages for name in node.captured):
            raise Refused(f"node {node.name!r} has a body that reads a recomputed value, which ONNX captures by name")
        proto = type(node.proto)()
        proto.CopyFrom(node.proto)
        for i, name in enumerate(node.inputs):
            if name and self.root.get(name) in storages:
                proto.input[i] = self._value(name, storages[self.root[name]])
        return proto

    def _value(self, name: str, storage: int) -> str:
        """The value that holds ``name`` in a copied storage; aliases are repeated on demand."""
        known = self.values.setdefault(storage, {})
        if name in known:
            return known[name]
        if name not in self.producer or self.root[name] == name:
            raise Refused(f"value {name!r} is read from a copy that nothing has written yet")
        node = self.graph.nodes[self.producer[name]]
        source = next((node.inputs[i] for i, o in alias_of(node.domain, node.op) if node.outputs[o] == name), None)
        if source is None:
            raise Refused(f"node {node.name!r} works in place in a storage that is recomputed; it has two writers")
        proto = type(node.proto)()
        proto.CopyFrom(node.proto)
        proto.input[0] = self._value(source, storage)
        proto.output[0] = known[name] = self._fresh(name)
        proto.name = self._fresh(node.name)
        self.aliases.append(proto.SerializeToString())
        return known[name]

    def _taken(self) -> list[bytes]:
        taken, self.aliases = self.aliases, []
        return taken

    def _fresh(self, name: str) -> str:
        fresh = _unused(f"{name}_again", self.names)
        self.repeats[fresh] = name
        return fresh


def _unused(name: str, names: set[str]) -> str:
    candidate, number = name, 2
    while candidate in names:
        candidate, number = f"{name}_{number}", number + 1
    names.add(candidate)
    return candidate


