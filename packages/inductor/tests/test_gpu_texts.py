"""GPU wrappers as texts, without torch and without a GPU: their statements, what they ask for, and recorded ones of real networks."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest
from peakmem_inductor.building import build_graph
from peakmem_inductor.cuda.caching import BlockState, CachingAllocator, SegmentState
from peakmem_inductor.cuda.programs import replay_program, trace_of
from peakmem_inductor.effects import Effects, hidden_effects
from peakmem_inductor.emitting import emit, realize
from peakmem_inductor.model import InductorModel
from peakmem_inductor.pooling import add_pool, remove_pool
from peakmem_inductor.profile import Profile
from peakmem_inductor.simulation import simulate
from peakmem_inductor.statictext import profile_from_text
from peakmem_inductor.structure import compare_graphs
from peakmem_inductor.wrapper import UnknownForm, parse_wrapper
from texts import wrapper_of

RECORDED = Path(__file__).with_name("data") / "gpu_wrappers.json.xz"

TRITON = """
triton_poi_fused_a = async_compile.triton('triton_poi_fused_a', '''
@triton.jit
def triton_poi_fused_a(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    pass
''', device_str='cuda')
triton_spl_fused_b = async_compile.triton('triton_spl_fused_b', '''
@triton.jit
def triton_spl_fused_b(in_out_ptr0, in_ptr0, ws_ptr, xnumel, XBLOCK : tl.constexpr):
    pass
''', device_str='cuda')
"""
BODY = """
with torch.cuda._DeviceGuard(0):
    torch.cuda.set_device(0)
    arg0_1 = copy_if_misaligned(arg0_1)
    assert_size_stride_grouped((arg0_1, saved), ((4, 4), (4, 4)), ((4, 1), (4, 1)), 'input')
    buf0 = empty_strided_cuda((4, 4), (4, 1), torch.float32)
    raw_stream0 = get_raw_stream(0)
    triton_poi_fused_a.run(arg0_1, buf0, 16, stream=raw_stream0)
    buf1 = empty_strided_cuda((4, 4), (4, 1), torch.float32)
    raw_stream0 = get_raw_stream(0)
    triton_poi_fused_a.run(saved, buf1, 16, stream=raw_stream0)
    del saved
    buf2 = buf0; del buf0  # reuse
    workspace_0 = empty_strided_cuda((96, ), (1, ), torch.uint8)
    workspace_0.zero_()
    raw_stream0 = get_raw_stream(0)
    triton_spl_fused_b.run(buf2, buf1, workspace_0, 16, stream=raw_stream0)
    del buf1
    del workspace_0
    buf3 = extern_kernels.convolution(buf2, arg0_1, stride=(1, 1))
    assert_tensor_metadata(buf3, (4, 4), (4, 1), torch.float64, 'torch.ops.aten.convolution.default')
    del buf2
return (buf3, )
"""


def gpu_text(body: str = BODY) -> str:
    text = wrapper_of(body).replace("async_compile.wait", TRITON + "\nasync_compile.wait")
    return text.replace("device='cpu'", "device='cuda:0'")


def test_statements_of_gpu_wrappers() -> None:
    wrapper = parse_wrapper(gpu_text())
    profile = profile_from_text(wrapper)
    assert (profile.device, wrapper.devices) == ("cuda:0", ("cuda",))
    assert profile.names["buf3"].dtype == "torch.float64", "an assert says the element type"
    assert not any("buf3" in note for note in profile.notes)
    graph = build_graph(wrapper, profile)
    assert [s.op for s in graph.program.statements] == [
        "triton_poi_fused_a", "triton_poi_fused_a", "zero_", "triton_spl_fused_b", "extern_kernels.convolution",
    ]  # fmt: skip
    assert [s.dependences for s in graph.program.statements] == [(), (), (), (0, 1, 2), (0, 3)]
    assert graph.prologue.count("raw_stream0 = get_raw_stream(0)") == 1
    assert "arg0_1 = copy_if_misaligned(arg0_1)" in graph.prologue
    # buf0, buf1 and the workspace, with `saved` gone.
    assert simulate(wrapper, profile) == 64 + 64 + 96 - 64
    again = emit(graph, (1, 2, 0, 3, 4)).source
    rows = [r.strip() for r in again.splitlines()]
    assert rows.index("workspace_0.zero_()") < rows.index("triton_spl_fused_b.run(buf2, buf1, workspace_0, 16, stream=raw_stream0)")
    assert not compare_graphs(graph, build_graph(parse_wrapper(again), profile_from_text(parse_wrapper(again)))).difference


def test_workspaces_lie_in_the_pool() -> None:
    pooled = add_pool(*(lambda w: (w, profile_from_text(w)))(parse_wrapper(gpu_text())))
    assert pooled.sizes == {"empty_strided_cuda": 256 + 256 + 96}
    assert not pooled.outside
    assert "workspace_0 = alloc_from_pool(peakmem_pool_cuda, " in pooled.wrapper.source


def test_copies_between_devices() -> None:
    copied = """
buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
buf0.copy_(arg0_1, False)
buf1 = empty_strided_cuda((4, 4), (4, 1), torch.float32)
buf1.copy_(reinterpret_tensor(buf0, (4, 4), (4, 1), 0), False)
del buf0
return (buf1, )
"""
    graph = (lambda w: build_graph(w, profile_from_text(w)))(parse_wrapper(gpu_text(copied)))
    assert [(s.op, s.dependences) for s in graph.program.statements] == [("copy_", ()), ("copy_", (0,))]
    for other in ("buf0.copy_(arg0_1, True)", "buf0.copy_(arg0_1, arg0_1)", "buf0.copy_()", "buf0.zero_(arg0_1)", "buf0.copy_(arg0_1, non_blocking=False)"):
        with pytest.raises(UnknownForm, match=r"line \d+: an unknown statement"):
            parse_wrapper(gpu_text(copied.replace("buf0.copy_(arg0_1, False)", other)))


def test_a_guard_comes_back_after_a_part_on_the_cpu_and_another_does_not() -> None:
    parts = """
with torch.cuda._DeviceGuard(0):
    buf0 = empty_strided_cuda((4, 4), (4, 1), torch.float32)
    triton_poi_fused_a.run(arg0_1, buf0, 16, stream=0)
buf1 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
buf1.copy_(buf0, False)
del buf0
with torch.cuda._DeviceGuard(0):
    buf2 = empty_strided_cuda((4, 4), (4, 1), torch.float32)
    buf2.copy_(buf1, False)
    del buf1
