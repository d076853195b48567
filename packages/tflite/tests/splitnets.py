"""Random small image nets with everything that may run in bands, random regions of them, and both files' outputs compared."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

_RUN = """
import sys
import numpy as np
from tflite_micro import runtime

def outputs(path, seed):
    interpreter = runtime.Interpreter.from_file(path, arena_size=1 << 22)
    rng = np.random.default_rng(seed)
    for i in range(int(sys.argv[1])):
        details = interpreter.get_input_details(i)
        if details["dtype"] == np.float32:
            value = rng.standard_normal(details["shape"]).astype(np.float32)
        else:
            info = np.iinfo(details["dtype"])
            value = rng.integers(info.min, info.max + 1, details["shape"]).astype(details["dtype"])
        interpreter.set_input(value, i)
    interpreter.invoke()
    return [interpreter.get_output(k).copy() for k in range(int(sys.argv[2]))]

for seed in range(3):
    before, after = outputs(sys.argv[3], seed), outputs(sys.argv[4], seed)
    for a, b in zip(before, after):
        assert a.dtype == b.dtype and a.shape == b.shape, (a.shape, b.shape)
        if a.tobytes() != b.tobytes():
            print("differ", np.argwhere(a != b)[:3].tolist())
            sys.exit(3)
    print("spread", max(float(np.ptp(a.astype(np.float64))) for a in before))
"""


def same_outputs(before: bytes, after: bytes, folder: Path, *, inputs: int = 1, count: int = 1) -> float:
    """Run both on TFLite Micro in a child process; the spread of the outputs' values, which must be equal bit for bit."""
    paths = [folder / "before.tflite", folder / "after.tflite"]
    for path, data in zip(paths, (before, after)):
        path.write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(inputs), str(count), *map(str, paths)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return max(float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("spread"))


