"""Models of one operator, and what TFLite Micro computes with the output on top of an input that a plan forces there.

``python overlaid.py < job.json`` runs them: a list of rows, each a file, what fills its inputs, and offsets for its tensors.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys

import numpy as np
from trees import add_operator, add_tensor, new, save

KINDS = {
    "FLOAT32": (0, np.float32), "INT32": (2, np.int32), "UINT8": (3, np.uint8), "INT64": (4, np.int64), "BOOL": (6, np.bool_),
    "INT16": (7, np.int16), "INT8": (9, np.int8), "UINT32": (15, np.uint32),
}  # fmt: skip
OPTIONS = {
    "ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions", "DIV": "DivOptions", "SOFTMAX": "SoftmaxOptions",
    "LEAKY_RELU": "LeakyReluOptions", "L2_NORMALIZATION": "L2NormOptions", "RESHAPE": "ReshapeOptions", "SQUEEZE": "SqueezeOptions",
    "CONCATENATION": "ConcatenationOptions", "STRIDED_SLICE": "StridedSliceOptions",
}  # fmt: skip


def quantization(op: str, kind: str, output: bool):
    """A scale, and a zero point where elements have one; what TFLite Micro insists on for some outputs."""
    if kind not in ("INT8", "INT16", "UINT8"):
        return None
    scale, zero = (0.05, 3) if kind != "INT16" else (0.0005, 0)
    if op in ("RESHAPE", "EXPAND_DIMS", "SQUEEZE", "CONCATENATION", "STRIDED_SLICE"):
        output = False
    if output and op == "LOGISTIC":
        scale, zero = (1 / 256, -128) if kind == "INT8" else (1 / 32768, 0)
    if output and op == "TANH":
        scale, zero = (1 / 128, 0) if kind == "INT8" else (1 / 32768, 0)
    if op == "TANH" and not output and kind == "INT16":
        scale = 8 / 32768
    if output and op == "SOFTMAX":
        scale, zero = (1 / 256, -128) if kind == "INT8" else (1 / 32768, 0)
    if output and op == "LOG_SOFTMAX":
        scale, zero = 16 / 256, 127
    if output and op == "L2_NORMALIZATION":
        scale, zero = 1 / 128, 0
    if output and op in ("ADD", "SUB", "QUANTIZE", "HARD_SWISH", "RELU", "RELU6", "ELU", "LEAKY_RELU", "PRELU"):
        scale *= 1.3
    if output and op in ("RSQRT", "SQRT", "LOG", "EXP", "DIV"):
        scale *= 2
    if op in ("SQRT", "RSQRT") and not output:
        zero = -128 if kind == "INT8" else 0
    return new("QuantizationParameters", Scale=np.array([scale], np.float32), ZeroPoint=np.array([zero], np.int64), DetailsType=0)


def single(op: str, kinds, extents, result: str, shape, constants=()) -> bytes:
    """A model of one operator. ``constants`` are appended to its inputs."""
    model = new(
        "Model", Version=3, OperatorCodes=[], Buffers=[new("Buffer")], Description="made by a test",
        Subgraphs=[new("SubGraph", Tensors=[], Operators=[], Name="main")],
    )  # fmt: skip
    graph = model.Subgraphs[0]
    graph.Inputs = graph.Outputs = np.array([], np.int32)
    ins = [
        add_tensor(model, new("Tensor", Type=KINDS[kind][0], Quantization=quantization(op, kind, False)), shape_)
        for kind, shape_ in zip(kinds, extents)
    ]
    out = add_tensor(model, new("Tensor", Type=KINDS[result][0], Quantization=quantization(op, result, True)), shape)
    more = [add_tensor(model, None, c.shape, c) for c in constants]
    tree = new(OPTIONS[op]) if op in OPTIONS else None
    if op == "LEAKY_RELU":
        tree.Alpha = 0.1
    if op == "CONCATENATION":
        tree.Axis = 1
    if op == "SOFTMAX":
        tree.Beta = 1.0
    graph.Operators.append(add_operator(model, op, [*ins, *more], [out], tree, 2 if op in ("ADD", "SUB", "MUL") else 1))
    graph.Inputs, graph.Outputs = np.array(ins, np.int32), np.array([out], np.int32)
    return save(model)


def offsets(sizes, at: int, shift: int = 0) -> list[int]:
    """Every input in a place of its own, and the output ``shift`` bytes behind the first byte of input ``at``; sizes in bytes."""
    places, end = [], 0
    for size in sizes[:-1]:
        places.append(end)
        end += max(-(-max(size, sizes[-1]) // 16) * 16, 16) + 16
    return [*places, places[at] + shift]


def run(rows) -> list[dict]:
    """What each row gives: ``same``, whether the bits are those of the file without a plan, or an ``error``."""
    job = json.dumps([{**row, "data": base64.b64encode(row["data"]).decode(), "planned": base64.b64encode(row["planned"]).decode()} for row in rows])
    path = os.pathsep.join(sys.path)
    done = subprocess.run([sys.executable, __file__], input=job, capture_output=True, text=True, timeout=600, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def _outputs(data: bytes, seed: int) -> bytes:
    from tflite_micro import runtime

    interpreter = runtime.Interpreter.from_bytes(data, arena_size=1 << 20)
    rng = np.random.default_rng(seed)
    for i in range(seed >> 8):
        detail = interpreter.get_input_details(i)
        shape, kind = tuple(detail["shape"]), np.dtype(detail["dtype"])
        if kind.kind == "f":
            value = (rng.standard_normal(shape) * 3).astype(kind)
        elif kind.kind == "b":
            value = rng.integers(0, 2, shape).astype(bool)
        else:
            info = np.iinfo(kind)
            value = rng.integers(max(info.min, -(2**40)), min(info.max, 2**40), shape, endpoint=True).astype(kind)
            value[value == 0] = 1  # nothing is divided by it
        interpreter.set_input(value, i)
    interpreter.invoke()
    return interpreter.get_output(0).tobytes()


if __name__ == "__main__":
    found = []
    for row in json.loads(sys.stdin.read()):
        try:
            data, planned = base64.b64decode(row["data"]), base64.b64decode(row["planned"])
            seeds = [row["inputs"] * 256 + k for k in range(2)]
            first, second = ([_outputs(file, seed) for seed in seeds] for file in (data, planned))
            found.append({"same": first == second, "varied": first[0] != first[1], "error": ""})
        except Exception as error:
            found.append({"same": None, "error": str(error)[:200]})
    print(json.dumps(found))
