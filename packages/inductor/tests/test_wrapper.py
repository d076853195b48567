"""Reading wrappers, on short texts in the style of Inductor; nothing here needs torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from peakmem.model import InputError
from peakmem_inductor.building import build_graph
from peakmem_inductor.emitting import emit, realize
from peakmem_inductor.profile import Layout, Profile, profile_path, read_profile
from peakmem_inductor.regions import Region, overlap
from peakmem_inductor.signatures import cpp_accesses, triton_accesses
from peakmem_inductor.simulation import simulate
from peakmem_inductor.statictext import profile_from_text
from peakmem_inductor.wrapper import UnknownForm, looks_like_wrapper, parse_wrapper
from texts import program_of, wrapper_of

CHAIN = """
assert_size_stride(arg0_1, (4, 4), (4, 1), 'input')
buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
buf1 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_read(arg0_1, buf0)
k_read(arg0_1, buf1)
del arg0_1
buf2 = buf0; del buf0  # reuse
k_inplace(buf2, buf1)
del buf1
buf3 = buf2; del buf2  # reuse
k_read(saved, buf3)
del saved
return (buf3, )
"""


def test_forms_and_names() -> None:
    wrapper = parse_wrapper(wrapper_of(CHAIN))
    assert wrapper.inputs == ("arg0_1", "saved")
    assert [f.kind for f in wrapper.forms] == [
        "assert", "allocation", "allocation", "kernel", "kernel", "delete", "rename", "delete", "kernel", "delete",
        "rename", "delete", "kernel", "delete",
    ]  # fmt: skip
    assert wrapper.outputs == ("buf3",)
    assert wrapper.devices == ("cpu",)


def test_a_reuse_that_is_read_shares_storage_and_one_that_is_only_written_is_fresh() -> None:
    graph = program_of(CHAIN)
    assert graph.buffer_of["buf2"] == graph.buffer_of["buf0"], "in place: k_inplace reads what k_read wrote"
    assert graph.buffer_of["buf3"] != graph.buffer_of["buf2"], "dead: k_read only overwrites"
    names = [s.name for s in graph.program.statements]
    dependences = {s.name: {names[d] for d in s.dependences} for s in graph.program.statements}
    last = names[-1]
    assert dependences[last] == set(), "the dead reuse must not hold the last kernel back"
    text = emit(graph, (3, 0, 1, 2)).source
    again = parse_wrapper(text)
    assert "buf3 = empty_strided_cpu((4, 4), (4, 1), torch.float32)" in text
    assert simulate(again, graph.profile) == graph.predicted((3, 0, 1, 2))


def test_emitted_text_allocates_late_and_deletes_early() -> None:
    graph = program_of(CHAIN)
    body = parse_wrapper(emit(graph, (0, 1, 2, 3)).source).forms
    kinds = [(f.kind, f.defines or f.deletes) for f in body if f.kind in ("allocation", "delete")]
    assert kinds == [
        ("allocation", ("buf0",)), ("allocation", ("buf1",)), ("delete", ("arg0_1",)),
        ("delete", ("buf0", "buf2", "buf1")), ("allocation", ("buf3",)), ("delete", ("saved",)),
    ]  # fmt: skip


def test_disjoint_slices_of_a_concatenation_commute_and_overlapping_ones_do_not() -> None:
    body = """
buf2 = empty_strided_cpu((4, 8), (8, 1), torch.float32)
buf0 = reinterpret_tensor(buf2, (4, 4), (8, 1), 0)  # alias
k_read(arg0_1, buf0)
buf1 = reinterpret_tensor(buf2, (4, 4), (8, 1), %d)  # alias
k_read(saved, buf1)
buf3 = empty_strided_cpu((4, 8), (8, 1), torch.float32)
k_read(buf2, buf3)
return (buf3, )
"""
    disjoint = program_of(body % 4).program
    assert [s.dependences for s in disjoint.statements] == [(), (), (0, 1)]
    assert len(disjoint.births[[b.name for b in disjoint.buffers].index("buf2")]) == 2
    overlapping = program_of(body % 3).program
    assert overlapping.statements[1].dependences == (0,)


@pytest.mark.parametrize("seed", range(40))
def test_overlap_agrees_with_enumeration(seed: int) -> None:
    import itertools
    import random

    rng = random.Random(seed)

    def region() -> Region:
        rank = rng.randint(1, 3)
        return Region(
            rng.randrange(8), tuple(rng.randint(0 if seed % 5 == 0 else 1, 4) for _ in range(rank)),
            tuple(rng.randint(0, 6) for _ in range(rank)), 4,
        )  # fmt: skip

    def elements(r: Region) -> set[int]:
        return {r.offset + sum(i * s for i, s in zip(at, r.stride)) for at in itertools.product(*map(range, r.shape))}

    for _ in range(50):
        a, b = region(), region()
        if a != b:
            assert overlap(a, b) == bool(elements(a) & elements(b)), (a, b)


def test_write_after_read_is_kept() -> None:
    graph = program_of(
        """
buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_read(saved, buf0)
k_inplace(saved, arg0_1)
return (buf0, )
"""
    )
    assert graph.program.statements[1].dependences == (0,)
    assert not graph.program.statements[1].pure


def test_tuples_stay_with_their_operator() -> None:
    graph = program_of(
        """
buf0 = torch.ops.aten.topk.default(arg0_1, 2)
buf1 = buf0[0]
assert_size_stride(buf1, (4, 2), (2, 1), 'torch.ops.aten.topk.default')
buf2 = buf0[1]
assert_size_stride(buf2, (4, 2), (2, 1), 'torch.ops.aten.topk.default')
del buf0
buf3 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_read(saved, buf3)
return (buf1, buf3, )
"""
    )
    assert [s.op for s in graph.program.statements] == ["torch.ops.aten.topk.default", "k_read"]
    rows = emit(graph, (1, 0)).source.splitlines()
    at = next(i for i, r in enumerate(rows) if "topk.default(" in r)
    assert [r.strip() for r in rows[at + 1 : at + 6]] == [
        "buf1 = buf0[0]", "assert_size_stride(buf1, (4, 2), (2, 1), 'torch.ops.aten.topk.default')", "buf2 = buf0[1]",
        "assert_size_stride(buf2, (4, 2), (2, 1), 'torch.ops.aten.topk.default')", "del buf0, arg0_1, buf2",
    ]  # fmt: skip


def test_unknown_operators_are_full_barriers() -> None:
    graph = program_of(
        """
buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_read(arg0_1, buf0)
torch.ops.lab.inc_.default(saved)
buf1 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_read(arg0_1, buf1)
return (buf0, buf1, )
"""
    )
    assert [s.dependences for s in graph.program.statements] == [(), (0,), (1,)]


@pytest.mark.parametrize(
    "statement",
    [
        "pool0 = alloc_from_pool(make(), 0, torch.float32, (4,), (1,))",
        "arg0_1 = copy_if_misaligned(saved)",
        "buf9 = something_new(arg0_1)",
        "run_intermediate_hooks('x', arg0_1)",
        "for i in range(3): k_read(arg0_1, saved)",
        "torch.ops._c10d_functional.wait_tensor.default(arg0_1)",
        "torch.ops.inductor.resize_storage_bytes_.default(arg0_1, 0)",
        "torch.ops.aten.set_.source_Tensor(arg0_1, saved)",
        "k_read(*args)",
        "import os",
        "arg0_1.resize_(3)",
    ],
)
def test_unknown_forms_are_named_with_their_line(statement: str) -> None:
    text = wrapper_of(f"buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)\n{statement}\nreturn (buf0, )")
    line = text.splitlines().index("        " + statement) + 1
    with pytest.raises(UnknownForm, match=rf"line {line}: .*left as it is"):
        parse_wrapper(text)


def test_tuples_used_as_a_whole_are_refused() -> None:
    with pytest.raises(UnknownForm, match="as a whole"):
        program_of(
            """
