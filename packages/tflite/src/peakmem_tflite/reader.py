"""From bytes to a `Graph`, with nothing taken on trust."""

from __future__ import annotations

import struct
from functools import cache
from itertools import pairwise

from peakmem.model import InputError

from peakmem_tflite.flatbuffer import IDENTIFIER, Flat, Table
from peakmem_tflite.graph import CONTROL_FLOW, PLAN_NAME, Graph, Metadata, Operator, Subgraph, Tensor, Window
from peakmem_tflite.soundness import check_not_compiled, check_sound

BYTES = {
    "FLOAT32": 4, "FLOAT16": 2, "INT32": 4, "UINT8": 1, "INT64": 8, "BOOL": 1, "INT16": 2, "COMPLEX64": 8, "INT8": 1,
    "FLOAT64": 8, "COMPLEX128": 16, "UINT64": 8, "RESOURCE": 4, "UINT32": 4, "UINT16": 2, "INT4": 1, "BFLOAT16": 2,
}  # fmt: skip
"""Bytes of an element as TFLite Micro counts them."""

# builtin_options_type -> slots of the subgraphs the operator runs (schema.fbs: IfOptions, WhileOptions, CallOnceOptions)
_CALLEE_SLOTS = {"IF": (92, (0, 1)), "WHILE": (93, (0, 1)), "CALL_ONCE": (103, (0,))}
_VAR_HANDLE_OPTIONS = 111
_SVDF_OPTIONS = 9
# operator -> its options type, slots of the strides (width first) and of the dilations, slot of the multiplier
_WINDOWS: dict[str, tuple[int, tuple[int, int], tuple[int, int] | None, int | None]] = {
    "CONV_2D": (1, (1, 2), (4, 5), None),
    "DEPTHWISE_CONV_2D": (2, (1, 2), (5, 6), 3),
    "TRANSPOSE_CONV": (49, (1, 2), None, None),
}
# operator -> its options type, slot of the axis
_AXES = {"CONCATENATION": (10, 0), "PACK": (59, 1), "UNPACK": (64, 1)}
_OPTIONS = {
    "CONV_2D": "Conv2DOptions", "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions", "TRANSPOSE_CONV": "TransposeConvOptions",
    "FULLY_CONNECTED": "FullyConnectedOptions", "AVERAGE_POOL_2D": "Pool2DOptions", "MAX_POOL_2D": "Pool2DOptions",
    "L2_POOL_2D": "Pool2DOptions", "SVDF": "SVDFOptions", "SOFTMAX": "SoftmaxOptions", "CONCATENATION": "ConcatenationOptions",
    "ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions", "DIV": "DivOptions", "BATCH_MATMUL": "BatchMatMulOptions",
    "RESIZE_BILINEAR": "ResizeBilinearOptions", "RESIZE_NEAREST_NEIGHBOR": "ResizeNearestNeighborOptions",
    "STRIDED_SLICE": "StridedSliceOptions", "PACK": "PackOptions", "UNPACK": "UnpackOptions", "GATHER": "GatherOptions",
    "LEAKY_RELU": "LeakyReluOptions", "CUMSUM": "CumsumOptions", "MIRROR_PAD": "MirrorPadOptions",
    "DEPTH_TO_SPACE": "DepthToSpaceOptions", "SPACE_TO_DEPTH": "SpaceToDepthOptions",
    "UNIDIRECTIONAL_SEQUENCE_LSTM": "UnidirectionalSequenceLSTMOptions",
}  # fmt: skip
"""Operators that TFLite Micro runs with whatever lies in memory where their options are missing, and the table of these."""

_CUSTOM = 32
_PLACEHOLDER = 127


@cache
def _names(of: str) -> dict[int, str]:
    """Enumeration value -> name, from the schema package."""
    import importlib

    enumeration = getattr(importlib.import_module(f"tflite.{of}"), of)
    return {value: name for name, value in vars(enumeration).items() if isinstance(value, int)}


