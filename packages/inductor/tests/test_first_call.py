"""The first calls of a graph need no more memory than Inductor's, and give its bits; as people train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import peakmem_inductor
import pytest
from test_backend import branching, forked, gradients, same


def normed(torch: Any) -> Any:
    """Its forward writes the running statistics of its BatchNorm, which are arguments."""
    nn = torch.nn
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU())


def trajectory(torch: Any, make: Callable[[Any], Any], backend: str, one_step: Callable[..., Any], steps: int = 4) -> tuple[list[Any], list[int]]:
    """Parameters, buffers and gradients after each step from the same start, and the peak of each step."""
    torch._dynamo.reset()
    peakmem_inductor.reset()
    torch.manual_seed(3)
    net = make(torch)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6, momentum=0.9)
    compiled = torch.compile(net, backend=backend)
    seen, peaks = [], []
    for i in range(steps):
        torch.manual_seed(i)
        x = torch.randn(2, 3, 64, 64)
        with peakmem_inductor.step() as measured:
            one_step(torch, compiled, x)
        peaks.append(measured.peak)
        seen += [p.grad.clone() for p in net.parameters()]
        optimizer.step()
        optimizer.zero_grad()
        seen += [t.detach().clone() for t in net.state_dict().values()]
    return seen, peaks


def plain_step(torch: Any, compiled: Any, x: Any) -> None:
    compiled(x).sum().backward()


@pytest.mark.parametrize(("net", "state"), [(lambda t: branching(t, 32), "permuted"), (normed, "kept")])
def test_the_first_steps_need_no_more_than_inductors(torch: Any, net: Any, state: str) -> None:
    want, inductor = trajectory(torch, net, "inductor", plain_step)
    got, peakmem = trajectory(torch, net, "peakmem", plain_step)
    assert same(torch, got, want)
    rows = peakmem_inductor.report()
    assert [r.state for r in rows] == ["kept", state], str(rows)
    for i in range(4):
        assert peakmem[i] <= 1.01 * inductor[i]
    if state == "permuted":
        assert peakmem[2] == peakmem[3] < 0.9 * inductor[2]
        assert rows[1].measured == rows[1].after
        assert rows[1].identical


def test_a_small_net_has_nothing_of_ours_in_its_peak(torch: Any) -> None:
    """Not even the five thousand bytes of the generator's state."""
    nn = torch.nn
    x, peaks = torch.randn(2, 96), []
    net = nn.Sequential(*(nn.Sequential(nn.Linear(96, 96), nn.Dropout(0.3)) for _ in range(3)))
    for backend in ("inductor", "peakmem"):
        torch._dynamo.reset()
        compiled = torch.compile(net, backend=backend)
        for _ in range(3):
            net.zero_grad()
            with peakmem_inductor.step() as measured:
                compiled(x).sum().backward()
            peaks.append(measured.peak)
    assert max(peaks[3:]) <= 1.01 * max(peaks[:3])


def test_a_forward_that_writes_its_arguments_is_checked_at_the_next_call(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the momentum of statistics and the number of batches: any run too many would show."""
    from dataclasses import replace

    from peakmem_inductor import dispatch, serving

    right = dispatch.order_candidate
    monkeypatch.setattr(dispatch, "order_candidate", lambda *a: replace(f := right(*a), after=f.after - 1))
    serving._warned.clear()
    want, _ = trajectory(torch, normed, "inductor", plain_step)
    with pytest.warns(peakmem_inductor.PeakmemWarning, match="modelled were"):
        got, _ = trajectory(torch, normed, "peakmem", plain_step)
    assert same(torch, got, want)
    assert [(r.state, r.identical) for r in peakmem_inductor.report()] == [("restored", True)] * 2


def test_what_is_planned_says_so(torch: Any) -> None:
    compiled = torch.compile(branching(torch, 32), backend="peakmem")
    x = torch.randn(2, 3, 64, 64)
    compiled(x).sum().backward()
    backward = peakmem_inductor.report()[1]
    assert (backward.state, backward.measured, backward.identical) == ("planned", None, None)
    assert "planned: the next call checks it" in str(peakmem_inductor.report())
    assert backward.after < backward.before
    peakmem_inductor.reset()
    compiled(x).sum().backward()
    (checked,) = peakmem_inductor.report()
    assert (checked.state, checked.identical) == ("permuted", True)


def test_a_caller_that_holds_more_than_before_only_delays_the_check(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved tensors that are not freed say nothing of the bytes, and a later call checks."""
    from peakmem_inductor.dispatch import Dispatcher

    second, held = Dispatcher._second, []

    def holding(self: Any, key: Any, args: list[Any]) -> Any:
        held[:] = [] if held else args
        return second(self, key, args)

    monkeypatch.setattr(Dispatcher, "_second", holding)
    net, x = branching(torch, 32), torch.randn(2, 3, 64, 64)
    plain = gradients(torch, net, torch.compile(net, backend="inductor"), x)
    torch._dynamo.reset()
    compiled = torch.compile(net, backend="peakmem")
    states = []
    for _ in range(3):
        assert same(torch, gradients(torch, net, compiled, x), plain)
        states.append(peakmem_inductor.report()[1].state)
    assert states == ["planned", "planned", "permuted"]


def accumulated(torch: Any, compiled: Any, x: Any) -> None:
    for part in (x, x + 1, x - 1):
        compiled(part).sum().backward()


def under_autocast(torch: Any, compiled: Any, x: Any) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        out = compiled(x)
    out.float().sum().backward()


def checkpointed(torch: Any) -> Any:
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            nn = torch.nn
            self.net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU())
            self.after = nn.Conv2d(16, 4, 3)

        def forward(self, x: Any) -> Any:
            return self.after(checkpoint(self.net, x, use_reentrant=False))

    return Checkpointed()


@pytest.mark.parametrize(
    ("net", "one_step"),
    [(lambda t: branching(t, 32), accumulated), (forked, under_autocast), (checkpointed, plain_step)],
    ids=["accumulation", "autocast", "checkpoint"],
)
def test_ways_to_train(torch: Any, net: Any, one_step: Any) -> None:
    want, inductor = trajectory(torch, net, "inductor", one_step, steps=3)
    got, peakmem = trajectory(torch, net, "peakmem", one_step, steps=3)
    assert same(torch, got, want)
    rows = peakmem_inductor.report()
    assert all(r.state in ("kept", "permuted") for r in rows), str(rows)
    assert all(p <= 1.01 * q for p, q in zip(peakmem, inductor))