buf0 = torch.ops.aten.topk.default(arg0_1, 2)
buf1 = buf0[0]
buf2 = torch.ops.aten.sort.default(buf0)
return (buf1, buf2, )
"""
        )


@pytest.mark.parametrize("text", ["", "x = (", "def f(): pass", "class Runner:\n    def call(self, args):\n        pass\n"])
def test_what_is_no_wrapper_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_wrapper(text, where="thing.py")


GPU = '''
with torch.cuda._DeviceGuard(0):
    torch.cuda.set_device(0)
    buf0 = empty_strided_cuda((4, 4), (4, 1), torch.float32)
    stream0 = get_raw_stream(0)
    triton_poi_fused_a.run(arg0_1, buf0, 16, stream=stream0)
    buf1 = empty_strided_cuda((4, 4), (4, 1), torch.float32)
    triton_poi_fused_a.run(saved, buf1, 16, stream=stream0)
    del saved
    buf2 = buf0; del buf0  # reuse
    triton_poi_fused_b.run(buf2, buf1, 16, stream=stream0)
    del buf1
return (buf2, )
'''
TRITON = """
triton_poi_fused_a = async_compile.triton('triton_poi_fused_a', '''
@triton.jit
def triton_poi_fused_a(in_ptr0, out_ptr0, xnumel, XBLOCK : tl.constexpr):
    pass
''', device_str='cuda')
triton_poi_fused_b = async_compile.triton('triton_poi_fused_b', '''
@triton.jit
def triton_poi_fused_b(in_out_ptr0, in_ptr0, xnumel, XBLOCK : tl.constexpr):
    pass
''', device_str='cuda')
"""


def test_gpu_wrappers_are_read_and_permuted_as_text() -> None:
    text = wrapper_of(GPU).replace("async_compile.wait", TRITON + "\nasync_compile.wait")
    wrapper = parse_wrapper(text)
    assert wrapper.devices == ("cuda",)
    assert wrapper.context == "with torch.cuda._DeviceGuard(0):"
    graph = build_graph(wrapper, profile_from_text(wrapper))
    assert [s.dependences for s in graph.program.statements] == [(), (), (0, 1)]
    again = emit(graph, (1, 0, 2)).source
    rows = [r.strip() for r in again.splitlines()]
    assert rows.index("stream0 = get_raw_stream(0)") < rows.index("triton_poi_fused_a.run(saved, buf1, 16, stream=stream0)")
    inside = next(r for r in again.splitlines() if "saved, buf1" in r)
    assert inside.startswith("            ")
    assert build_graph(parse_wrapper(again), profile_from_text(parse_wrapper(again))).program.statements


def test_signatures() -> None:
    code = 'extern "C"  void  kernel(const float* in_ptr0,\n const long* in_ptr1, float* in_out_ptr0, bool* out_ptr1, float* Y, const int64_t ks0)\n{'
    assert cpp_accesses(code) == ("r", "r", "rw", "w", "rw", None)
    assert cpp_accesses("int main() {}") is None
    assert triton_accesses("def triton_red_x(in_ptr0, in_out_ptr0, out_ptr1, xnumel, XBLOCK : tl.constexpr):\n") == (
        "r", "rw", "w", None, None,
    )  # fmt: skip


def test_profiles_survive_json_and_damage_is_named(tmp_path: Path) -> None:
    wrapper = parse_wrapper(wrapper_of(CHAIN))
    profile = profile_from_text(wrapper)
    assert Profile.from_json(profile.to_json()) == profile
    path = tmp_path / "w.peakmem.json"
    path.write_bytes(profile.to_bytes().replace(b'"threads": 0', b'"threads": null'))
    with pytest.raises(InputError, match=r"w\.peakmem\.json.*damaged"):
        read_profile(path)
    path.write_text("{")
    with pytest.raises(InputError, match="not JSON"):
        read_profile(path)


def test_layout_bytes() -> None:
    assert Layout(0, (2, 3), (3, 1), 0, "torch.float32", "x").own_bytes == 24
    assert Layout(0, (2, 3), (1, 8), 0, "torch.bfloat16", "x").own_bytes == (1 + 1 + 16) * 2
    assert Layout(0, (0, 3), (3, 1), 0, "torch.float32", "x").own_bytes == 0
    assert Layout(0, (), (), 0, "torch.bool", "x").own_bytes == 1


def test_the_frontend_reads_orders_and_writes_without_torch(tmp_path: Path) -> None:
    import json

    import peakmem

    path = tmp_path / "w.py"
    text = wrapper_of(CHAIN)
    path.write_text(text)
    assert looks_like_wrapper(text.encode()[:4096])
    model = peakmem.load(path)
    assert model.frontend == "inductor"
    assert any("no recorded profile" in n for n in model.notes)
    result = peakmem.optimize(model, measure=False)
    assert result.optimal
    assert result.model.predicted_bytes <= model.predicted_bytes
    out = tmp_path / "o.py"
    result.model.save(out)
    assert peakmem.load(out).predicted_bytes == result.model.predicted_bytes
    assert path.read_text() == text
    # a recorded profile beside it must be of this wrapper
    row = profile_from_text(parse_wrapper(text)).to_json()
    row["torch"], row["wrapper"] = "2.13.0", "sha256:other"
    profile_path(path).write_text(json.dumps(row))
    with pytest.raises(InputError, match="another wrapper"):
        peakmem.load(path)


def test_importing_the_frontend_is_light() -> None:
    code = "import sys, peakmem_inductor.frontend as f, peakmem_inductor; f.frontend.runtimes(); print([m for m in ('torch', 'numpy', 'ortools') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_an_alias_outlives_the_first_name_of_its_storage() -> None:
    """What an operator returns is recorded by the first name of its storage, which may be gone by then."""
    from dataclasses import replace

    from peakmem_inductor.effects import Effects

    wrapper = parse_wrapper(
        wrapper_of(
            """
