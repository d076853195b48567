"""Reading: what is understood, and that nothing in a file can crash, hang or fool the reader."""

from __future__ import annotations

import random
import struct
import time

import numpy as np
import pytest
import tflite
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from peakmem.model import InputError, PeakmemError
from peakmem_tflite.model import TfliteModel
from peakmem_tflite.reader import read
from peakmem_tflite.settings import Settings


def refused(data: bytes) -> str:
    with pytest.raises(InputError) as caught:
        TfliteModel.from_bytes(data)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_reads_what_was_written(tiny):
    graph = read(tiny.encode(tiny.streaming()))
    main, init = graph.subgraphs
    assert [op.op for op in main.operators][:3] == ["CALL_ONCE", "VAR_HANDLE", "READ_VARIABLE"]
    assert main.operators[0].callees == (1,)
    assert main.operators[1].resource == ("", "state")
    assert main.operators[4].inputs == (3, 4, -1)
    assert (main.inputs, main.outputs, init.name) == ((0,), (7,), "init")
    assert main.tensors[4].constant
    assert not main.tensors[5].constant
    assert main.tensors[5].size == 160
    assert graph.callers == (1, 1)


def test_reads_every_shared_model(shared):
    for path in shared:
        graph = read(path.read_bytes(), path.name)
        assert graph.subgraphs[0].operators


def test_reads_what_the_schema_package_reads(tiny):
    import tflite

    data = tiny.encode(tiny.random_file(5))
    theirs = tflite.Model.GetRootAs(data).Subgraphs(0)
    ours = read(data).subgraphs[0]
    assert len(ours.tensors) == theirs.TensorsLength()
    for i, op in enumerate(ours.operators):
        other = theirs.Operators(i)
        assert list(op.inputs) == other.InputsAsNumpy().tolist()
        assert list(op.outputs) == other.OutputsAsNumpy().tolist()
    for t, tensor in enumerate(ours.tensors):
        assert tensor.name == theirs.Tensors(t).Name().decode()
        assert list(tensor.shape) == theirs.Tensors(t).ShapeAsNumpy().tolist()


def test_foreign_files():
    assert "too few" in refused(b"")
    assert "TFL3" in refused(b"PK\x03\x04" + bytes(100))
    assert "TFL3" in refused(bytes(1000))
    refused(struct.pack("<I", 0) + b"TFL3" + bytes(1000))
    refused(struct.pack("<i", -8) + b"TFL3" + bytes(1000))


def test_schema_version(tiny):
    file = tiny.diamond()
    file.version = 2
    assert "schema version 2" in refused(tiny.encode(file))


def test_operators_in_an_illegal_order(tiny):
    file = tiny.diamond()
    operators = file.subgraphs[0].operators
    operators[0], operators[-1] = operators[-1], operators[0]
    assert "illegal order" in refused(tiny.encode(file))


def test_a_tensor_that_nothing_produces(tiny):
    file = tiny.diamond()
    del file.subgraphs[0].operators[0]
    assert "nothing produces" in refused(tiny.encode(file))


def test_a_tensor_produced_twice(tiny):
    file = tiny.diamond()
    operators = file.subgraphs[0].operators
    operators.insert(1, operators[0])
    assert "produced by operators 0 and 1" in refused(tiny.encode(file))


def test_dynamic_shapes(tiny):
    file = tiny.diamond()
    file.subgraphs[0].tensors[0].shape = (-1, 8)
    assert "dynamic shape" in refused(tiny.encode(file))


def test_a_declared_dynamic_batch_is_read_at_its_size(tiny):
    file = tiny.diamond()
    file.subgraphs[0].tensors[0].signature = (-1, 8)
    assert TfliteModel.from_bytes(tiny.encode(file)).program.entry_bytes == 32


def test_strings_have_no_size(tiny):
    file = tiny.diamond()
    file.subgraphs[0].tensors[0].type = "STRING"
    assert "STRING" in refused(tiny.encode(file))


def test_external_buffers_are_refused_for_tflm_only(tiny):
    file = tiny.diamond()
    file.external = True
    data = tiny.encode(file)
    assert "outside the flatbuffer" in refused(data)
    assert TfliteModel.from_bytes(data, settings=Settings(runtime="litert")).graph.external


@pytest.mark.parametrize(
    ("what", "change"),
    [
        ("tensor 99", lambda f: f.subgraphs[0].operators[0].__setattr__("inputs", (99,))),
        ("tensor -1", lambda f: f.subgraphs[0].operators[0].__setattr__("outputs", (-1,))),
        ("tensor -2", lambda f: f.subgraphs[0].operators[0].__setattr__("inputs", (-2,))),
        ("tensor 77", lambda f: f.subgraphs[0].__setattr__("outputs", (77,))),
        ("takes 2^63", lambda f: f.subgraphs[0].tensors[0].__setattr__("shape", (2**31 - 1,) * 4)),
        ("constant or an input", lambda f: f.subgraphs[0].operators[0].__setattr__("outputs", (0,))),
    ],
)
def test_indices_and_sizes(tiny, what, change):
    file = tiny.diamond()
    change(file)
    assert what in refused(tiny.encode(file))


