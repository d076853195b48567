"""The command ``peakmem-check``: its words, its exit codes, and what may happen to its files and streams."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from make_certificates import FOLDER
from peakmem_check.main import main

COMMAND = [sys.executable, "-m", "peakmem_check"]
POSIX = pytest.mark.skipif(os.name != "posix", reason="closes streams the POSIX way")
INDEX = json.loads((FOLDER / "index.json").read_text())


def pair(name: str, part: str = "true") -> list[str]:
    return [str(FOLDER / "programs" / f"{INDEX[part][name]['program']}.json"), str(FOLDER / part / f"{name}.json")]


def judged(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    out, err = capsys.readouterr()
    assert err.count("\n") == (code in (1, 2)) and "Traceback" not in err
    return code, out, err


TIGHT = next(name for name, row in INDEX["true"].items() if row["lower_bound"] == row["peak"])
LOOSE = next(name for name, row in INDEX["true"].items() if row["lower_bound"] < row["peak"])
FALSE = next(iter(INDEX["false"]))


class TestVerdicts:
    @pytest.mark.parametrize(
        ("name", "options", "code", "end"),
        [(TIGHT, ["--require-optimal"], 0, " and are optimal"), (LOOSE, [], 0, ""), (LOOSE, ["--require-optimal"], 3, "")],
    )
    def test_valid(
        self, capsys: pytest.CaptureFixture[str], name: str, options: list[str], code: int, end: str
    ) -> None:
        row = INDEX["true"][name]
        says = f"valid: no order of this program has a live_peak below {row['lower_bound']} B; its orders reach {row['peak']} B"
        assert judged(capsys, *pair(name), *options) == (code, f"{says}{end}\n", "")

    def test_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        because = INDEX["false"][FALSE]["because"]
        assert judged(capsys, *pair(FALSE, "false")) == (1, "", f"peakmem-check: certificate: {because}\n")

    def test_a_trace_has_a_line_for_each_verified_node(self, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, _ = judged(capsys, *pair("reverse-and-back"), "--trace")
        assert code == 0
        assert out.splitlines()[:-1] == [
            "proofs['']: node 3 (reverse): 0 statements run, 0 precedences added, 0 flows",
            "proofs['']: node 2 (expand): 0 statements run, 0 precedences added, 0 flows, mirror image",
            "proofs['']: node 0 (entry): 1 statements run, 0 precedences added, 0 flows, mirror image",
            "proofs['']: node 0 (entry): 1 statements run, 0 precedences added, 0 flows, mirror image",
        ]
        out = judged(capsys, *pair("cycle-of-precedences"), "--trace")[1]
        assert out.splitlines()[0] == "proofs['']: node 2 (precedence): 0 statements run, 0 precedences added, 4 flows"
        assert out.splitlines()[1] == "proofs['']: node 1 (cycle): 0 statements run, 4 precedences added, 0 flows"

    def test_a_trace_ends_before_what_is_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, err = judged(capsys, *pair("reverse-and-back-1", "false"), "--trace")
        assert (code, len(out.splitlines())) == (1, 2)
        assert "node 1 (reverse)" in err


class TestBadInput:
    @pytest.mark.parametrize(
        ("data", "says"),
        [(b"", "not JSON"), (b"\xff", "is not UTF-8"), (b"{}", "'schema'"), (b"[" * 300, "nested more than 256 deep")],
    )
    def test_program(self, capsys: pytest.CaptureFixture[str], tmp_path: Path, data: bytes, says: str) -> None:
        (tmp_path / "p.json").write_bytes(data)
        code, out, err = judged(capsys, str(tmp_path / "p.json"), pair(TIGHT)[1])
        assert (code, out) == (2, "")
        assert err.startswith(f"peakmem-check: {tmp_path}") and says in err

    def test_a_certificate_that_is_no_json_is_bad_input_and_any_other_is_refused(
        self, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        for data, expected in ((b"{", 2), (b"NaN", 2), (b'{"a":1,"a":1}', 2), (b"null", 1), (b"{}", 1), (b"[1]", 1)):
            (tmp_path / "c.json").write_bytes(data)
            assert judged(capsys, pair(TIGHT)[0], str(tmp_path / "c.json"))[0] == expected

    @pytest.mark.parametrize("name", [".", "missing", "a\0b", "x" * 5000, "line\nbreak\x1b[31m\udcff"])
    def test_files_that_cannot_be_read(self, capsys: pytest.CaptureFixture[str], name: str) -> None:
        for files in ([name, pair(TIGHT)[1]], [pair(TIGHT)[0], name]):
            code, out, err = judged(capsys, *files)
            assert (code, out) == (2, "") and "cannot be read" in err
            assert err.rstrip("\n").isprintable()

    @pytest.mark.parametrize("arguments", [[], ["one"], ["a", "b", "c"], ["a", "b", "--require"], ["a", "b", "--frob"]])
    def test_usage(self, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
        code, out, err = judged(capsys, *arguments)
        assert (code, out) == (2, "") and err.endswith("(see: peakmem-check --help)\n")

    def test_help(self, capsys: pytest.CaptureFixture[str]) -> None:
        code, out, _ = judged(capsys, "--help")
        assert code == 0 and "--require-optimal" in out


class TestStreams:
    @POSIX
    def test_who_reads_only_the_beginning_gets_the_verdict_as_exit_code(self) -> None:
        for arguments, expected in ((pair(LOOSE), 0), ([*pair(LOOSE), "--require-optimal", "--trace"], 3)):
            reader, writer = os.pipe()
            os.close(reader)
            done = subprocess.run([*COMMAND, *arguments], stdout=writer, stderr=subprocess.PIPE, timeout=600)
            os.close(writer)
            assert (done.returncode, done.stderr) == (expected, b"")

    @POSIX
    @pytest.mark.parametrize("closing", [">&-", "2>&-", "<&- >&- 2>&-"])
    def test_closed_streams_harm_nothing(self, closing: str) -> None:
        for files, expected in ((pair(TIGHT), 0), (pair(FALSE, "false"), 1)):
            line = f'"$0" -m peakmem_check "$@" {closing}'
            done = subprocess.run(["sh", "-c", line, sys.executable, *files], capture_output=True, text=True, timeout=600)
            assert done.returncode == expected
            assert done.stdout == ("" if expected or ">&-" in closing.split() else done.stdout)
            assert "Traceback" not in done.stderr

    @pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="this system has no /dev/full")
    def test_a_full_output_is_one_sentence(self) -> None:
        with open("/dev/full", "w") as full:
            done = subprocess.run([*COMMAND, *pair(TIGHT)], stdout=full, stderr=subprocess.PIPE, text=True, timeout=600)
        assert done.returncode == 2
        assert done.stderr == "peakmem-check: the output cannot be written (No space left on device)\n"

    @POSIX
    def test_an_interrupt_is_one_sentence(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        process = subprocess.Popen([*COMMAND, str(tmp_path / "pipe"), "x"], stderr=subprocess.PIPE, text=True)
        with (tmp_path / "pipe").open("wb"):  # returns when the command waits for the program
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=600)
        assert process.returncode == 130
        assert err == "peakmem-check: interrupted before there was a verdict\n"
