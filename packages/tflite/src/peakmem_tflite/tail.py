"""The tail of TFLite Micro's arena: what it keeps beside the head, from its own structures.

The tail grows downwards from the arena's end, one persistent allocation after the other, each aligned down. Here the same
allocations are listed in the same order and added up, with the structures' members and the machine's size of a pointer. For
the host that measures (64-bit pointers, the recording allocator of the Python package) the sum can be compared with what the
interpreter records; with 32-bit pointers and the plain allocator it is an estimate for a device.

Sources: ``micro_allocator.cc``, ``micro_interpreter.cc``, ``micro_resource_variable.cc``, ``kernels/*.cc`` (the structures that
``Init`` and ``Prepare`` keep), ``signal/micro/kernels/*.cc`` and ``builtin_op_data.h`` of
https://github.com/tensorflow/tflite-micro at 90b983c; ``kernels/esp_nn`` of https://github.com/espressif/esp-tflite-micro.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from peakmem_tflite.enlarge import options_of
from peakmem_tflite.graph import Graph, Operator, Subgraph, Tensor
from peakmem_tflite.scratch import ALIGNMENT, rounded_to
from peakmem_tflite.targets import Target, requests

_BYTES = {"i": 4, "q": 8, "h": 2, "b": 1}
"""Members of a structure: int, enumeration or float; double or 64-bit integer; 16-bit integer; bool, byte or 8-bit enumeration.
``p`` is a pointer or ``size_t``."""

_PARAMETERS = {
    "CONV_2D": "7i", "DEPTHWISE_CONV_2D": "7i", "TRANSPOSE_CONV": "5i", "FULLY_CONNECTED": "2i2b1i", "SOFTMAX": "1i",
    "AVERAGE_POOL_2D": "10i", "MAX_POOL_2D": "10i", "L2_POOL_2D": "10i", "CONCATENATION": "2i", "ADD": "1i1b", "SUB": "1i1b",
    "MUL": "1i", "DIV": "1i", "BATCH_MATMUL": "3b", "STRIDED_SLICE": "5i1b", "RESHAPE": "9i", "SQUEEZE": "9i", "CAST": "2i",
    "RESIZE_BILINEAR": "2b", "RESIZE_NEAREST_NEIGHBOR": "2b", "MEAN": "1b", "SUM": "1b", "REDUCE_MAX": "1b", "REDUCE_MIN": "1b",
    "REDUCE_ALL": "1b", "VAR_HANDLE": "2p", "CALL_ONCE": "1i", "IF": "2i", "WHILE": "2i", "SVDF": "2i1b", "SPLIT": "1i",
    "SPLIT_V": "1i", "PACK": "2i", "UNPACK": "2i", "GATHER": "2i", "LEAKY_RELU": "1i", "L2_NORMALIZATION": "1i", "ARG_MAX": "1i",
    "ARG_MIN": "1i", "SPACE_TO_DEPTH": "1i", "DEPTH_TO_SPACE": "1i", "SHAPE": "1i", "CUMSUM": "2b", "MIRROR_PAD": "1i",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "3i3b",
}  # fmt: skip
"""Parameters that are parsed from the file, by operator."""

NEWER = {"FULLY_CONNECTED": "4i", "SVDF": "1i"}
"""What the interpreter of the Python package, which is newer than the sources, was measured to keep beside them."""

_CONV, _POOL = "9i2p3i", "8i"
_DATA = {
    "CONV_2D": _CONV, "DEPTHWISE_CONV_2D": _CONV, "TRANSPOSE_CONV": "1b8h11i2p", "FULLY_CONNECTED": "9i2p1b",
    "AVERAGE_POOL_2D": _POOL, "MAX_POOL_2D": _POOL, "SOFTMAX": "1q7i5p", "ADD": "1b14i", "SUB": "1b12i", "MUL": "9i", "DIV": "7i",
    "CONCATENATION": "1i2p3i", "RELU": "1b6i", "RELU6": "2i", "LOGISTIC": "4i", "TANH": "4i", "HARD_SWISH": "3h1i1h1i",
    "LEAKY_RELU": "6i", "PRELU": "7i", "ELU": "256b", "QUANTIZE": "1i1q3i", "DEQUANTIZE": "1q4i", "PAD": "1b5i1b5i1b1i",
    "PADV2": "1b5i1b5i1b1i", "MEAN": "11i", "SUM": "11i", "REDUCE_MAX": "11i", "REDUCE_MIN": "11i", "REDUCE_ALL": "11i",
    "STRIDED_SLICE": "1b5i1b5i1b5i5h1b", "SVDF": "9i", "VAR_HANDLE": "1i", "CALL_ONCE": "1i1b", "IF": "2i",
    "WHILE": "2i", "LESS": "7i1b", "LESS_EQUAL": "7i1b", "GREATER": "7i1b", "GREATER_EQUAL": "7i1b", "EQUAL": "7i1b",
    "NOT_EQUAL": "7i1b", "L2_NORMALIZATION": "1i", "SELECT_V2": "1b", "SQUARED_DIFFERENCE": "1b1q12i2i2q2h5i", "MIRROR_PAD": "5i",
    "SPACE_TO_BATCH_ND": "1i", "ABS": "4i1b2i", "RSQRT": "4i1b2i", "BATCH_MATMUL": "3p3b", "CIRCULAR_BUFFER": "2i",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "172i", "TFLite_Detection_PostProcess": "6i1b21i",
    "SignalWindow": "2i", "SignalRfft": "5i1p1i1p", "SignalEnergy": "2i", "SignalFilterBank": "1i5p2i1p", "SignalPCAN": "1i",
    "SignalFilterBankSpectralSubtraction": "8i1b2p", "SignalFilterBankLog": "2i",
}  # fmt: skip
"""What ``Init`` of a kernel keeps, by operator; the others keep nothing."""

_DECOMPRESSING = {
    "CONV_2D": "2i", "DEPTHWISE_CONV_2D": "2i", "TRANSPOSE_CONV": "2i", "FULLY_CONNECTED": "2i", "CONCATENATION": "10i",
    "ASSIGN_VARIABLE": "1i",
}  # fmt: skip
"""What it keeps with compression, beside the other data."""

_UNKNOWN = frozenset({
    "DECODE", "SignalDelay", "SignalFramer", "SignalIrfft", "SignalOverlapAdd", "SignalStacker", "EMBEDDING_LOOKUP",
})  # fmt: skip
_KNOWN_CUSTOM = frozenset({*_DATA, "SignalFftAutoScale", "SignalFilterBankSquareRoot"})
_COPIED_SHAPE = frozenset({"BATCH_MATMUL", "DEPTH_TO_SPACE", "SPACE_TO_DEPTH", "GATHER", "GATHER_ND", "L2_POOL_2D"})
_CHANNELS = {"CONV_2D": 0, "TRANSPOSE_CONV": 0, "DEPTHWISE_CONV_2D": 3}
_TABLE = 513
"""Entries of each of the two tables of 16 bits that SOFTMAX of 16-bit tensors keeps."""

Piece = tuple[int, int]
"""Bytes and alignment of one allocation."""


@dataclass(frozen=True)
class Machine:
    """Where the interpreter runs.

    Attributes
    ----------
    pointer : int
        Bytes of a pointer.
    records : bool
        Its allocator records what it allocates.
    decompresses : bool
        It is built with compression of constants, whose kernels note more.
    newer : bool
        It keeps what `NEWER` lists.
    """

    pointer: int
    records: bool = False
    decompresses: bool = False
    newer: bool = False

    def structure(self, members: str) -> Piece:
        """Size and alignment of a structure: counts and kinds of its members in order, as in ``"9i2p1b"``."""
        at, unit, count = 0, 1, ""
        for c in members:
            if c.isdigit():
                count += c
                continue
            size = self.pointer if c == "p" else _BYTES[c]
            at, unit, count = rounded_to(at, size) + size * int(count), max(unit, size), ""
        return rounded_to(at, unit), unit

    def kept(self, members: str) -> Piece:
        """A structure that a kernel keeps, aligned as every buffer of kernels is."""
        return self.structure(members)[0], ALIGNMENT


HOST = Machine(8, records=True, decompresses=True, newer=True)
"""The interpreter of the Python package."""

DEVICE = Machine(4)
"""A device with 32-bit pointers."""


@dataclass(frozen=True)
class Tail:
    """Bytes of a tail.

    Attributes
    ----------
    size : int
        All of it, in bytes.
    planning : int
        What there is of it while the head is planned; inputs and outputs are described later.
    unknown : tuple of str
        Operators whose kernels keep data that no formula knows; they are left out.
    """

    size: int
    planning: int
    unknown: tuple[str, ...]


def tail(
    graph: Graph,
    machine: Machine = DEVICE,
    target: Target = "reference",
    plan: tuple[int, ...] | None = None,
    *,
    apart: bool = False,
    behind: int = 0,
    lists_variables: bool = True,
) -> Tail:
    """The tail of a file with the kernels of ``target``; variables that ``plan`` places in the head are no part of it.

    Parameters
    ----------
    apart : bool
        Head and tail lie in two memories, each with an allocator of its own.
    behind : int
        Bytes of the tail of interpreters that were made before on the same allocator; 0 if this is the first. They are part of
        the result.
    lists_variables : bool
        The list of resource variables lies there too; ESPHome has an arena of its own for it. Their values always do.

    Notes
    -----
    O(tensors and operators).
    """
    used = behind or _down(0, _allocator(machine, apart))
    if lists_variables:
        used = _down(used, _resources(graph, machine))
    used = _down(used, (*_interpreter(graph, machine), *_kernels(graph, machine, target), *_handles(graph, machine, target)))
    planning = _down(used, _variables(graph, plan))
    unknown = sorted({op.op for s in graph.subgraphs for op in s.operators if op.op in _UNKNOWN or (op.custom and op.op not in _KNOWN_CUSTOM)})
    return Tail(_down(planning, _ends(graph, machine)), planning, tuple(unknown))


def _down(used: int, pieces: tuple[Piece, ...] | Iterator[Piece]) -> int:
    """Bytes used below the arena's end, itself aligned, after further allocations."""
    for size, unit in pieces:
        used = rounded_to(used + size, unit)
    return used


