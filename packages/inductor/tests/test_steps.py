"""A training step as a whole: what is modelled is what the counting allocator sees."""

from __future__ import annotations

import json
from typing import Any

import peakmem_inductor
import pytest
from peakmem.model import Buffer, Program, Statement
from peakmem_inductor.steps import LOSS, Phase, model_step
from test_backend import branching


def with_loss(torch: Any, net: Any) -> Any:
    return torch.compile(lambda x: net(x).square().mean(), backend="peakmem")


def test_modelled_is_measured(torch: Any) -> None:
    net, x = branching(torch, 32), torch.randn(2, 3, 64, 64)
    compiled = with_loss(torch, net)
    for _ in range(3):
        net.zero_grad()
        with peakmem_inductor.step() as measured:
            compiled(x).backward()
    (step,) = peakmem_inductor.report().steps
    assert (step.phase, measured.where) == ("backward", "backward")
    assert step.peak == measured.peak == sum(step.live.values())
    assert step.phases["forward"] == measured.phases["forward"]
    assert step.bound == step.peak < step.before
    assert step.live["oneDNN's workspace"] > 0
    assert step.resident["parameters"] == sum(p.untyped_storage().nbytes() for p in net.parameters())
    assert step.resident["other arguments"] == x.untyped_storage().nbytes()
    text = str(peakmem_inductor.report())
    assert f"{step.peak:,} bytes above its start (modelled), in the backward" in text
    json.dumps(step.to_json())
    assert "measured: " in str(measured)
    peakmem_inductor.reset()
    assert peakmem_inductor.report().steps == []


def test_the_optimizer_is_a_phase_and_its_state_is_named(torch: Any) -> None:
    net = torch.nn.Linear(64, 64, bias=False)
    compiled = with_loss(torch, net)
    optimizer = torch.optim.Adam(net.parameters())
    size = 64 * 64 * 4
    x = torch.randn(2, 64)
    for _ in range(3):
        with peakmem_inductor.step() as measured:
            optimizer.zero_grad()
            compiled(x).backward()
            optimizer.step()
    assert list(measured.phases) == ["outside of the graphs", "forward", "backward", "optimizer"]
    assert measured.phases["optimizer"] >= measured.left + size, "a temporary of the size of the tensor"
    assert abs(measured.left) < size, "old gradients went and new ones came"
    (step,) = peakmem_inductor.report().steps
    assert 2 * size <= step.resident["optimizer state"] < 2 * size + 100
    assert "Adam steps in place" in step.optimizer
    assert "fused=True" in str(step)


@pytest.mark.parametrize(("options", "word"), [({"fused": True}, "is fused"), ({"foreach": True}, "foreach=False"), ({}, "one tensor at a time")])
def test_how_an_optimizer_steps(torch: Any, options: dict[str, bool], word: str) -> None:
    net = torch.nn.Linear(8, 8)
    compiled = with_loss(torch, net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, **options)
    compiled(torch.randn(2, 8)).backward()
    optimizer.step()
    (step,) = peakmem_inductor.report().steps
    assert word in step.optimizer
    assert "optimizer state" not in step.resident


def test_one_step_at_a_time(torch: Any) -> None:
    from peakmem.model import RuntimeMissing

    with peakmem_inductor.step(), pytest.raises(RuntimeMissing, match="already being measured"), peakmem_inductor.step():
        pass
    with pytest.raises(ZeroDivisionError), peakmem_inductor.step():
        1 / 0  # noqa: B018
    with peakmem_inductor.step() as measured:
        kept = torch.empty(1000, dtype=torch.uint8)
        torch.empty(500, dtype=torch.uint8)
    assert (measured.peak, measured.left, kept.numel()) == (1500, 1000, 1000)


def backward_of(order: tuple[int, ...]) -> Any:
    """``b`` is read only by the last statement, ``a`` by the one of the peak, ``c`` by one that follows it in any order."""
    buffers = (
        Buffer("a", 100, "input", False), Buffer("b", 50, "input", False), Buffer("c", 20, "input", False), Buffer("w", 7, "input", True),
        Buffer("t", 300), Buffer("g", 30, "output"), Buffer("h", 10, "output"), Buffer("tangents_1", 5, "input", False),
    )  # fmt: skip
    statements = (
        Statement("big", "extern_kernels.mm", (0, 3, 7), (4,), (), 11),
        Statement("end", "k", (4, 2), (5,), (0,)),
        Statement("free", "k2", (1,), (6,)),
    )
    program = Program(buffers, statements)
    forward = Program((Buffer("r", 170, "output"),), (Statement("f", "k", (), (0,)),))
    phases = [
        Phase("forward", forward, (0,), 0, 170, 170, 170),
        Phase("backward", program, order, 175, 400, 311, 300, {"tangents_1": LOSS}),
    ]
    return model_step("7", phases, {"parameters": 7})


def test_what_is_saved_at_the_peak_and_what_could_go_earlier() -> None:
    step = backward_of((0, 1, 2))
    assert (step.peak, step.phase, step.statement, step.position, step.statements) == (486, "backward", "extern_kernels.mm", 1, 3)
    assert step.live == {"saved activations": 170, LOSS: 5, "temporaries": 300, "workspace of extern_kernels.mm": 11}
    assert [(t.name, t.last_use, t.forced) for t in step.saved] == [
        ("a", "extern_kernels.mm", True), ("b", "k2", False), ("c", "k", True)
    ]  # fmt: skip
    assert step.before == 575
    assert step.bound == 475
    text = str(step)
    assert "saved b: 50, last read by k2; an order could free it before the peak" in text
    assert [t.name for t in backward_of((2, 0, 1)).saved] == ["a", "c"]