return (buf2, )
"""
    wrapper = parse_wrapper(gpu_text(parts))
    graph = build_graph(wrapper, profile_from_text(wrapper))
    assert [s.dependences for s in graph.program.statements] == [(), (0,), (1,)]
    assert emit(graph, (0, 1, 2)).source.count("with torch.cuda._DeviceGuard(0):") == 1
    with pytest.raises(UnknownForm, match="an unknown with block"):
        parse_wrapper(gpu_text(parts.replace("_DeviceGuard(0):\n    buf2", "_DeviceGuard(1):\n    buf2")))


def test_kernels_of_the_user_stand_still_and_run_once() -> None:
    text = gpu_text().replace("def triton_poi_fused_a(in_ptr0", "def triton_mine(in_ptr0").replace("XBLOCK : tl.constexpr):", "XBLOCK : tl.constexpr):  # custom_kernel=True", 1)
    wrapper = parse_wrapper(text)
    profile = profile_from_text(wrapper)
    graph = build_graph(wrapper, profile)
    assert [s.effects for s in graph.program.statements][:2] == [("barrier",), ("barrier",)]
    assert hidden_effects(wrapper, lambda name: Effects({})) == "triton_poi_fused_a.run"
    assert "not known" in add_pool(wrapper, profile).outside["buf0"]


def test_requests_in_their_order() -> None:
    wrapper = parse_wrapper(gpu_text())
    trace = trace_of(wrapper, profile_from_text(wrapper))
    assert [(e.kind, e.size) for e in trace.events] == [
        ("alloc", 64), ("alloc", 64), ("free", 0), ("alloc", 96), ("free", 0), ("free", 0), ("alloc", 128), ("free", 0),
    ]  # fmt: skip
    assert list(trace.arguments.values()) == ["saved"]
    assert len(trace.results) == 1


def test_what_has_no_size_is_named() -> None:
    text = gpu_text().split("def get_args")[0].replace("assert_size_stride_grouped((arg0_1, saved), ((4, 4), (4, 4)), ((4, 1), (4, 1)), 'input')", "assert_size_stride(saved, (4, 4), (4, 1), 'input')")
    wrapper = parse_wrapper(text)
    profile = profile_from_text(wrapper)
    assert "arg0_1" not in profile.names
    assert any("nothing in the text tells the size of arg0_1" in note for note in profile.notes)
    assert any("nothing in the text tells the size of arg0_1" in note for note in InductorModel(wrapper, profile).notes)


def test_other_devices_count_nothing() -> None:
    body = BODY.replace("    buf1 = empty_strided_cuda", "    buf1 = empty_strided_cpu")
    wrapper = parse_wrapper(gpu_text(body))
    profile = profile_from_text(wrapper)
    assert profile.names["buf1"].device == "cpu"
    # buf1 is not counted: 64 for buf0, 64 less with saved, the workspace, and the result beside buf0.
    assert simulate(wrapper, profile) == 64 - 64 + 64 + 128 - 64
    assert Profile.from_json(profile.to_json()) == profile


def recorded() -> list[dict[str, Any]]:
    return json.loads(lzma.decompress(RECORDED.read_bytes()))


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return recorded()


def test_recorded_wrappers_need_what_the_real_allocator_was_asked_for(rows: list[dict[str, Any]]) -> None:
    """Peaks of ``requested_bytes`` of torch's own caching allocator, as it stands, permuted, and with a pool."""
    pools = 0
    for row in rows:
        wrapper = parse_wrapper(row["source"], where=row["name"])
        profile = Profile.from_json(row["profile"])
        assert simulate(wrapper, profile) == row["requested"]["untouched"], row["name"]
        graph = build_graph(wrapper, profile)
        if row["order"] is None:
            assert graph.predicted() <= row["requested"]["untouched"], row["name"]
            continue
        permuted, its = realize(graph, row["order"])
        assert simulate(permuted, its) == row["requested"]["permuted"] <= row["requested"]["untouched"], row["name"]
        if row["pool"] is None:
            continue
        pooled = add_pool(permuted, its, fixed_sizes=True)
        if row["pool"]["least"]:
            assert (pooled.size, pooled.predicted) == (row["pool"]["bytes"], row["requested"]["pool"]), row["name"]
            pools += 1
        back = remove_pool(pooled.wrapper, pooled.profile)
        assert simulate(*back) == row["requested"]["permuted"], row["name"]
    assert len(rows) >= 16
    assert pools >= 10


def segment_states(rows: list[Any]) -> tuple[SegmentState, ...]:
    return tuple(
        SegmentState(address, 0, small, tuple(BlockState(size, requested, active) for size, requested, active in blocks), order=order)
        for address, order, small, blocks in rows
    )


def test_recorded_wrappers_allocate_and_reserve_as_the_replay_says(rows: list[dict[str, Any]]) -> None:
    """Peaks of requested, allocated and reserved above entry of torch's own allocator, from the states that the programs met."""
    replays = 0
    for row in rows:
        if not row.get("entries"):
            continue
        wrapper, profile = parse_wrapper(row["source"], where=row["name"]), Profile.from_json(row["profile"])
        permuted = realize(build_graph(wrapper, profile), row["order"])
        programs = {"untouched": (wrapper, profile), "permuted": permuted}
        if row["pool"] is not None:
            pooled = add_pool(*permuted, fixed_sizes=True)
            if pooled.size == row["pool"]["bytes"]:
                programs["pool"] = (pooled.wrapper, pooled.profile)
        for name, program in programs.items():
            for entry, measured in row["entries"][name]:
                allocator = CachingAllocator(state=segment_states(entry["segments"]))
                before = allocator.figures
                peak = replay_program(trace_of(*program), allocator, entry["addresses"]).peak
                found = [peak.requested - before.requested, peak.allocated - before.allocated, peak.reserved - before.reserved]
                assert found == measured, (row["name"], name)
                replays += 1
    assert replays >= 100
