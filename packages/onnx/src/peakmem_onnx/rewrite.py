"""Rewriting the protobuf: nodes permuted, nodes copied; nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from peakmem.errors import InputError, Refused
from peakmem.schedule import Expansion
from peakmem_onnx.graph import all_names, body_attributes, is_constant, read_graph


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
    """Permute a graph and its bodies by a map of body paths (see `peakmem.program.Program.bodies`)."""
    for v, node in enumerate(node for node in graph.node if not is_constant(node)):
        for k, (_, body) in enumerate(body_attributes(node)):
            permute(body, orders, f"{prefix}{v}/{k}/")
    order = orders.get(prefix.rstrip("/"))
    if order is not None:
        permute_level(graph, order)


def expand(proto: Any, expansion: Expansion) -> dict[str, str]:
    """Insert the copies of an expansion: node ``i`` of the result is statement ``i`` of the enlarged program.

    A copy writes values of its own. Which values a node reads is read off the enlarged program: where it touches a
    copied buffer, the value is the copy's. Values that share a storage (aliases, in-place results) are followed: a
    copied alias reads the copy of what it aliases.

    Returns
    -------
    dict of str to str
        New node or value -> what it repeats.

    Raises
    ------
    Refused
        When a statement is copied that may not run twice, or a copy would change a value that another statement reads.
    """
    graph = read_graph(proto.graph)
    names = all_names([graph]) | {node.name for node in graph.nodes}
    constants = [node.SerializeToString() for node in proto.graph.node if is_constant(node)]
    data = [node.proto.SerializeToString() for node in graph.nodes]
    repeats: dict[str, str] = {}
    seen: set[int] = set()
    # Enlarged buffer -> original value -> the value that lives there under a new name.
    renamed: dict[int, dict[str, str]] = {}
    original_buffer = expansion.buffer_of
    result = []
    for s, v in enumerate(expansion.statement_of):
        statement = expansion.program.statements[s]
        node = graph.nodes[v]
        copied = v in seen
        seen.add(v)
        proto_node = type(proto.graph.node[0])()
        proto_node.ParseFromString(data[v])
        current: dict[str, str] = {}
        for b in statement.reads:
            current.update(renamed.get(b, {}))
        for i, name in enumerate(proto_node.input):
            if name in current:
                proto_node.input[i] = current[name]
        if any(name in current for name in node.captured):
            raise Refused(f"node {node.name!r} has a body that reads a recomputed value; ONNX bodies capture by name")
        if copied:
            if not statement.pure:
                raise Refused(f"node {node.name!r} may not run twice")
            outputs = set(v.name for v in proto.graph.output)
            fresh = {}
            for i, name in enumerate(proto_node.output):
                if not name:
                    continue
                if name in outputs:
                    raise Refused(f"node {node.name!r} writes the graph output {name!r} and may not be repeated")
                fresh[name] = _unused(f"{name}_again", names)
                proto_node.output[i] = fresh[name]
                repeats[fresh[name]] = name
            proto_node.name = _unused(f"{node.name}_again", names)
            repeats[proto_node.name] = node.name
            for b in (*statement.writes, *statement.reads):
                if original_buffer[b] != b or b in statement.writes:
                    renamed.setdefault(b, {}).update(fresh)
        result.append(proto_node.SerializeToString())
    replace_nodes(proto.graph, [*constants, *result])
    return repeats


def _unused(name: str, names: set[str]) -> str:
    candidate, number = name, 2
    while candidate in names:
        candidate, number = f"{name}_{number}", number + 1
    names.add(candidate)
    return candidate


