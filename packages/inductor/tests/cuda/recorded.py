"""What the real allocator did, as it is kept in ``recorded/``: made by record.py, read by the tests of the replay.

Programs are kept as their requests and, for each case, where allocated and reserved are other than the request alone says. Random
traces are kept as digests of the figures after every event.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from addresses import Addresses
from cases import Case
from peakmem_inductor.cuda.caching import CachingAllocator, Event, OutOfDeviceMemory

HERE = Path(__file__).resolve().parent / "recorded"
Rows = Sequence[Sequence[int]]


def load(name: str) -> Any:
    return json.loads(lzma.decompress((HERE / f"{name}.json.xz").read_bytes()))


def save(name: str, value: Any) -> None:
    HERE.mkdir(exist_ok=True)
    text = json.dumps(value, separators=(",", ":")).encode()
    (HERE / f"{name}.json.xz").write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))


def digest(rows: Iterable[Sequence[int]]) -> str:
    """Short for all figures of a trace: any other byte gives another one."""
    return hashlib.sha256(repr([tuple(row) for row in rows]).encode()).hexdigest()[:16]


def pack(events: Sequence[Event]) -> list[int]:
    """Requests by their size, their ends by the number of the request less the number of all: one stream, nothing else."""
    numbers: dict[int, int] = {}
    packed = []
    for event in events:
        if event.stream or event.kind not in ("alloc", "free"):
            raise ValueError(f"programs of one stream are kept, without {event}")
        if event.kind == "alloc":
            numbers[event.block] = len(numbers)
            packed.append(event.size)
        else:
            packed.append(numbers[event.block] - len(numbers))
    return packed


def unpack(packed: Sequence[int]) -> list[Event]:
    events = []
    requests = 0
    for number in packed:
        if number >= 0:
            events.append(Event("alloc", requests, number))
            requests += 1
        else:
            events.append(Event("free", requests + number))
    return events


def differences(packed: Sequence[int], rows: Rows) -> list[list[int]]:
    """All that ``rows`` say beyond the requests themselves, so that equal differences are equal rows: of each event its number and
    by how much allocated and reserved changed, where not by the request in units of 512 bytes and by nothing."""
    found = []
    sizes: list[int] = []
    blocks: list[int] = []
    before: Sequence[int] = (0, 0, 0, 0)
    for k, (number, row) in enumerate(zip(packed, rows, strict=True)):
        if number >= 0:
            usual = -(-number // 512) * 512
            requested = number
            sizes.append(number)
            blocks.append(row[1] - before[1])
        else:
            usual = -blocks[len(sizes) + number]
            requested = -sizes[len(sizes) + number]
        if row[0] - before[0] != requested or row[2] != row[1]:
            raise ValueError(f"event {k} changes other bytes than it says")
        if row[1] - before[1] != usual or row[3] != before[3]:
            found.append([k, row[1] - before[1] - usual, row[3] - before[3]])
        before = row
    return found


def replayed(case: Case, events: Iterable[Event]) -> list[Sequence[int]]:
    """Figures of the replay after every event; like the recorder it goes on after memory has run out."""
    allocator = CachingAllocator(case.settings, total=case.total, addresses=Addresses(case.addresses))
    at: dict[int, int] = {}
    rows: list[Sequence[int]] = []
    for event in events:
        if event.kind == "alloc":
            try:
                at[event.block] = allocator.alloc(event.size, event.stream)
            except OutOfDeviceMemory:
                at[event.block] = 0
        elif event.kind == "free":
            allocator.free(at.pop(event.block))
        elif event.kind == "record":
            if at[event.block]:
                allocator.record_stream(at[event.block], event.stream)
        elif event.kind == "empty":
            allocator.empty_cache()
        elif event.kind == "hold":
            allocator.hold_events()
        else:
            allocator.settle_events()
        rows.append(allocator.figures)
    return rows
