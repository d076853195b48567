"""Counting what the CPU allocator of torch is asked for.

A few lines of C++ against c10, built once with plain ``g++`` and loaded with ctypes. Counted are bytes as requested:
c10 neither rounds nor caches on the CPU. Not counted, because it does not pass through c10: what oneDNN (tens of
kilobytes) and MKL (a few megabytes after its first call) keep for themselves; it does not depend on the order.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from peakmem.model import RuntimeMissing
from peakmem.system.native import build_library

POISON = 0xFF
"""Fill of fresh blocks in a verifying run: NaN in every floating type, -1 in signed integers."""

REPLACED = "another library has replaced torch's CPU allocator; peakmem cannot measure beside it"
_lock = threading.RLock()
_watched = threading.Lock()
_library: ctypes.CDLL | None = None
_failure: RuntimeMissing | None = None


def load() -> ctypes.CDLL:
    """The counting allocator, built on first use and kept in the user's cache folder.

    Raises
    ------
    RuntimeMissing
        Without a C++ compiler, or when it fails; the message says what to install.
    """
    global _library, _failure
    with _lock:
        if _library is not None:
            return _library
        if _failure is not None:
            raise _failure
        try:
            _library = _build()
        except RuntimeMissing as error:
            _failure = error
            raise
        return _library


def _build() -> ctypes.CDLL:
    import torch

    home = Path(torch.__file__).parent
    flags = (
        "-O1", "-std=c++20", f"-I{home / 'include'}", f"-I{home / 'include/torch/csrc/api/include'}", f"-L{home / 'lib'}",
        "-lc10", f"-Wl,-rpath,{home / 'lib'}", f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
    )  # fmt: skip
    source = Path(__file__).with_name("counting_allocator.cpp")
    library = ctypes.CDLL(str(build_library(source, flags, beside=torch.__version__)))
    array = ctypes.POINTER(ctypes.c_int64)
    library.peakmem_begin.argtypes = [array, ctypes.c_int64, ctypes.c_int]
    library.peakmem_begin.restype = ctypes.c_int
    library.peakmem_end.argtypes = []
    library.peakmem_end.restype = None
    library.peakmem_mark.argtypes = [ctypes.c_int64, array]
    library.peakmem_mark.restype = None
    library.peakmem_events.argtypes = [array, ctypes.c_int64]
    library.peakmem_events.restype = None
    library.peakmem_watch_begin.argtypes = []
    library.peakmem_watch_begin.restype = ctypes.c_int
    library.peakmem_watch_end.argtypes = []
    library.peakmem_watch_end.restype = None
    library.peakmem_watch_mark.argtypes = [ctypes.c_int64, array]
    library.peakmem_watch_mark.restype = None
    return library


class Counter:
    """Reads the counting allocator while it runs."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._result = (ctypes.c_int64 * 3)()
        self.peak = 0
        """Highest so far, above the start, in bytes."""

    def mark(self, outside: int = 0) -> tuple[int, int, list[tuple[int, int]]]:
        """Peak since the last mark and current bytes above the start, and the blocks (address, bytes) that came; freed
        ones have negative bytes. ``outside`` bytes were freed that had been allocated before the start."""
        self._library.peakmem_mark(outside, self._result)
        high, now, count = self._result[0], self._result[1], self._result[2]
        self.peak = max(self.peak, high)
        found: list[tuple[int, int]] = []
        if count:
            rows = (ctypes.c_int64 * (2 * count))()
            self._library.peakmem_events(rows, count)
            found = [(rows[2 * i], rows[2 * i + 1]) for i in range(count)]
        return high, now, found

    def intervals(self) -> list[list[tuple[int, int]]]:
        """Nothing: `mark` has told them."""
        return []


@contextmanager
def counting(*, poison: bool = False) -> Iterator[Counter]:
    """Count this thread's allocations and those of its worker threads; one at a time in a process.

    Other Python threads that are alive at the start are not counted.
    """
    library = load()
    with _lock:
        own = threading.get_native_id()
        others = [t.native_id for t in threading.enumerate() if t.native_id not in (None, own)]
        threads = (ctypes.c_int64 * max(1, len(others)))(*[t for t in others if t is not None])
        if library.peakmem_begin(threads, len(others), POISON if poison else -1):
            raise RuntimeMissing(REPLACED)
        try:
            yield Counter(library)
        finally:
            library.peakmem_end()


class Watcher:
    """Reads the outer count: every thread, over whole steps, whatever is counted inside."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library
        self._result = (ctypes.c_int64 * 2)()
        self._peak = 0

    def mark(self, outside: int = 0) -> tuple[int, int]:
        """Peak since the last mark and current bytes above the start; ``outside`` as in `Counter.mark`."""
        self._library.peakmem_watch_mark(outside, self._result)
        self._peak = max(self._peak, self._result[0])
        return self._result[0], self._result[1]

    @property
    def peak(self) -> int:
        """Highest so far, above the start, in bytes."""
        self.mark()
        return self._peak


@contextmanager
def watching() -> Iterator[Watcher]:
    """Count the allocations of all threads, one at a time in a process; `counting` may happen inside.

    Blocks that were there at the start are not seen when they go.
    """
    library = load()
    if not _watched.acquire(blocking=False):
        raise RuntimeMissing("a step is already being measured in this process")
    try:
        if library.peakmem_watch_begin():
            raise RuntimeMissing(REPLACED)
        watcher = Watcher(library)
        try:
            yield watcher
        finally:
            watcher.mark()
            library.peakmem_watch_end()
    finally:
        _watched.release()
