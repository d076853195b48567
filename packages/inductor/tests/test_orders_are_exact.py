"""Any topological order, not only the best one, has the modelled peak to the byte and the same bits; so has any
enlargement by statements that run again."""

from __future__ import annotations

from typing import Any

import pytest
from test_backend import branching


@pytest.mark.parametrize("threads", [1, 2])
def test_inference_and_training(torch: Any, check: Any, threads: int) -> None:
    """With one thread, whose kernels other tests compile as well; with two, in training alone."""
    torch.set_num_threads(threads)
    net, x = (branching(torch, 32), torch.randn(2, 3, 64, 64)) if threads == 1 else (branching(torch, 4), torch.randn(2, 3, 32, 32))
    compiled = torch.compile(net, backend=check.backend)
    compiled(x).sum().backward()
    if threads == 1:
        with torch.no_grad():
            compiled(x)
    check.assert_exact(graphs=3 if threads == 1 else 2)
    assert {"extern_kernels.convolution", "torch.ops.aten.convolution_backward.default"} <= check.copied
    assert any(op.startswith("cpp_fused") for op in check.copied)
    backward = check.rows[1]
    assert len({modelled for modelled, *_ in backward["orders"]}) > 1, "the orders do not differ: this proves nothing"


def test_inputs_are_mutated(torch: Any, check: Any) -> None:

    def f(x: Any, y: Any) -> Any:
        x.add_(1)
        y.mul_(2)
        z = x @ y
        x.add_(z.relu())
        return z, x.view(-1)[3:]

    x, y = torch.randn(8, 8), torch.randn(8, 8)
    a, b = x.clone(), y.clone()
    with torch.no_grad():
        got = torch.compile(f, backend=check.backend)(x, y)
        want = f(a, b)
    assert torch.equal(x, a)
    assert torch.equal(y, b)
    for g, w in zip(got, want):
        torch.testing.assert_close(g, w)
    check.assert_exact(graphs=1)


def test_random_operators_keep_their_order(torch: Any, check: Any) -> None:
    F = torch.nn.functional
    m = torch.nn.Linear(16, 16)

    def f(x: Any) -> Any:
        a = F.dropout(m(x), 0.5)
        b = torch.randn_like(x).sort()[0]
        return a @ b.t() + torch.bernoulli(torch.sigmoid(x @ x.t()))

    torch.compile(f, backend=check.backend)(torch.randn(8, 16)).sum().backward()
    check.assert_exact(graphs=2)


def test_dynamic_shapes(torch: Any, check: Any) -> None:

    def f(x: Any) -> Any:
        return torch.cat([torch.softmax(x @ x.t(), -1) @ x, x.sin() @ torch.ones(x.shape[1], x.shape[1])], 1)

    with torch.no_grad():
        torch.compile(f, backend=check.backend, dynamic=True)(torch.randn(9, 16))
    check.assert_exact(graphs=1)
    assert check.copied


def test_sizes_that_depend_on_data(torch: Any, check: Any) -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True, capture_scalar_outputs=True), torch.no_grad():
        got = torch.compile(lambda x: x.nonzero().float() * 2 + x.sum().item(), backend=check.backend)(
            torch.eye(5)
        )
    assert got.shape == (5, 2)
    check.assert_exact(graphs=1)
    assert check.rows[0]["graph"].data_dependent


def test_cond_and_while(torch: Any, check: Any) -> None:
    from torch._higher_order_ops.while_loop import while_loop


    def f(x: Any) -> Any:
        y = torch.cond(x.sum() > 0, lambda x: (x @ x).sin(), lambda x: (x + 1) @ x, (x,))
        z = while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x @ x), (torch.tensor(0), y / 10))
        return z[1] + x

    x = torch.randn(9, 9)
    with torch.no_grad():
        torch.compile(f, backend=check.backend)(x)
        torch.compile(f, backend=check.backend)(-x)
    check.assert_exact(graphs=None, baseline=False)
    assert any("barrier" in s.effects for s in check.rows[0]["graph"].program.statements)


def test_custom_operators_are_barriers(torch: Any, check: Any) -> None:
    with torch.library._scoped_library("peakmem_test", "DEF") as lib:
        lib.define("inc_(Tensor(a!) x) -> ()")
        lib.define("two(Tensor x) -> (Tensor, Tensor)")

        def increment(x: Any) -> None:
            x.add_(1)

        lib.impl("inc_", increment, "CompositeExplicitAutograd")
        lib.impl("two", lambda x: (x + 1, x * 2), "CompositeExplicitAutograd")
        torch.library.register_fake("peakmem_test::inc_", lambda x: None, lib=lib)
        torch.library.register_fake("peakmem_test::two", lambda x: (torch.empty_like(x), torch.empty_like(x)), lib=lib)
        ops = torch.ops.peakmem_test

        def f(x: Any) -> Any:
            y = x.sin()
            ops.inc_(y)
            a, _ = ops.two(y @ y)
            ops.inc_(x)
            return a.cos() @ y + x

        x = torch.randn(8, 8)
        with torch.no_grad():
            torch.compile(f, backend=check.backend)(x)
        check.assert_exact(graphs=1)
        custom = [s for s in check.rows[0]["graph"].program.statements if "peakmem_test" in s.op]
        assert len(custom) == 3
        assert all("barrier" in s.effects and not s.pure for s in custom)


def test_tuples_topk_and_attention(torch: Any, check: Any) -> None:
    F = torch.nn.functional
    q = torch.randn(2, 4, 16, 8, requires_grad=True)
    torch.compile(
        lambda q: torch.topk(F.scaled_dot_product_attention(q, q, q, is_causal=True), 2)[0].sort()[0],
        backend=check.backend,
    )(q).sum().backward()
    check.assert_exact(graphs=2)
    assert "torch.ops.aten.topk.default" in check.copied


def test_returned_views_and_untouched_outputs(torch: Any, check: Any) -> None:

    def f(x: Any) -> Any:
        y = x @ x
        return y[2:], y.t(), torch.zeros(3), x, (x + 1).view(-1)

    x = torch.randn(6, 6)
    with torch.no_grad():
        got = torch.compile(f, backend=check.backend)(x)
    for g, w in zip(got, f(x)):
        torch.testing.assert_close(g, w)
    check.assert_exact(graphs=1)
