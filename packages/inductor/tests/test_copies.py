"""Statements that run twice: how they are written, what they cost, and that the bits stay."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Any

import peakmem
import peakmem_inductor
import pytest
from peakmem.model import PeakmemError, Refused, Schedule, UsageError, peak_of
from peakmem.transform.recompute import RerunProblem, expand, make_plan, recompute
from peakmem_inductor.building import build_graph
from peakmem_inductor.costs import macs
from peakmem_inductor.effects import Effects
from peakmem_inductor.emitting import emit, realize, rename
from peakmem_inductor.profile import Layout
from peakmem_inductor.signatures import runs_once
from peakmem_inductor.simulation import simulate
from peakmem_inductor.statictext import profile_from_text
from peakmem_inductor.wrapper import parse_wrapper
from texts import program_of, wrapper_of

LATE = """
assert_size_stride(arg0_1, (4, 4), (4, 1), 'input')
buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_read(arg0_1, buf0)
buf1 = buf0; del buf0  # reuse
k_inplace(buf1, saved)
buf2 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_read(buf1, buf2)
buf3 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_read(buf2, buf3)
del buf2
buf4 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_two(reinterpret_tensor(buf1, (4, 4), (4, 1), 0), buf3, buf4)
del buf1, buf3
buf5 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_read(buf4, buf5)
return (buf5, )
"""


def rerun(graph: Any, gap: int, member: str, cap: int = 2, times: int = 1) -> Any:
    """The graph's program in its given order, with the unit that ends in ``member`` run again in ``gap``."""
    problem = RerunProblem(graph.program, tuple(range(len(graph.program))), cap=cap)
    at = next(i for i, u in enumerate(problem.units) if graph.program.statements[u.members[-1]].name == member)
    return expand(make_plan(problem, [(gap, at)] * times))


def body(source: str) -> list[str]:
    return [form.text for form in parse_wrapper(source).forms]


def test_an_in_place_chain_runs_again_into_a_buffer_of_its_own() -> None:
    graph = program_of(LATE)
    names = [s.name for s in graph.program.statements]
    expansion = rerun(graph, 4, names[1])
    order = tuple(range(len(expansion.program)))
    emitted = emit(graph, order, expansion)
    rows = body(emitted.source)
    assert rows[rows.index("k_read(buf2, buf3)") :] == [
        "k_read(buf2, buf3)",
        "del buf2",
        "buf0_copy1 = empty_strided_cpu((4, 4), (4, 1), torch.float32)",
        "k_read(arg0_1, buf0_copy1)",
        "del arg0_1",
        "buf1_copy1 = buf0_copy1",
        "k_inplace(buf1_copy1, saved)",
        "del saved",
        "buf4 = empty_strided_cpu((4, 4), (4, 1), torch.float32)",
        "k_two(reinterpret_tensor(buf1_copy1, (4, 4), (4, 1), 0), buf3, buf4)",
        "del buf3, buf0_copy1, buf1_copy1",
        "buf5 = empty_strided_cpu((4, 4), (4, 1), torch.float32)",
        "k_read(buf4, buf5)",
        "del buf4",
    ]
    assert rows[rows.index("k_read(buf1, buf2)") + 1] == "del buf0, buf1", "the original goes after its last reader"
    wrapper, profile = realize(graph, order, expansion)
    assert simulate(wrapper, profile) == peak_of(expansion.program, order) - graph.program.entry_bytes
    again = build_graph(wrapper, profile)
    assert len(again.program) == len(expansion.program), "what was written can be read again"
    assert peak_of(again.program) == peak_of(expansion.program, order)


def test_names_of_copies_never_meet_names_that_are_there() -> None:
    graph = program_of(LATE.replace("buf2", "buf0_copy1").replace("buf3", "buf0_copy_1"))
    expansion = rerun(graph, 4, graph.program.statements[1].name, cap=3, times=2)
    order = tuple(range(len(expansion.program)))
    wrapper, _ = realize(graph, order, expansion)
    defined = [n for f in wrapper.forms for n in f.defines]
    assert len(defined) == len(set(defined))
    assert {"buf0_copy__1", "buf0_copy__2"} <= set(defined)


