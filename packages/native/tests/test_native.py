"""With and without the compiled loops: the same orders, bounds, certificates and units of work."""

from __future__ import annotations

import ctypes
import gc
import os
import random
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from generators import ladder
from oracles import programs
from peakmem.model import Program
from peakmem.ordering import native, order_program
from peakmem.ordering.beam import beam
from peakmem.ordering.bounds import Pricer, forward_trap
from peakmem.ordering.cuts import births_of, cheapest_state
from peakmem.ordering.meter import Meter, OutOfTime
from peakmem.ordering.portfolio import Solver
from peakmem.ordering.problem import Problem, State, problem_of
from peakmem.ordering.rules import ALL, Rules
from peakmem.ordering.walk import descend
from peakmem.system import compiled

peakmem_native = pytest.importorskip("peakmem_native", reason="needs the distribution peakmem-native, which is not installed")
if not peakmem_native.LIBRARY.exists():
    pytest.skip("needs peakmem-native built (pip install ./packages/native); here is its source alone", allow_module_level=True)

GRAPHS = Path(__file__).parents[4] / "shared" / "data" / "graphs"
KINDS: tuple[dict[str, Any], ...] = ({}, {"tangled": True}, {"overlays": True})


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("PEAKMEM_PURE", raising=False)
    compiled._load.cache_clear()
    yield
    compiled._load.cache_clear()


def both(monkeypatch: pytest.MonkeyPatch, run: Callable[[], Any]) -> Any:
    """What ``run`` gives, which must be the same with the library and without."""
    assert native.kernel() is not None, "the library cannot be used"
    found = run()
    with monkeypatch.context() as patch:
        patch.setenv("PEAKMEM_PURE", "1")
        assert native.kernel() is None
        assert run() == found
    return found


def problems(seed: int, count: int, sizes: range) -> Iterator[tuple[random.Random, Problem]]:
    """Random problems of every kind, as they are, reversed, and parts of them."""
    for kind in KINDS:
        for i, program in programs(seed, count, sizes, **kind):
            problem = problem_of(program)
            if i % 2:
                problem = problem.reversed()
            yield random.Random(i), problem


def test_beams(monkeypatch: pytest.MonkeyPatch) -> None:
    met: Counter[str] = Counter()
    for rng, problem in problems(61, 150, range(30)):
        ceiling = problem.order_peak(range(len(problem))) - rng.randint(0, 6)
        for width in (1, 3, 20):
            effort, seed = rng.choice([None, 0, 10, 100, 1000]), rng.randint(0, 3)

            def run(
                problem: Problem = problem, width: int = width, ceiling: int = ceiling, effort: int | None = effort, seed: int = seed
            ) -> tuple[list[int], int]:
                meter = Meter(effort=effort)
                return beam(problem, width, ceiling, meter, seed=seed), meter.spent

            order, spent = both(monkeypatch, run)
            if order:
                assert sorted(order) == list(range(len(problem)))
                assert problem.order_peak(order) <= ceiling
            met["found"] += bool(order)
            met["stopped"] += effort is not None and spent >= effort
            met["overlays"] += any(problem.gains)
    assert min(met.values()) > 100 and len(met) == 3