buf0 = torch.ops.aten.mul.Tensor(arg0_1, saved)
buf1 = buf0
del buf0
buf2 = torch.ops.aten.view_as_real.default(buf1)
del buf1
buf3 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_read(buf2, buf3)
del buf2
buf4 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_read(buf3, buf4)
return (buf4, )
"""
        )
    )
    profile = profile_from_text(wrapper)
    layout = Layout(64, (4, 4), (4, 1), 0, "torch.float32", "buf0")
    profile = replace(profile, names={**profile.names, **dict.fromkeys(("buf0", "buf1", "buf2"), layout)})
    assert simulate(wrapper, profile) == 128
    known = {"torch.ops.aten.mul.Tensor": Effects({}), "torch.ops.aten.view_as_real.default": Effects({}, aliases=("0",))}
    graph = build_graph(wrapper, profile, effects=known.__getitem__)
    assert len({graph.buffer_of[n] for n in ("buf0", "buf1", "buf2")}) == 1
    assert graph.predicted() == 128


def test_a_tuple_that_nobody_takes_apart_goes_at_once() -> None:
    from dataclasses import replace

    from peakmem_inductor.effects import Effects

    call = "buf0 = torch.ops.aten.native_dropout.default(arg0_1, 0.5, True)"
    wrapper = parse_wrapper(
        wrapper_of(f"{call}\nbuf1 = empty_strided_cpu((4, 4), (4, 1), torch.float32)\nk_read(arg0_1, buf1)\nreturn (buf1, )")
    )
    profile = profile_from_text(wrapper)
    profile = replace(profile, torch="2.13.0", workspaces={call: 80}, residues={call: 80})
    assert simulate(wrapper, profile) == 80 + 64, "as it stands, it stays"
    graph = build_graph(wrapper, profile, effects=lambda _: Effects({}, random=True))
    assert graph.predicted() == 80
    again, more = realize(graph, (0, 1))
    assert [f.text for f in again.forms][:2] == [call, "del buf0"]
    assert simulate(again, more) == 80


def test_what_a_call_asks_for_stands_in_its_order() -> None:
    """Temporaries before and after results, and a part of a result that nobody names, which goes with the tuple."""
    from dataclasses import replace

    from peakmem_inductor.profile import Profile
    from peakmem_inductor.simulation import requests

    call = "buf0 = torch.ops.aten.native_dropout.default(arg0_1, 0.5, True)"
    wrapper = parse_wrapper(wrapper_of(f"{call}\nbuf1 = buf0[0]\ndel buf0\nreturn (buf1, )"))
    profile = profile_from_text(wrapper)
    layout = Layout(64, (4, 4), (4, 1), 0, "torch.float32", "buf1")
    rows = (("+0", 8), ("buf1", 64), ("+1", 40), ("+0", -8), ("+2", 16), ("+2", -16))
    profile = replace(
        profile, names={**profile.names, "buf1": layout}, torch="2.14.1", workspaces={call: 64}, residues={call: 40}, requests={call: rows}
    )
    assert Profile.from_json(profile.to_json()) == profile
    in_order = [("buf0+0", 8), ("buf1", 64), ("buf0+1", 40), ("buf0+0", -8), ("buf0+2", 16), ("buf0+2", -16), ("buf0+1", -40)]
    assert list(requests(wrapper, profile)) == in_order
    assert simulate(wrapper, profile) == 120
    unknown = replace(profile, requests={})
    assert list(requests(wrapper, unknown)) == [("buf1", 64), ("workspace", 64), ("workspace", -64), ("buf0+0", 40), ("buf0+0", -40)]


@pytest.mark.parametrize("rows", [{"x": 1}, [["x"]], [["x", -8]], [["x", 8], ["x", -4]], [["x", 8], ["x", 8]], [["x", 8], ["x", -8], ["x", -8]], [["x", "8"]]])
def test_requests_that_cannot_have_been(rows: object) -> None:
    from peakmem.model import InputError
    from peakmem_inductor.profile import Profile

    wrapper = parse_wrapper(wrapper_of("return (arg0_1, )"))
    document = profile_from_text(wrapper).to_json()
    assert Profile.from_json({**document, "requests": {"call": [["x", 8], ["+0", 4], ["+0", -4]]}}).requests["call"][0] == ("x", 8)
    with pytest.raises(InputError, match="the profile is damaged"):
        Profile.from_json({**document, "requests": {"call": rows}})


def test_requests_of_a_call_by_name() -> None:
    from peakmem_inductor.record import named_requests

    assert named_requests([(0, 8), (16, 100), (0, -8), (0, 40)], {0: "buf2"}) == (("+0", 8), ("+1", 100), ("+0", -8), ("buf2", 40))
    assert named_requests([(0, 8), (16, -8)], {}) is None, "what had been there before"
    assert named_requests([(0, 8), (0, -8)], {0: "buf0"}) is None, "a result that is gone"


@pytest.mark.parametrize(
    "row",
    [
        "buf0 = torch.ops.aten.mm.default(arg0_1, (lambda saved: saved)(arg0_1))",
        "buf0 = torch.ops.aten.mm.default(arg0_1, (saved := arg0_1))",
        "buf0 = torch.ops.aten.cat.default([saved for saved in arg0_1])",
        "buf0 = torch.ops.aten.f.default(arg0_1, 'a\\\nb')",
        "buf0 = torch.ops.aten.f.default(arg0_1, f'''a\nb''')",
    ],
)
def test_names_of_their_own_and_long_texts_are_refused(row: str) -> None:
    with pytest.raises(UnknownForm, match=r"unknown expression|text over several lines"):
        parse_wrapper(wrapper_of(row + "\nreturn (buf0, )"))


def test_lines_are_those_of_python() -> None:
    """Form feeds and the like end a line for `str.splitlines`, but not for the parser."""
    odd = "\x0c \u2028 \x1d"
    text = wrapper_of(CHAIN.replace("buf1 = empty", f"# {odd}\nbuf1 = empty")).replace("async_compile = ", f"# {odd}\nasync_compile = ")
    wrapper = parse_wrapper(text)
    assert [f.text for f in wrapper.forms] == [f.text for f in parse_wrapper(wrapper_of(CHAIN)).forms]
    graph = build_graph(wrapper, profile_from_text(wrapper))
    again = parse_wrapper(emit(graph, (3, 0, 1, 2)).source)
    assert [f.text for f in again.forms] == [f.text for f in parse_wrapper(emit(program_of(CHAIN), (3, 0, 1, 2)).source).forms]


def test_deep_nesting_is_one_sentence() -> None:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)  # other tests may have raised it
    try:
        for deep in ("-" * 5000 + "1", "1" + "+1" * 30000):
            with pytest.raises(InputError, match="nested too deep"):
                parse_wrapper(wrapper_of(f"buf0 = torch.ops.aten.f.default({deep})\nreturn (buf0, )"))
    finally:
        sys.setrecursionlimit(limit)


def test_two_names_for_one_size() -> None:
    """Two arguments with one symbol each that turned out to be the same."""
    body = "s0 = s7\ns1 = s0\nbuf0 = empty_strided_cpu((s1, 4), (4, 1), torch.float32)\nk_read(arg0_1, buf0)\nreturn (buf0, )"
    text = wrapper_of(body, inputs="s7, arg0_1").replace("    arg0_1 = rand", "    s7 = 4\n    arg0_1 = rand")
    wrapper = parse_wrapper(text)
    graph = build_graph(wrapper, profile_from_text(wrapper))
    assert graph.prologue[:2] == ("s0 = s7", "s1 = s0")
    wrapper = parse_wrapper(text.replace("s0 = s7", "s0 = s9"))
    with pytest.raises(UnknownForm, match="no argument"):
        build_graph(wrapper, profile_from_text(wrapper))
