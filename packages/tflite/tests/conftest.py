"""Small TFLite files, built here so that the tests need nothing but the package; and where the shared data lie."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import flatbuffers
import numpy as np
import pytest
import tflite
from peakmem_tflite import measure

sys.path.append(str(Path(__file__).parents[2] / "check" / "tests"))  # for `generators` and `warm`
from warm import Nursery

SHARED = Path(__file__).resolve().parents[4] / "shared" / "data" / "tflite"

TYPES = {
    "FLOAT32": (0, np.float32), "INT32": (2, np.int32), "INT8": (9, np.int8), "BOOL": (6, np.bool_),
    "RESOURCE": (13, None), "STRING": (5, None), "INT16": (7, np.int16),
    "INT4": (17, np.int8), "INT64": (4, np.int64),
}  # fmt: skip


@dataclass
class T:
    """A tensor to be written."""

    shape: tuple
    type: str = "FLOAT32"
    data: object = None
    variable: bool = False
    name: str | None = None
    signature: tuple | None = None
    scale: float = 1.0


@dataclass
class Op:
    op: str
    inputs: tuple
    outputs: tuple
    options: object = None
    custom: bool = False
    custom_options: bytes = b""


@dataclass
class Sub:
    tensors: list
    operators: list
    inputs: tuple
    outputs: tuple
    name: str = "main"


@dataclass
class File:
    subgraphs: list
    metadata: dict = field(default_factory=dict)
    version: int = 3
    external: bool = False
    signatures: list = field(default_factory=list)  # (name, {name: tensor} of inputs, of outputs) of the main subgraph


def _options(builder, op: Op):
    """Options table and its type."""

    def simple(name, *adders):
        getattr(tflite, f"{name}Start")(builder)
        for add, value in (dict(adders) | (op.options if isinstance(op.options, dict) else {})).items():
            getattr(tflite, f"{name}Add{add}")(builder, value)
        return getattr(tflite, f"{name}End")(builder), getattr(tflite.BuiltinOptions, name)

    if op.op in ("ADD", "SUB", "MUL", "DIV", "SOFTMAX"):
        return simple(f"{op.op.capitalize()}Options")
    if op.op.endswith("POOL_2D"):
        return simple("Pool2DOptions", ("StrideH", 1), ("StrideW", 1))
    if op.op == "RESIZE_NEAREST_NEIGHBOR":
        return simple("ResizeNearestNeighborOptions")
    if op.op == "RESIZE_BILINEAR":
        return simple("ResizeBilinearOptions")
    if op.op == "STRIDED_SLICE":
        return simple("StridedSliceOptions")
    if op.op == "PAD":
        return simple("PadOptions")
    if op.op == "CONCATENATION":
        return simple("ConcatenationOptions", ("Axis", 1))
    if op.op == "FULLY_CONNECTED":
        return simple("FullyConnectedOptions")
    if op.op in ("MEAN", "SUM", "REDUCE_MAX"):
        return simple("ReducerOptions", ("KeepDims", True))
    if op.op == "MIRROR_PAD":
        return simple("MirrorPadOptions")
    if op.op == "CONV_2D":
        return simple("Conv2DOptions", ("StrideH", 1), ("StrideW", 1))
    if op.op == "DEPTHWISE_CONV_2D":
        return simple("DepthwiseConv2DOptions", ("StrideH", 1), ("StrideW", 1), ("DepthMultiplier", 1))
    if op.op == "TRANSPOSE_CONV":
        return simple("TransposeConvOptions", ("StrideH", 1), ("StrideW", 1))
    if op.op == "SVDF":
        return simple("SVDFOptions", ("Rank", 1))
    if op.op == "SQUEEZE":
        return simple("SqueezeOptions", ("SqueezeDims", _ints(builder, op.options, tflite.SqueezeOptionsStartSqueezeDimsVector)))
    if op.op == "READ_VARIABLE":
        return simple("ReadVariableOptions")
    if op.op == "ASSIGN_VARIABLE":
        return simple("AssignVariableOptions")
    if op.op == "IF":
        return simple("IfOptions", ("ThenSubgraphIndex", op.options[0]), ("ElseSubgraphIndex", op.options[1]))
    if op.op == "WHILE":
        return simple(
            "WhileOptions", ("CondSubgraphIndex", op.options[0]), ("BodySubgraphIndex", op.options[1])
        )
    if op.op == "CALL_ONCE":
        return simple("CallOnceOptions", ("InitSubgraphIndex", op.options))
    if op.op == "VAR_HANDLE":
        name = builder.CreateString(op.options)
        return simple("VarHandleOptions", ("SharedName", name))
    return None, 0


def _ints(builder, values, start):
    start(builder, len(values))
    for v in reversed(values):
        builder.PrependInt32(int(v))
    return builder.EndVector()


def _tables(builder, offsets, start):
    start(builder, len(offsets))
    for o in reversed(offsets):
        builder.PrependUOffsetTRelative(o)
    return builder.EndVector()


def encode(file: File) -> bytes:
    """Write a file with the builders of the schema package."""
    b = flatbuffers.Builder(4096)
    blobs = [b""]
    codes: list[tuple] = []
    subgraphs = []
    metadata = []
    for name, data in file.metadata.items():
        blobs.append(data)
        metadata.append((b.CreateString(name), len(blobs) - 1))
    for sub in file.subgraphs:
        tensors = []
        for i, t in enumerate(sub.tensors):
            code, dtype = TYPES[t.type]
            buffer = 0
            if t.data is not None:  # of an INT4 tensor: two elements to a byte
                blobs.append(np.asarray(t.data, dtype).tobytes())
                buffer = len(blobs) - 1
            name = b.CreateString(t.name if t.name is not None else f"t{i}")
            shape = _ints(b, t.shape, tflite.TensorStartShapeVector)
            signature = (
                _ints(b, t.signature, tflite.TensorStartShapeSignatureVector) if t.signature is not None else None
            )
            quantization = None
            if t.type in ("INT8", "INT16", "INT4") or (t.type in ("INT32", "INT64") and t.data is not None and len(t.shape) == 1):
                tflite.QuantizationParametersStartScaleVector(b, 1)
                b.PrependFloat32(t.scale)
                scale = b.EndVector()
                tflite.QuantizationParametersStartZeroPointVector(b, 1)
                b.PrependInt64(0)
                zero = b.EndVector()
                tflite.QuantizationParametersStart(b)
                tflite.QuantizationParametersAddScale(b, scale)
                tflite.QuantizationParametersAddZeroPoint(b, zero)
                quantization = tflite.QuantizationParametersEnd(b)
            tflite.TensorStart(b)
            tflite.TensorAddShape(b, shape)
            tflite.TensorAddType(b, code)
            tflite.TensorAddBuffer(b, buffer)
            tflite.TensorAddName(b, name)
            tflite.TensorAddIsVariable(b, t.variable)
            if quantization is not None:
                tflite.TensorAddQuantization(b, quantization)
            if signature is not None:
                tflite.TensorAddShapeSignature(b, signature)
            tensors.append(tflite.TensorEnd(b))
        operators = []
        for op in sub.operators:
            key = (op.op, op.custom)
            if key not in codes:
                codes.append(key)
            ins = _ints(b, op.inputs, tflite.OperatorStartInputsVector)
            outs = _ints(b, op.outputs, tflite.OperatorStartOutputsVector)
            options, kind = _options(b, op)
            extra = None
            if op.custom_options:
                tflite.OperatorStartCustomOptionsVector(b, len(op.custom_options))
                b.head -= len(op.custom_options)
                b.Bytes[b.head : b.head + len(op.custom_options)] = op.custom_options
                extra = b.EndVector()
            tflite.OperatorStart(b)
            tflite.OperatorAddOpcodeIndex(b, codes.index(key))
            tflite.OperatorAddInputs(b, ins)
            tflite.OperatorAddOutputs(b, outs)
            if options is not None:
                tflite.OperatorAddBuiltinOptionsType(b, kind)
                tflite.OperatorAddBuiltinOptions(b, options)
            if extra is not None:
                tflite.OperatorAddCustomOptions(b, extra)
            operators.append(tflite.OperatorEnd(b))
        tv = _tables(b, tensors, tflite.SubGraphStartTensorsVector)
        ov = _tables(b, operators, tflite.SubGraphStartOperatorsVector)
        iv = _ints(b, sub.inputs, tflite.SubGraphStartInputsVector)
        uv = _ints(b, sub.outputs, tflite.SubGraphStartOutputsVector)
        name = b.CreateString(sub.name)
        tflite.SubGraphStart(b)
        tflite.SubGraphAddTensors(b, tv)
        tflite.SubGraphAddInputs(b, iv)
        tflite.SubGraphAddOutputs(b, uv)
        tflite.SubGraphAddOperators(b, ov)
        tflite.SubGraphAddName(b, name)
        subgraphs.append(tflite.SubGraphEnd(b))
    buffers = []
    for k, blob in enumerate(blobs):
        data = None
        if blob:
            b.StartVector(1, len(blob), 16)
            b.head -= len(blob)
            b.Bytes[b.head : b.head + len(blob)] = blob
            data = b.EndVector()
        tflite.BufferStart(b)
        if data is not None and not (file.external and k == len(blobs) - 1):
            tflite.BufferAddData(b, data)
        elif data is not None:
            tflite.BufferAddOffset(b, 64)
            tflite.BufferAddSize(b, len(blob))
        buffers.append(tflite.BufferEnd(b))
    opcodes = []
    for name, custom in codes:
        text = b.CreateString(name) if custom else None
        value = 32 if custom else getattr(tflite.BuiltinOperator, name)
        tflite.OperatorCodeStart(b)
        tflite.OperatorCodeAddDeprecatedBuiltinCode(b, min(value, 127))
        tflite.OperatorCodeAddBuiltinCode(b, value)
        tflite.OperatorCodeAddVersion(b, 1)
        if text is not None:
            tflite.OperatorCodeAddCustomCode(b, text)
        opcodes.append(tflite.OperatorCodeEnd(b))
    entries = []
    for name, buffer in metadata:
        tflite.MetadataStart(b)
        tflite.MetadataAddName(b, name)
        tflite.MetadataAddBuffer(b, buffer)
        entries.append(tflite.MetadataEnd(b))
    signatures = []
    for key, *sides in file.signatures:
        rows = []
        for side in sides:
            maps = []
            for name, t in side.items():
                text = b.CreateString(name)
                tflite.TensorMapStart(b)
                tflite.TensorMapAddName(b, text)
                tflite.TensorMapAddTensorIndex(b, t)
                maps.append(tflite.TensorMapEnd(b))
            rows.append(_tables(b, maps, tflite.SignatureDefStartInputsVector))
        text = b.CreateString(key)
        tflite.SignatureDefStart(b)
        tflite.SignatureDefAddInputs(b, rows[0])
        tflite.SignatureDefAddOutputs(b, rows[1])
        tflite.SignatureDefAddSignatureKey(b, text)
        signatures.append(tflite.SignatureDefEnd(b))
    sd = _tables(b, signatures, tflite.ModelStartSignatureDefsVector) if signatures else None
    cv = _tables(b, opcodes, tflite.ModelStartOperatorCodesVector)
    sv = _tables(b, subgraphs, tflite.ModelStartSubgraphsVector)
    bv = _tables(b, buffers, tflite.ModelStartBuffersVector)
    mv = _tables(b, entries, tflite.ModelStartMetadataVector) if entries else None
    description = b.CreateString("made by a test")
    tflite.ModelStart(b)
    tflite.ModelAddVersion(b, file.version)
    tflite.ModelAddOperatorCodes(b, cv)
    tflite.ModelAddSubgraphs(b, sv)
    tflite.ModelAddDescription(b, description)
    tflite.ModelAddBuffers(b, bv)
    if mv is not None:
        tflite.ModelAddMetadata(b, mv)
    if sd is not None:
        tflite.ModelAddSignatureDefs(b, sd)
    b.Finish(tflite.ModelEnd(b), b"TFL3")
    return bytes(b.Output())


def diamond() -> File:
    """Two long branches whose given order interleaves them, so that another order needs less memory."""
    rng = np.random.default_rng(0)
    tensors, operators = [T((1, 8), name="x")], []

    def full(source: int, width: int) -> int:
        tensors.append(T((width, tensors[source].shape[1]), data=rng.standard_normal((width, tensors[source].shape[1]))))
        tensors.append(T((1, width)))
        operators.append(Op("FULLY_CONNECTED", (source, len(tensors) - 2, -1), (len(tensors) - 1,)))
        return len(tensors) - 1

    wide_a, wide_b, wide_c = full(0, 64), full(0, 96), full(0, 80)
    thin_a, thin_b, thin_c = full(wide_a, 4), full(wide_b, 4), full(wide_c, 4)
    tensors.append(T((1, 12), name="y"))
    operators.append(Op("CONCATENATION", (thin_a, thin_b, thin_c), (len(tensors) - 1,)))
    return File([Sub(tensors, operators, (0,), (len(tensors) - 1,))])


def random_file(seed: int, size: int = 12) -> File:
    """A random program of matrix products, sums and concatenations; several inputs and outputs, some unused."""
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    tensors = [T((1, rng.choice((3, 8, 20)))) for _ in range(rng.randint(1, 3))]
    inputs = tuple(range(len(tensors)))
    live = list(inputs)
    operators = []
    for _ in range(size):
        kind = rng.random()
        source = rng.choice(live[-6:] if rng.random() < 0.7 else live)
        width = tensors[source].shape[1]
        same = [t for t in live if tensors[t].shape[1] == width and t != source]
        if kind < 0.25 and same:
            tensors.append(T((1, width)))
            operators.append(Op("ADD", (source, rng.choice(same)), (len(tensors) - 1,)))
        elif kind < 0.45 and len(live) > 1:
            other = rng.choice(live)
            tensors.append(T((1, width + tensors[other].shape[1])))
            operators.append(Op("CONCATENATION", (source, other), (len(tensors) - 1,)))
        else:
            new = rng.choice((1, 4, 8, 20, 40, 64))
            tensors.append(T((new, width), data=numbers.standard_normal((new, width))))
            tensors.append(T((1, new)))
            operators.append(Op("FULLY_CONNECTED", (source, len(tensors) - 2, -1), (len(tensors) - 1,)))
        live.append(len(tensors) - 1)
    read = {t for op in operators for t in op.inputs}
    ends = [op.outputs[0] for op in operators if op.outputs[0] not in read]
    outputs = tuple(t for t in ends if t == ends[-1] or rng.random() < 0.5)
    return File([Sub(tensors, operators, inputs, outputs)])


def cells(count: int) -> File:
    """A chain of cells of six operators, the shape of a real network: branches of different widths, joined and added."""
    rng = np.random.default_rng(3)
    tensors, operators = [T((1, 16), name="x")], []

    def full(source: int, width: int) -> int:
        tensors.append(T((width, tensors[source].shape[1]), data=rng.standard_normal((width, tensors[source].shape[1]))))
        tensors.append(T((1, width)))
        operators.append(Op("FULLY_CONNECTED", (source, len(tensors) - 2, -1), (len(tensors) - 1,)))
        return len(tensors) - 1

    at = 0
    for _ in range(count):
        wide, wider = full(at, 48), full(at, 64)
        thin, thinner = full(wide, 8), full(wider, 8)
        tensors.append(T((1, 16)))
        operators.append(Op("CONCATENATION", (thin, thinner), (len(tensors) - 1,)))
        tensors.append(T((1, 16)))
        operators.append(Op("ADD", (at, len(tensors) - 2), (len(tensors) - 1,)))
        at = len(tensors) - 1
    return File([Sub(tensors, operators, (0,), (at,))])


def streaming() -> File:
    """A ring of state: a variable is read, joined with the input, and its newer part assigned; set to zero once."""
    main = Sub(
        [
            T((1, 4), name="x"),
            T((1,), "RESOURCE", name="handle"),
            T((1, 4), name="old"),
            T((1, 8), name="joined"),
            T((40, 8), data=np.arange(320).reshape(40, 8) / 100, name="w"),
            T((1, 40), name="wide"),
            T((4, 40), data=np.arange(160).reshape(4, 40) / 500, name="v"),
            T((1, 4), name="y"),
        ],
        [
            Op("CALL_ONCE", (), (), 1),
            Op("VAR_HANDLE", (), (1,), "state"),
            Op("READ_VARIABLE", (1,), (2,)),
            Op("CONCATENATION", (2, 0), (3,)),
            Op("FULLY_CONNECTED", (3, 4, -1), (5,)),
            Op("FULLY_CONNECTED", (5, 6, -1), (7,)),
            Op("ASSIGN_VARIABLE", (1, 7), ()),
        ],
        (0,),
        (7,),
    )
    init = Sub(
        [T((1,), "RESOURCE", name="handle"), T((1, 4), data=np.zeros((1, 4)), name="zero")],
        [Op("VAR_HANDLE", (), (0,), "state"), Op("ASSIGN_VARIABLE", (0, 1), ())],
        (),
        (),
        "init",
    )
    return File([main, init])


def branching() -> File:
    """An IF whose branches differ, and whose second branch reads only one of its inputs."""
    main = Sub(
        [T((1,), "BOOL", name="c"), T((1, 8), name="a"), T((1, 8), name="b"), T((1, 8), name="y"), T((1, 8), name="z")],
        [Op("IF", (0, 1, 2), (3,), (1, 2)), Op("ADD", (3, 1), (4,))],
        (0, 1, 2),
        (4,),
    )
    both = Sub([T((1, 8)), T((1, 8)), T((1, 8))], [Op("ADD", (0, 1), (2,))], (0, 1), (2,), "both")
    first = Sub([T((1, 8)), T((1, 8)), T((1, 8))], [Op("ADD", (0, 0), (2,))], (0, 1), (2,), "first")
    return File([main, both, first])


def convolutions(widths: tuple[int, int, int, int] = (24, 16, 4, 4)) -> File:
    """Two branches of convolutions of 8 bits, at whose start the order given keeps both; scratch differs by kernels."""
    rng = np.random.default_rng(5)
    tensors, operators = [T((1, 12, 12, 4), "INT8", name="x")], []

    def conv(source: int, channels: int, size: int = 1, stride: int = 1) -> int:
        _, height, width, inner = tensors[source].shape
        tensors.append(T((channels, size, size, inner), "INT8", rng.integers(-9, 9, (channels, size, size, inner))))
        tensors.append(T((channels,), "INT32", rng.integers(-9, 9, channels)))
        tensors.append(T((1, -(-height // stride), -(-width // stride), channels), "INT8"))
        options = {"StrideH": stride, "StrideW": stride}  # padding SAME
        operators.append(Op("CONV_2D", (source, len(tensors) - 3, len(tensors) - 2), (len(tensors) - 1,), options))
        return len(tensors) - 1

    wide, wider = conv(0, widths[0]), conv(0, widths[1], 3)
    thin, thinner = conv(wide, widths[2], 3, 2), conv(wider, widths[3], 1, 2)
    tensors.append(T((1, 6, 6, widths[2] + widths[3]), "INT8", name="y"))
    operators.append(Op("CONCATENATION", (thin, thinner), (len(tensors) - 1,), {"Axis": 3}))
    return File([Sub(tensors, operators, (0,), (len(tensors) - 1,))])


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    imports = ("numpy", "tflite_micro.runtime", "tflite_runtime.interpreter", "ai_edge_litert.interpreter", "peakmem_tflite.child")
    found = Nursery(measure.run_child, "peakmem_tflite.child", imports)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def warm_children(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children are forked where everything is imported already; ``test_process`` starts them as users do."""
    monkeypatch.setattr(measure, "run_child", nursery)


