"""Reading JSON that may be hostile: every fault is one sentence with its place."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NoReturn

from peakmem_check.model.errors import InputError

LARGEST_FILE = 1 << 30
"""Bytes; a larger file is refused before it is read."""


def read_json(path: Path) -> Any:
    """Parse one JSON file strictly.

    Stricter than `json.load`: a name that stands twice in one object, NaN, infinities and lone surrogates are
    refused, as they would make two readers see two documents.

    Raises
    ------
    InputError
        When the file cannot be read, is not UTF-8 or is not such JSON; the message names line and column where
        there is one.
    """
    return parse_json(read_bytes(path), str(path))


def read_bytes(path: Path) -> bytes:
    """The file's bytes; `InputError` when it cannot be read or is larger than `LARGEST_FILE`."""
    try:
        if path.stat().st_size <= LARGEST_FILE:
            with path.open("rb") as file:  # a pipe or device has no size and may never end
                data = file.read() if path.is_file() else file.read(LARGEST_FILE + 1)
            if len(data) <= LARGEST_FILE:
                return data
        raise InputError(f"{path}: is larger than {LARGEST_FILE} bytes, the most that is read as JSON")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:  # a NUL in the name
        raise InputError(f"{path}: cannot be read ({error})") from None


def parse_json(data: bytes, where: str) -> Any:
    """Parse JSON bytes; ``where`` names them in messages. See `read_json`."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{where}: byte {error.start} is not UTF-8, so this is not a JSON file") from None
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_constant)
        if _SURROGATE.search(text):  # UTF-8 itself has none, so only an escape can write one
            _refuse_surrogates(document)
        return document
    except json.JSONDecodeError as error:
        raise InputError(f"{where}: line {error.lineno}, column {error.colno}: not JSON ({error.msg})") from None
    except _Fault as error:
        raise InputError(f"{where}: {error}") from None
    except RecursionError:
        raise InputError(f"{where}: nested too deeply to be a document of ours") from None
    except ValueError:  # a number of more digits than Python converts
        raise InputError(f"{where}: holds a number of thousands of digits") from None


class _Fault(Exception):
    """Raised inside the parser's hooks."""


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
