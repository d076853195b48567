"""The frontend object, what it declares, and what it prints."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace

import pytest
from peakmem.frontends import Frontend, Model, complete_options, get_frontend, recognise
from peakmem.model import InputError, UsageError
from peakmem.ordering import order_program
from peakmem_tflite.describe import moved, resolver_method
from peakmem_tflite.frontend import frontend
from peakmem_tflite.model import TfliteModel


def test_protocols(tiny):
    assert isinstance(frontend, Frontend)
    assert isinstance(TfliteModel.from_bytes(tiny.encode(tiny.diamond())), Model)
    assert get_frontend("tflite") is frontend


def test_importing_it_costs_nothing():
    code = "import sys, peakmem_tflite.frontend as f; f.frontend.runtimes(); print(sorted(set(sys.modules) & %r))" % {
        "numpy", "tflite", "flatbuffers", "ortools", "tflite_micro", "ai_edge_litert", "tflite_runtime", "networkx",
    }  # fmt: skip
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_options_and_recognition(tiny, tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(tiny.encode(tiny.diamond()))
    assert recognise(path) is frontend
    options = complete_options(frontend, {"no_plan": True})
    assert options == {
        "target": None, "scratch": None, "device_log": (), "memory": (), "drop_untouched": False, "overlay": False, "overlay_inputs": False, "no_overlay": False, "join_in_place": False, "no_plan": True, "runtime": "tflm", "steps": 20,
    }  # fmt: skip
    model = frontend.load(path, options)
    assert (model.settings.no_plan, model.path, model.quantity) == (True, path, "arena_head")
    for wrong in ({"steps": 0}, {"target": "toaster"}, {"runtime": "abacus"}):
        with pytest.raises(UsageError):
            frontend.load(path, {**options, **wrong})
    with pytest.raises(InputError, match="cannot be read"):
        frontend.load(tmp_path / "missing", options)


def test_runtimes_name_their_pip_line():
    assert {r.name: r.pip for r in frontend.runtimes()}["tflm"] == "pip install 'peakmem-tflite[tflm]'"


def test_moved_operators_are_few(tiny):
    model = TfliteModel.from_bytes(tiny.encode(tiny.diamond()))
    other = model.apply(model.schedule(order_program(model.program)))
    rows = moved(model.graph, other.graph)
    assert 0 < len(rows) < len(model.program)
    for row in rows:
        op = model.graph.subgraphs[0].operators[row["from"]]
        assert other.graph.subgraphs[0].operators[row["to"]] == op
        assert row["operator"] == op.op
    assert moved(model.graph, model.graph) == []


def test_snippet(tiny):
    file = tiny.diamond()
    file.subgraphs[0].operators.append(tiny.Op("Mine", (0,), (len(file.subgraphs[0].tensors),), custom=True))
    file.subgraphs[0].tensors.append(tiny.T((1, 8)))
    model = TfliteModel.from_bytes(tiny.encode(file))
    text = model.snippet()
    assert f"kHead = {model.predicted_bytes};" in text
    assert "MicroMutableOpResolver<3>" in text
    assert "resolver.AddFullyConnected();" in text
    assert 'resolver.AddCustom("Mine"' in text
    assert resolver_method("DEPTHWISE_CONV_2D") == "AddDepthwiseConv2D"
    assert resolver_method("READ_VARIABLE") == "AddReadVariable"


def test_names_of_custom_operators_cannot_leave_their_string(tiny):
    name = 'a"); \\ system("x\n\t\u00e9'
    model = TfliteModel.from_bytes(tiny.encode(tiny.diamond()))
    operator = replace(model.graph.subgraphs[0].operators[0], op=name, custom=True)
    main = replace(model.graph.subgraphs[0], operators=(operator,))
    text = replace(model, graph=replace(model.graph, subgraphs=(main,))).snippet()
    (line,) = [row for row in text.splitlines() if "AddCustom" in row]
    literal = re.search(r'AddCustom\("((?:[^"\\]|\\.)*)", /\*', line)
    assert literal is not None
    assert literal[1].encode().decode("unicode_escape").encode("latin-1").decode() == name


def test_names_of_buffers_are_unique(tiny):
    file = tiny.diamond()
    for tensor in file.subgraphs[0].tensors:
        tensor.name = "same"
    file.subgraphs[0].tensors[0].name = "same#3"
    model = TfliteModel.from_bytes(tiny.encode(file))
    names = [b.name for b in model.program.buffers]
    assert len(set(names)) == len(names)


def test_the_program_survives_json(tiny):
    from peakmem.model import Program

    for file in (tiny.streaming(), tiny.branching(), tiny.random_file(1)):
        program = TfliteModel.from_bytes(tiny.encode(file)).program
        assert Program.from_json(program.to_json()).digest == program.digest


def test_a_runtime_without_a_wheel_for_this_python_says_so() -> None:
    from peakmem_tflite.settings import only_where_a_wheel_is

    line = "pip install 'peakmem-tflite[tflite-runtime]'"
    assert only_where_a_wheel_is((3, 11), line) == line
    assert only_where_a_wheel_is((3, 12), line) == f"on Python 3.11, for which alone there is a wheel: {line}"
