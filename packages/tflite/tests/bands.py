"""Files split into bands, right and wrong ones, and what they compute: for tests, and nothing of the package is used here.

`symbols` runs a file on names instead of numbers: every row and channel of every tensor is named by the operator that computes it
and by the names of all that it reads, tap by tap. Two files whose outputs have the same names compute the same bits. It knows
nothing of bands, which is what makes it a judge of a check that does.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import pairwise

import numpy as np
from trees import Tree, add_operator, add_tensor, array, code, constant, copied, load, new, save, shape

EACH = {"ADD", "MUL", "SUB", "PRELU", "RELU", "RELU6", "LOGISTIC", "QUANTIZE", "HARD_SWISH", "LEAKY_RELU", "MAXIMUM"}
WINDOWS = {"CONV_2D", "DEPTHWISE_CONV_2D", "AVERAGE_POOL_2D", "MAX_POOL_2D"}
ROWS = WINDOWS | EACH | {
    "PAD", "MIRROR_PAD", "TRANSPOSE_CONV", "DEPTH_TO_SPACE", "SPACE_TO_DEPTH", "RESIZE_NEAREST_NEIGHBOR", "RESIZE_BILINEAR",
    "SOFTMAX", "CONCATENATION", "FULLY_CONNECTED",
}  # fmt: skip


def main(model: Tree) -> Tree:
    return model.Subgraphs[0]


def data_of(model: Tree, op: Tree) -> int:
    """The operand that is an operator's data."""
    return int(op.Inputs[2 if code(model, op) == "TRANSPOSE_CONV" else 0])


