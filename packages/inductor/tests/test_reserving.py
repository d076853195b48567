"""Orders of one peak and what the caching allocator reserves for them, without torch and without a GPU."""

from __future__ import annotations

import json
import lzma
import random
from collections.abc import Iterator, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from generators import random_order
from peakmem.model import InputError, UsageError, peak_of
from peakmem_inductor.building import build_graph
from peakmem_inductor.cuda.caching import CachingAllocator, Event
from peakmem_inductor.cuda.programs import replay_program, trace_of
from peakmem_inductor.cuda.reserving import EventsOf, reserve_least
from peakmem_inductor.emitting import realize
from peakmem_inductor.graph import Graph
from peakmem_inductor.model import load_model
from peakmem_inductor.profile import Profile
from peakmem_inductor.statictext import profile_from_text
from peakmem_inductor.wrapper import parse_wrapper
from test_gpu_texts import gpu_text
from texts import wrapper_of

HERE = Path(__file__).parent
TWO = """
triton_two = async_compile.triton('triton_two', '''
@triton.jit
def triton_two(in_ptr0, in_ptr1, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    pass
''', device_str='cuda')
"""
SIZES = (1 << 16, 700_000, 3 << 20, 9 << 20, 12 << 20, 21 << 20)


def random_graph(rng: random.Random) -> Graph:
    """A few kernels with buffers on both sides of what the allocator tells apart; one argument may be let go."""
    rows = ["with torch.cuda._DeviceGuard(0):", "    torch.cuda.set_device(0)", "    raw_stream0 = get_raw_stream(0)"]
    known = ["arg0_1", "saved"]
    count = rng.randint(2, 5)
    for k in range(count):
        rows.append(f"    buf{k} = empty_strided_cuda(({rng.choice(SIZES)}, ), (1, ), torch.uint8)")
        rows.append(f"    triton_two.run({rng.choice(known)}, {rng.choice(known)}, buf{k}, 16, stream=raw_stream0)")
        known.append(f"buf{k}")
    if rng.random() < 0.5:
        rows.append("    del saved")
    text = gpu_text("\n".join(rows) + f"\nreturn (buf{count - 1}, )\n").replace("async_compile.wait", TWO + "\nasync_compile.wait", 1)
    wrapper = parse_wrapper(text)
    return build_graph(wrapper, profile_from_text(wrapper))


def random_state(rng: random.Random) -> tuple[Any, ...]:
    """What some other program may leave behind."""
    allocator, live = CachingAllocator(), []
    for _ in range(rng.randint(0, 8)):
        live.append(allocator.alloc(rng.choice(SIZES)))
        if rng.random() < 0.6:
            allocator.free(live.pop(rng.randrange(len(live))))
    return allocator.state


def all_orders(graph: Graph) -> Iterator[tuple[int, ...]]:
    before = graph.program.predecessors
    for order in permutations(range(len(graph.program))):
        if all(u in order[:i] for i, v in enumerate(order) for u in before[v]):
            yield order


@pytest.mark.parametrize("seed", range(60))
def test_no_order_reserves_less_than_the_least(seed: int) -> None:
    """Every order of a small program, realized and replayed."""
    rng = random.Random(seed)
    graph = random_graph(rng)
    state = random_state(rng) if rng.random() < 0.7 else None
    first = random_order(seed, graph.program)
    cheapest = min(all_orders(graph), key=lambda o: peak_of(graph.program, o))
    bound = peak_of(graph.program, cheapest) - graph.program.entry_bytes
    found = reserve_least(graph, first, state, bound=bound, replays=200)

    allocator, at = CachingAllocator(state=state or ()), {}
    for name in graph.wrapper.inputs:
        if name in graph.profile.names and (state is None or name in graph.profile.freed):
            at[name] = allocator.alloc(graph.profile.names[name].bytes)

    def growth(order: Sequence[int]) -> int:
        return replay_program(trace_of(*realize(graph, order)), CachingAllocator(state=allocator.state), at).growth

    limit = peak_of(graph.program, first)
    assert peak_of(graph.program, found.order) <= limit
    assert found.growth == growth(found.order) <= found.given == growth(first)
    every = [(growth(o), peak_of(graph.program, o)) for o in all_orders(graph)]
    least = min(g for g, _ in every)
    assert found.growth >= min(g for g, peak in every if peak <= limit)
    if found.least:
        assert found.growth == least


