"""Random small image nets with everything that may run in bands, random regions of them, and both files' outputs compared."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from peakmem.frontends.splitting import Region
from peakmem.model import Refused
from peakmem.transform.split import lay_out

UNARY = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "HardSigmoid", "Softplus", "Softsign", "Abs", "Neg", "Exp", "Erf", "HardSwish", "Clip", "Selu")
OF_HALVES = ("Relu", "Sigmoid", "Tanh", "LeakyRelu", "Abs", "Neg")
"""Those that take float16 in every operator set from 13 on."""

KINDS = ("float", "float", "float", "half", "qdq", "qlinear")


@dataclass
class Net:
    """Nodes as they are added, with the shapes of what they give."""

    rng: random.Random
    kind: str
    opset: int
    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    seed: int = 0

    @property
    def dtype(self) -> Any:
        return np.float16 if self.kind == "half" else np.float32

    def constant(self, value: Any, dtype: Any = None) -> str:
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value, dtype or self.dtype), name))
        return name

    def floats(self, *shape: int, scale: float = 1.0) -> str:
        self.seed += 1
        return self.constant(np.random.default_rng(self.seed).standard_normal(shape) * scale)

    def bytes(self, *shape: int, dtype: Any = np.int8) -> str:
        self.seed += 1
        info = np.iinfo(dtype)
        return self.constant(np.random.default_rng(self.seed).integers(info.min // 2, info.max // 2 + 1, shape), dtype)

    def scale(self, channels: int, value: float) -> str:
        """One number, or one for each channel."""
        if self.rng.random() < 0.5:
            return self.constant(value, np.float32)
        self.seed += 1
        return self.constant(value * (0.5 + np.random.default_rng(self.seed).random(channels)), np.float32)

    def emit(self, op: str, inputs: Sequence[str], shape: tuple[int, ...], **more: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], f"{op}_{len(self.nodes)}", **more))
        self.shapes[name] = shape
        return name

    def quantized(self, x: str) -> str:
        """To 8 bits and back."""
        scale, zero = self.constant(0.05, np.float32), self.constant(self.rng.choice((100, 128)), np.uint8)
        y = self.emit("QuantizeLinear", [x, scale, zero], self.shapes[x])
        return self.emit("DequantizeLinear", [y, scale, zero], self.shapes[x])


def _window(net: Net, h: int, w: int, *, most: int = 5) -> tuple[dict[str, Any], int, int]:
    """Attributes of a window, and the rows and columns that it gives."""
    rng = net.rng
    k, kw = rng.randint(1, min(most, h)), rng.randint(1, min(3, w))
    s, sw = rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 2))
    d = rng.choice((1, 1, 1, 2)) if (k - 1) * 2 < h else 1
    a: dict[str, Any] = {"kernel_shape": [k, kw], "strides": [s, sw], "dilations": [d, 1]}
    reach = (k - 1) * d + 1
    mode = rng.choice(("NOTSET", "NOTSET", "NOTSET", "SAME_UPPER", "SAME_LOWER", "VALID"))
    if mode.startswith("SAME") and d == 1 and k >= s and kw >= sw:
        return {**a, "auto_pad": mode}, -(-h // s), -(-w // sw)
    if mode == "VALID":
        return {**a, "auto_pad": mode}, (h - reach) // s + 1, (w - kw) // sw + 1
    top, bottom = (rng.randint(0, k - 1) for _ in range(2))
    left, right = (rng.randint(0, kw - 1) for _ in range(2))
    return {**a, "pads": [top, left, bottom, right]}, (h + top + bottom - reach) // s + 1, (w + left + right - kw) // sw + 1


def _conv(net: Net, x: str) -> str | None:
    n, c, h, w = net.shapes[x]
    a, oh, ow = _window(net, h, w)
    groups = net.rng.choice([g for g in (1, 1, 1, 2, 3, c) if c % g == 0])
    out = groups * net.rng.choice((1, 2, 3, 4) if groups < c or c < 4 else (1, 2))
    if net.rng.random() < 0.15:
        out, groups = 24, 1
    if min(oh, ow) < 1:
        return None
    shape = (out, c // groups, *a["kernel_shape"])
    if net.kind == "qdq":
        scale = net.scale(out, 0.01)
        zero = net.constant(np.zeros(numpy_helper.to_array(net.weights[-1]).shape), np.int8)
        weights = net.emit("DequantizeLinear", [net.bytes(*shape), scale, zero], shape, axis=0)
        return net.quantized(net.emit("Conv", [x, weights], (n, out, oh, ow), group=groups, **a))
    bias = [net.floats(out)] if net.rng.random() < 0.5 else []
    return net.emit("Conv", [x, net.floats(*shape, scale=0.3), *bias], (n, out, oh, ow), group=groups, **a)


def _pool(net: Net, x: str) -> str | None:
    n, c, h, w = net.shapes[x]
    op = net.rng.choice(("MaxPool", "AveragePool"))
    a, oh, ow = _window(net, h, w)
    if op == "AveragePool" and net.rng.random() < 0.5:
        a["count_include_pad"] = 1
    if op == "AveragePool" or net.opset < 10:
        a.pop("dilations")
        a.pop("auto_pad", None)
        k, kw = a["kernel_shape"]
        top, left, bottom, right = a.setdefault("pads", [0] * 4)
        s, sw = a["strides"]
        oh, ow = (h + top + bottom - k) // s + 1, (w + left + right - kw) // sw + 1
    if net.opset >= 10 and "auto_pad" not in a and net.rng.random() < 0.35:
        a["ceil_mode"] = 1
        (k, kw), (s, sw), d = a["kernel_shape"], a["strides"], a.get("dilations", [1])[0]
        top, left, bottom, right = a.get("pads", [0] * 4)
        oh, ow = -(-(h + top + bottom - (k - 1) * d - 1) // s) + 1, -(-(w + left + right - kw) // sw) + 1
        if (oh - 1) * s >= h + top or (ow - 1) * sw >= w + left:
            return None  # a window of padding alone, of which the shapes are not told alike
    return net.emit(op, [x], (n, c, oh, ow), **a) if min(oh, ow) > 0 else None


def _unary(net: Net, x: str) -> str | None:
    op = net.rng.choice(OF_HALVES if net.kind == "half" else UNARY)
    if op == "HardSwish" and net.opset < 14:
        op = "Relu"
    if op == "Clip":
        ends = {"min": -0.5, "max": 1.5}
        inputs = [x, *map(net.constant, ends.values())] if net.opset >= 11 else [x]
        return net.emit("Clip", inputs, net.shapes[x], **({} if net.opset >= 11 else ends))
    y = net.emit(op, [x], net.shapes[x])
    if net.kind == "qdq":
        return net.quantized(y)
    return net.emit("Clip", [y, net.constant(-9), net.constant(9)], net.shapes[x]) if op == "Exp" and net.opset >= 12 else y


def _binary(net: Net, x: str, live: Sequence[str]) -> str | None:
    _n, c, h, w = net.shapes[x]
    op = net.rng.choice(("Add", "Mul", "Sub", "Max") if net.kind != "half" else ("Add", "Mul", "Sub"))
    others = [v for v in live if v != x and net.shapes[v] == net.shapes[x]]
    if others and net.rng.random() < 0.7:
        other = net.rng.choice(others)
    else:
        shape = net.rng.choice(((c, h, w), (1, c, h, w), (c, 1, 1), (1, c, 1, 1), (w,), (h, 1), (1, h, w), (1,), ()))
        other = net.floats(*shape)
        op = net.rng.choice((op, "PRelu")) if net.kind in ("float", "half") else op
    y = net.emit(op, [x, other] if op == "PRelu" or net.rng.random() < 0.7 else [other, x], net.shapes[x])
    return net.quantized(y) if net.kind == "qdq" else y


def _gate(net: Net, x: str) -> str | None:
    """One number for each channel, from all rows."""
    n, c, _, _ = net.shapes[x]
    g = net.emit("Sigmoid", [net.emit("GlobalAveragePool", [x], (n, c, 1, 1))], (n, c, 1, 1))
    return net.emit("Mul", [x, g], net.shapes[x])


def _concat(net: Net, x: str, live: Sequence[str]) -> str | None:
    n, c, h, w = net.shapes[x]
    others = [v for v in live if v != x and net.shapes[v][0] == n and net.shapes[v][2:] == (h, w)]
    if not others:
        if net.kind == "qdq":
            return None
        return net.emit("Concat", [x, net.floats(n, 2, h, w)], (n, c + 2, h, w), axis=1)
    other = net.rng.choice(others)
    y = net.emit("Concat", [other, x], (n, c + net.shapes[other][1], h, w), axis=net.rng.choice((1, -3)) if net.opset >= 11 else 1)
    return net.quantized(y) if net.kind == "qdq" else y


def _normalized(net: Net, x: str) -> str | None:
    _n, c, _h, _w = net.shapes[x]
    if net.rng.random() < 0.25:
        return net.emit("InstanceNormalization", [x, net.floats(c), net.floats(c)], net.shapes[x])
    variance = net.constant(np.random.default_rng(net.seed).random(c) + 0.5)
    return net.emit("BatchNormalization", [x, net.floats(c), net.floats(c), net.floats(c), variance], net.shapes[x])


def _padded(net: Net, x: str) -> str | None:
    n, c, h, w = net.shapes[x]
    mode = net.rng.choice(("constant", "constant", "edge", "reflect"))
    top, bottom = (net.rng.randint(0, min(2, h - 1)) for _ in range(2))
    left, right = (net.rng.randint(0, min(1, w - 1)) for _ in range(2))
    amounts = [0, 0, top, left, 0, 0, bottom, right]
    shape = (n, c, h + top + bottom, w + left + right)
    if net.opset < 11:
        return net.emit("Pad", [x], shape, mode=mode, pads=amounts)
    if net.opset >= 18 and net.rng.random() < 0.5:
        axes = net.constant(net.rng.choice(([2, 3], [-2, -1])), np.int64)
        return net.emit("Pad", [x, net.constant([top, left, bottom, right], np.int64), "", axes], shape, mode=mode)
    value = [net.constant(0.7)] if mode == "constant" and net.rng.random() < 0.5 else []
    return net.emit("Pad", [x, net.constant(amounts, np.int64), *value], shape, mode=mode)


def _resized(net: Net, x: str) -> str | None:
    n, c, h, w = net.shapes[x]
    f, fw = net.rng.choice((2, 2, 3, 4)), net.rng.choice((1, 2))
    shape = (n, c, h * f, w * fw)
    if h * f > 40 or w * fw > 30:
        return None
    mode = "linear" if f != 3 and net.rng.random() < 0.5 else "nearest"
    if net.opset < 11:
        scales = net.constant([1, 1, f, fw], np.float32)
        return net.emit("Upsample" if net.opset < 10 else "Resize", [x, scales], shape, mode=mode)
    more: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": net.rng.choice(("half_pixel", "pytorch_half_pixel", "asymmetric"))}
    if mode == "nearest":
        more["nearest_mode"] = net.rng.choice(("round_prefer_floor", "floor", "ceil", "round_prefer_ceil"))
    roi = "" if net.opset >= 13 else net.constant(np.zeros(0), np.float32)
    if net.rng.random() < 0.5:
        return net.emit("Resize", [x, roi, net.constant([1, 1, f, fw], np.float32)], shape, **more)
    return net.emit("Resize", [x, roi, "" if net.opset >= 13 else net.constant(np.zeros(0), np.float32), net.constant(shape, np.int64)], shape, **more)


def _transposed(net: Net, x: str) -> str | None:
    n, c, h, w = net.shapes[x]
    s, sw, k, kw = net.rng.choice((1, 2, 3)), net.rng.choice((1, 2)), net.rng.randint(1, 4), net.rng.randint(1, 3)
    top, bottom = (net.rng.randint(0, k - 1) for _ in range(2))
    more = net.rng.randint(0, s - 1)
    group = net.rng.choice([g for g in (1, 1, 2) if c % g == 0])
    out = group * net.rng.choice((1, 2, 3))
    shape = (n, out, s * (h - 1) + k + more - top - bottom, sw * (w - 1) + kw)
    if not 1 <= shape[2] <= 40 or shape[3] > 30:
        return None
    bias = [net.floats(out)] if net.rng.random() < 0.5 else []
    a = {"kernel_shape": [k, kw], "strides": [s, sw], "pads": [top, 0, bottom, 0], "output_padding": [more, 0], "group": group}
    return net.emit("ConvTranspose", [x, net.floats(c, out // group, k, kw, scale=0.3), *bias], shape, **a)


def _blocks(net: Net, x: str) -> str | None:
    n, c, h, w = net.shapes[x]
    if c % 4 == 0 and h < 20:
        return net.emit("DepthToSpace", [x], (n, c // 4, h * 2, w * 2), blocksize=2)
    return net.emit("SpaceToDepth", [x], (n, c * 4, h // 2, w // 2), blocksize=2) if h % 2 == w % 2 == 0 and c < 8 else None


def _softmax(net: Net, x: str) -> str | None:
    return net.emit("Softmax", [x], net.shapes[x], axis=net.rng.choice((1, 3, -1))) if net.opset >= 13 else None


def image_net(seed: int, length: int = 7, kind: str | None = None) -> Any:
    """A random net, its inputs and outputs of four axes."""
    rng = random.Random(seed)
    kind = kind or rng.choice(KINDS)
    opset = rng.choice((9, 10, 11, 12, 13, 14, 17, 19, 21)) if kind == "float" else rng.choice((13, 17, 19))
    net = Net(rng, kind, opset, seed=1000 * seed)
    elements = TensorProto.FLOAT16 if kind == "half" else TensorProto.UINT8 if kind == "qlinear" else TensorProto.FLOAT
    net.shapes["x"] = (rng.choice((1, 1, 1, 2)), rng.randint(2, 6), rng.randint(9, 24), rng.randint(4, 12))
    live = ["x"]
    if kind == "qdq":
        live = [net.quantized("x")]
    if kind == "qlinear":
        _integers(net, live, length)
    else:
        ways = {"conv": _conv, "pool": _pool, "unary": _unary, "normal": _normalized, "pad": _padded, "resize": _resized,
                "transposed": _transposed, "gate": _gate, "blocks": _blocks, "softmax": _softmax}  # fmt: skip
        of_both = {"binary": _binary, "concat": _concat}
        choices = ["conv", "conv", "conv", "pool", "unary", "unary", "binary", "binary", "concat"]
        choices += {"float": [*ways, "pad", "resize"], "half": ["normal", "pad", "transposed", "resize"], "qdq": ["pool"]}[kind]
        while len(live) <= length:
            x = live[-1] if rng.random() < 0.75 else rng.choice(live)
            _, _, h, w = net.shapes[x]
            what = "conv" if len(live) == 1 else rng.choice(choices) if h > 3 and w > 1 else rng.choice(("unary", "binary", "concat"))
            y = of_both[what](net, x, live) if what in of_both else ways[what](net, x)
            if y is not None:
                live.append(y)
    read = {name for node in net.nodes for name in node.input}
    made = [name for node in net.nodes for name in node.output]
    ends = [name for name in made if name not in read]
    inner = [name for name in live[1:] if name in read]
    if inner and rng.random() < 0.3:
        ends.append(rng.choice(inner))
    inputs = [helper.make_tensor_value_info("x", elements, net.shapes["x"])]
    types = dict.fromkeys(made, elements)
    outputs = [helper.make_tensor_value_info(name, types[name], net.shapes[name]) for name in dict.fromkeys(ends)]
    graph = helper.make_graph(net.nodes, f"net {seed}", inputs, outputs, net.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8 if opset < 19 else 9)


def _integers(net: Net, live: list[str], length: int) -> None:
    """Convolutions of bytes, pools, joins."""
    rng = net.rng
    while len(live) <= length:
        x = live[-1] if rng.random() < 0.75 else rng.choice(live)
        n, c, h, w = net.shapes[x]
        what = "conv" if len(live) == 1 else rng.choice(("conv", "conv", "conv", "pool", "concat")) if h > 3 and w > 1 else "concat"
        a, oh, ow = _window(net, h, w)
        if min(oh, ow) < 1:
            continue
        if what == "conv":
            groups = rng.choice([g for g in (1, 1, 2, c) if c % g == 0])
            out = groups * rng.choice((1, 2, 4) if groups < 4 else (1, 2))
            one, zero = net.constant(0.02, np.float32), net.constant(rng.choice((0, 7, 128)), np.uint8)
            scale = net.scale(out, 0.01)
            weights_zero = net.constant(np.zeros(numpy_helper.to_array(net.weights[-1]).shape), np.int8)
            operands = [x, one, zero, net.bytes(out, c // groups, *a["kernel_shape"]), scale, weights_zero, net.constant(0.3, np.float32), zero]
            operands += [net.bytes(out, dtype=np.int32)] if rng.random() < 0.3 else []
            if len(operands) > 8:
                net.weights[-1].CopyFrom(numpy_helper.from_array(np.arange(out, dtype=np.int32) * 40 - 60, net.weights[-1].name))
            live.append(net.emit("QLinearConv", operands, (n, out, oh, ow), group=groups, **a))
        elif what == "pool":
            live.append(net.emit("MaxPool", [x], (n, c, oh, ow), **a))
        else:
            others = [v for v in live if v != x and net.shapes[v][0] == n and net.shapes[v][2:] == (h, w)]
            if others:
                other = rng.choice(others)
                live.append(net.emit("Concat", [x, other], (n, c + net.shapes[other][1], h, w), axis=1))
            else:
                live.append(net.emit("QLinearConv", [x, net.constant(0.02, np.float32), net.constant(3, np.uint8), net.bytes(4, c, 1, 1),
                                                     net.constant(0.01, np.float32), net.constant(0, np.int8), net.constant(0.3, np.float32), net.constant(90, np.uint8)], (n, 4, h, w)))  # fmt: skip


def regions(source: Any, rng: random.Random, tries: int) -> list[Region]:
    """Random regions and bands that may be laid out, and some that may not."""
    count = len(source.program)
    found = []
    for _ in range(tries):
        axis = rng.choice(("rows", "rows", "rows", "channels"))
        starts = [v for v in range(count) if not isinstance(source.rule(v, axis), str)]
        if not starts:
            continue
        first = rng.choice(starts)
        last = first
        while last + 1 in starts and rng.random() < 0.75:
            last += 1
        found.append(Region(first, last, rng.choice((2, 2, 3, 4, 5)), axis, kept=axis == "rows" and rng.random() < 0.3))
    return found


def laid_out(one: Any, region: Region) -> Any:
    """The split, or the sentence that refuses it."""
    source = one.splittable()
    try:
        return lay_out(source, range(len(one.program)), [region])
    except Refused as error:
        return str(error)


def same_outputs(before: bytes, after: bytes, seed: int) -> str:
    """The first output that has other bits in plain sessions of one and of three threads, told by ONNX Runtime itself; else empty."""
    import onnxruntime as ort

    rng = np.random.default_rng(seed)
    for threads in (1, 3):
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads, options.log_severity_level = threads, 3
        first, second = (ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]) for data in (before, after))
        for _ in range(2):
            feeds = {}
            for value in first.get_inputs():
                if value.type == "tensor(uint8)":
                    feeds[value.name] = rng.integers(0, 256, value.shape).astype(np.uint8)
                else:
                    feeds[value.name] = rng.standard_normal(value.shape).astype(np.float16 if "16" in value.type else np.float32)
            for output, x, y in zip(first.get_outputs(), first.run(None, feeds), second.run(None, feeds), strict=True):
                if x.dtype != y.dtype or x.shape != y.shape or x.tobytes() != y.tobytes():
                    return f"{output.name} with {threads} threads"
    return ""


def plain(reason: str) -> str:
    """A sentence without names and numbers, so that like ones are alike."""
    reason = re.sub(r"'[^']*'", "a value", reason)
    reason = re.sub(r"^region \d+\.\.\d+ in \d+ bands: (\S+ \((\w+)\) )?", r"\2 ", reason).strip()
    return re.sub(r"\d+", "N", reason)
