"""Standard input as a model, outputs that are inputs, and what was written before something went wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from peakmem_cli import files, streams

from .conftest import ToyFrontend, ToyModel

Call = Callable[..., Any]


@pytest.fixture
def send(monkeypatch: pytest.MonkeyPatch) -> Callable[[bytes], None]:
    """Set what standard input holds; it can be read once."""

    def sent(data: bytes) -> None:
        left = [data, b""]
        monkeypatch.setattr(streams, "standard_input", lambda: left.pop(0) if left else b"")

    return sent


# standard input


@pytest.mark.parametrize("command", ["inspect", "certify", "optimize", "recompute"])
def test_a_model_from_standard_input_gives_the_same_answer(peakmem: Call, program: Path, send: Call, command: str) -> None:
    named = peakmem(command, program, "--json").document
    send(program.read_bytes())
    done = peakmem(command, "-", "--json")
    assert done.code == 0
    mine = done.document

    def said(document: dict[str, Any]) -> dict[str, Any]:
        return {k: v for k, v in document.items() if k not in ("input", "seconds", "certificate", "timings")}

    assert {k: said(mine)[k] for k in ("statements", "live_peak_after", "digest", "floor") if k in mine} == {
        k: said(named)[k] for k in ("statements", "live_peak_after", "digest", "floor") if k in named
    }
    if command in ("inspect", "certify"):
        assert mine["input"] == "-"


def test_options_of_the_frontend_are_known_for_standard_input(
    peakmem: Call, toy: ToyFrontend, toyfile: Path, send: Call, tmp_path: Path
) -> None:
    send(toyfile.read_bytes())
    done = peakmem("optimize", "-", "--engine", "steady", "-o", tmp_path / "out")
    assert (done.code, done.err) == (0, "")
    assert (tmp_path / "out").exists()


def test_check_reads_the_model_or_the_certificate_from_standard_input(
    peakmem: Call, program: Path, send: Call, tmp_path: Path
) -> None:
    certificate = tmp_path / "c.json"
    assert peakmem("certify", program, "-o", certificate).code == 0
    send(program.read_bytes())
    assert peakmem("check", "-", certificate).out.startswith("valid: ")
    send(certificate.read_bytes())
    assert peakmem("check", program, "-").out.startswith("valid: ")
    done = peakmem("check", "-", "-")
    assert (done.code, done.err) == (2, "peakmem: -: standard input holds one file; name the model or the certificate\n")


@pytest.mark.parametrize(("data", "said"), [(b"", "is empty"), (b"{}", "standard input: "), (b"\x08rubbish", "standard input: ")])
def test_bad_standard_input_is_one_sentence_without_our_file(peakmem: Call, send: Call, data: bytes, said: str) -> None:
    send(data)
    done = peakmem("optimize", "-")
    assert done.code == 2
    assert said in done.err
    assert tempfile.gettempdir() not in done.err
    assert done.err.count("\n") == 1


def test_a_pipe_leaves_nothing_behind(program: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "peakmem_cli", "optimize", "-", "-q"], input=program.read_bytes(), capture_output=True,
        env={**os.environ, "TMPDIR": str(tmp_path)}, timeout=600,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(p.name for p in tmp_path.iterdir()) == [program.name]


def test_a_table_from_standard_input(peakmem: Call, send: Call) -> None:
    send(b"id,lower,upper,size\na,0,2,8\nb,1,3,8\n")
    assert peakmem("arena", "-").out.startswith("arena 16 B, exact")


# outputs that are inputs


def test_no_output_replaces_a_file_that_the_model_lives_on(
    peakmem: Call, toy: ToyFrontend, toyfile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = tmp_path / "weights.bin"
    weights.write_bytes(b"weights")
    monkeypatch.setattr(ToyModel, "files", property(lambda self: (self.path, weights)))
    for words in (
        ["optimize", toyfile, "--certificate-out", weights], ["optimize", toyfile, "--snippet-out", weights],
        ["optimize", toyfile, "-o", weights], ["certify", toyfile, "--program-out", weights],
        ["recompute", toyfile, "--front", weights],
    ):  # fmt: skip
        done = peakmem(*words, "--force")
        assert (done.code, done.out) == (2, ""), words
        assert done.err == (
            f"peakmem: {weights}: is read with {toyfile}, and peakmem never changes its input; name another output\n"
        )
        assert weights.read_bytes() == b"weights"


def test_no_output_replaces_the_file_of_an_option(peakmem: Call, toy: ToyFrontend, toyfile: Path, tmp_path: Path) -> None:
    label = tmp_path / "label"
    label.write_text("x")
    for value in (label, f"first={label}"):
        done = peakmem("optimize", toyfile, "--label", value, "--certificate-out", label, "--force")
        assert done.err == f"peakmem: {label}: is the input of --label, which peakmem never changes; name another output\n"
    assert label.read_text() == "x"


# what is there when something goes wrong


def test_a_failure_names_what_was_written_before(
    peakmem: Call, program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, certificate = tmp_path / "out.json", tmp_path / "proof.json"
    replace = os.replace

    def full(source: str, target: str) -> None:
        if Path(target) == certificate:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    done = peakmem("optimize", program, "-o", out, "--certificate-out", certificate, "--json")
    sentence = f"{certificate}: cannot be written (No space left on device); written before that: {out}"
    assert (done.code, done.err) == (2, f"peakmem: {sentence}\n")
    assert done.document["error"] == sentence
    assert json.loads(out.read_text())["schema"] == "peakmem.program/1"
    # Replaced counts, kept does not.
    out.write_text("old")
    certificate.write_text("old")
    done = peakmem("optimize", program, "-o", out, "--certificate-out", certificate, "--force")
    assert done.err == f"peakmem: {sentence}\n"
    assert certificate.read_text() == "old"
    out.write_text("old")
    done = peakmem("optimize", program, "-o", out, "--certificate-out", certificate)
    assert "written before that" not in done.err
    files.begin()
    assert files.written() == []


@pytest.mark.usefixtures("toy")
def test_a_c_array_has_the_name_of_a_c_source(peakmem: Call, toyfile: Path, tmp_path: Path) -> None:
    done = peakmem("optimize", toyfile, "--c-array", tmp_path / "x.txt")
    assert (done.code, done.err) == (
        2, f"peakmem: --c-array: {tmp_path / 'x.txt'} is no C source; name a file that ends in .c, .cc, .cpp, .cxx\n"
    )  # fmt: skip
