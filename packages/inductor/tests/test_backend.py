"""``torch.compile(net, backend="peakmem")``: the same bits as Inductor, fewer bytes, and nothing breaks."""

from __future__ import annotations

import gc
import json
import os
import pickle
import threading
import warnings
from pathlib import Path
from typing import Any

import peakmem_inductor
import pytest


def branching(torch: Any, width: int = 8) -> Any:
    """A stem, dilated branches, a concatenation. With width 32 the untouched backward wrapper is far from least."""
    nn, F = torch.nn, torch.nn.functional

    class Branching(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 2 * width, 3, 2, 1)
            self.branches = nn.ModuleList(
                nn.ModuleList([nn.Conv2d(2 * width, 4 * width, 1), nn.Conv2d(4 * width, width, 3, padding=d, dilation=d)])
                for d in (1, 6, 12, 18)
            )
            self.out = nn.Conv2d(4 * width, width, 1)

        def forward(self, x: Any) -> Any:
            x = F.relu(self.stem(x))
            return self.out(torch.cat([F.relu(b(F.relu(a(x)))) for a, b in self.branches], 1))

    return Branching()


def forked(torch: Any) -> Any:
    """A stem, two branches, a concatenation: the least that has orders, and little to compile."""
    nn, F = torch.nn, torch.nn.functional

    class Forked(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3, 2, 1)
            self.branches = nn.ModuleList(nn.Conv2d(8, 16, 3, padding=d, dilation=d) for d in (1, 2))

        def forward(self, x: Any) -> Any:
            x = F.relu(self.stem(x))
            return torch.cat([F.relu(b(x)).sum(1, keepdim=True) * x for b in self.branches], 1)

    return Forked()


def gradients(torch: Any, net: Any, compiled: Any, x: Any) -> list[Any]:
    net.zero_grad()
    torch.manual_seed(5)
    out = compiled(x)
    out.sum().backward()
    return [out.detach().clone(), *(p.grad.clone() for p in net.parameters())]


def same(torch: Any, a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b))


def test_training_has_inductors_bits_and_a_lower_certified_peak(torch: Any) -> None:
    net, x = branching(torch, 32), torch.randn(2, 3, 64, 64)
    plain = gradients(torch, net, torch.compile(net, backend="inductor"), x)
    torch._dynamo.reset()
    compiled = torch.compile(net, backend="peakmem")
    for _ in range(3):
        assert same(torch, gradients(torch, net, compiled, x), plain)
    forward, backward = peakmem_inductor.report()
    assert (forward.name.split("_")[1], backward.name.split("_")[1]) == ("forward", "backward")
    assert backward.state == "permuted"
    assert backward.identical
    assert backward.measured == backward.after < backward.before
    assert backward.certified
    assert backward.after == backward.bound
    assert "certified optimal" in str(peakmem_inductor.report())
    from peakmem.proof import check

    check(backward.program, backward.certificate)
    assert backward.certificate["lower_bound"] - backward.program.entry_bytes == backward.bound
    json.dumps(peakmem_inductor.report().to_json())


def test_dropout_draws_the_same_numbers(torch: Any) -> None:
    nn = torch.nn
    net = nn.Sequential(nn.Linear(16, 32), nn.Dropout(0.4), nn.ReLU(), nn.Linear(32, 32), nn.Dropout(0.2), nn.Linear(32, 4))
    x = torch.randn(5, 16)

    def trajectory(compiled: Any) -> list[Any]:
        torch.manual_seed(7)
        found = []
        for _ in range(3):  # the first call records and verifies: it must not draw more than Inductor does
            found.append(compiled(x).detach().clone())
        return [*found, torch.rand(3)]

    plain = trajectory(torch.compile(net, backend="inductor"))
    torch._dynamo.reset()
    assert same(torch, trajectory(torch.compile(net, backend="peakmem")), plain)


def test_a_mutated_input_is_mutated_once(torch: Any) -> None:
    def f(x: Any, y: Any) -> Any:
        x.add_(1)
        return (x @ y).relu()

    compiled = torch.compile(f, backend="peakmem")
    x, y = torch.zeros(4, 4), torch.ones(4, 4)
    with torch.no_grad():
        for i in range(1, 4):
            compiled(x, y)
            assert torch.equal(x, torch.full((4, 4), float(i)))