def read(data: bytes, where: str = "model") -> Graph:
    """Read a TFLite file.

    Parameters
    ----------
    data : bytes
    where : str
        Begins every message.

    Raises
    ------
    InputError
        For anything that is not a sound TFLite model of schema version 3: a damaged or foreign file, indices out of
        range, a tensor produced twice or read before it is produced, dynamic shapes.
    """
    if len(data) < 8:
        raise InputError(f"{where}: has {len(data)} bytes, too few for a TFLite model; get the file again")
    if data[4:8] != IDENTIFIER:
        raise InputError(f"{where}: is not a TFLite model (its bytes 4 to 7 are not 'TFL3'); name another file")
    flat = Flat(data, where)
    try:
        return _model(flat)
    except (struct.error, ValueError, TypeError, OverflowError, MemoryError, RecursionError) as error:
        raise flat.fail(f"cannot be decoded ({type(error).__name__})") from None


def _model(flat: Flat) -> Graph:
    where = flat.where
    root = flat.root()
    version = root.scalar(0, "I")
    if version != 3:
        raise InputError(f"{where}: has schema version {version}, peakmem reads version 3; convert the model anew")
    codes = [_code(flat, t) for t in root.children(1, "operator code")]
    external: list[int] = []
    buffers: list[tuple[int, int]] = []
    for table in root.children(4, "buffer"):
        buffers.append(table.vector(0, 1, table.what))
        if _external(flat, table, 1):
            external.append(table.position(1))
            buffers[-1] = (-1, table.scalar(2, "Q"))
    tables = root.children(2, "subgraph")
    if not tables:
        raise InputError(f"{where}: has no subgraph; convert the model anew")
    subgraphs = tuple(_subgraph(flat, k, t, codes, buffers, len(tables), external) for k, t in enumerate(tables))
    _check_calls(where, subgraphs)
    spans = sorted((s.vector, s.vector + 4 * len(s.operators)) for s in subgraphs if s.operators)
    if any(a[1] > b[0] for a, b in pairwise(spans)):
        raise flat.fail("two subgraphs share one operator vector")
    metadata = []
    for table in root.children(6, "metadata entry"):
        buffer = table.scalar(1, "I")
        if buffer >= len(buffers):
            raise flat.fail(f"{table.what} refers to buffer {buffer} of {len(buffers)}")
        metadata.append(Metadata(table.text(0, table.what), buffer, *buffers[buffer]))
    graph = Graph(flat.data, subgraphs, tuple(metadata), tuple(sorted(set(external))))
    _check_plan(flat, graph)

    def constants(tensor: Tensor) -> bytes | None:
        at, count = buffers[tensor.buffer]
        return flat.data[at : at + count] if tensor.constant and at > 0 else None

    check_sound(graph, constants, where)
    return graph


def _external(flat: Flat, table: Table, slot: int) -> bool:
    """Whether a field leads to data outside the flatbuffer; 0 and 1 mean that there are none."""
    offset = table.scalar(slot, "Q")
    if offset > len(flat.data):
        raise flat.fail(f"{table.what}: its data would begin at byte {offset} of {len(flat.data)}")
    return offset > 1


def _code(flat: Flat, table: Table) -> tuple[str, bool, int]:
    """Name, whether custom, and version of an operator code."""
    old, new = table.scalar(0, "b"), table.scalar(3, "i")
    code = max(old, new) if old < _PLACEHOLDER else new
    if code == _CUSTOM:
        return table.text(1, table.what) or "CUSTOM", True, table.scalar(2, "i", 1)
    name = _names("BuiltinOperator").get(code)
    return (name, False, table.scalar(2, "i", 1)) if name else (f"BUILTIN_{code}", True, table.scalar(2, "i", 1))


