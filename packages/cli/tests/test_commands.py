"""What the commands print, write and return."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peakmem as library
import pytest
from peakmem.model import Program, peak_of

Call = Callable[..., Any]


def least_peak(program: Program) -> int:
    """Brute force over all orders."""
    best = None
    for order in itertools.permutations(range(len(program))):
        position = {v: i for i, v in enumerate(order)}
        if all(position[u] < position[v] for v in order for u in program.predecessors[v]):
            peak = peak_of(program, order)
            best = peak if best is None else min(best, peak)
    assert best is not None
    return best


def test_optimize_reaches_the_least_peak_and_says_so_in_the_first_line(
    peakmem: Call, program: Path, tmp_path: Path
) -> None:
    out = tmp_path / "better.json"
    before = program.read_bytes()
    done = peakmem("optimize", program, "-o", out)
    assert (done.code, done.err) == (0, "")
    least = least_peak(library.load(program).program)
    first = done.out.splitlines()[0]
    assert first.startswith(f"live_peak 1,600 B -> {least:,} B (-{100 * (1600 - least) / 1600:.1f} %), ")
    assert first.endswith("; predicted")
    assert "certified optimal" in first
    assert program.read_bytes() == before
    written = library.load(out).program
    assert peak_of(written) == least
    assert "not measured: a bare program has no runtime" in done.out
    assert re.search(r"^moved \d of 7 statements:$", done.out, re.MULTILINE)
    assert "inputs: inputs are resident from entry" in done.out
    assert re.search(r"^ (wide\d) +intermediate +512 B", done.out, re.MULTILINE)


def test_quiet_prints_the_answer_alone(peakmem: Call, program: Path) -> None:
    for command in ("optimize", "inspect", "certify"):
        done = peakmem(command, program, "-q")
        assert done.code == 0
        assert done.out.count("\n") == 1


def test_an_effort_ends_the_search_and_gives_the_same_certificate_every_time(
    peakmem: Call, program: Path, tmp_path: Path
) -> None:
    least = least_peak(library.load(program).program)
    for effort, optimal in ((0, False), (100_000, True)):
        files = []
        for k in range(2):
            out = tmp_path / f"{effort}-{k}.json"
            done = peakmem("certify", program, "--effort", effort, "--time-limit", "inf", "-o", out, "--json")
            assert done.code == 0
            assert json.loads(done.out)["optimal"] is optimal
            assert json.loads(done.out)["lower_bound"] <= least
            files.append(out.read_bytes())
        assert files[0] == files[1]
    assert peakmem("optimize", program, "--effort", 0, "--require-optimal").code == 3


@pytest.mark.parametrize("command", ["optimize", "inspect", "certify", "frontends"])
def test_json_is_one_document(peakmem: Call, program: Path, command: str) -> None:
    arguments = [command, "--json"] if command == "frontends" else [command, program, "--json"]
    document = peakmem(*arguments).document
    assert document["schema"].startswith("peakmem.")


def test_result_document_has_the_promised_names(peakmem: Call, program: Path) -> None:
    document = peakmem("optimize", program, "--json").document
    assert document["schema"] == "peakmem.result/1"
    assert set(document) >= {
        "schema", "frontend", "input", "output", "statements", "live_peak_before", "live_peak_after", "lower_bound",
        "optimal", "gap", "order", "certificate", "seconds", "runtime",
    }  # fmt: skip
    assert set(document["runtime"]) >= {
        "name", "version", "quantity", "baseline_bytes", "predicted_bytes", "optimized_bytes", "measured",
        "bitwise_identical",
    }  # fmt: skip
    assert document["runtime"]["measured"] is False
    assert document["runtime"]["optimized_bytes"] is None
    assert sorted(document["order"][""]) == sorted(row["id"] for row in json.loads(program.read_text())["statements"])


def test_an_error_is_one_document_too(peakmem: Call, tmp_path: Path) -> None:
    done = peakmem("inspect", tmp_path / "absent.json", "--json")
    assert done.code == 2
    assert done.document["schema"] == "peakmem.error/1"
    assert done.document["error"] in done.err


def test_budget_is_a_gate(peakmem: Call, program: Path) -> None:
    assert peakmem("optimize", program, "--budget", "1KB", "-q").code == 0
    done = peakmem("optimize", program, "--budget", "0.5KB", "-q")
    assert done.code == 1
    assert done.err.startswith("peakmem: over budget: live_peak ")
    assert peakmem("certify", program, "--budget", "1 KiB").code == 0
    done = peakmem("certify", program, "--budget", "100")
    assert done.code == 1
    assert "and no order fits" in done.err
    assert peakmem("optimize", program, "--budget", "100", "--json").document["budget"] == {"bytes": 100, "met": False}


def test_certificate_is_written_and_checked(peakmem: Call, program: Path, tmp_path: Path) -> None:
    proof, copy = tmp_path / "proof.json", tmp_path / "program.json"
    done = peakmem("certify", program, "-o", proof, "--program-out", copy, "--explain", "--require-optimal")
    assert done.code == 0, done.err
    assert "certified optimal" in done.out.splitlines()[0]
    assert len(done.out.splitlines()) > 4
    document = json.loads(proof.read_text())
    assert document["artifact"]["digest"] == library.load(program).digest
    assert document["artifact"]["frontend"] == "program"
    valid = peakmem("check", program, proof)
    assert valid.code == 0
    assert valid.out.startswith("valid: ")
    stranger = peakmem("check", copy, proof)
    assert stranger.code == 0
    assert "another file with this very program" in stranger.out
    document["lower_bound"] += 1
    proof.write_text(json.dumps(document))
    refused = peakmem("check", program, proof)
    assert refused.code == 1
    assert refused.out == ""


def test_certificate_of_another_program_is_refused(peakmem: Call, program: Path, tmp_path: Path) -> None:
    proof, other = tmp_path / "proof.json", tmp_path / "other.json"
    assert peakmem("certify", program, "-o", proof).code == 0
    other.write_text(program.read_text().replace("512", "513"))
    assert peakmem("check", other, proof).code == 1


def test_optimize_writes_its_certificate(peakmem: Call, program: Path, tmp_path: Path) -> None:
    proof = tmp_path / "proof.json"
    assert peakmem("optimize", program, "--certificate-out", proof, "-q").code == 0
    assert peakmem("check", program, proof).code == 0


def test_without_a_proof_nothing_is_called_optimal(
    peakmem: Call, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    from peakmem.frontends import steps

    found = steps.order_program

    def unproved(*arguments: Any, **options: Any) -> Any:
        return dataclasses.replace(found(*arguments, **options), certificate=None, lower_bound=500)

    monkeypatch.setattr(steps, "order_program", unproved)
    done = peakmem("optimize", program, "--require-optimal")
    assert done.code == 3
    assert "best found, lower bound 500 B, gap" in done.out.splitlines()[0]
    assert "optimal" not in done.out
    done = peakmem("certify", program, "-o", tmp_path / "proof.json")
    assert done.code == 3
    assert not (tmp_path / "proof.json").exists()
    assert "optimal" not in done.out


def test_a_refused_certificate_is_not_shown_as_a_proof(
    peakmem: Call, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peakmem.model import Refused

    def refuse(*_: object) -> None:
        raise Refused("exit 3 is not listed")

    monkeypatch.setattr("peakmem.proof.accept", refuse)
    done = peakmem("optimize", program)
    assert done.code == 0
    assert "certified" not in done.out.splitlines()[0]
    assert "lower bound 576 B, gap" in done.out.splitlines()[0]  # the largest statement: x and a wide value
    assert "own checker refused the certificate" in done.out


def test_a_search_that_was_interrupted_shows_its_best(
    peakmem: Call, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dataclasses

    from peakmem.frontends import steps

    found = steps.order_program
    monkeypatch.setattr(
        steps, "order_program", lambda *a, **k: dataclasses.replace(found(*a, **k), interrupted=True, certificate=None)
    )
    done = peakmem("optimize", program)
    assert done.code == 0
    assert "the search ended early, by its time limit or Ctrl-C; this is the best so far" in done.out


def test_interrupting_the_plan_or_the_measurement_keeps_the_result(
    peakmem: Call, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peakmem.frontends.programfile import ProgramModel

    planned = ProgramModel.schedule
    deadlines = []

    def plan(model: ProgramModel, ordering: Any, *, deadline: float | None = None) -> Any:
        deadlines.append(deadline)
        if len(deadlines) == 1:
            raise KeyboardInterrupt
        return planned(model, ordering, deadline=deadline)

    def measure(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ProgramModel, "schedule", plan)
    monkeypatch.setattr(ProgramModel, "verify", measure)
    out = tmp_path / "out.json"
    done = peakmem("optimize", program, "-o", out)
    assert done.code == 0
    assert "certified optimal; predicted" in done.out.splitlines()[0]
    assert "not measured: not run (interrupted)" in done.out
    assert out.is_file()
    assert deadlines[1] is not None
    assert deadlines[1] < deadlines[0]  # the second plan had to be made at once


def test_interrupt_while_loading_has_a_sentence_and_a_code(
    peakmem: Call, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peakmem.frontends import steps

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(steps, "order_program", interrupted)
    done = peakmem("optimize", program)
    assert (done.code, done.out) == (130, "")
    assert done.err == "peakmem: interrupted before there was a result\n"


def test_internal_errors_are_a_sentence(
    peakmem: Call, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peakmem.frontends import steps

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(steps, "order_program", broken)
    monkeypatch.delenv("PEAKMEM_DEBUG", raising=False)
    done = peakmem("optimize", program)
    assert done.code == 2
    assert done.err.startswith("peakmem: internal error: ZeroDivisionError: by zero; please report this")
    monkeypatch.setenv("PEAKMEM_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        peakmem("optimize", program)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["optimize", "PROGRAM", "-o", "PROGRAM"], "is the input file"),
        (["optimize", "PROGRAM", "-o", "FOLDER"], "is a folder"),
        (["optimize", "PROGRAM", "-o", "FOLDER/no/such/out.json"], "does not exist"),
        (["optimize", "PROGRAM", "-o", "EXISTING"], "give --force"),
        (["optimize", "PROGRAM", "-o", "-"], "standard output is for the answer"),
        (["certify", "PROGRAM", "--program-out", "-", "--force"], "standard output is for the answer"),
        (["certify", "PROGRAM", "-o", "EXISTING"], "give --force"),
        (["certify", "PROGRAM", "--program-out", "PROGRAM", "--force"], "is the input file"),
        (["optimize", "PROGRAM", "-o", "FOLDER/a", "--certificate-out", "FOLDER/a"], "is named for two outputs"),
        (["certify", "PROGRAM", "-o", "FOLDER/a", "--program-out", "FOLDER/./a"], "is named for two outputs"),
        (["optimize", "PROGRAM", "--frobnicate"], "No such option: --frobnicate"),
        (["optimize", "FOLDER/absent.json", "--frobnicate"], "cannot be read"),
        (["optimize", "PROGRAM", "--budget", "many"], "is not a size"),
        (["optimize", "PROGRAM", "--time-limit", "-1"], "is not a number of seconds"),
        (["optimize", "PROGRAM", "--time-limit", "nan"], "is not a number of seconds"),
        (["optimize", "PROGRAM", "--effort", "-1"], "--effort"),
        (["optimize", "PROGRAM", "--effort", "many"], "valid integer"),
        (["optimize", "PROGRAM", "--frontend", "cobol"], "no frontend is called 'cobol'"),
        (["optimize", "PROGRAM", "--snippet"], "has no snippet"),
        (["optimize"], "Missing argument 'MODEL'"),
        (["optimise", "PROGRAM"], "No such command"),
        (["verify", "PROGRAM", "PROGRAM"], "a bare program has no runtime"),
        (["check", "PROGRAM", "PROGRAM"], "peakmem.certificate/1"),
        (["check", "PROGRAM", "EXISTING"], "not JSON"),
        (["inspect", "EXISTING"], "no installed frontend recognises"),
        (["inspect", "EMPTY"], "is empty"),
        (["recompute", "PROGRAM", "--threshold", "widen="], "--threshold: '' is not a size"),
    ],
)
def test_bad_usage_is_one_sentence(
    peakmem: Call, program: Path, tmp_path: Path, arguments: list[str], says: str
) -> None:
    existing = tmp_path / "existing"
    existing.write_text("precious")
    (tmp_path / "empty").touch()
    before = program.read_bytes()
    words = {"PROGRAM": str(program), "EXISTING": str(existing), "EMPTY": str(tmp_path / "empty")}
    done = peakmem(*(words.get(a, a.replace("FOLDER", str(tmp_path))) for a in arguments))
    assert done.code in ((1, 2) if arguments[0] == "check" else (2,))
    assert done.out == ""
    assert done.err.startswith("peakmem: ")
    assert done.err.count("\n") == 1
    assert says in done.err
    assert existing.read_text() == "precious"
    assert program.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted({program.name, "existing", "empty"})


def test_force_replaces(peakmem: Call, program: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    out.write_text("old")
    assert peakmem("optimize", program, "-o", out, "--force", "-q").code == 0
    assert library.load(out).program.statements


def test_failing_outputs_are_not_written(
    peakmem: Call, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from peakmem.frontends import Verification, programfile

    def differs(*_: object, **__: object) -> Verification:
        return Verification("toy", "1", "live_peak", 10, 9, 10, 9, False, "1 output", ("output y differs at byte 3",))

    monkeypatch.setattr(programfile.ProgramModel, "verify", differs)
    out = tmp_path / "out.json"
    done = peakmem("optimize", program, "-o", out)
    assert done.code == 1
    assert "output y differs at byte 3; nothing written" in done.err
    assert "NOT identical" in done.out
    assert not out.exists()
    done = peakmem("verify", program, program)
    assert done.code == 1
    assert done.out.startswith("outputs DIFFER; live_peak 10 B -> 9 B")


def test_names_cannot_steer_the_terminal(peakmem: Call, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_text(
        json.dumps(
            {
                "schema": "peakmem.program/1",
                "buffers": [{"id": "\x1b[31m[bold]b", "bytes": 5}],
                "statements": [{"id": "a\nb", "op": "\u202e[/red]", "writes": ["\x1b[31m[bold]b"]}],
            }
        )
    )
    done = peakmem("inspect", path)
    assert done.code == 0
    assert "\x1b" not in done.out
    assert "\u202e" not in done.out
    assert r"\x1b[31m[bold]b" in done.out
    assert r"a\nb (\u202e[/red])" in done.out


def test_frontends_lists_the_built_in_one(peakmem: Call) -> None:
    rows = {row["name"]: row for row in peakmem("frontends", "--json").document["frontends"]}
    assert rows["program"]["distribution"] == "peakmem-core"
    assert "program (peakmem-core" in peakmem("frontends").out


def test_a_small_difference_is_never_shown_as_none() -> None:
    from peakmem_cli import words

    assert words.percent(0, 10) == "0.0 %"
    assert words.percent(1, 3) == "33.3 %"
    assert words.percent(6_272, 63_468_416) == "0.01 %"
    assert words.percent(-1, 10**9, sign="+") == "-0.0000001 %"
    assert words.change(1000, 1001) == "(+0.1 %)"


def test_measured_and_predicted_are_told_apart() -> None:
    from peakmem_cli import words

    check = SimpleNamespace(
        baseline_bytes=3840, optimized_bytes=2176, runtime="tflm", version="1.2", identical=True, headline=""
    )
    source = SimpleNamespace(quantity="arena_head", predicted_bytes=3840, bounded=True)
    after = SimpleNamespace(predicted_bytes=2176)
    result: Any = SimpleNamespace(
        verification=check, source=source, model=after, certificate=object(), realized_bound=2176, overlays=False
    )
    assert words.answer(result) == (
        "arena_head 3,840 B -> 2,176 B (-43.3 %), certified optimal; measured on tflm 1.2, outputs bitwise identical"
    )
    result.verification = None
    assert words.answer(result) == "arena_head 3,840 B -> 2,176 B (-43.3 %), certified optimal; predicted"
    result.overlays = True
    assert words.answer(result).endswith("certified optimal with overlays; predicted")
    result.overlays = False
    result.realized_bound, result.live_peak_after, result.lower_bound = 2500, 2500, 2500
    assert "(-43.3 %), order certified optimal; " in words.answer(result)
    result.realized_bound = 2048
    assert words.answer(result) == (
        "arena_head 3,840 B -> 2,176 B (-43.3 %), best found, certified lower bound 2,048 B, gap 5.9 %; predicted"
    )


def test_inspect_compares_like_with_like(peakmem: Call, program: Path) -> None:
    document = json.loads(program.read_text())
    assert "; an order with a live_peak of 608 B exists, certified optimal" in peakmem("inspect", program, "-q").out
    program.write_text(json.dumps({**document, "quantity": "bytes_above_entry"}))
    line = peakmem("inspect", program, "-q").out
    assert line.startswith("bytes_above_entry 1,536 B")
    assert "; an order with a live_peak of 608 B instead of 1,600 B exists, certified optimal" in line


def test_an_unknown_file_names_the_package_that_reads_its_kind(peakmem: Call, tmp_path: Path) -> None:
    from peakmem.frontends import discover

    for suffix, name in ((".tflite", "tflite"), (".onnx", "onnx"), (".py", "inductor")):
        path = tmp_path / f"model{suffix}"
        path.write_text("nothing of the kind")
        done = peakmem("inspect", path)
        assert done.code == 2 and done.err.count("\n") == 1
        if name not in discover():
            assert done.err.rstrip().endswith(f"(try: pip install peakmem-{name})")
        elif "no installed frontend" in done.err:
            assert "name one with --frontend" in done.err
    other = tmp_path / "model.xyz"
    other.write_text("nothing of the kind")
    assert "name one with --frontend" in peakmem("inspect", other).err


def test_overlays_are_shown_and_said(peakmem: Call, tmp_path: Path) -> None:
    """A relu that may write on top of what it reads: what shares is a row of its own, and the answer says what is proved."""
    path = tmp_path / "relu.json"
    document = {
        "schema": "peakmem.program/1",
        "buffers": [{"id": "x", "bytes": 64, "kind": "input"}, {"id": "y", "bytes": 64, "kind": "output"}],
        "statements": [{"id": "relu", "reads": ["x"], "writes": ["y"], "overlay": {"output": "y", "inputs": ["x"]}}],
    }
    path.write_text(json.dumps(document))
    shown = peakmem("inspect", path)
    assert "certified optimal with overlays" in shown.out and "(less: y on x)" in shown.out and "-64 B" in shown.out
    proof = tmp_path / "proof.json"
    said = peakmem("certify", path, "-o", proof, "--explain")
    assert said.out.startswith("live_peak 64 B -> 64 B (unchanged), certified optimal with overlays")
    assert json.loads(proof.read_text())["schema"] == "peakmem.certificate/2"
    assert peakmem("check", path, proof).code == 0
    document["statements"][0]["overlay"]["inputs"] = []  # type: ignore[index]
    path.write_text(json.dumps(document))
    wrong = peakmem("certify", path)
    assert wrong.code == 2 and "names no input" in wrong.err and wrong.err.count("\n") == 1
