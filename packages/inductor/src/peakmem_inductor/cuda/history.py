"""What a memory snapshot tells: who was live at the peak, what fragmentation cost, what other settings would have reserved."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from peakmem_inductor.cuda.caching import BlockState, CachingAllocator, Figures, SegmentState
from peakmem_inductor.cuda.conf import Settings
from peakmem_inductor.cuda.snapshots import Device, at_the_beginning

UNKNOWN = "(no stack recorded)"


@dataclass(frozen=True)
class Run:
    """A history replayed.

    Attributes
    ----------
    figures : tuple of Figures
        After each entry, the first before all of them.
    departs : int or None
        The first entry after which the recording had reserved other bytes; None: it never had, or this was not compared.
    at_peak : Figures
        Where the most was reserved for the first time.
    """

    figures: tuple[Figures, ...]
    departs: int | None

    @property
    def at_peak(self) -> Figures:
        most = max(row.reserved for row in self.figures)
        return next(row for row in self.figures if row.reserved == most)


@dataclass(frozen=True)
class Share:
    """Bytes live at the peak that one line of the program requested, in so many blocks."""

    place: str
    bytes: int
    blocks: int


@dataclass(frozen=True)
class Findings:
    """One device of a snapshot.

    Attributes
    ----------
    device : int
    requests, entries : int
        Of the history.
    live_at_entry : int
        Bytes requested and live when the history began.
    recorded : Run
        Under the settings of the recording, from the state at its beginning.
    by_address : bool
        Whether the recording's allocator chose among equally large blocks by address, as before PyTorch 2.14.
    peak_entry : int
        The entry after which most bytes were requested and live; 0 is the beginning.
    live : tuple of Share
        What was live there, largest first.
    """

    device: int
    requests: int
    entries: int
    live_at_entry: int
    recorded: Run
    by_address: bool
    peak_entry: int
    live: tuple[Share, ...]

    @property
    def live_peak(self) -> int:
        return self.recorded.figures[self.peak_entry].requested


def study(device: Device, settings: Settings, where: str) -> Findings:
    """Replay a device's history as it was recorded."""
    state = at_the_beginning(device, settings, where)
    by_address = False
    recorded = follow(device, CachingAllocator(settings, state=state), compare=True)
    if recorded.departs is not None:
        older = follow(device, CachingAllocator(settings, state=state, by_address=True), compare=True)
        if older.departs is None or older.departs > recorded.departs:
            recorded, by_address = older, True
    requested = [row.requested for row in recorded.figures]
    peak = requested.index(max(requested))
    return Findings(
        device.number, sum(entry.action == "alloc" for entry in device.history), len(device.history), recorded.figures[0].requested, recorded, by_address,
        peak, _live(device, state, peak),
    )  # fmt: skip


def under(device: Device, recorded: Settings, other: Settings, where: str) -> Run:
    """The same requests under other settings, from an empty cache; what was live at the beginning is requested first."""
    allocator = CachingAllocator(other)
    return follow(device, allocator, first=_blocks(at_the_beginning(device, recorded, where)))


def _blocks(state: Iterable[SegmentState]) -> Iterable[tuple[int, int, BlockState]]:
    for segment in state:
        address = segment.address
        for block in segment.blocks:
            if block.active:
                yield address, segment.stream, block
            address += block.size


def follow(
    device: Device, allocator: CachingAllocator, *, first: Iterable[tuple[int, int, BlockState]] | None = None, compare: bool = False
) -> Run:
    """Give a history's requests to an allocator.

    Where the recording gave memory back, the cache is emptied: the history does not say why it did, and most often it was this.
    """
    allocator.hold_events()  # the history says when other streams have got on
    at: dict[int, int] = {}
    if first is None:
        at.update((address, address) for address, _, _ in _blocks(allocator.state))
    else:
        for address, stream, block in first:
            at[address] = allocator.alloc(block.requested, stream)
            if not block.allocated:
                allocator.free(at[address], completes=False)
    figures = [allocator.figures]
    recorded = allocator.reserved
    departs: int | None = None
    gives_back = False
    for number, entry in enumerate(device.history):
        if entry.action in ("segment_alloc", "segment_map"):
            recorded += entry.size
        elif entry.action in ("segment_free", "segment_unmap"):
            recorded -= entry.size
            gives_back = True
        elif entry.action in ("alloc", "free_requested", "free_completed"):
            if gives_back:
                allocator.empty_cache()
                gives_back = False
            if entry.action == "alloc":
                at[entry.address] = allocator.alloc(entry.size, entry.stream, entry.pool)
            elif entry.action == "free_requested":
                allocator.free(at[entry.address], completes=False)
            else:
                address = at.pop(entry.address)
                if allocator.waits(address):
                    allocator.complete(address)
            if compare and departs is None and allocator.reserved != recorded:
                departs = number
        figures.append(allocator.figures)
    if gives_back:
        allocator.empty_cache()
        figures[-1] = allocator.figures
        if compare and departs is None and allocator.reserved != recorded:
            departs = len(device.history) - 1
    return Run(tuple(figures), departs)


def _live(device: Device, state: Iterable[SegmentState], entry: int) -> tuple[Share, ...]:
    """What is live after so many entries, by place."""
    alive: dict[int, tuple[int, str]] = {}
    for address, _, block in _blocks(state):
        alive[address] = block.requested, ""
    for row in device.history[:entry]:
        if row.action == "alloc":
            alive[row.address] = row.size, row.place
        elif row.action == "free_completed":
            alive.pop(row.address, None)
    born = {row.address for row in device.history if row.action in ("alloc", "free_completed")}
    totals: dict[str, tuple[int, int]] = {}
    for address, (size, place) in alive.items():
        if not place and address not in born:  # there from before to the end: the end has its stack
            place = device.places.get(address, "")
        bytes_, blocks = totals.get(place or UNKNOWN, (0, 0))
        totals[place or UNKNOWN] = bytes_ + size, blocks + 1
    return tuple(Share(place, *total) for place, total in sorted(totals.items(), key=lambda row: (-row[1][0], row[0])))
