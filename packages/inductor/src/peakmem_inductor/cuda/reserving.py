"""Among orders of one peak, one for which the caching allocator reserves least.

Orders of equal peak ask for the same buffers in other sequences, and the allocator cuts them from its segments as they come: how much
it reserves beyond what is live differs. What an order reserves is found by replaying it; the search moves one statement at a time
within its dependences and keeps what is no worse.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from peakmem.model import peak_of

from peakmem_inductor.cuda.caching import (
    GRAIN,
    SMALL_REQUEST,
    CachingAllocator,
    Event,
    Replay,
    SegmentState,
    replay,
    round_size,
    segment_size,
)
from peakmem_inductor.cuda.conf import Settings
from peakmem_inductor.cuda.programs import replay_program, trace_of
from peakmem_inductor.emitting import realize
from peakmem_inductor.forms import Wrapper
from peakmem_inductor.graph import Graph, dying
from peakmem_inductor.profile import Profile
from peakmem_inductor.simulation import CALLS, Requests, call_requests, elements_of, merged_blocks

REPLAYS = 2000


@dataclass(frozen=True)
class Reserving:
    """An order and what it reserves.

    Attributes
    ----------
    order : tuple of int
    growth : int
        Bytes by which its peak of reserved lies above what was reserved at entry.
    given, untouched : int
        The same of the order that the search began with, and of the program as it stands.
    least : bool
        No order of the program can reserve less from this state.
    replays : int
        Different orders that were replayed.
    ties : int
        Requests of the order that met equally large free blocks of which only an assumption chose one; see `Replay`.
    """

    order: tuple[int, ...]
    growth: int
    given: int
    untouched: int
    least: bool
    replays: int
    ties: int = 0

    def __str__(self) -> str:
        less = f", {self.untouched:,} for the program as it stands" if self.growth != self.untouched else ", as for the program as it stands"
        best = "no order of the program can do with less" if self.least else f"the least of {self.replays:,} orders replayed"
        ties = f"; {self.ties:,} time{'s' if self.ties > 1 else ''} an assumption chose among equally large free blocks" if self.ties else ""
        return f"torch's caching allocator would reserve {self.growth:,} bytes for a call{less}: {best}{ties}"


def reserve_least(
    graph: Graph,
    order: Sequence[int],
    state: Sequence[SegmentState] | None = None,
    addresses: Mapping[str, int] | None = None,
    *,
    bound: int | None = None,
    settings: Settings = Settings(),  # noqa: B008  (frozen)
    replays: int = REPLAYS,
    seed: int = 0,
) -> Reserving:
    """Search among orders whose peak is at most that of ``order``.

    Parameters
    ----------
    graph : Graph
    order : sequence of int
        Where the search begins.
    state : sequence of SegmentState, optional
        The allocator's segments at entry; None: an empty cache beside the program's arguments, requested in their order.
    addresses : mapping of str to int, optional
        Where the arguments lie that the program lets go; with ``state`` they are requested on top of it if they are missing.
    bound : int, optional
        Bytes above entry that every order needs; from it follows whether less could be reserved.
    settings : Settings
        Of the allocator; under others than the default ones only a growth of 0 is known to be ``least``.
    replays : int
        How many moves are tried at most.
    seed : int
        Of the moves; the same seed gives the same order.

    Returns
    -------
    Reserving
        With the figures of the realized programs, replayed as they stand.

    Notes
    -----
    O(replays * n log n) for n requests. A hill climb that also accepts equals: the least found, which is ``least`` only where no
    order can do with less: requests that no cached block can serve lie in a new segment whatever comes first, and reserved is never
    less than what is live.
    """
    allocator, at = _entry(graph, state, addresses, settings)
    start = allocator.state

    def fresh() -> CachingAllocator:
        return CachingAllocator(allocator.settings, state=start, by_address=allocator.by_address)

    def run(wrapper: Wrapper, profile: Profile) -> Replay:
        return replay_program(trace_of(wrapper, profile), fresh(), at)

    program, events = graph.program, EventsOf(graph)
    freed = {number: at[name] for name, number in events.arguments.items() if name in at}
    entry = allocator.figures
    least = 0
    if settings == Settings():
        least = _unavoidable(start, [e.size for e in events(order) if e.kind == "alloc"], set(freed.values()))
        if bound is not None:
            least = max(least, -(-(entry.requested + bound - entry.reserved) // GRAIN) * GRAIN)
    first = best = run(*realize(graph, order))
    chosen = tuple(order)
    replayed = {chosen}
    single = all(u in program.predecessors[v] for u, v in pairwise(order))
    if best.growth > least and not single:
        limit = peak_of(program, order)

        def price(which: Sequence[int]) -> tuple[int, int, int]:
            found = replay(events(which), fresh(), freed)
            return found.growth, found.ties, found.peak.allocated

        rng = random.Random(seed)
        now, worth = list(order), price(order)
        for _ in range(replays - 1):
            if worth[0] <= least:
                break
            moved = _moved(graph, now, rng)
            if peak_of(program, moved) > limit:
                continue
            replayed.add(tuple(moved))
            if (found := price(moved)) <= worth:
                now, worth = moved, found
        last = run(*realize(graph, now))
        if last.growth < best.growth:
            best, chosen = last, tuple(now)
    untouched = run(graph.wrapper, graph.profile).growth
    return Reserving(chosen, best.growth, first.growth, untouched, single or best.growth <= least, len(replayed), best.ties)


def _entry(
    graph: Graph, state: Sequence[SegmentState] | None, addresses: Mapping[str, int] | None, settings: Settings
) -> tuple[CachingAllocator, dict[str, int]]:
    """The allocator before the call, and where the storages of arguments lie."""
    # Before 2.14 the allocator went by addresses, which nobody knows of segments to come; the replay counts where it matters.
    allocator = CachingAllocator(settings, state=state or (), by_address=graph.profile.torch.startswith(tuple(f"2.{n}." for n in range(14))))
    at = dict(addresses or {})
    names = graph.profile.names
    wanted = [n for n in graph.wrapper.inputs if n in names and names[n].storage == n and names[n].bytes]
    if state is not None:
        wanted = [n for n in wanted if n in graph.profile.freed]
    for name in wanted:
        if name not in at:
            at[name] = allocator.alloc(names[name].bytes)
    return allocator, at


def _unavoidable(state: Sequence[SegmentState], sizes: Sequence[int], freed: set[int]) -> int:
    """Bytes that must be taken from the device in any order, in each pool: a request that no cached range can serve, even where nothing
    else is asked for, lies in a new segment. That may be one that another request takes: 9 MiB take 20 where they come first, and fit
    into the 10 that 10 MiB take. The ranges are what is free at entry or let go by the program."""
    room = {True: 0, False: 0}
    for segment in state:
        free, address = 0, segment.address
        for part in segment.blocks:
            free = free + part.size if not part.active or address in freed else 0
            room[segment.small] = max(room[segment.small], free)
            address += part.size
    most = {True: 0, False: 0}
    asked = {round_size(size) for size in sizes}
    for small in (True, False):
        rounded = [size for size in asked if (size <= SMALL_REQUEST) == small]
        segments = [segment_size(size) for size in rounded]
        for size in rounded:
            if size > room[small]:
                most[small] = max(most[small], min(segment for segment in segments if segment >= size))
    return sum(most.values())


def _moved(graph: Graph, order: Sequence[int], rng: random.Random) -> list[int]:
    """One statement elsewhere within its dependences; some statement can move, so one is found."""
    program = graph.program
    position = [0] * len(order)
    for i, v in enumerate(order):
        position[v] = i
    while True:
        v = rng.randrange(len(order))
        low = max((position[u] for u in program.predecessors[v]), default=-1) + 1
        high = min((position[u] for u in program.successors[v]), default=len(order)) - 1
        if high > low:
            to = rng.randrange(low, high)
            to += to >= position[v]
            moved = list(order)
            moved.pop(position[v])
            moved.insert(to, v)
            return moved


class EventsOf:
    """The requests of a graph in any order, as `trace_of` finds them in its text, without making the text.

    Attributes
    ----------
    arguments : dict of str to int
        Storages of arguments that the program lets go, and their blocks.
    """

    def __init__(self, graph: Graph) -> None:
        profile, wrapper = graph.profile, graph.wrapper
        forms = {form.text: form for form in merged_blocks(wrapper.forms)}
        elements = elements_of(wrapper)
        self.graph = graph
        self.arguments: dict[str, int] = {}
        self._storage: dict[int, tuple[str, int]] = {}  # buffer -> what is allocated when it is first used, and its bytes
        self._parts: list[list[tuple[tuple[int, ...], Requests]]] = []  # statement -> its parts: buffers used, then requests
        self._after: list[Requests] = []
        made: set[str] = set()
        for name, definition in graph.definitions.items():
            if name in profile.names and not any(n in graph.buffer_of for n in definition.needs):
                self._storage[graph.buffer_of[name]] = (name, profile.names[name].own_bytes)
        for step in graph.steps:
            rows: list[tuple[tuple[int, ...], Requests]] = []
            after: Requests = []
            for text, uses in step.parts:
                used = tuple(graph.buffer_of[n] for n in uses if n in graph.buffer_of)
                form = forms.get(text)
                found: Requests = []
                if form is not None and form.kind in CALLS:
                    found, unnamed = call_requests(form, profile, elements)
                    after += [(name, -bytes) for name, bytes in unnamed]
                    made.update(name for name, _ in found)
                rows.append((used, found))
            self._parts.append(rows)
            self._after.append(after)
        self._result = {b: name for name in sorted(made) if (b := graph.buffer_of.get(name)) is not None}
        for name in wrapper.inputs:
            layout = profile.names.get(name)
            if layout is not None and layout.storage == name and name in profile.freed and name in graph.buffer_of:
                self._result[graph.buffer_of[name]] = name
                self.arguments[name] = -1 - len(self.arguments)

    def __call__(self, order: Sequence[int]) -> list[Event]:
        """The events of an order; linear in the program."""
        graph, program = self.graph, self.graph.program
        gone = dying(program, order, graph.returned)
        block = dict(self.arguments)
        events: list[Event] = []
        taken = 0

        def ask(name: str, change: int) -> None:
            nonlocal taken
            if change > 0:
                block[name] = taken
                events.append(Event("alloc", taken, change))
                taken += 1
            elif name in block:
                events.append(Event("free", block.pop(name)))

        begun: set[int] = set()
        for position, v in enumerate(order):
            for used, rows in self._parts[v]:
                for b in used:
                    if b in self._storage and b not in begun:
                        begun.add(b)
                        ask(*self._storage[b])
                for name, change in rows:
                    ask(name, change)
            for name, change in self._after[v]:
                ask(name, change)
            for b in gone[position]:
                name = self._storage[b][0] if b in self._storage else self._result.get(b, "")
                ask(name, -1)
        return events
