"""PyTorch's memory snapshots: what ``torch.cuda.memory._dump_snapshot`` writes, read without torch.

A snapshot holds the segments as they were at its end, and the history of requests that led there, as far as it was recorded. From
both follows what was there when the history began.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

from peakmem.model import InputError, UsageError

from peakmem_inductor.cuda.caching import (
    MAIN,
    SMALL_REQUEST,
    SMALL_SEGMENT,
    BlockState,
    PoolId,
    SegmentState,
    round_size,
)
from peakmem_inductor.cuda.conf import INTERVALS, Settings
from peakmem_inductor.cuda.pickles import read_pickle

LARGEST_FILE = 1 << 31
RANGE = 1 << 46
"""Addresses that a range that grows is given: more than it will need, since a snapshot does not say how many it had."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that the history saw; ``place`` says where in the program, as far as stacks were recorded."""

    action: str
    address: int
    size: int
    stream: int
    pool: PoolId
    place: str


@dataclass(frozen=True)
class Device:
    """One device of a snapshot: ``segments`` as they were at its end, by address; ``places`` of what was live then."""

    number: int
    segments: tuple[SegmentState, ...]
    grows: frozenset[int]
    places: Mapping[int, str]
    history: tuple[Entry, ...]


@dataclass(frozen=True)
class Snapshot:
    """A snapshot file."""

    path: Path
    digest: str
    settings: Settings
    settings_text: str
    devices: tuple[Device, ...]


class _Reader:
    """Takes the parts of a snapshot and says where one is not as it should be."""

    def __init__(self, where: str) -> None:
        self.where = where

    def fail(self, place: str, what: str) -> NoReturn:
        raise InputError(f"{self.where}: {place} {what}; this is not a memory snapshot of PyTorch (torch.cuda.memory._dump_snapshot)")

    def mapping(self, value: Any, place: str) -> dict[str, Any]:
        return value if type(value) is dict else self.fail(place, "is no dictionary")

    def items(self, value: Any, place: str) -> list[Any]:
        return list(value) if type(value) in (list, tuple) else self.fail(place, "is no list")

    def number(self, row: Mapping[str, Any], key: str, place: str, default: int | None = None) -> int:
        value = row.get(key, default)
        if type(value) is not int or not 0 <= value < 1 << 64:
            self.fail(f"{place}.{key}", "is no address, size or number")
        return value

    def pool(self, row: Mapping[str, Any], key: str, place: str) -> PoolId:
        value = row.get(key, MAIN)
        if type(value) not in (list, tuple) or len(value) != 2 or any(type(part) is not int for part in value):
            self.fail(f"{place}.{key}", "is no pair of numbers")
        return value[0], value[1]

    def place(self, frames: Any) -> str:
        """The innermost line of Python outside torch, else the innermost name."""
        first = ""
        for frame in frames if type(frames) is list else ():
            if type(frame) is not dict:
                continue
            file, name, line = frame.get("filename"), frame.get("name"), frame.get("line")
            if not isinstance(file, str) or not isinstance(name, str) or not isinstance(line, int):
                continue
            if file.endswith(".py") and not any(part in file for part in ("/torch/", "/torch_", "<frozen")):
                return f"{file.rpartition('/')[2]}:{line} {name}"
            if not first and not name.startswith(("torch::", "c10::", "at::")):
                first = name
        return first


def looks_like_snapshot(head: bytes) -> bool:
    """By its first bytes: a pickle whose first key is ``segments``."""
    return head.startswith(b"\x80") and b"segments" in head[:64]


def read_snapshot(path: Path) -> Snapshot:
    """Read a snapshot; `InputError` with one sentence where the file is none."""
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise InputError(f"{path}: has more than {LARGEST_FILE >> 30} GiB; record fewer entries (max_entries)")
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    document = read_pickle(data, str(path))
    read = _Reader(str(path))
    top = read.mapping(document, "the top")
    found: dict[int, list[Any]] = {}
    for k, row in enumerate(read.items(top.get("segments"), "segments")):
        segment = read.mapping(row, f"segments[{k}]")
        found.setdefault(read.number(segment, "device", f"segments[{k}]", 0), []).append(segment)
    traces = [read.items(trace, "device_traces") for trace in read.items(top.get("device_traces", []), "device_traces")]
    settings, text = _settings(read, top.get("allocator_settings", {}))
    numbers = sorted({*found, *(k for k, trace in enumerate(traces) if trace)})
    devices = tuple(_device(read, k, found.get(k, []), traces[k] if k < len(traces) else []) for k in numbers)
    return Snapshot(path, "sha256:" + hashlib.sha256(data).hexdigest(), settings, text, devices)


