"""What may act where no argument shows it never runs more often than the user's own program runs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import peakmem
import peakmem_inductor
import pytest
from peakmem.model import RuntimeFailed, UsageError
from peakmem_inductor import serving
from peakmem_inductor.costs import macs
from peakmem_inductor.effects import STATEFUL, TRUSTED, hidden_effects, operator_effects
from peakmem_inductor.statictext import profile_from_text
from peakmem_inductor.wrapper import parse_wrapper
from test_backend import branching
from texts import HEAD, wrapper_of


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_warned", set())


@pytest.fixture
def drawing(torch: Any) -> Iterator[Any]:
    """``lab::noise``, a custom operator that adds ``scale`` times a number drawn from numpy; ``runs`` counts."""
    import numpy as np

    state = SimpleNamespace(runs=0, scale=1.0)
    with torch.library._scoped_library("lab", "DEF") as lib:
        lib.define("noise(Tensor x) -> Tensor")

        def noise(x: Any) -> Any:
            state.runs += 1
            return x + state.scale * float(np.random.rand())

        lib.impl("noise", noise, "CompositeExplicitAutograd")
        torch.library.register_fake("lab::noise", torch.empty_like, lib=lib)
        torch.library.register_autograd("lab::noise", lambda _, grad: torch.ops.lab.noise(grad), lib=lib)
        yield state


def losses(torch: Any, net: Any, compiled: Any, x: Any) -> list[Any]:
    import numpy as np

    np.random.seed(3)
    seen = []
    for _ in range(3):
        net.zero_grad()
        compiled(x).sum().backward()
        seen += [p.grad.clone() for p in net.parameters()]
    return seen


def test_a_custom_operator_runs_as_often_as_under_inductor(torch: Any, drawing: Any) -> None:
    net, x = branching(torch, 32), torch.randn(2, 3, 64, 64)

    def f(x: Any) -> Any:
        return torch.ops.lab.noise(net(x))

    plain = losses(torch, net, torch.compile(f, backend="inductor"), x)
    drawing.runs = 0
    torch._dynamo.reset()
    with pytest.warns(peakmem_inductor.PeakmemWarning, match=r"without a check.*lab\.noise.*'pure'"):
        got = losses(torch, net, torch.compile(f, backend="peakmem", options={"candidates": ["noreuse"]}), x)
    assert drawing.runs == 6, "three steps, forward and backward"
    assert all(torch.equal(a, b) for a, b in zip(got, plain, strict=True))
    backward = peakmem_inductor.report()[1]
    assert (backward.state, backward.identical, backward.candidate) == ("permuted", None, "default")
    assert "lab.noise" in backward.unchecked
    assert "not checked" in str(peakmem_inductor.report())


def test_an_operator_declared_pure_is_checked(torch: Any, drawing: Any) -> None:
    net, x = branching(torch, 32), torch.randn(2, 3, 64, 64)
    drawing.scale = 0.0
    compiled = torch.compile(lambda x: torch.ops.lab.noise(net(x)), backend="peakmem", options={"pure": "lab::noise"})
    losses(torch, net, compiled, x)
    backward = peakmem_inductor.report()[1]
    assert (backward.state, backward.identical, backward.unchecked) == ("permuted", True, "")
    assert drawing.runs == 7, "once more, in the check"


def test_a_false_declaration_restores_the_original(torch: Any, drawing: Any) -> None:
    net, x = branching(torch, 32), torch.randn(2, 3, 64, 64)
    compiled = torch.compile(lambda x: torch.ops.lab.noise(net(x)), backend="peakmem", options={"pure": ["lab::noise"]})
    with pytest.warns(peakmem_inductor.PeakmemWarning, match="in two runs of the original program, so nothing can be compared; the"):
        losses(torch, net, compiled, x)
    assert peakmem_inductor.report()[1].state == "restored"


def test_pure_is_a_list_of_names(torch: Any) -> None:
    from peakmem_inductor.backend import split_options

    assert split_options({"pure": ["a::b", "c::d"]})[0].pure == {"a::b", "c::d"}
    for bad in ("lab.noise", ["lab::noise", "x"], [3], 3):
        with pytest.raises(UsageError, match="pure"):
            split_options({"pure": bad})


def test_a_print_stands_still_and_is_not_verified_from_a_dump(torch: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def f(x: Any) -> Any:
        torch.ops.aten._print("shown")
        return (x @ x).relu()

    compiled = torch.compile(f, backend="peakmem", options={"dump": tmp_path})
    with torch.no_grad():
        compiled(torch.ones(3, 3))
    assert capfd.readouterr().out.count("shown") == 1
    (path,) = tmp_path.glob("*.py")
    model = peakmem.load(path)
    assert ["barrier" in s.effects for s in model.program.statements if "_print" in s.op] == [True]
    with pytest.raises(RuntimeFailed, match=r"aten\._print.*nothing was run"):
        model.verify(model)
    assert "nothing was run" in peakmem.optimize(model).unmeasured


def test_trusted_namespaces_without_what_acts_unseen(torch: Any) -> None:
    """Of all operators of trusted namespaces none that returns and writes nothing is known, unless it only looks."""
    found = set()
    for schema in torch._C._jit_get_all_schemas():
        namespace, name = schema.name.split("::")
        if namespace not in TRUSTED:
            continue
        effects = operator_effects(f"torch.ops.{namespace}.{name}")
        writes = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
        if not schema.returns and not writes and effects.known:
            found.add(name)
        if any("Generator" in str(a.type) for a in schema.arguments):
            assert effects.random or not effects.known, schema
        assert not (STATEFUL.fullmatch(name) and effects.known)
    assert found
    assert all(n.startswith(("_assert_", "_validate_", "_linalg_check_errors", "sym_constrain_range")) for n in found), found
    assert not operator_effects("torch.ops.higher_order.with_effects").known
    assert not operator_effects("torch.ops._c10d_functional.all_reduce.default").known
    assert not operator_effects("print").known


def test_an_operator_of_torch_that_python_replaced_is_not_known(torch: Any) -> None:
    assert operator_effects("torch.ops.aten.cummax.default").known
    with torch.library._scoped_library("aten", "IMPL") as lib:
        lib.impl("cummax", lambda x, dim: (x, x), "CPU")
        assert not operator_effects("torch.ops.aten.cummax.default").known
        assert operator_effects("torch.ops.aten.cummin.default").known


BRANCH = """
def inner_graph_0(args):
    x, = args
    args.clear()
    y = {call}
    del x
    return (y, )

