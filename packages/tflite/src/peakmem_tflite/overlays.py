"""Outputs on top of dying inputs: which kernels of TFLite Micro permit it, and where a file's plan may use it.

A kernel permits it when it reads each element of the input before it writes the element of the output in that place, and never reads it
again: then an output at the *same first byte*, of as many elements in the same order, none wider than the input's, spoils nothing
that is still to be read. `PERMITTED` lists operators and element types for which outputs on top of inputs were the same, bit for bit, as
apart, on TFLite Micro's portable kernels (``tests/test_overlays.py`` runs every one of them). What is not listed was not run,
or differs: QUANTIZE from 8 to 16 bits, DEQUANTIZE and every CAST to wider elements do.

Libraries of kernels for devices replace some of them (`REPLACED`, by the sources of https://github.com/espressif/esp-tflite-micro,
https://github.com/espressif/esp-nn and TFLite Micro's ``kernels/cmsis_nn``). They too go through the elements in order, but nobody compared
their bits, and a last block computed twice would be enough to spoil them. So these are overlaid on request only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from peakmem_tflite.arena import planned
from peakmem_tflite.graph import Graph, Operator, Subgraph
from peakmem_tflite.targets import Target

Pair = tuple[str, str]
"""Element types of the input and of the output."""


@dataclass(frozen=True)
class Rule:
    """What one operator permits.

    Attributes
    ----------
    types : frozenset of Pair
    inputs : tuple of int or None
        Positions of the inputs that the output may lie on; None for all.
    """

    types: frozenset[Pair]
    inputs: tuple[int, ...] | None = (0,)


def _same(*types: str) -> frozenset[Pair]:
    return frozenset((t, t) for t in types)


def _to_bool(*types: str) -> frozenset[Pair]:
    return frozenset((t, "BOOL") for t in types)


_COPIES = Rule(_same("FLOAT32", "INT8", "INT16", "INT32", "INT64", "BOOL"))
_FLOAT = Rule(_same("FLOAT32"))
_FLOAT_8 = Rule(_same("FLOAT32", "INT8"))
_FLOAT_8_16 = Rule(_same("FLOAT32", "INT8", "INT16"))
_BOTH = (0, 1)

PERMITTED: Mapping[str, Rule] = {
    "RESHAPE": _COPIES, "SQUEEZE": _COPIES, "EXPAND_DIMS": _FLOAT_8_16,
    "ABS": _FLOAT_8_16, "LEAKY_RELU": _FLOAT_8_16, "LOGISTIC": _FLOAT_8_16, "RELU": _FLOAT_8_16, "RELU6": _FLOAT_8_16,
    "TANH": _FLOAT_8_16, "ELU": _FLOAT_8, "HARD_SWISH": _FLOAT_8, "PRELU": _FLOAT_8, "RSQRT": _FLOAT_8,
    "CEIL": _FLOAT, "COS": _FLOAT, "EXP": _FLOAT, "FLOOR": _FLOAT, "LOG": _FLOAT, "NEG": _FLOAT, "ROUND": _FLOAT, "SIN": _FLOAT,
    "SQRT": _FLOAT, "SQUARE": _FLOAT, "LOGICAL_NOT": Rule(_same("BOOL")),
    # A row is read as a whole before the first of its results is written.
    "SOFTMAX": _FLOAT_8_16, "LOG_SOFTMAX": _FLOAT_8, "L2_NORMALIZATION": _FLOAT_8,
    "QUANTIZE": Rule(_same("INT8", "INT16") | {("FLOAT32", "INT8"), ("FLOAT32", "INT16"), ("INT16", "INT8"), ("INT32", "INT8"), ("INT32", "INT16")}),
    "CAST": Rule(
        _same("FLOAT32", "INT8", "INT16", "INT32", "BOOL")
        | {("FLOAT32", "INT32"), ("INT32", "FLOAT32"), ("FLOAT32", "INT16"), ("FLOAT32", "INT8"), ("INT32", "INT16"), ("INT32", "INT8"), ("INT16", "INT8"), ("BOOL", "INT8")}
    ),
    "ADD": Rule(_same("FLOAT32", "INT8", "INT16", "INT32"), _BOTH),
    "SUB": Rule(_same("FLOAT32", "INT8", "INT16", "INT32"), _BOTH),
    "MUL": Rule(_same("FLOAT32", "INT8", "INT16", "INT32"), _BOTH),
    "DIV": Rule(_same("FLOAT32", "INT8", "INT32"), _BOTH),
    "FLOOR_DIV": Rule(_same("FLOAT32"), _BOTH),
    "FLOOR_MOD": Rule(_same("FLOAT32"), _BOTH),
    "MAXIMUM": Rule(_same("FLOAT32", "INT8", "INT16", "INT32", "INT64"), _BOTH),
    "MINIMUM": Rule(_same("FLOAT32", "INT8", "INT16", "INT32", "INT64"), _BOTH),
    "SQUARED_DIFFERENCE": Rule(_same("FLOAT32", "INT8", "INT16", "INT32"), _BOTH),
    "ADD_N": Rule(_same("FLOAT32", "INT8"), None),
    "LOGICAL_AND": Rule(_same("BOOL"), _BOTH), "LOGICAL_OR": Rule(_same("BOOL"), _BOTH),
    **{op: Rule(_to_bool("FLOAT32", "INT8", "INT32", "INT64"), _BOTH) for op in ("GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL")},
    "EQUAL": Rule(_to_bool("BOOL", "FLOAT32", "INT8", "INT32", "INT64"), _BOTH),
    "NOT_EQUAL": Rule(_to_bool("BOOL", "FLOAT32", "INT8", "INT32", "INT64"), _BOTH),
}  # fmt: skip
"""Operators of the portable kernels whose bits were compared."""

WIDTHS: Mapping[str, int] = {"FLOAT32": 4, "INT64": 8, "INT32": 4, "INT16": 2, "INT8": 1, "BOOL": 1}
"""Bytes of the elements that `PERMITTED` names."""

REPLACED: Mapping[str, frozenset[str]] = {
    "esp-nn": frozenset({"ADD", "MUL", "SOFTMAX", "HARD_SWISH", "LOGISTIC", "RELU", "RELU6"}),
    "cmsis-nn": frozenset({"ADD", "MUL", "MAXIMUM", "MINIMUM", "SOFTMAX"}),
}
"""Library -> operators that it has kernels of its own for, on integers of 8 or 16 bits."""


@dataclass(frozen=True)
class Permit:
    """Which overlays a plan may use.

    Attributes
    ----------
    foreign : frozenset of str
        Operators whose kernels for integers of 8 and 16 bits may be others than the portable ones: not overlaid.
    inputs : bool
        Inputs of the file may be overwritten.
    joins : bool
        Tensors may lie inside those that they are joined to or cut from; see `peakmem_tflite.joins`.
    """

    foreign: frozenset[str] = frozenset()
    inputs: bool = False
    joins: bool = False


def permit(target: Target, *, named: bool, every: bool, inputs: bool) -> Permit:
    """What is permitted for a board's kernels: where nobody ``named`` them, what all known ones share with the portable ones.

    ``every``: all of `PERMITTED`, whoever wrote the kernels.
    """
    if every or (named and target == "reference"):
        return Permit(inputs=inputs)
    libraries = [name for name in REPLACED if isinstance(target, str) and target.startswith(name)]
    return Permit(frozenset().union(*(REPLACED[name] for name in libraries or REPLACED)), inputs)


def kernel_permits(subgraph: Subgraph, op: Operator, a: int, o: int, foreign: frozenset[str] = frozenset()) -> bool:
    """Whether the kernel of ``op`` may write tensor ``o`` on top of tensor ``a``, where nothing else reads that one any more."""
    rule = PERMITTED.get(op.op)
    if rule is None or op.custom or op.outputs != (o,) or a < 0 or a == o:
        return False
    source, result = subgraph.tensors[a], subgraph.tensors[o]
    if (source.type, result.type) not in rule.types or (op.op in foreign and source.type in ("INT8", "INT16")):
        return False
    positions = [i for i, t in enumerate(op.inputs) if t == a]
    if not positions or (rule.inputs is not None and not set(positions) <= set(rule.inputs)):
        return False
    # With as many elements as the output it is not stretched over it, and element i of the one lies in the place of element i of the
    # other, or before it.
    return source.elements == result.elements and result.size <= source.size


def overlays(graph: Graph, k: int, permitted: Permit | None) -> dict[int, tuple[int, tuple[int, ...]]]:
    """Operator -> its output and the inputs that it may lie on, tensors of subgraph ``k``; whether one dies there depends on the order.

    Never a constant, a variable, an output of the subgraph, or what is there from the entry, but for inputs of the file where that was
    permitted: who calls a subgraph may hold its inputs.
    """
    if permitted is None:
        return {}
    subgraph = graph.subgraphs[k]
    here = planned(subgraph)
    kept = set(subgraph.outputs)
    own = set(subgraph.producer)
    if permitted.inputs and k == 0:
        own |= set(subgraph.inputs)
    result = {}
    for i, op in enumerate(subgraph.operators):
        if op.op not in PERMITTED or len(op.outputs) != 1 or not here[op.outputs[0]]:
            continue
        o = op.outputs[0]
        inputs = tuple(
            a for a in dict.fromkeys(op.inputs)
            if a in own and here[a] and a not in kept and kernel_permits(subgraph, op, a, o, permitted.foreign)
        )  # fmt: skip
        if inputs:
            result[i] = (o, inputs)
    return result


def pairs(graph: Graph, permitted: Permit | None) -> list[tuple[int, int]]:
    """All pairs (input, output) of `overlays`, as tensors of all subgraphs counted through."""
    return [
        (base + a, base + o)
        for k, base in enumerate(graph.bases)
        for o, inputs in overlays(graph, k, permitted).values()
        for a in inputs
    ]


def notes(graph: Graph, permitted: Permit | None) -> list[str]:
    """What to say of a file: what of it could lie on inputs if it were known which kernels run."""
    if permitted is None or not permitted.foreign:
        return []
    everything = Permit(inputs=permitted.inputs)
    more = {
        s.operators[i].op
        for k, s in enumerate(graph.subgraphs)
        for i in overlays(graph, k, everything).keys() - overlays(graph, k, permitted).keys()
    }
    if not more:
        return []
    which = ", ".join(sorted(more))
    return [f"outputs of {which} are not put on their inputs, as kernels for devices were not compared; --target reference or --overlay does"]


def sentences(
    graph: Graph, permitted: Permit | None, orders: Mapping[int, Sequence[int]], offsets: Sequence[int]
) -> tuple[str, ...]:
    """What a plan makes of its permissions; that inputs of the file are overwritten above all.

    ``offsets`` are those of all tensors counted through, -1 for those left to the interpreter.
    """
    count, gone = 0, []
    for k, base in enumerate(graph.bases):
        subgraph = graph.subgraphs[k]
        last = {t: i for i in orders.get(k, range(len(subgraph.operators))) for t in subgraph.operators[i].inputs}
        for i, (o, inputs) in overlays(graph, k, permitted).items():
            for a in inputs:
                if last[a] == i and offsets[base + a] == offsets[base + o] >= 0:
                    count += 1
                    if a not in subgraph.producer:
                        gone.append(repr(subgraph.tensors[a].name))
    if not count:
        return ()
    told = f"{count} outputs lie each on an input that dies under it" if count > 1 else "an output lies on an input that dies under it"
    if gone:
        told += f"; a run overwrites the file's input{'s' * (len(gone) > 1)} {', '.join(gone)}, to be set anew before each run"
    return (told,)
