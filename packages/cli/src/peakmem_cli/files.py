"""The files of one command line: what it reads, what it was asked to write, and what of that it has written.

`begin` and `end` stand around a command line; between them `check_outputs` remembers what is to be written. So whatever goes wrong
later, the last words can name the files that are already there, and no output can be a file that a model lives on.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peakmem.model import InputError, UsageError

if TYPE_CHECKING:
    from peakmem.frontends import Model

STDIN = "-"
"""Where a model, a certificate or a table is asked for: standard input."""

_outputs: dict[Path, tuple[int, int] | None] = {}
_folder: list[tempfile.TemporaryDirectory[str]] = []
_given: list[Path] = []


def begin() -> None:
    """A new command line."""
    end()
    _outputs.clear()


def end() -> None:
    """Take away what stood for standard input."""
    while _folder:
        _folder.pop().cleanup()
    _given.clear()


def check_outputs(source: Path, *outputs: Path | None, force: bool) -> None:
    """Refuse outputs that may not be written, or that would replace each other, before any work is done."""
    from peakmem.system.files import check_output

    given = [path for path in outputs if path is not None]
    for path in given:
        if str(path) == STDIN:
            raise UsageError("-: standard output is for the answer; name a file")
        check_output(path, source=source, force=force)
    if len({path.resolve() for path in given}) < len(given):
        raise UsageError(f"{given[0]}: is named for two outputs; name two files")
    for path in given:
        _outputs.setdefault(path, _identity(path))


def load(path: Path, frontend: str | None, options: dict[str, Any]) -> Model:
    """Read a model; no output that was checked before may be one of the files that it lives on."""
    import peakmem

    model = peakmem.load(on_disk(path), frontend=frontend, **options)
    named = [(Path(file), f"--{key.replace('_', '-')}") for key, value in options.items() for file in _files_in(value)]
    for output in _outputs:
        for file in model.files:
            if _same(output, file):
                raise UsageError(f"{output}: is read with {path}, and peakmem never changes its input; name another output")
        for file, option in named:
            if _same(output, file):
                raise UsageError(f"{output}: is the input of {option}, which peakmem never changes; name another output")
    return model


def written() -> list[Path]:
    """Outputs that this command line has written: where a file was put, its identity is another one."""
    return [path for path, before in _outputs.items() if _identity(path) not in (None, before)]


def on_disk(path: Path) -> Path:
    """``path`` itself, or for ``-`` a temporary file with all of standard input, the same one each time it is asked for.

    A model is read more than once, and some are known by the end of their name.
    """
    if str(path) != STDIN:
        return path
    if not _given:
        from peakmem_cli.streams import standard_input

        data = standard_input()
        if not data:
            raise InputError("standard input: is empty; send a model")
        _folder.append(tempfile.TemporaryDirectory(prefix="peakmem-"))
        _given.append(Path(_folder[0].name, f"standard-input{_suffix(data)}"))
        _given[0].write_bytes(data)
    return _given[0]


def as_typed(sentence: str) -> str:
    """A sentence about standard input without the name of the file that stands for it."""
    for path in _given:
        sentence = sentence.replace(str(path), "standard input")
    return sentence


def _suffix(data: bytes) -> str:
    if data[4:8] == b"TFL3":
        return ".tflite"
    if data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{":
        return ".json"
    return ".onnx" if data[:1] == b"\x08" else ".py"


def _files_in(value: object) -> Iterator[str]:
    """Files that the value of an option names: ``FILE`` or ``NAME=FILE``, once or repeated."""
    for text in value if isinstance(value, tuple) else (value,):
        if isinstance(text, str):
            yield text
            yield text.partition("=")[2] or text


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _same(a: Path, b: Path) -> bool:
    try:
        return os.path.samefile(a, b)
    except (OSError, ValueError):
        return os.path.abspath(a) == os.path.abspath(b)