def test_tuples_of_a_repeated_operator_have_names_of_their_own() -> None:
    graph = program_of(
        """
buf0 = torch.ops.aten.topk.default(arg0_1, 2)
buf1 = buf0[0]
assert_size_stride(buf1, (4, 2), (2, 1), 'torch.ops.aten.topk.default')
buf2 = buf0[1]
assert_size_stride(buf2, (4, 2), (2, 1), 'torch.ops.aten.topk.default')
del buf0
buf3 = empty_strided_cpu((4, 2), (2, 1), torch.float32)
k_two(buf1, buf2, buf3)
buf4 = empty_strided_cpu((4, 2), (2, 1), torch.float32)
k_two(buf1, buf3, buf4)
return (buf4, )
""",
        effects=lambda _: Effects({}),
    )
    call = "buf0 = torch.ops.aten.topk.default(arg0_1, 2)"
    graph = replace(graph, profile=replace(graph.profile, requests={call: (("+0", 8), ("buf2", 64), ("buf1", 32), ("+0", -8))}))
    expansion = rerun(graph, 2, "buf0", cap=3, times=2)
    emitted = emit(graph, range(len(expansion.program)), expansion)
    rows = [r.split(" #")[0] for r in body(emitted.source)]
    for k in (1, 2):
        asked = emitted.profile.requests[f"buf0_copy{k} = torch.ops.aten.topk.default(arg0_1, 2)"]
        assert asked == (("+0", 8), (f"buf2_copy{k}", 64), (f"buf1_copy{k}", 32), ("+0", -8))
        at = rows.index(f"buf0_copy{k} = torch.ops.aten.topk.default(arg0_1, 2)")
        assert rows[at + 1 : at + 4] == [
            f"buf1_copy{k} = buf0_copy{k}[0]",
            f"assert_size_stride(buf1_copy{k}, (4, 2), (2, 1), 'torch.ops.aten.topk.default')",
            f"buf2_copy{k} = buf0_copy{k}[1]",
        ]


def test_what_may_not_run_twice() -> None:
    def pure(text: str) -> list[bool]:
        return [s.pure for s in program_of(text).program.statements]

    assert pure(LATE) == [True] * 6
    writes_argument = """
k_inplace(arg0_1, saved)
buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_read(arg0_1, buf0)
return (buf0, )
"""
    assert pure(writes_argument) == [False, True]
    constants = """
buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_read(constant3, buf0)
%s
buf1 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_two(buf0, arg0_1, buf1)
return (buf1, )
"""
    assert pure(constants % "") == [True, True]
    assert pure(constants % "torch.ops.lab.change.default(arg0_1)") == [False, False, True], (
        "an unknown operator may change what the module holds"
    )
    number = """
buf0 = torch.ops.aten.nonzero.default(arg0_1)
u0 = buf0.size(0)
buf1 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_read(buf0, buf1)
return (buf1, )
"""
    wrapper = parse_wrapper(wrapper_of(number))
    profile = profile_from_text(wrapper)
    graph = build_graph(wrapper, profile, effects=lambda _: Effects({}))
    assert [s.pure for s in graph.program.statements] == [False, True], "it binds a number"


