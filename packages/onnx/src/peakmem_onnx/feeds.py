"""Inputs for running a model: the same for every run of one model, made from the inputs' types alone."""

from __future__ import annotations

import json
import math
import zipfile
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


def read_inputs(files: Sequence[str]) -> list[dict[str, Any]]:
    """Arrays by the names of inputs, one set a file (``.npz``).

    Raises
    ------
    UsageError
        For a file that is not there or holds something else.
    """
    import numpy as np

    sets = []
    for name in files:
        try:
            found = np.load(name, allow_pickle=False)
            if isinstance(found, np.ndarray):
                raise ValueError("it holds one array without a name; save it with numpy.savez(file, INPUT=array)")
            with found as archive:
                sets.append({key: archive[key] for key in archive.files})
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            told = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise UsageError(f"--inputs {name}: cannot be read as arrays of numpy (.npz): {' '.join(told.split())}") from None
    return sets


def shapes_of(sets: Sequence[Mapping[str, Any]], proto: Any, path: Path) -> dict[str, list[int]]:
    """Shapes that the first set gives to inputs of a model; `UsageError` for names that are none of its inputs."""
    names = [value.name for value in real_inputs(proto.graph)]
    for index, arrays in enumerate(sets):
        for name in arrays:
            if name not in names:
                raise UsageError(f"{path}: has no input {name!r} (--inputs, set {index}); its inputs are {', '.join(names)}")
    return {name: list(array.shape) for name, array in (sets[0] if sets else {}).items()}


def free_axes(sets: Sequence[Mapping[str, Any]], path: Path) -> dict[str, frozenset[int]]:
    """Axes in which sets of arrays differ from the first one, by input: a file for several shapes leaves these open."""
    found: dict[str, frozenset[int]] = {}
    for index, arrays in enumerate(sets[1:], 1):
        for name, array in arrays.items():
            if name not in sets[0]:
                raise UsageError(f"{path}: --inputs, set {index}, has an input {name!r} that the first one has not")
            first = sets[0][name].shape
            if len(first) != array.ndim:
                raise UsageError(f"{path}: input {name!r} (--inputs, set {index}) has {array.ndim} dimensions, in the first set {len(first)}")
            axes = frozenset(axis for axis, (a, b) in enumerate(zip(first, array.shape, strict=True)) if a != b)
            if axes:
                found[name] = found.get(name, frozenset()) | axes
    return found


