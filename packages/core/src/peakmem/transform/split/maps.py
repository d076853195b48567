"""Maps of rows of the usual operators.

A row of a band is right if the kernel computes it from the same cells as the row of the whole that it stands for: what
its window covers is in the band and right, and where the window sticks out of the whole, the band ends exactly there,
so that the same padding is seen. Rows that see other padding are not right; they are dropped, never used.
"""

from __future__ import annotations

from dataclasses import dataclass

from peakmem.frontends.splitting import RowMap, Rows


def _clipped(start: int, count: int, low: int, high: int, extent: int) -> Rows | None:
    """A band of a whole with ``extent`` rows; None where it stands out of it or holds nothing right."""
    low, high = max(low, start), min(high, start + count)
    if start < 0 or start + count > extent or low >= high:
        return None
    return Rows(start, count, low, high)


@dataclass(frozen=True)
class Same(RowMap):
    """Row by row: element by element, over channels, joined along channels."""

    def need(self, low: int, high: int) -> tuple[int, int]:
        return low, high

    def output(self, rows: Rows) -> Rows | None:
        return rows


@dataclass(frozen=True)
class Free(RowMap):
    """No input is banded: any rows can be computed, such as some channels of a convolution.

    Attributes
    ----------
    least : int
        Rows that a band must have.
    """

    least: int = 1

    def need(self, low: int, high: int) -> tuple[int, int]:
        return low, high

    def output(self, rows: Rows) -> Rows | None:
        return rows if rows.count >= self.least else None


@dataclass(frozen=True)
class Window(RowMap):
    """A window that moves: convolution, depthwise convolution, pooling.

    Attributes
    ----------
    extent : int
        Rows of the whole input.
    reach : int
        Rows of the window, dilation counted: ``(kernel - 1) * dilation + 1``.
    stride : int
    same : bool
        Padding SAME, which the kernel works out from the rows it is given; else none.
    strict : bool
        Only bands that get as much padding at the top as the whole does.
    """

    extent: int
    reach: int
    stride: int
    same: bool
    strict: bool = False

    @property
    def slack(self) -> int:  # type: ignore[override]
        return self.stride

    def geometry(self, count: int) -> tuple[int, int]:
        """Rows of the output and padding at the top, for so many rows of input."""
        if self.same:
            out = -(-count // self.stride)
            return out, max((out - 1) * self.stride + self.reach - count, 0) // 2
        return (count - self.reach) // self.stride + 1 if count >= self.reach else 0, 0

    def need(self, low: int, high: int) -> tuple[int, int]:
        _, padding = self.geometry(self.extent)
        first, last = self.stride * low - padding, self.stride * (high - 1) - padding + self.reach
        return max(0, min(first, self.extent - 1)), max(1, min(last, self.extent))

    def output(self, rows: Rows) -> Rows | None:
        whole, padding = self.geometry(self.extent)
        out, own = self.geometry(rows.count)
        if out < 1 or (rows.start + padding - own) % self.stride or (self.strict and own != padding):
            return None
        top = rows.start == 0 and rows.low == 0
        bottom = rows.end == self.extent and rows.high == self.extent
        low = 0 if top else -(-(rows.low + padding) // self.stride)
        high = whole if bottom else (rows.high - self.reach + padding) // self.stride + 1
        return _clipped((rows.start + padding - own) // self.stride, out, low, high, whole)


@dataclass(frozen=True)
class Pad(RowMap):
    """Rows of a constant before and after; at an end that is not the whole's they are not right."""

    extent: int
    top: int
    bottom: int

    def need(self, low: int, high: int) -> tuple[int, int]:
        first = max(0, min(low - self.top, self.extent - 1))
        return first, max(first + 1, min(high - self.top, self.extent))

    def output(self, rows: Rows) -> Rows | None:
        whole = self.extent + self.top + self.bottom
        low = 0 if rows.low == 0 else rows.low + self.top
        high = whole if rows.high == self.extent else rows.high + self.top
        return _clipped(rows.start, rows.count + self.top + self.bottom, low, high, whole)


@dataclass(frozen=True)
class Magnify(RowMap):
    """Each row becomes ``factor`` rows.

    ``blend``: they are mixed from their neighbours, so that those of the row at an end that is not the whole's are not
    right.
    """

    extent: int
    factor: int
    blend: bool = False

    def need(self, low: int, high: int) -> tuple[int, int]:
        first, last = low // self.factor, -(-high // self.factor)
        return (max(0, first - 1), min(self.extent, last + 1)) if self.blend else (first, last)

    def output(self, rows: Rows) -> Rows | None:
        low = rows.low + (self.blend and rows.low > 0)
        high = rows.high - (self.blend and rows.high < self.extent)
        f = self.factor
        return _clipped(f * rows.start, f * rows.count, f * low, f * high, f * self.extent)


@dataclass(frozen=True)
class Shrink(RowMap):
    """``factor`` rows become one; ``blend`` as in `Magnify`."""

    extent: int
    factor: int
    blend: bool = False

    @property
    def slack(self) -> int:  # type: ignore[override]
        return self.factor

    def need(self, low: int, high: int) -> tuple[int, int]:
        f = self.factor
        return max(0, f * (low - self.blend)), min(self.extent, f * (high + self.blend))

    def output(self, rows: Rows) -> Rows | None:
        f = self.factor
        if rows.start % f or rows.count % f:
            return None
        low = -(-rows.low // f) + (self.blend and rows.low > 0)
        high = rows.high // f - (self.blend and rows.high < self.extent)
        return _clipped(rows.start // f, rows.count // f, low, high, self.extent // f)


@dataclass(frozen=True)
class Scatter(RowMap):
    """Transposed convolution: each row adds to ``kernel`` rows, ``stride`` rows further on than the row before."""

    extent: int
    kernel: int
    stride: int
    same: bool

    def geometry(self, count: int) -> tuple[int, int]:
        """Rows of the output and how many of them are cut off at the top, for so many rows of input."""
        if self.same:
            return count * self.stride, max(self.kernel - self.stride, 0) // 2
        return (count - 1) * self.stride + self.kernel, 0

    def need(self, low: int, high: int) -> tuple[int, int]:
        _, cut = self.geometry(self.extent)
        first = max(0, -(-(low + cut - self.kernel + 1) // self.stride))
        last = min(self.extent - 1, (high - 1 + cut) // self.stride)
        first = min(first, self.extent - 1)
        return first, max(first, last) + 1

    def output(self, rows: Rows) -> Rows | None:
        whole, cut = self.geometry(self.extent)
        out, _ = self.geometry(rows.count)
        low = 0 if rows.low == 0 else (rows.low - 1) * self.stride + self.kernel - cut
        high = whole if rows.high == self.extent else rows.high * self.stride - cut
        return _clipped(rows.start * self.stride, out, low, high, whole)
