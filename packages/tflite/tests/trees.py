"""Whole TFLite files as trees that tests take apart and write again; the schema package reads tables and writes fields only."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import flatbuffers
import numpy as np
import tflite

UNIONS = {"BuiltinOptions": "BuiltinOptions", "BuiltinOptions2": "BuiltinOptions2"}
OPERATORS = {v: k for k, v in vars(tflite.BuiltinOperator).items() if isinstance(v, int)}


class Tree(SimpleNamespace):
    """A table: its kind and its fields by their names in the schema package; equal only to itself."""

    __eq__, __hash__ = object.__eq__, object.__hash__


def load(data: bytes) -> Tree:
    return _read(tflite.Model.GetRootAs(data, 0))


def save(tree: Tree) -> bytes:
    builder = flatbuffers.Builder(1 << 16)
    builder.Finish(_write(builder, tree), b"TFL3")
    return bytes(builder.Output())


def new(kind: str, **fields) -> Tree:
    """A table with these fields; all others are absent."""
    return Tree(kind=kind, **{name: fields.pop(name, None) for name, _ in _fields(kind)}, **fields)


def copied(tree: Tree, **fields) -> Tree:
    return Tree(**(vars(tree) | fields))


@cache
def _fields(kind: str) -> tuple[tuple[str, bool], ...]:
    """Fields, and whether each is a vector."""
    cls = getattr(tflite, kind)
    writers = {name.removeprefix(f"{kind}Add") for name in dir(tflite) if name.startswith(f"{kind}Add")}
    methods = {name: f.__code__.co_argcount for name, f in vars(cls).items() if hasattr(f, "__code__")}
    return tuple((name, methods[name] == 2) for name in methods if name in writers)


def _read(table) -> Tree:
    kind = type(table).__name__
    tree = new(kind)
    for name, vector in _fields(kind):
        if not vector:
            value = getattr(table, name)()
            if name in UNIONS and value is not None:
                names = {v: k for k, v in vars(getattr(tflite, UNIONS[name])).items()}
                inner = getattr(tflite, names[getattr(table, f"{name}Type")()])()
                inner.Init(value.Bytes, value.Pos)
                value = inner
            setattr(tree, name, _read(value) if hasattr(value, "_tab") else value)
        elif hasattr(table, f"{name}AsNumpy"):
            value = getattr(table, f"{name}AsNumpy")()
            here = getattr(table, f"{name}Length")()
            absent = np.array([], np.int32) if name in ("Inputs", "Outputs") else None
            setattr(tree, name, np.array(value) if here else absent)
        else:
            count = getattr(table, f"{name}Length")()
            setattr(tree, name, [_read(getattr(table, name)(k)) for k in range(count)] if count else None)
    return tree


def _write(builder, tree: Tree) -> int:
    kind = tree.kind
    values = {}
    for name, _ in _fields(kind):
        value = getattr(tree, name)
        if isinstance(value, Tree):
            value = _write(builder, value)
        elif isinstance(value, str | bytes):
            value = builder.CreateString(value)
        elif isinstance(value, list):
            rows = [_write(builder, row) for row in value]
            getattr(tflite, f"{kind}Start{name}Vector")(builder, len(rows))
            for row in reversed(rows):
                builder.PrependUOffsetTRelative(row)
            value = builder.EndVector()
        elif isinstance(value, np.ndarray):
            if kind == "Buffer":  # constants are aligned
                builder.StartVector(1, len(value), 16)
                builder.head -= len(value)
                builder.Bytes[builder.head : builder.head + len(value)] = value.tobytes()
                value = builder.EndVector()
            else:
                value = builder.CreateNumpyVector(value)
        if value is not None:
            values[name] = value
    getattr(tflite, f"{kind}Start")(builder)
    for name, value in values.items():
        getattr(tflite, f"{kind}Add{name}")(builder, value)
    return getattr(tflite, f"{kind}End")(builder)


# What tests ask of a model


def code(model: Tree, op: Tree) -> str:
    row = model.OperatorCodes[op.OpcodeIndex]
    return OPERATORS[max(row.BuiltinCode, row.DeprecatedBuiltinCode)]


def opcode(model: Tree, name: str, version: int = 1) -> int:
    """The index of an operator code, which is added where there is none."""
    value = getattr(tflite.BuiltinOperator, name)
    for k, row in enumerate(model.OperatorCodes):
        if max(row.BuiltinCode, row.DeprecatedBuiltinCode) == value:
            return k
    model.OperatorCodes.append(new("OperatorCode", BuiltinCode=value, DeprecatedBuiltinCode=min(value, 127), Version=version))
    return len(model.OperatorCodes) - 1


def constant(model: Tree, t: int) -> bool:
    return t >= 0 and model.Buffers[model.Subgraphs[0].Tensors[t].Buffer].Data is not None


def array(model: Tree, t: int) -> np.ndarray:
    """A constant of the main subgraph."""
    tensor = model.Subgraphs[0].Tensors[t]
    kind = {0: np.float32, 2: np.int32, 3: np.uint8, 4: np.int64, 7: np.int16, 9: np.int8}[tensor.Type]
    return model.Buffers[tensor.Buffer].Data.view(kind).reshape(shape(model, t))


def shape(model: Tree, t: int) -> tuple[int, ...]:
    extents = model.Subgraphs[0].Tensors[t].Shape
    return () if extents is None else tuple(int(n) for n in extents)


def add_tensor(model: Tree, like: Tree | None, extents, data: np.ndarray | None = None, **fields) -> int:
    """One more tensor of the main subgraph: of another's type and quantization, or of 32-bit integers."""
    tensors = model.Subgraphs[0].Tensors
    buffer = 0
    if data is not None:
        model.Buffers.append(new("Buffer", Data=np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)))
        buffer = len(model.Buffers) - 1
    base = like or new("Tensor", Type=2)
    tensors.append(copied(base, Shape=np.array(extents, np.int32), ShapeSignature=None, Buffer=buffer, Name=f"new{len(tensors)}", **fields))
    return len(tensors) - 1


def add_operator(model: Tree, name: str, inputs, outputs, options: Tree | None = None, version: int = 1) -> Tree:
    """An operator, which the caller puts in its place."""
    return new(
        "Operator",
        OpcodeIndex=opcode(model, name, version),
        Inputs=np.array(inputs, np.int32),
        Outputs=np.array(outputs, np.int32),
        BuiltinOptionsType=getattr(tflite.BuiltinOptions, options.kind) if options else 0,
        BuiltinOptions=options,
    )
