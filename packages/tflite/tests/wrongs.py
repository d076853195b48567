"""One thing made wrong in a file: every way that a splitter has got it wrong, or might."""

from __future__ import annotations

import random
from collections.abc import Callable
from copy import deepcopy

import numpy as np
from bands import EACH, main
from trees import Tree, add_tensor, array, code, constant, copied, new, opcode, save, shape

WEIGHTED = {"CONV_2D": (1, 2), "DEPTHWISE_CONV_2D": (1, 2), "FULLY_CONNECTED": (1, 2), "TRANSPOSE_CONV": (1, 3)}


class NotHere(Exception):
    """The file has nothing to make wrong in this way."""


def some(rng: random.Random, rows):
    rows = list(rows)
    if not rows:
        raise NotHere
    return rng.choice(rows)


def operators(model: Tree, *names: str) -> list[Tree]:
    return [op for op in main(model).Operators if not names or code(model, op) in names]


def replaced(model: Tree, t: int, data: np.ndarray) -> int:
    """A constant like another with other values."""
    return add_tensor(model, main(model).Tensors[t], data.shape, data)


def put(op: Tree, k: int, t: int) -> None:
    op.Inputs = op.Inputs.copy()
    op.Inputs[k] = t


def edited(op: Tree, **fields) -> None:
    op.BuiltinOptions = copied(op.BuiltinOptions, **fields)


# Slices and joins


def slice_moved(model: Tree, rng: random.Random) -> None:
    """The same number of rows or channels, from one place further."""
    op = some(rng, operators(model, "STRIDED_SLICE"))
    x, begin, end = shape(model, int(op.Inputs[0])), array(model, int(op.Inputs[1])).copy(), array(model, int(op.Inputs[2])).copy()
    axis = some(rng, [k for k in range(len(x)) if end[k] - begin[k] < x[k]])
    step = some(rng, [s for s in (1, -1) if begin[axis] + s >= 0 and end[axis] + s <= x[axis]])
    begin[axis] += step
    end[axis] += step
    put(op, 1, replaced(model, int(op.Inputs[1]), begin))
    put(op, 2, replaced(model, int(op.Inputs[2]), end))


def slice_numbers(model: Tree, rng: random.Random) -> None:
    """One number of a slice is another, so that its shape is not what the file says."""
    op = some(rng, operators(model, "STRIDED_SLICE"))
    k = rng.choice((1, 2, 3))
    numbers = array(model, int(op.Inputs[k])).copy()
    numbers[rng.randrange(len(numbers))] += rng.choice((-1, 1))
    put(op, k, replaced(model, int(op.Inputs[k]), numbers))


def slice_of_another(model: Tree, rng: random.Random) -> None:
    op = some(rng, operators(model, "STRIDED_SLICE"))
    t = some(rng, [t for t in range(len(main(model).Tensors)) if t != op.Inputs[0] and shape(model, t) == shape(model, int(op.Inputs[0])) and not constant(model, t)])
    put(op, 0, t)


def slice_masked(model: Tree, rng: random.Random) -> None:
    op = some(rng, operators(model, "STRIDED_SLICE"))
    edited(op, **{rng.choice(("BeginMask", "EndMask", "ShrinkAxisMask", "NewAxisMask", "EllipsisMask")): rng.choice((1, 2, 8))})


def join_swapped(model: Tree, rng: random.Random) -> None:
    """Two pieces in each other's place."""
    op = some(rng, [op for op in operators(model, "CONCATENATION") if len(op.Inputs) > 1])
    i, j = rng.sample(range(len(op.Inputs)), 2)
    op.Inputs = op.Inputs.copy()
    op.Inputs[[i, j]] = op.Inputs[[j, i]]


def join_doubled(model: Tree, rng: random.Random) -> None:
    """One piece in another's place."""
    op = some(rng, [op for op in operators(model, "CONCATENATION") if len(op.Inputs) > 1])
    i, j = rng.sample(range(len(op.Inputs)), 2)
    put(op, i, int(op.Inputs[j]))


def join_short(model: Tree, rng: random.Random) -> None:
    """A piece left out, or there twice."""
    op = some(rng, [op for op in operators(model, "CONCATENATION") if len(op.Inputs) > 1])
    k = rng.randrange(len(op.Inputs))
    op.Inputs = np.delete(op.Inputs, k) if rng.random() < 0.5 else np.insert(op.Inputs, k, op.Inputs[k])


def join_attributes(model: Tree, rng: random.Random) -> None:
    op = some(rng, operators(model, "CONCATENATION"))
    edited(op, **rng.choice(({"Axis": 2}, {"Axis": 0}, {"FusedActivationFunction": 1})))


# Operators


def attribute(model: Tree, rng: random.Random) -> None:
    """Stride, spread, padding, activation, multiplier and the like of one operator."""
    op = some(rng, [op for op in operators(model) if op.BuiltinOptions is not None and code(model, op) not in ("STRIDED_SLICE", "CONCATENATION")])
    fields = {k: v for k, v in vars(op.BuiltinOptions).items() if k != "kind" and isinstance(v, int | float)}
    name = some(rng, fields)
    value = fields[name]
    edited(op, **{name: (not value) if isinstance(value, bool) else value + 1})