def _allocator(machine: Machine, apart: bool) -> tuple[Piece, ...]:
    """The arena's allocator (for two memories: both), the greedy planner, the allocator for models."""
    arenas, models = ["4p", "6p1i1b"] if apart else ["8p1i"], "5p1b3p"
    if machine.records:
        arenas, models = [*arenas[:-1], arenas[-1] + "4p"], models + "25p"
    return tuple(machine.structure(members) for members in (*arenas, "1p2i4p2i1p1b", models))


def resources(graph: Graph) -> set[tuple[str, str]]:
    """The resource variables of a file: container and name."""
    return {op.resource for s in graph.subgraphs for op in s.operators if op.resource is not None}


def _resources(graph: Graph, machine: Machine) -> Iterator[Piece]:
    count = len(resources(graph))
    if count:
        yield machine.kept("1p2i")
        yield machine.structure("4p1b")[0] * count, ALIGNMENT


def _interpreter(graph: Graph, machine: Machine) -> Iterator[Piece]:
    yield machine.structure("2p")  # parses parameters
    yield machine.structure(f"{(3 if machine.decompresses else 2) * len(graph.subgraphs)}p")
    size, unit = machine.structure("2p1i")
    for s in graph.subgraphs:
        yield size * len(s.tensors), unit
    size, unit = machine.structure("6p1i1p")
    for s in graph.subgraphs:
        yield size * len(s.operators), unit
    for s in graph.subgraphs:
        for op in s.operators:
            if op.op in _PARAMETERS and not op.custom:
                yield machine.structure(_PARAMETERS[op.op] + (NEWER.get(op.op, "") if machine.newer else ""))


