"""Files in bands with one thing wrong, and models known without a child process: shapes from a run of ONNX Runtime here."""

from __future__ import annotations

import os
import pickle
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime as ort
from onnx import ValueInfoProto, helper, numpy_helper
from peakmem_onnx.artifact import Origin
from peakmem_onnx.facts import Facts
from peakmem_onnx.graph import Value
from peakmem_onnx.model import OnnxModel

TYPES = {np.dtype(k): v for k, v in {np.float32: "float", np.float16: "float16", np.uint8: "uint8", np.int8: "int8", np.int32: "int32", np.bool_: "bool", np.int64: "int64"}.items()}
ORIGIN = Origin(None, b"", "none", 1, "", (), {}, False, (), "")


def apart(proto: Any) -> tuple[Any, list[bytes]] | None:
    """As `known`, of a file that may crash ONNX Runtime: in a process of its own."""
    back, there = os.pipe()
    child = os.fork()
    if not child:
        os.close(back)
        with os.fdopen(there, "wb") as file:
            found = known(proto)
            pickle.dump(found and (found[0].facts, found[1]), file)
        os._exit(0)
    os.close(there)
    with os.fdopen(back, "rb") as file:
        data = file.read()
    os.waitpid(child, 0)
    answer = pickle.loads(data) if data else None
    return (OnnxModel(proto, answer[0], ORIGIN, ""), answer[1]) if answer else None


def known(proto: Any, seed: int = 0) -> tuple[Any, list[bytes]] | None:
    """The model as peakmem knows it, and its outputs for some inputs; None where ONNX Runtime does not run it."""
    names = [name for node in proto.graph.node for name in node.output if name]
    exposed = type(proto)()
    exposed.CopyFrom(proto)
    del exposed.graph.output[:]
    exposed.graph.output.extend(ValueInfoProto(name=name) for name in names)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    rng = np.random.default_rng(seed)
    outputs: list[bytes] = []
    try:
        session = ort.InferenceSession(exposed.SerializeToString(), options, providers=["CPUExecutionProvider"])
        for _ in range(2):
            feeds = {}
            for value in session.get_inputs():
                small = value.type == "tensor(uint8)"
                feeds[value.name] = rng.integers(0, 256, value.shape).astype(np.uint8) if small else rng.standard_normal(value.shape).astype(np.float32)
            found = dict(zip(names, session.run(None, feeds)))
            outputs += [found[value.name].tobytes() + repr(found[value.name].shape).encode() for value in proto.graph.output]
    except Exception:  # whatever ONNX Runtime says against it
        return None
    values = {name: Value(f"tensor({TYPES[x.dtype]})", x.shape, x.shape) for name, x in {**found, **feeds}.items()}
    return OnnxModel(proto, Facts({(): values}, {}, {}, {}), ORIGIN, ""), outputs


def _pick(rng: random.Random, graph: Any, *operators: str) -> Any:
    found = [node for node in graph.node if node.op_type in operators]
    if not found:
        raise LookupError
    return rng.choice(found)


def _attribute(node: Any, name: str) -> Any:
    found = [a for a in node.attribute if a.name == name]
    if not found:
        raise LookupError
    return found[0]


def _new(graph: Any, array: Any) -> str:
    name = f"wrong {len(graph.initializer)}"
    graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
    return name


def _array(graph: Any, name: str) -> Any:
    for tensor in graph.initializer:
        if tensor.name == name:
            return numpy_helper.to_array(tensor)
    raise LookupError


def missing(rng: random.Random, graph: Any) -> None:
    """A band is not joined."""
    node = _pick(rng, graph, "Concat")
    del node.input[rng.randrange(len(node.input))]


def doubled(rng: random.Random, graph: Any) -> None:
    """A band stands where another should."""
    node = _pick(rng, graph, "Concat")
    a, b = rng.sample(range(len(node.input)), 2)
    node.input[a] = node.input[b]


def exchanged(rng: random.Random, graph: Any) -> None:
    """Two bands change places."""
    node = _pick(rng, graph, "Concat")
    a, b = rng.sample(range(len(node.input)), 2)
    node.input[a], node.input[b] = node.input[b], node.input[a]


def moved(rng: random.Random, graph: Any) -> None:
    """A cut begins and ends a row further on."""
    node, by = _pick(rng, graph, "Slice"), rng.choice((1, -1))
    for k in (1, 2):
        node.input[k] = _new(graph, _array(graph, node.input[k]) + by)


def shorter(rng: random.Random, graph: Any) -> None:
    """A cut misses a row at one end, or has one more; nothing that reads it is told."""
    node, k = _pick(rng, graph, "Slice"), rng.choice((1, 2))
    node.input[k] = _new(graph, _array(graph, node.input[k]) + rng.choice((1, -1)))


def padded(rng: random.Random, graph: Any) -> None:
    """Rows of padding at the other end, or one more at one and less at the other."""
    pads = _attribute(_pick(rng, graph, "Conv", "MaxPool", "AveragePool", "QLinearConv", "ConvTranspose"), "pads").ints
    if rng.random() < 0.5:
        pads[0], pads[2] = pads[2], pads[0]
    else:
        pads[0], pads[2] = pads[0] + 1, pads[2] - 1
    if min(pads) < 0:
        raise LookupError


