"""Standard streams that cannot fail a command half way.

An exit code is an answer, so whoever closes our output early (``peakmem optimize ... | head -1``) must still get the
right one. And where a stream was closed before we started, the next file opened would take its number and receive what
a runtime prints.
"""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

from peakmem.model import UsageError


class _Text(io.TextIOWrapper):
    """A stream that, once it cannot be written, swallows the rest; says so unless its reader just left.

    The file below is none of ours on purpose: a signal that raises inside a ``write`` in Python, after its bytes are
    gone, would make the buffer write them again.
    """

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._swallow(error)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._swallow(error)

    def _swallow(self, error: OSError) -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.fileno())
        os.close(null)
        if not isinstance(error, BrokenPipeError):
            raise UsageError(f"the output cannot be written ({error.strerror})") from None


def prepare() -> None:
    """Open what is closed and replace standard output and standard error by streams that take any text."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    sys.stdout = _text(1, sys.stdout)
    sys.stderr = _text(2, sys.stderr)


def standard_input() -> bytes:
    """All of it, where a command line names ``-``; nothing where it was closed before we started."""
    with open(0, "rb", closefd=False) as file:
        return file.read()


def _text(number: int, old: TextIO | None) -> io.TextIOWrapper:
    encoding = getattr(old, "encoding", None) or "utf-8"
    if old is not None:
        old.flush()
    file = io.FileIO(number, "w", closefd=False)
    lines = number == 2 or file.isatty()
    return _Text(io.BufferedWriter(file), encoding, "backslashreplace", line_buffering=lines)