def test_calls_that_cannot_be(tiny):
    file = tiny.branching()
    file.subgraphs[0].operators[0].options = (1, 7)
    assert "subgraph 7 does not exist" in refused(tiny.encode(file))
    file.subgraphs[0].operators[0].options = (1, 0)
    assert "runs itself" in refused(tiny.encode(file))


def test_a_stale_plan(tiny):
    file = tiny.diamond()
    file.metadata["OfflineMemoryAllocation"] = struct.pack("<5i", 1, 1, 2, -1, -1)
    assert "offline plan is for 2 tensors" in refused(tiny.encode(file))
    file.metadata["OfflineMemoryAllocation"] = b"\1"
    assert "offline plan" in refused(tiny.encode(file))


def test_shared_offsets_do_not_unfold():
    """20,000 subgraph entries that all lead to one subgraph of 20,000 operators, in 160 KB."""
    n = 20_000
    data = bytearray(struct.pack("<I4s", 28, b"TFL3"))
    data += struct.pack("<10H", 20, 20, 4, 8, 12, 0, 16, 0, 0, 0)  # the root's vtable
    data += struct.pack("<iI3I", 20, 3, 0, 0, 0)

    def vector(field: int, count: int) -> int:
        struct.pack_into("<I", data, field, len(data) - field)
        data.extend(struct.pack("<I", count) + bytes(4 * count))
        return len(data) - 4 * count

    def point(first: int, count: int, target: int) -> None:
        for i in range(count):
            struct.pack_into("<I", data, first + 4 * i, target - first - 4 * i)

    codes, subgraphs, buffers = vector(36, 1), vector(40, n), vector(44, 1)
    empty_vtable = len(data)
    data += struct.pack("<4H", 8, 4, 0, 0)
    empty = len(data)
    data += struct.pack("<i", empty - empty_vtable)
    code_vtable = len(data)
    data += struct.pack("<4H", 6, 8, 4, 0)
    code = len(data)
    data += struct.pack("<iI", code - code_vtable, tflite.BuiltinOperator.RESHAPE)
    point(codes, 1, code)
    point(buffers, 1, empty)
    vtable = len(data)
    data += struct.pack("<6H", 12, 8, 0, 0, 0, 4)
    subgraph = len(data)
    data += struct.pack("<iI", subgraph - vtable, 0)
    point(subgraphs, n, subgraph)
    operators = vector(subgraph + 4, n)
    operator = len(data)
    data += struct.pack("<i", operator - empty_vtable)
    point(operators, n, operator)
    begin = time.process_time()
    assert "more tables" in refused(bytes(data))
    assert time.process_time() - begin < 60


def whole_way(data: bytes) -> bool:
    """Everything that is done to a file short of running it; False if it was refused."""
    try:
        model = TfliteModel.from_bytes(data)
        assert model.predicted_bytes >= 0
        assert model.notes is not None
        assert model.snippet()
        assert len(model.program) == len(model.graph.subgraphs[0].operators)
    except PeakmemError as error:
        assert "\n" not in str(error)
        return False
    return True


@pytest.mark.parametrize("seed", range(4))
def test_thousands_of_damaged_files(tiny, seed):
    rng = random.Random(seed)
    files = [tiny.diamond(), tiny.streaming(), tiny.branching(), tiny.random_file(seed)]
    originals = [tiny.encode(file) for file in files]
    read_anyway = 0
    for _ in range(1500):
        data = bytearray(rng.choice(originals))
        kind = rng.random()
        if kind < 0.2:
            del data[rng.randrange(len(data)) :]
        elif kind < 0.3:
            begin, end = sorted(rng.randrange(len(data)) for _ in range(2))
            del data[begin:end]
        else:
            for _ in range(rng.choice((1, 1, 2, 8, 40))):
                i = rng.randrange(len(data))
                data[i : i + 4] = rng.choice(
                    (bytes([data[i] ^ 1 << rng.randrange(8)]) + data[i + 1 : i + 4], b"\xff\xff\xff\xff", bytes(4),
                     b"\xff\xff\xff\x7f", b"\0\0\0\x80", rng.randbytes(4))
                )  # fmt: skip
        read_anyway += whole_way(bytes(data))
    assert 0 < read_anyway < 1500


def test_every_truncation(tiny):
    data = tiny.encode(tiny.branching())
    assert whole_way(data)
    for end in range(0, len(data), 3):
        whole_way(data[:end])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(edits=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(-(2**31), 2**31 - 1)), max_size=6))
def test_numbers_anywhere(tiny, edits):
    data = bytearray(tiny.encode(tiny.streaming()))
    for where, value in edits:
        at = int(where * (len(data) // 4)) * 4
        struct.pack_into("<i", data, at, value)
    whole_way(bytes(data))


def test_names_cannot_break_a_line(tiny):
    file = tiny.diamond()
    file.subgraphs[0].tensors[0].name = "a\nb"
    file.subgraphs[0].tensors[0].shape = (-1, 8)
    refused(tiny.encode(file))


def test_constants_need_no_known_size(tiny):
    file = tiny.diamond()
    file.subgraphs[0].tensors.append(tiny.T((1,), "INT32", data=np.zeros(1)))
    assert whole_way(tiny.encode(file))