def narrowed(torch: Any) -> Any:
    """Two wide products made narrow and added: orders, and one kernel to compile."""
    nn = torch.nn

    class Narrowed(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.wide = nn.ModuleList(nn.Linear(3, 64, bias=False) for _ in range(2))
            self.thin = nn.ModuleList(nn.Linear(64, 3, bias=False) for _ in range(2))

        def forward(self, x: Any) -> Any:
            wide = [layer(x) for layer in self.wide]
            first, second = (layer(value) for layer, value in zip(self.thin, wide))
            return first.relu() + second

    return Narrowed()


@pytest.mark.parametrize("mode", ["inference_mode", "autocast", "freezing", "graph breaks", "fullgraph"])
def test_modes(torch: Any, mode: str) -> None:
    net, x = narrowed(torch).eval(), torch.randn(16, 3)
    function, options, context = net, {}, torch.no_grad()
    if mode == "inference_mode":
        context = torch.inference_mode()
    elif mode == "autocast":
        context = torch.autocast("cpu", torch.bfloat16)
    elif mode == "freezing":
        options = {"freezing": True}
    elif mode == "graph breaks":

        def function(x: Any) -> Any:
            y = net(x)
            torch._dynamo.graph_break()
            return net(y * 2) + 1

    with torch.no_grad(), context:
        plain = torch.compile(function, backend="inductor", options=options or None)(x)
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="peakmem", options=options or None, fullgraph=mode == "fullgraph")
        for _ in range(2):
            assert torch.equal(compiled(x), plain)
    rows = peakmem_inductor.report()
    assert len(rows) == (2 if mode == "graph breaks" else 1)
    assert all(r.state in ("permuted", "kept") for r in rows), str(rows)


def test_dynamic_shapes_have_an_order_for_each_size(torch: Any) -> None:
    def f(x: Any) -> Any:
        return torch.softmax(x @ x.t(), -1) @ x

    compiled = torch.compile(f, backend="peakmem", dynamic=True, options={"shapes": 2})
    with torch.no_grad():
        for n in (5, 9, 5, 13, 9):
            x = torch.randn(n, 8)
            torch.testing.assert_close(compiled(x), f(x))
    assert len(peakmem_inductor.report()) == 2  # the third size runs the original


def test_candidates_never_lose(torch: Any) -> None:
    net, x = branching(torch, 32), torch.randn(2, 3, 64, 64)
    plain = gradients(torch, net, torch.compile(net, backend="inductor"), x)
    torch._dynamo.reset()
    compiled = torch.compile(net, backend="peakmem", options={"candidates": ["lpmf", "noreuse"]})
    assert same(torch, gradients(torch, net, compiled, x), plain)
    assert same(torch, gradients(torch, net, compiled, x), plain)
    for row in peakmem_inductor.report():
        assert row.after <= row.before


@pytest.mark.parametrize(
    ("options", "word"),
    [({"candidates": 99}, "between"), ({"candidates": "nope"}, "none of"), ({"verify": 3}, "verify"), ({"dump": "/nowhere"}, "create")],
)
def test_bad_options_are_named(torch: Any, options: dict[str, Any], word: str) -> None:
    from peakmem.model import UsageError
    from peakmem_inductor.backend import split_options

    with pytest.raises(UsageError, match=word):
        split_options(options)


class Broken(Exception):
    pass


def test_an_exception_in_the_middle_releases_memory(torch: Any) -> None:
    raising = [True]
    with torch.library._scoped_library("peakmem_raise", "DEF") as lib:
        lib.define("maybe(Tensor x) -> Tensor")

        def maybe(x: Any) -> Any:
            if raising[0]:
                raise Broken("on purpose")
            return x + 1

        lib.impl("maybe", maybe, "CompositeExplicitAutograd")
        torch.library.register_fake("peakmem_raise::maybe", torch.empty_like, lib=lib)

        def f(x: Any) -> Any:
            return torch.ops.peakmem_raise.maybe(x @ x).relu() @ x

        from peakmem_inductor.allocator import counting

        compiled = torch.compile(f, backend="peakmem")
        x = torch.randn(64, 64)
        with torch.no_grad():
            for first in (True, False):  # at the recording call, and at a call of the program that is kept
                raising[0] = True
                with pytest.raises(Broken):
                    compiled(x)
                if not first:
                    break
                raising[0] = False
                want = f(x)
                assert torch.equal(compiled(x), want)
            raising[0] = True
            gc.collect()
            with counting() as counter:
                with pytest.raises(Broken):
                    compiled(x)
                gc.collect()
                _, left, _ = counter.mark()
            assert left == 0
            raising[0] = False
            assert torch.equal(compiled(x), want)