def _settings(read: _Reader, given: Any) -> tuple[Settings, str]:
    row = read.mapping(given, "allocator_settings")
    text = row.get("PYTORCH_CUDA_ALLOC_CONF", "")
    try:
        settings = Settings.parse(text) if isinstance(text, str) else Settings()
        # The figures beside the text are those in force, which a program can change after it has begun.
        if isinstance(row.get("expandable_segments"), bool):
            settings = replace(settings, expandable_segments=row["expandable_segments"])
        if isinstance(limit := row.get("max_split_size"), int):
            settings = replace(settings, max_split_size=limit if limit > 0 else None)
        divisions = row.get("roundup_power2_divisions")
        if isinstance(divisions, dict) and len(divisions) == INTERVALS and all(isinstance(n, int) for n in divisions.values()):
            settings = replace(settings, roundup_power2_divisions=tuple(divisions[str(1 << k)] for k in range(INTERVALS)))
    except (UsageError, KeyError) as error:
        raise InputError(f"{read.where}: was recorded with settings that cannot be replayed: {error}") from None
    return settings, text if isinstance(text, str) else ""


def _device(read: _Reader, number: int, rows: list[Any], trace: list[Any]) -> Device:
    segments: list[SegmentState] = []
    grows: set[int] = set()
    places: dict[int, str] = {}
    for k, row in enumerate(rows):
        where = f"segments[{k}]"
        address = start = read.number(row, "address", where)
        blocks = []
        for j, part in enumerate(read.items(row.get("blocks"), f"{where}.blocks")):
            place = f"{where}.blocks[{j}]"
            block = read.mapping(part, place)
            state, size = block.get("state"), read.number(block, "size", place)
            if state not in ("active_allocated", "active_pending_free", "active_awaiting_free", "inactive"):
                read.fail(f"{place}.state", "is not known")
            active = state != "inactive"
            requested = read.number(block, "requested_size", place, size) if active else 0
            blocks.append(BlockState(size, requested, state == "active_allocated", active and state != "active_allocated"))
            if active:
                places[address] = read.place(block.get("frames"))
            address += size
        if address - start != read.number(row, "total_size", where):
            read.fail(f"{where}.total_size", "is not the sum of its blocks")
        if row.get("is_expandable") is True:
            grows.add(start)
        small = row.get("segment_type") == "small"
        stream, pool = read.number(row, "stream", where, 0), read.pool(row, "segment_pool_id", where)
        segments.append(SegmentState(start, stream, small, tuple(blocks), pool))
    segments.sort(key=lambda segment: segment.address)
    for one, other in pairwise(segments):
        if one.address + one.size > other.address:
            read.fail("segments", "overlap")
    history = []
    for k, row in enumerate(trace):
        where = f"device_traces[{number}][{k}]"
        entry = read.mapping(row, where)
        action = entry.get("action")
        if not isinstance(action, str):
            read.fail(f"{where}.action", "is no text")
        address = read.number(entry, "addr", where, read.number(entry, "device_free", where, 0))
        history.append(
            Entry(
                action, address, read.number(entry, "size", where, 0), read.number(entry, "stream", where, 0), read.pool(entry, "pool_id", where),
                read.place(entry.get("frames")),
            )
        )  # fmt: skip
    return Device(number, tuple(segments), frozenset(grows), places, tuple(history))


@dataclass
class _Live:
    requested: int
    size: int
    """0 where it must follow from what lies beside it."""
    allocated: bool = True