def test_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few nodes to a search and little patience, so that every way out of it is taken."""
    monkeypatch.setattr("peakmem.ordering.walk.PATIENCE", 3)
    met: Counter[str] = Counter()
    for rng, problem in problems(62, 120, range(2, 26)):
        births = births_of(problem)
        rules = ALL
        for name in ("safe_moves", "safe_jumps", "memo", "search_traps"):
            if rng.random() < 0.2:
                rules = replace(rules, **{name: False})
        effort = rng.choice([None, None, 30, 300, 3000])
        level = max(problem.entry_bytes, problem.exit_bytes)
        outcomes: list[int] = []

        def run(
            problem: Problem = problem, births: Any = births, rules: Rules = rules, effort: int | None = effort, level: int = level
        ) -> Any:
            meter = Meter(effort=effort)
            return descend(problem, level, effort=2, meter=meter, births=births, rules=rules), meter.spent

        original = native.Search.run

        def spy(search: native.Search, *arguments: Any, original: Any = original, outcomes: list[int] = outcomes) -> Any:
            found = original(search, *arguments)
            outcomes.append(found[0])
            return found

        with monkeypatch.context() as patch:
            patch.setattr(native.Search, "run", spy)
            walk, spent = both(monkeypatch, run)
        met.update(map(str, outcomes))
        met["order"] += bool(walk.order)
        met["stopped"] += effort is not None and spent >= effort
    assert all(met[str(what)] for what in (native.FOUND, native.EXHAUSTED)), met
    assert met["order"] > 100 and met["stopped"] > 20, met


def test_searches_that_give_up_and_ask_for_traps(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()
    original = native.Search.run

    def spy(search: native.Search, *arguments: Any) -> Any:
        *others, least, trap = arguments

        def counted(steps: list[int]) -> int:
            level = trap(steps)
            asked["trap" if level >= 0 else "no trap"] += 1
            return level  # type: ignore[no-any-return]

        found = original(search, *others, least, counted)
        asked[str(found[0])] += 1
        return found

    monkeypatch.setattr(native.Search, "run", spy)
    monkeypatch.setattr("peakmem.ordering.walk.PATIENCE", 5)
    for kind in KINDS:
        for i, program in programs(63, 12, range(40, 70), **kind):
            problem = problem_of(program).reversed() if i % 2 else problem_of(program)

            def run(problem: Problem = problem) -> Any:
                meter = Meter(effort=60_000)
                level = max(max(problem.floor), problem.entry_bytes, problem.exit_bytes)
                return descend(problem, level, effort=1, meter=meter, births=births_of(problem)), meter.spent

            both(monkeypatch, run)
    assert asked[str(native.GAVE_UP)] and asked["trap"] and asked["no trap"], asked


def test_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between random states; buffers with several births among them, and more arcs than there is room for at first."""
    met: Counter[str] = Counter()
    monkeypatch.setattr(native._Arcs, "FIRST", 4)
    for rng, problem in problems(66, 200, range(1, 26)):
        births, n = births_of(problem), len(problem)
        lower = State(problem)
        for _ in range(rng.randint(0, n // 2)):
            lower.push(rng.choice(sorted(lower.ready)))
        upper = State(problem)
        upper.advance(lower.path)
        v: int | None = None
        for _ in range(rng.randint(0, n - len(lower.path))):
            upper.push(rng.choice(sorted(upper.ready)))
        if upper.ready and rng.random() < 0.7:
            v = rng.choice(sorted(upper.ready))
        undecided = sorted(upper.path[len(lower.path) :])

        def run(problem: Problem = problem, lower: State = lower, undecided: Any = undecided, v: int | None = v, births: Any = births) -> Any:
            return cheapest_state(problem, lower, undecided, v, births=births)

        cut = both(monkeypatch, run)
        met["chosen"] += bool(cut.chosen)
        met["several births"] += births is not None
        met["no statement"] += v is None
    assert min(met.values()) > 50 and len(met) == 3, met


def a_state(rng: random.Random, problem: Problem, steps: int) -> State:
    state = State(problem)
    for _ in range(steps):
        state.push(rng.choice(sorted(state.ready)))
    return state


def test_traps(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after another from random states of one problem, with all that ends them, and little work to a call."""
    monkeypatch.setattr(native, "SLICE", 3)
    met: Counter[str] = Counter()
    for rng, problem in problems(67, 150, range(1, 30)):
        births, n = births_of(problem), len(problem)
        rules = ALL
        for name in ("absorption", "stale_prices", "followers"):
            if rng.random() < 0.2:
                rules = replace(rules, **{name: False})
        asked = []
        for _ in range(4):
            path = a_state(rng, problem, rng.randint(0, n // 2)).path
            asked.append((path[: rng.randint(0, len(path))], path, rng.choice([None, None, 0, 3, 30]), rng.random() < 0.5,
                          rng.choice([None, 0, 1, 3, 10]), rng.randint(-2, 8)))  # fmt: skip

        def run(problem: Problem = problem, births: Any = births, rules: Rules = rules, asked: Any = asked) -> Any:
            pricer = Pricer(problem, births, rules)
            found = []
            for given, path, effort, raising, limit, more in asked:
                state = State(problem)
                state.advance(given)
                meter = Meter(effort=effort)
                order = () if given or path else range(len(problem))
                level = max(problem.entry_bytes, problem.exit_bytes) + more
                try:
                    trap: Any = forward_trap(
                        problem, level, state=state, steps=path[len(given) :], pricer=pricer, order=order, raising=raising,
                        limit=limit, meter=meter, rules=rules,
                    )  # fmt: skip
                except OutOfTime:
                    trap = "out of time"
                found.append((trap, pricer.cuts, meter.spent, list(state.ready), state.path))
            return found

        for trap, *_ in both(monkeypatch, run):
            met["stopped" if isinstance(trap, str) else "met" if trap.exits else "none" if trap.closed else "large"] += 1
        met["overlays"] += any(problem.gains)
        met["several births"] += births is not None
    assert min(met.values()) > 50 and len(met) == 6, met


def test_prices(monkeypatch: pytest.MonkeyPatch) -> None:
    met: Counter[str] = Counter()
    for rng, problem in problems(68, 150, range(1, 30)):
        births, n = births_of(problem), len(problem)
        start = rng.randint(0, n // 2)
        upper = a_state(rng, problem, rng.randint(start, n - 1))
        v = rng.choice(sorted(upper.ready))
        path, members, enough = upper.path[:start], upper.path[start:], rng.randint(-1, 30)

        def run(problem: Problem = problem, births: Any = births, upper: State = upper, path: Any = path, v: int = v,
                members: Any = members, enough: int = enough) -> Any:  # fmt: skip
            pricer = Pricer(problem, births)
            pricer.move_to(path)
            value, steps = pricer.price(v, upper.inside, members, enough)
            return value, sorted(steps), pricer.cuts, pricer.meter.spent

        value, steps, cuts, _ = both(monkeypatch, run)
        state = State(problem)
        state.advance(path)
        state.advance(sorted(steps))
        assert state.mem(v) == value
        met["cut"] += cuts
        met["enough"] += value <= enough
    assert min(met.values()) > 50 and len(met) == 2, met


def test_solvers(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = 0
    for rng, problem in problems(64, 60, range(5, 40)):
        effort = rng.choice([50, 500, 5000, 20000])

        def run(problem: Problem = problem, effort: int = effort) -> Any:
            meter = Meter(effort=effort)
            solver = Solver(problem, meter)
            solver.run(3)
            flat = solver.result()
            return flat.order, flat.peak, flat.bound, [(e.level, e.steps, e.trap) for e in flat.evidence], meter.spent

        *_, spent = both(monkeypatch, run)
        stopped += spent >= effort
    assert stopped > 20


def certificate(program: Program, effort: int) -> tuple[Any, bytes]:
    found = order_program(program, effort=effort)
    assert found.certificate is not None
    return found.orders, found.certificate.to_bytes()


def test_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in KINDS:
        for _, program in programs(65, 30, range(1, 30), **kind):
            both(monkeypatch, lambda program=program: certificate(program, 20_000))


@pytest.mark.skipif(not GRAPHS.is_dir(), reason="needs the shared data (graphs/), which is not here")
@pytest.mark.parametrize("name", ["randwire_cell_ws64_4_p75_s1", "randwire_cell_ws256_4_p75_s3", "nasnet_imagenet_4x44"])
def test_real_graphs(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    from peakmem.frontends.programfile import frontend

    program = frontend.load(GRAPHS / f"{name}.json", {}).program
    both(monkeypatch, lambda: certificate(program, 600_000))


def test_hash_seed_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from generators import ladder\n"
        "from peakmem.ordering import order_program, native; assert native.kernel()\n"
        "found = order_program(ladder(6, 6), effort=100000); print(hash(found.certificate.to_bytes().decode()) and found.certificate.to_bytes())"
    )
    answers = set()
    for seed in ("0", "1", "77"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": seed}
        helpers = str(Path(__file__).parents[2] / "check" / "tests")
        answers.add(subprocess.run([sys.executable, "-c", code, helpers], env=environment, capture_output=True, check=True, timeout=600).stdout)
    assert len(answers) == 1
    assert repr(certificate(ladder(6, 6), 100_000)[1]).encode() == answers.pop().strip()


class TestWhatIsPassedOver:
    """One warning, and Python goes on."""

    def passed_over(self, pattern: str) -> None:
        with pytest.warns(RuntimeWarning, match=pattern):
            assert native.kernel() is None
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert beam(problem_of(ladder(2, 3)), 4, 1 << 40)

    def test_a_source_tree_says_nothing(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(peakmem_native, "LIBRARY", tmp_path / "none.so")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert native.kernel() is None

    def test_a_file_that_is_none(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        (tmp_path / "kernel.so").write_text("no library")
        monkeypatch.setattr(peakmem_native, "LIBRARY", tmp_path / "kernel.so")
        self.passed_over("cannot be loaded")

    def test_a_library_of_somebody_else(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ctypes, "CDLL", lambda path: object())
        self.passed_over("cannot be loaded")

    def test_another_release(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(compiled, "ABI", compiled.ABI + 1)
        self.passed_over(rf"another release \(interface {compiled.ABI - 1}, needed is {compiled.ABI}\)")

    def test_not_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "peakmem_native", None)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert native.kernel() is None

    @pytest.mark.parametrize(("value", "pure"), [("1", True), ("yes", True), ("0", False), ("", False)])
    def test_the_switch(self, monkeypatch: pytest.MonkeyPatch, value: str, pure: bool) -> None:
        monkeypatch.setenv("PEAKMEM_PURE", value)
        assert (native.kernel() is None) == pure


def test_bytes_beyond_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(ladder(2, 4))
    huge = replace(problem, size=[s << 61 for s in problem.size])
    kernel = native.kernel()
    assert kernel is not None and kernel.fits(problem) and not kernel.fits(huge)
    order = both(monkeypatch, lambda: beam(huge, 8, 1 << 80))
    assert order == both(monkeypatch, lambda: beam(problem, 8, 1 << 80))


def test_a_deadline_and_an_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(ladder(6, 8))
    assert beam(problem, 10_000, 1 << 40, Meter(deadline=0.0)) == []

    class Interrupted(Meter):
        @property
        def out(self) -> bool:
            if self.spent:
                raise KeyboardInterrupt
            return False

    monkeypatch.setattr(native, "SLICE", 100)
    with pytest.raises(KeyboardInterrupt):
        beam(problem, 1000, 1 << 40, Interrupted())
    assert beam(problem, 8, 1 << 40)


def test_what_was_allocated_goes_with_its_problem() -> None:
    kernel = native.kernel()
    assert kernel is not None
    problem = problem_of(ladder(2, 3))
    before = len(kernel._images)
    assert beam(problem, 4, 1 << 40)
    assert len(kernel._images) == before + 1
    del problem
    gc.collect()
    assert len(kernel._images) <= before
