"""Which files of a folder are models, and which of them one machine of several takes."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

MOST_OF_A_PROGRAM = 1 << 20
"""Bytes of a JSON file that are looked at for what programs are made of."""

CLAIMS = {".onnx": "onnx", ".tflite": "tflite", ".json": "program"}
"""Ends of names by which a file that no frontend recognises may still claim to be a model; the frontend that would read it."""

_OTHER_DOCUMENT = re.compile(rb'"schema"\s*:\s*"(?!peakmem\.program/)')
_STATEMENTS = re.compile(rb'"statements"\s*:\s*\[\s*\{')
_PARTS = re.compile(rb'"(buffers|reads|writes|deps)"\s*:\s*\[')


@dataclass(frozen=True)
class Model:
    """A file, the name it has in the folder where it was found, the frontend that takes it, and its digest.

    ``digest``: SHA-256 of the file's bytes, in hexadecimal.
    """

    path: Path
    name: str
    frontend: str
    digest: str = ""


@dataclass(frozen=True)
class Choice:
    """Which files of the folders are wanted.

    Attributes
    ----------
    frontend : str or None
        Only models of this one.
    include, exclude : sequence of str
        Shell patterns for the path inside the folder (``*`` matches folders too): at least one of the first fits, if there
        are any, and none of the second. Files that are given by name are always wanted.
    shard : (int, int)
        ``(i, n)``: of the files of all, those that machine ``i`` of ``1..n`` takes. Decided by the digest, so that a folder
        that grows gives each machine its old files again.
    """

    frontend: str | None = None
    include: Sequence[str] = ()
    exclude: Sequence[str] = ()
    shard: tuple[int, int] = (1, 1)

    def wants(self, name: str) -> bool:
        return (not self.include or any(fnmatchcase(name, p) for p in self.include)) and not any(
            fnmatchcase(name, p) for p in self.exclude
        )

    def takes(self, digest: str) -> bool:
        one, all_of_them = self.shard
        return int(digest[:16], 16) % all_of_them == one - 1


def readable(path: str | Path) -> str:
    r"""A path as text that every encoding holds: bytes that are no UTF-8 are written ``\xff``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def find(paths: Sequence[Path], choice: Choice) -> Iterator[Model]:
    """Models: files as they are given, those of a folder by name; each file once, however many names it has.

    A file that is given and no frontend takes is an error. In a folder it is passed over, unless it claims to be a model, by its
    name (`CLAIMS`) or as a JSON file by what programs are made of: it is then damaged, and its row says so. A JSON file without
    that claim is passed over although the frontend of bare programs would try it.

    Raises
    ------
    InputError
        When a path does not exist, or a file that was given is no model.
    """
    from peakmem.frontends import discover, get_frontend, recognise
    from peakmem.model import InputError, PeakmemError

    only = get_frontend(choice.frontend) if choice.frontend is not None else None
    seen = set()
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: does not exist")
        for file in _files(path):
            given = file is path
            name = readable(file if given else file.relative_to(path))
            real = file.resolve()
            if real in seen or not (given or choice.wants(name)):
                continue
            seen.add(real)
            if given and only is not None:
                frontend = only.name
            else:
                try:
                    frontend = recognise(file).name
                except PeakmemError:
                    if given:
                        raise
                    frontend = CLAIMS.get(file.suffix.lower(), "")
                    if frontend not in discover() or not os.access(file, os.R_OK):
                        continue
                if (only is not None and frontend != only.name) or not (given or frontend != "program" or _claims(file)):
                    continue
            digest = _digest(file)
            if choice.takes(digest):
                yield Model(file, name, frontend, digest)


def _claims(file: Path) -> bool:
    """Whether a JSON file, of which folders hold many kinds, has what a program has, damaged or not."""
    with file.open("rb") as stream:
        text = stream.read(MOST_OF_A_PROGRAM)
    if _OTHER_DOCUMENT.search(text[:4096]):
        return False
    return b'"peakmem.program/' in text or (_STATEMENTS.search(text) is not None and _PARTS.search(text) is not None)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in sorted(files):
            file = Path(folder) / name
            if not name.startswith(".") and file.is_file():
                yield file