@pytest.fixture(scope="session")
def tiny():
    """The builders of this file."""
    return SimpleNamespace(
        T=T, Op=Op, Sub=Sub, File=File, encode=encode, diamond=diamond, random_file=random_file, streaming=streaming, cells=cells,
        convolutions=convolutions,
        branching=branching,
    )  # fmt: skip


@pytest.fixture(scope="session")
def shared():
    """Paths of the shared models; skips where they are not."""
    paths = sorted(SHARED.glob("*.tflite"))
    if not paths:
        pytest.skip(f"the shared models are not here ({SHARED.parent.parent.name}/data/tflite)")
    return paths


@pytest.fixture(scope="session")
def tflm():
    """Skips where TFLite Micro is not installed."""
    pytest.importorskip("tflite_micro", reason="needs TFLite Micro: pip install 'peakmem-tflite[tflm]'")


def any_order(program, rng: random.Random) -> tuple[int, ...]:
    """A random order that honours the dependences."""
    from generators import random_order

    return random_order(rng.randrange(1 << 30), program)


@pytest.fixture(scope="session")
def orders():
    """orders(program, rng): random orders of a program and its bodies, by path."""

    def draw(program, rng):
        return {"": any_order(program, rng), **{path: any_order(body, rng) for path, body in program.bodies()}}

    return draw
