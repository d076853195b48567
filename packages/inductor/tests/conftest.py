"""What the tests share: torch if it is there, and one compile cache for the session."""

from __future__ import annotations

import os
import random
import shutil
from importlib.util import find_spec
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def one_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Kernels compile in this process, into a folder of this session unless one is given."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("inductor")))


@pytest.fixture
def torch() -> Any:
    """torch with one thread and no compiled graphs, or a skip that says what is missing."""
    if find_spec("torch") is None:
        pytest.skip("torch is not installed (pip install 'peakmem-inductor[torch]')")
    if not (shutil.which("g++") or shutil.which("c++")):
        pytest.skip("no C++ compiler: Inductor cannot compile here")
    import peakmem_inductor
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch._dynamo.reset()
    torch.manual_seed(0)
    peakmem_inductor.reset()
    yield torch
    torch.set_num_threads(threads)
    torch._dynamo.reset()


class OrderCheck:
    """Compiles with a backend that tries several orders of every graph; ``rows`` holds what it saw."""

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
            for modelled, simulated, measured, different in row["orders"]:
                assert modelled == simulated == measured
                assert not different


@pytest.fixture
def check() -> OrderCheck:
    return OrderCheck()


def random_order(program: Any, rng: random.Random) -> tuple[int, ...]:
    """A topological order."""
    waiting = [len(p) for p in program.predecessors]
    ready = [v for v, w in enumerate(waiting) if not w]
    order = []
    while ready:
        v = ready.pop(rng.randrange(len(ready)))
        order.append(v)
        for w in program.successors[v]:
            waiting[w] -= 1
            if not waiting[w]:
                ready.append(w)
    return tuple(order)


def backend_of_orders(checks: list[dict[str, Any]], orders: int = 3) -> Any:
    """A backend that, at the first call of each graph, runs the wrapper and several random orders of it on the same
    arguments and appends what it saw to ``checks``."""
    import functools

    import torch
    from peakmem_inductor import backend
    from peakmem_inductor.arguments import Watch, copies, differing_storage, first_difference
    from peakmem_inductor.building import build_graph
    from peakmem_inductor.dispatch import Candidate, owned
    from peakmem_inductor.record import measure, record_profile
    from peakmem_inductor.simulation import simulate
    from peakmem_inductor.wrapper import parse_wrapper
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
            backup = copies(args, [False] * len(args))
            state = torch.get_rng_state()
            watch = Watch(wrapper.inputs, args)
            result, profile = record_profile(wrapper, candidate.namespace, args)
            after = torch.get_rng_state()
            graph = build_graph(wrapper, profile)
            rng = random.Random(1)
            program = graph.program
            row = {"simulated": simulate(wrapper, profile), "measured": profile.measured_peak, "graph": graph, "orders": []}
            for order in (tuple(range(len(program))), *(random_order(program, rng) for _ in range(orders))):
                text = parse_wrapper(graph.emit(order))
                again = copies(backup, [False] * len(backup))
                mine = owned(wrapper, profile)
                held = [a for n, a in zip(wrapper.inputs, again) if n not in mine]
                beside = Watch(wrapper.inputs, again)
                torch.set_rng_state(state)
                other, peak = measure(text, candidate.namespace, again, poison=True)
                different = first_difference(result, other, "output") or differing_storage(watch.alive(), beside.alive())
                del held
                row["orders"].append((graph.predicted(order), simulate(text, profile), peak, different))
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
