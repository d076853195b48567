"""``target_peak`` and ``memory``: what the forward saves is chosen from texts alone, and the step needs what was modelled."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import peakmem_inductor
import pytest
from fresh import fresh_torch
from peakmem.model import UsageError
from peakmem_inductor import budgets, serving
from peakmem_inductor.backend import split_options

FEW = (1.0, 0.4)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each budget is a compilation: two of them."""
    monkeypatch.setattr(budgets, "BUDGETS", FEW)


def branches(torch: Any, count: int = 3) -> Any:
    """Wide branches, all first layers written first."""
    nn, F = torch.nn, torch.nn.functional

    class Branches(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.ModuleList(nn.Linear(32, 512) for _ in range(count))
            self.second = nn.ModuleList(nn.Linear(512, 32) for _ in range(count))

        def forward(self, x: Any) -> Any:
            wide = [F.gelu(layer(x)) for layer in self.first]
            return torch.stack([layer(w) for layer, w in zip(self.second, wide)]).mean(0).square().mean()

    return Branches()


def steps(torch: Any, net: Any, backend: str, options: dict[str, Any], count: int = 3) -> tuple[list[Any], list[int]]:
    torch._dynamo.reset()
    peakmem_inductor.reset()
    x = torch.randn(96, 32, generator=torch.Generator().manual_seed(1))
    compiled = torch.compile(net, backend=backend, options=options)
    peaks, seen = [], []
    for _ in range(count):
        net.zero_grad()
        with peakmem_inductor.step() as measured:
            loss = compiled(x)
            loss.backward()
        peaks.append(measured.peak)
        seen += [loss.detach().clone(), *(p.grad.clone() for p in net.parameters())]
    return seen, peaks


@pytest.fixture(scope="module")
def least() -> SimpleNamespace:
    """A search for the least and three steps after it, for all that ask what it found."""
    with fresh_torch() as torch, pytest.MonkeyPatch.context() as patch:
        from torch._functorch import config

        patch.setattr(budgets, "BUDGETS", FEW)
        net = branches(torch)
        before = config.activation_memory_budget
        seen, peaks = steps(torch, net, "peakmem", {"memory": "least"})
        assert config.activation_memory_budget == before
        return SimpleNamespace(net=net, seen=seen, peaks=peaks, report=peakmem_inductor.report())


def test_the_least_is_found_and_is_what_was_modelled(torch: Any, least: SimpleNamespace) -> None:
    from torch._functorch import config

    net, got, peaks, report = least.net, least.seen, least.peaks, least.report
    (choice,) = report.choices
    taken = choice.chosen
    assert taken.after == min(b.after for b in choice.budgets) < choice.budgets[0].after
    assert (taken.extra_macs > 0) == (taken.macs > choice.budgets[0].macs)
    assert peaks[0] == peaks[1] == taken.before, "as Inductor would, while it is recorded and checked"
    assert peaks[2] == taken.after < 0.9 * taken.before
    assert taken.resident == sum(p.untyped_storage().nbytes() for p in net.parameters()) + 96 * 32 * 4
    assert report.steps[0].peak == taken.after
    assert f"{taken.budget:.1f}: step" in str(report) and "<- taken" in str(report)
    assert [r.state for r in report][1] == "permuted"
    with config.patch(activation_memory_budget=taken.budget):
        want, inductor = steps(torch, net, "inductor", {})
    assert inductor == [taken.before] * 3
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_a_target_takes_the_fewest_macs_and_no_more_than_it_must(torch: Any, least: SimpleNamespace) -> None:
    net = least.net
    (all_of_them,) = least.report.choices
    most, best = all_of_them.budgets[0], all_of_them.chosen
    steps(torch, net, "peakmem", {"target_peak": most.resident + most.after}, 1)
    (choice,) = peakmem_inductor.report().choices
    assert (choice.chosen.budget, len(choice.budgets), choice.reason) == (1.0, 1, "")
    goal = f"{best.resident + best.after}"
    _, peaks = steps(torch, net, "peakmem", {"target_peak": goal})
    (choice,) = peakmem_inductor.report().choices
    assert choice.target == int(goal)
    assert choice.chosen.resident + peaks[2] <= choice.target
    serving._warned.clear()
    with pytest.warns(peakmem_inductor.PeakmemWarning, match="none needs so little; the least is"):
        steps(torch, net, "peakmem", {"target_peak": "1KiB"}, 1)
    (choice,) = peakmem_inductor.report().choices
    assert choice.chosen.after == best.after


def test_equal_partitions_are_generated_once(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "BUDGETS", (1.0, 1.0, 0.4))
    steps(torch, branches(torch), "peakmem", {"memory": "least"}, 1)
    (choice,) = peakmem_inductor.report().choices
    assert [b.budget for b in choice.budgets] == [1.0, 0.4]


def test_without_training_there_is_nothing_to_choose(torch: Any) -> None:
    with torch.no_grad():
        torch.compile(branches(torch, 1), backend="peakmem", options={"memory": "least"})(torch.randn(4, 32))
    (choice,) = peakmem_inductor.report().choices
    assert choice.chosen is None
    assert "not trained" in str(choice)


def test_sizes_that_change_keep_the_budget_of_the_user(torch: Any) -> None:
    net = branches(torch, 1)
    compiled = torch.compile(net, backend="peakmem", dynamic=True, options={"memory": "least"})
    serving._warned.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled(torch.randn(96, 32)).backward()
    assert any("sizes that change" in str(w.message) for w in caught)
    (choice,) = peakmem_inductor.report().choices
    assert choice.budgets == ()
    assert peakmem_inductor.report()[0].state == "kept"


def test_workspaces_are_probed(torch: Any) -> None:
    """Of a convolution, whose workspace the text does not tell."""
    nn = torch.nn
    net = nn.Sequential(nn.Conv2d(8, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 8, 3, padding=1))
    function = lambda x: net(x).square().mean()  # noqa: E731
    x = torch.randn(1, 8, 32, 32)
    compiled = torch.compile(function, backend="peakmem", options={"target_peak": "1GiB"})
    for _ in range(3):
        net.zero_grad()
        with peakmem_inductor.step() as measured:
            compiled(x).backward()
    (choice,) = peakmem_inductor.report().choices
    assert choice.chosen.after == measured.peak
    assert any(s.workspace for r in peakmem_inductor.report() for s in r.program.statements)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"target_peak": 1.5}, "target_peak: 1.5 is neither"), ({"target_peak": "much"}, "target_peak: 'much' is not a size"),
        ({"target_peak": True}, "neither"), ({"target_peak": -1}, "'-1' is not a size"), ({"memory": "most"}, "is not 'least'"),
        ({"memory": "least", "target_peak": 5}, "give one of them"),
    ],
)  # fmt: skip
def test_bad_values_are_named(options: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        split_options(options)
