"""A replay of PyTorch's caching allocator: the same requests give the same allocated and reserved bytes, to the byte.

Written from what the allocator is publicly known to do, and compared with the real one after every event. In short: sizes are
rounded to 512 bytes; requests of up to 1 MiB are cut from segments of 2 MiB, larger ones from segments of 20 MiB or of their own
size rounded to 2 MiB; the smallest free block of the same stream that is large enough serves, among equals the one of the segment
that was taken first (before PyTorch 2.14 the one at the lowest address); what is left of it stays free when it is large enough to be of use; free neighbours become one block; segments go back to
the device only when it runs out, when the cache is emptied, or by age where a threshold is set.

A replay stands for one device and needs no torch. All bytes are those of PyTorch's ``memory_stats``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from peakmem.model import PeakmemError, UsageError

from peakmem_inductor.cuda.conf import INTERVALS, MIB, Settings

UNIT = 512
SMALL_REQUEST = MIB
SMALL_SEGMENT = 2 * MIB
OWN_SEGMENT = 10 * MIB
"""Requests of this size and more get a segment of their own size."""
GRAIN = 2 * MIB

PoolId = tuple[int, int]
MAIN: PoolId = (0, 0)
"""The pool of everything that belongs to no CUDA graph and no memory pool of the user's."""


class OutOfDeviceMemory(PeakmemError):
    """The device, or the share of it that the process may take, has no room; what was cached has been given back."""


class Event(NamedTuple):
    """One thing that happens to the allocator.

    Attributes
    ----------
    kind : {"alloc", "free", "record", "empty", "hold", "settle"}
        A request; its end; its use on another stream; the cache emptied; work on other streams stays unfinished from here
        on; it is finished from here on.
    block : int
        Names the request among those alive.
    size : int
        Bytes requested, for ``alloc``.
    stream : int
        Of the request, or the other one for ``record``.
    """

    kind: Literal["alloc", "free", "record", "empty", "hold", "settle"]
    block: int = 0
    size: int = 0
    stream: int = 0


class Figures(NamedTuple):
    """Bytes after an event: as requested, rounded and in use, in use or still awaited by a stream, taken from the device."""

    requested: int
    allocated: int
    active: int
    reserved: int


@dataclass(frozen=True)
class BlockState:
    """A part of a segment: ``requested`` bytes in use of ``size``, or free. ``uses`` are the other streams it was used on;
    ``pending``: freed, and awaited by one of them; ``age``: requests to its pool since it became free."""

    size: int
    requested: int = 0
    allocated: bool = False
    pending: bool = False
    mapped: bool = True
    uses: tuple[int, ...] = ()
    age: int = 0

    @property
    def active(self) -> bool:
        return self.allocated or self.pending


@dataclass(frozen=True)
class SegmentState:
    """What lies at one address taken from the device. ``span``: bytes of addresses kept for it where it can grow, else 0;
    ``order``: its number among the segments taken, from 1 on, where it is known, else 0."""

    address: int
    stream: int
    small: bool
    blocks: tuple[BlockState, ...]
    pool: PoolId = MAIN
    span: int = 0
    order: int = 0

    @property
    def size(self) -> int:
        """Bytes of the device that it holds."""
        return sum(block.size for block in self.blocks if block.mapped)


