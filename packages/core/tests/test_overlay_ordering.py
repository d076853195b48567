"""Overlays in the ordering: states, cuts, bounds and proofs against the definitions, in both directions of time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import ClassVar

import peakmem
import pytest
from oracles import (
    Model,
    bottleneck,
    build,
    mirror_of,
    optimum,
    programs,
    random_order,
    reversed_program,
    with_overlays,
)
from peakmem.arena import lifetimes, liveness_peak, may_share
from peakmem.model import InputError, Program, Refused, peak_of, timeline
from peakmem.ordering import order_program
from peakmem.ordering.bounds import Pricer, backward_trap_bound, forward_trap_bound, statement_bound
from peakmem.ordering.cuts import births_of, cheapest_state
from peakmem.ordering.portfolio import Solver
from peakmem.ordering.problem import Problem, State, problem_of, waypoints
from peakmem.ordering.rules import ALL, Rules
from peakmem.proof import check, explain
from peakmem.transform.recompute import floor
from peakmem.transform.recompute.run import enlarge
from peakmem_check.proof.check import Proof
from peakmem_check.proof.graph import Candidates, Dag
from test_components import unions


def sides(seed: int, count: int, sizes: range) -> Iterator[tuple[random.Random, Program, Model, Problem]]:
    """Random programs with overlays as they are and run backwards: as defined, and as the solver sees them."""
    for i, program in programs(seed, count, sizes, overlays=True):
        model, problem = Model(program), problem_of(program)
        if i % 2:
            model, problem = mirror_of(model, reversed_program(program)), problem.reversed()
        yield random.Random(i), program, model, problem


def test_states() -> None:
    saved = 0
    for rng, _, model, problem in sides(920, 300, range(1, 11)):
        state = State(problem)
        done: list[int] = []
        while len(done) < model.n or rng.random() < 0.5:
            if done and rng.random() < 0.3:
                assert state.pop() == done.pop()
                continue
            for v in state.ready:
                mem = model.mem(set(done), v)
                assert state.mem(v) == mem
                assert state.step(v) == (mem, model.rest({*done, v}) - model.rest(set(done)))
                assert problem.floor[v] <= mem
                saved += state.saved(v) > 0
            if len(done) < model.n:
                done.append(rng.choice(list(state.ready)))
                state.push(done[-1])
    assert saved > 200


def interval(rng: random.Random, model: Model, v: int) -> tuple[set[int], set[int]]:
    """Two states at which v can run, one within the other."""

    def closed(state: set[int]) -> set[int]:
        return state.union(*(model.ancestors(u) for u in state))

    free = {u for u in range(model.n) if u != v and v not in model.ancestors(u)}
    low = closed(model.ancestors(v) | {u for u in free if rng.random() < 0.2})
    return low, closed(low | {u for u in free if rng.random() < 0.6})


def states_between(model: Model, low: set[int], high: set[int]) -> Iterator[set[int]]:
    pending, seen = [frozenset(low)], {frozenset(low)}
    while pending:
        state = pending.pop()
        yield set(state)
        for u in model.ready(state):
            then = state | {u}
            if u in high and then not in seen:
                seen.add(then)
                pending.append(then)


def test_cuts_are_the_cheapest_states_and_their_flows_show_it() -> None:
    met: Counter[str] = Counter()
    for rng, program, model, problem in sides(921, 400, range(2, 10)):
        side = Proof(program, [s.workspace for s in program.statements], {"lower_bound": 0, "root": 0, "nodes": []}, "").whole
        if problem.mirrored:
            side = side.proof.side(True, side.members, 0)
        dag = Dag(side.program)
        everything = Candidates(b for b, row in enumerate(program.buffers) if row.kind != "constant")
        for v in range(model.n):
            if model.overlay[v] is None:
                continue
            low, high = interval(rng, model, v)
            least = min(model.mem(state, v) for state in states_between(model, low, high))
            lower = State(problem)
            lower.advance(sorted(low))
            undecided = sorted(high - low)
            cut = cheapest_state(problem, lower, undecided, v, births=births_of(problem))
            assert cut.value == least == model.mem(low.union(cut.chosen), v)
            shown = cheapest_state(problem, lower, undecided, v, births=births_of(problem), want_flow=True)
            assert (shown.value, shown.chosen) == (cut.value, cut.chosen) or model.mem(low.union(shown.chosen), v) == least
            inside, outside = sum(1 << u for u in low), sum(1 << u for u in range(model.n) if u not in high)
            networks = side.networks(dag, v, inside, outside, everything)
            values = []
            for network, flow in zip(networks, shown.flows, strict=True):
                rows = [[x if not isinstance(x, tuple) else f"{x[0]}{x[1]}" for x in arc[:2]] + [arc[2]] for arc in flow]
                values.append(network.value(rows, "flow"))
                met["g"] += any("g" in arc[:2] for arc in flow)
            assert min(values) == least
            met["ways"] += len(values) > 1
            trap = bytearray(u in high for u in range(model.n))
            pricer = Pricer(problem, births_of(problem))
            before = sorted(model.ancestors(v))
            least = min(model.mem(state, v) for state in states_between(model, set(before), high))
            price, witness = pricer.price(v, trap, sorted(high), -1)
            assert price == least == model.mem(set(witness), v)
            met["mirrored"] += problem.mirrored
    assert min(met.values()) > 50, met


@pytest.mark.parametrize("bound", [statement_bound, forward_trap_bound, backward_trap_bound])
def test_bounds_never_exceed_the_optimum(bound: object) -> None:
    reached = 0
    for i, program in programs(922, 250, range(1, 9), overlays=True):
        assert callable(bound)
        found = bound(problem_of(program))
        assert found <= bottleneck(program), i
        reached += found == bottleneck(program)
    assert reached > 120


def test_parts_between_waypoints_cost_what_the_whole_does() -> None:
    met = 0
    for i, program in programs(923, 300, range(2, 9), overlays=True):
        for problem in (problem_of(program), problem_of(program).reversed()):
            cuts = waypoints(problem)
            met += len(cuts) > 2 and program.has_overlays
            whole = problem.order_peak(range(len(problem)))
            assert whole == max(part.order_peak(range(len(part))) for part in problem.parts(cuts)), i
    assert met > 60


def test_no_rule_changes_what_is_true() -> None:
    for i, program in programs(924, 60, range(2, 9), overlays=True):
        best = bottleneck(program)
        rule = fields(Rules)[i % len(fields(Rules))].name
        solver = Solver(problem_of(program), rules=replace(ALL, **{rule: False}))
        solver.run()
        assert solver.bound <= best == solver.problem.order_peak(solver.best), rule


def test_components_with_overlays_are_certified() -> None:
    for i, plain in enumerate(unions(925, 60)):
        program = with_overlays(random.Random(i), plain)
        found = order_program(program)
        assert found.peak == found.lower_bound == bottleneck(program)
        assert found.certificate is not None


class TestMirrorImage:
    """An overlay run backwards is no overlay: neither of the obvious ways to keep the pair is right."""

    def test_the_rule_that_the_input_dies_is_too_high_there(self) -> None:
        program = build("@a=3 o=1", "A a > o | lay o on a")
        assert problem_of(program).reversed().order_peak([0]) == 3
        assert order_program(program).lower_bound == 3
        kept = replace(problem_of(program).reversed(), mirrored=False)  # the input is pinned there, so it never dies
        assert kept.order_peak([0]) == 4

    def test_swapping_the_pair_is_too_low(self) -> None:
        program = build("@a=4 o=4", "V a > o | lay o on a", "W a > | after V")
        mirror = problem_of(program).reversed()
        assert mirror.order_peak([0, 1]) == order_program(program).lower_bound == 8  # W still needs a: V saves nothing
        swapped = replace(mirror, gains=[(), ((1, 4),)], mirrored=False)  # there o dies with V whatever W does
        assert swapped.order_peak([0, 1]) == 4


class TestProofs:
    def test_a_proof_without_the_overlays_is_none(self) -> None:
        program = build("@a=10 o=10 !z=1", "A a > o | lay o on a", "B o > z | after A")
        plain = order_program(program.without_overlays()).certificate
        assert plain is not None and plain.lower_bound == 20
        with pytest.raises(Refused, match="'schema'"):
            check(program, plain.to_json())
        with pytest.raises(Refused, match="another program"):
            check(program, plain.to_json() | {"schema": "peakmem.certificate/2"})
        renamed = plain.to_json() | {"program": {"digest": program.digest}, "schema": "peakmem.certificate/2", "peak": 11}
        with pytest.raises(Refused, match="'flow'"):
            check(program, renamed)
        found = order_program(program)
        assert found.lower_bound == found.peak == 11 and found.certificate is not None
        assert found.certificate.to_json()["schema"] == "peakmem.certificate/2"

    def test_versions(self) -> None:
        for _, program in programs(926, 40, range(1, 8)):
            certificate = order_program(program).certificate
            assert certificate is not None and certificate.to_json()["schema"] == "peakmem.certificate/1"

    def test_both_ends_and_bodies(self) -> None:
        kinds: Counter[str] = Counter()
        for _, program in programs(927, 150, range(4, 13), overlays=True, tangled=True):
            found = order_program(program)
            assert found.certificate is not None and found.peak == found.lower_bound
            kinds.update(node["kind"] for node in found.certificate.to_json()["proofs"][""]["nodes"])
        assert {"forward", "reverse", "waypoint", "expand", "move"} <= kinds.keys()


def test_an_explanation_says_what_shares_with_what() -> None:
    program = build("@a=5 o=4 z=1", "V a > o | use 2 | lay o on a", "W a o > z | after V")
    found = order_program(program)
    assert found.certificate is not None
    lines = explain(program, found.certificate.to_json())
    assert "In every order a statement with an overlay may write its output on top of an input that dies with it." in lines
    assert "  less 4 B that its output shares with a (5 B)" in lines
    assert "    4 B of a (5 B), if it lives on" in lines
    assert lines[-1] == "  together 11 B, and the bound is 11 B"


class TestRecomputation:
    def test_the_floor_takes_off_what_an_overlay_may_save(self) -> None:
        program = build("@a=10 o=4", "A a > o | use 1 | lay o on a")
        found = floor(program)
        assert (found.size, found.saved) == (11, 4)
        assert "less 4" in found.sentence(program)

    def test_no_order_goes_below_the_floor(self) -> None:
        for _, program in programs(928, 300, range(1, 8), overlays=True, bodies=True):
            assert floor(program).size <= optimum(program)

    def test_plans_leave_overlays_out(self) -> None:
        for i, program in programs(929, 20, range(2, 7), overlays=True):
            order = tuple(random_order(random.Random(i), program))
            found = enlarge(program, {"": order}, time_limit=600)
            assert found.ordered_peak == peak_of(program.without_overlays(), order) >= peak_of(program, order)
            assert found.floor == floor(program.without_overlays())
            for part in (found.problems[0].program, *([found.expansion.program] if found.expansion else [])):
                assert not part.has_overlays


class TestOwnGraphs:
    GRAPH: ClassVar = {"relu": (["x"], ["y"]), "add": (["y", "x2"], ["z"])}
    SIZES: ClassVar = {"x": 8, "y": 8, "x2": 1, "z": 8}

    def test_overlays(self) -> None:
        plain = peakmem.order(self.GRAPH, self.SIZES)
        found = peakmem.order(self.GRAPH, self.SIZES, overlays={"relu": ("y", ["x"]), "add": ("z", ("y", "x2"))})
        assert plain.peak == 17 and found.peak == found.lower_bound == 9
        assert found.optimal
        assert timeline(found.program).saved_at(0) == 8

    @pytest.mark.parametrize(
        ("overlays", "says"),
        [
            ({"rleu": ("y", ["x"])}, "did you mean 'relu'"),
            ({"relu": ("z", ["x"])}, "'z' is no output of 'relu'"),
            ({"relu": ("y", ["x2"])}, "'x2' is no input of 'relu'"),
            ({"relu": "yx"}, "pair of an output"),
            ({"relu": ("y", "x")}, "list of names"),
            ({"relu": ("y", [["x"]])}, "no input"),
            ({"relu": ("y", [])}, "names no input"),
            ({"relu": ("y", ["x", "x"])}, "twice"),
        ],
    )
    def test_errors(self, overlays: dict[str, object], says: str) -> None:
        with pytest.raises(InputError, match=says):
            peakmem.order(self.GRAPH, self.SIZES, overlays=overlays)

    def test_a_pinned_input_stays(self) -> None:
        with pytest.raises(InputError, match="never freed"):
            peakmem.order(self.GRAPH, self.SIZES, pinned=["x"], overlays={"relu": ("y", ["x"])})


def test_a_program_file_from_end_to_end(tmp_path: Path) -> None:
    """The frontend of bare programs keeps overlays, and says for what its answer is optimal."""
    from peakmem.frontends.programfile import program_bytes
    from peakmem.report.words import answer

    program = build("@a=10 o=10 !z=1", "A a > o | lay o on a", "B o > z | after A")
    path = tmp_path / "program.json"
    path.write_bytes(program_bytes(program.to_json()))
    model = peakmem.load(path)
    assert model.program == program
    result = peakmem.optimize(model, measure=False)
    assert result.optimal and result.model.program.has_overlays
    assert "certified optimal with overlays" in answer(result)
    assert result.to_json()["overlays"] is True
    assert "overlays" not in peakmem.optimize(_plain(program, tmp_path), measure=False).to_json()


def _plain(program: Program, folder: Path) -> peakmem.Model:
    from peakmem.frontends.programfile import program_bytes

    path = folder / "plain.json"
    path.write_bytes(program_bytes(program.without_overlays().to_json()))
    return peakmem.load(path)


def test_the_pairs_of_an_arena_are_those_that_the_peak_counts() -> None:
    pairs = 0
    for i, program in programs(930, 200, range(1, 9), overlays=True):
        orders = {"": tuple(random_order(random.Random(i), program))}
        items, permitted = lifetimes(program, orders), may_share(program, orders)
        assert liveness_peak(items, permitted) == peak_of(program, orders[""])
        pairs += len(permitted)
    assert pairs > 100


def test_a_statement_with_bodies_shares_nothing_in_an_arena() -> None:
    body = build("@x=1", "X x >")
    plain = build("@a=4 o=4", "A a > o | lay o on a")
    program = Program(plain.buffers, (replace(plain.statements[0], bodies=(body,)),))
    assert peak_of(program) == 5 and may_share(program) == () and len(may_share(plain)) == 1
    assert liveness_peak(lifetimes(program), may_share(program)) == 9
