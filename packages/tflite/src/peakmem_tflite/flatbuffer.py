"""A checked cursor over a flatbuffer.

The flatbuffers library for Python has no verifier, and its accessors unpack whatever an offset points at, negative
offsets included, which wrap around to the end of the file. Files come from strangers, so every position is checked
here before it is read, and a budget bounds the work: a small file whose tables share offsets can otherwise unfold into
billions of visits.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from peakmem.model import InputError

IDENTIFIER = b"TFL3"
MOST_TABLES = 1_000_000


@dataclass
class Flat:
    """The bytes of a file and what may still be visited of them."""

    data: bytes
    where: str
    tables: int = field(init=False)
    elements: int = field(init=False)

    def __post_init__(self) -> None:
        self.tables = min(MOST_TABLES, len(self.data) // 4)
        self.elements = 4 * len(self.data)

    def fail(self, what: str) -> InputError:
        return InputError(f"{self.where}: {what}; the file is damaged or not a TFLite model, get it again")

    def number(self, fmt: str, at: int, what: str) -> int:
        """The little-endian number ``fmt`` (a `struct` code) at ``at``."""
        size = struct.calcsize("<" + fmt)
        if at < 0 or at + size > len(self.data):
            raise self.fail(f"{what} lies outside the file (at byte {at} of {len(self.data)})")
        return int(struct.unpack_from("<" + fmt, self.data, at)[0])

    def table(self, at: int, what: str) -> Table:
        """The table at ``at``, after its vtable is checked."""
        self.tables -= 1
        if self.tables < 0:
            raise self.fail(f"{what}: more tables than a file of {len(self.data)} bytes can hold")
        vtable = at - self.number("i", at, what)
        length = self.number("H", vtable, f"{what}: its vtable")
        if length < 4 or length % 2 or vtable + length > len(self.data):
            raise self.fail(f"{what}: its vtable has an impossible length ({length})")
        return Table(self, at, vtable, length, what)

    def root(self) -> Table:
        return self.table(self.number("I", 0, "the root table"), "the model")

    def spend(self, count: int, what: str) -> None:
        self.elements -= count
        if self.elements < 0:
            raise self.fail(f"{what}: more entries than a file of {len(self.data)} bytes can hold")


@dataclass(frozen=True)
class Table:
    """One table; fields are named by their slot, counted from 0 in the order of the schema."""

    flat: Flat
    at: int
    vtable: int
    length: int
    what: str

    def position(self, slot: int) -> int:
        """Where a field is stored; 0 when it is absent."""
        entry = 4 + 2 * slot
        if entry + 2 > self.length:
            return 0
        offset = self.flat.number("H", self.vtable + entry, self.what)
        return self.at + offset if offset else 0

    def scalar(self, slot: int, fmt: str, default: int = 0) -> int:
        at = self.position(slot)
        return self.flat.number(fmt, at, self.what) if at else default

    def target(self, slot: int) -> int:
        """Where the offset in a field leads; 0 when it is absent."""
        at = self.position(slot)
        return at + self.flat.number("I", at, self.what) if at else 0

    def sub(self, slot: int, what: str) -> Table | None:
        at = self.target(slot)
        return self.flat.table(at, what) if at else None

    def vector(self, slot: int, size: int, what: str) -> tuple[int, int]:
        """Position of the first element and count of a vector whose elements take ``size`` bytes; (0, 0) if absent."""
        at = self.target(slot)
        if not at:
            return 0, 0
        count = self.flat.number("I", at, what)
        if at + 4 + count * size > len(self.flat.data):
            raise self.flat.fail(f"{what}: {count} entries do not fit in the file")
        return at + 4, count

    def ints(self, slot: int, what: str) -> tuple[int, ...]:
        """A vector of int32."""
        at, count = self.vector(slot, 4, what)
        self.flat.spend(4 * count, what)
        return struct.unpack_from(f"<{count}i", self.flat.data, at) if count else ()

    def text(self, slot: int, what: str) -> str:
        """A string; bytes that are not UTF-8 are shown escaped, for names mean nothing to a runtime."""
        at, count = self.vector(slot, 1, what)
        self.flat.spend(count, what)
        return self.flat.data[at : at + count].decode("utf-8", "backslashreplace")

    def children(self, slot: int, what: str) -> list[Table]:
        """A vector of tables."""
        at, count = self.vector(slot, 4, what)
        self.flat.spend(4 * count, what)
        return [
            self.flat.table(at + 4 * i + self.flat.number("I", at + 4 * i, what), f"{what} {i}") for i in range(count)
        ]
