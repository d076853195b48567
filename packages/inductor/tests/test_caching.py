"""The replay of PyTorch's caching allocator: as recorded from the real one, and what must hold whatever is asked of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peakmem.model import UsageError
from peakmem_inductor.cuda.caching import CachingAllocator, Event, OutOfDeviceMemory, replay, round_size, segment_size
from peakmem_inductor.cuda.conf import Settings

sys.path.insert(0, str(Path(__file__).parent / "cuda"))
from cases import PROGRAMS, RANDOM, Case
from random_traces import random_trace
from recorded import differences, digest, load, pack, replayed, unpack

MIB = 1 << 20


@pytest.fixture(scope="module")
def programs() -> Any:
    return load("programs")


@pytest.fixture(scope="module")
def random_digests() -> dict[str, dict[str, str]]:
    return {row["case"]: row["digests"] for row in load("random")}


# ------------------------------------------------------------------ as recorded


def test_enough_is_recorded(programs: Any, random_digests: dict[str, dict[str, str]]) -> None:
    assert len(programs) >= 200
    assert len({program["name"] for program in programs}) == len(programs)
    assert sum(map(len, random_digests.values())) >= 10_000
    assert len({case.conf for case in PROGRAMS}) >= 6
    assert len({(case.conf, case.fraction) for case in RANDOM}) >= 6


@pytest.mark.parametrize("case", RANDOM, ids=lambda case: case.name)
def test_random_traces_are_as_the_real_allocator_served_them(case: Case, random_digests: dict[str, dict[str, str]]) -> None:
    wrong = [seed for seed, real in random_digests[case.name].items() if digest(replayed(case, random_trace(int(seed)))) != real]
    assert not wrong


@pytest.mark.parametrize("case", PROGRAMS, ids=lambda case: case.name)
def test_programs_are_as_the_real_allocator_served_them(case: Case, programs: Any) -> None:
    for program in programs:
        events = unpack(program["events"])
        assert differences(program["events"], replayed(case, events)) == program["rows"][case.name], program["name"]


def test_requests_alone_give_the_peak_that_a_program_had(programs: Any) -> None:
    """As ``memory_stats`` had it after the run itself, not after its requests were given to the allocator again."""
    for program in programs:
        rows = replayed(PROGRAMS[0], unpack(program["events"]))
        assert max(row[0] for row in rows) == program["peaks"][0], program["name"]


def test_cases_are_told_apart_and_reach_what_they_are_for() -> None:
    """Each setting changes figures, small devices run out, and a threshold gives memory back."""
    by_conf = [{digest(replayed(case, random_trace(seed))) for seed in range(40)} for case in (RANDOM[0], RANDOM[3], RANDOM[5], RANDOM[7], RANDOM[12])]
    assert all(a != b for k, a in enumerate(by_conf) for b in by_conf[:k])
    collected = 0
    for seed in range(9 * 640, 9 * 640 + 100):
        kept = RANDOM[9]
        without = Case("", kept.total, kept.addresses, kept.fraction)
        collected += replayed(kept, random_trace(seed)) != replayed(without, random_trace(seed))
    assert collected
    assert any(runs_out(RANDOM[2], seed) for seed in range(2 * 640, 2 * 640 + 40))


def runs_out(case: Case, seed: int) -> bool:
    trace = list(random_trace(seed))
    return replay(trace, CachingAllocator(case.settings, total=case.total)).out_of_memory is not None


# ------------------------------------------------------------------ what must hold


def check(allocator: CachingAllocator) -> None:
    """The state is whole, and the figures are its sums."""
    total = allocated = active = requested = 0
    spans = []
    for segment in allocator.state:
        assert all(block.size > 0 for block in segment.blocks)
        total += segment.size
        allocated += sum(block.size for block in segment.blocks if block.allocated)
        active += sum(block.size for block in segment.blocks if block.active)
        requested += sum(block.requested for block in segment.blocks)
        for one, other in zip(segment.blocks, segment.blocks[1:], strict=False):
            free = not (one.active or other.active or one.uses or other.uses)
            assert not free or one.mapped != other.mapped, "free neighbours are one block"
        spans.append((segment.address, segment.address + sum(block.size for block in segment.blocks)))
        if not segment.small and not segment.span:
            assert all(block.size > MIB or not block.active for block in segment.blocks)
    assert all(a[1] <= b[0] for a, b in pairwise(spans)), "segments do not overlap"
    assert (requested, allocated, active, total) == allocator.figures
    assert requested <= active <= total


SIZES = st.one_of(st.integers(1, 4000), st.integers(1, 2 * MIB), st.integers(MIB - 600, MIB + 600), st.integers(1, 60 * MIB))
STEPS = st.lists(st.tuples(st.sampled_from(("alloc", "alloc", "alloc", "free", "free", "record", "empty", "hold", "settle")), SIZES, st.integers(0, 2)), max_size=60)
CONF = st.sampled_from([Case(), *RANDOM])


def events(steps: list[tuple[str, int, int]]) -> Iterator[Event]:
    alive: list[int] = []
    for number, (kind, size, stream) in enumerate(steps):
        if kind == "alloc":
            alive.append(number)
            yield Event("alloc", number, size, stream)
        elif kind == "free" and alive:
            yield Event("free", alive.pop(size % len(alive)))
        elif kind == "record" and alive:
            yield Event("record", alive[size % len(alive)], stream=stream)
        elif kind in ("empty", "hold", "settle"):
            yield Event(kind)  # type: ignore[arg-type]


@settings(max_examples=150, deadline=None)
@given(STEPS, CONF)
def test_every_state_is_whole(steps: list[tuple[str, int, int]], case: Case) -> None:
    allocator = CachingAllocator(case.settings, total=case.total)
    at: dict[int, int] = {}
    for event in events(steps):
        outcome = replay([event], allocator, at)
        check(allocator)
        if event.kind == "alloc":
            if outcome.out_of_memory is not None:
                return
            at[event.block] = outcome.blocks[event.block]
        elif event.kind == "free":
            del at[event.block]
        assert all(x >= y for x, y in zip(outcome.peak, allocator.figures, strict=True))


@settings(max_examples=100, deadline=None)
@given(STEPS, STEPS, CONF)
def test_a_copy_goes_on_as_the_original_would(before: list[tuple[str, int, int]], after: list[tuple[str, int, int]], case: Case) -> None:
    allocator = CachingAllocator(case.settings, total=case.total)
    first = replay(list(events(before)), allocator)
    copy = allocator.copy()
    assert copy.state == allocator.state
    assert copy.figures == allocator.figures
    shifted = [event._replace(block=event.block + 1000) for event in events(after)]
    one, other = replay(shifted, allocator, first.blocks), replay(shifted, copy, first.blocks)
    assert one.figures == other.figures
    assert one.first_inherited == other.first_inherited


@settings(max_examples=100, deadline=None)
@given(STEPS, CONF)
def test_what_is_freed_and_emptied_leaves_nothing(steps: list[tuple[str, int, int]], case: Case) -> None:
    allocator = CachingAllocator(case.settings, total=case.total)
    outcome = replay(list(events(steps)), allocator)
    for address in outcome.blocks.values():
        allocator.free(address)
    allocator.empty_cache()
    assert allocator.figures == (0, 0, 0, 0)
    assert all(not segment.size for segment in allocator.state)


@settings(max_examples=100, deadline=None)
@given(STEPS)
def test_requested_bytes_depend_on_the_program_alone(steps: list[tuple[str, int, int]]) -> None:
    trace = [event for event in events(steps) if event.kind in ("alloc", "free")]
    polluted = CachingAllocator()
    for size in (3 * MIB, 700, 31 * MIB, 500_000):
        polluted.free(polluted.alloc(size))
    fresh, after = replay(trace, CachingAllocator()), replay(trace, polluted)
    assert [row.requested for row in fresh.figures] == [row.requested for row in after.figures]
    assert fresh.first_inherited is None


# ------------------------------------------------------------------ single facts


def test_history_decides_what_is_allocated() -> None:
    """Two requests after a freed block of nearly 12 MiB: 1 MiB more is allocated than from an empty cache."""
    program = [Event("alloc", 0, 3 * MIB), Event("alloc", 1, 11 * MIB), Event("free", 0), Event("free", 1)]
    fresh = replay(program, CachingAllocator())
    assert fresh.peak.allocated == 14 * MIB
    assert (fresh.first_inherited, fresh.growth) == (None, 20 * MIB)
    polluted = CachingAllocator()
    polluted.free(polluted.alloc(12 * MIB - 4096))
    outcome = replay(program, polluted)
    assert (outcome.first_inherited, outcome.growth) == (0, 12 * MIB)
    assert (outcome.peak.requested, outcome.peak.allocated) == (14 * MIB, 15 * MIB)


@pytest.mark.parametrize(
    ("size", "conf", "rounded", "segment"),
    [
        (1, "", 512, 2 * MIB),
        (513, "", 1024, 2 * MIB),
        (MIB, "", MIB, 2 * MIB),
        (MIB + 1, "", MIB + 512, 20 * MIB),
        (10 * MIB - 1, "", 10 * MIB, 10 * MIB),
        (10 * MIB + 1, "", 10 * MIB + 512, 12 * MIB),
        (3 * MIB, "large_segment_size_mb:12", 3 * MIB, 12 * MIB),
        (1200, "roundup_power2_divisions:4", 1536, 2 * MIB),
        (5 * MIB + 1, "roundup_power2_divisions:4", 6 * MIB, 20 * MIB),
        (5 * MIB + 1, "roundup_power2_divisions:[1:8,8:4,>:1]", 5 * MIB + 512, 20 * MIB),
    ],
)
def test_sizes(size: int, conf: str, rounded: int, segment: int) -> None:
    chosen = Settings.parse(conf)
    assert round_size(size, chosen) == rounded
    assert segment_size(rounded, chosen) == segment


def test_running_out_gives_back_what_is_cached() -> None:
    allocator = CachingAllocator(total=50 * MIB)
    allocator.free(allocator.alloc(30 * MIB))
    held = allocator.alloc(40 * MIB)  # the cached 30 MiB do not fit and make room
    assert allocator.reserved == 40 * MIB
    with pytest.raises(OutOfDeviceMemory, match="no room for 20971520 bytes: 41943040 are reserved, 41943040 of them in use"):
        allocator.alloc(20 * MIB)
    allocator.free(held)
    assert replay([Event("alloc", 0, 60 * MIB)], allocator).out_of_memory == 0


def test_another_stream_delays_a_free() -> None:
    allocator = CachingAllocator()
    block = allocator.alloc(5 * MIB)
    allocator.record_stream(block, 1)
    allocator.hold_events()
    allocator.free(block)
    assert (allocator.allocated, allocator.active) == (0, 5 * MIB)
    other = allocator.alloc(5 * MIB)
    assert other != block
    allocator.settle_events()
    assert allocator.alloc(5 * MIB) == block


def test_bad_calls_are_refused() -> None:
    allocator = CachingAllocator()
    with pytest.raises(UsageError, match="nothing is allocated at address 0x99"):
        allocator.free(0x99)
    with pytest.raises(UsageError, match="a request of -1 bytes"):
        allocator.alloc(-1)
    with pytest.raises(UsageError, match="block 3 is not allocated"):
        replay([Event("free", 3)], allocator)
    with pytest.raises(UsageError, match="block 1 is allocated twice"):
        replay([Event("alloc", 1, 5), Event("alloc", 1, 5)], allocator)
    assert allocator.alloc(0) == 0
    allocator.free(0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_split_size_mb:2", "must be at least 20"),
        ("max_split_size_mb:abc", "must be a whole number"),
        ("garbage_collection_threshold:1.5", "must be between 0 and 1"),
        ("expandable_segments:yes", "must be True or False"),
        ("roundup_power2_divisions:3", "must be a power of two"),
        ("roundup_power2_divisions:[256:3]", "must be a power of two"),
        ("backend:cudaMallocAsync", "only PyTorch's own allocator"),
        ("no_such_key:1", "is not known"),
        ("max_split_size_mb", "KEY:VALUE"),
    ],
)
def test_bad_settings_are_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Settings.parse(text)


def test_settings_are_read() -> None:
    read = Settings.parse("max_split_size_mb:64, expandable_segments:True,roundup_power2_divisions:[256:1,512:2,1024:4,>:8],garbage_collection_threshold:0.8,")
    assert (read.max_split_size, read.expandable_segments, read.garbage_collection_threshold) == (64 * MIB, True, 0.8)
    assert read.roundup_power2_divisions == (1,) * 9 + (2, 4) + (8,) * 5


def test_packing_keeps_programs() -> None:
    trace = [Event("alloc", 0, 700), Event("alloc", 1, 9), Event("free", 0), Event("alloc", 2, 40 * MIB), Event("free", 2), Event("free", 1)]
    assert unpack(pack(trace)) == trace
    rows = replayed(Case(), trace)
    assert differences(pack(trace), rows) == [[0, 0, 2 * MIB], [3, 0, 40 * MIB]]
    with pytest.raises(ValueError, match="changes other bytes"):
        differences(pack(trace), [(row[0] + 1, *row[1:]) for row in rows])