def halo(rng: random.Random, graph: Any) -> None:
    """A cut misses its last row, and what reads it pads instead."""
    cut = _pick(rng, graph, "Slice")
    readers = [n for n in graph.node if cut.output[0] in n.input]
    if len(readers) != 1 or readers[0].op_type not in ("Conv", "MaxPool", "AveragePool", "QLinearConv"):
        raise LookupError
    pads = _attribute(readers[0], "pads").ints
    k = rng.choice((0, 1))
    pads[2 * k] += 1
    cut.input[1 + k] = _new(graph, _array(graph, cut.input[1 + k]) + (1 - 2 * k))


def weights(rng: random.Random, graph: Any) -> None:
    """Weights, or their bias, in another sequence."""
    node = _pick(rng, graph, "Conv", "QLinearConv", "ConvTranspose", "BatchNormalization")
    names = [name for name in node.input[1:] if name and any(t.name == name and len(t.dims) for t in graph.initializer)]
    k = list(node.input).index(rng.choice(names or _none()))
    node.input[k] = _new(graph, np.roll(_array(graph, node.input[k]), 1, axis=rng.randrange(2) if _array(graph, node.input[k]).ndim > 1 else 0))


def constants(rng: random.Random, graph: Any) -> None:
    """Rows or channels of a constant that belong to another band."""
    node = _pick(rng, graph, "Add", "Mul", "Sub", "Max", "PRelu", "Concat")
    names = [name for name in node.input if any(t.name == name and len(t.dims) > 1 for t in graph.initializer)]
    k = list(node.input).index(rng.choice(names or _none()))
    cut = node.input[k].split(" [")
    alike = [t.name for t in graph.initializer if t.name.startswith(cut[0] + " [") and t.name != node.input[k]] if len(cut) > 1 else []
    array = _array(graph, node.input[k])
    node.input[k] = rng.choice(alike) if alike else _new(graph, np.roll(array, 1, axis=rng.randrange(array.ndim)))


def told(rng: random.Random, graph: Any) -> None:
    """An attribute is another."""
    node = rng.choice([n for n in graph.node if n.attribute] or _none())
    a = rng.choice(node.attribute)
    if a.type == 7 and len(a.ints):
        a.ints[rng.randrange(len(a.ints))] += rng.choice((1, -1))
    elif a.type == 2:
        a.i = rng.choice((1 - a.i, a.i + 1))
    elif a.type == 1:
        a.f += 0.25
    elif a.type == 3:
        a.s = rng.choice((b"half_pixel", b"asymmetric", b"floor", b"ceil", b"edge", b"reflect", b"constant", b"nearest", b"linear", b"CRD", b"pytorch_half_pixel"))
    else:
        raise LookupError


def operator(rng: random.Random, graph: Any) -> None:
    """Another operator."""
    for pair in rng.sample((("MaxPool", "AveragePool"), ("Relu", "Tanh"), ("Sigmoid", "Softsign"), ("Add", "Mul"), ("Sub", "Max"), ("Neg", "Abs")), 6):
        nodes = [n for n in graph.node if n.op_type in pair]
        if nodes:
            node = rng.choice(nodes)
            node.op_type = pair[1 - pair.index(node.op_type)]
            for name in ("ceil_mode", "count_include_pad", "dilations", "storage_order"):
                for a in [a for a in node.attribute if a.name == name]:
                    node.attribute.remove(a)
            return
    raise LookupError


def crossed(rng: random.Random, graph: Any) -> None:
    """A band's operator reads another band."""
    node = rng.choice([n for n in graph.node if " [" in n.output[0] and any(" [" in name for name in n.input)] or _none())
    k = rng.choice([k for k, name in enumerate(node.input) if " [" in name])
    before = []
    for other in graph.node:
        if other.output[0] == node.output[0]:
            break
        before.append(other.output[0])
    alike = [name for name in before if name.split(" [")[0] == node.input[k].split(" [")[0] and name != node.input[k]]
    node.input[k] = rng.choice(alike or _none())


def amounts(rng: random.Random, graph: Any) -> None:
    """Other amounts of padding, scales or sizes."""
    node = _pick(rng, graph, "Pad", "Resize")
    k = rng.choice([k for k, name in enumerate(node.input) if k and name])
    array = np.array(_array(graph, node.input[k]), copy=True)
    if not array.size:
        raise LookupError
    array.reshape(-1)[rng.randrange(array.size)] += rng.choice((1, -1))
    node.input[k] = _new(graph, array)


def _none() -> list[Any]:
    raise LookupError


WAYS: tuple[Callable[[random.Random, Any], None], ...] = (
    missing, doubled, exchanged, moved, shorter, padded, halo, weights, constants, told, operator, crossed, amounts,
)  # fmt: skip


def wrong(rng: random.Random, proto: Any, way: Callable[[random.Random, Any], None]) -> Any:
    """The file with one thing otherwise; None where there is nothing to do so with."""
    for _ in range(4):
        made = type(proto)()
        made.CopyFrom(proto)
        try:
            way(rng, made.graph)
        except (LookupError, ValueError, IndexError):
            continue
        return made
    return None


def linear_by_three() -> Any:
    """A picture made three times as high, mixing rows: no band of it is known to keep its bits."""
    one = helper.make_tensor_value_info("x", 1, (1, 2, 6, 5))
    node = helper.make_node("Resize", ["x", "", "scales"], ["y"], "resize", mode="linear")
    scales = numpy_helper.from_array(np.array([1, 1, 3, 1], np.float32), "scales")
    graph = helper.make_graph([node], "g", [one], [helper.make_tensor_value_info("y", 1, (1, 2, 18, 5))], [scales])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
