"""Arguments of every kind: copied with all that makes them what they are, or refused with a sentence."""

from __future__ import annotations

from typing import Any

import peakmem_inductor
import pytest
from peakmem_inductor.arguments import copies, same_bits, special
from peakmem_inductor.emitting import realize

KINDS = {
    "plain": lambda t: t.randn(3, 4),
    "conjugate": lambda t: t.randn(3, 4, dtype=t.complex64).conj(),
    "negative": lambda t: t.randn(3, 4, dtype=t.complex64).conj().imag,
    "both": lambda t: t.complex(t.randn(4), t.randn(4)).conj()._neg_view(),
    "empty": lambda t: t.randn(0, 4),
    "scalar": lambda t: t.tensor(3.5),
    "expanded": lambda t: t.randn(1, 4).expand(3, 4),
    "overlapping": lambda t: t.randn(9).as_strided((3, 4), (2, 1), 1),
    "offset": lambda t: t.randn(40)[5:].view(5, 7)[1:, ::2],
    "channels last": lambda t: t.randn(2, 3, 4, 5).to(memory_format=t.channels_last),
    "leaf": lambda t: t.randn(3, requires_grad=True),
    "not a leaf": lambda t: t.randn(3, requires_grad=True) * 2,
    "odd bytes": lambda t: t.arange(11, dtype=t.uint8)[1:9].view(t.int8),
    "from numpy": lambda t: t.from_numpy(__import__("numpy").arange(6.0)),
    "inference": lambda t: _inference(t),
}


def _inference(t: Any) -> Any:
    with t.inference_mode():
        return t.randn(3, 4)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_is_the_same_in_every_respect(torch: Any, kind: str) -> None:
    value = KINDS[kind](torch)
    assert special(value) == ""
    with torch.device("meta"):  # a default device of the user's is not ours
        (copy,) = copies([value], [False])
        assert same_bits(value, copy)
    assert (copy.is_conj(), copy.is_neg(), copy.stride(), copy.storage_offset()) == (
        value.is_conj(), value.is_neg(), value.stride(), value.storage_offset()
    )  # fmt: skip
    assert copy.untyped_storage().nbytes() == value.untyped_storage().nbytes()
    if value.numel():
        assert copy.data_ptr() != value.data_ptr()
        with torch.no_grad():
            copy.view(-1)[:1].add_(1) if copy.is_contiguous() else copy.as_strided((1,), (1,)).add_(1)
        assert not same_bits(value, copy)


def test_bits_behind_a_conjugate_are_compared_with_it(torch: Any) -> None:
    x = torch.randn(4, dtype=torch.complex64)
    assert same_bits(x.conj(), x.clone().conj())
    assert not same_bits(x.conj(), x.conj().resolve_conj()), "the same numbers, another tensor"
    assert not same_bits(x.conj(), x)


def test_arguments_of_one_storage_share_its_copy(torch: Any) -> None:
    base = torch.randn(4, 4)
    a, b, c = copies([base, base.t()[1:], torch.zeros(2)], [False] * 3)
    a.zero_()
    assert not b.any()
    assert b.shape == (3, 4)
    assert c.untyped_storage()._cdata != a.untyped_storage()._cdata
    assert base.all()


def test_only_what_is_asked_for_is_copied_and_what_shares_its_storage(torch: Any) -> None:
    weight, x = torch.nn.Parameter(torch.randn(4, 4)), torch.randn(4)
    a, b, c = copies([weight, weight.detach().t(), x], [True, False, True])
    assert a.untyped_storage()._cdata == b.untyped_storage()._cdata != weight.untyped_storage()._cdata
    assert c is x


