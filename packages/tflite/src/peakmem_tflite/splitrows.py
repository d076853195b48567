"""Which rows of an operator's result are right, given some rows of its input: what `splitcheck` believes.

The kernels pad by the number of rows that they see, so a band may be padded otherwise than the whole, and its edges inside
the whole see padding that is not there. Every map says for which rows of the whole the rows of the result stand, and
which of them are computed from the same numbers as in the whole. They are written from the kernels of TFLite Micro
(`reference_ops`), not from whoever splits, and hold for any numbers; tests compare them with those kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

_MOST_FACTOR = 512
"""Up to here half a fixed-point step (1/1024) of a power of two is a whole number."""


class NoMap(Exception):
    """No row of the result is known to be right, or the sizes are not those that the kernel computes."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a tensor that stands for part of another, the whole.

    Attributes
    ----------
    first : int
        Row of the whole for which row 0 stands; negative where rows stand before the whole's first.
    count, total : int
        Rows here, rows of the whole.
    lo, hi : int
        Rows of the whole that are right, ``lo`` included, ``hi`` not.
    """

    first: int
    count: int
    total: int
    lo: int
    hi: int

    @property
    def top(self) -> bool:
        """Right up to the whole's first row, at which it begins."""
        return self.first == 0 == self.lo

    @property
    def bottom(self) -> bool:
        """Right down to the whole's last row, at which it ends."""
        return self.first + self.count == self.total == self.hi

    def clipped(self) -> Rows:
        """Only rows that are here and in the whole can be right."""
        lo, hi = max(self.lo, self.first, 0), min(self.hi, self.first + self.count, self.total)
        if lo >= hi:
            raise NoMap("has no right row")
        return Rows(self.first, self.count, self.total, lo, hi)


def whole(count: int) -> Rows:
    """All rows of a tensor."""
    return Rows(0, count, count, 0, count)


def _steps(count: int, reach: int, stride: int, same: bool) -> tuple[int, int]:
    """Rows of the result and padding at the top, as the kernels compute them."""
    out = -(-count // stride) if same else (count - reach) // stride + 1
    return out, max((out - 1) * stride + reach - count, 0) // 2 if same else 0


def sliding(x: Rows, *, kernel: int, stride: int, dilation: int, same: bool) -> Rows:
    """Convolution and pooling: row r reads rows stride r - padding and on, as many as the kernel reaches."""
    if min(kernel, stride, dilation) < 1:
        raise NoMap("has a window of no size")
    reach = (kernel - 1) * dilation + 1
    total, pad = _steps(x.total, reach, stride, same)
    count, here = _steps(x.count, reach, stride, same)
    first, off = divmod(x.first + pad - here, stride)
    if off:
        raise NoMap("begins between two steps of its stride")
    lo = 0 if x.top else -(-(x.lo + pad) // stride)
    hi = total if x.bottom else (x.hi - reach + pad) // stride + 1
    return Rows(first, count, total, lo, hi)


def transposed(x: Rows, *, kernel: int, stride: int, same: bool, count: int, total: int) -> Rows:
    """Transposed convolution: row i adds to rows stride i - padding and on; the padding follows from the rows of the result."""
    if min(kernel, stride) < 1:
        raise NoMap("has a window of no size")
    pad, here = (max((-(-n // stride) - 1) * stride + kernel - n, 0) // 2 if same else 0 for n in (total, count))
    # Row r takes part of every row i with 0 <= r + pad - stride i < kernel: all of those here must be right.
    lo = 0 if x.top else stride * (x.lo - 1) + kernel - pad
    hi = total if x.bottom else stride * x.hi - pad
    return Rows(stride * x.first + here - pad, count, total, lo, hi)


def padded(x: Rows, *, top: int, bottom: int, here: tuple[int, int], mirror: int | None = None) -> Rows:
    """Padding by ``top`` and ``bottom`` rows, by ``here`` in the band: constant, or mirrored with the edge row left out (1) or repeated (0)."""
    if min(top, bottom, *here) < 0:
        raise NoMap("pads by a negative number")
    above = x.top and (mirror is None or x.hi >= here[0] + mirror)
    below = x.bottom and (mirror is None or x.lo <= x.total - here[1] - mirror)
    return Rows(
        x.first + top - here[0],
        x.count + sum(here),
        x.total + top + bottom,
        0 if above else x.lo + top,
        x.total + top + bottom if below else x.hi + top,
    )


def blocks(x: Rows, *, up: int = 1, down: int = 1) -> Rows:
    """Each row becomes ``up`` rows, or ``down`` rows become one."""
    if min(up, down) < 1 or x.first % down or x.count % down or x.total % down:
        raise NoMap("begins or ends within a block of rows")
    return Rows(x.first * up // down, x.count * up // down, x.total * up // down, -(-x.lo // down) * up, x.hi // down * up)


def nearest(x: Rows, *, count: int, total: int, half_pixel: bool) -> Rows:
    """Nearest neighbour by a whole factor. Which row it takes is computed in single precision, as the kernels do."""

    def taken(rows: int, results: int) -> list[tuple[int, ...]]:
        scale = np.float32(rows) / np.float32(results)
        at = np.floor((np.arange(results, dtype=np.float32) + np.float32(0.5 if half_pixel else 0)) * scale)
        return [(int(i),) for i in np.clip(at, 0, rows - 1)]

    _factor(x, count, total)
    return _gathered(x, count, total, taken)


def bilinear(x: Rows, *, count: int, total: int, half_pixel: bool) -> Rows:
    """Bilinear, up by a power of two or down by a whole factor: by others the kernels round a band's positions otherwise."""
    up, down = _factor(x, count, total)
    if up > _MOST_FACTOR or up & (up - 1):
        raise NoMap(f"resizes by {up}, at which its kernel rounds otherwise for fewer rows")
    half = Fraction(1 if half_pixel else 0, 2)

    def taken(rows: int, results: int) -> list[tuple[int, ...]]:
        lower = [((r + half) * Fraction(down, up) - half).__floor__() for r in range(results)]
        return [(max(i, 0), min(i + 1, rows - 1)) for i in lower]

    return _gathered(x, count, total, taken)


def _factor(x: Rows, count: int, total: int) -> tuple[int, int]:
    """Whole factors up and down; one is 1."""
    for up, down in ((total // x.total if x.total else 0, 1), (1, x.total // total if total else 0)):
        if up and down and total * down == x.total * up and count * down == x.count * up:
            return up, down
    raise NoMap(f"resizes {x.count} rows to {count}, not by the whole factor of {x.total} to {total}")


def _gathered(x: Rows, count: int, total: int, taken: Callable[[int, int], list[tuple[int, ...]]]) -> Rows:
    """Rows that take the same rows here as in the whole, all of them right."""
    first, off = divmod(x.first * total, x.total)
    if off:
        raise NoMap("begins between two rows of its result")
    of_whole, here = taken(x.total, total), taken(x.count, count)
    right = [
        r
        for r in range(max(first, 0), min(first + count, total))
        if of_whole[r] == tuple(x.first + i for i in here[r - first]) and all(x.lo <= i < x.hi for i in of_whole[r])
    ]
    if not right or right[-1] - right[0] + 1 != len(right):
        raise NoMap("takes other rows than in the whole")
    return Rows(first, count, total, right[0], right[-1] + 1)
