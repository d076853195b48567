"""What processes take: every figure from a process of its own."""

from __future__ import annotations

import sys

import pytest
from onnx import helper
from peakmem.api import load, optimize
from peakmem.model import RuntimeFailed, UsageError
from peakmem_onnx import process
from peakmem_onnx.feeds import write_feeds
from peakmem_onnx.process import Taken, headline, parse_session, sentences
from peakmem_onnx.runtime import ask, child_environment, counting_library, scratch

from .conftest import branches, model, needs_runtime, value, weight

pytestmark = needs_runtime


@pytest.fixture(autouse=True)
def without_processes():
    """Here they are measured; elsewhere they are not (see conftest)."""


@pytest.fixture(autouse=True)
def warm_children():
    """Here children are started as users start them."""


def wide():
    """Weights of 4 MiB, activations of 16 MiB and more."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Exp", ["a"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("ReduceMean", ["c"], ["y"], keepdims=0),
        helper.make_node("MatMul", ["v", "big"], ["z"]),
    ]
    return model(nodes, [value("x", [1, 1, 512, 512]), value("v", [1, 1024])], [value("y", []), value("z", [1, 1024])],
                 [weight("w", 8, 1, 1, 1), weight("big", 1024, 1024)])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="read from /proc")
def test_the_process_before_and_after(store):
    m = load(store(wide()), frontend="onnx", ort_level="basic", repeats=2)
    result = optimize(m, time_limit=600)
    check = result.verification
    rows = {row["name"]: row for row in result.to_json()["onnx"]["process"]}
    names = {"the new file", "the new file in a planned arena"}
    assert list(rows)[:2] == ["ONNX Runtime as it comes", "without memory patterns"]
    assert set(list(rows)[2:]) == names
    for row in rows.values():
        assert row["load_bytes"] > 4 << 20  # the weights
        assert row["growth_bytes"] > 16 << 20  # two activations at once
        assert row["peak_bytes"] >= max(row["load_bytes"], row["growth_bytes"])
        assert row["cpu_seconds"] > 0
    if counting_library() is not None:
        assert rows["ONNX Runtime as it comes"]["arena_bytes"] >= 16 << 20
        assert rows["the new file"]["arena_bytes"] is None
        assert rows["the new file"]["asked_bytes"] == check.optimized_bytes
    assert check.headline.startswith("process +")
    assert check.headline.endswith("x time")
    assert sum(note.startswith("process, ") for note in check.notes) == 4
    last, other = (rows[name] for name in reversed(list(rows)[2:]))
    assert last["peak_bytes"] <= other["peak_bytes"]
    if planned := list(rows)[-1] != "the new file":
        assert f"arena={last['arena_bytes']})" in "".join(check.notes)
        assert str(last["arena_bytes"]) in result.model.snippet()
    assert ("use_env_allocators" in result.model.snippet()) == planned
    assert any("median of 2 fresh processes each, of up to 4 runs" in note for note in check.notes)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="read from /proc")
def test_a_file_as_it_is_with_the_users_own_settings(store):
    options = ("enable_mem_pattern=0", "intra_op_num_threads=2", "session.intra_op.allow_spinning=0", "enable_cpu_mem_arena=false")
    m = load(store(branches()), frontend="onnx", ort_level="none", repeats=1, session=options)
    first, told, notes = m.observe()
    (row,) = told["process"]
    assert row["name"] == "your settings"
    assert row["settings"] == ", ".join(options)
    assert row["arena_bytes"] is None
    assert first == f"process +{process.short(row['peak_bytes'])}"
    assert len(notes) == 2
    assert load(store(branches()), frontend="onnx", repeats=0).observe() == ("", {}, ())


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="read from /proc")
def test_after_the_limit_no_round_begins(store, monkeypatch):
    monkeypatch.setattr(process, "LIMIT", 0.0)
    m = load(store(branches()), frontend="onnx", ort_level="none", repeats=50)
    first, told, notes = m.observe()
    assert first
    assert [row["repeats"] for row in told["process"]] == [1, 1]
    assert "median of 1 fresh process each" in notes[-1]


def test_settings_are_read():
    assert parse_session(()) == process.DEFAULTS
    job = parse_session(("graph_optimization_level=basic", "enable_mem_reuse=0", "session.x=A=b", "inter_op_num_threads=2"))
    assert job == {**process.DEFAULTS, "level": "basic", "reuse": False, "inter_threads": 2, "config": {"session.x": "A=b"}}
    for bad in ("enable_mem_pattern", "enable_mem_pattern=maybe", "nonsense=1", "graph_optimization_level=9", "=1"):
        with pytest.raises(UsageError, match=r"^--session "):
            parse_session((bad,))


def test_settings_are_refused_before_anything_runs(store, monkeypatch):
    monkeypatch.setattr("peakmem_onnx.compile.ask", lambda *_, **__: pytest.fail("it was run"))
    with pytest.raises(UsageError, match="nonsense"):
        load(store(branches()), frontend="onnx", session=("nonsense=1",))


def test_the_sentences():
    before = Taken("as it comes", "", 100 << 20, 30 << 20, 70 << 20, 80 << 20, 60 << 20, 0.2)
    after = Taken("the new file", "", 40 << 20, 20 << 20, 20 << 20, None, 15 << 20, 0.21)
    assert headline([before, after], new=True) == "process +100.0 MiB -> +40.00 MiB (-60 %) at 1.05x time"
    assert headline([before], new=False) == "process +100.0 MiB"
    assert headline([], new=True) == ""
    assert sentences([before, after])[1] == (
        "process, the new file: peak +40.00 MiB (-60 %) at 1.05x time, loading +20.00 MiB, runs +20.00 MiB, asked for 15.00 MiB"
    )


@pytest.mark.parametrize(("sizes", "keep"), [((10, 9, 8), ""), ((10, 12, 11), "in your own session (+"), ((10, 7, 8), "enable_mem_pattern=0 (+8")])
def test_what_takes_no_less_is_not_recommended(store, monkeypatch, sizes, keep):
    names = ("as it comes", process.WITHOUT, process.NEW)
    rows = [Taken(name, "", size << 20, 1, 1, None, None, 1.0) for name, size in zip(names, sizes, strict=True)]
    monkeypatch.setattr(process, "measure_process", lambda *_, **__: rows)
    m = load(store(branches()), frontend="onnx", ort_level="none")
    check = m.verify(m)
    told = [note for note in check.notes if "for the process keep that" in note]
    assert len(told) == bool(keep)
    assert all(keep in note and note.endswith("; --deploy arena plans its arena") for note in told)
    assert check.headline.endswith("so keep what you have") == bool(keep)


def test_what_cannot_be_measured_is_said(store, monkeypatch):
    m = load(store(branches()), frontend="onnx", ort_level="none", repeats=1)

    def fail(*_, **__):
        raise RuntimeFailed("the system does not tell VmHWM")

    monkeypatch.setattr(process, "measure_process", fail)
    check = m.verify(m)
    assert check.failures == ()
    assert check.headline == ""
    assert "the memory of the process was not measured: the system does not tell VmHWM" in check.notes
    assert m.observe() == ("", {}, ("the memory of the process was not measured: the system does not tell VmHWM",))


def test_a_path_from_the_working_folder(store, tmp_path, monkeypatch):
    """Children have another one."""
    path = store(branches())
    monkeypatch.chdir(path.parent)
    _, told, notes = load(path.name, frontend="onnx", repeats=1).observe()
    assert not any("not measured" in note for note in notes)
    assert told["process"]


def test_what_children_are_given(monkeypatch, tmp_path):
    """Where modules and libraries are is the same for them, whatever their working folder; threads and such are left out."""
    if not sys.platform.startswith("linux"):
        pytest.skip("elsewhere they are given everything")
    monkeypatch.chdir(tmp_path)
    given = {"PYTHONUSERBASE": "u", "PYTHONNOUSERSITE": "1", "PYTHONPATH": "a:/b:", "LD_LIBRARY_PATH": "", "OMP_NUM_THREADS": "4", "ORT_X": "1"}
    wanted = {"PYTHONUSERBASE": "u", "PYTHONNOUSERSITE": "1", "PYTHONPATH": f"{tmp_path}/a:/b:{tmp_path}", "LD_LIBRARY_PATH": "", "ORT_X": "1"}
    assert child_environment(given) == wanted


@pytest.mark.skipif(counting_library() is None, reason="allocations cannot be counted here")
def test_a_library_in_a_folder_with_any_name(store, tmp_path):
    path = store(branches())
    m = load(path, frontend="onnx")
    place = tmp_path / "First Last: cache"
    place.mkdir()
    library = place / "count.so"
    library.write_bytes(counting_library().read_bytes())
    with scratch() as folder:
        step = {"do": "measure", "feeds_files": write_feeds(m.origin.feeds, folder), "level": "none", "model": str(path)}
        assert ask(folder, [step], preload=library)[0]["counted"]
        assert ask(folder, [step], preload=library)[0]["counted"]
        library.write_bytes(b"no library")
        with pytest.raises(RuntimeFailed, match="which counts allocations"):
            ask(folder, [step], preload=library)
