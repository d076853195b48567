"""What ONNX Runtime's kernels promise its allocation planner, operator by operator.

Facts measured on onnxruntime 1.32 (CPU). An *alias* operator never allocates: its output is its input's storage. An
*in-place* operator writes into its input's storage when that input has no other reader left and the planner knows
both shapes to be the same. Everything else allocates its outputs. An operator that is missing here is treated as one
that allocates; `peakmem_onnx.measure` would show the difference, so a wrong entry cannot pass unnoticed.
"""

from __future__ import annotations

LEVELS = ("none", "basic", "extended", "all")
"""How far its optimizer may go."""

NCHWC = "com.microsoft.nchwc"
MICROSOFT = "com.microsoft"

ALIAS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"})
"""Default domain: output 0 is input 0's storage."""

IN_PLACE = frozenset(
    {
        "Relu", "Sigmoid", "Tanh", "LeakyRelu", "Elu", "Selu", "Softplus", "Softsign", "HardSigmoid",
        "ThresholdedRelu", "Celu", "Softmax", "LogSoftmax", "Not", "Clip", "Cast", "ScatterElements", "Trilu", "Shrink",
    }
)  # fmt: skip
"""Default domain: output 0 may take input 0's storage."""

_OTHER_IN_PLACE: dict[tuple[str, str], tuple[tuple[int, int], ...]] = {
    # The addend of a convolution fused with an addition.
    (NCHWC, "Conv"): ((3, 0),),
    (MICROSOFT, "FusedConv"): ((3, 0),),
}

RANDOM = frozenset(
    {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
)

RECURRENT = frozenset({("", "RNN"), ("", "LSTM"), ("", "GRU"), (MICROSOFT, "DynamicQuantizeLSTM")})
"""Take their workspace in pieces, each of which the allocator rounds up; ONNX Runtime tells the sum alone."""

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})


def alias_of(domain: str, op: str) -> tuple[tuple[int, int], ...]:
    """Pairs (input, output) that always share storage."""
    return ((0, 0),) if not domain and op in ALIAS else ()


def in_place_of(domain: str, op: str) -> tuple[tuple[int, int], ...]:
    """Pairs (input, output) that may share storage."""
    if not domain:
        return ((0, 0),) if op in IN_PLACE else ()
    return _OTHER_IN_PLACE.get((domain, op), ())


def is_pure(domain: str, op: str) -> bool:
    """Whether the operator may run twice: deterministic, without state, without bodies of its own."""
    return not (not domain and (op in RANDOM or op in CONTROL_FLOW or op == "Dropout"))
