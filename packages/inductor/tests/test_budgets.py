"""``target_peak`` and ``memory``: what the forward saves is chosen from texts alone, and the step needs what was modelled."""

from __future__ import annotations

import dataclasses
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
    """Each set is a compilation: two of torch's, and none of our own but where it is said."""
    monkeypatch.setattr(budgets, "BUDGETS", FEW)
    monkeypatch.setattr(budgets, "OWN", 0)


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
        from torch._inductor import config as inductor

        patch.setattr(budgets, "BUDGETS", FEW)
        patch.setattr(budgets, "OWN", 1)
        patch.setattr(budgets, "EVALUATIONS", 10_000)
        net = branches(torch)
        before = config.activation_memory_budget, inductor.custom_partitioner_fn
        seen, peaks = steps(torch, net, "peakmem", {"memory": "least"})
        assert (config.activation_memory_budget, inductor.custom_partitioner_fn) == before
        return SimpleNamespace(net=net, seen=seen, peaks=peaks, report=peakmem_inductor.report())


def test_the_least_is_found_and_is_what_was_modelled(torch: Any, least: SimpleNamespace) -> None:
    net, got, peaks, report = least.net, least.seen, least.peaks, least.report
    (choice,) = report.choices
    taken = choice.chosen
    assert taken.after == min(b.after for b in choice.budgets) < choice.budgets[0].after
    assert (taken.extra_macs > 0) == (taken.macs > choice.budgets[0].macs)
    assert peaks[0] == peaks[1] == taken.before, "as Inductor would, while it is recorded and checked"
    assert peaks[2] == taken.after < 0.9 * taken.before
    assert taken.resident == sum(p.untyped_storage().nbytes() for p in net.parameters()) + 96 * 32 * 4
    assert report.steps[0].peak == taken.after
    assert f"{taken.name}: step" in str(report) and "<- taken" in str(report)
    assert [r.state for r in report][1] == "permuted"
    with taken.applied():
        want, inductor = steps(torch, net, "inductor", {})
    assert inductor == [taken.before] * 3
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_a_set_of_our_own_beats_every_budget(torch: Any, least: SimpleNamespace) -> None:
    """Some set between those of the two budgets needs less than both; the search on the joint graph leads there."""
    if not torch.__version__.startswith("2.13."):
        pytest.skip("what this net's budgets save, and so what beats them, was looked at with torch 2.13")
    (choice,) = least.report.choices
    own = choice.chosen
    torchs = [b for b in choice.budgets if b.budget is not None]
    assert own.budget is None and own.saved and set(choice.budgets) == {*torchs, own}
    assert choice.looked > 0 and choice.reason == "" and choice.refused == ()
    assert own.after < min(b.after for b in torchs)
    assert choice.generated == len(choice.budgets) == len(FEW) + 1
    assert own in choice.front and not any(own.less(b) and b in choice.front for b in torchs)
    first = str(choice).splitlines()[0]
    assert f"a set of {len(own.saved)} values that peakmem chose" in first
    assert f"for {100 * own.extra_macs / own.macs:.1f} % more MACs; 3 pairs of programs were generated" in first
    row = choice.to_json()["budgets"][-1]
    assert row["budget"] is None and row["saved"] == own.saved and row["front"]


def test_what_draws_random_numbers_is_never_drawn_again(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """At budget 0 torch draws the seeds of a dropout a second time, and the gradients are of another network."""
    monkeypatch.setattr(budgets, "BUDGETS", (1.0, 0.0))
    nn = torch.nn
    net = nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Dropout(), nn.Linear(256, 4))
    x = torch.randn(64, 32)

    def gradients(backend: str, **more: Any) -> list[Any]:
        torch._dynamo.reset()
        net.zero_grad()
        torch.manual_seed(3)
        torch.compile(lambda x: net(x).square().mean(), backend=backend, **more)(x).backward()
        return [p.grad.clone() for p in net.parameters()]

    got = gradients("peakmem", options={"memory": "least"})
    (choice,) = peakmem_inductor.report().choices
    assert [b.budget for b in choice.budgets] == [1.0]
    assert choice.generated == 1
    (refused,) = choice.refused
    assert refused.startswith("budget 0.0 is refused, it would compute again ") and "random" in refused
    assert refused in str(choice)
    assert all(torch.equal(a, b) for a, b in zip(got, gradients("inductor"), strict=True))


