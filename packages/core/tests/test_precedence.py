"""What a budget forces: arcs that hold, contradictions only where there is no order, proofs that the checker accepts."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import pytest
from oracles import Model, bottleneck, programs
from peakmem.model import Program
from peakmem.ordering.evidence import Evidence, TooLarge, Writer
from peakmem.ordering.portfolio import Solver
from peakmem.ordering.precedence import find_arcs, propagate, strengthen
from peakmem.ordering.problem import Problem, problem_of
from peakmem.proof import check


def orders(program: Program) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Every legal order with its peak, by the naive definitions."""
    model = Model(program)

    def walk(done: tuple[int, ...], peak: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        state = frozenset(done)
        if len(done) == model.n:
            yield peak, done
        for v in model.ready(state):
            yield from walk((*done, v), max(peak, model.mem(state, v)))

    yield from walk((), model.rest(set()))


@cache
def small() -> tuple[tuple[Program, list[tuple[int, tuple[int, ...]]], int], ...]:
    """Programs of at most seven statements, all their orders, and a budget around their optimum."""
    rows = [p for _, p in programs(51, 130, range(3, 8))] + [p for _, p in programs(52, 170, range(5, 8), tangled=True)]
    result = []
    for i, program in enumerate(rows):
        found = list(orders(program))
        peaks = sorted({peak for peak, _ in found})
        budgets = {peaks[0] - 1, peaks[0], random.Random(i).choice(peaks)}
        result += [(program, found, budget) for budget in sorted(budgets)]
    return tuple(result)


def before(order: Sequence[int], u: int, v: int) -> bool:
    return order.index(u) < order.index(v)


class TestArcs:
    def test_hold_in_every_order_within_the_budget(self) -> None:
        arcs = refuted = 0
        for program, found, budget in small():
            within = [order for peak, order in found if peak <= budget]
            result = find_arcs(problem_of(program), budget)
            if result.dear is not None:
                assert not within
                refuted += 1
            for arc in result.arcs:
                assert arc.at in (arc.before, arc.after)
                assert all(before(order, arc.before, arc.after) for order in within)
                arcs += bool(within)
        assert arcs > 200
        assert refuted > 50

    def test_miss_nothing_that_one_cut_shows(self) -> None:
        """Every state at which v may run within the budget has u, or none has: then there is an arc."""
        for program, _, budget in small():
            model = Model(program)
            result = find_arcs(problem_of(program), budget)
            if result.dear is not None:
                continue
            told = {(a.before, a.after) for a in result.arcs}
            states = reachable(model)
            for v in range(model.n):
                here = [s for s in states if v not in s and model.before[v] <= s and model.mem(s, v) <= budget]
                for u in set(range(model.n)) - model.ancestors(v) - {v}:
                    if v in model.ancestors(u):
                        continue
                    if all(u in s for s in here):
                        assert (u, v) in told
                    if all(u not in s for s in here):
                        assert (v, u) in told

    def test_candidates_limit_where_arcs_are_looked_for(self) -> None:
        for program, _, budget in small():
            problem = problem_of(program)
            everything = find_arcs(problem, budget)
            some = find_arcs(problem, budget, [0])
            if everything.dear is None:
                assert {(a.before, a.after) for a in some.arcs} <= {(a.before, a.after) for a in everything.arcs}
            assert all(a.at == 0 for a in some.arcs)

    def test_of_the_mirror_image(self) -> None:
        for program, found, budget in small():
            result = find_arcs(problem_of(program), budget)
            n = len(program)
            for arc, mirrored in zip(result.arcs, result.reversed().arcs):
                assert (n - 1 - mirrored.after, n - 1 - mirrored.before) == (arc.before, arc.after)
                for peak, order in found:
                    if peak <= budget:
                        backwards = [n - 1 - v for v in reversed(order)]
                        assert before(backwards, mirrored.before, mirrored.after)


def reachable(model: Model) -> set[frozenset[int]]:
    states = {frozenset[int]()}
    todo = list(states)
    while todo:
        state = todo.pop()
        for v in model.ready(state):
            if state | {v} not in states:
                states.add(state | {v})
                todo.append(state | {v})
    return states


class TestStrengthen:
    def test_keeps_the_orders_within_the_budget_and_their_peaks(self) -> None:
        kept = 0
        for program, found, budget in small():
            result = find_arcs(problem_of(program), budget)
            stronger = strengthen(problem_of(program), result.arcs)
            if isinstance(stronger, list):
                continue
            assert sorted(stronger.names) == list(range(len(program)))
            place = {v: i for i, v in enumerate(stronger.names)}
            for peak, order in found:
                if peak > budget:
                    continue
                renamed = [place[v] for v in order]
                position = {v: i for i, v in enumerate(renamed)}
                assert all(position[u] < position[v] for v in renamed for u in stronger.preds[v])
                assert stronger.order_peak(renamed) == peak
                kept += 1
        assert kept > 500

    def test_a_cycle_is_one_and_means_that_no_order_is_left(self) -> None:
        cycles = 0
        for program, found, budget in small():
            problem = problem_of(program)
            result = find_arcs(problem, budget)
            cycle = strengthen(problem, result.arcs)
            if isinstance(cycle, Problem):
                continue
            cycles += 1
            assert all(peak > budget for peak, _ in found)
            assert len(set(cycle)) == len(cycle) > 1
            arcs = {(a.before, a.after) for a in result.arcs}
            arcs |= {(u, v) for v, row in enumerate(problem.preds) for u in row}
            assert all((a, b) in arcs for a, b in zip(cycle, [*cycle[1:], cycle[0]]))
        assert cycles > 10


class TestPropagate:
    @pytest.mark.parametrize("depth", [0, 2])
    def test_refutes_only_what_no_order_meets(self, depth: int) -> None:
        refuted = open_ = 0
        for program, found, budget in small():
            result = propagate(problem_of(program), budget, wanted=8, depth=depth)
            feasible = any(peak <= budget for peak, _ in found)
            if result.refutation is not None:
                assert not feasible
                refuted += 1
            else:
                open_ += not feasible
        assert refuted > 100
        assert depth == 0 or open_ < refuted / 20


def proved(seed: int, count: int, effort: int) -> Iterator[tuple[Program, int, Evidence, dict[str, Any], list[int]]]:
    """Optima refuted below by precedence alone: (program, optimum, evidence, proof, order)."""
    for _, program in programs(seed, count, range(9, 13), tangled=True):
        problem = problem_of(program)
        best = Solver(problem)
        best.run()
        solver = Solver(problem)  # nothing is searched here: it is told the best orders, and has to show that they are
        for part, known in zip(solver.parts, best.parts):
            solver._improve(part, False, known.best)
        worst = max(solver.parts, key=lambda p: p.peak)
        if worst.peak <= solver.bound:
            continue
        solver._propagate(worst, effort)
        if solver.bound < worst.peak:
            continue
        evidence = solver.result().evidence[0]
        try:
            proof = Writer(evidence).write()
        except TooLarge:
            continue
        yield program, bottleneck(program), evidence, proof, best.result().order


class TestProofs:
    def test_of_the_solver_are_accepted(self) -> None:
        kinds: Counter[str] = Counter()
        inner = 0
        for effort in (1, 2, 4):
            for program, optimum, evidence, proof, order in proved(53 + effort, 150, effort):
                document = {
                    "schema": "peakmem.certificate/1",
                    "program": {"digest": program.digest},
                    "artifact": None,
                    "lower_bound": optimum,
                    "orders": {"": list(order)},
                    "peak": optimum,
                    "proofs": {"": proof},
                }
                report = check(program, document)
                assert report.optimal
                assert report.lower_bound == optimum == evidence.level
                met = {node["kind"] for node in proof["nodes"]}
                kinds.update(met)
                inner += "precedence" in met and len(evidence.problem) < len(program)
        assert kinds["precedence"] > 50
        assert kinds["cycle"] > 20
        assert kinds["backward"] > 5
        assert inner > 5  # parts behind a waypoint
