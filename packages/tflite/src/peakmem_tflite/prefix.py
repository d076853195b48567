"""Bytes to stand before an untouched flatbuffer: a new root, and whatever is new.

Distances in a flatbuffer only point forward, so new tables can refer to old ones if they stand *before* them; the old
file keeps every byte, and, as the prefix is a multiple of 64 bytes, the alignment of its constants too.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from peakmem.model import InputError

from peakmem_tflite.flatbuffer import IDENTIFIER, Table
from peakmem_tflite.graph import Graph

UNIT = 64


@dataclass(frozen=True)
class Layout:
    """The fields of one kind of table, by slot.

    Attributes
    ----------
    references : frozenset of int
        Fields that hold a distance.
    scalars : dict of int to str
        Fields that hold a number of at most 4 bytes, and its `struct` code.
    """

    references: frozenset[int]
    scalars: Mapping[int, str]


MODEL = Layout(frozenset(range(1, 8)), {0: "I"})
SUBGRAPH = Layout(frozenset(range(5)), {5: "i"})
TENSOR = Layout(frozenset({0, 3, 4, 6, 7, 9}), {1: "b", 2: "I", 5: "B", 8: "B"})
OPERATOR = Layout(frozenset({1, 2, 4, 5, 7, 8, 12}), {0: "I", 3: "B", 6: "b", 11: "B", 13: "i"})


def unknown_field(table: Table, layout: Layout) -> int | None:
    """The first field present that the layout does not know, which therefore cannot be copied; None if all are known."""
    for slot in range((table.length - 4) // 2):
        if table.position(slot) and slot not in layout.references and slot not in layout.scalars:
            return slot
    return None


class Prefix:
    """Collects the bytes; distances are filled in when everything has its place."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self._labels: dict[str, int] = {}
        self._distances: list[tuple[int, int | str]] = []
        self.distance("root")
        self.bytes += IDENTIFIER

    def align(self, unit: int, remainder: int = 0) -> None:
        while len(self.bytes) % unit != remainder:
            self.bytes.append(0)

    def put(self, fmt: str, value: int) -> None:
        self.bytes += struct.pack("<" + fmt, value)

    def mark(self, label: str) -> None:
        self.align(4)
        self._labels[label] = len(self.bytes)

    def distance(self, target: int | str) -> None:
        """A distance to a label, or to a position in the old file."""
        self._distances.append((len(self.bytes), target))
        self.put("I", 0)

    def table(self, label: str, places: Sequence[int]) -> None:
        """A table of 4-byte fields: its vtable and the way back to it; the caller appends the fields."""
        self.align(4)
        begin = len(self.bytes)
        self.bytes += struct.pack(f"<{2 + len(places)}H", 4 + 2 * len(places), 4 + 4 * len(places), *places)
        self.mark(label)
        self.put("i", len(self.bytes) - begin)

    def copy(
        self, label: str, table: Table, layout: Layout, replaced: Mapping[int, str], *,
        numbers: Mapping[int, int] | None = None, dropped: Collection[int] = (),
    ) -> None:  # fmt: skip
        """A table of the old file with some fields leading to labels instead, or holding other numbers, or left out.

        Raises
        ------
        InputError
            When it has a field the layout does not know.
        """
        strange = unknown_field(table, layout)
        if strange is not None:
            raise InputError(f"{table.what} has a field ({strange}) that cannot be copied; convert the model anew")
        slots = range(1 + max((*layout.references, *layout.scalars)))
        numbers = numbers or {}
        present = [
            slot in replaced or slot in numbers or (slot not in dropped and table.position(slot) > 0) for slot in slots
        ]
        self.table(label, [4 * (slot + 1) if here else 0 for slot, here in zip(slots, present)])
        for slot, here in zip(slots, present):
            if slot in replaced:
                self.distance(replaced[slot])
            elif not here:
                self.put("I", 0)
            elif slot in layout.references:
                self.distance(table.target(slot))
            else:
                fmt = layout.scalars[slot]
                self.put("i" if fmt.islower() else "I", numbers.get(slot, table.scalar(slot, fmt)))

    def vector(self, label: str, members: Sequence[int | str]) -> None:
        """A vector of distances."""
        self.mark(label)
        self.put("I", len(members))
        for member in members:
            self.distance(member)

    def ints(self, label: str, values: Sequence[int]) -> None:
        """A vector of int32."""
        self.mark(label)
        self.put("I", len(values))
        self.bytes += struct.pack(f"<{len(values)}i", *values)

    def text(self, label: str, text: str) -> None:
        self.mark(label)
        data = text.encode()
        self.put("I", len(data))
        self.bytes += data + b"\0"

    def join(self, graph: Graph) -> bytes:
        """The prefix and the old file, whose offsets from the file's start are moved along."""
        self.align(UNIT)
        shift = len(self.bytes)
        for at, target in self._distances:
            position = self._labels[target] if isinstance(target, str) else shift + target
            struct.pack_into("<I", self.bytes, at, position - at)
        return bytes(self.bytes) + moved(graph, shift)


def moved(graph: Graph, shift: int) -> bytes:
    """The bytes of a file that is to stand ``shift`` bytes later."""
    old = bytearray(graph.data)
    for at in graph.external:
        struct.pack_into("<Q", old, at, struct.unpack_from("<Q", old, at)[0] + shift)
    return bytes(old)