def true_graph_0(args):
    return inner_graph_0(args)

class Runner:"""


@pytest.mark.parametrize(
    ("call", "hidden"),
    [
        ("torch.ops.aten.relu.default(x)", ""),
        ("reinterpret_tensor(empty_strided_cpu((4, 4), (4, 1), torch.float32), (4, 4), (4, 1), 0)", ""),
        ("extern_kernels.bmm(x, x)", ""),
        ("torch.ops.lab.mystery.default(x)", "torch.ops.lab.mystery.default"),
        ("extern_kernels.mystery(x)", "extern_kernels.mystery"),
        ("print('x')", "print"),
        ("_torchbind_obj0.push(x)", "_torchbind_obj0.push"),
        ("getattr(x, 'y')()", "something without a name"),
    ],
)
def test_what_branches_call_counts(torch: Any, call: str, hidden: str) -> None:
    source = wrapper_of("cell = [arg0_1,]\nbuf0 = true_graph_0(cell)\ndel saved\nbuf1 = buf0[0]\nreturn (buf1, )")
    wrapper = parse_wrapper(source.replace("\nclass Runner:", BRANCH.format(call=call)))
    found = hidden_effects(wrapper, operator_effects)
    assert found in (hidden, "getattr") if "getattr" in call else found == hidden


@pytest.mark.parametrize(
    ("statement", "hidden"),
    [
        ("extern_kernels.mm(arg0_1, saved, out=buf0)", ""),
        ("extern_kernels.mine(arg0_1, saved, out=buf0)", "extern_kernels.mine"),
        ("k_read(arg0_1, counter)", "k_read, which writes counter of its module"),
        ("k_inplace(reinterpret_tensor(counter, (4, 4), (4, 1), 0), buf0)", "k_inplace, which writes counter of its module"),
        ("torch.ops.aten.add_.Tensor(counter, saved)", "torch.ops.aten.add_.Tensor, which writes counter of its module"),
        ("torch.ops.aten.add_.Tensor(buf0, counter)", ""),
    ],
)
def test_what_keeps_a_state_of_its_own_is_found(torch: Any, statement: str, hidden: str) -> None:
    assert "counter" not in HEAD
    body = f"buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)\n{statement}\nreturn (buf0, )"
    assert hidden_effects(parse_wrapper(wrapper_of(body)), operator_effects) == hidden


def test_the_price_of_a_custom_operator_is_not_known() -> None:
    """Even one that is declared pure is not run again to save memory: nobody knows what that costs."""
    wrapper = parse_wrapper(wrapper_of("buf0 = torch.ops.lab.cheap.default(arg0_1)\nbuf1 = torch.ops.aten.relu.default(saved)\nreturn (buf0, buf1)"))
    profile = profile_from_text(wrapper)
    assert [macs(f, profile) for f in wrapper.forms] == [None, 0]
