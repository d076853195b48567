"""What may be written and read: outputs are replaced only where they are files, and special files end."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from peakmem.frontends import recognise
from peakmem.model import InputError, UsageError
from peakmem.system.files import write_atomically
from peakmem_check.jsonfile import LARGEST_FILE, parse_json, read_bytes

PIPES = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")


@PIPES
def test_what_is_no_file_is_never_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to(pipe)
    for path in (pipe, link):
        with pytest.raises(UsageError, match="never replaced"):
            write_atomically(path, b"data", force=True)
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "pipe"]


@pytest.mark.parametrize("target", ["nowhere", "file", "folder"])
@pytest.mark.parametrize("force", [False, True])
def test_a_link_is_never_replaced(tmp_path: Path, target: str, force: bool) -> None:
    """/dev/stdout is one; where a shell redirects to a file, it leads to that file."""
    (tmp_path / "file").write_bytes(b"precious")
    (tmp_path / "folder").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / target)
    with pytest.raises(UsageError, match="is a link" if target != "folder" else "is a folder"):
        write_atomically(link, b"data", force=force)
    assert link.is_symlink()
    assert (tmp_path / "file").read_bytes() == b"precious"
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "file/below"])
def test_impossible_names(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_bytes(b"{}")
    with pytest.raises(UsageError, match="cannot be written"):
        write_atomically(tmp_path / name, b"data", force=True)
    with pytest.raises(InputError, match="cannot be read"):
        recognise(tmp_path / name)
    with pytest.raises(InputError, match="cannot be read"):
        read_bytes(tmp_path / name)


@PIPES
def test_a_pipe_is_no_model_but_may_hold_a_document(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="is a device, pipe or socket"):
        recognise(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"{}",))
    writer.start()
    assert read_bytes(pipe) == b"{}"
    writer.join()


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    sparse = tmp_path / "sparse"
    with sparse.open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    with pytest.raises(InputError, match="is larger than"):
        read_bytes(sparse)


@pytest.mark.parametrize(
    "text", ['"\\ud800"', '["\\uDC00"]', '{"a": [["x\\udfffy"]]}', '{"\\ud800": 1}', '["\\ud83d\\ude00\\ud83d"]']
)
def test_half_a_surrogate_pair_is_refused_wherever_it_stands(text: str) -> None:
    with pytest.raises(InputError, match="surrogate"):
        parse_json(text.encode(), "x")


def test_whole_pairs_and_escaped_backslashes_are_read() -> None:
    assert parse_json(b'["\\ud83d\\ude00", "\\\\ud800"]', "x") == ["\U0001f600", "\\ud800"]
