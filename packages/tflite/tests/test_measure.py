"""On the real interpreters. Each test skips, saying so, where its interpreter is not installed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from peakmem.model import RuntimeFailed, RuntimeMissing
from peakmem.ordering import order_program
from peakmem_tflite import measure
from peakmem_tflite.model import TfliteModel
from peakmem_tflite.reader import read
from peakmem_tflite.rewrite import permute, with_plan
from peakmem_tflite.settings import Settings


def load(tiny, file, **settings):
    return TfliteModel.from_bytes(tiny.encode(file), settings=Settings(**{"steps": 6, **settings}))


def optimized(model):
    return model.apply(model.schedule(order_program(model.program)))


def files(tiny):
    return [tiny.diamond(), tiny.streaming(), tiny.branching(), tiny.random_file(2, 20), tiny.random_file(9, 20)]


def test_optimized_files_run_as_predicted(tiny, tflm):
    for file in files(tiny):
        model = load(tiny, file)
        other = optimized(model)
        found = model.verify(other)
        assert found.failures == ()
        assert found.as_predicted
        assert found.bitwise_identical
        assert found.optimized_bytes == other.predicted_bytes <= found.baseline_bytes
        arena = found.details["arena_after"]
        assert arena["total"] == arena["head"] + arena["tail"]
        assert arena["total"] <= arena["smallest_arena"] <= arena["tail"] + max(arena["head"], arena["planner_temp"]) + 16
        assert arena["binds"] in ("head", "planner")
        assert "over 6 steps" in found.compared


def test_the_smallest_arena_is_the_smallest(tiny, tflm):
    import json
    import subprocess
    import sys

    model = load(tiny, tiny.diamond())
    smallest = model.verify(model).details["arena_before"]["smallest_arena"]
    code = (
        "import sys, json; from tflite_micro import runtime; "
        "runtime.Interpreter.from_bytes(bytes.fromhex(json.load(sys.stdin)), arena_size=%d)"
    )
    for size, works in ((smallest, True), (smallest - 16, False)):
        done = subprocess.run(
            [sys.executable, "-c", code % size], input=json.dumps(model.data.hex()).encode(), capture_output=True
        )
        assert (done.returncode == 0) is works


def test_a_different_result_is_found(tiny, tflm):
    """One weight changed: the first tensor that depends on it is named."""
    file = tiny.diamond()
    file.subgraphs[0].tensors[1].data[3][2] += 0.5
    found = load(tiny, tiny.diamond()).verify(load(tiny, file))
    assert not found.bitwise_identical
    assert "output 0 differs at step 0, in the shared arena" in found.failures
    assert "tensor 2 ('t2') of subgraph 0 differs at step 0, with all tensors kept" in found.failures


def test_values_that_never_vary_show_nothing(tiny, tflm):
    """A weight of zeros makes all that follows constant."""
    file = tiny.File([tiny.Sub([tiny.T((1, 4)), tiny.T((4, 4), data=[[0] * 4] * 4), tiny.T((1, 4))],
                               [tiny.Op("FULLY_CONNECTED", (0, 1, -1), (2,))], (0,), (2,))])  # fmt: skip
    found = load(tiny, file).verify(load(tiny, file))
    assert found.bitwise_identical
    assert found.varied is False
    assert not found.identical
    file.subgraphs[0].tensors[1].data[0][0] = 1
    assert load(tiny, file).verify(load(tiny, file)).varied is True
    assert load(tiny, file, steps=1).verify(load(tiny, file, steps=1)).varied is None
    # Values in between vary, the output does not.
    file.subgraphs[0].tensors += [tiny.T((4, 4), data=[[0] * 4] * 4), tiny.T((1, 4))]
    file.subgraphs[0].operators.append(tiny.Op("FULLY_CONNECTED", (2, 3, -1), (4,)))
    file.subgraphs[0].outputs = (4,)
    assert load(tiny, file).verify(load(tiny, file)).varied is True


def test_a_bad_plan_is_found(tiny, tflm):
    """Everything at offset 0: it runs, and its outputs are wrong."""
    model = load(tiny, tiny.diamond())
    plan = [0 if t >= 0 else -1 for t in model.graph.bases for t in range(model.graph.tensor_count)]
    broken = TfliteModel(read(with_plan(model.graph, plan)), model.settings)
    found = model.verify(broken)
    assert not found.bitwise_identical
    assert any("in the shared arena" in f for f in found.failures)


def test_a_wrong_order_of_effects_is_found(tiny, tflm):
    """The variable assigned before it is read: step after step the state is one behind."""
    tensors = [tiny.T((1, 4), name="x"), tiny.T((1,), "RESOURCE"), tiny.T((1, 4)), tiny.T((1, 4), name="y")]
    operators = [
        tiny.Op("VAR_HANDLE", (), (1,), "a"), tiny.Op("READ_VARIABLE", (1,), (2,)), tiny.Op("ASSIGN_VARIABLE", (1, 0), ()),
        tiny.Op("ADD", (2, 0), (3,)),
    ]  # fmt: skip
    model = load(tiny, tiny.File([tiny.Sub(tensors, operators, (0,), (3,))]))
    swapped = TfliteModel.from_bytes(permute(model.graph, {0: (0, 2, 1, 3)}))
    found = model.verify(swapped)
    assert not found.bitwise_identical


def test_a_wrong_prediction_is_a_failure(tiny, tflm, monkeypatch):
    model = load(tiny, tiny.diamond(), steps=1)
    monkeypatch.setattr(measure, "head", lambda *_: 7)
    found = model.verify(replace(model))
    assert not found.as_predicted
    assert any("predicted were 7" in f for f in found.failures)


def test_an_operator_the_interpreter_lacks(tiny, tflm):
    tensors = [tiny.T((1, 8)), tiny.T((2,), "INT32", [1, 2]), tiny.T((1, 16))]
    model = load(tiny, tiny.File([tiny.Sub(tensors, [tiny.Op("TILE", (0, 1), (2,))], (0,), (2,))]))
    with pytest.raises(RuntimeFailed, match="TILE"):
        model.verify(optimized(model))


def test_a_crash_is_a_sentence(tiny, tflm, monkeypatch):
    """The interpreter's process may die; ours says so."""
    model = load(tiny, tiny.diamond(), steps=1)
    monkeypatch.setattr(measure, "LIMIT", 0.0)
    with pytest.raises(RuntimeFailed, match="no time was left for a run"):
        model.verify(model)