def _subgraph(
    flat: Flat,
    index: int,
    table: Table,
    codes: list[tuple[str, bool, int]],
    buffers: list[tuple[int, int]],
    subgraph_count: int,
    external: list[int],
) -> Subgraph:
    place = f"subgraph {index}"
    tensors = tuple(_tensor(flat, t, buffers) for t in table.children(0, f"{place}, tensor"))

    def indices(owner: Table, slot: int, what: str, optional: bool = False) -> tuple[int, ...]:
        values = owner.ints(slot, what)
        for t in values:
            if not (0 <= t < len(tensors) or (optional and t == -1)):
                raise flat.fail(f"{what}: tensor {t} does not exist (there are {len(tensors)})")
        return values

    operators = []
    for row in table.children(3, f"{place}, operator"):
        code = row.scalar(0, "I")
        if code >= len(codes):
            raise flat.fail(f"{row.what}: operator code {code} does not exist (there are {len(codes)})")
        op, custom, version = codes[code]
        callees: list[int] = []
        options_type, options = row.scalar(3, "B"), row.sub(4, f"{row.what}, options")
        if op in _CALLEE_SLOTS and not custom:
            wanted, slots = _CALLEE_SLOTS[op]
            if options is None or options_type != wanted:
                raise flat.fail(f"{row.what}: {op} does not name its subgraphs")
            for slot in slots:
                callee = options.scalar(slot, "i")
                if not 0 <= callee < subgraph_count:
                    raise flat.fail(f"{row.what}: subgraph {callee} does not exist (there are {subgraph_count})")
                callees.append(callee)
        if op in _OPTIONS and not custom and (options is None or _names("BuiltinOptions").get(options_type) != _OPTIONS[op]):
            raise InputError(
                f"{flat.where}: {row.what} ({op}) has no {_OPTIONS[op]}; TFLite Micro would take what lies in memory for them, convert "
                "the model anew"
            )
        resource = None
        if op == "VAR_HANDLE" and options is not None and options_type == _VAR_HANDLE_OPTIONS:
            resource = (options.text(0, row.what), options.text(1, row.what))
        rank = options.scalar(0, "i") if op == "SVDF" and options and options_type == _SVDF_OPTIONS else 1
        if _external(flat, row, 9):
            external.append(row.position(9))
        operators.append(
            Operator(
                op,
                custom,
                version,
                indices(row, 1, f"{row.what}, inputs", optional=True),
                indices(row, 2, f"{row.what}, outputs"),
                indices(row, 8, f"{row.what}, intermediates", optional=True),
                tuple(callees),
                resource,
                max(1, rank),
                _detections(row) if op == "TFLite_Detection_PostProcess" else None,
                _window(op, options_type, options) if op in _WINDOWS and options else None,
                _axis(op, options_type, options) if op in _AXES else None,
            )
        )
        check_not_compiled(operators[-1], flat.where, f"{place}, operator {len(operators) - 1}")
    result = Subgraph(
        table.text(4, place),
        tensors,
        indices(table, 1, f"{place}, inputs"),
        indices(table, 2, f"{place}, outputs"),
        tuple(operators),
        table.vector(3, 4, place)[0],
    )
    _check_order(flat.where, place, result)
    return result


def _window(op: str, options_type: int, options: Table) -> Window | None:
    wanted, strides, dilations, multiplier = _WINDOWS[op]
    if options_type != wanted:
        return None
    width, height = (options.scalar(slot, "i") for slot in strides)
    spread = tuple(options.scalar(slot, "i", 1) for slot in dilations) if dilations else (1, 1)
    return Window((width, height), (spread[0], spread[1]), options.scalar(multiplier, "i") if multiplier else 1)


def _axis(op: str, options_type: int, options: Table | None) -> int | None:
    wanted, slot = _AXES[op]
    return options.scalar(slot, "i") if options is not None and options_type == wanted else None


def _detections(row: Table) -> tuple[int, int] | None:
    """Two of the settings of detection post-processing, from its flexbuffer; None if they cannot be read."""
    from flatbuffers import flexbuffers

    at, count = row.vector(5, 1, row.what)
    try:
        options = flexbuffers.GetRoot(row.flat.data[at : at + count]).AsMap
        most, classes = (int(options[key].AsInt) for key in ("max_detections", "num_classes"))
    except Exception:  # the library documents no error for damaged bytes, and raises several
        return None
    return (most, classes) if 0 <= most < 2**31 and 0 <= classes < 2**31 else None


