"""The requests of a program, for the replay of the caching allocator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from peakmem_inductor.cuda.caching import CachingAllocator, Event, Replay, replay
from peakmem_inductor.forms import Wrapper
from peakmem_inductor.profile import Profile
from peakmem_inductor.simulation import requests


@dataclass(frozen=True)
class Trace:
    """What a program asks the allocator of its device for.

    Attributes
    ----------
    events : tuple of Event
    arguments : dict of int to str
        Blocks that are alive at entry and go during the call: the argument in which each lies.
    results : tuple of int
        Blocks that are left at the end.
    workspaces : int
        Calls whose workspace stands here as one request after their results, although they may have asked otherwise.
    """

    events: tuple[Event, ...]
    arguments: dict[int, str]
    results: tuple[int, ...]
    workspaces: int


def trace_of(wrapper: Wrapper, profile: Profile) -> Trace:
    """The requests of a wrapper exactly as it stands, on one stream; linear in its text."""
    events: list[Event] = []
    block: dict[str, int] = {}
    arguments: dict[int, str] = {}
    taken = workspaces = 0
    for storage, change in requests(wrapper, profile):
        if change > 0:
            workspaces += storage == "workspace"
            block[storage] = taken
            events.append(Event("alloc", taken, change))
            taken += 1
        elif change < 0:
            number = block.pop(storage, None)
            if number is None:
                number, taken = taken, taken + 1
                arguments[number] = storage
            events.append(Event("free", number))
    return Trace(tuple(events), arguments, tuple(block.values()), workspaces)


def replay_program(trace: Trace, allocator: CachingAllocator, addresses: Mapping[str, int]) -> Replay:
    """Give a program to an allocator in the state at entry; ``addresses`` are those of the arguments it lets go."""
    return replay(trace.events, allocator, {number: addresses[name] for number, name in trace.arguments.items()})