def test_a_full_disk_is_a_sentence(tiny, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(measure, "installed", lambda runtime: "1")
    monkeypatch.setattr(measure.tempfile, "TemporaryDirectory", full)
    model = load(tiny, tiny.diamond())
    with pytest.raises(RuntimeFailed, match=r"tflm cannot be started \(No space left on device\); nothing was measured"):
        model.verify(model)


def test_a_python_that_cannot_be_started_is_a_sentence(tiny, monkeypatch):
    monkeypatch.setattr(measure, "installed", lambda runtime: "1")
    monkeypatch.setattr(measure.sys, "executable", "/no/such/python")
    model = load(tiny, tiny.diamond())
    with pytest.raises(RuntimeFailed, match="tflm cannot be started"):
        model.verify(model)


def test_different_inputs_cannot_be_compared(tiny, tflm):
    found = load(tiny, tiny.diamond()).verify(load(tiny, tiny.branching()))
    assert found.failures[0].startswith("the models take different inputs")
    assert found.bitwise_identical is False


def test_a_missing_runtime_names_its_pip_line(tiny, monkeypatch):
    monkeypatch.setattr(measure, "installed", lambda runtime: None)
    model = load(tiny, tiny.diamond())
    with pytest.raises(RuntimeMissing, match=r"pip install 'peakmem-tflite\[tflm\]'"):
        model.verify(model)


@pytest.mark.parametrize(("runtime", "module"), [("litert", "ai_edge_litert"), ("tflite-runtime", "tflite_runtime")])
def test_bits_on_the_larger_runtimes(tiny, runtime, module):
    pytest.importorskip(module, reason=f"needs pip install 'peakmem-tflite[{runtime}]'")
    for file in files(tiny):
        model = load(tiny, file, runtime=runtime)
        found = model.verify(optimized(model))
        assert found.failures == ()
        assert found.bitwise_identical
        assert not found.measured  # the head is a quantity of TFLite Micro
        assert any("XNNPACK" in note for note in found.notes)
        assert found.details["also"][runtime]["bitwise_identical"]


def test_an_invocation_that_ends_early_on_purpose(tiny, tflm):
    """CIRCULAR_BUFFER ends the first invocations; that is no sign of too small an arena."""
    from flatbuffers import flexbuffers

    builder = flexbuffers.Builder()
    with builder.Map():
        builder.Key("cycles_max")
        builder.Int(3)
    tensors = [tiny.T((1, 1, 1, 8), "INT8", name="x"), tiny.T((1, 4, 1, 8), "INT8"), tiny.T((1, 4, 1, 8), "INT8", name="y")]
    operators = [
        tiny.Op("CIRCULAR_BUFFER", (0,), (1,), custom=True, custom_options=bytes(builder.Finish())),
        tiny.Op("ADD", (1, 1), (2,)),
    ]
    model = load(tiny, tiny.File([tiny.Sub(tensors, operators, (0,), (2,))]))
    found = model.verify(model)
    assert found.failures == ()
    arena = found.details["arena_after"]
    assert arena["total"] <= arena["smallest_arena"] <= arena["tail"] + max(arena["head"], arena["planner_temp"]) + 16


def endless(tiny):
    """A loop whose condition never fails, and an operator behind it."""
    T, Op = tiny.T, tiny.Op
    main = tiny.Sub(
        [T((1,), "INT32", name="x"), T((1,), "INT32", name="y"), T((1, 8), name="a"), T((1, 8), name="b")],
        [Op("WHILE", (0,), (1,), (1, 2)), Op("ADD", (2, 2), (3,))], (0, 2), (1, 3),
    )  # fmt: skip
    condition = tiny.Sub([T((1,), "INT32"), T((1,), "INT32", [2**30]), T((1,), "BOOL")], [Op("LESS", (0, 1), (2,))], (0,), (2,), "condition")
    body = tiny.Sub([T((1,), "INT32"), T((1,), "INT32", [0]), T((1,), "INT32")], [Op("MUL", (0, 1), (2,))], (0,), (2,), "body")
    return tiny.File([main, condition, body])


def test_a_run_that_never_ends_is_ended_and_the_heads_stay(tiny, tflm):
    model = load(tiny, endless(tiny))
    found = model.verify_within(replace(model), 3.0)
    assert found.failures == ()
    assert found.as_predicted
    assert found.bitwise_identical is None
    assert found.compared == ""
    assert any("no bits were compared: a run did not end within" in note for note in found.notes)
    assert found.details["arena_after"]["smallest_arena"] is None


def test_a_result_outlives_a_run_that_never_ends(tiny, tflm, monkeypatch):
    import peakmem
    from peakmem.frontends import steps

    monkeypatch.setattr(steps, "LEAST", 2.0)
    result = peakmem.optimize(load(tiny, endless(tiny)), time_limit=1.0)
    assert result.verification is not None
    assert result.verification.measured
    assert not result.verification.identical


def test_no_time_for_more_than_one_step(tiny, tflm):
    from functools import partial

    from peakmem_tflite.child import Tflm, isolated

    model = load(tiny, tiny.diamond())
    work = partial(Tflm().run, model.data, measure._job(model.graph, ()), 6, False, 0.0)
    assert len(isolated(work, 60)["result"]) == 1


def test_fewer_steps_are_said(tiny, tflm, monkeypatch):
    model = load(tiny, tiny.diamond())
    real = measure._child

    def hurried(job):
        answer = real(job)
        for row in answer["models"]:
            row["outputs"]["result"] = row["outputs"]["result"][:2]
            row["tensors"]["result"] = row["tensors"]["result"][:2]
        return answer

    monkeypatch.setattr(measure, "_child", hurried)
    found = model.verify(replace(model))
    assert found.bitwise_identical
    assert "over 2 steps (of 6: there was no time for more)" in found.compared


def test_tensors_in_between_that_there_was_no_time_for(tiny, tflm, monkeypatch):
    model = load(tiny, tiny.diamond())
    real = measure._child

    def hurried(job):
        answer = real(job)
        answer["models"][1]["tensors"] = {"error": "a run did not end within 1 s", "late": True, "log": ""}
        answer["models"][1]["smallest"] = {"error": "late", "late": True}
        return answer

    monkeypatch.setattr(measure, "_child", hurried)
    found = model.verify(replace(model))
    assert found.bitwise_identical
    assert found.compared.startswith("all 1 outputs over 6 steps")
    assert any("tensors in between were not compared" in note for note in found.notes)
    assert "there was no time to look for the smallest arena" in found.notes
