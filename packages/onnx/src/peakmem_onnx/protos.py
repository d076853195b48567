"""Everything that touches ``onnx`` itself: reading, naming, dimensions, blanking, external data."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from peakmem.model import InputError, RuntimeMissing, UsageError

from peakmem_onnx.graph import BITS, body_attributes, domain_of, is_constant

MARKER = "peakmem.recipe"
"""Key of the metadata entry of a model that ONNX Runtime has already optimized for peakmem."""

KNOWN_DOMAINS = frozenset({"", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"})
TRAINING_DOMAINS = ("ai.onnx.preview.training", "ai.onnx.training")


class OpenDimensions(InputError):
    """Dimensions of inputs are open for which memory is to be planned."""


def import_onnx() -> Any:
    """The onnx package itself (a folder called ``onnx`` on the path imports as an empty namespace)."""
    import onnx

    if not hasattr(onnx, "load_model"):
        raise RuntimeMissing("the Python package onnx is not installed: pip install onnx")
    return onnx


def read_model(path: Path) -> Any:
    """A ``ModelProto`` without its external data.

    Raises
    ------
    InputError
        When the file cannot be read, is not an ONNX model, or is one that peakmem does not handle.
    """
    onnx = import_onnx()
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception:
        raise InputError(f"{path}: is not an ONNX model or is damaged; export it again") from None
    if not proto.ir_version or not proto.HasField("graph"):
        raise InputError(f"{path}: is not an ONNX model (it has no graph or no IR version)")
    broken = broken_text(proto)
    if broken:
        raise InputError(f"{path}: {broken} is not text in UTF-8; the file is damaged, export it again")
    if not proto.graph.node:
        raise InputError(f"{path}: the graph has no nodes, so there is nothing to order")
    if not proto.opset_import:
        raise InputError(f"{path}: the model names no operator set (opset_import is empty); export it again")
    if proto.training_info:
        raise InputError(f"{path}: carries training information; export the inference graph alone")
    functions = {f.domain for f in proto.functions}
    for node in walk(proto.graph):
        domain = domain_of(node)
        if domain.startswith(TRAINING_DOMAINS):
            raise InputError(f"{path}: node {node.name!r} is the training operator {node.op_type}; export the inference graph")
        if domain not in KNOWN_DOMAINS and domain not in functions:
            raise InputError(
                f"{path}: node {node.name!r} is the custom operator {domain}.{node.op_type}, whose memory behaviour "
                "peakmem does not know; replace it by standard operators or a model-local function"
            )
    folder = path.parent.resolve()
    for location in external_files(proto):
        if "\0" in location or not (folder / location).resolve().is_relative_to(folder):
            raise InputError(f"{path}: its external data {location!r} lies outside the model's folder; ONNX Runtime refuses that")
        if not (path.parent / location).is_file():
            raise InputError(f"{path}: its external data {location!r} is missing from {path.parent or Path('.')}")
    return proto


def broken_text(message: Any, where: str = "the model") -> str:
    """The first text that is not UTF-8, as "the name of ... in ..."; empty if all are. Contents of tensors are not read."""
    name = getattr(message, "name", "")
    if isinstance(name, str) and name:
        where = f"{where}, {name!r}"
    for field, found in message.ListFields() if message.DESCRIPTOR.name != "TensorProto" else _of_tensor(message):
        for one in found if hasattr(found, "__len__") and not isinstance(found, (str, bytes)) else (found,):
            if isinstance(one, bytes) and field.type == field.TYPE_STRING:
                return f"{field.name.replace('_', ' ')} {one!r} in {where}"
            if field.type == field.TYPE_MESSAGE and (broken := broken_text(one, where)):
                return broken
    return ""


def _of_tensor(tensor: Any) -> list[tuple[Any, Any]]:
    """Fields of a tensor besides its contents."""
    fields = tensor.DESCRIPTOR.fields_by_name
    return [(fields[key], getattr(tensor, key)) for key in ("name", "doc_string", "external_data")]


def walk(graph: Any) -> Iterator[Any]:
    """All nodes of a graph and of its bodies."""
    for node in graph.node:
        yield node
        for _, body in body_attributes(node):
            yield from walk(body)


def graphs(graph: Any) -> Iterator[Any]:
    """The graph and all bodies below it."""
    yield graph
    for node in graph.node:
        for _, body in body_attributes(node):
            yield from graphs(body)


def external_files(proto: Any) -> list[str]:
    """Locations of external data, relative to the model's folder, sorted."""
    found: set[str] = set()
    for graph in graphs(proto.graph):
        tensors = [*graph.initializer, *(a.t for n in graph.node for a in n.attribute if a.type == 4)]
        for tensor in tensors:
            if tensor.data_location == 1:
                found.update(e.value for e in tensor.external_data if e.key == "location")
    return sorted(found)


