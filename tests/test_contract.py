"""The contract that every frontend keeps, whatever it reads. Runs against each one that is installed."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import peakmem
import pytest
from peakmem.frontends import Frontend, Model, complete_options, discover, get_frontend, recognise
from peakmem.model import (
    InputError,
    PeakmemError,
    Program,
    RuntimeFailed,
    RuntimeMissing,
    UsageError,
    scheduled_timeline,
)
from peakmem_cli.main import main

INSTALLED = sorted(discover())
MODULES_OF_RUNTIMES = (
    "torch", "onnx", "onnxruntime", "tflite_micro", "tflite_runtime", "ai_edge_litert", "numpy", "ortools",
    "peakmem_tape.machine",
)  # fmt: skip


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.beside(name)) for name in INSTALLED])
def frontend(request: pytest.FixtureRequest) -> Frontend:
    return get_frontend(request.param)


@pytest.fixture
def sample(frontend: Frontend, samples: dict[str, Callable[[Path], Path]], tmp_path: Path) -> Path:
    if frontend.name not in samples:
        pytest.skip(f"no small artifact of frontend {frontend.name!r} can be made here; its own tests cover it")
    return samples[frontend.name](tmp_path)


@pytest.fixture
def model(sample: Path) -> Model:
    try:
        return peakmem.load(sample)
    except RuntimeMissing as error:  # a frontend whose runtime compiles the artifact first
        pytest.skip(str(error))


def greedy(program: Program) -> tuple[int, ...]:
    """Another valid order: run next what adds least, later statements first. Differs from the given one if it can."""
    done: list[int] = []
    left = set(range(len(program)))
    while left:
        ready = [v for v in left if not any(u in left for u in program.predecessors[v])]
        last = set(program.successors[done[-1]]) if done else set()
        done.append(max(ready, key=lambda v: (v in last, v)))
        left.remove(done[-1])
    return tuple(done)


def reordered(model: Model) -> object:
    """An ordering as the library would hand it over."""
    orders = {path: tuple(range(len(body))) for path, body in model.program.bodies()}
    orders[""] = greedy(model.program)
    peak = scheduled_timeline(model.program, orders).peak
    given = scheduled_timeline(model.program, {}).peak
    return SimpleNamespace(
        program=model.program, orders=orders, peak_before=given, peak=peak, lower_bound=0, certificate=None,
        seconds=0.0, interrupted=False, notes=(),
    )  # fmt: skip


@pytest.mark.beside
def test_the_tiny_plugin_is_installed() -> None:
    assert {"program", "tape"} <= set(INSTALLED), "install the test plugin: pip install ./tests/plugin"


@pytest.mark.beside
def test_listing_frontends_imports_no_runtime() -> None:
    code = (
        "import sys, peakmem.frontend as f\n"
        "for name in f.discover(): f.get_frontend(name).runtimes()\n"
        f"print([m for m in {MODULES_OF_RUNTIMES!r} if m in sys.modules and hasattr(sys.modules[m], '__file__')"
        " and sys.modules[m].__file__])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.strip() == "[]"


def test_declaration(frontend: Frontend) -> None:
    assert isinstance(frontend, Frontend)
    assert discover()[frontend.name].load() is frontend
    keys = [option.key for option in frontend.options]
    assert len(set(keys)) == len(keys)
    for option in frontend.options:
        assert re.fullmatch(r"[a-z][a-z0-9-]*", option.name)
        assert option.help
        assert bool(option.choices) == (option.kind == "choice")
        if option.multiple:
            assert option.default == ()
        if option.names_runtime:
            assert set(option.choices) <= {runtime.name for runtime in frontend.runtimes()}
    for runtime in frontend.runtimes():
        assert "pip install" in runtime.pip
    with pytest.raises(UsageError, match="no_such_option"):
        complete_options(frontend, {"no_such_option": 1})


@pytest.mark.beside
def test_sample_is_recognised_by_this_frontend_alone(frontend: Frontend, sample: Path) -> None:
    assert recognise(sample) is frontend


def test_model_says_what_it_is(frontend: Frontend, model: Model, sample: Path) -> None:
    assert isinstance(model, Model)
    assert model.frontend == frontend.name
    assert model.path == sample
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", model.digest)
    assert len(model.program) > 1
    assert model.predicted_bytes > 0
    assert model.input_rule
    assert model.quantity in {"live_peak", "tape_bytes", "arena_head", "activation_bytes", "bytes_above_entry"}
    # A bound on the live peak, less what the quantity leaves out, bounds the quantity.
    assert model.predicted_bytes >= scheduled_timeline(model.program, {}).peak - model.realized_offset
    again = peakmem.load(sample)
    assert again.digest == model.digest
    assert again.program.digest == model.program.digest


def test_rewritten_file_runs_in_the_scheduled_order(model: Model, tmp_path: Path) -> None:
    schedule = model.schedule(reordered(model))
    order = schedule.orders[""]
    model.program.validate_order(order)
    assert order != tuple(range(len(order))), "the sample leaves nothing to reorder"
    before = model.path.read_bytes()
    rewritten = model.apply(schedule)
    out = tmp_path / f"out{model.path.suffix}"
    rewritten.save(out)
    assert model.path.read_bytes() == before
    read = peakmem.load(out, frontend=model.frontend)
    assert read.predicted_bytes == rewritten.predicted_bytes
    assert read.program.digest == rewritten.program.digest
    assert len(read.program) == len(model.program)
    expected = scheduled_timeline(model.program, schedule.orders).peak
    assert scheduled_timeline(read.program, {}).peak == expected
    # The statements stand in the file as they were scheduled: told by operator and sizes, which no rewrite changes.
    def shape(program: Program, v: int) -> tuple[object, ...]:
        statement = program.statements[v]
        return statement.op, statement.workspace, sorted(program.buffers[b].size for b in program.touched[v])

    assert [shape(read.program, v) for v in range(len(read.program))] == [shape(model.program, v) for v in order]


@pytest.mark.usefixtures("model")  # skips where the artifact cannot be loaded
def test_rewriting_is_deterministic(sample: Path, tmp_path: Path) -> None:
    files = []
    for name in ("one", "two"):
        model = peakmem.load(sample)
        out = tmp_path / (name + sample.suffix)
        model.apply(model.schedule(reordered(model))).save(str(out))  # a text is as good as a path
        files.append(out.read_bytes())
    assert files[0] == files[1]


def test_outputs_are_never_overwritten_by_accident(model: Model, tmp_path: Path) -> None:
    rewritten = model.apply(model.schedule(reordered(model)))
    out = tmp_path / f"there{model.path.suffix}"
    out.write_bytes(b"precious")
    with pytest.raises(UsageError, match="--force"):
        rewritten.save(out)
    assert out.read_bytes() == b"precious"
    with pytest.raises(UsageError, match="is the input file"):
        model.save(model.path, force=True)
    rewritten.save(out, force=True)
    assert out.read_bytes() != b"precious"
    assert not [p.name for p in tmp_path.iterdir() if p.name.startswith(".")], "a temporary file was left"


def test_verify_measures_or_says_why_not(model: Model) -> None:
    rewritten = model.apply(model.schedule(reordered(model)))
    try:
        result = model.verify(rewritten)
    except RuntimeMissing as error:
        assert "pip install" in str(error) or "no runtime" in str(error)
        pytest.skip(f"not run: {error}")
    except RuntimeFailed as error:
        pytest.fail(str(error))
    assert result.bitwise_identical is True
    assert result.failures == ()
    assert result.measured
    assert result.as_predicted, f"{result.baseline_bytes} {result.optimized_bytes} against the prediction {result}"
    assert result.quantity == model.quantity


@pytest.mark.parametrize("command", ["optimize", "recompute", "verify"])
def test_a_runtime_that_is_named_and_missing_ends_what_measures(
    frontend: Frontend, sample: Path, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    choices = [(option.name, name) for option in frontend.options if option.names_runtime for name in option.choices]
    if not choices:
        pytest.skip(f"no option of frontend {frontend.name!r} names a runtime")
    missing = tuple(dataclasses.replace(status, version=None) for status in frontend.runtimes())
    monkeypatch.setattr(frontend, "runtimes", lambda: missing)
    for option, name in choices:
        files = [str(sample)] * (2 if command == "verify" else 1)
        assert main([command, *files, "--frontend", frontend.name, f"--{option}", name]) == RuntimeMissing.exit_code
        out, err = capsys.readouterr()
        assert out == ""
        assert f"{name} is not installed; try: pip install " in err
        assert err.count("\n") == 1


def test_damaged_files_are_refused_in_a_sentence(frontend: Frontend, sample: Path, tmp_path: Path) -> None:
    data = sample.read_bytes()
    options = complete_options(frontend, {})
    damaged = tmp_path / f"damaged{sample.suffix}"
    refused = 0
    for cut in (0, 1, 7, 40, len(data) // 3, len(data) // 2, len(data) - 3):
        damaged.write_bytes(data[:cut])
        try:
            frontend.load(damaged, options)
        except PeakmemError as error:
            assert str(damaged) in str(error)
            assert "\n" not in str(error)
            refused += 1
    assert refused >= 4
    with pytest.raises(InputError, match="cannot be read"):
        frontend.load(tmp_path / "absent", options)


def test_models_are_immutable(model: Model) -> None:
    if dataclasses.is_dataclass(model):
        with pytest.raises(dataclasses.FrozenInstanceError):
            model.program = None  # type: ignore[misc]
