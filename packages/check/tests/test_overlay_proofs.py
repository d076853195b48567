"""Certificates of version 2: proofs about programs with overlays, and proofs of parts."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from oracles import Model, build, mirror_of, optimum, programs, random_order, reversed_program, scheduled_peak
from peakmem_check.model import Program, Refused
from peakmem_check.proof import check, explain
from tinyprover import EVERY_KIND, certificate


def made(program: Program, rng: random.Random, kinds: tuple[str, ...]) -> dict[str, Any]:
    orders = {path: random_order(rng, part) for path, part in [("", program), *program.bodies()]}
    document = certificate(program, orders, scheduled_peak(program, orders), rng, kinds)
    assert document is not None
    return document


def samples(seed: int, count: int, *, overlays: bool) -> Iterator[tuple[Program, dict[str, Any]]]:
    for i, program in programs(seed, count, range(1, 8), bodies=True, overlays=overlays):
        rng = random.Random(i)
        some = rng.choice(
            [EVERY_KIND, ("expand", rng.choice(EVERY_KIND)), ("components", "reverse", "jump", "move"), ("forward", "backward"),
             ("reverse", "forward", "backward", "precedence"), ("precedence", "branch", "components", "reverse")]
        )  # fmt: skip
        yield program, made(program, rng, some)


def kinds_of(document: dict[str, Any]) -> list[str]:
    return [node["kind"] for proof in document["proofs"].values() for node in proof["nodes"]]


def stated(program: Program, nodes: list[dict[str, Any]], bound: int) -> dict[str, Any]:
    """The document that claims ``bound`` for a program by the last of ``nodes``, with the given order."""
    orders = {"": list(range(len(program)))}
    return {
        "schema": "peakmem.certificate/2",
        "program": {"digest": program.digest},
        "lower_bound": bound,
        "orders": orders,
        "peak": scheduled_peak(program, orders),
        "proofs": {"": {"lower_bound": bound, "root": len(nodes) - 1, "nodes": nodes}},
    }


@pytest.mark.parametrize("overlays", [True, False])
def test_every_node_kind(overlays: bool) -> None:
    met: Counter[str] = Counter()
    for program, document in samples(910 + overlays, 150, overlays=overlays):
        report = check(program, document)
        assert report.lower_bound == optimum(program)
        assert report.peak == scheduled_peak(program, document["orders"])
        assert explain(program, document)
        met.update(kinds_of(document))
    assert met.keys() == {*EVERY_KIND, "cycle"}


def test_a_bound_above_the_optimum_has_no_proof() -> None:
    for i, program in programs(912, 60, range(1, 6), overlays=True):
        orders = {"": random_order(random.Random(i), program)}
        bound = optimum(program) + 1
        assert certificate(program, orders, scheduled_peak(program, orders), random.Random(i), EVERY_KIND, bound) is None


def test_a_step_in_the_mirror_image_costs_the_same() -> None:
    for i, program in programs(913, 200, range(9), overlays=True):
        rng = random.Random(i)
        here = Model(program)
        there = mirror_of(here, reversed_program(program))
        state: set[int] = set()
        while len(state) < here.n:
            v = rng.choice(here.ready(frozenset(state)))
            later = {here.n - 1 - u for u in range(here.n) if u not in state and u != v}
            assert here.mem(state, v) == there.mem(later, here.n - 1 - v)
            state.add(v)


class TestVersions:
    def test_a_program_with_overlays_needs_the_second(self) -> None:
        for program, document in samples(914, 40, overlays=True):
            assert document["schema"].endswith("2" if program.has_overlays or "components" in kinds_of(document) else "1")
            for version, fits in ((1, document["schema"].endswith("1")), (2, True)):
                changed = document | {"schema": f"peakmem.certificate/{version}"}
                if fits:
                    check(program, changed)
                else:
                    with pytest.raises(Refused, match="'schema'"):
                        check(program, changed)

    def test_a_components_node_that_the_root_does_not_reach_is_no_part_of_the_proof(self) -> None:
        program = build("@!a=5", "A", "B")
        nodes = [{"kind": "components"}, {"kind": "entry"}]
        check(program, stated(program, nodes, 5) | {"schema": "peakmem.certificate/1"})


class TestFlows:
    PROGRAM = build("@a=5 @b=3 o=5 @!c=2", "X b >", "V a b > o | lay o on a b", "W b >")

    def document(self, **row: Any) -> dict[str, Any]:
        row = {"statement": 1, "flows": [[], [["s", "g", 3], ["g", 2, 3], [2, 0, 3], [0, "g", 3]]]} | row
        row = {k: v for k, v in row.items() if v != "absent"}
        exits = [{"statement": 0, "flow": []}, row, {"statement": 2, "flow": []}]
        return stated(self.PROGRAM, [{"kind": "forward", "trap": [], "exits": exits}], 10)

    def test_the_least_way_decides(self) -> None:
        """On a: 15 - 5. On b: 15 - 3, for b may die with V."""
        trap = {"kind": "forward", "trap": [0, 2], "exits": [{"statement": 1, "flows": [[], []]}]}
        check(self.PROGRAM, stated(self.PROGRAM, [trap], 10))
        with pytest.raises(Refused, match=r"flows\[0\]: the flow shows 10 bytes, not 11"):
            check(self.PROGRAM, stated(self.PROGRAM, [trap], 11))
        trap["exits"] = [{"statement": 1, "flows": [[["s", "g", 5], ["g", "t", 5]], []]}]
        with pytest.raises(Refused, match="no such arc"):  # nothing but V touches a
            check(self.PROGRAM, stated(self.PROGRAM, [trap], 11))

    @pytest.mark.parametrize(
        ("row", "says"),
        [
            ({"flows": "absent"}, "'flows' must be a list"),
            ({"flows": "absent", "flow": []}, "has 'flow'"),
            ({"flow": []}, "has 'flow'"),
            ({"flow": None}, "has 'flow'"),
            ({"flows": None}, "'flows' must be a list"),
            ({"flows": []}, "has 0 entries"),
            ({"flows": [[]]}, "has 1 entries"),
            ({"flows": [[], [], []]}, "has 3 entries"),
            ({"flows": [[["s", "g", 6]], []]}, "capacity of 5"),
            ({"flows": [[], [["s", "g", 4]]]}, "capacity of 3"),
            ({"flows": [[["s", "g", 1]], []]}, "not conserved"),
            ({"flows": [[["s", "g", 1], ["g", "t", 1]], []]}, "no such arc"),
            ({"flows": [[["g", "s", 1]], []]}, "no such arc"),
            ({"flows": [[["g", "g", 1]], []]}, "no such arc"),
            ({"flows": [[["t", "g", 1]], []]}, "no such arc"),
            ({"flows": [[["s", "b0", 1]], []]}, "touches buffer 0"),
        ],
    )
    def test_refused(self, row: dict[str, Any], says: str) -> None:
        with pytest.raises(Refused, match=says):
            check(self.PROGRAM, self.document(**row))

    def test_a_toucher_outside_keeps_the_input(self) -> None:
        document = self.document(flows=[[], [["s", "g", 3], ["g", "t", 3]]])
        check(self.PROGRAM, document)  # X and W are outside of the empty trap

    def test_flows_where_there_is_no_overlay(self) -> None:
        program = build("a=5", "A > a")
        for rows in ({"flow": [], "flows": []}, {"flows": [[]]}, {"flow": [], "flows": None}):
            for version in (1, 2):
                document = stated(program, [{"kind": "forward", "trap": [], "exits": [{"statement": 0} | rows]}], 5)
                with pytest.raises(Refused, match="has 'flows'"):
                    check(program, document | {"schema": f"peakmem.certificate/{version}"})

    def test_no_overlay_no_node(self) -> None:
        program = build("a=5", "A > a")
        exits = [{"statement": 0, "flow": [["s", "g", 1], ["g", "t", 1]]}]
        with pytest.raises(Refused, match="'g' is no node"):
            check(program, stated(program, [{"kind": "forward", "trap": [], "exits": exits}], 5))

    def test_in_the_mirror_image_a_toucher_that_has_run_keeps_the_input(self) -> None:
        # o lies on a only if W, which reads a too, runs before V; in the mirror image after it.
        program = build("@a=5 o=4", "V a > o | lay o on a", "W a >")
        way = {"kind": "backward", "trap": [], "entries": [{"statement": 0, "flow": []}, {"statement": 1, "flows": [[]]}]}
        check(program, stated(program, [way, {"kind": "reverse", "then": 0}], 5))
        # V's statement is 1 there; below the whole of W it is at 9, the node "g" is none.
        trap = {"kind": "forward", "trap": [0], "exits": [{"statement": 1, "flows": [[[0, "g", 4], ["g", "t", 4]]]}]}
        with pytest.raises(Refused, match="not conserved"):
            check(program, stated(program, [trap, {"kind": "reverse", "then": 0}], 5))


class TestParts:
    PROGRAM = build("@!all=3 @a=4 b=1 x=7 y=2", "A a all > b", "B b > | after A", "X all > x", "Y x > y | after X")

    def document(self, bound: int, below: list[dict[str, Any]] | None = None, **node: Any) -> dict[str, Any]:
        leaf = below or [{"kind": "forward", "trap": [2], "exits": [{"statement": 3, "flow": []}]}]
        top = {"kind": "components", "statements": [2, 3], "flow": [], "then": len(leaf) - 1} | node
        return stated(self.PROGRAM, [*leaf, top], bound)

    def test_a_part_and_the_least_of_the_rest(self) -> None:
        # x and y are 9; the others hold 3 and, before A, 4 or, after it, 1, until B: nothing in the end.
        check(self.PROGRAM, self.document(12))
        with pytest.raises(Refused, match="9 bytes, not 10"):
            check(self.PROGRAM, self.document(13))

    @pytest.mark.parametrize(
        ("node", "says"),
        [
            ({"statements": []}, "some statements and not all"),
            ({"statements": [0, 1, 2, 3]}, "some statements and not all"),
            ({"statements": [3]}, "a dependence joins"), ({"statements": [2]}, "a dependence joins"),
            ({"statements": [2, 3, 3]}, "twice"),
            ({"statements": [2, 4]}, "must list statements"),
            ({"statements": None}, "must be a list"),
            ({"statements": ["2", "3"]}, "must list statements"),
            ({"flow": None}, "must be a list"),
            ({"flow": [["s", "b1", 1], ["b1", 0, 1], [0, "b2", 1], ["b2", "t", 1]]}, "no such arc"),
            ({"flow": [["s", "b1", 1], ["b1", 2, 1]]}, "no undecided statement"),
            ({"flow": [[2, "b3", 1]]}, "no undecided statement"),
            ({"flow": [["s", "b3", 1]]}, "'b3' is no node"),
            ({"then": 1}, "earlier node"),
            ({"then": None}, "earlier node"),
        ],
    )
    def test_refused(self, node: dict[str, Any], says: str) -> None:
        with pytest.raises(Refused, match=says):
            check(self.PROGRAM, self.document(12, **node))

    def test_a_shared_buffer_joins(self) -> None:
        for shared, says in (("@b=2", "joins"), ("!b=2", "joins"), ("b=2", "joins"), ("@!b=2", "")):
            program = build(f"{shared} x=1", "A > b", "B > b x") if "@" not in shared else build(f"{shared} x=1", "A b >", "B b > x")
            nodes = [
                {"kind": "forward", "trap": [], "exits": [{"statement": 1, "flow": []}]},
                {"kind": "components", "statements": [1], "flow": [], "then": 0},
            ]
            if says:
                with pytest.raises(Refused, match=says):
                    check(program, stated(program, nodes, 1))
            else:
                check(program, stated(program, nodes, 3))

    def test_others_are_no_statements_of_a_part(self) -> None:
        leaves: list[dict[str, Any]] = [
            {"kind": "forward", "trap": [0, 2], "exits": [{"statement": 3, "flow": []}]},
            {"kind": "forward", "trap": [2], "exits": [{"statement": 0, "flow": []}, {"statement": 3, "flow": []}]},
            {"kind": "backward", "trap": [0, 3], "entries": [{"statement": 2, "flow": []}]},
            {"kind": "waypoint", "state": [0], "then": 0},
            {"kind": "move", "statement": 0, "then": 0},
            {"kind": "jump", "path": [0], "flow": [], "then": 0},
            {"kind": "branch", "pair": [0, 2], "first": 0, "second": 0},
            {"kind": "precedence", "arcs": [{"before": 0, "after": 2, "at": 2, "flow": []}], "then": 0},
            {"kind": "components", "statements": [0, 1], "flow": [], "then": 0},
            {"kind": "cycle", "statements": [0]},
        ]
        for leaf in leaves:
            with pytest.raises(Refused, match=r"statements? of the part, not 0"):
                check(self.PROGRAM, self.document(12, [{"kind": "entry"}, leaf]))

    def test_all_the_statements_of_a_part_are_a_waypoint_of_it(self) -> None:
        leaf = [{"kind": "entry"}, {"kind": "waypoint", "state": [2, 3], "then": 0}]
        with pytest.raises(Refused, match="only 0 bytes are resident"):
            check(self.PROGRAM, self.document(4, leaf))

    def test_the_rest_must_leave_something_to_prove(self) -> None:
        with pytest.raises(Refused, match="leaves nothing to prove"):
            check(self.PROGRAM, self.document(3))

    def test_what_a_branch_orders_is_joined(self) -> None:
        document = self.document(12)
        proof = document["proofs"][""]
        proof["nodes"].append({"kind": "branch", "pair": [0, 2], "first": 1, "second": 1})
        with pytest.raises(Refused, match="a dependence joins"):
            check(self.PROGRAM, document | {"proofs": {"": proof | {"root": 2}}})

    def test_a_leaf_is_proved_for_each_bound_of_its_part(self) -> None:
        """The part shows 9. The others hold 4 at least, of which an empty flow shows 3 before B has run."""
        program = build("@!all=3 @d=1 !e=1 x=7 y=2", "A all >", "B d > e", "X > x", "Y x > y | after X")
        leaf = {"kind": "forward", "trap": [2], "exits": [{"statement": 3, "flow": []}]}
        d_or_e = [["s", "b1", 1], ["b1", 1, 1], [1, "b2", 1], ["b2", "t", 1]]
        for flows in ([d_or_e, [], d_or_e], [[], [], d_or_e], [d_or_e, [], []]):
            parts = [{"kind": "components", "statements": [2, 3], "flow": flow, "then": 0} for flow in flows]
            nodes = [leaf, *parts, {"kind": "expand", "children": {"0": 1, "1": 2, "2": 3}}]
            if flows.count([]) == 1:
                check(program, stated(program, nodes, 13))
            else:
                with pytest.raises(Refused, match="9 bytes, not 10"):
                    check(program, stated(program, nodes, 13))


def test_mutated_certificates_are_refused_or_true() -> None:
    """A change of one number of a proof: what is still accepted still claims no more than the optimum."""
    refused = 0
    for i, (program, document) in enumerate(samples(915, 40, overlays=True)):
        rng = random.Random(i)
        best = optimum(program)
        for _ in range(20):
            changed = copy.deepcopy(document)
            places = [p for p in _numbers(changed) if p[0] is not changed["orders"]]
            box, key = rng.choice(places)
            box[key] = rng.choice((box[key] + 1, max(0, box[key] - 1), rng.randint(0, 9)))
            try:
                report = check(program, changed)
            except Refused:
                refused += 1
            else:
                assert report.lower_bound <= best <= report.peak
    assert refused > 400


def _numbers(value: Any) -> Iterator[tuple[Any, Any]]:
    for key in list(value.keys() if isinstance(value, dict) else range(len(value))):
        if type(value[key]) is int:
            yield value, key
        elif isinstance(value[key], dict | list):
            yield from _numbers(value[key])