def image_net(tiny: Any, seed: int, length: int = 7, kind: str | None = None) -> Any:
    """A random net of operators that may run in bands, with skips; elements of one type."""
    rng, numbers = random.Random(seed), np.random.default_rng(seed)
    kind = kind or rng.choice(("FLOAT32", "INT8", "INT8", "INT16"))
    floats = kind == "FLOAT32"
    scale = 1.0 if floats else 0.05
    batch = rng.choice((1, 1, 1, 2))
    tensors = [tiny.T((batch, rng.randint(7, 20), rng.randint(3, 7), rng.choice((2, 3, 4))), kind, name="x", scale=scale)]
    operators: list[Any] = []
    live = [0]

    def constant(shape: tuple[int, ...], bias: bool = False) -> int:
        if floats:
            tensors.append(tiny.T(shape, data=numbers.standard_normal(shape)))
        elif bias:
            wide = kind == "INT16"
            tensors.append(tiny.T(shape, "INT64" if wide else "INT32", numbers.integers(-300, 300, shape), scale=scale * 0.02))
        else:
            tensors.append(tiny.T(shape, "INT8", numbers.integers(-127, 128, shape), scale=0.02))
        return len(tensors) - 1

    def ints(values: object) -> int:
        tensors.append(tiny.T(np.shape(values), "INT32", values))
        return len(tensors) - 1

    def emit(op: str, inputs: tuple[int, ...], shape: tuple[int, ...], options: object = None) -> int:
        tensors.append(tiny.T(shape, kind, scale=scale))
        operators.append(tiny.Op(op, inputs, (len(tensors) - 1,), options))
        live.append(len(tensors) - 1)
        return len(tensors) - 1

    def same(n: int, stride: int) -> int:
        return -(-n // stride)

    for _ in range(length):
        source = live[-1] if rng.random() < 0.75 else rng.choice(live)
        n, h, w, c = tensors[source].shape
        if not operators:
            choice = "conv"
        elif h > 48 or h * w * c > 6000:
            choice = "pool"
        else:
            choice = rng.choice(("conv", "conv", "depthwise", "pool", "add", "concat", "pad", "nearest", "bilinear", "prelu", "transposed", "unary", "mul"))
        stride = rng.choice((1, 1, 2, 3)) if h > 6 else 1
        k, kw = rng.randint(1, min(5, h)), rng.randint(1, min(3, w))
        valid = rng.random() < 0.3 and h - k >= 3 and w - kw >= 1
        oh = (h - k) // stride + 1 if valid else same(h, stride)
        ow = (w - kw) // stride + 1 if valid else same(w, stride)
        window = {"Padding": int(valid), "StrideH": stride, "StrideW": stride}
        if choice == "conv":
            dilation = rng.choice((1, 1, 2)) if stride == 1 and not valid else 1
            out = rng.choice((2, 4, 5))
            options = {**window, "DilationHFactor": dilation, "DilationWFactor": 1, "FusedActivationFunction": rng.choice((0, 1, 3))}
            emit("CONV_2D", (source, constant((out, k, kw, c)), constant((out,), True)), (n, oh, ow, out), options)
        elif choice == "depthwise":
            m = rng.choice((1, 1, 2))
            options = {**window, "DepthMultiplier": m, "DilationHFactor": 1, "DilationWFactor": 1}
            emit("DEPTHWISE_CONV_2D", (source, constant((1, k, kw, c * m)), constant((c * m,), True)), (n, oh, ow, c * m), options)
        elif choice == "pool" and h > 4:
            options = {**window, "FilterHeight": k, "FilterWidth": kw}
            emit(rng.choice(("MAX_POOL_2D", "AVERAGE_POOL_2D")), (source,), (n, oh, ow, c), options)
        elif choice in ("add", "mul"):
            others = [t for t in live if tensors[t].shape == (n, h, w, c) and t != source]
            op = choice.upper()
            if others and rng.random() < 0.8:
                emit(op, (source, rng.choice(others)), (n, h, w, c), {})
            elif floats or kind == "INT8":
                shape = rng.choice(((h, w, c), (1, h, w, c), (c,), (1, 1, 1, c), (h, 1, c)))
                emit(op, (source, constant(shape)), (n, h, w, c), {})
        elif choice == "concat":
            others = [t for t in live if tensors[t].shape[:3] == (n, h, w) and t != source]
            if others:
                other = rng.choice(others)
                emit("CONCATENATION", (source, other), (n, h, w, c + tensors[other].shape[3]), {"Axis": rng.choice((3, -1))})
        elif choice == "pad" and kind != "INT16":
            top, bottom, left = rng.randint(0, 2), rng.randint(0, 2), rng.randint(0, 1)
            amounts = ints([[0, 0], [top, bottom], [left, 0], [0, 0]])
            emit("PAD", (source, amounts), (n, h + top + bottom, w + left, c))
        elif choice == "nearest" and kind != "INT16" and h <= 20:
            f = rng.choice((2, 3))
            emit("RESIZE_NEAREST_NEIGHBOR", (source, ints([h * f, w])), (n, h * f, w, c), {"HalfPixelCenters": rng.random() < 0.5})
        elif choice == "bilinear" and kind != "INT16" and h <= 16:
            f = rng.choice((2, 4))
            emit("RESIZE_BILINEAR", (source, ints([h * f, w])), (n, h * f, w, c), {"HalfPixelCenters": rng.random() < 0.5})
        elif choice == "prelu" and kind != "INT16":
            emit("PRELU", (source, constant(rng.choice(((h, w, c), (1, 1, c))))), (n, h, w, c))
        elif choice == "transposed" and h <= 16 and n == 1 and kind != "INT16":
            out, cut = rng.choice((2, 3)), rng.random() < 0.5
            s = rng.choice((1, 2))
            shape = (n, (h - 1) * s + k, (w - 1) * s + kw, out) if cut else (n, h * s, w * s, out)
            inputs = (ints(list(shape)), constant((out, k, kw, c)), source)
            emit("TRANSPOSE_CONV", inputs, shape, {"Padding": int(cut), "StrideH": s, "StrideW": s})
        elif choice == "unary" and kind != "INT16":
            emit(rng.choice(("RELU", "RELU6")), (source,), (n, h, w, c))
    read = {t for op in operators for t in op.inputs}
    outputs = tuple(op.outputs[0] for op in operators if op.outputs[0] not in read)
    return tiny.File([tiny.Sub(tensors, operators, (0,), outputs)])

