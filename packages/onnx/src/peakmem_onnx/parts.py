"""What an ONNX file holds, for telling whether two files are one program: see `peakmem.frontends.structure`.

Not told are names (but those of the graph's inputs and outputs, which the caller uses), documentation, declared shapes of inner
values, and optional outputs after the last one that is read: blanking those is no change of the program.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from peakmem.frontends.structure import Part, Step

from peakmem_onnx.graph import body_attributes, domain_of, is_constant
from peakmem_onnx.protos import import_onnx
from peakmem_onnx.rules import RANDOM

CHUNK = 1 << 20


def part_of(proto: Any, folder: str) -> Part:
    """The main graph. Reads every constant once, external ones in pieces.

    Parameters
    ----------
    proto : ModelProto
    folder : str
        Where external data lies.
    """
    functions = hashlib.sha256(
        b"".join(sorted(f.SerializeToString(deterministic=True) for f in proto.functions))
    ).hexdigest()
    names = {f.domain for f in proto.functions}
    versions = {("" if o.domain == "ai.onnx" else o.domain): o.version for o in proto.opset_import}
    given = {v.name: _input(v) for v in proto.graph.input}
    return _Reader(folder, versions, names, functions).part(proto.graph, given, 0)


def _input(value: Any) -> str:
    return f"input {value.name!r} {type_of(value)}"


def type_of(value: Any) -> str:
    """Element type and shape of an input, such as ``float[1, 3]``."""
    tensor = value.type.tensor_type
    dims = [d.dim_value if d.HasField("dim_value") else d.dim_param for d in tensor.shape.dim]
    return f"{import_onnx().TensorProto.DataType.Name(tensor.elem_type).lower()}{dims}"


class _Reader:
    """Parts of one file."""

    def __init__(self, folder: str, versions: Mapping[str, int], local: set[str], functions: str) -> None:
        self.folder = folder
        self.versions = versions
        self.local = local
        self.functions = functions

    def part(self, graph: Any, given: dict[str, str], depth: int) -> Part:
        for tensor in graph.initializer:
            given[tensor.name] = given.get(tensor.name, "") + self.tensor(tensor)
        for sparse in graph.sparse_initializer:
            given[sparse.values.name] = self.sparse(sparse)
        steps = []
        for node in graph.node:
            if is_constant(node):
                given[node.output[0]] = self.constant(node)
            else:
                steps.append(self.step(node, given, depth))
        return Part(given, steps, tuple(v.name for v in graph.output))

    def step(self, node: Any, given: Mapping[str, str], depth: int) -> Step:
        domain = domain_of(node)
        bodies = body_attributes(node)
        lines = [f"{domain}.{node.op_type}" if domain else node.op_type, f"opset {self.versions.get(domain)}"]
        if domain in self.local:
            lines.append(f"functions {self.functions}")
        lines.append(f"outputs {_needed(node, domain, self.versions.get(domain, 1))}")
        lines += sorted(self.attribute(a) for a in node.attribute)
        effects: tuple[str, ...] = ()
        if draws(node, given):
            # Its numbers are its own: what reads another generator reads other numbers.
            lines.append(f"generator {node.name!r}")
            effects = (f"random numbers of {node.name}",)
        inner = []
        for _, body in bodies:
            own = {v.name: f"input {k} of the body at depth {depth + 1}" for k, v in enumerate(body.input)}
            inner.append(self.part(body, own, depth + 1))
        return Step(node.name, "\n".join(lines), _stripped(node.input), tuple(node.output), effects, tuple(inner))

    def attribute(self, attribute: Any) -> str:
        """Name and content; of a body the name, for it is numbered by itself."""
        kind = attribute.type
        if kind == 5:  # AttributeProto.GRAPH
            return f"{attribute.name} body"
        if kind == 4:  # TENSOR
            return f"{attribute.name} {self.tensor(attribute.t)}"
        if kind == 11:  # SPARSE_TENSOR
            return f"{attribute.name} {self.sparse(attribute.sparse_tensor)}"
        if kind == 9:  # TENSORS
            return f"{attribute.name} {[self.tensor(t) for t in attribute.tensors]}"
        plain = type(attribute)()
        plain.CopyFrom(attribute)
        plain.ClearField("doc_string")
        return f"{attribute.name} {plain.SerializeToString(deterministic=True).hex()}"

    def constant(self, node: Any) -> str:
        (attribute,) = (a for a in node.attribute if a.name.startswith(("value", "sparse_value")))
        if attribute.type in (4, 11):
            return self.tensor(attribute.t) if attribute.type == 4 else self.sparse(attribute.sparse_tensor)
        return self.attribute(attribute)

    def sparse(self, sparse: Any) -> str:
        return f"sparse {list(sparse.dims)} {self.tensor(sparse.values)} {self.tensor(sparse.indices)}"

    def tensor(self, tensor: Any) -> str:
        """Element type, shape and digest of the bytes."""
        digest = hashlib.sha256()
        for piece in _content(tensor, self.folder):
            digest.update(piece)
        return f"constant of type {tensor.data_type} {list(tensor.dims)} {digest.hexdigest()}"


def draws(node: Any, given: Mapping[str, str] | None = None) -> bool:
    """Whether a node draws random numbers that no seed in the file fixes.

    A Dropout does where it may be told that it trains; ONNX Runtime removes it where that is the constant no.
    """
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "Dropout":
        return len(node.input) > 2 and bool(node.input[2]) and not (given or {}).get(node.input[2], "").endswith(_NO)
    return node.op_type in RANDOM and not any(a.name == "seed" for a in node.attribute)


_NO = hashlib.sha256(b"\0").hexdigest()


def _needed(node: Any, domain: str, version: int) -> int:
    """How many outputs a node has, but for optional ones: an operator may do something else for another number."""
    onnx = import_onnx()
    try:
        rules = onnx.defs.get_schema(node.op_type, version, domain).outputs
    except Exception:  # an operator of ONNX Runtime; nothing of it is blanked
        return len(_stripped(node.output))
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    return sum(1 for i in range(len(node.output)) if i >= len(rules) or rules[i].option != optional)


def _stripped(names: Any) -> tuple[str, ...]:
    """Without those left out at the end."""
    result = list(names)
    while result and not result[-1]:
        result.pop()
    return tuple(result)


def _content(tensor: Any, folder: str) -> Iterator[bytes]:
    """The bytes of a tensor's elements, however they are stored."""
    import numpy as np

    if tensor.data_location == 1:  # TensorProto.EXTERNAL
        entries = {e.key: e.value for e in tensor.external_data}
        with (Path(folder) / entries["location"]).open("rb") as file:
            file.seek(int(entries.get("offset", 0)))
            left = int(entries["length"]) if "length" in entries else -1
            while left and (piece := file.read(CHUNK if left < 0 else min(CHUNK, left))):
                left -= len(piece) if left > 0 else 0
                yield piece
    elif tensor.HasField("raw_data"):
        yield tensor.raw_data
    elif tensor.data_type == 8:  # STRING
        yield b"".join(len(text).to_bytes(8, "little") + text for text in tensor.string_data)
    elif tensor.float_data or tensor.double_data or tensor.int64_data:
        yield np.array(tensor.float_data, "<f4").tobytes()
        yield np.array(tensor.double_data, "<f8").tobytes()
        yield np.array(tensor.int64_data, "<i8").tobytes()
    elif tensor.uint64_data:
        yield np.array(tensor.uint64_data, "<u8").astype("<u4" if tensor.data_type == 12 else "<u8").tobytes()
    else:
        width = {5: 2, 4: 2, 10: 2, 16: 2, 6: 4}.get(tensor.data_type, 1)  # 16 bits, INT32; bytes and packed ones
        yield np.array(tensor.int32_data, "<i4").view("<u4").astype(f"<u{width}").tobytes()
