"""What a person wants to see: which operators moved, and what a device's source must say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from peakmem_tflite.board import Arena, Memory, Placing
from peakmem_tflite.graph import Graph, Subgraph


def moved(old: Graph, new: Graph) -> list[dict[str, Any]]:
    """Operators that changed place: subgraph, operator, its output's name, position before and after.

    The fewest that explain the new order: those outside a longest sequence of operators that kept their order.
    Operators are recognised by what they produce; those that produce nothing by what they read.
    """
    result = []
    for k, (a, b) in enumerate(zip(old.subgraphs, new.subgraphs)):
        places: dict[object, list[int]] = {}
        for i, op in enumerate(a.operators):
            places.setdefault((op.op, op.inputs, op.outputs), []).append(i)
        order = []
        for op in b.operators:
            found = places.get((op.op, op.inputs, op.outputs))
            if not found:
                return []  # not a permutation of the same operators
            order.append(found.pop(0))
        kept = set(_longest_increasing(order))
        for at, i in enumerate(order):
            if i not in kept:
                result.append(
                    {"subgraph": k, "operator": a.operators[i].op, "name": _label(a, i), "from": i, "to": at}
                )
    return result


def _label(subgraph: Subgraph, i: int) -> str:
    op = subgraph.operators[i]
    named = op.outputs or tuple(t for t in op.inputs if t >= 0)
    return subgraph.tensors[named[0]].name if named else ""


def _longest_increasing(order: list[int]) -> list[int]:
    """Members of a longest increasing subsequence. O(n log n)."""
    from bisect import bisect_left

    tops: list[int] = []
    index: list[int] = []
    previous = [-1] * len(order)
    for i, value in enumerate(order):
        at = bisect_left(tops, value)
        previous[i] = index[at - 1] if at else -1
        if at == len(tops):
            tops.append(value)
            index.append(i)
        else:
            tops[at], index[at] = value, i
    result = []
    at = index[-1] if index else -1
    while at >= 0:
        result.append(order[at])
        at = previous[at]
    return result[::-1]


_METHODS = {
    "CONV_2D": "Conv2D", "DEPTHWISE_CONV_2D": "DepthwiseConv2D", "AVERAGE_POOL_2D": "AveragePool2D",
    "MAX_POOL_2D": "MaxPool2D", "L2_POOL_2D": "L2Pool2D", "BATCH_MATMUL": "BatchMatMul", "L2_NORMALIZATION": "L2Normalization",
    "RELU6": "Relu6", "SVDF": "Svdf", "PADV2": "PadV2", "SPLIT_V": "SplitV", "ADD_N": "AddN", "SELECT_V2": "SelectV2",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTM", "REVERSE_V2": "ReverseV2", "GATHER_ND": "GatherNd",
    "BATCH_TO_SPACE_ND": "BatchToSpaceNd", "SPACE_TO_BATCH_ND": "SpaceToBatchNd", "CUMSUM": "CumSum",
    "TFLite_Detection_PostProcess": "DetectionPostprocess", "SignalFilterBank": "FilterBank", "SignalEnergy": "Energy",
    "SignalFilterBankLog": "FilterBankLog", "SignalFilterBankSquareRoot": "FilterBankSquareRoot", "SignalPCAN": "PCAN",
    "SignalFilterBankSpectralSubtraction": "FilterBankSpectralSubtraction", "SignalFftAutoScale": "FftAutoScale",
    "SignalRfft": "Rfft", "SignalIrfft": "Irfft", "SignalWindow": "Window", "SignalDelay": "Delay",
    "SignalFramer": "Framer", "SignalOverlapAdd": "OverlapAdd", "SignalStacker": "Stacker",
}  # fmt: skip
"""Methods of MicroMutableOpResolver whose name is not the operator's words capitalised."""


def resolver_method(op: str) -> str:
    """Name of the method of MicroMutableOpResolver that adds an operator."""
    words = _METHODS.get(op) or "".join(word.capitalize() for word in op.split("_"))
    return f"Add{words}"


def _literal(text: str) -> str:
    """A C++ string literal, whatever a file has put into the name of a custom operator."""
    return '"' + "".join(_escape(c) for c in text) + '"'


def _escape(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isprintable() and character.isascii():
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "backslashreplace"))


def identifier(text: str) -> str:
    """A name for C made of any text."""
    name = re.sub(r"\W", "_", text, flags=re.ASCII)
    return name if name[:1].isalpha() else f"model_{name}"


def snippet(graph: Graph, name: str, arena: Arena, placing: Placing | None = None, memories: Sequence[Memory] = ()) -> str:
    """C++ that states the arena and the operators of a file called ``name``.

    The head is the file's own; the tail is an estimate for 32-bit pointers. With a ``placing`` in two memories there are two
    arrays.
    """
    used = sorted({(op.op, op.custom) for s in graph.subgraphs for op in s.operators})
    name = identifier(name)
    known = [op for op, custom in used if not custom or op in _METHODS]
    unknown = [op for op, custom in used if custom and op not in _METHODS]
    whose = "the portable reference kernels" if arena.kernels == "reference" else "the kernels of " + arena.kernels
    planning = arena.planning - arena.head - arena.tail
    lines = [
        f"// {name}: the head of the arena takes {arena.head} bytes with {whose}.",
        "// The tail is estimated for 32-bit pointers; compare kHead + kTail with arena_used_bytes() on the device.",
        f"// ESPHome: tensor_arena_size: {arena.size}",
        f"constexpr size_t kHead = {arena.head};",
        f"constexpr size_t kTail = {arena.tail};  // estimated",
        f"constexpr size_t kMargin = {arena.margin};",
    ]
    if planning > 0:
        lines.append(f"constexpr size_t kPlanning = {planning};  // the planner needs more than the head while it works")
    if placing is None or placing.head == placing.tail:
        lines += [
            f"constexpr size_t kTensorArenaSize = {arena.size};  // kHead + kTail + kMargin{' + kPlanning' if planning > 0 else ''}, rounded up",
            *([f"// in {memories[placing.head].name}"] if placing is not None else []),
            "alignas(16) static uint8_t tensor_arena[kTensorArenaSize];",
        ]
    else:
        lines += [
            f"constexpr size_t kNonPersistentSize = {placing.need[placing.head]};",
            f"constexpr size_t kPersistentSize = {placing.need[placing.tail]};",
            f"alignas(16) static uint8_t non_persistent_arena[kNonPersistentSize];  // in {memories[placing.head].name}",
            f"alignas(16) static uint8_t persistent_arena[kPersistentSize];  // in {memories[placing.tail].name}",
            "tflite::MicroAllocator* allocator = tflite::MicroAllocator::Create(",
            "    persistent_arena, kPersistentSize, non_persistent_arena, kNonPersistentSize);",
            "// tflite::MicroInterpreter interpreter(model, resolver, allocator);",
        ]
    lines += [
        "",
        f"static tflite::MicroMutableOpResolver<{len(used)}> resolver;",
        *(f"resolver.{resolver_method(op)}();" for op in known),
        *(f"resolver.AddCustom({_literal(op)}, /* its registration */);" for op in unknown),
    ]
    return "\n".join(lines) + "\n"