def other_operator(model: Tree, rng: random.Random) -> None:
    """Another operator of the same operands."""
    pairs = {"AVERAGE_POOL_2D": "MAX_POOL_2D", "MAX_POOL_2D": "AVERAGE_POOL_2D", "RELU": "RELU6", "SUB": "ADD"}
    op = some(rng, operators(model, *pairs))
    op.OpcodeIndex = opcode(model, pairs[code(model, op)])


def other_version(model: Tree, rng: random.Random) -> None:
    op = some(rng, [op for op in operators(model) if code(model, op) not in ("STRIDED_SLICE", "CONCATENATION")])
    row = model.OperatorCodes[op.OpcodeIndex]
    model.OperatorCodes.append(copied(row, Version=row.Version + 1))
    op.OpcodeIndex = len(model.OperatorCodes) - 1


def operand(model: Tree, rng: random.Random) -> None:
    """Another tensor of the same shape is read."""
    op = some(rng, operators(model))
    k = some(rng, [k for k, t in enumerate(op.Inputs) if t >= 0 and not constant(model, int(t))])
    made = {int(t) for other in operators(model) for t in other.Outputs}
    t = some(rng, [t for t in made - {int(op.Inputs[k])} if shape(model, t) == shape(model, int(op.Inputs[k]))])
    put(op, k, t)


def operands_swapped(model: Tree, rng: random.Random) -> None:
    op = some(rng, [op for op in operators(model, *(EACH - {"ADD", "MUL", "MAXIMUM"}), "CONCATENATION") if len(op.Inputs) == 2])
    op.Inputs = op.Inputs[::-1].copy()


def removed(model: Tree, rng: random.Random) -> None:
    """An operator is missing, and its result is never computed."""
    g = main(model)
    op = some(rng, g.Operators)
    g.Operators = [other for other in g.Operators if other is not op]


def bypassed(model: Tree, rng: random.Random) -> None:
    """An operator that keeps the shape is missing, and its data stand for its result."""
    g = main(model)
    op = some(rng, [op for op in g.Operators if len(op.Outputs) == 1 and shape(model, int(op.Inputs[0])) == shape(model, int(op.Outputs[0])) and not constant(model, int(op.Inputs[0]))])
    x, y = int(op.Inputs[0]), int(op.Outputs[0])
    g.Operators = [copied(other, Inputs=np.where(other.Inputs == y, x, other.Inputs)) for other in g.Operators if other is not op]
    g.Outputs = np.where(g.Outputs == y, x, g.Outputs)


# Constants


def weights(model: Tree, rng: random.Random) -> None:
    """One weight or bias of one operator."""
    op = some(rng, operators(model, *WEIGHTED))
    k = some(rng, [k for k in WEIGHTED[code(model, op)] if k < len(op.Inputs) and op.Inputs[k] >= 0])
    data = array(model, int(op.Inputs[k])).copy()
    at = rng.randrange(data.size)
    data.flat[at] = data.flat[at] + 1 if data.flat[at] < 100 else data.flat[at] - 1
    put(op, k, replaced(model, int(op.Inputs[k]), data))


def weights_of_another(model: Tree, rng: random.Random) -> None:
    """The weights, or the bias, of another operator of the same shapes."""
    op = some(rng, operators(model, *WEIGHTED))
    k = some(rng, WEIGHTED[code(model, op)])
    mine = [op.Inputs[k]] if k < len(op.Inputs) else []
    others = [int(o.Inputs[k]) for o in operators(model, code(model, op)) if k < len(o.Inputs) and mine and o.Inputs[k] != mine[0]]
    put(op, k, some(rng, [t for t in others if min(t, mine[0]) >= 0 and shape(model, t) == shape(model, int(mine[0]))]))


def channels_swapped(model: Tree, rng: random.Random) -> None:
    """Two channels of the weights change places, those of the bias do not."""
    op = some(rng, operators(model, "CONV_2D", "FULLY_CONNECTED"))
    data = array(model, int(op.Inputs[1])).copy()
    if len(data) < 2:
        raise NotHere
    i, j = rng.sample(range(len(data)), 2)
    data[[i, j]] = data[[j, i]]
    put(op, 1, replaced(model, int(op.Inputs[1]), data))


def scales(model: Tree, rng: random.Random) -> None:
    """A scale or a zero point of any tensor."""
    t = some(rng, [t for t in main(model).Tensors if t.Quantization is not None and t.Quantization.Scale is not None])
    q = t.Quantization
    if rng.random() < 0.5:
        scale = q.Scale.copy()
        scale[rng.randrange(len(scale))] *= np.float32(1.25)
        t.Quantization = copied(q, Scale=scale)
    else:
        zero = q.ZeroPoint.copy()
        zero[rng.randrange(len(zero))] += 1
        t.Quantization = copied(q, ZeroPoint=zero)