KERNEL = """
#pragma omp parallel
extern "C"  void  kernel(const int64_t* in_ptr0,
                       const float* in_ptr1,
                       float* out_ptr0)
{ %s }
"""


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (KERNEL % "out_ptr0[static_cast<int64_t>(x1 + 6L*x0)] = tmp4; float a = in_ptr1[static_cast<int64_t>(tmp3)];", ""),
        (KERNEL % "atomic_add(&out_ptr0[static_cast<int64_t>(tmp3)], tmp4);", "threads race"),
        (KERNEL % "atomic_add_vec<float, 2, 1>(out_ptr0, tmp10, tmp12);", "threads race"),
        (KERNEL % "out_ptr1[static_cast<int64_t>(x0 + 8L*tmp17[x0_inner])] = tmpbuf[x0_inner];", "threads race"),
        ((KERNEL % "atomic_add(&out_ptr0[0], tmp4);").replace("#pragma omp parallel", ""), ""),
        ((KERNEL % "").replace("out_ptr0", "Y"), "made from a template"),
        ("def triton_poi_0(in_ptr0, out_ptr0, xnumel):\n    tl.store(out_ptr0 + (x0), tmp4, xmask)", ""),
        ("def triton_poi_0(in_ptr0, out_ptr0, xnumel):\n    tl.store(out_ptr0 + (tmp2 + 4*x0), tmp4, xmask)", "threads race"),
        ("def triton_poi_0(in_ptr0, out_ptr0, xnumel):\n    tl.atomic_add(out_ptr0 + (x0), tmp4)", "threads race"),
        ("def triton_tem_0(arg_A, arg_B, out_ptr0):\n    acc += tl.dot(a, b)", "made from a template"),
    ],
)
def test_kernels_that_run_once(code: str, why: str) -> None:
    assert runs_once(code) == why


def test_kernels_and_operators_whose_threads_race_do_not_run_twice() -> None:
    text = wrapper_of(
        """
buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_read(arg0_1, buf0)
aten.index_put_.default(buf0, [saved], arg0_1, True)
buf1 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_two(buf0, arg0_1, buf1)
return (buf1, )
"""
    ).replace("{ }\n", "#pragma omp parallel\n{ atomic_add(&out_ptr0[x0], tmp0); }\n", 1)
    wrapper = parse_wrapper(text)
    assert wrapper.once == {"k_read": "threads race"}
    profile = profile_from_text(wrapper)
    known = Effects({"0": "rw"})

    def pure(threads: int) -> list[bool]:
        return [s.pure for s in build_graph(wrapper, replace(profile, threads=threads), effects=lambda _: known).program.statements]

    assert pure(2) == [False, False, True]
    assert pure(1) == [False, True, True], "an operator runs on the threads there are, a kernel on those it was made for"


def test_effects_that_no_schema_tells(torch: Any) -> None:
    from peakmem_inductor.effects import operator_effects

    assert operator_effects("torch.ops.quantized.dropout.default").random
    assert operator_effects("torch.ops.aten.native_batch_norm.default").accesses["3"] == "rw"
    assert operator_effects("torch.ops.aten.native_batch_norm_backward.default").accesses == {}


def test_a_copy_waits_for_the_number_it_needs() -> None:
    """``u0`` ties the copy to the statement that binds it, although both only read the same argument."""
    wrapper = parse_wrapper(
        wrapper_of(
            """
buf0 = torch.ops.aten.nonzero.default(arg0_1)
u0 = buf0.size(0)
del buf0
buf1 = empty_strided_cpu((u0, 4), (4, 1), torch.float32)
k_read(arg0_1, buf1)
buf2 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_read(buf1, buf2)
buf3 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_two(buf2, buf1, buf3)
return (buf3, )
"""
        )
    )
    profile = profile_from_text(wrapper)
    sizes = {
        "buf0": Layout(64, (4, 2), (1, 4), 0, "torch.int64", "buf0"),
        "buf1": Layout(64, (4, 4), (4, 1), 0, "torch.float32", "buf1"),
    }
    profile = replace(profile, names={**profile.names, **sizes}, symbols={"u0": 4})
    graph = build_graph(wrapper, profile, effects=lambda _: Effects({}))
    expansion = rerun(graph, 3, graph.program.statements[1].name)
    (copy,) = (v for v, s in enumerate(expansion.program.statements) if s.name.endswith("#2"))
    assert 0 in expansion.program.predecessors[copy]
    with pytest.raises(PeakmemError, match="depends"):
        emit(graph, (copy, *(v for v in range(len(expansion.program)) if v != copy)), expansion)


