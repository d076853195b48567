"""Reading JSON that may be hostile: every fault is one sentence with its place."""

from __future__ import annotations

import json
import os
import re
import stat
import sys
from itertools import accumulate
from typing import Any, NoReturn

from peakmem_check.model.errors import InputError
from peakmem_check.model.program import Program

LARGEST_FILE = 1 << 30
"""Bytes; a larger file is refused before it is read."""
DEEPEST = 256
"""Objects and lists nest so deep at most; the outermost has depth 1."""
MOST_DIGITS = 4300
"""Digits of an integer, the sign not counted."""

_Path = str | os.PathLike[str]


def read_program(path: _Path) -> Program:
    """Read a file ``peakmem.program/1``.

    Raises
    ------
    InputError
        When the file is not strict JSON (see `read_json`) or is no program.
    """
    return Program.from_json(read_json(path), where=os.fspath(path))


def read_json(path: _Path) -> Any:
    """Parse one JSON file strictly.

    Stricter than `json.load`, as ``docs/reference/format.md`` says: a name that stands twice in one object, NaN,
    infinities, lone surrogates, and more depth or digits than `DEEPEST` and `MOST_DIGITS` are refused; they would make
    two readers see two documents.

    Raises
    ------
    InputError
        When the file cannot be read, is not UTF-8 or is not such JSON; the message names line and column where
        there is one.
    """
    return parse_json(read_bytes(path), os.fspath(path))


def read_bytes(path: _Path) -> bytes:
    """The file's bytes; `InputError` when it cannot be read or is larger than `LARGEST_FILE`."""
    try:
        status = os.stat(path)
        if status.st_size <= LARGEST_FILE:
            with open(path, "rb") as file:  # a pipe or device has no size and may never end
                data = file.read() if stat.S_ISREG(status.st_mode) else file.read(LARGEST_FILE + 1)
            if len(data) <= LARGEST_FILE:
                return data
        raise InputError(f"{path}: is larger than {LARGEST_FILE} bytes, the most that is read as JSON")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:  # a NUL in the name
        raise InputError(f"{path}: cannot be read ({error})") from None


def parse_json(data: bytes, where: str) -> Any:
    """Parse JSON bytes; ``where`` names them in messages. See `read_json`. O(data), whatever it holds."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: byte {error.start} is not UTF-8, so this is not a JSON file") from None
    try:
        if data.count(b"[") + data.count(b"{") > DEEPEST and _depth(data) > DEEPEST:
            raise _Fault(f"objects and lists are nested more than {DEEPEST} deep")
        # Python's own limit does the counting, unless somebody has changed it.
        whole = None if sys.get_int_max_str_digits() == MOST_DIGITS else _integer
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_constant, parse_int=whole)
        if _SURROGATE.search(text):  # UTF-8 itself has none, so only an escape can write one
            _refuse_surrogates(document)
        return document
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: line {error.lineno}, column {error.colno}: not JSON ({error.msg})") from None
    except _Fault as error:
        raise InputError(f"{where}: {error}") from None
    except ValueError:
        raise InputError(f"{where}: holds an integer of more than {MOST_DIGITS} digits") from None


class _Fault(Exception):
    """Raised inside the parser's hooks."""


_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
_STEP = [(c in b"[{") - (c in b"]}") for c in range(256)]


def _depth(data: bytes) -> int:
    """How deep brackets nest outside of texts."""
    return max(accumulate(map(_STEP.__getitem__, _TEXT.sub(b"", data).translate(None, _NO_BRACKET))), default=0)


def _integer(digits: str) -> int:
    if len(digits.removeprefix("-")) > MOST_DIGITS:
        raise ValueError(digits)
    return int(digits)


def _constant(name: str) -> NoReturn:
    raise _Fault(f"holds {name}, which is not JSON; sizes are whole numbers")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Fault(f"the name {key[:60]!r} stands twice in one object")
            seen.add(key)
    return result


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def _refuse_surrogates(document: object) -> None:
    pending = [document]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            pending += value
            pending += value.values()
        elif isinstance(value, list):
            pending += value
        elif isinstance(value, str) and not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
            raise _Fault(f"{value[:60]!r} holds half a surrogate pair, which no encoding can write")