def _tensor(flat: Flat, table: Table, buffers: list[tuple[int, int]]) -> Tensor:
    shape = table.ints(0, f"{table.what}, shape")
    code = table.scalar(1, "b")
    name = table.text(3, table.what)
    buffer = table.scalar(2, "I")
    if buffer >= len(buffers):
        raise flat.fail(f"{table.what}: buffer {buffer} does not exist (there are {len(buffers)})")
    constant = buffers[buffer][1] > 0
    kind = _names("TensorType").get(code)
    if kind is None:
        raise flat.fail(f"{table.what} ({name!r}): element type {code} is unknown")
    if any(extent < 0 for extent in shape):
        raise InputError(
            f"{flat.where}: {table.what} ({name!r}) has the dynamic shape {list(shape)}; "
            "fix all sizes (batch included) when converting the model"
        )
    if not constant and kind not in BYTES:
        raise InputError(
            f"{flat.where}: {table.what} ({name!r}) is of type {kind}, whose size is only known when it runs; "
            "peakmem needs tensors of fixed size"
        )
    size = BYTES.get(kind, 1)
    for extent in shape:
        size *= extent
        if size >= 2**63:
            raise flat.fail(f"{table.what} ({name!r}): shape {list(shape)} takes 2^63 bytes or more")
    stored = -(-size // 2) if kind == "INT4" else size
    if constant and kind in BYTES and buffers[buffer][1] < stored and not table.position(6):  # 6: sparse, which stores less
        raise InputError(
            f"{flat.where}: {table.what} ({name!r}) holds {buffers[buffer][1]} bytes of the {stored} that its shape "
            f"{list(shape)} needs; the file is damaged, convert the model anew"
        )
    quantization = table.sub(4, f"{table.what}, quantization")
    scales = quantization.vector(2, 4, quantization.what)[1] if quantization else 0
    return Tensor(name, shape, kind, size, buffer, constant, bool(table.scalar(5, "B")), scales)


def _check_order(where: str, place: str, subgraph: Subgraph) -> None:
    """Each tensor is produced at most once, and before it is read."""
    produced: dict[int, int] = {}
    for i, op in enumerate(subgraph.operators):
        for t in op.outputs:
            if t in produced:
                raise InputError(
                    f"{where}: {place}, tensor {t} ({subgraph.tensors[t].name!r}) is produced by operators "
                    f"{produced[t]} and {i}; convert the model anew"
                )
            if subgraph.tensors[t].constant or t in subgraph.inputs:
                raise InputError(
                    f"{where}: {place}, operator {i} ({op.op}) writes tensor {t} ({subgraph.tensors[t].name!r}), "
                    "which is a constant or an input; convert the model anew"
                )
            produced[t] = i
    given = set(subgraph.inputs)
    for i, op in enumerate(subgraph.operators):
        for t in op.inputs:
            if t < 0:
                continue
            tensor = subgraph.tensors[t]
            if produced.get(t, -1) >= i:
                raise InputError(
                    f"{where}: {place}, operator {i} ({op.op}) reads tensor {t} ({tensor.name!r}) before operator "
                    f"{produced[t]} produces it; the operators stand in an illegal order"
                )
            if t not in produced and t not in given and not tensor.constant and not tensor.variable and tensor.size:
                raise InputError(
                    f"{where}: {place}, operator {i} ({op.op}) reads tensor {t} ({tensor.name!r}), "
                    "which nothing produces; convert the model anew"
                )


def _check_calls(where: str, subgraphs: tuple[Subgraph, ...]) -> None:
    """Subgraphs call one another without a cycle, and the main one is not called."""
    state = [0] * len(subgraphs)
    stack: list[tuple[int, int]] = []
    calls = [[c for op in s.operators if op.op in CONTROL_FLOW for c in op.callees] for s in subgraphs]
    for start in range(len(subgraphs)):
        if state[start]:
            continue
        stack.append((start, 0))
        state[start] = 1
        while stack:
            k, at = stack.pop()
            if at == len(calls[k]):
                state[k] = 2
                continue
            stack.append((k, at + 1))
            callee = calls[k][at]
            if state[callee] == 1 or callee == 0:
                raise InputError(f"{where}: subgraph {callee} runs itself or is the main one; convert the model anew")
            if state[callee] == 0:
                state[callee] = 1
                stack.append((callee, 0))


def _check_plan(flat: Flat, graph: Graph) -> None:
    for entry in graph.metadata:
        if entry.name != PLAN_NAME:
            continue
        count = graph.tensor_count
        words = entry.length // 4 if entry.at > 0 else 0
        stated = flat.number("i", entry.at + 8, "the offline plan") if words >= 3 else -1
        if stated != count or words < count + 3:
            raise InputError(
                f"{flat.where}: its offline plan is for {max(stated, 0)} tensors, the model has {count}, and TFLite "
                f"Micro refuses that; remove the metadata entry {PLAN_NAME}"
            )