def test_a_statement_that_may_not_run_twice_is_refused() -> None:
    graph = program_of(LATE)
    expansion = rerun(graph, 4, graph.program.statements[1].name)
    statements = list(graph.program.statements)
    statements[0] = replace(statements[0], pure=False)
    stricter = replace(graph, program=replace(graph.program, statements=tuple(statements)))
    with pytest.raises(Refused, match="may not run twice"):
        emit(stricter, range(len(expansion.program)), expansion)


@pytest.mark.parametrize(
    ("text", "names", "want"),
    [
        ("k(a, b)", {"a": "c"}, "k(c, b)"),
        ("k(a, b, out=a)  # a stays", {"a": "longer", "out": "no"}, "k(longer, b, out=longer)  # a stays"),
        ("a = x.a(a, 'a', ab)", {"a": "b"}, "b = x.a(b, 'a', ab)"),
        ("\uff41 = k(a)", {"a": "b"}, "b = k(b)"),  # Python takes a wide letter for the plain one
        ("\uff41 = k()", {"a": "b"}, "b = k()"),
        ("k(f'é{a!r:>{b}}', [a for a in b])", {"a": "c", "b": "d"}, "k(f'é{c!r:>{d}}', [c for c in d])"),
        ("é = k(a)\nb = é", {"a": "c", "b": "d"}, "é = k(c)\nd = é"),
        ("if not (u0 >= a):\n    raise RuntimeError('a')", {"a": "b"}, "if not (u0 >= b):\n    raise RuntimeError('a')"),
    ],
)
def test_renaming_touches_variables_only(text: str, names: dict[str, str], want: str) -> None:
    assert rename(text, names) == want
    assert ast.dump(ast.parse(rename(want, {v: k for k, v in names.items()}))) == ast.dump(ast.parse(text))


# -- with torch ----------------------------------------------------------------------------------------------


def small_unet(torch: Any) -> Any:
    """A skip connection that waits while the wide middle runs."""
    nn, F = torch.nn, torch.nn.functional

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(3, 16, 1)
            self.down = nn.Conv2d(16, 16, 3, 2, 1)
            self.wide = nn.Conv2d(16, 96, 3, padding=1)
            self.narrow = nn.Conv2d(96, 4, 3, padding=1)
            self.up = nn.ConvTranspose2d(4, 16, 2, 2)

        def forward(self, x: Any) -> Any:
            skip = F.relu(self.first(x))
            middle = self.narrow(F.relu(self.wide(F.relu(self.down(skip)))))
            return self.up(middle) + skip

    return Net()


