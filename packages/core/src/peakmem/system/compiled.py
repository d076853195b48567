"""The library of the optional distribution peakmem-native, where it is installed: inner loops of searches, compiled.

The one place that knows of it. What it computes is what the Python beside it computes; the choice shows in nothing but time.
``PEAKMEM_PURE=1`` in the environment keeps to Python.
"""

from __future__ import annotations

import ctypes
import os
import warnings
from functools import cache

ABI = 5
"""What the library has to answer."""


def library() -> ctypes.CDLL | None:
    """The library, or None where it is not installed, has not been built, does not fit or is not wanted."""
    return None if os.environ.get("PEAKMEM_PURE", "0") not in ("", "0") else _load()


@cache
def _load() -> ctypes.CDLL | None:
    try:
        import peakmem_native
    except ImportError:
        return None
    if not peakmem_native.LIBRARY.exists():  # a source tree
        return None
    try:
        found = ctypes.CDLL(str(peakmem_native.LIBRARY))
        abi = found.peakmem_abi()
    except (OSError, AttributeError) as error:
        why = f"cannot be loaded ({error})"
    else:
        if abi == ABI:
            return found
        why = f"is of another release (interface {abi}, needed is {ABI})"
    warnings.warn(f"peakmem-native {why}; its loops run in Python instead", RuntimeWarning, stacklevel=2)
    return None