def test_threads_at_once(torch: Any) -> None:
    net = forked(torch).eval()
    compiled = torch.compile(net, backend="peakmem")
    xs = [torch.randn(1, 3, 32, 32) for _ in range(4)]
    with torch.no_grad():
        compiled(xs[0])
        torch._dynamo.reset()
        peakmem_inductor.reset()
        wants = [torch.compile(net, backend="inductor")(x) for x in xs]
        compiled = torch.compile(net, backend="peakmem")
    errors: list[str] = []

    def work(x: Any, want: Any) -> None:
        with torch.no_grad():
            for _ in range(20):
                if not torch.equal(compiled(x), want):
                    errors.append("other bits")

    workers = [threading.Thread(target=work, args=pair) for pair in zip(xs, wants)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not errors
    assert all(r.state != "restored" for r in peakmem_inductor.report())


def test_the_first_call_may_fail_to_verify(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is wrong by a byte must restore the original, say so once and stay restored."""
    from peakmem_inductor import dispatch, serving

    net, x = branching(torch, 32), torch.randn(2, 3, 64, 64)
    plain = gradients(torch, net, torch.compile(net, backend="inductor"), x)
    torch._dynamo.reset()
    right = dispatch.order_candidate

    def wrong(*args: Any) -> Any:
        from dataclasses import replace

        found = right(*args)
        workspaces = {k: v + 1 for k, v in found.profile.workspaces.items()}
        profile = replace(found.profile, workspaces=workspaces)
        graph = dispatch.build_graph(found.wrapper, profile)
        return replace(found, profile=profile, graph=graph, after=graph.predicted(found.order))

    monkeypatch.setattr(dispatch, "order_candidate", wrong)
    compiled = torch.compile(net, backend="peakmem")
    serving._warned.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert same(torch, gradients(torch, net, compiled, x), plain)
    told = [str(w.message) for w in caught if "restored" in str(w.message)]
    assert len(told) == 1
    assert "modelled were" in told[0]
    states = [r.state for r in peakmem_inductor.report()]
    assert states[-1] == "restored"


def test_other_bits_restore_the_original(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from peakmem_inductor import arguments, serving

    net, x = branching(torch, 32), torch.randn(2, 3, 64, 64)
    plain = gradients(torch, net, torch.compile(net, backend="inductor"), x)
    torch._dynamo.reset()
    monkeypatch.setattr(arguments, "difference", lambda a, b: "output 0")
    serving._warned.clear()
    compiled = torch.compile(net, backend="peakmem")
    assert same(torch, gradients(torch, net, compiled, x), plain)
    with pytest.warns(RuntimeWarning, match="output 0 has other bits"):  # the backward is checked at its second call
        got = gradients(torch, net, compiled, x)
    assert same(torch, got, plain)
    assert [r.state for r in peakmem_inductor.report()] == ["kept", "restored"]


def test_without_a_compiler_the_original_runs(torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from peakmem.model import RuntimeMissing
    from peakmem_inductor import allocator, serving

    def missing() -> Any:
        raise RuntimeMissing("peakmem measures with a small C++ library and found no compiler")

    monkeypatch.setattr(allocator, "load", missing)
    serving._warned.clear()
    compiled = torch.compile(lambda x: (x @ x).relu(), backend="peakmem")
    with torch.no_grad(), pytest.warns(RuntimeWarning, match="found no compiler"):
        got = compiled(torch.ones(3, 3))
    assert torch.equal(got, torch.full((3, 3), 3.0))
    assert peakmem_inductor.report()[0].state == "left alone"


@pytest.mark.parametrize("place", ["seen", "enter"])
def test_a_fault_while_recording_never_reaches_the_user(torch: Any, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    from peakmem_inductor.record import Recorder

    def broken(*_: Any) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(Recorder, place, broken)
    x = torch.ones(3, 3)
    compiled = torch.compile(lambda x: (x.add_(1) @ x).relu(), backend="peakmem")
    with torch.no_grad():
        assert torch.equal(compiled(x), torch.full((3, 3), 12.0))
    assert torch.equal(x, torch.full((3, 3), 2.0)), "the program ran twice"
    row = peakmem_inductor.report()[0]
    assert row.state == "left alone"
    assert "ZeroDivisionError: ours" in row.reason


def test_unknown_statements_leave_the_graph_alone(torch: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from peakmem_inductor import dispatch
    from peakmem_inductor.wrapper import UnknownForm

    def unknown(*_: Any, **__: Any) -> None:
        raise UnknownForm("line 7: an unknown statement: 'mystery()'; the graph is left as it is")

    monkeypatch.setattr(dispatch, "parse_wrapper", unknown)
    with torch.no_grad(), caplog.at_level("INFO", "peakmem_inductor"):
        compiled = torch.compile(lambda x: (x @ x).relu(), backend="peakmem")
        for _ in range(2):
            assert torch.equal(compiled(torch.ones(3, 3)), torch.full((3, 3), 3.0))
    assert "mystery()" in caplog.text
    assert [r.state for r in peakmem_inductor.report()] == ["left alone"]


def test_the_allocator_builder_names_the_missing_compiler(torch: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from peakmem.model import RuntimeMissing
    from peakmem.system.native import build_library
    from peakmem_inductor import allocator

    build_library.cache_clear()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(RuntimeMissing, match="no compiler"):
        allocator._build()
    monkeypatch.setenv("CXX", "/bin/false")
    with pytest.raises(RuntimeMissing, match="could not build"):
        allocator._build()


def test_pickled_and_loaded_again(torch: Any) -> None:
    nn = torch.nn
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    compiled = torch.compile(net, backend="peakmem")
    x = torch.randn(3, 8)
    with torch.no_grad():
        want = compiled(x)
        again = torch.compile(pickle.loads(pickle.dumps(net)), backend="peakmem")
        assert torch.equal(again(x), want)


def test_exported_programs(torch: Any) -> None:
    net, x = forked(torch).eval(), torch.randn(1, 3, 32, 32)
    exported = torch.export.export(net, (x,))
    with torch.no_grad():
        want = torch.compile(net, backend="inductor")(x)
        got = torch.compile(exported.module(), backend="peakmem")(x)
    assert torch.equal(got, want)


CACHED = """
import hashlib, sys, torch, peakmem_inductor
from torch._dynamo.utils import counters
torch.set_num_threads(1)
nn = torch.nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.ModuleList(nn.Linear(32, 256, bias=False) for _ in range(2)); self.thin = nn.Linear(256, 32, bias=False)
    def forward(self, x):
        return self.thin(self.wide[0](x)) + self.thin(self.wide[1](x)).relu()
for backend in sys.argv[1:]:
    torch._dynamo.reset(); peakmem_inductor.reset(); counters.clear(); torch.manual_seed(0)
    net = Net(); x = torch.randn(64, 32)
    compiled = torch.compile(net, backend=backend)
    for _ in range(2):
        net.zero_grad(); out = compiled(x); out.sum().backward()
    h = hashlib.sha256()
    for t in [out.detach(), *(p.grad for p in net.parameters())]: h.update(t.numpy().tobytes())
    hits = counters["inductor"].get("fxgraph_cache_hit", 0) + counters["aot_autograd"].get("autograd_cache_hit", 0)
    print(h.hexdigest(), hits, [r.state for r in peakmem_inductor.report()])
"""


def test_inductors_cache_cold_and_warm(nursery: Any, tmp_path: Path) -> None:
    """The cached files hold nothing of ours, a warm cache works in a new process, and Inductor can use it too."""
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    rows = []
    for backends in (("peakmem",), ("inductor", "peakmem")):
        run = nursery.run(CACHED, *backends, environment=environment)
        assert run.code == 0, run.err[-2000:]
        rows += [line.split(" ", 2) for line in run.out.decode().splitlines()[-len(backends) :]]
    cold, plain, warm = rows
    assert cold[0] == plain[0] == warm[0]
    assert cold[2] == warm[2] != "[]"
    assert plain[2] == "[]"
    assert int(cold[1]) == 0 and int(plain[1]) > 0 and int(warm[1]) > 0, "a later process did not hit the cache: this proves nothing"
    assert not [p for p in tmp_path.rglob("*.py") if "peakmem" in p.read_text()]
