"""Inputs for running a model: the same for every run of one model, made from the inputs' types alone."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from peakmem.model import InputError, UsageError

from peakmem_onnx.protos import import_onnx, real_inputs, walk

SEED = 20
LARGEST = 4 << 30
"""Bytes of an input that runs are made with; a damaged dimension must not eat the machine's memory."""


_TRUTH = {"0": False, "false": False, "1": True, "true": True}


def parse_feeds(items: Sequence[str]) -> dict[str, str]:
    """``INPUT=VALUE`` pairs."""
    result = {}
    for item in items:
        name, equals, value = item.rpartition("=")
        if not equals or not name:
            raise UsageError(f"--feed {item}: must look like INPUT=VALUE")
        result[name] = value
    return result


def make_feeds(proto: Any, fixed: Mapping[str, str], path: Path) -> list[dict[str, Any]]:
    """Sets of inputs, the first one from a seeded generator.

    Floats are standard normal, whole numbers and truth values 0 or 1. Where a single whole number is compared with
    constants (a sampling rate, a mode) there is one more set for each of them, so that both branches of an If run.

    Returns
    -------
    list of dict of str to numpy.ndarray
    """
    onnx = import_onnx()
    import numpy as np

    inputs = real_inputs(proto.graph)
    names = [v.name for v in inputs]
    for name in fixed:
        if name not in names:
            raise UsageError(f"{path}: has no input {name!r} (--feed); its inputs are {', '.join(names)}")
    generator = np.random.default_rng(SEED)
    base: dict[str, Any] = {}
    single: dict[str, Any] = {}
    for value in inputs:
        tensor = value.type.tensor_type
        shape = [d.dim_value for d in tensor.shape.dim]
        try:
            dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        except Exception:
            raise InputError(f"{path}: input {value.name!r} has the unknown element type {tensor.elem_type}") from None
        if dtype.kind == "O":
            dtype = np.dtype("U8")
        if dtype.kind not in "fiubcU":
            kind = onnx.TensorProto.DataType.Name(tensor.elem_type)
            raise InputError(f"{path}: input {value.name!r} is of type {kind}, which cannot be fed from numpy")
        size = math.prod(shape) * dtype.itemsize
        if size > LARGEST:
            raise InputError(f"{path}: input {value.name!r} would take {size} bytes, more than runs are made with; give it other dimensions")
        if value.name in fixed:
            text = fixed[value.name]
            try:
                # numpy takes every text that is not empty for true
                array = np.full(shape, _TRUTH[text.lower()] if dtype.kind == "b" else text).astype(dtype)
            except (ValueError, KeyError):
                raise UsageError(f"--feed {value.name}={fixed[value.name]}: is not a value of type {dtype}") from None
        else:
            array = _random(generator, shape, dtype)
            if dtype.kind in "iu" and array.size == 1:
                single[value.name] = dtype
        base[value.name] = np.asarray(array)
    sets = [base]
    for name, number in _compared(proto, set(single)):
        sets.append({**base, name: np.full(base[name].shape, number).astype(single[name])})
    return sets


def contrast_of(feeds: Mapping[str, Any], fixed: Mapping[str, str]) -> dict[str, Any] | None:
    """A set that differs from ``feeds`` in every input that is not fixed; None where all inputs are.

    Whole numbers and truth values become the other one of 0 and 1 (what is fixed, and sizes, stay), floats are drawn anew.
    """
    import numpy as np

    generator = np.random.default_rng(SEED + 1)
    result = {}
    for name, array in feeds.items():
        if name in fixed:
            result[name] = array
        elif array.dtype.kind in "fc":
            result[name] = _random(generator, array.shape, array.dtype)
        else:
            result[name] = (1 - array.astype(np.int64)).astype(array.dtype)
    return result if any(name not in fixed and array.size for name, array in feeds.items()) else None


def _random(generator: Any, shape: Sequence[int], dtype: Any) -> Any:
    import numpy as np

    if dtype.kind == "f":
        array = generator.standard_normal(shape).astype(dtype)
    elif dtype.kind == "c":
        array = (generator.standard_normal(shape) + 1j * generator.standard_normal(shape)).astype(dtype)
    else:
        array = generator.integers(0, 2, shape).astype(dtype)
    return np.asarray(array)


def _compared(proto: Any, names: set[str]) -> list[tuple[str, int]]:
    """Pairs (input, constant) of the model's Equal nodes."""
    onnx = import_onnx()
    constants: dict[str, Any] = {i.name: i for i in proto.graph.initializer if not i.external_data}
    for node in walk(proto.graph):
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.type == 4:
                    constants[node.output[0]] = attribute.t
    found = set()
    for node in walk(proto.graph):
        if node.op_type == "Equal":
            for name, other in (tuple(node.input), tuple(reversed(node.input))):
                if name in names and other in constants:
                    try:
                        array = onnx.numpy_helper.to_array(constants[other])
                    except Exception:  # damaged or of a strange type; ONNX Runtime will say so
                        continue
                    if array.size == 1:
                        found.add((name, int(array.reshape(-1)[0])))
    return sorted(found)


def write_feeds(sets: Sequence[Mapping[str, Any]], folder: Path) -> list[str]:
    """Store the sets where a child can read them; the file names."""
    import numpy as np

    paths = []
    for index, feeds in enumerate(sets):
        path = folder / f"feeds{index}.npz"
        arrays = {str(i): array for i, array in enumerate(feeds.values())}
        np.savez(path, names=np.array(json.dumps(list(feeds))), **arrays)
        paths.append(str(path))
    return paths
