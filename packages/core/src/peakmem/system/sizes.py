"""Sizes in bytes, as people write and read them."""

from __future__ import annotations

import re

from peakmem.model import UsageError

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgtpe", 1):
    _UNITS |= {_letter: 1000**_power, f"{_letter}b": 1000**_power}
    _UNITS |= {f"{_letter}i": 1024**_power, f"{_letter}ib": 1024**_power}
_PATTERN = re.compile(r"\s*(\d{1,19})(?:\.(\d{1,9}))?\s*([A-Za-z]*)\s*", re.ASCII)


def parse_size(text: str) -> int:
    """Bytes of ``256KB``, ``24 MiB``, ``1.5 MiB`` or ``262144``.

    KB, MB ... are powers of 1000, KiB, MiB ... powers of 1024, as the standards have it; of the two readings of
    ``256KB`` this is the one that never lets a program pass that does not fit. A fraction of a byte is dropped.

    Raises
    ------
    UsageError
        For anything else, and for 2^62 bytes and more.
    """
    match = _PATTERN.fullmatch(text)
    unit = _UNITS.get(match[3].lower()) if match else None
    if match is None or unit is None:
        raise UsageError(f"{text!r} is not a size; write it as 262144, 256KB (1000 bytes each) or 24 MiB (1024 x 1024)")
    fraction = match[2] or ""
    size = int(match[1] + fraction) * unit // int(10 ** len(fraction))
    if size >= 2**62:
        raise UsageError(f"{text!r} is more than 2^62 bytes")
    return size


def in_bytes(size: int) -> str:
    """``3,840 B``."""
    return f"{size:,} B"


def human(size: int) -> str:
    """``3,840 B`` below 10,000 bytes, above that ``4.12 MiB (4,315,136 B)``: a size to read and the exact one beside."""
    if abs(size) < 10_000:
        return in_bytes(size)
    return f"{short(size)} ({in_bytes(size)})"


def short(size: int) -> str:
    """``4.12 MiB``: three or four significant digits; exact below 10,000 bytes."""
    if abs(size) < 10_000:
        return in_bytes(size)
    value, power = size / 1024, 1
    while abs(value) >= 1000 and power < 6:
        value, power = value / 1024, power + 1
    digits = 2 if abs(value) < 100 else 1
    return f"{value:,.{digits}f} {'KMGTPE'[power - 1]}iB"