@pytest.mark.parametrize("large", [10 << 20, 12 << 20, 21 << 20])
def test_a_request_may_lie_in_the_segment_of_another(large: int) -> None:
    """9 MiB that come first take a segment of 20 MiB, and lie in that of the larger request where they come after it."""
    rows = ["with torch.cuda._DeviceGuard(0):", "    raw_stream0 = get_raw_stream(0)"]
    for k, size in enumerate((9 << 20, 512, large, 512)):
        rows.append(f"    buf{k} = empty_strided_cuda(({size}, ), (1, ), torch.uint8)")
        rows.append(f"    triton_two.run(arg0_1, {f'buf{k - 1}' if k % 2 else 'arg0_1'}, buf{k}, 16, stream=raw_stream0)")
    text = gpu_text("\n".join(rows) + "\nreturn (buf1, buf3, )\n").replace("async_compile.wait", TWO + "\nasync_compile.wait", 1)
    wrapper = parse_wrapper(text)
    graph = build_graph(wrapper, profile_from_text(wrapper))
    growths = {}
    for order in all_orders(graph):
        found = reserve_least(graph, order, replays=1)
        growths[order] = (found.growth, found.least)
    least = min(growth for growth, _ in growths.values())
    assert least < max(growth for growth, _ in growths.values())
    assert all(growth == least for growth, proved in growths.values() if proved)
    assert any(proved for _, proved in growths.values())


def test_the_search_finds_the_least_most_of_the_time_and_proves_some() -> None:
    better = proved = hit = 0
    for seed in range(60):
        graph = random_graph(random.Random(seed))
        first = random_order(seed, graph.program)
        found = reserve_least(graph, first, replays=200)
        limit = peak_of(graph.program, first)
        all_of_them = [reserve_least(graph, o, replays=1).given for o in all_orders(graph) if peak_of(graph.program, o) <= limit]
        better += found.growth < found.given
        proved += found.least
        hit += found.growth == min(all_of_them)
    assert better >= 3
    assert proved >= 20
    assert hit >= 55


def plain(events: Sequence[Event], arguments: dict[str, int]) -> list[Any]:
    """Sizes in their order, and between two of them what goes, by size or argument: blocks have numbers of their own."""
    called = {number: name for name, number in arguments.items()}
    rows: list[Any] = []
    gone: list[str] = []
    for event in events:
        if event.kind == "alloc":
            rows += [sorted(gone), event.size]
            called[event.block] = f"{len(rows)}"
            gone = []
        else:
            gone.append(called[event.block])
    return [*rows, sorted(gone)]


def test_events_of_an_order_are_those_of_its_text() -> None:
    """Of every recorded program of a real network, in random orders."""
    rows = json.loads(lzma.decompress((HERE / "data" / "gpu_wrappers.json.xz").read_bytes()))
    for row in rows:
        wrapper, profile = parse_wrapper(row["source"]), Profile.from_json(row["profile"])
        graph = build_graph(wrapper, profile)
        events = EventsOf(graph)
        for seed in range(3):
            order = random_order(seed, graph.program)
            trace = trace_of(*realize(graph, order))
            assert plain(events(order), events.arguments) == plain(trace.events, {name: n for n, name in trace.arguments.items()}), row["name"]
    assert len(rows) >= 16