def weight_bytes(proto: Any) -> int:
    """Bytes of all constants of a model, at all levels, external ones too; texts are not counted."""
    name_of = import_onnx().TensorProto.DataType.Name
    tensors = [t for graph in graphs(proto.graph) for t in graph.initializer]
    tensors += [a.t for node in walk(proto.graph) if is_constant(node) for a in node.attribute if a.type == 4]
    return sum(-(-prod(t.dims) * BITS.get(name_of(t.data_type).lower(), 0) // 8) for t in tensors if t.data_type != 8)


# -- dimensions ------------------------------------------------------------------------------------------------------


def parse_dims(items: Sequence[str]) -> dict[str, int]:
    """``NAME=N`` pairs; `UsageError` on anything else."""
    result: dict[str, int] = {}
    for item in items:
        name, equals, number = item.rpartition("=")
        size = _size(number)
        if not equals or not name or not size:
            raise UsageError(f"--dim {item}: must look like NAME=N with N at least 1, such as batch=1")
        if result.setdefault(name, size) != size:
            raise UsageError(f"--dim {item}: {name} is {result[name]} already; give one of them")
    return result


def parse_shapes(items: Sequence[str]) -> dict[str, list[int]]:
    """``INPUT=N,N,...`` pairs; an empty list of numbers is a scalar."""
    result: dict[str, list[int]] = {}
    for item in items:
        name, equals, text = item.rpartition("=")
        sizes = [_size(p) for p in text.split(",")] if text.strip() else []
        if not equals or not name or None in sizes:
            raise UsageError(f"--shape {item}: must look like INPUT=N,N,..., such as x=1,3,320,320")
        wanted = [n for n in sizes if n is not None]
        if result.setdefault(name, wanted) != wanted:
            raise UsageError(f"--shape {item}: {name} has another shape already; give one of them")
    return result


def _size(text: str) -> int | None:
    """A dimension that an ONNX file can hold; None for any other text."""
    digits = text.strip()
    return int(digits) if re.fullmatch(r"[0-9]{1,18}", digits) else None


def real_inputs(graph: Any) -> list[Any]:
    """Inputs that the caller must feed: those without an initializer."""
    given = {i.name for i in graph.initializer}
    return [v for v in graph.input if v.name not in given]


def open_axes(proto: Any, names: Iterable[str]) -> dict[str, frozenset[int]]:
    """The axes of some inputs whose dimensions a model leaves open."""
    types = {v.name: v.type.tensor_type for v in real_inputs(proto.graph)}
    return {n: frozenset(k for k, d in enumerate(types[n].shape.dim) if d.dim_value < 1) for n in names if n in types}


def fix_dimensions(
    proto: Any, dims: Mapping[str, int], shapes: Mapping[str, Sequence[int]], path: Path, free: Mapping[str, frozenset[int]] | None = None
) -> None:
    """Write ``dims`` and ``shapes`` into the inputs' types, but for the axes in ``free``, which stay open.

    Raises
    ------
    UsageError
        When a name is unknown or a number contradicts the model.
    OpenDimensions
        When a dimension stays open; the message names all of them and the options that fix them.
    """
    inputs = {v.name: v for v in real_inputs(proto.graph)}
    for name in shapes:
        if name not in inputs:
            raise UsageError(f"{path}: has no input {name!r} (--shape); its inputs are {', '.join(inputs)}")
    known = {d.dim_param for v in inputs.values() for d in v.type.tensor_type.shape.dim if d.dim_param}
    for name in dims:
        if name not in known:
            raise UsageError(
                f"{path}: has no dimension called {name!r} (--dim); it has {', '.join(sorted(known)) or 'none by name'}"
            )
    open_ones = []
    for name, value in inputs.items():
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            raise InputError(f"{path}: input {name!r} is a {(kind or 'value without a type').removesuffix('_type')}, not a tensor")
        tensor = value.type.tensor_type
        if name in shapes:
            wanted = shapes[name]
            if tensor.HasField("shape") and len(tensor.shape.dim) != len(wanted):
                raise UsageError(
                    f"{path}: input {name!r} has {len(tensor.shape.dim)} dimensions, --shape gives {len(wanted)}"
                )
            while len(tensor.shape.dim) < len(wanted):
                tensor.shape.dim.add()
            tensor.shape.SetInParent()
            for axis, (d, n) in enumerate(zip(tensor.shape.dim, wanted, strict=True)):
                if axis in (free or {}).get(name, ()):
                    if d.dim_value > 0 or d.dim_param in dims:
                        raise UsageError(f"{path}: dimension {axis} of input {name!r} is fixed, and the sets of --inputs differ in it")
                    if not d.dim_param:
                        d.Clear()  # some exporters write -1
                    continue
                if d.HasField("dim_value") and d.dim_value > 0 and d.dim_value != n:
                    raise UsageError(f"{path}: dimension {axis} of input {name!r} is {d.dim_value}, --shape says {n}")
                d.dim_value = n
        if not tensor.HasField("shape"):
            open_ones.append(f"{name} (of unknown rank)")
            continue
        for axis, d in enumerate(tensor.shape.dim):
            if d.dim_param in dims and d.dim_param:
                d.dim_value = dims[d.dim_param]
            if (not d.HasField("dim_value") or d.dim_value < 1) and axis not in (free or {}).get(name, ()):
                open_ones.append(f"dimension {axis} of {name}" + (f" ({d.dim_param})" if d.dim_param else ""))
    if open_ones:
        raise OpenDimensions(
            f"{path}: memory can be planned for fixed dimensions only, and these are open: {', '.join(open_ones)}; "
            "fix them with --dim NAME=N or --shape INPUT=N,N,..."
        )


def with_shapes(proto: Any, shapes: Mapping[str, Sequence[int]]) -> Any:
    """A copy of a model whose inputs have these shapes; the model itself where there are none."""
    if not shapes:
        return proto
    copy = type(proto)()
    copy.CopyFrom(proto)
    for value in real_inputs(copy.graph):
        for d, n in zip(value.type.tensor_type.shape.dim, shapes.get(value.name, ()), strict=False):
            d.Clear()
            d.dim_value = n
    return copy


# -- names -----------------------------------------------------------------------------------------------------------


def name_nodes(proto: Any) -> int:
    """Give nodes without a name, or with one that stands twice, a unique one; how many were given."""
    nodes = list(walk(proto.graph))
    used = {node.name for node in nodes if node.name}
    seen: set[str] = set()
    given = 0
    for index, node in enumerate(nodes):
        if node.name and node.name not in seen:
            seen.add(node.name)
            continue
        name = f"{node.op_type}_{index}"
        while name in used:
            name += "_"
        node.name = name
        used.add(name)
        seen.add(name)
        given += 1
    return given


def drop_vanished_inputs(proto: Any, source: Any) -> None:
    """Remove inputs that had a default in ``source`` and lost it because the optimizer folded them away."""
    had = {i.name for i in source.graph.initializer}
    has = {i.name for i in proto.graph.initializer}
    read = {name for node in walk(proto.graph) for name in node.input}
    keep = [v for v in proto.graph.input if v.name in has or v.name not in had or v.name in read]
    if len(keep) != len(proto.graph.input):
        kept = [v.SerializeToString() for v in keep]
        del proto.graph.input[:]
        for data in kept:
            proto.graph.input.add().ParseFromString(data)


def blank_unread(proto: Any) -> list[str]:
    """Blank the names of optional outputs that nobody reads; the values that went, at all levels.

    Only outputs after the first and only where the operator's schema says that they may be left out: ONNX Runtime
    holds a named output without readers to the end of the run, and does not compute into one without a name.
    """
    onnx = import_onnx()
    versions = {(o.domain if o.domain != "ai.onnx" else ""): o.version for o in proto.opset_import}
    read = {name for node in walk(proto.graph) for name in node.input}
    read.update(v.name for graph in graphs(proto.graph) for v in graph.output)
    gone = []
    for node in walk(proto.graph):
        domain = domain_of(node)
        unread = [i for i, name in enumerate(node.output) if i > 0 and name and name not in read]
        if not unread:
            continue
        try:
            schema = onnx.defs.get_schema(node.op_type, versions.get(domain, 1), domain)
        except Exception:  # an operator of ONNX Runtime; its schema is not known here
            continue
        for i in unread:
            if i < len(schema.outputs) and schema.outputs[i].option == onnx.defs.OpSchema.FormalParameterOption.Optional:
                gone.append(node.output[i])
                node.output[i] = ""
        while node.output and not node.output[-1]:
            node.output.pop()
    names = set(gone)
    for graph in graphs(proto.graph):
        stale = [i for i, v in enumerate(graph.value_info) if v.name in names]
        for i in reversed(stale):
            del graph.value_info[i]
    return gone


# -- the marker ------------------------------------------------------------------------------------------------------


def read_marker(proto: Any) -> dict[str, Any] | None:
    """The recipe written by `write_marker`, or None for a model that peakmem did not write."""
    for entry in proto.metadata_props:
        if entry.key == MARKER:
            try:
                value = json.loads(entry.value)
            except ValueError:
                return None
            return value if isinstance(value, dict) else None
    return None


def write_marker(proto: Any, recipe: Mapping[str, Any]) -> None:
    """Say in the metadata that the model is optimized already and for which session."""
    for entry in proto.metadata_props:
        if entry.key == MARKER:
            entry.value = json.dumps(recipe, sort_keys=True)
            return
    proto.metadata_props.add(key=MARKER, value=json.dumps(recipe, sort_keys=True))