def by_shape(sets: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """Numbers of the sets, those of equal shapes together, in the order in which the shapes come first."""
    groups: dict[Any, list[int]] = {}
    for index, arrays in enumerate(sets):
        groups.setdefault(tuple((name, array.shape) for name, array in arrays.items()), []).append(index)
    return list(groups.values())


def largest_first(sets: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sets, those of the shape with the most elements first; else as they were."""
    return sorted(sets, key=lambda arrays: -sum(array.size for array in arrays.values()))


def shape_texts(sets: Sequence[Mapping[str, Any]]) -> list[str]:
    """What tells the shapes of sets apart: ``x=1,3,480,640``; an input that has one shape in all of them is left out."""
    differ = [name for name in (sets[0] if sets else ()) if len({arrays[name].shape for arrays in sets}) > 1]
    return [" ".join(f"{name}={','.join(map(str, arrays[name].shape))}" for name in differ) for arrays in sets]


def make_feeds(
    proto: Any, fixed: Mapping[str, str], path: Path, given: Sequence[Mapping[str, Any]] = ()
) -> list[dict[str, Any]]:
    """Sets of inputs: those given, or else the first one from a seeded generator, which also fills what a set leaves out.

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
        if dtype.kind not in "fiubcU" and tensor.elem_type not in _by_number():
            kind = onnx.TensorProto.DataType.Name(tensor.elem_type)
            raise InputError(f"{path}: input {value.name!r} is of type {kind}, which cannot be fed from numpy")
        size = math.prod(shape) * dtype.itemsize
        if size > LARGEST:
            raise InputError(f"{path}: input {value.name!r} would take {size} bytes, more than runs are made with; give it other dimensions")
        if given and value.name in given[0]:
            for index, arrays in enumerate(given):
                if value.name in arrays:
                    _fitting(arrays[value.name], shape, dtype, f"{path}: input {value.name!r} (--inputs, set {index})")
            array = given[0][value.name]
        elif value.name in fixed:
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
    sets = [base, *({**base, **arrays} for arrays in given[1:])]
    for name, number in _compared(proto, set(single)):
        sets.append({**base, name: np.full(base[name].shape, number).astype(single[name])})
    return sets


def _fitting(array: Any, shape: Sequence[int], dtype: Any, what: str) -> None:
    """`UsageError` unless an array of the user's is what the model takes; an axis of 0 is open."""
    if array.dtype != dtype and not array.dtype.kind == dtype.kind == "U":
        raise UsageError(f"{what} is of type {array.dtype}, and the model takes {'texts' if dtype.kind == 'U' else dtype}")
    if len(array.shape) != len(shape) or any(wanted not in (0, n) for n, wanted in zip(array.shape, shape, strict=True)):
        told = ",".join(map(str, array.shape))
        raise UsageError(f"{what} has the shape {told or '()'}, and memory is planned for {','.join(map(str, shape)) or '()'}")


def _by_number() -> dict[int, bool]:
    """Element types that numpy has not by itself, by ONNX's number: whether two elements share a byte."""
    types = import_onnx().TensorProto
    names = {"BFLOAT16": False, "FLOAT8E4M3FN": False, "FLOAT8E4M3FNUZ": False, "FLOAT8E5M2": False, "FLOAT8E5M2FNUZ": False,
             "INT4": True, "UINT4": True}
    return {getattr(types, name): packed for name, packed in names.items() if hasattr(types, name)}


def contrast_of(feeds: Mapping[str, Any], fixed: Mapping[str, str], given: Sequence[str] = ()) -> dict[str, Any] | None:
    """A set that differs from ``feeds`` in every input that is not fixed; None where all inputs are.

    Whole numbers and truth values become the other one of 0 and 1 (what is fixed or ``given``, and sizes, stay), floats are drawn
    anew.
    """
    import numpy as np

    generator = np.random.default_rng(SEED + 1)
    result = {}
    for name, array in feeds.items():
        real = array.dtype.kind in "fc" or _is_real(array.dtype)
        if name in fixed or (name in given and not real):
            result[name] = array
        elif real:
            result[name] = _random(generator, array.shape, array.dtype)
        else:
            result[name] = (1 - array.astype(np.int64)).astype(array.dtype)
    return result if any(result[name] is not array and array.size for name, array in feeds.items()) else None


def _is_real(dtype: Any) -> bool:
    """Whether an element type that numpy has not by itself is one of floating-point numbers."""
    if dtype.isbuiltin != 2:
        return False
    import ml_dtypes

    try:
        ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    except ValueError:
        return False
    return True


def _random(generator: Any, shape: Sequence[int], dtype: Any) -> Any:
    import numpy as np

    if dtype.kind == "f" or _is_real(dtype):
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


def _number(dtype: Any) -> int:
    return int(import_onnx().helper.np_dtype_to_tensor_dtype(dtype))


def _raw(array: Any) -> Any:
    """An array of an element type of numpy's own with the same bytes; of packed ones the first half of the bytes counts."""
    import numpy as np

    if array.dtype.isbuiltin != 2:
        return array
    raw = np.ascontiguousarray(array).view(np.uint16 if array.dtype.itemsize == 2 else np.uint8).reshape(array.shape)
    if _by_number()[_number(array.dtype)]:
        flat = np.append(raw.reshape(-1), np.zeros(raw.size % 2, np.uint8)) & 15
        half = flat[::2] | flat[1::2] << 4
        raw = np.append(half, np.zeros(raw.size - half.size, np.uint8)).reshape(array.shape)
    return raw


def write_feeds(sets: Sequence[Mapping[str, Any]], folder: Path) -> list[str]:
    """Store the sets where a child can read them; the file names."""
    import numpy as np

    paths = []
    for index, feeds in enumerate(sets):
        path = folder / f"feeds{index}.npz"
        arrays = {str(i): _raw(array) for i, array in enumerate(feeds.values())}
        types = [_number(array.dtype) if array.dtype.isbuiltin == 2 else 0 for array in feeds.values()]
        np.savez(path, names=np.array(json.dumps(list(feeds))), types=np.array(types, np.int64), **arrays)
        paths.append(str(path))
    return paths
