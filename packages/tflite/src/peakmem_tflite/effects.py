"""Which operators have effects, and which order those demand.

Resource variables are ordered per variable: reads among themselves are free, a read and an assignment keep their order.
A read copies the variable into the arena, so it may move down to just before the next assignment, which is where
streaming models gain. Whatever may touch anything (CALL_ONCE, control flow around effects, random numbers, custom
operators nothing is known of) is a barrier among the operators with effects.
"""

from __future__ import annotations

from peakmem_tflite.graph import CONTROL_FLOW, Graph, Operator, Subgraph

PURE_CUSTOM = frozenset(
    {
        "SignalWindow", "SignalFftAutoScale", "SignalRfft", "SignalIrfft", "SignalEnergy", "SignalFilterBank",
        "SignalFilterBankSquareRoot", "SignalPCAN", "SignalFilterBankLog", "TFLite_Detection_PostProcess",
    }
)  # fmt: skip
"""Custom operators of TFLite Micro without state."""

OWN_STATE = frozenset(
    {"SignalFilterBankSpectralSubtraction", "SignalStacker", "SignalFramer", "SignalDelay", "SignalOverlapAdd"}
)
"""Custom operators whose state nobody else sees: they must run once an invocation, anywhere."""

FENCES = frozenset({"CIRCULAR_BUFFER"})
"""They may end the invocation early, so what stands before and behind them must stay there."""

_BARRIERS = frozenset(
    {"RANDOM_UNIFORM", "RANDOM_STANDARD_NORMAL", "MULTINOMIAL", "STABLEHLO_RNG_BIT_GENERATOR", "CALL_ONCE", "CALL",
     "HASHTABLE", "HASHTABLE_FIND", "HASHTABLE_IMPORT", "HASHTABLE_SIZE", "DELEGATE", "STABLEHLO_WHILE",
     "STABLEHLO_CUSTOM_CALL", "STABLEHLO_COMPOSITE"}
)  # fmt: skip


def tokens(graph: Graph, subgraph: Subgraph, op: Operator) -> tuple[str, ...]:
    """Effects of one operator.

    ``"fence"``, ``"barrier"``, ``"read NAME"`` and ``"write NAME"`` for a resource variable, ``"state N"`` for variable
    tensor N, ``"own state"``. Empty for an operator that may stand anywhere behind what it reads.
    """
    if op.op in FENCES:
        return ("fence",)
    result: list[str] = []
    if op.op in ("READ_VARIABLE", "ASSIGN_VARIABLE"):
        name = _resource(subgraph, op)
        verb = "read" if op.op == "READ_VARIABLE" else "write"
        result.append("barrier" if name is None else f"{verb} {name}")
    elif op.op in _BARRIERS or (op.custom and op.op not in PURE_CUSTOM | OWN_STATE) or (op.op in CONTROL_FLOW and any(_effectful(graph, callee) for callee in op.callees)):
        result.append("barrier")
    elif op.op in OWN_STATE:
        result.append("own state")
    result.extend(f"state {t}" for t in sorted({*op.inputs, *op.outputs}) if t >= 0 and subgraph.tensors[t].variable)
    return tuple(result)


def pure(graph: Graph, subgraph: Subgraph, op: Operator) -> bool:
    """Whether an operator may run twice: the same inputs give the same outputs, and nothing else changes."""
    return not op.callees and not tokens(graph, subgraph, op)


def _resource(subgraph: Subgraph, op: Operator) -> str | None:
    """The variable behind the handle an operator is given; None where that cannot be seen."""
    if not op.inputs or op.inputs[0] not in subgraph.producer:
        return None
    resource = subgraph.operators[subgraph.producer[op.inputs[0]]].resource
    return "/".join(resource) if resource is not None else None


def _effectful(graph: Graph, k: int) -> bool:
    if graph.callers[k] > 1:
        return True
    subgraph = graph.subgraphs[k]
    return any(tokens(graph, subgraph, op) for op in subgraph.operators)


def dependences(graph: Graph, k: int) -> list[set[int]]:
    """For each operator of a subgraph those that must stay before it: producers of what it reads, and effects."""
    subgraph = graph.subgraphs[k]
    result: list[set[int]] = []
    barrier = fence = -1
    since: list[int] = []  # operators with effects behind the last barrier
    written: dict[str, int] = {}
    read: dict[str, list[int]] = {}
    state: dict[str, int] = {}
    for i, op in enumerate(subgraph.operators):
        before = {subgraph.producer[t] for t in op.inputs if t in subgraph.producer}
        effects = tokens(graph, subgraph, op)
        if fence >= 0:
            before.add(fence)
        if "fence" in effects:
            before.update(range(fence + 1, i))
            fence = barrier = i
            since, written, read, state = [], {}, {}, {}
            result.append(before)
            continue
        shared = [e for e in effects if e != "own state"]
        if shared and barrier >= 0:
            before.add(barrier)
        if "barrier" in effects:
            before.update(since)
            barrier = i
            since, written, read, state = [], {}, {}, {}
        elif shared:
            since.append(i)
        for effect in shared:
            verb, _, name = effect.partition(" ")
            if verb == "read":
                if name in written:
                    before.add(written[name])
                read.setdefault(name, []).append(i)
            elif verb == "write":
                before.update(read.pop(name, ()))
                if name in written:
                    before.add(written[name])
                written[name] = i
            elif verb == "state":
                if name in state:
                    before.add(state[name])
                state[name] = i
        before.discard(i)
        result.append(before)
    return result
