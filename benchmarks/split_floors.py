"""Below what no split by rows or channels can go, told from each file alone: floors against which to hold what is found.

    python benchmarks/split_floors.py [FOLDER or FILE ...]

A split runs operators in bands of rows or of output channels; an operator that has no such bands (``RULES``, and what is said
there of ranks and effects) runs whole, however the rest is cut. So whatever is split, and in whatever order, at some step there are

- all graph inputs, and something that is made of them;
- for an operator that must run whole: all that it reads and writes, and its scratch;
- for one that can be cut by output channels only: all that it reads, which is whole, and a piece of its result;
- for a tensor that must be whole, as a graph output or because an operator reads it that runs whole: either twice its bytes
  (the join reads all of it and writes all of it), or all that its operator reads to give all of it, with it.

What must be whole is followed further up: an operator's band along an axis needs of each operand its own part, which was cut from the whole
or made in a band along the same axis, or all of it, where it sums over that axis or has one row alone. So each operator takes no less than the
cheapest of its ways, and each way no less than its operands do.

The floor is the largest of these, rounded as TFLite Micro rounds, less what an output on its dying input may save. It is a bound
for splits without joins in place; it says nothing of whether a split reaches it. Beside it stands the live peak of the file with
its order certified, and the bound of that: a model whose floor is at its bound gains nothing from any split; and the floor that
`peakmem split` gives as its reason (`peakmem.transform.split.floor`). That one comes from the rules of the code that splits, this one
from those of the checker. Everything is computed in this run; no runtime is needed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from common import SHARED, markdown
from peakmem.model import InputError
from peakmem.ordering import order_program
from peakmem.transform.split import floor
from peakmem_tflite.effects import pure
from peakmem_tflite.enlarge import operator_tables
from peakmem_tflite.graph import Operator, Subgraph
from peakmem_tflite.model import TfliteModel
from peakmem_tflite.scratch import ALIGNMENT, rounded
from peakmem_tflite.settings import Settings
from peakmem_tflite.splitrules import RULES

ONLY_CHANNELS = "FULLY_CONNECTED"
ALL_CHANNELS = ("SOFTMAX", "L2_NORMALIZATION", "CONCATENATION")
"""Operators with rows, of which there are none where tensors have no four axes."""
WINDOWS = ("CONV_2D", "DEPTHWISE_CONV_2D", "AVERAGE_POOL_2D", "MAX_POOL_2D")
HEADER = ("model", "what sets the floor", "live peak of the order", "its bound", "floor", "that of peakmem split", "floor / bound")


def cut(model: TfliteModel, main: Subgraph, op: Operator) -> str:
    """How an operator can be cut: "rows", "channels" or "" for not at all."""
    if op.op not in RULES or op.custom or len(op.outputs) != 1 or not pure(model.graph, main, op):
        return ""
    ranks = {len(main.tensors[t].shape) for t in (*op.outputs, *op.inputs[:1]) if t >= 0}
    if ranks == {4}:
        return "rows"
    return "" if op.op in ALL_CHANNELS or (op.op not in (ONLY_CHANNELS, "TRANSPOSE_CONV") and 4 in ranks) else "channels"


def floors(model: TfliteModel) -> list[tuple[int, str]]:
    """Every floor, with what sets it."""
    main = model.graph.subgraphs[0]
    size = {t: rounded(tensor.size) for t, tensor in enumerate(main.tensors) if not tensor.constant and not tensor.variable}
    how = [cut(model, main, op) for op in main.operators]

    saved = [max((gain for _, gain in gains), default=0) for gains in model.program.gains]

    def bytes_of(*tensors: int) -> int:
        return sum(size.get(t, 0) for t in set(tensors))

    def name(i: int) -> str:
        return f"operator {i} ({main.operators[i].op})"

    found = [(bytes_of(*main.inputs) + ALIGNMENT, "graph inputs")]
    whole = set(main.outputs)
    for i, (op, kind) in enumerate(zip(main.operators, how)):
        if not kind:
            needed = bytes_of(*op.inputs, *op.outputs) + model.program.statements[i].workspace - saved[i]
            found.append((needed, f"{name(i)} runs whole"))
            whole |= set(op.inputs)
        elif kind == "channels" and op.op == ONLY_CHANNELS:
            found.append((bytes_of(*op.inputs) + ALIGNMENT, f"{name(i)} reads all"))
            whole |= set(op.inputs)
    for t in whole - set(main.inputs):
        i = main.producer.get(t)
        if t not in size or i is None or not how[i]:
            continue
        # Of its operands a window without padding may leave rows out at the end; those are let off.
        op = main.operators[i]
        operands = sum(size.get(u, 0) - left_out(model, i, u) for u in set(op.inputs))
        found.append((size[t] + min(size[t], operands - saved[i]), f"{main.tensors[t].name or t} is whole, of {name(i)}"))
    return found


def followed(model: TfliteModel) -> list[tuple[int, str]]:
    """What each operator takes at the least by its cheapest way, and each output, which must be whole; with what they are."""
    main = model.graph.subgraphs[0]
    saved = [max((gain for _, gain in gains), default=0) for gains in model.program.gains]
    size = {t: rounded(tensor.size) for t, tensor in enumerate(main.tensors) if not tensor.constant and not tensor.variable}
    whole: dict[int, int] = dict.fromkeys(main.inputs, 0)  # tensor -> what it takes that all of it is there at once
    part: dict[tuple[int, str], int] = {}  # tensor, axis -> what it takes that a band of it is made
    found = []

    def of(op: Operator) -> list[int]:
        return [t for t in dict.fromkeys(op.inputs) if t in size]

    def band(i: int, axis: str) -> int:
        op = main.operators[i]
        y = main.tensors[op.outputs[0]]
        sums = axis == "channels" and op.op in ("CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV")
        single = axis == "rows" and y.shape[1] == 1  # then there is one band, which needs all that the operator leaves not out
        least = 0
        for t in of(op):
            if sums or (single and not left_out(model, i, t)):
                least = max(least, whole.get(t, 0), size[t] + (0 if single else ALIGNMENT))
            else:
                least = max(least, min(whole.get(t, 0), part.get((t, axis), ENDLESS)))
        return least

    for i, op in enumerate(main.operators):
        kind = cut(model, main, op)
        inside = [band(i, axis) for axis in axes(op, kind)]
        for axis, least in zip(axes(op, kind), inside):
            part[op.outputs[0], axis] = least
        read = sum(size[t] - (left_out(model, i, t) if kind else 0) for t in of(op))
        made = sum(size.get(t, 0) for t in op.outputs)
        # With windows that leave rows out, a band of all results needs no operand whole.
        operands = [whole.get(t, 0) for t in of(op) if not kind or not left_out(model, i, t)]
        at_once = max([read + made - saved[i] + (0 if kind else model.program.statements[i].workspace), *operands])
        for t in op.outputs:
            whole[t] = min(at_once, max(2 * size.get(t, 0), min(inside))) if inside else at_once
        found.append((min([at_once, *inside]), f"operator {i} ({op.op}), whichever way it runs"))
    return [*found, *((whole[t], f"{main.tensors[t].name or t} is whole") for t in main.outputs)]


ENDLESS = 1 << 62


def axes(op: Operator, kind: str) -> tuple[str, ...]:
    """Along which axes an operator that can be cut can be."""
    if not kind or op.op in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR", "DEPTH_TO_SPACE", "SPACE_TO_DEPTH", *ALL_CHANNELS):
        return (kind,) if kind else ()
    return ("channels",) if kind == "channels" else ("channels",) if op.op == ONLY_CHANNELS else ("rows", "channels")


def left_out(model: TfliteModel, i: int, t: int) -> int:
    """Bytes of an operand's last rows that the window of operator ``i`` never covers."""
    main = model.graph.subgraphs[0]
    op = main.operators[i]
    tensor = main.tensors[t] if t >= 0 else None
    options = operator_tables(model.graph)[i].sub(4, "options")
    if tensor is None or tensor.constant or len(tensor.shape) != 4 or op.op not in WINDOWS or options is None or t != op.inputs[0]:
        return 0
    if op.op.endswith("POOL_2D"):
        stride, reach = options.scalar(2, "i"), options.scalar(4, "i")
    elif op.window is not None:
        stride, reach = op.window.stride[1], (main.tensors[op.inputs[1]].shape[1] - 1) * op.window.dilation[1] + 1
    else:
        return tensor.size  # nothing is known
    rows, of = main.tensors[op.outputs[0]].shape[1], tensor.shape[1]
    return max(0, of - ((rows - 1) * stride + reach)) * (tensor.size // of)


def row(path: Path, limit: float) -> list[str]:
    model = TfliteModel.from_bytes(path.read_bytes(), path=path, settings=Settings(named=True))
    ordering = order_program(model.program, time_limit=limit)
    least, what = max([*floors(model), *followed(model)])
    own = floor(model.splittable()).size
    share = f"{100 * max(least, own) / ordering.lower_bound:.0f} %"
    return [path.stem, what, f"{ordering.peak:,}", f"{ordering.lower_bound:,}", f"{least:,}", f"{own:,}", share]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, default=[SHARED / "tflite"])
    parser.add_argument("--time-limit", type=float, default=20.0, metavar="SECONDS", help="for the order of each model (%(default)s)")
    args = parser.parse_args()
    files = [f for path in args.paths for f in (sorted(path.glob("*.tflite")) if path.is_dir() else [path])]
    if not files:
        sys.exit(f"no .tflite files in {', '.join(map(str, args.paths))}")
    rows = []
    for file in files:
        try:
            rows.append(row(file, args.time_limit))
        except (InputError, OSError) as error:
            sys.exit(str(error))
    print(markdown(HEADER, rows, 2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
