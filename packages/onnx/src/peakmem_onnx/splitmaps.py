"""Maps of rows of nodes that are told how much to pad: a band is padded where it ends with the whole, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass

from peakmem.frontends.splitting import RowMap, Rows


@dataclass(frozen=True)
class PaddedWindow(RowMap):
    """A window that moves: convolution, pooling.

    Attributes
    ----------
    extent, reach, stride, top, bottom : int
        Rows of the whole input, of the window (dilation counted), by which it moves, and of padding.
    over : int
        1 where the last window stands out of the padding, too (``ceil_mode``); else 0.
    """

    extent: int
    reach: int
    stride: int
    top: int
    bottom: int
    over: int = 0

    @property
    def slack(self) -> int:  # type: ignore[override]
        return self.stride

    @property
    def whole(self) -> int:
        """Rows of the whole result."""
        return (self.extent + self.top + self.bottom - self.reach) // self.stride + 1 + self.over

    def padding(self, start: int, end: int) -> tuple[int, int]:
        """Rows of padding of a band."""
        return self.top if start == 0 else 0, self.bottom if end == self.extent else 0

    def need(self, low: int, high: int) -> tuple[int, int]:
        first, last = self.stride * low - self.top, self.stride * (high - 1) - self.top + self.reach
        # What reads only padding is given a row all the same.
        return max(0, min(first, self.extent - 1)), max(1, min(last, self.extent))

    def output(self, rows: Rows) -> Rows | None:
        top, bottom = self.padding(rows.start, rows.end)
        start, off = divmod(rows.start + self.top - top, self.stride)
        count = (rows.count + top + bottom - self.reach) // self.stride + 1 + (self.over if rows.end == self.extent else 0)
        low = 0 if rows.low == 0 else -(-(rows.low + self.top) // self.stride)
        high = self.whole if rows.high == self.extent else (rows.high + self.top - self.reach) // self.stride + 1
        return None if off else _within(start, count, low, high, self.whole)


@dataclass(frozen=True)
class PaddedRows(RowMap):
    """Rows before and after.

    Attributes
    ----------
    extent, top, bottom : int
    mirrored : bool
        They are those inside, the end one not among them; else a constant, or the end one.
    """

    extent: int
    top: int
    bottom: int
    mirrored: bool = False

    def source(self, r: int) -> int:
        """The row of the input that a row of the result is, or is nearest to."""
        i = r - self.top
        if self.mirrored:
            return -i if i < 0 else 2 * (self.extent - 1) - i if i >= self.extent else i
        return max(0, min(i, self.extent - 1))

    def need(self, low: int, high: int) -> tuple[int, int]:
        # Padding is added at an end of the whole: that end must be there, and all that is mirrored.
        at_top, at_bottom = low < self.top, high > self.top + self.extent
        read = [self.source(r) for r in range(low, high)]
        first, last = 0 if at_top else min(read), self.extent if at_bottom else max(read) + 1
        if self.mirrored:
            last = min(self.extent, max(last, first + 2))
            first = max(0, min(first, last - 2))
            last = max(last, self.top + 1 if first == 0 else 0)
            first = min(first, self.extent - 1 - self.bottom if last == self.extent else first)
        return first, last

    def output(self, rows: Rows) -> Rows | None:
        whole = self.top + self.extent + self.bottom
        at_top, at_bottom = rows.start == 0, rows.end == self.extent
        if self.mirrored and rows.count < 1 + max(1, self.top if at_top else 0, self.bottom if at_bottom else 0):
            return None
        start = 0 if at_top else rows.start + self.top
        end = whole if at_bottom else rows.end + self.top
        right = [r for r in range(start, end) if rows.low <= self.source(r) < rows.high]
        return _within(start, end - start, right[0], right[-1] + 1, whole) if right and len(right) == right[-1] + 1 - right[0] else None


@dataclass(frozen=True)
class Transposed(RowMap):
    """Transposed convolution: each row adds to ``reach`` rows, ``stride`` rows further on than the row before.

    A band leaves out the rows that rows beyond its ends add to, so that all it gives are right.

    Attributes
    ----------
    extent, reach, stride : int
        ``reach`` is at least ``stride``.
    top, whole : int
        Rows left out at the top, and rows of the whole result.
    """

    extent: int
    reach: int
    stride: int
    top: int
    whole: int

    def need(self, low: int, high: int) -> tuple[int, int]:
        first = max(0, min((low + self.top - self.reach) // self.stride + 1, self.extent - 1))
        return first, max(first + 1, min((high - 1 + self.top) // self.stride + 1, self.extent))

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The rows that a band gives: first and last but one."""
        s = self.stride
        first = 0 if start == 0 else max(0, s * start + self.reach - s - self.top)
        return first, self.whole if end == self.extent else min(self.whole, s * end - self.top)

    def output(self, rows: Rows) -> Rows | None:
        start, end = self.span(rows.start, rows.end)
        low, high = self.span(rows.low, rows.high)
        return _within(start, end - start, low, high, self.whole)


@dataclass(frozen=True)
class Groups(RowMap):
    """Channels of a convolution in groups: each ``taken`` of the input give ``given`` of the result."""

    taken: int
    given: int

    @property
    def slack(self) -> int:  # type: ignore[override]
        return self.taken

    def need(self, low: int, high: int) -> tuple[int, int]:
        return low // self.given * self.taken, -(-high // self.given) * self.taken

    def output(self, rows: Rows) -> Rows | None:
        if rows.start % self.taken or rows.count % self.taken:
            return None
        low, high = -(-rows.low // self.taken) * self.given, rows.high // self.taken * self.given
        start, count = rows.start // self.taken * self.given, rows.count // self.taken * self.given
        return _within(start, count, low, high, start + count)


@dataclass(frozen=True)
class Several(RowMap):
    """Row by row, two at the least."""

    def need(self, low: int, high: int) -> tuple[int, int]:
        return low, high

    def output(self, rows: Rows) -> Rows | None:
        return rows if rows.count > 1 else None


def _within(start: int, count: int, low: int, high: int, whole: int) -> Rows | None:
    """A band of a whole with so many rows; None where it stands out of it or holds nothing right."""
    low, high = max(low, start), min(high, start + count)
    return Rows(start, count, low, high) if start >= 0 and 0 < count <= whole - start and low < high else None
