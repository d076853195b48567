"""Small libraries that are compiled where they are used, once per source, and kept in the user's cache."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from peakmem.model import RuntimeMissing
from peakmem.system.process import run_child

LIMIT = 300.0
"""Seconds that a compiler may take."""

_COMPILERS = {".c": ("CC", ("cc", "gcc", "clang"), "gcc"), ".cpp": ("CXX", ("g++", "c++", "clang++"), "g++")}
"""Suffix of the source -> the variable that names a compiler, names to look for, the Debian package."""


@cache
def build_library(source: Path, flags: tuple[str, ...] = (), *, beside: str = "") -> Path:
    """A shared library made from one C or C++ file.

    Kept under ``peakmem`` in the user's cache folder, under a name that tells source, flags, machine and ``beside``
    apart; in a temporary folder of this process where that cannot be written.

    Parameters
    ----------
    source : Path
        ``.c`` or ``.cpp``.
    flags : tuple of str
        For the compiler, after ``-shared -fPIC``.
    beside : str
        What else the result depends on, such as the version of a library that it is linked with.

    Raises
    ------
    RuntimeMissing
        Without a compiler, or when it fails; the message says what to install.
    """
    variable, names, package = _COMPILERS[source.suffix]
    text = source.read_bytes()
    key = hashlib.sha256("\n".join((text.decode(), *flags, beside, os.uname().machine)).encode()).hexdigest()[:20]
    for choose in (_cache_folder, _own_folder):
        try:
            folder = choose()
            folder.mkdir(parents=True, exist_ok=True)
            target = folder / f"{source.stem}-{key}.so"
            if target.exists():
                return target
            with tempfile.TemporaryDirectory(dir=folder) as work:
                _compile(variable, names, package, source, Path(work) / target.name, flags)
                os.replace(Path(work) / target.name, target)
            return target
        except OSError as error:  # the cache cannot be written (read-only, full, somebody else's)
            reason = error.strerror or str(error)
    raise RuntimeMissing(f"no folder can be written for peakmem's small library {source.name} ({reason}); set TMPDIR")


def _compile(
    variable: str, names: Sequence[str], package: str, source: Path, target: Path, flags: Sequence[str]
) -> None:
    compiler = os.environ.get(variable) or next(filter(None, map(shutil.which, names)), None)
    if not compiler:
        raise RuntimeMissing(
            f"peakmem measures with a small library and found no compiler; install one (Debian: apt install {package}) "
            f"or name it in {variable}"
        )
    command = [*compiler.split(), "-shared", "-fPIC", str(source), "-o", str(target), *flags]
    if shutil.which(command[0]) is None:
        raise RuntimeMissing(f"the compiler {compiler!r} cannot be run; name another in {variable}")
    done = run_child(command, what=f"the compiler {compiler!r}", limit=LIMIT)
    if done.code:
        lines = done.err.decode("utf-8", "replace").splitlines()
        reason = next((line for line in lines if "error" in line), done.last_words)
        raise RuntimeMissing(f"the compiler {compiler!r} could not build peakmem's {source.name}: {reason.strip()[:300]}")


def _cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "peakmem"


@cache
def _own_folder() -> Path:
    """A temporary folder that lives as long as this process."""
    import atexit

    folder = tempfile.mkdtemp(prefix="peakmem-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)