class _Grown:
    """A range of addresses that is filled with pages as needed."""

    __slots__ = ("base", "page", "span")

    def __init__(self, base: int, page: int, span: int) -> None:
        self.base, self.page, self.span = base, page, span

    def pages_over(self, address: int, size: int) -> tuple[int, int]:
        """The pages that ``size`` bytes from ``address`` on touch, as first and one past the last."""
        return (address - self.base) // self.page, -((self.base - address - size) // self.page)

    def pages_within(self, address: int, size: int) -> tuple[int, int]:
        """The pages that lie wholly in it."""
        return -((self.base - address) // self.page), (address + size - self.base) // self.page


class _Block:
    __slots__ = (
        "address", "age_from", "allocated", "grown", "inherited", "mapped", "next", "order", "pending", "pool", "prev", "requested", "size",
        "stream", "uses",
    )  # fmt: skip

    def __init__(self, stream: int, size: int, pool: _Pool, address: int, order: int, grown: _Grown | None = None) -> None:
        self.stream, self.size, self.pool, self.address, self.order, self.grown = stream, size, pool, address, order, grown
        self.requested = 0
        self.allocated = False
        self.pending = 0  # events of other streams still outstanding
        self.mapped = True
        self.uses: set[int] = set()
        self.age_from = 0
        self.inherited = False  # holds memory that was reserved when the replay began
        self.prev: _Block | None = None
        self.next: _Block | None = None

    @property
    def split(self) -> bool:
        return self.prev is not None or self.next is not None

    @property
    def available(self) -> bool:
        return not (self.allocated or self.pending or self.uses)

    @property
    def could_grow_to(self) -> int:
        return self.size + (self.next.size if self.next is not None and not self.next.mapped else 0)

    def put_between(self, before: _Block | None, after: _Block | None) -> None:
        self.prev, self.next = before, after
        if before is not None:
            before.next = self
        if after is not None:
            after.prev = self


class _Pool:
    """Free blocks, by stream, size, order of their segments and address; and addresses without memory, by stream and address."""

    def __init__(self, small: bool, owner: PoolId) -> None:
        self.small, self.owner = small, owner
        self.free: list[tuple[int, int, int, int, _Block]] = []
        self.unmapped: list[tuple[int, int, _Block]] = []
        self.searches = 0

    def add(self, block: _Block) -> None:
        block.age_from = self.searches
        insort(self.free, (block.stream, block.size, block.order, block.address, block))

    def remove(self, block: _Block) -> None:
        at = bisect_left(self.free, (block.stream, block.size, block.order, block.address))
        assert self.free[at][-1] is block
        del self.free[at]

    def add_unmapped(self, block: _Block) -> None:
        insort(self.unmapped, (block.stream, block.address, block))

    def remove_unmapped(self, block: _Block) -> None:
        at = bisect_left(self.unmapped, (block.stream, block.address))
        assert self.unmapped[at][2] is block
        del self.unmapped[at]

    def from_size(self, stream: int, size: int) -> int:
        """Place of the first free block that is not before this stream and size."""
        return bisect_left(self.free, (stream, size))


class Ascending:
    """Each segment above all before it, on a multiple of 2 MiB: what is assumed of the device where nothing is known."""

    def __init__(self, above: int = 0) -> None:
        self.top = above

    def __call__(self, size: int) -> int:
        address = -(-max(self.top, GRAIN) // GRAIN) * GRAIN
        self.top = address + size
        return address


class CachingAllocator:
    """One device's allocator.

    Parameters
    ----------
    settings : Settings
        May be replaced between requests, as in PyTorch.
    total : int or None
        Bytes of the device that this process can have; None: never runs out.
    addresses : callable
        Where the device puts the next segment of so many bytes; it matters with ``by_address``, and where a range that grows has
        grown full.
    state : iterable of SegmentState
        What is there at entry; see `state`.
    by_address : bool
        Of equally large free blocks the one at the lowest address serves, as before PyTorch 2.14, and not the one of the segment
        that was taken first.
    """

    def __init__(
        self,
        settings: Settings = Settings(),  # noqa: B008  (frozen)
        *,
        total: int | None = None,
        addresses: Callable[[int], int] | None = None,
        state: Iterable[SegmentState] = (),
        by_address: bool = False,
    ) -> None:
        self.settings = settings
        self.total = total
        self.requested = self.allocated = self.active = self.reserved = 0
        self.peak = Figures(0, 0, 0, 0)
        self.first_inherited: int | None = None
        """Number of the first request that memory cached at entry served, counted from 0; None: none yet."""
        self.ties = 0
        """Requests that one of several equally large free blocks served, of segments whose order is only assumed."""
        self.requests = 0
        self._pools: dict[tuple[PoolId, bool], _Pool] = {}
        self._live: dict[int, _Block] = {}
        self._awaited: list[_Block] = []
        self._held = False
        self._placed: set[int] = set()
        self.by_address = by_address
        segments = list(state)
        self._taken = max((segment.order for segment in segments), default=0)
        for segment in segments:
            self._restore(segment)
        self._addresses = addresses or Ascending(max((s.address + max(s.span, s.size) for s in segments), default=0))
        self.reset_peak()

    # ------------------------------------------------------------------ figures

    @property
    def figures(self) -> Figures:
        return Figures(self.requested, self.allocated, self.active, self.reserved)

    def reset_peak(self) -> None:
        self.peak = self.figures

    def _seen(self) -> None:
        peak = self.peak
        if self.reserved > peak.reserved or self.allocated > peak.allocated or self.active > peak.active or self.requested > peak.requested:
            self.peak = Figures(*map(max, peak, self.figures))

    def begin(self) -> None:
        """A program begins: peaks count from here, and what is reserved now was there at entry."""
        self.reset_peak()
        self.first_inherited = None
        for block in self._blocks():
            block.inherited = block.mapped

    @property
    def allowed(self) -> int | None:
        """Bytes that the process may take, where a fraction of a known device is set."""
        fraction = self.settings.memory_fraction
        return None if fraction is None or self.total is None else int(fraction * self.total)

    # ------------------------------------------------------------------ requests

    def alloc(self, size: int, stream: int = 0, pool: PoolId = MAIN) -> int:
        """Serve a request; the address names it from then on (0 for no bytes, which the allocator never sees).

        Raises
        ------
        OutOfDeviceMemory
        """
        if size < 0:
            raise UsageError(f"a request of {size} bytes")
        if not size:
            return 0
        self.process_events()
        rounded = round_size(size, self.settings)
        place = self._pool(pool, rounded <= SMALL_REQUEST)
        block = self._free_block(place, stream, rounded)
        if block is None:
            if self._collects:
                self._collect_garbage()
            block = self._serve(place, stream, rounded)
        elif block.inherited and self.first_inherited is None:
            self.first_inherited = self.requests
        left = block.size - rounded
        small_parts = place.small or self.settings.expandable_segments
        whole = left < UNIT if small_parts else left <= SMALL_REQUEST or not self._may_split(rounded)
        if not whole:
            rest = block
            block = _Block(stream, rounded, place, rest.address, rest.order, rest.grown)
            block.inherited = rest.inherited
            block.put_between(rest.prev, rest)
            rest.address += rounded
            rest.size -= rounded
            place.add(rest)
        block.allocated = True
        block.requested = size
        self._live[block.address] = block
        self.requests += 1
        self.allocated += block.size
        self.active += block.size
        self.requested += size
        self._seen()
        return block.address

    def free(self, address: int, *, completes: bool | None = None) -> None:
        """End the request at ``address``.

        Where it was used on other streams its memory is free again when they have got so far: before the next request, unless
        events are held. ``completes`` says it instead: False, not before `complete` is called.
        """
        if not address:
            return
        block = self._live.get(address)
        if block is None or not block.allocated:
            raise UsageError(f"nothing is allocated at address {address:#x}")
        block.allocated = False
        self.allocated -= block.size
        if completes is False:
            block.uses.clear()
            block.pending = 1
        elif block.uses:
            block.pending = len(block.uses)
            block.uses.clear()
            self._awaited.append(block)
        else:
            self._release_to_pool(block)

    def complete(self, address: int) -> None:
        """The streams that used what was freed at ``address`` have got so far."""
        block = self._live.get(address)
        if block is None or not block.pending:
            raise UsageError(f"nothing at address {address:#x} waits for a stream")
        if block in self._awaited:
            self._awaited.remove(block)
        block.pending = 0
        self._release_to_pool(block)

    def waits(self, address: int) -> bool:
        """Whether what is freed at ``address`` waits for other streams."""
        block = self._live.get(address)
        return block is not None and bool(block.pending)

    def record_stream(self, address: int, stream: int) -> None:
        """What is allocated at ``address`` is used on another stream."""
        block = self._live.get(address)
        if block is None or not block.allocated:
            raise UsageError(f"nothing is allocated at address {address:#x}")
        if stream != block.stream:
            block.uses.add(stream)

    def hold_events(self) -> None:
        """Other streams do not get on from here; until `settle_events`."""
        self._held = True

    def settle_events(self) -> None:
        """Other streams have finished all they were given; the next request takes notice."""
        self._held = False

    def process_events(self) -> None:
        """Take notice of what other streams have finished, as each request does first."""
        if self._awaited and not self._held:
            self._finish_events()

    def empty_cache(self) -> None:
        """Give every segment without a block in use back to the device."""
        self._finish_events()  # the real one waits for them
        for (owner, _), pool in sorted(self._pools.items()):
            if owner == MAIN:
                self._give_back(pool)

    # ------------------------------------------------------------------ what is there

    @property
    def state(self) -> tuple[SegmentState, ...]:
        """Everything reserved, by address; a replay can start from it."""
        heads: dict[int, _Block] = {}
        for block in self._blocks():
            if block.prev is None:
                heads[block.address] = block
        return tuple(self._segment(heads[address]) for address in sorted(heads))

    def copy(self, *, settings: Settings | None = None) -> CachingAllocator:
        """Another allocator in the same state, where other requests can be tried."""
        other = CachingAllocator(settings or self.settings, total=self.total, state=self.state, by_address=self.by_address)
        other._held = self._held
        return other

    def _blocks(self) -> Iterable[_Block]:
        yield from self._live.values()
        for pool in self._pools.values():
            yield from (row[-1] for row in pool.free)
            yield from (row[2] for row in pool.unmapped)

    def _segment(self, head: _Block) -> SegmentState:
        blocks = []
        block: _Block | None = head
        while block is not None:
            blocks.append(
                BlockState(
                    block.size, block.requested if block.allocated or block.pending else 0, block.allocated, bool(block.pending), block.mapped,
                    tuple(sorted(block.uses)), block.pool.searches - block.age_from if block.available else 0,
                )
            )  # fmt: skip
            block = block.next
        grown = head.grown
        return SegmentState(
            head.address, head.stream, head.pool.small, tuple(blocks), head.pool.owner, grown.span if grown else 0, head.order
        )

    def _restore(self, segment: SegmentState) -> None:
        pool = self._pool(segment.pool, segment.small)
        grown = _Grown(segment.address, self._page(segment.small), segment.span) if segment.span else None
        address = segment.address
        before: _Block | None = None
        for part in segment.blocks:
            block = _Block(segment.stream, part.size, pool, address, 0 if self.by_address else segment.order, grown)
            block.put_between(before, None)
            block.requested, block.allocated, block.mapped = part.requested, part.allocated, part.mapped
            block.uses.update(part.uses)
            block.inherited = part.mapped
            if not part.mapped:
                pool.add_unmapped(block)
            else:
                self.reserved += part.size
                if part.active:
                    self._live[address] = block
                    self.active += part.size
                    self.requested += part.requested
                    self.allocated += part.size if part.allocated else 0
                    if part.pending:
                        block.pending = 1
                        self._awaited.append(block)
                else:
                    pool.add(block)
                    block.age_from -= part.age
            address += part.size
            before = block

    # ------------------------------------------------------------------ free blocks

    def _pool(self, owner: PoolId, small: bool) -> _Pool:
        pool = self._pools.get((owner, small))
        if pool is None:
            pool = self._pools[owner, small] = _Pool(small, owner)
        return pool

    def _page(self, small: bool) -> int:
        return SMALL_SEGMENT if small else self.settings.large_segment_size

    def _may_split(self, size: int) -> bool:
        limit = self.settings.max_split_size
        return limit is None or size < limit

    @property
    def _collects(self) -> bool:
        return self.settings.memory_fraction is not None and self.settings.garbage_collection_threshold > 0

    def _free_block(self, pool: _Pool, stream: int, size: int) -> _Block | None:
        """The free block that serves, taken out of the pool."""
        if self._collects:
            pool.searches += 1
        free = pool.free
        at = pool.from_size(stream, size)
        if at == len(free) or free[at][0] != stream:
            return None
        if free[at][-1].grown is not None:
            if self.settings.expandable_segments:
                # What can still grow counts as large as it can become.
                while (
                    free[at][-1].grown is not None
                    and at + 1 < len(free)
                    and free[at + 1][0] == stream
                    and free[at + 1][-1].could_grow_to < free[at][-1].could_grow_to
                ):
                    at += 1
            else:
                while at < len(free) and free[at][0] == stream and free[at][-1].grown is not None:
                    at += 1
                if at == len(free) or free[at][0] != stream:
                    return None
        block = free[at][-1]
        limit = self.settings.max_split_size
        if limit is not None and block.size >= limit and (size < limit or block.size >= size + self.settings.tolerated):
            return None
        if at + 1 < len(free):
            rival = free[at + 1][-1]
            if rival.stream == stream and rival.size == block.size and self._unordered(block, rival):
                self.ties += 1
        del free[at]
        return block

    def _unordered(self, one: _Block, other: _Block) -> bool:
        """Whether only an assumption says which of the two comes first."""
        heads = []
        for block in (one, other):
            while block.prev is not None:
                block = block.prev
            heads.append(block.address)
        if heads[0] == heads[1]:
            return False
        return not self._placed.isdisjoint(heads) if self.by_address else one.order == other.order

    def _release_to_pool(self, block: _Block) -> None:
        self.active -= block.size
        self.requested -= block.requested
        block.requested = 0
        del self._live[block.address]
        self._merge(block, block.prev)
        self._merge(block, block.next)
        block.pool.add(block)

    def _merge(self, block: _Block, neighbour: _Block | None) -> None:
        if neighbour is None or not neighbour.available or neighbour.mapped != block.mapped:
            return
        if neighbour.mapped:
            block.pool.remove(neighbour)
        else:
            block.pool.remove_unmapped(neighbour)
        if block.prev is neighbour:
            block.address = neighbour.address
            block.put_between(neighbour.prev, block.next)
        else:
            block.put_between(block.prev, neighbour.next)
        block.size += neighbour.size
        block.inherited |= neighbour.inherited

    def _finish_events(self) -> None:
        awaited, self._awaited = self._awaited, []
        for block in awaited:
            block.pending = 0
            self._release_to_pool(block)

    # ------------------------------------------------------------------ memory of the device

    def _serve(self, pool: _Pool, stream: int, size: int) -> _Block:
        block = self._take(pool, stream, size)
        if block is None and self._give_back_enough(pool, stream, size):
            block = self._take(pool, stream, size)
        if block is None:
            self.empty_cache()
            block = self._take(pool, stream, size)
        if block is None:
            raise OutOfDeviceMemory(f"no room for {size} bytes: {self.reserved} are reserved, {self.allocated} of them in use")
        return block

    def _take(self, pool: _Pool, stream: int, size: int) -> _Block | None:
        """A block from the device; None where there is no room."""
        segment = segment_size(size, self.settings)
        if self.allowed is not None and self.reserved + segment > self.allowed:
            return None
        if self.settings.expandable_segments:
            return self._grow(pool, stream, size)
        if self.total is not None and self.reserved + segment > self.total:
            return None
        block = _Block(stream, segment, pool, *self._place(segment))
        self.reserved += segment
        self._seen()
        return block

    def _place(self, size: int) -> tuple[int, int]:
        """Address and order of a new segment."""
        address = self._addresses(size)
        self._placed.add(address)
        self._taken += 1
        return address, 0 if self.by_address else self._taken

    def _give_back(self, pool: _Pool) -> None:
        grown = []
        for *_, block in list(pool.free):
            if block.grown is not None:
                grown.append(block)
            elif not block.split:
                self._return_segment(block)
        for block in grown:
            self._unmap(block)

    def _return_segment(self, block: _Block) -> None:
        block.pool.remove(block)
        self.reserved -= block.size

    def _give_back_enough(self, pool: _Pool, stream: int, size: int) -> bool:
        """Return blocks too large to be split, the smallest that makes room or else the largest ones."""
        limit = self.settings.max_split_size
        if limit is None:
            return False
        wanted = max(size, limit)
        at = pool.from_size(stream, wanted)
        if at < len(pool.free) and pool.free[at][0] == stream and pool.free[at][-1].grown is None:
            self._return_segment(pool.free[at][-1])
            return True
        returned = 0
        while returned < wanted and at and pool.free[at - 1][0] == stream and pool.free[at - 1][1] >= limit:
            at -= 1
            block = pool.free[at][-1]
            if block.grown is None:
                returned += block.size
                self._return_segment(block)
        return returned >= wanted

    def _collect_garbage(self) -> None:
        """Return whole large segments that were not asked for in a while, as many as bring the process under its threshold."""
        allowed = self.allowed
        if allowed is None:
            return
        threshold = int(self.settings.garbage_collection_threshold * allowed)
        if self.reserved <= threshold:
            return
        goal = self.reserved - threshold
        pool = self._pool(MAIN, False)
        whole = [row[-1] for row in pool.free if not row[-1].split and row[-1].grown is None]
        ages = sum(pool.searches - block.age_from for block in whole)
        returned = 0
        while returned < goal and whole:
            mean = ages / len(whole)
            old = [block for block in whole if pool.searches - block.age_from >= mean]
            if not old:
                return
            for block in old:
                returned += block.size
                ages -= pool.searches - block.age_from
                whole.remove(block)
                self._return_segment(block)

    # ------------------------------------------------------------------ segments that grow

    def _grow(self, pool: _Pool, stream: int, size: int) -> _Block | None:
        block = self._growable(pool, stream, size)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            after = block.next
            assert after is not None
            if not self._map(after, min(size - block.size, after.size)):
                return None
            block = after
        pool.remove(block)
        return block

    def _growable(self, pool: _Pool, stream: int, size: int) -> _Block:
        """The lowest place with room for ``size`` bytes in what is free and what has no memory yet."""
        for at in range(bisect_left(pool.unmapped, (stream,)), len(pool.unmapped)):
            block = pool.unmapped[at][2]
            if block.stream != stream:
                break
            if block.prev is not None and block.prev.available:
                block = block.prev
            room, part = 0, block
            while room < size and part is not None and part.available:
                room += part.size
                part = part.next  # type: ignore[assignment]
            if room >= size:
                if pool.unmapped[0][2].grown is not pool.unmapped[-1][2].grown:
                    self._note_order_of_ranges(pool, stream)
                return block
        page = self._page(pool.small)
        device = self.total if self.total is not None else 1 << 46
        span = -(-(device + device // 8) // page) * page
        base, order = self._place(span)
        grown = _Grown(base, page, span)
        block = _Block(stream, span, pool, base, order, grown)
        block.mapped = False
        pool.add_unmapped(block)
        return block

    def _note_order_of_ranges(self, pool: _Pool, stream: int) -> None:
        """Of several ranges of one stream the lowest grows, and where the device puts them is assumed."""
        ranges = {row[2].grown.base for row in pool.unmapped if row[0] == stream and row[2].grown is not None}
        if len(ranges) > 1 and not self._placed.isdisjoint(ranges):
            self.ties += 1

    def _map(self, block: _Block, size: int) -> bool:
        grown = block.grown
        assert grown is not None
        first, last = grown.pages_over(block.address, size)
        taken = (last - first) * grown.page
        if self.total is not None and self.reserved + taken > self.total:
            return False
        pool = block.pool
        pool.remove_unmapped(block)
        block.mapped = True
        if taken < block.size:
            rest = _Block(block.stream, block.size - taken, pool, block.address + taken, block.order, grown)
            rest.mapped = False
            rest.put_between(block, block.next)
            pool.add_unmapped(rest)
            block.size = taken
        self._merge(block, block.prev)
        self._merge(block, block.next)
        pool.add(block)
        self.reserved += taken
        self._seen()
        return True

    def _unmap(self, block: _Block) -> None:
        grown = block.grown
        assert grown is not None
        first, last = grown.pages_within(block.address, block.size)
        if first < last:
            pool = block.pool
            pool.remove(block)
            start, size = grown.base + first * grown.page, (last - first) * grown.page
            end = block.address + block.size
            if block.address < start:
                part = _Block(block.stream, start - block.address, pool, block.address, block.order, grown)
                part.put_between(block.prev, block)
                part.inherited = block.inherited
                pool.add(part)
            if start + size < end:
                part = _Block(block.stream, end - start - size, pool, start + size, block.order, grown)
                part.put_between(block, block.next)
                part.inherited = block.inherited
                pool.add(part)
            block.address, block.size, block.mapped, block.inherited = start, size, False, False
            self._merge(block, block.prev)
            self._merge(block, block.next)
            pool.add_unmapped(block)
            self.reserved -= size
            if not block.split:
                pool.remove_unmapped(block)


def round_size(size: int, settings: Settings = Settings()) -> int:  # noqa: B008  (frozen)
    """Bytes of the block that a request of ``size`` bytes is given, where a larger one is split for it."""
    if size < UNIT:
        return UNIT
    divisions = settings.roundup_power2_divisions[min(max(size.bit_length() - 1 - 20, 0), INTERVALS - 1)]
    if divisions > 1 and size > UNIT * divisions:
        if not size & (size - 1):
            return size
        step = (1 << (size.bit_length() - 1)) >> (divisions.bit_length() - 1)
        return -(-size // step) * step
    return -(-size // UNIT) * UNIT


def segment_size(rounded: int, settings: Settings = Settings()) -> int:  # noqa: B008  (frozen)
    """Bytes taken from the device for a request of that rounded size, where segments do not grow."""
    if rounded <= SMALL_REQUEST:
        return SMALL_SEGMENT
    if rounded < OWN_SEGMENT:
        return settings.large_segment_size
    return -(-rounded // GRAIN) * GRAIN


# ---------------------------------------------------------------------- traces


@dataclass(frozen=True)
class Replay:
    """What a trace of events did.

    Attributes
    ----------
    figures : tuple of Figures
        After each event; those of an event that ran out of memory are those after the cache was given back.
    peak : Figures
        Largest values on the way, those inside a request included.
    first_inherited : int or None
        The first event that memory cached at entry served: from there on the figures depend on what ran before.
    out_of_memory : int or None
        The first event that could not be served; the replay ends there.
    ties : int
        Requests that one of several equally large free blocks served, of segments whose order is only assumed.
    blocks : dict
        What the trace left alive, of the events' blocks the address.
    entry : Figures
        Before the first event.
    """

    figures: tuple[Figures, ...]
    peak: Figures
    first_inherited: int | None
    out_of_memory: int | None
    ties: int
    blocks: dict[int, int]
    entry: Figures

    @property
    def growth(self) -> int:
        """Bytes that the peak of reserved lies above what was reserved at entry."""
        return self.peak.reserved - self.entry.reserved


def replay(events: Iterable[Event], allocator: CachingAllocator, addresses: Mapping[int, int] | None = None) -> Replay:
    """Give ``events`` to ``allocator``, one after another.

    ``addresses`` names what is alive at entry: of the events' blocks, the address.
    """
    at = dict(addresses or {})
    figures: list[Figures] = []
    entry = allocator.figures
    allocator.begin()
    ties = allocator.ties
    inherited: int | None = None
    failed: int | None = None
    for number, event in enumerate(events):
        try:
            _apply(event, allocator, at)
        except OutOfDeviceMemory:
            failed = number
        if inherited is None and allocator.first_inherited is not None:
            inherited = number
        figures.append(allocator.figures)
        if failed is not None:
            break
    return Replay(tuple(figures), allocator.peak, inherited, failed, allocator.ties - ties, at, entry)


def _apply(event: Event, allocator: CachingAllocator, at: dict[int, int]) -> None:
    if event.kind == "alloc":
        if event.block in at:
            raise UsageError(f"block {event.block} is allocated twice")
        at[event.block] = allocator.alloc(event.size, event.stream)
    elif event.kind in ("free", "record"):
        if event.block not in at:
            raise UsageError(f"block {event.block} is not allocated")
        if event.kind == "free":
            allocator.free(at.pop(event.block))
        else:
            allocator.record_stream(at[event.block], event.stream)
    elif event.kind == "empty":
        allocator.empty_cache()
    elif event.kind == "hold":
        allocator.hold_events()
    else:
        allocator.settle_events()


__all__ = [
    "MAIN", "Ascending", "BlockState", "CachingAllocator", "Event", "Figures", "OutOfDeviceMemory", "Replay", "SegmentState", "Settings",
    "replay", "round_size", "segment_size",
]  # fmt: skip
