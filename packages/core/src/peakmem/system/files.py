"""Writing files so that nothing is ever half written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from peakmem.model import UsageError


def check_output(path: str | Path, *, source: Path | None = None, force: bool = False) -> None:
    """Refuse an output path before any work is done.

    Raises
    ------
    UsageError
        When ``path`` is the input, is a folder, a device, a link or anything else but a file, exists and ``force`` is
        not set, or its folder is missing or not writable.
    """
    path = Path(path)
    try:
        exists = os.path.lexists(path)  # a link that leads nowhere would be replaced too
        path.stat()
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{path}: cannot be written ({reason})") from None
    if source is not None and _same(path, source):
        raise UsageError(f"{path}: is the input file, which peakmem never changes; name another output")
    if path.is_dir():
        raise UsageError(f"{path}: is a folder; name a file")
    if path.exists() and not path.is_file():
        # Renaming a file over a device, pipe or socket would take it away from everybody who uses it.
        raise UsageError(f"{path}: is a device, pipe or socket, which is never replaced; name a file")
    if path.is_symlink():
        # It would be the link that is replaced: /dev/stdout leads to a plain file where a shell redirects to one.
        raise UsageError(f"{path}: is a link, which is never replaced; name the file that it leads to")
    if exists and not force:
        raise UsageError(f"{path}: exists already; give --force to replace it")
    folder = path.parent
    if not folder.is_dir():
        raise UsageError(f"{path}: the folder {folder} does not exist")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{path}: the folder {folder} is not writable")


def write_atomically(path: str | Path, data: bytes, *, source: Path | None = None, force: bool = False) -> None:
    """Write to a temporary file in the same folder and rename; see `check_output` for what is refused."""
    path = Path(path)
    check_output(path, source=source, force=force)
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, path)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror})") from None
    finally:
        if os.path.exists(name):
            os.unlink(name)


def _same(a: Path, b: Path) -> bool:
    try:
        return os.path.samefile(a, b)
    except OSError:
        return os.path.abspath(a) == os.path.abspath(b)
