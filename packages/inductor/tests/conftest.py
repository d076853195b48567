"""What the tests share: torch if it is there, and one compile cache for the session."""

from __future__ import annotations

import os
import platform
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "check" / "tests")]  # for `texts` and others; for `generators` and `warm`

import peakmem_inductor.model  # noqa: E402
from fresh import fresh_torch  # noqa: E402
from warm import Nursery  # noqa: E402


@pytest.fixture(scope="session", autouse=True)
def one_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Kernels compile in this process, into a folder of this session unless one is given; its workers share it.

    What the compiler can do is asked of it once, instead of with ten libraries for every new folder.
    """
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    if compiles_for_all_processors():
        os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "inductor"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))


def compiles_for_all_processors() -> bool:
    """Whether the compiler knows the newest flags that Inductor may give it on this kind of processor."""
    compiler = os.environ.get("CXX") or shutil.which("g++")
    if compiler is None or platform.machine() != "x86_64":
        return False
    flags = ("-mavx512bf16", "-mamx-bf16", "-mamx-int8", "-fopenmp", "-fsyntax-only", "-xc++", os.devnull)
    return subprocess.run([compiler, *flags], capture_output=True).returncode == 0


@pytest.fixture(scope="session")
def nursery(one_cache: None) -> Iterator[Nursery]:
    """Where children begin that have imported torch, its compiler and ours, which takes them most of their time."""
    imports = ("torch", "torch._dynamo", "torch._inductor.compile_fx", "peakmem_inductor", "peakmem_inductor.child")
    found = Nursery(peakmem_inductor.model.run_child, "peakmem_inductor.child", imports)
    yield found
    found.close()


@pytest.fixture(autouse=True)
def warm_children(nursery: Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peakmem_inductor.model, "run_child", nursery)


@pytest.fixture
def torch() -> Iterator[Any]:
    """`fresh_torch` for one test."""
    with fresh_torch() as module:
        yield module


class OrderCheck:
    """Compiles with a backend that tries several orders of every graph, and several enlarged by copies; ``rows`` holds
    what it saw."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    @property
    def backend(self) -> Any:
        return backend_of_orders(self.rows)

    def assert_exact(self, *, graphs: int | None, baseline: bool = True) -> None:
        """Every order of every graph: modelled == simulated == measured, same bits."""
        assert self.rows
        assert graphs is None or len(self.rows) == graphs
        for row in self.rows:
            if baseline:
                assert row["simulated"] == row["measured"]
            for modelled, simulated, measured, different in (*row["orders"], *row["copies"]):
                assert modelled == simulated == measured
                assert not different
            for predicted, measured, requests, different, relation in row["pools"]:
                assert predicted == measured
                assert requests == 1
                assert not different
                assert not relation

    @property
    def copied(self) -> set[str]:
        """Operators that ran twice somewhere."""
        return {op for row in self.rows for op in row["copied"]}


@pytest.fixture
def check() -> OrderCheck:
    return OrderCheck()


def backend_of_orders(checks: list[dict[str, Any]], orders: int = 3) -> Any:
    """A backend that, at the first call of each graph, runs the wrapper and several random orders of it on the same
    arguments and appends what it saw to ``checks``; then several random enlargements of it, each in a random order."""
    import functools

    import torch
    from peakmem.model import PeakmemError, peak_of
    from peakmem_inductor import backend
    from peakmem_inductor.arguments import Again, difference
    from peakmem_inductor.building import build_graph
    from peakmem_inductor.dispatch import Candidate
    from peakmem_inductor.emitting import emit
    from peakmem_inductor.pooling import add_pool, remove_pool
    from peakmem_inductor.record import measure, record_profile
    from peakmem_inductor.simulation import simulate
    from peakmem_inductor.structure import compare_graphs
    from peakmem_inductor.wrapper import parse_wrapper
    from random_orders import random_expansion, random_order
    from torch._inductor import compile_fx as module

    def receive(loaded: Any, path: Any) -> None:
        original = loaded.call
        seen: list[int] = []

        def call(args: list[Any]) -> Any:
            if seen:
                return original(args)
            seen.append(1)
            candidate = Candidate("default", loaded, path, original)
            wrapper = candidate.read()
            again = Again(wrapper.inputs, args)
            again.set_aside(args, wrapper.inputs, wrapper.inputs)
            state = torch.get_rng_state()
            result, profile = record_profile(wrapper, candidate.namespace, again.take())
            seen_first = again.seen(result)
            after = torch.get_rng_state()
            graph = build_graph(wrapper, profile)
            rng = random.Random(1)
            program = graph.program
            row = {"simulated": simulate(wrapper, profile), "measured": profile.measured_peak, "graph": graph, "orders": [],
                   "copies": [], "copied": set(), "pools": [], "no_pool": []}
            for order, expansion in (
                (tuple(range(len(program))), None),
                *((random_order(program, rng), None) for _ in range(orders)),
                *((random_order(e.program, rng), e) for e in (random_expansion(program, rng) for _ in range(2 * orders))),
            ):
                kind, enlarged = ("orders", program) if expansion is None else ("copies", expansion.program)
                emitted = emit(graph, order, expansion)
                text = parse_wrapper(emitted.source)
                torch.set_rng_state(state)
                other, peak = measure(text, candidate.namespace, again.take(), poison=True)
                different = difference(seen_first, again.seen(other))
                modelled = peak_of(enlarged, order) - program.entry_bytes
                row[kind].append((modelled, simulate(text, emitted.profile), peak, different))
                if expansion is None:
                    try:
                        pooled = add_pool(text, emitted.profile, fixed_sizes=True)
                    except PeakmemError as error:
                        row["no_pool"].append(str(error))
                    else:
                        torch.set_rng_state(state)
                        other, peak = measure(pooled.wrapper, candidate.namespace, again.take(), poison=True)
                        alike = compare_graphs(build_graph(text, emitted.profile), build_graph(*remove_pool(pooled.wrapper, pooled.profile)))
                        asked = [f for f in pooled.wrapper.forms if f.kind == "allocation" and f.defines[0] not in pooled.outside]
                        row["pools"].append(
                            (pooled.predicted, peak, len(asked), difference(seen_first, again.seen(other)), alike.difference)
                        )
                if expansion is not None:
                    names = {s.name for s in program.statements}
                    row["copied"].update(s.op for s in enlarged.statements if s.name not in names)
            torch.set_rng_state(after)
            checks.append(row)
            return result

        loaded.call = call

    def inner(*args: Any, **kwargs: Any) -> Any:
        with backend._active(receive):
            return module.compile_fx_inner(*args, **kwargs)

    def compile_it(gm: Any, example_inputs: Any) -> Any:
        backend._install()
        from torch._functorch import config

        with config.patch(enable_autograd_cache=False):
            return module.compile_fx(gm, example_inputs, inner_compile=functools.partial(inner))

    return compile_it
