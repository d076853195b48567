"""What is not served is said once, with the reason: a warning and a row in the report."""

from __future__ import annotations

import warnings
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peakmem
import peakmem_inductor
import pytest
from peakmem.model import InputError
from peakmem_inductor import serving
from peakmem_inductor.serving import PeakmemWarning, untried
from texts import wrapper_of


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_warned", set())


@pytest.mark.parametrize("option", ["cpp_wrapper"])
def test_options_that_make_what_cannot_be_permuted(torch: Any, option: str) -> None:
    compiled = torch.compile(lambda x: ((x @ x).relu() @ x).sin(), backend="peakmem", options={option: True})
    with torch.no_grad():
        with pytest.warns(PeakmemWarning, match=f"{option}=True.*turn that off"):
            compiled(torch.ones(3, 3))
        compiled(torch.ones(3, 3))
    (row,) = peakmem_inductor.report()
    assert row.state == "left alone"
    assert f"{option}=True" in row.reason


def dispatcher(path: Path, source: str) -> Any:
    from peakmem_inductor.dispatch import Candidate, Dispatcher, Options

    path.write_text(source)
    return Dispatcher([Candidate("default", SimpleNamespace(), path, lambda args: ("original",))], Options())


def test_gpu_programs_are_named_once(torch: Any, tmp_path: Path) -> None:
    gpu = wrapper_of("arg0_1 = copy_if_misaligned(arg0_1)\nbuf0 = empty_strided_cuda((4, 4), (4, 1), torch.float32)\nreturn (buf0, )")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(2):
            call = dispatcher(tmp_path / f"{i}.py", gpu)
            for _ in range(2):  # the first call of a GPU program is not looked at
                assert call([torch.ones(4, 4)] * 2) == ("original",)
        assert dispatcher(tmp_path / "2.py", wrapper_of("return (arg0_1, )"))([torch.ones(4, device="meta")] * 2) == ("original",)
    assert [str(w.message).split(": ")[-1] for w in caught] == [
        "the graph runs on cuda, which torch cannot use here", "the graph runs on meta; only graphs on the CPU or CUDA are permuted"
    ]
    assert all(w.category is PeakmemWarning for w in caught)
    assert [r.reason for r in peakmem_inductor.report()][:2] == ["the graph runs on cuda, which torch cannot use here"] * 2


def test_a_graph_without_a_python_program_has_a_row(torch: Any) -> None:
    from peakmem_inductor import backend

    graph = torch.fx.symbolic_trace(lambda x: x + 1)
    compiled = object()
    with pytest.warns(PeakmemWarning, match="7_backward runs as Inductor wrote it"):
        got = backend._inner(backend.Options(), lambda *_, **__: compiled, graph, [], graph_id=7, is_backward=True)
    assert got is compiled
    assert [(r.name, r.state) for r in peakmem_inductor.report()] == [("7_backward", "left alone")]


NOTHING = """
import sys, torch, peakmem_inductor
compiled = torch.compile(torch.nn.LSTM(4, 4), backend=sys.argv[1])
compiled(torch.zeros(2, 1, 4))
if sys.argv[2] == "ask":
    for _ in range(2): print(peakmem_inductor.report())
"""


@pytest.mark.parametrize(("backend", "ask", "told"), [("peakmem", "ask", 1), ("peakmem", "never", 1), ("eager", "ask", 0)])
def test_no_graph_at_all(nursery: Any, backend: str, ask: str, told: int) -> None:
    """Dynamo does not hand over recurrent layers: the report and a warning, at the latest at the end, say so."""
    run = nursery.run(NOTHING, backend, ask)
    out, err = run.out.decode(), run.err.decode()
    assert run.code == 0, err
    assert err.count("PeakmemWarning: peakmem: torch.compile looked at 1 function and gave peakmem no graph") == told, err
    if told and ask == "ask":
        assert out.count("left alone: torch.compile looked at 1 function") == 2
        assert "LSTM" in out


@pytest.mark.parametrize(
    ("version", "known"),
    [("2.13.0", True), ("2.13.0+cpu", True), ("2.14.0a0+git1", True), ("2.14.1", True), ("2.12.1", False), ("2.14.2", False), ("3.0.0.dev20270101", False)],
)
def test_versions_that_were_tried(version: str, known: bool) -> None:
    assert (untried(version) == "") == known


def test_an_untried_torch_is_named_once(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from peakmem_inductor import backend

    monkeypatch.setattr(serving, "TRIED", ("1.0.0", "1.0.1"))
    monkeypatch.setattr(backend, "reached", False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for n in (2, 3):
            torch._dynamo.reset()
            with torch.no_grad():
                torch.compile(lambda x: x.relu() + 1, backend="peakmem")(torch.ones(n))
    (told,) = [str(w.message) for w in caught if w.category is PeakmemWarning]
    assert "was never tried with peakmem, 1.0.0 to 1.0.1 were" in told
    first, *rest = peakmem_inductor.report()
    assert (first.name, first.state) == ("(torch)", "untried")
    assert [r.state for r in rest] == ["kept", "kept"]


def test_packages_of_aotinductor_are_refused(tmp_path: Path) -> None:
    package = tmp_path / "m.pt2"
    with zipfile.ZipFile(package, "w") as file:
        file.writestr("m/data/aotinductor/model/a.wrapper.cpp", "")
    text = tmp_path / "a.cpp"
    text.write_text("#include <torch/csrc/inductor/aoti_include/cpu.h>\n")
    for path in (package, text):
        with pytest.raises(InputError, match="AOTInductor"):
            peakmem.load(path)
