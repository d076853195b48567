"""ONNX Runtime's arena for the CPU, as far as it decides how many bytes a process holds.

It takes regions from the system, hands out chunks of them (the smallest that is large enough; of equal ones the lowest), splits
a chunk when enough of it would be left, and joins free neighbours again. A *planned* arena has a first region of a size
that was chosen for a file, mostly just large enough for a run, and splits always: what a run takes is then known beforehand, and
nothing of it goes back and forth between the arena and the C library.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field

UNIT = 256
"""Bytes that every request is rounded up to."""

FIRST_REGION = 1 << 20
DEAD_BYTES = 128 << 20
"""Defaults: size of the first region, and how much of a chunk must be left over for it to be split at any rate."""

NEXT_REGION = 2 << 20
"""The size from which regions grow again after free ones were given back."""

_APART = 1 << 50
_MANY = 1 << 30
"""Regions never touch. Linux puts a large one below those before it; which of equal chunks is the lowest hangs on that."""

Event = tuple[int, int]
"""(number, bytes): the request of that number, or with bytes < 0 its release."""


@dataclass
class _Chunk:
    size: int
    used: bool = False
    before: int | None = None
    after: int | None = None


@dataclass
class Arena:
    """A replay of the arena.

    Attributes
    ----------
    first : int
        Bytes of the first region, rounded up to `UNIT`.
    dead : int
        A chunk is split when it is twice as large as asked for, or when at least this much is left of it.
    exact : bool
        Whether a region is as large as the request that it is taken for (``kSameAsRequested``); else they grow by powers of two
        (``kNextPowerOfTwo``).
    rising : bool
        Whether the system puts every region above those before it.
    regions : list of int
        Bytes of the regions held, oldest first.
    """

    first: int = FIRST_REGION
    dead: int = DEAD_BYTES
    exact: bool = False
    rising: bool = False
    _starts: dict[int, int] = field(default_factory=dict)  # address of a region -> its bytes
    _taken: int = 0
    _chunks: dict[int, _Chunk] = field(default_factory=dict)
    _free: list[tuple[int, int]] = field(default_factory=list)
    _next: int = 0
    _at: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._next = rounded(self.first)

    @property
    def regions(self) -> list[int]:
        return list(self._starts.values())

    @property
    def held(self) -> int:
        """Bytes of all regions."""
        return sum(self._starts.values())

    def shrink(self) -> None:
        """Give back regions of which nothing is in use, but for the first of those that grow by powers of two; see
        ``memory.enable_memory_arena_shrinkage``."""
        for at, size in list(self._starts.items())[0 if self.exact else 1 :]:
            if not self._chunks[at].used and self._chunks[at].after is None:
                del self._chunks[at], self._starts[at], self._free[bisect.bisect_left(self._free, (size, at))]
        self._next = NEXT_REGION

    def run(self, events: Iterable[Event], most: int = 1 << 62) -> bool:
        """Replay requests and releases, as long as not more than ``most`` bytes are held; whether that was to the end.

        O(log chunks) each, and the move of a sorted list.
        """
        for number, size in events:
            if size < 0:
                self._release(self._at.pop(number))
            elif size:
                regions = self._taken
                self._at[number] = self._take(rounded(size))
                if self._taken > regions and self.held > most:
                    return False
        return True

    def high_water(self, events: Iterable[Event]) -> int:
        """`run`, and the highest place in the first region that a request of ``events`` reaches."""
        top = 0
        for number, size in events:
            self.run([(number, size)])
            if size > 0:
                top = max(top, self._at[number] - next(iter(self._starts)) + rounded(size))
        return top

    def _take(self, size: int) -> int:
        place = bisect.bisect_left(self._free, (size, -1))
        if place == len(self._free):
            self._extend(size)
            place = bisect.bisect_left(self._free, (size, -1))
        whole, at = self._free.pop(place)
        chunk = self._chunks[at]
        if whole >= 2 * size or whole - size >= self.dead:
            rest = at + size
            self._chunks[rest] = _Chunk(whole - size, before=at, after=chunk.after)
            if chunk.after is not None:
                self._chunks[chunk.after].before = rest
            chunk.size, chunk.after = size, rest
            bisect.insort(self._free, (whole - size, rest))
        chunk.used = True
        return at

    def _extend(self, size: int) -> None:
        grown = self._next < size
        while self._next < size:
            self._next *= 2
        region = size if self.exact else self._next
        self._taken += 1
        at = _APART * (self._taken if self.rising else _MANY - self._taken)
        self._starts[at] = region
        self._chunks[at] = _Chunk(region)
        bisect.insort(self._free, (region, at))
        if not grown:
            self._next *= 2

    def _release(self, at: int) -> None:
        chunk = self._chunks[at]
        chunk.used = False
        after = chunk.after
        if after is not None and not self._chunks[after].used:
            self._join(at, after)
        before = chunk.before
        if before is not None and not self._chunks[before].used:
            self._free.remove((self._chunks[before].size, before))
            self._chunks[at].used = True
            self._join(before, at, free=False)
            at = before
        bisect.insort(self._free, (self._chunks[at].size, at))

    def _join(self, left: int, right: int, *, free: bool = True) -> None:
        gone = self._chunks.pop(right)
        if free:
            del self._free[bisect.bisect_left(self._free, (gone.size, right))]
        chunk = self._chunks[left]
        chunk.size += gone.size
        chunk.after = gone.after
        if gone.after is not None:
            self._chunks[gone.after].before = left


def rounded(size: int) -> int:
    return -(-size // UNIT) * UNIT