def element_type(model: Tree, rng: random.Random) -> None:
    made = sorted({int(t) for op in operators(model) for t in op.Outputs} - set(map(int, main(model).Outputs)))
    t = main(model).Tensors[some(rng, made)]
    t.Type = {9: 3, 0: 2}.get(t.Type, 0)


def rows_of_constant(model: Tree, rng: random.Random) -> None:
    """A constant with rows is not cut, or cut elsewhere."""
    op = some(rng, [op for op in operators(model, *EACH) if any(constant(model, int(t)) and len(shape(model, int(t))) >= 3 and shape(model, int(t))[-3] > 1 for t in op.Inputs)])
    k = next(k for k, t in enumerate(op.Inputs) if constant(model, int(t)))
    data = array(model, int(op.Inputs[k]))
    axis = data.ndim - 3
    other = rng.choice((np.roll(data, 1, axis), np.concatenate([data, data], axis), np.take(data, range(data.shape[axis] - 1), axis), np.flip(data, axis)))
    put(op, k, replaced(model, int(op.Inputs[k]), other))


def pads(model: Tree, rng: random.Random) -> None:
    op = some(rng, operators(model, "PAD", "MIRROR_PAD"))
    data = array(model, int(op.Inputs[1])).copy()
    data[1][rng.randint(0, 1)] += 1
    put(op, 1, replaced(model, int(op.Inputs[1]), data))


def pads_exchanged(model: Tree, rng: random.Random) -> None:
    """Padding at the other side: the same shape."""
    op = some(rng, operators(model, "PAD", "MIRROR_PAD"))
    data = array(model, int(op.Inputs[1])).copy()
    data[1] = data[1][::-1]
    put(op, 1, replaced(model, int(op.Inputs[1]), data))


def told_size(model: Tree, rng: random.Random) -> None:
    """The size that a resize or a transposed convolution is told."""
    op = some(rng, operators(model, "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "TRANSPOSE_CONV"))
    k = 0 if code(model, op) == "TRANSPOSE_CONV" else 1
    data = array(model, int(op.Inputs[k])).copy()
    data[0 if k else 1] += rng.choice((-1, 1))
    put(op, k, replaced(model, int(op.Inputs[k]), data))


# Around


def height(model: Tree, rng: random.Random) -> None:
    """A tensor of one row more or less than is computed."""
    made = [int(t) for op in operators(model) for t in op.Outputs if len(shape(model, int(t))) == 4]
    tensor = main(model).Tensors[some(rng, made)]
    axis = rng.choice((1, 1, 3))
    tensor.Shape = tensor.Shape.copy()
    tensor.Shape[axis] += rng.choice((-1, 1)) if tensor.Shape[axis] > 1 else 1


def output(model: Tree, rng: random.Random) -> None:
    g = main(model)
    k = rng.randrange(len(g.Outputs))
    made = {int(t) for op in g.Operators for t in op.Outputs} - {int(g.Outputs[k])}
    g.Outputs = g.Outputs.copy()
    g.Outputs[k] = some(rng, [t for t in made if shape(model, t) == shape(model, int(g.Outputs[k]))])


def unread(model: Tree, rng: random.Random) -> None:
    """A band whose rows nothing reads."""
    g = main(model)
    op = some(rng, operators(model, "STRIDED_SLICE"))
    t = add_tensor(model, g.Tensors[int(op.Outputs[0])], shape(model, int(op.Outputs[0])))
    g.Operators = [*g.Operators, copied(op, Outputs=np.array([t], np.int32))]


def metadata(model: Tree, rng: random.Random) -> None:
    model.Metadata = [*(model.Metadata or []), new("Metadata", Name="note", Buffer=0)]


def subgraph(model: Tree, rng: random.Random) -> None:
    model.Subgraphs = [*model.Subgraphs, copied(model.Subgraphs[0], Name="again")]


def interface(model: Tree, rng: random.Random) -> None:
    """An input or an output twice."""
    g = main(model)
    side = rng.choice(("Inputs", "Outputs"))
    setattr(g, side, np.append(getattr(g, side), getattr(g, side)[:1]))


WAYS: list[Callable[[Tree, random.Random], None]] = [
    slice_moved, slice_numbers, slice_of_another, slice_masked, join_swapped, join_doubled, join_short, join_attributes, attribute,
    other_operator, other_version, operand, operands_swapped, removed, bypassed, weights, weights_of_another, channels_swapped, scales,
    element_type, rows_of_constant, pads, pads_exchanged, told_size, height, output, unread, metadata, subgraph, interface,
]  # fmt: skip


def wrong(model: Tree, way: Callable[[Tree, random.Random], None], rng: random.Random) -> bytes:
    """A file made wrong in one way; `NotHere` where it cannot be."""
    model = deepcopy(model)
    way(model, rng)
    return save(model)