def test_the_joint_graph_bars_what_must_run_once(torch: Any) -> None:
    """Read from traced graphs: random operators, attention with dropout and without, operators of others, overwritten buffers."""
    from peakmem_inductor.partitions import Choosing, read_joint
    from torch._inductor import config
    from torch.nn.functional import scaled_dot_product_attention

    class Stop(Exception):
        pass

    @torch.library.custom_op("peakmem_tests::twice", mutates_args=(), schema="(Tensor x) -> Tensor")
    def twice(x: Any) -> Any:
        return 2 * x

    twice.register_fake(lambda x: torch.empty_like(x))
    twice.register_autograd(lambda ctx, d: 2 * d)

    def barred(function: Any, pure: frozenset[str] = frozenset()) -> dict[str, str]:
        found: dict[str, str] = {}

        def chooser(graph: Any, info: Any, results: int, torchs: Any) -> Any:
            joint = read_joint(graph, info, results, pure)
            found.update({v.name: v.barred for v in joint.values if v.barred})
            assert joint.estimate(joint.split(range(len(joint.values))).saved) is not None
            raise Stop

        torch._dynamo.reset()
        with config.patch(custom_partitioner_fn=Choosing(chooser)), pytest.raises(Exception, match="Stop"):
            torch.compile(function, backend="inductor")(torch.randn(1, 2, 8, 16, requires_grad=True))
        return found

    assert barred(lambda x: torch.relu(x).sum()) == {}
    assert barred(lambda x: scaled_dot_product_attention(x, x, x).sum()) == {}
    assert list(barred(lambda x: torch.dropout(x, 0.5, True).sum()).values()) == ["it draws random numbers"]
    assert list(barred(lambda x: twice(x).sin().sum()).values()) == ["what else it does is not known"]
    assert barred(lambda x: twice(x).sin().sum(), frozenset({"peakmem_tests::twice"})) == {}
    norm = torch.nn.BatchNorm2d(2)
    reasons = barred(lambda x: norm(x).sum())
    assert set(reasons.values()) == {"the step overwrites it", "it writes to its arguments"}


def test_a_target_takes_the_fewest_macs_and_no_more_than_it_must(torch: Any, least: SimpleNamespace) -> None:
    net = least.net
    (all_of_them,) = least.report.choices
    most, best = all_of_them.budgets[0], min((b for b in all_of_them.budgets if b.budget is not None), key=lambda b: b.after)
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


def test_of_those_that_fit_the_fewest_macs_are_taken() -> None:
    def row(budget: float | None, after: int, macs: int) -> budgets.Budget:
        return budgets.Budget(budget, 100, after, after, after, macs, macs - 10)

    one, half, own, worse = rows = row(1.0, 80, 10), row(0.5, 50, 20), row(None, 40, 15), row(0.2, 45, 30)
    assert budgets.pick(rows, None) == own
    assert budgets.pick(rows, 90) == one
    assert budgets.pick(rows, 60) == own
    assert budgets.pick(rows, 45) == own
    assert budgets.pick(rows, 30) == own, "nothing fits, so the least"
    assert budgets.pick((), 30) is None
    assert budgets.Choice(None, rows).front == (one, own)
    assert own.less(half) and not one.less(own) and not own.less(own)
    text = str(budgets.Choice(None, (one, half, dataclasses.replace(own, chosen=True)), "", 3, 7))
    assert text.splitlines()[0].endswith("a set of 0 values that peakmem chose, for 33.3 % more MACs; 3 pairs of programs were generated, 7 sets modelled on the joint graph")
    assert worse not in budgets.Choice(None, rows).front


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


def test_a_partitioner_of_the_users_is_left_alone(torch: Any) -> None:
    from peakmem_inductor.partitions import SavedValues
    from torch._inductor import config

    def nothing(*_: Any) -> Any:
        raise AssertionError("nothing is generated")

    with config.patch(custom_partitioner_fn=SavedValues(())):
        choice = budgets.choose(nothing, nothing, target=None, time_limit=1, pure=frozenset())
    assert choice.budgets == () and "a custom_partitioner_fn of yours" in choice.reason


def test_what_cannot_be_read_stays_at_budget_1(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not known then what another budget would compute again."""
    from peakmem_inductor import partitions

    def unreadable(*_: Any) -> Any:
        raise ValueError("it is odd")

    monkeypatch.setattr(partitions, "read_joint", unreadable)
    torch.compile(branches(torch, 1), backend="peakmem", options={"memory": "least"})(torch.randn(4, 32))
    (choice,) = peakmem_inductor.report().choices
    assert [b.budget for b in choice.budgets] == [1.0]
    assert choice.refused == ("other budgets are refused, the joint graph could not be read: it is odd",)


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