def taps(model: Tree, op: Tree, n: int, m: int) -> list[tuple]:
    """For each of the ``m`` rows of an operator's result on ``n`` rows, what it reads: (row or None, how)."""
    name, o = code(model, op), op.BuiltinOptions
    if name in WINDOWS:
        k = o.FilterHeight if "POOL" in name else shape(model, int(op.Inputs[1]))[1]
        s, d = o.StrideH, 1 if "POOL" in name else o.DilationHFactor
        reach = (k - 1) * d + 1
        pad = max((-(-n // s) - 1) * s + reach - n, 0) // 2 if o.Padding == 0 else 0
        rows = [[s * r - pad + d * t for t in range(k)] for r in range(-(-n // s) if o.Padding == 0 else (n - reach) // s + 1)]
        return [tuple((i if 0 <= i < n else None, t) for t, i in enumerate(row)) for row in rows]
    if name == "TRANSPOSE_CONV":
        k, s = shape(model, int(op.Inputs[1]))[1], o.StrideH
        pad = max((-(-m // s) - 1) * s + k - m, 0) // 2 if o.Padding == 0 else 0
        return [tuple((i, j + pad - s * i) for i in range(n) if 0 <= j + pad - s * i < k) for j in range(m)]
    if name in ("PAD", "MIRROR_PAD"):
        top = int(array(model, int(op.Inputs[1]))[1][0])
        rows = [j - top for j in range(m)]
        if name == "PAD":
            return [((i if 0 <= i < n else None, 0),) for i in rows]
        d = 0 if o.Mode else 1
        return [((-i - 1 + d if i < 0 else 2 * n - 1 - d - i if i >= n else i, 0),) for i in rows]
    if name == "DEPTH_TO_SPACE":
        return [((j // o.BlockSize, j % o.BlockSize),) for j in range(m)]
    if name == "SPACE_TO_DEPTH":
        return [tuple((j * o.BlockSize + t, t) for t in range(o.BlockSize)) for j in range(m)]
    if name == "RESIZE_NEAREST_NEIGHBOR":
        scale = np.float32(n - 1) / np.float32(m - 1) if o.AlignCorners and m > 1 else np.float32(n) / np.float32(m)
        at = (np.arange(m, dtype=np.float32) + np.float32(0.5 if o.HalfPixelCenters else 0)) * scale
        return [((int(min(max(np.floor(v + 0.5) if o.AlignCorners else np.floor(v), 0), n - 1)), 0),) for v in at]
    if name == "RESIZE_BILINEAR":
        scale = np.float32(n - 1) / np.float32(m - 1) if o.AlignCorners and m > 1 else np.float32(n) / np.float32(m)
        fixed = (1024 * (n - 1) + (m - 1) // 2) // (m - 1) if o.AlignCorners and m > 1 else (1024 * n + m // 2) // m
        result = []
        for j in range(m):
            y = (np.float32(j) + np.float32(0.5)) * scale - np.float32(0.5) if o.HalfPixelCenters else np.float32(j) * scale
            z = j * fixed + fixed // 2 - 512 if o.HalfPixelCenters else j * fixed
            low, high, a, b = max(int(np.floor(y)), 0), min(int(np.ceil(y)), n - 1), max(z >> 10, 0), min((z + 1023) >> 10, n - 1)
            result.append(((low, float(y - low)), (high, 1), (a, z - (a << 10)), (b, 2)))
        return result
    return [((j, 0),) for j in range(m)]


# Names of values


class Names:
    """Numbers for names, the same for equal names in all files."""

    def __init__(self) -> None:
        self.known: dict[object, int] = {}

    def __call__(self, *name) -> int:
        return self.known.setdefault(name, len(self.known))


def said(tree: Tree | None) -> str:
    return repr(tree)


def quantized(model: Tree, t: int, channel: int | None = None) -> tuple:
    """Type, scale and zero point, of one channel where each has its own."""
    tensor = main(model).Tensors[t]
    q = tensor.Quantization
    if q is None or q.Scale is None:
        return (tensor.Type,)
    c = channel if channel is not None and len(q.Scale) > 1 else slice(None)
    return tensor.Type, q.Scale[c].tobytes(), q.ZeroPoint[c if len(q.ZeroPoint) > 1 else slice(None)].tobytes()


def symbols(model: Tree, names: Names) -> list[object]:
    """Names of the outputs, row by row and channel by channel."""
    g = main(model)
    value: dict[int, list[list[int]]] = {}

    def rows_of(extents) -> int:
        return extents[1] if len(extents) == 4 else 1

    def given(t: int, what: object) -> list[list[int]]:
        extents = shape(model, t)
        return [[names("given", what, r, c) for c in range((extents or (1,))[-1])] for r in range(rows_of(extents))]

    def of(t: int) -> list[list[int]]:
        if t not in value and constant(model, t):
            a = array(model, t)
            a = a.reshape((1,) * (3 - a.ndim) + a.shape) if a.ndim < 3 else a
            a = np.moveaxis(a, -3, 0)
            value[t] = [[names("constant", quantized(model, t), str(a.dtype), row[..., c].tobytes()) for c in range(a.shape[-1])] for row in a]
        return value[t]

    for k, t in enumerate(g.Inputs):
        value[int(t)] = given(int(t), ("input", k))
    for op in g.Operators:
        name, y = code(model, op), int(op.Outputs[0])
        ins = [int(t) for t in op.Inputs]
        extents = shape(model, y)
        here = [quantized(model, t) for t in ins if t >= 0 and not constant(model, t)]
        what = (name, said(op.BuiltinOptions), tuple(here), quantized(model, y))
        value[y] = _run(model, op, name, ins, extents, rows_of(extents), what, of, names)
        for other in map(int, op.Outputs[1:]):
            value[other] = given(other, (what, *map(str, map(of, [t for t in ins if t >= 0])), other))
    return [value[int(t)] for t in g.Outputs]


def _run(model, op, name, ins, extents, m, what, of, names) -> list[list[int]]:
    channels = range(extents[-1] if extents else 1)
    four = len(extents) == 4
    if name == "STRIDED_SLICE":
        x, o = shape(model, ins[0]), op.BuiltinOptions
        sides = [[int(v) + (n if v < 0 else 0) for v, n in zip(array(model, t), x)] for t in ins[1:3]]
        begin = [0 if o.BeginMask >> k & 1 else v for k, v in enumerate(sides[0])]
        end = [n if o.EndMask >> k & 1 else v for k, (v, n) in enumerate(zip(sides[1], x))]
        cut = [k for k in range(len(x)) if (begin[k], end[k]) != (0, x[k])]
        plain = not (o.EllipsisMask or o.NewAxisMask or o.ShrinkAxisMask) and (array(model, ins[3]) == 1).all()
        if plain and all(k == len(x) - 1 or (four and k == 1) for k in cut):
            rows = of(ins[0])[int(begin[1]) : int(end[1])] if four else of(ins[0])
            return [row[int(begin[-1]) : int(end[-1])] for row in rows]
    if name == "CONCATENATION" and len({quantized(model, t) for t in (*ins, int(op.Outputs[0]))}) == 1:
        axis = op.BuiltinOptions.Axis % len(extents)
        if axis == len(extents) - 1:
            return [[c for t in ins for c in of(t)[r]] for r in range(m)]
        if four and axis == 1:
            return [row for t in ins for row in of(t)]
    if name in ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "FULLY_CONNECTED") and constant(model, ins[1]):
        data, w = data_of(model, op), array(model, ins[1])
        bias = ins[3 if name == "TRANSPOSE_CONV" else 2] if len(ins) > (3 if name == "TRANSPOSE_CONV" else 2) else -1
        axis = 3 if name == "DEPTHWISE_CONV_2D" else 0
        of_channel = [
            (np.take(w, c, axis).tobytes(), str(w.shape[1:3]), quantized(model, ins[1], c), array(model, bias)[c].tobytes() if bias >= 0 else "")
            for c in channels
        ]
        x = of(data)
        if name == "FULLY_CONNECTED":
            keeps = op.BuiltinOptions.KeepNumDims and four
            by_channel = len(quantized(model, ins[1])) > 1 and len(main(model).Tensors[ins[1]].Quantization.Scale) > 1  # another kernel
            return [[names(what, by_channel, of_channel[c], str(x[r] if keeps else x)) for c in channels] for r in range(m)]
        times = len(channels) // len(x[0]) if name == "DEPTHWISE_CONV_2D" else 0
        table = taps(model, op, len(x), m)
        groups = shape(model, data)[3] // w.shape[3] if name == "CONV_2D" else 1
        each = len(x[0]) // groups

        def read(c: int, row: list[int]) -> object:
            if times:
                return row[c // times]
            g = c // (len(channels) // groups)
            return tuple(row[g * each : (g + 1) * each])

        return [
            [names(what, of_channel[c], tuple(("none" if i is None else read(c, x[i]), how) for i, how in table[r])) for c in channels]
            for r in range(m)
        ]
    if name in ("AVERAGE_POOL_2D", "MAX_POOL_2D", "PAD", "MIRROR_PAD", "RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"):
        x = of(ins[0])
        sides = array(model, ins[1]).reshape(-1, 2) if "PAD" in name else None
        if sides is None or (not sides[0].any() and not sides[3].any()):
            width = sides[2].tolist() if sides is not None else extents[2]
            table = taps(model, op, len(x), m)
            return [[names(what, str(width), tuple(("none" if i is None else x[i][c], how) for i, how in table[r])) for c in channels] for r in range(m)]
    if name in ("DEPTH_TO_SPACE", "SPACE_TO_DEPTH"):
        x, table = of(ins[0]), taps(model, op, len(of(ins[0])), m)
        return [[names(what, tuple((str(x[i]), how) for i, how in table[r]), c) for c in channels] for r in range(m)]
    if name == "SOFTMAX" and four:
        return [[names(what, str(of(ins[0])[r]), c) for c in channels] for r in range(m)]
    if name in EACH:
        operands = [of(t) for t in ins]
        return [
            [names(what, tuple(x[r if len(x) > 1 else 0][c if len(x[0]) > 1 else 0] for x in operands)) for c in channels] for r in range(m)
        ]
    whole = tuple(str(of(t)) if t >= 0 else "" for t in ins)
    return [[names(what, extents, whole, r, c) for c in channels] for r in range(m)]


# Bands


class Stuck(Exception):
    """No band was found."""


class Splitter:
    """Operators ``first`` to ``last`` of a model in bands of rows, cut as chance has it.

    Parameters
    ----------
    lie : float
        How often a spoiled row is taken for a right one, which makes a wrong file of sound shapes.
    """

    def __init__(self, model: Tree, rng: random.Random, lie: float = 0.0) -> None:
        self.model, self.rng, self.lie = model, rng, lie
        self.given = list(main(model).Operators)
        self.made: list[Tree] = []
        self.lies = 0
        self.whole = cache(lambda p: taps(self.model, self.given[p], self.height(data_of(self.model, self.given[p])), self.height(int(self.given[p].Outputs[0]))))

    def height(self, t: int) -> int:
        extents = shape(self.model, t)
        return extents[1] if len(extents) == 4 else 1

    def rows(self, first: int, last: int, bands: int) -> None:
        """Split in place; `Stuck` leaves the model unusable."""
        self.region = {int(self.given[p].Outputs[0]): p for p in range(first, last + 1)}
        for p in range(first, last + 1):
            op = self.given[p]
            if code(self.model, op) not in ROWS or len(shape(self.model, int(op.Outputs[0]))) != 4 or len(shape(self.model, data_of(self.model, op))) != 4:
                raise Stuck("not of rows")
            if code(self.model, op) == "CONCATENATION" and op.BuiltinOptions.Axis not in (3, -1):
                raise Stuck("joins rows")
        rest = [op for p, op in enumerate(self.given) if not first <= p <= last]
        used = {int(t) for op in rest for t in op.Inputs} | set(map(int, main(self.model).Outputs))
        for t in [t for t in self.region if t in used]:
            h = self.height(t)
            if h < bands:
                raise Stuck("few rows")
            cuts = [round(k * h / bands) for k in range(bands + 1)]
            pieces = [self.cropped(self.want(t, a, b), a, b)[0] for a, b in pairwise(cuts)]
            self.join(pieces, t, 1)
        self.settle(first, rest)

    def settle(self, first: int, rest: list[Tree]) -> None:
        """New operators among those that stay, each where what it reads is there, otherwise anywhere."""
        ready = {int(t) for t in main(self.model).Inputs}
        produced = {int(t) for op in [*rest, *self.made] for t in op.Outputs}
        left, order = [*rest, *self.made], []
        anywhere = self.rng.random() < 0.5
        while left:
            able = [op for op in left if all(int(t) in ready or int(t) not in produced for t in op.Inputs)]
            op = self.rng.choice(able) if anywhere else able[0]
            left.remove(op)
            order.append(op)
            ready |= {int(t) for t in op.Outputs}
        main(self.model).Operators = order

    def want(self, t: int, a: int, b: int) -> tuple[int, list[int | None]]:
        """A tensor with rows a to b of ``t`` in sequence, and what its rows are (None: spoiled)."""
        if t not in self.region:
            h = self.height(t)
            if (a, b) == (0, h):
                return t, list(range(h))
            return self.sliced(t, a, b, 1), list(range(a, b))
        p = self.region[t]
        op = self.given[p]
        name = code(self.model, op)
        if name in EACH | {"CONCATENATION"}:
            return self.each(p, op, a, b)
        x = data_of(self.model, op)
        h = self.height(x)
        needed = [i for r in range(a, b) for i, _ in self.whole(p)[r] if i is not None]
        lo, hi = (min(needed), max(needed) + 1) if needed else (0, 1)
        for k in range(60):
            u, v = max(0, lo - self.rng.randint(0, 4)), min(h, hi + self.rng.randint(0, 4))
            lying = k < 8 and hi - lo > 1 and self.rng.random() < self.lie
            if lying:  # one row short
                u, v = self.rng.choice(((lo + 1, v), (u, hi - 1)))
            begun = len(self.made)
            try:
                band = self.want(x, u, v)
                band = self.cropped(band, u, v) if lying or self.rng.random() < 0.5 else band
                return self.on(p, op, band, a, b, lying)
            except Stuck:
                del self.made[begun:]
        raise Stuck(f"{name} finds no band")

    def on(self, p: int, op: Tree, band, a: int, b: int, lying: bool):
        """An operator on a band."""
        tensor, rows = band
        t, name, o = int(op.Outputs[0]), code(self.model, op), op.BuiltinOptions
        n, inputs = len(rows), list(map(int, op.Inputs))
        extents = list(shape(self.model, t))
        inputs[2 if name == "TRANSPOSE_CONV" else 0] = tensor
        if name == "TRANSPOSE_CONV":
            m = n * o.StrideH if o.Padding == 0 else (n - 1) * o.StrideH + shape(self.model, inputs[1])[1]
        elif name in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"):
            h, of = self.height(data_of(self.model, op)), extents[1]
            if n * of % h:
                raise Stuck("no whole rows")
            m = n * of // h
        elif name in ("PAD", "MIRROR_PAD"):
            pads = array(self.model, inputs[1]).copy().reshape(-1, 2)
            for side, edge in ((0, rows[0] == 0), (1, rows[-1] == self.height(data_of(self.model, op)) - 1)):
                if not edge and self.rng.random() < 0.7:
                    pads[1][side] = 0
            if name == "MIRROR_PAD" and max(pads[1]) >= n:
                raise Stuck("too few to mirror")
            m = n + int(sum(pads[1]))
            inputs[1] = add_tensor(self.model, None, pads.shape, pads.astype(np.int32))
            op = copied(op, Inputs=np.array(inputs, np.int32))
        elif name in ("DEPTH_TO_SPACE", "SPACE_TO_DEPTH"):
            if name == "SPACE_TO_DEPTH" and n % o.BlockSize:
                raise Stuck("no whole blocks")
            m = n * o.BlockSize if name == "DEPTH_TO_SPACE" else n // o.BlockSize
        else:
            m = len(taps(self.model, op, n, 0) if name in WINDOWS else rows)
        if m < b - a:
            raise Stuck("too few")
        here = [tuple((rows[i] if i is not None else None, how) for i, how in row) for row in taps(self.model, op, n, m)]
        spoiled = {j for j, row in enumerate(taps(self.model, op, n, m)) if any(i is not None and rows[i] is None for i, _ in row)}
        whole = self.whole(p)
        good = [j for j in range(m - (b - a) + 1) if all(here[j + k] == whole[a + k] and j + k not in spoiled for k in range(b - a))]
        if not good and lying:
            score = [sum(here[j + k] == whole[a + k] and j + k not in spoiled for k in range(b - a)) for j in range(m - (b - a) + 1)]
            good = [max(range(len(score)), key=score.__getitem__)] if any(score) or b - a == 1 else []
            self.lies += bool(good)
        if not good:
            raise Stuck("not right")
        shift = a - good[0]
        lied = range(good[0], good[0] + b - a)
        out = [
            j + shift if j in lied or (0 <= j + shift < len(whole) and here[j] == whole[j + shift] and j not in spoiled) else None for j in range(m)
        ]
        extents[1] = m
        if name == "TRANSPOSE_CONV":
            inputs[0] = add_tensor(self.model, None, [4], np.array(extents, np.int32))
        elif name.startswith("RESIZE"):
            inputs[1] = add_tensor(self.model, None, [2], np.array(extents[1:3], np.int32))
        return self.add(op, inputs, t, extents), out

    def each(self, p: int, op: Tree, a: int, b: int):
        """Element by element: all operands on the same rows."""
        t = int(op.Outputs[0])
        extents = list(shape(self.model, t))
        inputs = []
        for u in map(int, op.Inputs):
            of = shape(self.model, u)
            if len(of) < 3 or of[-3] != extents[1] or extents[1] == 1:
                inputs.append(u)
            elif constant(self.model, u):
                part = array(self.model, u)[..., a:b, :, :]
                inputs.append(add_tensor(self.model, main(self.model).Tensors[u], part.shape, part))
            elif len(of) != 4:
                raise Stuck("rows of a tensor of three axes")
            else:
                inputs.append(self.cropped(self.want(u, a, b), a, b)[0])
        extents[1] = b - a
        return self.add(op, inputs, t, extents), list(range(a, b))

    def add(self, op: Tree, inputs, like: int, extents) -> int:
        y = add_tensor(self.model, main(self.model).Tensors[like], extents)
        self.made.append(copied(op, Inputs=np.array(inputs, np.int32), Outputs=np.array([y], np.int32)))
        return y

    def cropped(self, band, a: int, b: int) -> tuple[int, list[int | None]]:
        """Only rows a to b."""
        tensor, rows = band
        if rows == list(range(a, b)):
            return band
        at = rows.index(a)
        if rows[at : at + b - a] != list(range(a, b)):
            raise Stuck("rows missing")
        return self.sliced(tensor, at, at + b - a, 1), list(range(a, b))

    def sliced(self, t: int, a: int, b: int, axis: int) -> int:
        extents = list(shape(self.model, t))
        begin, end = [0] * len(extents), list(extents)
        begin[axis], end[axis], extents[axis] = a, b, b - a
        y = add_tensor(self.model, main(self.model).Tensors[t], extents)
        numbers = [add_tensor(self.model, None, [len(v)], np.array(v, np.int32)) for v in (begin, end, [1] * len(extents))]
        self.made.append(add_operator(self.model, "STRIDED_SLICE", [t, *numbers], [y], new("StridedSliceOptions", BeginMask=0, EndMask=0, EllipsisMask=0, NewAxisMask=0, ShrinkAxisMask=0)))
        return y

    def join(self, pieces, t: int, axis: int) -> None:
        """One tensor of many, in parts of parts."""
        tensors = list(pieces)
        most = self.rng.choice((10, 10, 3, 2))
        while len(tensors) > 1:
            groups = [tensors[k : k + most] for k in range(0, len(tensors), most)]
            tensors = []
            for group in groups:
                if len(group) == 1 and len(groups) > 1:
                    tensors += group
                    continue
                extents = list(shape(self.model, t))
                extents[axis] = sum(shape(self.model, u)[axis] for u in group)
                y = t if len(groups) == 1 else add_tensor(self.model, main(self.model).Tensors[t], extents)
                self.made.append(add_operator(self.model, "CONCATENATION", group, [y], new("ConcatenationOptions", Axis=axis, FusedActivationFunction=0)))
                tensors.append(y)

    def channels(self, first: int, last: int, bands: int) -> None:
        """A chain of operators by output channels of the first."""
        chain = self.given[first : last + 1]
        for op, follower in pairwise(chain):
            if [t for t in map(int, follower.Inputs) if not constant(self.model, t)] != [int(op.Outputs[0])]:
                raise Stuck("no chain")
        inner = {int(op.Outputs[0]) for op in chain[:-1]}
        rest = [op for p, op in enumerate(self.given) if not first <= p <= last]
        if inner & ({int(t) for op in rest for t in op.Inputs} | set(map(int, main(self.model).Outputs))):
            raise Stuck("read elsewhere")
        t = int(chain[-1].Outputs[0])
        total = shape(self.model, int(chain[0].Outputs[0]))[-1]
        unit = chain[0].BuiltinOptions.DepthMultiplier if code(self.model, chain[0]) == "DEPTHWISE_CONV_2D" else 1
        if total // unit < bands:
            raise Stuck("few channels")
        cuts = sorted({0, total // unit, *self.rng.sample(range(1, total // unit), bands - 1)})
        pieces = []
        for a, b in ((unit * u, unit * v) for u, v in pairwise(cuts)):
            tensor = None
            for op in chain:
                tensor, a, b = self.part(op, tensor, a, b)
            pieces.append(tensor)
        self.join(pieces, t, len(shape(self.model, t)) - 1)
        self.settle(first, rest)

    def part(self, op: Tree, tensor: int | None, a: int, b: int):
        """Channels a to b of the first's result, or those of a part."""
        name, y = code(self.model, op), int(op.Outputs[0])
        inputs, extents = list(map(int, op.Inputs)), list(shape(self.model, y))
        whole = shape(self.model, inputs[0])[-1]
        if name in ("CONV_2D", "FULLY_CONNECTED", "DEPTHWISE_CONV_2D"):
            axis = 3 if name == "DEPTHWISE_CONV_2D" else 0
            if name != "DEPTHWISE_CONV_2D":
                if tensor is not None or (name == "CONV_2D" and shape(self.model, inputs[1])[3] != whole):
                    raise Stuck("sums over channels")
                tensor = inputs[0]
            else:
                times = op.BuiltinOptions.DepthMultiplier
                if tensor is None:
                    tensor = self.sliced(inputs[0], a // times, b // times, 3)
                else:
                    a, b = a * times, b * times
            inputs[0] = tensor
            inputs[1] = self.cut(inputs[1], axis, a, b)
            if len(inputs) > 2 and inputs[2] >= 0:
                inputs[2] = self.cut(inputs[2], 0, a, b)
        elif name in EACH | {"AVERAGE_POOL_2D", "MAX_POOL_2D", "PAD"}:
            if tensor is None:
                tensor = self.sliced(inputs[0], a, b, len(extents) - 1)
            inputs[0] = tensor
            if name in EACH:
                for k, u in enumerate(inputs):
                    if k and constant(self.model, u) and shape(self.model, u)[-1:] == (whole,):
                        inputs[k] = self.cut(u, -1, a, b)
                    elif k and not constant(self.model, u):
                        raise Stuck("two operands")
            if name == "PAD" and array(self.model, inputs[1]).reshape(-1, 2)[-1].any():
                raise Stuck("pads channels")
        else:
            raise Stuck(name)
        extents[-1] = b - a
        return self.add(op, inputs, y, extents), a, b

    def cut(self, t: int, axis: int, a: int, b: int) -> int:
        """Channels of a constant, with their scales."""
        data, tensor = array(self.model, t), main(self.model).Tensors[t]
        part = np.take(data, range(a, b), axis)
        q = tensor.Quantization
        if q is not None and q.Scale is not None and len(q.Scale) > 1:
            zero = q.ZeroPoint[a:b] if len(q.ZeroPoint) > 1 else q.ZeroPoint
            low, high = (v[a:b] if v is not None and len(v) > 1 else v for v in (q.Min, q.Max))
            tensor = copied(tensor, Quantization=copied(q, Scale=q.Scale[a:b], ZeroPoint=zero, Min=low, Max=high))
        return add_tensor(self.model, tensor, part.shape, part)


def compact(model: Tree) -> Tree:
    """Without tensors that nothing uses, and without a plan."""
    g = main(model)
    used = {int(t) for side in (g.Inputs, g.Outputs, *(v for op in g.Operators for v in (op.Inputs, op.Outputs))) for t in side if t >= 0}
    used |= {int(t) for op in g.Operators if op.Intermediates is not None for t in op.Intermediates if t >= 0}
    index = {t: k for k, t in enumerate(sorted(used))} | {-1: -1}
    g.Tensors = [g.Tensors[t] for t in sorted(used)]
    for tree in (g, *g.Operators):
        for name in ("Inputs", "Outputs", "Intermediates"):
            if getattr(tree, name, None) is not None:
                setattr(tree, name, np.array([index[int(t)] for t in getattr(tree, name)], np.int32))
    for signature in model.SignatureDefs or []:
        if not signature.SubgraphIndex:
            for row in (*(signature.Inputs or []), *(signature.Outputs or [])):
                row.TensorIndex = index[row.TensorIndex]
    model.Metadata = [m for m in model.Metadata or [] if m.Name != b"OfflineMemoryAllocation"] or None
    return model


def split(data: bytes, regions, rng: random.Random, *, lie: float = 0.0) -> tuple[bytes, int]:
    """A file with regions (first, last operator, bands, axis) of the given one in bands, and how many spoiled rows were taken for right."""
    model, lies = load(data), 0
    for first, last, bands, axis in sorted(regions, reverse=True):
        splitter = Splitter(model, rng, lie)
        getattr(splitter, axis)(first, last, bands)
        lies += splitter.lies
    return save(compact(model)), lies


class Net:
    """A random model of operators on rows, of floats or of 8-bit integers."""

    def __init__(self, rng: random.Random, kind: str, batch: int = 1) -> None:
        self.rng, self.float, self.batch = rng, kind == "float", batch
        self.numbers = np.random.default_rng(rng.randrange(1 << 30))
        self.model = new(
            "Model", Version=3, OperatorCodes=[], Buffers=[new("Buffer")], Description="made by a test",
            Subgraphs=[new("SubGraph", Tensors=[], Operators=[], Name="main")],
        )  # fmt: skip
        self.model.Subgraphs[0].Inputs = self.model.Subgraphs[0].Outputs = np.array([], np.int32)

    def tensor(self, extents, like: int | None = None, data=None, scales=None, axis: int = 0, zero: int | None = None) -> int:
        rng = self.rng
        kind = 0 if self.float else 9
        if data is not None:
            kind = {"float32": 0, "int32": 2, "int8": 9}[str(data.dtype)]
        q = None
        if like is not None:
            q = main(self.model).Tensors[like].Quantization
        elif (not self.float and kind != 2) or scales is not None:
            scales = np.array([rng.uniform(0.02, 0.3)], np.float32) if scales is None else scales
            zeros = np.zeros(len(scales), np.int64) + (zero if zero is not None else rng.randint(-20, 20) if len(scales) == 1 else 0)
            q = new("QuantizationParameters", Scale=scales, ZeroPoint=zeros, QuantizedDimension=axis, DetailsType=0)
        return add_tensor(self.model, new("Tensor", Type=kind, Quantization=q), extents, data)

    def weights(self, extents, axis: int, x: int) -> tuple[int, int]:
        """Weights and bias."""
        n = extents[axis]
        if self.float:
            return self.tensor(extents, data=self.numbers.standard_normal(extents).astype(np.float32)), self.tensor([n], data=self.numbers.standard_normal(n).astype(np.float32))
        scales = self.numbers.uniform(0.002, 0.02, n).astype(np.float32)
        w = self.tensor(extents, data=self.numbers.integers(-127, 128, extents).astype(np.int8), scales=scales, axis=axis)
        scale = main(self.model).Tensors[x].Quantization.Scale[0]
        return w, self.tensor([n], data=self.numbers.integers(-2000, 2001, n).astype(np.int32), scales=scales * scale)

    def op(self, name: str, inputs, outputs, options: str = "", version: int = 1, **fields) -> None:
        tree = new(options, **fields) if options else None
        main(self.model).Operators.append(add_operator(self.model, name, inputs, outputs, tree, version))

    def grown(self, x: int) -> int:
        """One more operator on a tensor, of chance."""
        rng, model = self.rng, self.model
        n, h, w, c = shape(model, x)
        same, k, kw, s = rng.random() < 0.7, rng.randint(1, 4), rng.randint(1, 3), rng.choice((1, 1, 2, 3))
        d = rng.choice((1, 1, 1, 2)) if s == 1 else 1
        act = rng.choice((0, 1, 3))
        reach, wide = (k - 1) * d + 1, (kw - 1) * d + 1
        oh, ow = (-(-h // s), -(-w // s)) if same else ((h - reach) // s + 1, (w - wide) // s + 1)
        fields = {"Padding": 0 if same else 1, "StrideH": s, "StrideW": s, "FusedActivationFunction": act}
        name = rng.choice(
            ("conv", "conv", "conv", "dw", "dw", "dw", "AVERAGE_POOL_2D", "MAX_POOL_2D", "PAD", "MIRROR_PAD", "TRANSPOSE_CONV", "nearest", "bilinear",
             "DEPTH_TO_SPACE", "SPACE_TO_DEPTH", "ADD", "MUL", "rows", "gate", "PRELU", "branch", "branch", "concat", "SOFTMAX", "FULLY_CONNECTED")
        )  # fmt: skip
        if name in ("conv", "dw", "AVERAGE_POOL_2D", "MAX_POOL_2D") and min(oh, ow) < 1:
            return x
        if name == "conv":
            o = rng.randint(1, 6)
            y = self.tensor([n, oh, ow, o])
            self.op("CONV_2D", [x, *self.weights((o, k, kw, c), 0, x)], [y], "Conv2DOptions", 3, DilationHFactor=d, DilationWFactor=d, **fields)
        elif name == "dw":
            times = rng.choice((1, 1, 2))
            y = self.tensor([n, oh, ow, c * times])
            self.op("DEPTHWISE_CONV_2D", [x, *self.weights((1, k, kw, c * times), 3, x)], [y], "DepthwiseConv2DOptions", 3, DilationHFactor=d, DilationWFactor=d, DepthMultiplier=times, **fields)
        elif name in ("AVERAGE_POOL_2D", "MAX_POOL_2D"):
            oh, ow = (oh, ow) if same else ((h - k) // s + 1, (w - kw) // s + 1)
            if min(oh, ow) < 1:
                return x
            y = self.tensor([n, oh, ow, c], like=x)
            self.op(name, [x], [y], "Pool2DOptions", 2, FilterHeight=k, FilterWidth=kw, **fields)
        elif name in ("PAD", "MIRROR_PAD"):
            pads = [[0, 0], [rng.randint(0, 2), rng.randint(0, 2)], [rng.randint(0, 1)] * 2, [0, 0]]
            mode = rng.randint(0, 1)
            if name == "MIRROR_PAD" and (h < 3 or w < 2):
                return x
            y = self.tensor([n, h + sum(pads[1]), w + sum(pads[2]), c], like=x)
            self.op(name, [x, add_tensor(model, None, [4, 2], np.array(pads, np.int32))], [y], "PadOptions" if name == "PAD" else "MirrorPadOptions", **({} if name == "PAD" else {"Mode": mode}))
        elif name == "TRANSPOSE_CONV":
            o, s = rng.randint(1, 3), rng.choice((1, 2, 2, 3))
            y = self.tensor([n, *((h * s, w * s) if same else ((h - 1) * s + k, (w - 1) * s + kw)), o])
            weights, bias = self.weights((o, k, kw, c), 0, x)
            inputs = [add_tensor(model, None, [4], np.array(shape(model, y), np.int32)), weights, x, *([bias] if rng.random() < 0.5 else [])]
            self.op(name, inputs, [y], "TransposeConvOptions", 3, Padding=0 if same else 1, StrideH=s, StrideW=s)
        elif name in ("nearest", "bilinear"):
            f = rng.choice((2, 2, 4, 3, 5))
            down = rng.random() < 0.3 and h % f == 0 and w % f == 0
            size = (h // f, w // f) if down else (h * f, w * f)
            if max(size) > 48:
                return x
            y = self.tensor([n, *size, c], like=x)
            way = ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions") if name == "nearest" else ("RESIZE_BILINEAR", "ResizeBilinearOptions")
            half, corners = rng.choice(((0, 0), (1, 0), (0, 1)))
            self.op(way[0], [x, add_tensor(model, None, [2], np.array(size, np.int32))], [y], way[1], 3, AlignCorners=corners, HalfPixelCenters=half)
        elif name == "DEPTH_TO_SPACE":
            if c % 4:
                return x
            y = self.tensor([n, 2 * h, 2 * w, c // 4], like=x)
            self.op(name, [x], [y], "DepthToSpaceOptions", BlockSize=2)
        elif name == "SPACE_TO_DEPTH":
            if h % 2 or w % 2 or c > 8:
                return x
            y = self.tensor([n, h // 2, w // 2, 4 * c], like=x)
            self.op(name, [x], [y], "SpaceToDepthOptions", BlockSize=2)
        elif name in ("ADD", "MUL", "rows", "gate", "PRELU"):
            if name == "gate":
                other = self.tensor([n, 1, 1, c])
                self.op("MUL", [x, other], [y := self.tensor([n, h, w, c])], "MulOptions", 2, FusedActivationFunction=0)
                self.gates.append(other)
                return y
            full = name == "rows" or (name == "PRELU" and rng.random() < 0.7)
            extents = rng.choice(([h, w, c], [1, h, w, c])) if full else [c] if rng.random() < 0.5 else [1, 1, 1, c]
            extents = extents if name != "PRELU" or full else [1, 1, c]
            data = self.numbers.standard_normal(extents).astype(np.float32) if self.float else self.numbers.integers(-100, 101, extents).astype(np.int8)
            inputs = [x, self.tensor(extents, data=data)]
            y = self.tensor([n, h, w, c])
            if name == "PRELU":
                self.op(name, inputs, [y])
            else:
                which = name if name != "rows" else rng.choice(("ADD", "MUL"))
                self.op(which, inputs, [y], f"{which.title()}Options", 2, FusedActivationFunction=act)
        elif name in ("branch", "concat"):
            # Two ways from one tensor that meet again.
            a, b = x, x
            for _ in range(2):
                a = self.conv_like(a)
            b = self.conv_like(b) if rng.random() < 0.6 else b
            if shape(model, a)[:3] != shape(model, b)[:3]:
                return a
            if name == "concat":
                y = self.tensor([n, *shape(model, a)[1:3], shape(model, a)[3] + shape(model, b)[3]], like=a)
                if quantized(model, a) != quantized(model, b):
                    return a
                self.op("CONCATENATION", [a, b], [y], "ConcatenationOptions", 2, Axis=rng.choice((3, -1)), FusedActivationFunction=0)
            else:
                if shape(model, a) != shape(model, b):
                    return a
                y = self.tensor(shape(model, a))
                self.op("ADD", rng.sample([a, b], 2), [y], "AddOptions", 2, FusedActivationFunction=act)
        elif name == "SOFTMAX":
            y = self.tensor([n, h, w, c], scales=None if self.float else np.array([1 / 256], np.float32), zero=-128)
            self.op(name, [x], [y], "SoftmaxOptions", 2, Beta=1.0)
        else:
            o = rng.randint(1, 5)
            y = self.tensor([n, h, w, o])
            self.op(name, [x, *self.weights((o, c), 0, x)], [y], "FullyConnectedOptions", 4 if self.float else 5, FusedActivationFunction=act, KeepNumDims=True)
        return y

    def conv_like(self, x: int) -> int:
        """A convolution that keeps rows, columns and channels."""
        n, h, w, c = shape(self.model, x)
        k = self.rng.choice((1, 3))
        fields = {"Padding": 0, "StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1, "FusedActivationFunction": self.rng.choice((0, 1))}
        y = self.tensor([n, h, w, c], like=x)
        self.op("CONV_2D", [x, *self.weights((c, k, k, c), 0, x)], [y], "Conv2DOptions", 3, **fields)
        return y

    def made(self, size: int) -> bytes:
        self.gates: list[int] = []
        rng = self.rng
        x = y = self.tensor([self.batch, rng.randint(6, 24), rng.randint(2, 5), rng.randint(1, 4)])
        for _ in range(60):
            if len(main(self.model).Operators) >= size:
                break
            y = self.grown(y)
        main(self.model).Inputs = np.array([x, *self.gates], np.int32)
        main(self.model).Outputs = np.array([y], np.int32)
        return save(compact(self.model))