def test_the_check_copies_what_a_run_writes_or_frees(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first copy of the arguments serves for the rest: a large input exists twice, not three times."""
    from peakmem_inductor import arguments, dispatch

    taken: list[list[bool]] = []

    def counted(args: Any, keep: Any) -> Any:
        result = copies(args, keep)
        taken.append([isinstance(a, torch.Tensor) and a is not b for a, b in zip(args, result, strict=True)])
        return result

    right = dispatch.order_candidate

    def better(*args: Any) -> Any:
        """As if the order were better than the text by a byte, so that it is checked."""
        from dataclasses import replace

        found = right(*args)
        return replace(found, after=found.after - 1)

    monkeypatch.setattr(arguments, "copies", counted)
    monkeypatch.setattr(dispatch, "order_candidate", better)

    def f(x: Any, y: Any) -> Any:
        y.add_(1)
        return (x @ y).relu()

    with torch.no_grad(), pytest.warns(peakmem_inductor.PeakmemWarning, match="modelled were"):
        torch.compile(f, backend="peakmem")(torch.randn(4, 4), torch.randn(4, 4))
    assert sorted(map(sorted, taken[:2])) == [[False, True], [True, True]]


def test_what_cannot_be_copied_is_named(torch: Any) -> None:
    class Mine(torch.Tensor):  # type: ignore[misc]
        pass

    assert special(torch.randn(2).as_subclass(Mine)) == "a Mine"
    assert special(torch.eye(3).to_sparse()) == "of layout sparse_coo"
    assert special(torch.eye(3).to_mkldnn()) == "of layout _mkldnn"
    assert special(torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)) == "quantized"
    assert special(torch._efficientzerotensor((2, 3))) == "a zero without storage"
    assert special(torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])) == "nested"
    assert special(torch.empty(2, device="meta")) == "on meta"
    assert special(torch.nn.Parameter(torch.ones(2))) == special(3) == special(None) == ""


def test_a_subclass_is_left_alone_and_the_report_says_so(torch: Any) -> None:
    class Mine(torch.Tensor):  # type: ignore[misc]
        pass

    from peakmem_inductor import serving

    serving._warned.clear()
    x = torch.ones(3, 3).as_subclass(Mine)
    compiled = torch.compile(lambda x: (x + 1).relu(), backend="peakmem")
    with torch.no_grad(), pytest.warns(peakmem_inductor.PeakmemWarning, match="argument 0 is a Mine"):
        got = compiled(x)
    assert torch.equal(got, torch.full((3, 3), 2.0))
    (row,) = peakmem_inductor.report()
    assert row.state == "left alone"
    assert "a Mine" in row.reason


def fourier(torch: Any) -> Any:
    """Two layers of a Fourier neural operator; its backward gets conjugated tensors."""
    nn = torch.nn

    class Fourier(nn.Module):  # type: ignore[misc]
        def __init__(self, width: int = 8, modes: int = 4) -> None:
            super().__init__()
            self.modes = modes
            self.weights = nn.ParameterList(nn.Parameter(0.1 * torch.randn(width, width, modes, modes, dtype=torch.cfloat)) for _ in range(2))
            self.mixers = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(2))
            self.first, self.last = nn.Conv2d(2, width, 1), nn.Conv2d(width, 1, 1)

        def forward(self, x: Any) -> Any:
            x, m = self.first(x), self.modes
            for weight, mix in zip(self.weights, self.mixers):
                waves = torch.fft.rfft2(x)
                low = torch.zeros_like(waves)
                low[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", waves[:, :, :m, :m], weight)
                x = torch.nn.functional.gelu(torch.fft.irfft2(low, s=x.shape[-2:]) + mix(x))
            return self.last(x)

    return Fourier()


@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
def test_a_complex_backward_is_permuted(torch: Any) -> None:
    net, x = fourier(torch), torch.randn(2, 2, 16, 16)

    def gradients(compiled: Any) -> list[Any]:
        net.zero_grad()
        compiled(x).sum().backward()
        return [p.grad.clone() for p in net.parameters()]

    plain = gradients(torch.compile(net, backend="inductor"))
    torch._dynamo.reset()
    compiled = torch.compile(net, backend="peakmem")
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(gradients(compiled), plain, strict=True))
    backward = peakmem_inductor.report()[-1]
    assert backward.state == "permuted", backward.reason
    assert backward.identical
    assert backward.measured == backward.after < backward.before


@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
def test_another_dtype_over_a_buffer_that_took_over_another(torch: Any, check: Any) -> None:
    def f(x: Any, y: Any) -> Any:
        a = ((x @ x).relu() @ x).sin()  # in place: its buffer takes over the product's
        return a.view(torch.complex64) @ y

    compiled = torch.compile(f, backend="peakmem")
    x, y = torch.randn(8, 8), torch.randn(4, 2, dtype=torch.complex64)
    with torch.no_grad():
        compiled(x, y)
        (row,) = peakmem_inductor.report()
        assert row.state in ("kept", "permuted"), row.reason
        torch._dynamo.reset()
        torch.compile(f, backend=check.backend)(x, y)
    check.assert_exact(graphs=1)


def test_a_view_of_a_dead_reuse_follows_it(torch: Any) -> None:
    """``buf2`` only overwrites what it took over, so it becomes a buffer of its own, and the view is of that one."""
    from dataclasses import replace

    from peakmem_inductor.building import build_graph
    from peakmem_inductor.effects import Effects
    from peakmem_inductor.statictext import profile_from_text
    from peakmem_inductor.wrapper import parse_wrapper
    from texts import wrapper_of

    wrapper = parse_wrapper(wrapper_of("""
buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_read(arg0_1, buf0)
buf1 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_read(buf0, buf1)
buf2 = buf0; del buf0  # reuse
extern_kernels.mm(buf1, saved, out=buf2)
buf3 = torch.ops.aten.view.dtype(buf2, torch.int32)
buf4 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_two(buf1, buf3, buf4)
del buf1
del buf2
del buf3
return (buf4, )
"""))
    profile = profile_from_text(wrapper)
    layout = replace(profile.names["buf0"], storage="buf0")
    profile = replace(
        profile,
        names={**profile.names, "buf2": layout, "buf3": replace(layout, dtype="torch.int32")},
        operators={"torch.ops.aten.view.dtype": Effects({}, aliases=("0",))},
    )
    graph = build_graph(wrapper, profile)
    assert graph.buffer_of["buf3"] == graph.buffer_of["buf2"] != graph.buffer_of["buf0"]
    realize(graph, tuple(range(len(graph.program))))  # raises if the text does not have the modelled peak