def test_the_flop_counter_agrees(torch: Any, tmp_path: Path) -> None:
    """Our MACs, from the dumped text, against torch's flop counter over the eager run.

    Its formula for the weight gradient of a grouped convolution leaves the groups out, so that has a hand count, and it
    has a formula for attention but does not count it on the CPU.
    """
    from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

    nn, F = torch.nn, torch.nn.functional

    class Attention(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(24, 72)

        def forward(self, x: Any) -> Any:
            q, k, v = self.project(x).view(2, 10, 3, 3, 8).permute(2, 0, 3, 1, 4)
            return torch.baddbmm(x, F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 10, 24), x.transpose(1, 2) @ x)

    nets = {
        "convolutions": (
            nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.ConvTranspose2d(6, 8, 2, 2), nn.Conv2d(8, 5, 1, 2)),
            torch.randn(2, 4, 9, 9),
        ),
        "attention": (Attention(), torch.randn(2, 10, 24)),
    }
    shape = (2, 3, 10, 8)
    uncounted = [sdpa_flop_count(shape, shape, shape), sdpa_backward_flop_count(shape, shape, shape, shape)]
    for name, (net, x) in nets.items():
        counted = []
        for graph in ("forward", "both"):
            with FlopCounterMode(display=False) as counter:
                out = net(x)
                if graph == "both":
                    out.sum().backward()
            assert not any("scaled_dot_product" in str(k) for k in counter.get_flop_counts()["Global"])
            flops = counter.get_total_flops()
            if name == "attention":
                flops += sum(uncounted[: 1 if graph == "forward" else 2])
            counted.append(flops // 2)
        torch._dynamo.reset()
        with peakmem_inductor.dump(tmp_path / name) as written:
            torch.compile(net, backend="peakmem")(x).sum().backward()
        ours = {p.stem.split("_")[1]: peakmem.load(p).program for p in written()}
        totals = {k: sum(s.cost for s in p.statements) for k, p in ours.items()}
        assert [totals["forward"], totals["forward"] + totals["backward"]] == counted, name


def test_grouped_convolutions(torch: Any, tmp_path: Path) -> None:
    net, x = torch.nn.Conv2d(4, 6, 3, groups=2), torch.randn(2, 4, 9, 9, requires_grad=True)
    with peakmem_inductor.dump(tmp_path) as written:
        torch.compile(net, backend="peakmem")(x).sum().backward()
    once = 2 * 6 * 7 * 7 * (4 // 2) * 9
    ours = {p.stem.split("_")[1]: sum(s.cost for s in peakmem.load(p).program.statements) for p in written()}
    assert ours == {"forward": once, "backward": 2 * once}


def test_packed_weights_are_counted_too(torch: Any, tmp_path: Path) -> None:
    from torch._inductor import config

    nn = torch.nn
    net = nn.Sequential(nn.Conv2d(4, 6, 3), nn.ReLU(), nn.ConvTranspose2d(6, 8, 2, 2), nn.Flatten(), nn.Linear(8 * 14 * 14, 10))
    with config.patch(freezing=True), torch.no_grad(), peakmem_inductor.dump(tmp_path) as written:
        torch.compile(net.eval(), backend="peakmem")(torch.randn(1, 4, 9, 9))
    (path,) = written()
    assert "_frozen_param" in path.read_text()
    program = peakmem.load(path).program
    assert sum(s.cost for s in program.statements) == 6 * 7 * 7 * 4 * 9 + 6 * 7 * 7 * 8 * 4 + 8 * 14 * 14 * 10


def test_a_price_that_cannot_be_told_keeps_a_statement_from_running_twice() -> None:
    text = """
buf0 = torch.ops.mkldnn._convolution_pointwise.default(arg0_1, _frozen_param6, saved, [0, 0], [1, 1], [1, 1], 1, 'relu', [None], '')
buf1 = torch.ops.aten._grouped_mm.default(arg0_1, saved)
return (buf0, buf1, )
"""
    wrapper = parse_wrapper(wrapper_of(text))
    profile = profile_from_text(wrapper)
    assert [macs(f, profile) for f in wrapper.forms] == [None, None]
    program = build_graph(wrapper, profile, effects=lambda _: Effects({})).program
    assert [s.pure for s in program.statements] == [False, False]


@pytest.mark.parametrize(
    ("operator", "cost"),
    [
        ("onednn.qlinear_pointwise.default", None),
        ("quantized.conv2d_relu.new", None),
        ("aten._weight_int8pack_mm.default", None),
        ("aten._linalg_solve_ex.default", None),
        ("aten.mkldnn_rnn_layer.default", None),
        ("aten.upsample_linear1d.default", 0),
        ("aten.gelu.default", 0),
        ("prims.convert_element_type.default", 0),
    ],
)
def test_what_multiplies_much_without_a_formula(operator: str, cost: int | None) -> None:
    wrapper = parse_wrapper(wrapper_of(f"buf0 = torch.ops.{operator}(arg0_1, saved)\nreturn (buf0, )"))
    assert macs(wrapper.forms[0], profile_from_text(wrapper)) == cost


def test_a_dumped_wrapper_recomputes_saves_and_loads(torch: Any, tmp_path: Path) -> None:
    net, x = small_unet(torch), torch.randn(1, 3, 32, 32)
    with torch.no_grad(), peakmem_inductor.dump(tmp_path) as written:
        torch.compile(net, backend="peakmem")(x)
    (path,) = written()
    model = peakmem.load(path)
    result = recompute(model, max_extra_macs="10%")
    assert result.point is not None
    assert result.point.plan.reruns
    assert 0 < result.point.extra_macs <= 0.1 * result.macs
    assert result.point.peak < result.ordering.peak
    check = result.verification
    assert check is not None, result.unmeasured
    assert check.as_predicted, check.failures
    assert check.bitwise_identical
    assert check.optimized_bytes is not None
    assert result.reordering is not None
    assert check.optimized_bytes == result.reordering.peak - model.program.entry_bytes
    assert result.model is not None
    out = tmp_path / "again.py"
    result.model.save(out)  # type: ignore[attr-defined]
    again = peakmem.load(out)
    assert again.predicted_bytes == check.optimized_bytes
    assert "_copy1" in out.read_text()
    third = recompute(again, max_extra_macs="10%", measure=False)
    assert third.ordering.peak - again.program.entry_bytes <= again.predicted_bytes


def test_compiling_with_a_budget(torch: Any) -> None:
    net, x = small_unet(torch), torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        want = torch.compile(net, backend="inductor")(x)
        torch._dynamo.reset()
        torch.compile(net, backend="peakmem")(x)
        ordered = peakmem_inductor.report()[-1]
        peakmem_inductor.reset()
        torch._dynamo.reset()
        compiled = torch.compile(net, backend="peakmem", options={"max_extra_macs": "10%", "cap": 2})
        assert torch.equal(compiled(x), want)
        assert torch.equal(compiled(x), want)
    (row,) = peakmem_inductor.report()
    assert row.state == "recomputed"
    assert row.measured == row.after
    assert row.identical
    assert ordered.after is not None
    assert row.after is not None
    assert row.after < ordered.after
    assert row.certified is False
    assert 0 < row.extra_macs <= 0.1 * row.macs
    assert "once more" in str(peakmem_inductor.report())
    with torch.no_grad():
        torch._dynamo.reset()
        torch.compile(net, backend="peakmem", options={"max_extra_macs": 0})(x)
    assert peakmem_inductor.report()[-1].extra_macs == 0


@pytest.mark.parametrize(
    "options", [{"max_extra_macs": "lots"}, {"max_extra_macs": "101%"}, {"max_extra_macs": -1}, {"cap": 0}, {"cap": "2"}, {"max_extra_macs": 0.5}]
)
def test_bad_budgets_are_refused(options: dict[str, Any]) -> None:
    from peakmem_inductor.backend import split_options

    with pytest.raises(UsageError):
        split_options(options)


def test_a_misspelt_option_is_one_sentence(torch: Any) -> None:
    from peakmem_inductor.backend import peakmem as backend

    with pytest.raises(UsageError, match=r"neither peakmem .* has it; did you mean 'max_extra_macs'"):
        backend(None, [], options={"max_extra_mac": "1%"})
    with pytest.raises(UsageError, match=r"^max_extra_macs: '200%' is not between 0% and 100%$"):
        backend(None, [], options={"max_extra_macs": "200%"})


def test_an_unrealizable_order_is_refused(torch: Any) -> None:
    graph = program_of(LATE)
    expansion = rerun(graph, 4, graph.program.statements[1].name)
    with pytest.raises(PeakmemError):
        realize(graph, tuple(reversed(range(len(expansion.program)))), expansion)
    assert Schedule({"": tuple(range(len(expansion.program)))}, expansion=expansion).expansion is expansion