@pytest.mark.parametrize("asked", [[], [["+0", 1 << 70]], [["nobody", 100]]])
def test_a_profile_whose_requests_contradict_its_sizes(asked: list[Any], tmp_path: Path) -> None:
    rows = json.loads(lzma.decompress((HERE / "data" / "gpu_wrappers.json.xz").read_bytes()))
    row = next(row for row in rows if row["name"] == "hf_gpt2 inference")
    text, beside = tmp_path / "w.py", tmp_path / "w.peakmem.json"
    text.write_text(row["source"])
    beside.write_text(json.dumps(row["profile"]))
    load_model(text, {})
    for call in row["profile"]["requests"]:
        row["profile"]["requests"][call] = asked
    beside.write_text(json.dumps(row["profile"]))
    with pytest.raises(InputError, match="the profile is damaged"):
        load_model(text, {})


def test_an_order_that_reserves_less_is_taken_though_its_peak_is_no_lower(tmp_path: Path) -> None:
    from peakmem.ordering import order_program

    for seed in range(200):
        graph = random_graph(random.Random(seed))
        file = tmp_path / f"{seed}.py"
        file.write_text(realize(graph, random_order(seed, graph.program))[0].source)
        model = load_model(file, {"least_reserved": True})
        schedule = model.schedule(order_program(model.program))
        made = model.apply(schedule)
        assert made.predicted_bytes <= model.predicted_bytes
        (note,) = schedule.notes
        assert "torch's caching allocator would reserve" in note
        if made.wrapper.source == model.wrapper.source:
            assert "left as it is" in " ".join(made.notes)
        elif made.predicted_bytes == model.predicted_bytes:
            told = model.extras(made, None)
            assert told["reserved_bytes"] < told["reserved_before"]
            return
    pytest.fail("no program whose order is changed for what is reserved alone")


def test_what_cannot_be_asked_for(tmp_path: Path) -> None:
    graph = random_graph(random.Random(0))
    gpu, cpu = tmp_path / "gpu.py", tmp_path / "cpu.py"
    gpu.write_text(graph.wrapper.source)
    cpu.write_text(wrapper_of("buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)\nk_read(arg0_1, buf0)\nreturn (buf0, )"))
    with pytest.raises(UsageError, match="give one of them"):
        load_model(gpu, {"least_reserved": True, "pool": True})
    with pytest.raises(UsageError, match="--cache: is for --least-reserved"):
        load_model(gpu, {"cache": "x"})
    with pytest.raises(UsageError, match="is for GPU programs"):
        load_model(cpu, {"least_reserved": True})
    with pytest.raises(InputError, match="cannot be read"):
        load_model(gpu, {"least_reserved": True, "cache": str(tmp_path / "no.pickle")})
    recorded = HERE / "cuda" / "recorded"
    for name, reason in (("snapshot-late-expandable", "expandable segments"), ("snapshot-late", "")):
        file = tmp_path / f"{name}.pickle"
        file.write_bytes(lzma.decompress((recorded / f"{name}.pickle.xz").read_bytes()))
        if reason:
            with pytest.raises(InputError, match=reason):
                load_model(gpu, {"least_reserved": True, "cache": str(file)})
        else:
            load_model(gpu, {"least_reserved": True, "cache": str(file)})


def test_what_is_reserved_is_told_of_the_program_that_is_written(tmp_path: Path) -> None:
    """A wrapper that needs less as it stands than its statements as modelled is kept, and so is what is told of it."""
    from peakmem.ordering import order_program

    told = []
    for seed in range(40):
        graph = random_graph(random.Random(seed))
        file = tmp_path / f"{seed}.py"
        file.write_text(realize(graph, random_order(seed, graph.program))[0].source)
        model = load_model(file, {"least_reserved": True})
        model.__dict__["predicted_bytes"] = 0
        made = model.apply(model.schedule(order_program(model.program)))
        assert made.wrapper.source == model.wrapper.source
        told.append(model.extras(made, None))
    assert all(row["reserved_bytes"] == row["reserved_before"] for row in told)