def at_the_beginning(device: Device, settings: Settings, where: str = "the snapshot") -> tuple[SegmentState, ...]:
    """What was reserved when the history began: the end with everything that happened taken back.

    Raises
    ------
    InputError
        Where the history and the segments contradict each other.
    """
    read = _Reader(where)
    held: dict[int, SegmentState] = {}
    ranges: dict[tuple[int, PoolId, bool], list[tuple[int, int]]] = {}
    live: dict[int, _Live] = {}
    for segment in device.segments:
        if segment.address in device.grows:
            ranges.setdefault((segment.stream, segment.pool, segment.small), []).append((segment.address, segment.address + segment.size))
        else:
            held[segment.address] = replace(segment, blocks=())
        address = segment.address
        for block in segment.blocks:
            if block.active:
                live[address] = _Live(block.requested, block.size, block.allocated)
            address += block.size
    sizes = {segment.address: segment.size for segment in device.segments}
    for k in range(len(device.history) - 1, -1, -1):
        entry = device.history[k]
        place = f"device_traces[{device.number}][{k}]"
        if entry.action == "alloc":
            if live.pop(entry.address, None) is None:
                read.fail(place, "allocates what is not there afterwards")
        elif entry.action == "free_completed":
            if entry.address in live:
                read.fail(place, "frees what is there afterwards")
            live[entry.address] = _Live(entry.size, 0, False)
        elif entry.action == "free_requested":
            freed = live.get(entry.address)
            if freed is None:
                read.fail(place, "frees what is never free afterwards")
            freed.allocated = True
        elif entry.action == "segment_alloc":
            if held.pop(entry.address, None) is None:
                read.fail(place, "takes a segment that is not there afterwards")
        elif entry.action == "segment_free":
            held[entry.address] = SegmentState(entry.address, entry.stream, entry.size == SMALL_SEGMENT, (), entry.pool)
            sizes[entry.address] = entry.size
        elif entry.action in ("segment_map", "segment_unmap"):
            _take_back(ranges, entry, entry.action == "segment_unmap" and _is_small(device, entry), read, place)
    segments = []
    addresses = sorted(live)
    for segment in sorted(held.values(), key=lambda segment: segment.address):
        end = segment.address + sizes[segment.address]
        segments.append(replace(segment, blocks=_fill(segment.address, end, addresses, live, segment.small, False, settings, read)))
    for (stream, pool, small), parts in sorted(ranges.items()):
        if not parts:
            continue
        blocks: list[BlockState] = []
        at = parts[0][0]
        for low, high in sorted(parts):
            if low > at:
                blocks.append(BlockState(low - at, mapped=False))
            blocks += _fill(low, high, addresses, live, small, True, settings, read)
            at = high
        blocks.append(BlockState(parts[0][0] + RANGE - at, mapped=False))
        segments.append(SegmentState(parts[0][0], stream, small, tuple(blocks), pool, RANGE))
    return tuple(segments)


def _is_small(device: Device, entry: Entry) -> bool:
    """Whether a range that grows was of the small pool, told by the requests that it ever served."""
    low, high = entry.address, entry.address + entry.size
    served = [other.size for other in device.history if other.action in ("alloc", "free_completed") and low <= other.address < high]
    if served:
        return max(served) <= SMALL_REQUEST
    kept = [segment.small for segment in device.segments if low <= segment.address < high]
    return kept[0] if kept else entry.size == SMALL_SEGMENT


def _take_back(
    ranges: dict[tuple[int, PoolId, bool], list[tuple[int, int]]], entry: Entry, small: bool, read: _Reader, place: str
) -> None:
    """The memory of a range that grows as it was before ``entry``."""
    low, high = entry.address, entry.address + entry.size
    if entry.action == "segment_unmap":
        key = entry.stream, entry.pool, small
        parts = sorted([*ranges.get(key, []), (low, high)])
        joined: list[tuple[int, int]] = []
        for part in parts:
            if joined and joined[-1][1] == part[0]:
                joined[-1] = (joined[-1][0], part[1])
            else:
                joined.append(part)
        ranges[key] = joined
        return
    for parts in ranges.values():
        for k, (a, b) in enumerate(parts):
            if a <= low and high <= b:
                parts[k : k + 1] = [part for part in ((a, low), (high, b)) if part[0] < part[1]]
                return
    read.fail(place, "maps what is not there afterwards")


def _fill(
    start: int, end: int, addresses: list[int], live: Mapping[int, _Live], small: bool, grows: bool, settings: Settings, read: _Reader
) -> tuple[BlockState, ...]:
    """Blocks from ``start`` to ``end``. A large block not split may be larger than its request; it then reaches to what is next."""
    blocks: list[BlockState] = []
    at = start
    first, last = bisect_left(addresses, start), bisect_left(addresses, end)
    for k in range(first, last):
        address = addresses[k]
        limit = addresses[k + 1] if k + 1 < last else end
        block = live[address]
        if address > at:
            blocks.append(BlockState(address - at))
        size = block.size
        if not size:
            size = round_size(block.requested, settings)
            unsplit = not (small or grows) and settings.max_split_size is not None and size >= settings.max_split_size
            if not (small or grows) and (unsplit or limit - address - size <= SMALL_REQUEST):
                size = limit - address
        if size > limit - address:
            read.fail("device_traces", f"holds a block of {size} bytes at {address:#x}, where {limit - address} are free")
        blocks.append(BlockState(size, block.requested, block.allocated, not block.allocated))
        at = address + size
    if at < end:
        blocks.append(BlockState(end - at))
    return tuple(blocks)