def _kernels(graph: Graph, machine: Machine, target: Target) -> Iterator[Piece]:
    """What kernels keep, first when they are made and then when they prepare."""
    for k, s in enumerate(graph.subgraphs):
        for op in s.operators:
            # Kernels of a library note the number of their scratch buffer behind the data of the portable ones.
            note = "" if target == "reference" or not requests(target, k, s, op) else "1i"
            members = _DATA.get(op.op, "") + (_DECOMPRESSING.get(op.op, "") if machine.decompresses else "") + note
            if members:
                yield machine.kept(members)
    assigned: set[tuple[str, str]] = set()
    for k, s in enumerate(graph.subgraphs):
        for i, op in enumerate(s.operators):
            yield from _prepared(graph, machine, k, i, s, op, assigned)


def _prepared(
    graph: Graph, machine: Machine, k: int, i: int, s: Subgraph, op: Operator, assigned: set[tuple[str, str]]
) -> Iterator[Piece]:
    tensors = [s.tensors[t] if t >= 0 else None for t in op.inputs]
    first = tensors[0] if tensors else None
    filters = tensors[1] if len(tensors) > 1 else None
    out = s.tensors[op.outputs[0]] if op.outputs else None
    if op.op in _CHANNELS and filters is not None and len(filters.shape) > _CHANNELS[op.op]:
        yield from _floats(filters.shape[_CHANNELS[op.op]], 2)
    elif op.op == "FULLY_CONNECTED" and filters is not None and first is not None and first.type != "FLOAT32" and filters.scales > 1:
        yield from _floats(filters.scales, 2)
    elif op.op == "SOFTMAX" and first is not None and first.type == "INT16":
        yield from [(2 * _TABLE, ALIGNMENT)] * 2
    elif op.op in ("ADD_N", "CUMSUM") and first is not None and first.type == "INT8":
        yield machine.kept("10i" if op.op == "ADD_N" else "9i")
    elif op.op == "LOG_SOFTMAX" and first is not None and first.type == "INT8":
        yield machine.kept("5i2p")
    elif op.op == "BATCH_MATMUL" and first is not None and filters is not None:
        if first.type in ("INT8", "INT16"):
            yield machine.kept("7i")
        options = options_of(graph, k, i)
        for tensor, transposed in ((first, options and options.scalar(0, "b")), (filters, not (options and options.scalar(1, "b")))):
            if transposed:
                yield machine.kept("2p1i")
                yield 4 + 4 * len(tensor.shape), ALIGNMENT
                yield tensor.size, ALIGNMENT
    elif op.op == "ASSIGN_VARIABLE" and filters is not None:
        handle = s.producer.get(op.inputs[0])
        resource = s.operators[handle].resource if handle is not None else None
        if resource is not None and resource not in assigned:
            assigned.add(resource)
            yield filters.size, ALIGNMENT
    elif op.op == "SignalRfft" and out is not None and out.shape:
        half, element = max(0, out.shape[-1] - 2) // 2, 4 if out.type == "INT16" else 8
        yield machine.structure("3p")[0] + 264 + element * half + element * (half * 3 // 2), ALIGNMENT
    elif op.op == "SignalFilterBank" and out is not None:
        yield 8 * (out.elements + 1), ALIGNMENT
    elif op.op == "SignalFilterBankSpectralSubtraction" and out is not None:
        yield 4 * out.elements, ALIGNMENT
    if op.op in _COPIED_SHAPE and out is not None:
        yield 4 + 4 * len(out.shape), ALIGNMENT


def _floats(count: int, times: int) -> list[Piece]:
    return [(4 * count, ALIGNMENT)] * times


def _handles(graph: Graph, machine: Machine, target: Target) -> Iterator[Piece]:
    count = sum(len(requests(target, k, s, op)) for k, s in enumerate(graph.subgraphs) for op in s.operators)
    if count:
        yield machine.structure(f"{count}p")


def _variables(graph: Graph, plan: tuple[int, ...] | None) -> Iterator[Piece]:
    for base, s in zip(graph.bases, graph.subgraphs):
        for t, tensor in enumerate(s.tensors):
            if tensor.variable and (plan is None or plan[base + t] == -1):
                yield tensor.size, ALIGNMENT


def _ends(graph: Graph, machine: Machine) -> Iterator[Piece]:
    """Descriptions of the main subgraph's inputs and outputs, with their quantization."""
    main = graph.subgraphs[0]
    for side in (main.inputs, main.outputs):
        yield machine.pointer * len(side), ALIGNMENT
        for t in side:
            yield machine.structure("1i1p2i3p2i1b")
            yield from _quantization(machine, main.tensors[t])


def _quantization(machine: Machine, tensor: Tensor) -> Iterator[Piece]:
    if tensor.scales:
        yield machine.structure("2p1i")
        yield 4 + 4 * tensor.scales, 4
