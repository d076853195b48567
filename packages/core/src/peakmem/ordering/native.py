"""The compiled inner loops of the optional distribution peakmem-native, where it is installed.

The one place that knows of it. What it computes is what the Python beside it computes: the same orders, the same units of
work; the choice shows in nothing but time. ``PEAKMEM_PURE=1`` in the environment keeps to Python.
"""

from __future__ import annotations

import ctypes
import os
import warnings
import weakref
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, chain
from typing import Any

from peakmem.ordering.meter import Meter
from peakmem.ordering.problem import Problem

ABI = 1
"""What the library has to answer."""

LARGEST = 1 << 62
"""Bytes that a problem may hold in all to be counted in 64 bits."""

SLICE = 200_000
"""Units of work between two looks at the meter (and at Ctrl-C)."""

PAUSED, FOUND, NONE, NO_MEMORY = range(4)


def kernel() -> Kernel | None:
    """The compiled loops, or None where they are not installed, do not fit or are not wanted."""
    return None if os.environ.get("PEAKMEM_PURE", "0") not in ("", "0") else _load()


@cache
def _load() -> Kernel | None:
    try:
        import peakmem_native
    except ImportError:
        return None
    try:
        library = ctypes.CDLL(str(peakmem_native.LIBRARY))
        found = library.peakmem_abi()
    except (OSError, AttributeError) as error:
        why = f"cannot be loaded ({error})"
    else:
        if found == ABI:
            return Kernel(library)
        why = f"is of another release (interface {found}, needed is {ABI})"
    warnings.warn(f"peakmem-native {why}; the order search goes on in Python", RuntimeWarning, stacklevel=2)
    return None


class _Rows(ctypes.Structure):
    """``Problem`` of kernel.c."""

    _fields_ = (
        ("n", ctypes.c_int32),
        ("m", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("preds", "succs_at", "succs", "touched_at", "touched", "touchers", "size")),
        *((name, ctypes.c_void_p) for name in ("entry", "pinned", "workspace", "gains_at", "gain_of", "gain")),
        ("mirrored", ctypes.c_int32),
        ("entry_bytes", ctypes.c_int64),
    )


class _Image:
    """A problem as the library sees it, and the arrays that hold it."""

    def __init__(self, problem: Problem) -> None:
        self.fits = (
            problem.base + sum(problem.size) + sum(problem.workspace) < LARGEST
            and len(problem) + len(problem.size) + sum(map(len, problem.touched)) < 1 << 30
        )
        if not self.fits:
            return
        arrays = {
            "preds": array("i", map(len, problem.preds)),
            "succs_at": _starts(problem.succs),
            "succs": array("i", chain.from_iterable(problem.succs)),
            "touched_at": _starts(problem.touched),
            "touched": array("i", chain.from_iterable(problem.touched)),
            "touchers": array("i", map(len, problem.touchers)),
            "size": array("q", problem.size),
            "entry": array("B", problem.entry),
            "pinned": array("B", problem.pinned),
            "workspace": array("q", problem.workspace),
            "gains_at": _starts(problem.gains),
            "gain_of": array("i", (a for row in problem.gains for a, _ in row)),
            "gain": array("q", (gain for row in problem.gains for _, gain in row)),
        }
        self.arrays = arrays
        self.rows = _Rows(
            n=len(problem),
            m=len(problem.size),
            mirrored=problem.mirrored,
            entry_bytes=problem.entry_bytes,
            **{name: row.buffer_info()[0] for name, row in arrays.items()},
        )


def _starts(rows: Sequence[Sequence[Any]]) -> array[int]:
    return array("i", accumulate(map(len, rows), initial=0))


class Kernel:
    """The library's functions; each is named as the function that it stands for."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._images: weakref.WeakKeyDictionary[Problem, _Image] = weakref.WeakKeyDictionary()
        handle, place = ctypes.c_void_p, ctypes.c_void_p
        self._new = _function(library.peakmem_beam_new, handle, place, ctypes.c_int32, ctypes.c_int64, place)
        self._run = _function(library.peakmem_beam_run, ctypes.c_int32, handle, ctypes.c_int64, place)
        self._order = _function(library.peakmem_beam_order, None, handle, place)
        self._free = _function(library.peakmem_beam_free, None, handle)

    def fits(self, problem: Problem) -> bool:
        """Whether the library can hold it."""
        return self._image(problem).fits

    def _image(self, problem: Problem) -> _Image:
        image = self._images.get(problem)
        if image is None:
            image = self._images[problem] = _Image(problem)
        return image

    def beam(self, problem: Problem, width: int, ceiling: int, mark: Sequence[int], meter: Meter) -> list[int]:
        """`peakmem.ordering.beam.beam`."""
        image = self._image(problem)
        width, ceiling = min(width, (1 << 31) - 1), min(ceiling, LARGEST)
        search = self._new(ctypes.byref(image.rows), width, ceiling, (ctypes.c_uint64 * len(mark))(*mark))
        if not search:
            raise MemoryError
        try:
            spent = ctypes.c_int64()
            while not meter.out:
                outcome = self._run(search, min(SLICE, meter.left), ctypes.byref(spent))
                meter.spend(spent.value)
                if outcome == FOUND:
                    order = (ctypes.c_int32 * len(problem))()
                    self._order(search, order)
                    return list(order)
                if outcome == NONE:
                    break
                if outcome == NO_MEMORY:
                    raise MemoryError
            return []
        finally:
            self._free(search)


def _function(function: Any, result: Any, *arguments: Any) -> Callable[..., Any]:
    function.restype, function.argtypes = result, arguments
    return function  # type: ignore[no-any-return]
