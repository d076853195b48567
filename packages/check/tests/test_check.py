"""The certificate checker: accepts proofs of every kind, refuses whatever is false, survives whatever is given."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from oracles import build, optimum, programs, random_order, scheduled_peak
from peakmem_check.jsonfile import parse_json
from peakmem_check.model import Buffer, InputError, PeakmemError, Program, Refused, Statement
from peakmem_check.proof import check
from tinyprover import KINDS, certificate


def orders_of(program: Program, rng: random.Random | None = None) -> dict[str, list[int]]:
    parts = [("", program), *program.bodies()]
    return {path: random_order(rng, part) if rng else list(range(len(part))) for path, part in parts}


def made(program: Program, rng: random.Random, kinds: tuple[str, ...] = KINDS) -> dict[str, Any]:
    orders = orders_of(program, rng)
    document = certificate(program, orders, scheduled_peak(program, orders), rng, kinds)
    assert document is not None
    return document


def stated(program: Program, nodes: list[dict[str, Any]], bound: int) -> dict[str, Any]:
    """The document that claims ``bound`` for a program by the last of ``nodes``, with the given order."""
    return {
        "schema": "peakmem.certificate/1",
        "program": {"digest": program.digest},
        "artifact": None,
        "lower_bound": bound,
        "orders": {"": list(range(len(program)))},
        "peak": scheduled_peak(program, {"": range(len(program))}) if len(program) < 100 else 0,
        "proofs": {"": {"lower_bound": bound, "root": len(nodes) - 1, "nodes": nodes}},
    }


def exits_of(*statements: int) -> list[dict[str, Any]]:
    return [{"statement": v, "flow": []} for v in statements]


def kept_and(n: int, *, chain: bool = False) -> Program:
    """n statements that each write one byte, beside nine bytes kept from entry."""
    return Program(
        (Buffer("kept", 9, "input", True), *(Buffer(f"x{i}", 1) for i in range(n))),
        tuple(Statement(f"s{i}", writes=(i + 1,), dependences=(i - 1,) if chain and i else ()) for i in range(n)),
    )


@cache
def flows() -> list[tuple[Program, dict[str, Any], tuple[Any, ...]]]:
    """Certificates with the places of their flows that are not empty."""
    found = []
    for i, program in programs(8, 60, range(8, 13), tangled=True):
        document = made(program, random.Random(i), ("forward", "backward"))
        for path in leaves(document):
            if path and path[-1] == "flow" and replaced(document, path, lambda c, k: c.__setitem__(k, [])) != document:
                found.append((program, document, path))
    return found


def samples(
    seed: int, count: int, sizes: range, *, bodies: bool = True, kinds: tuple[str, ...] = ()
) -> Iterator[tuple[Program, dict[str, Any]]]:
    """Random programs with certificates of their optimum; every node kind occurs."""
    for i, program in programs(seed, count, sizes, bodies=bodies):
        rng = random.Random(i)
        some = rng.choice(
            [KINDS, ("expand", rng.choice(KINDS)), ("precedence", "branch", "waypoint", "move", "jump", "reverse")]
        )
        yield program, made(program, rng, kinds or some)


def fork(workspace: int = 0) -> Program:
    """in -> a, b (both read in); a -> c; b -> d; c, d -> out. Sizes make the two ways differ."""
    sizes = {"in": 4, "a": 10, "b": 8, "c": 1, "d": 7, "out": 2}
    buffers = tuple(
        Buffer(k, s, "input" if k == "in" else "output" if k == "out" else "intermediate", k == "out")
        for k, s in sizes.items()
    )
    return Program(
        buffers,
        (
            Statement("A", reads=(0,), writes=(1,), workspace=workspace),
            Statement("B", reads=(0,), writes=(2,)),
            Statement("C", reads=(1,), writes=(3,), dependences=(0,)),
            Statement("D", reads=(2,), writes=(4,), dependences=(1,)),
            Statement("E", reads=(3, 4), writes=(5,), dependences=(2, 3)),
        ),
    )


class TestAccepts:
    def test_every_node_kind(self) -> None:
        met: Counter[str] = Counter()
        for program, document in samples(1, 120, range(9)):
            report = check(program, document)
            assert report.lower_bound == optimum(program)
            assert report.peak == scheduled_peak(program, document["orders"])
            assert report.optimal == (report.peak == report.lower_bound)
            for proof in document["proofs"].values():
                met.update(node["kind"] for node in proof["nodes"])
        assert met.keys() == {*KINDS, "cycle"}

    def test_bounds_below_the_optimum(self) -> None:
        for i, program in programs(2, 60, range(1, 8)):
            rng = random.Random(i)
            best = optimum(program)
            bound = rng.randint(0, best)
            document = certificate(
                program, orders_of(program), scheduled_peak(program, orders_of(program)), rng, bound=bound
            )
            assert document is not None
            assert check(program, document).lower_bound == bound

    def test_after_json(self) -> None:
        for program, document in samples(3, 20, range(1, 8)):
            assert check(program, json.loads(json.dumps(document))) == check(program, document)

    def test_no_proof_is_a_bound_of_zero(self) -> None:
        program = fork()
        document = made(program, random.Random(0))
        document |= {"proofs": {}, "lower_bound": 0}
        report = check(program, document)
        assert (report.lower_bound, report.optimal, report.nodes, report.flows) == (0, False, 0, 0)

    def test_empty_program(self) -> None:
        program = Program((Buffer("x", 7, "input", True), Buffer("y", 9, "input")), ())
        report = check(program, made(program, random.Random(0)))
        assert (report.lower_bound, report.peak, report.optimal) == (7, 7, True)

    def test_shared_nodes_in_several_contexts(self) -> None:
        """One entry node closes every path of a search: valid in all its contexts."""
        program = kept_and(3)
        nodes = [{"kind": "entry"}, {"kind": "expand", "children": {"0": 0, "1": 0, "2": 0}}]
        document = stated(program, nodes, 9)
        assert check(program, document).nodes == 4

    def test_large_program_with_a_small_trap(self) -> None:
        """A chain of 20,000 statements: one flow with an empty network proves the peak."""
        n = 20_000
        buffers = tuple(Buffer(f"x{i}", 100 if i == n // 2 else 3) for i in range(n + 1))
        program = Program(
            buffers,
            tuple(
                Statement(f"s{i}", reads=(i,) if i else (), writes=(i + 1,), dependences=(i - 1,) if i else ())
                for i in range(n)
            ),
        )
        v = n // 2
        node = {"kind": "forward", "trap": list(range(v)), "exits": [{"statement": v, "flow": []}]}
        document = stated(program, [node], 103) | {"peak": 103}
        assert check(program, document).optimal


# -- soundness -----------------------------------------------------------------------------------------------------


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths to every value inside a document."""
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from leaves(item, (*path, i))


def replaced(document: Any, path: tuple[Any, ...], make: Any) -> Any:
    """A copy of the document with ``make(container, key)`` done at the place."""
    result = copy.deepcopy(document)
    container = result
    for key in path[:-1]:
        container = container[key]
    make(container, path[-1])
    return result


def mutations(document: Any, rng: random.Random) -> Iterator[tuple[str, Any]]:
    """One random change at every place of the document."""
    for path in list(leaves(document))[1:]:
        value: Any = document
        for key in path:
            value = value[key]

        def put(new: Any) -> Any:
            return lambda container, place: container.__setitem__(place, new)

        changes: list[tuple[str, Any]] = [("null", put(None)), ("drop", lambda c, k: c.pop(k))]
        if isinstance(value, int) and not isinstance(value, bool):
            changes += [
                (f"to {x!r}", put(x)) for x in (value + 1, value + 1, value - 1, value - 1, 0, rng.randint(0, 9))
            ]
            changes += [(f"to {x!r}", put(x)) for x in (2**70, -1, True, float(value), str(value), float("nan"))]
        elif isinstance(value, str):
            changes += [("text", put(value + "0")), ("text", put("s")), ("text", put("b0")), ("number", put(0))]
        elif isinstance(value, list):
            changes += [("empty", put([])), ("object", put({}))]
            if value:
                changes += [
                    ("twice", put([*value, value[-1]])),
                    ("shorter", put(value[1:])),
                    ("reversed", put(value[::-1])),
                ]
        elif isinstance(value, dict):
            changes += [("list", put([])), ("empty", put({}))]
        word, make = rng.choice(changes)
        yield f"{'/'.join(map(str, path))}: {word}", replaced(document, path, make)


def accepted_is_true(program: Program, document: Any, what: str, best: int) -> bool:
    """Whether the document is accepted; if so, all it claims is true."""
    try:
        report = check(program, document)
    except Refused as error:
        assert "\n" not in str(error)
        return False
    assert report.lower_bound == document["lower_bound"] <= best, what
    assert report.peak == document["peak"] == scheduled_peak(program, document["orders"]), what
    assert report.optimal == (report.peak == report.lower_bound), what
    return True


class TestRefuses:
    def test_one_more_byte(self) -> None:
        """The bound raised by one everywhere is false, so whatever slack the flows have, it must be refused."""
        for program, document in samples(4, 150, range(9), bodies=False):
            document["lower_bound"] += 1
            document["proofs"].setdefault("", {"root": 0, "nodes": [{"kind": "entry"}]})["lower_bound"] = document[
                "lower_bound"
            ]
            with pytest.raises(Refused):
                check(program, document)

    def test_every_field_mutated(self) -> None:
        tried = accepted = 0
        for k, (program, document) in enumerate(samples(5, 60, range(2, 8))):
            best = optimum(program)
            rng = random.Random(k)
            for what, mutated in mutations(document, rng):
                tried += 1
                accepted += accepted_is_true(program, mutated, f"program {k}: {what}", best)
        assert tried > 2000
        assert (
            accepted < tried / 5
        )  # some changes leave a valid proof: another legal order, less flow where there is slack

    def test_proof_of_another_program(self) -> None:
        """The certificate of a program against a slightly different one, the digest made to fit."""
        tried = accepted = 0
        for k, (program, document) in enumerate(samples(6, 250, range(2, 8), bodies=False)):
            rng = random.Random(k)
            for other in changed(program, rng):
                tried += 1
                mutated = copy.deepcopy(document)
                mutated["program"]["digest"] = other.digest
                mutated["peak"] = scheduled_peak(other, mutated["orders"])
                accepted += accepted_is_true(other, mutated, f"program {k}", optimum(other))
        assert tried > 500
        assert 0 < accepted < tried

    def test_flow_amounts(self) -> None:
        """In a flow every single amount matters: one byte more or less anywhere is not conserved, or is too little."""
        changed = 0
        for program, document in samples(7, 60, range(8, 12), bodies=False, kinds=("forward", "backward")):
            for path in list(leaves(document)):
                if len(path) > 3 and path[-1] == 2 and path[-3] == "flow":
                    for delta in (1, -1):
                        mutated = replaced(document, path, lambda c, k, d=delta: c.__setitem__(k, c[k] + d))
                        changed += 1
                        with pytest.raises(Refused):
                            check(program, mutated)
        assert changed > 100

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (lambda flow: [[a, b, 1000 * x] for a, b, x in flow], "over a capacity"),
            (lambda flow: [*flow, flow[0]], "repeats the arc"),
            (lambda flow: [[a, b, -x] for a, b, x in flow], "positive whole number"),
            (lambda flow: [[a, b, 0] for a, b, _ in flow], "positive whole number"),
            (lambda flow: [row[:2] for row in flow], r"must be \[from, to, amount\]"),
            (lambda flow: [[b, a, x] for a, b, x in flow], "uses an arc"),
            (lambda flow: [[a, "t", x] if a == "s" else [a, b, x] for a, b, x in flow], "uses an arc"),
            (lambda flow: [[None, b, x] for _, b, x in flow], "between nodes"),
            (lambda flow: [[a, True, x] for a, _, x in flow], "between nodes"),
            (lambda flow: [row for row in flow if row[1] != "t"], "not conserved"),
            (lambda flow: [row for row in flow if row[0] != "s"], "not conserved"),
        ],
    )
    def test_whole_flows(self, change: Any, says: str) -> None:
        """Each way a flow can be wrong."""
        found = flows()
        assert len(found) > 20
        for program, document, path in found:
            mutated = replaced(document, path, lambda c, k: c.__setitem__(k, change(c[k])))
            with pytest.raises(Refused, match=says):
                check(program, mutated)

    @pytest.mark.parametrize(
        ("field", "value", "says"),
        [
            ("schema", "peakmem.certificate/3", "'schema'"),
            ("program", {"digest": "sha256:00"}, "another program"),
            ("program", {}, "another program"),
            ("artifact", {"digest": 1}, "'artifact'"),
            ("artifact", [], "'artifact'"),
            ("orders", {}, "orders[''] is missing"),
            ("orders", {"": [0, 1, 2, 3]}, "has 4 statements"),
            ("orders", {"": [0, 1, 2, 3, 3]}, "twice"),
            ("orders", {"": [0, 1, 2, 3, 5]}, "must list statements"),
            ("orders", {"": [0, 1, 2, 3, True]}, "must list statements"),
            ("orders", {"": [2, 0, 1, 3, 4]}, "'C' before 'A'"),
            ("orders", {"": [0, 1, 2, 3, 4], "0/0": []}, "no body"),
            ("orders", [0, 1, 2, 3, 4], "'orders' must be an object"),
            ("peak", 1, "'peak' is given as 1"),
            ("peak", True, "'peak'"),
            ("peak", 10**6000, "'peak'"),
            ("lower_bound", 3, "'lower_bound' is given as 3"),
            ("lower_bound", -1, "'lower_bound'"),
            ("lower_bound", float("nan"), "'lower_bound'"),
            ("proofs", None, "'proofs'"),
            ("proofs", {"1/0": {}}, "no body"),
            ("proofs", {"": []}, "proofs['']"),
            ("proofs", {"": {"lower_bound": 1, "root": 0, "nodes": []}}, "'root'"),
            ("proofs", {"": {"lower_bound": 1, "root": True, "nodes": [{"kind": "entry"}]}}, "'root'"),
        ],
        ids=lambda value: value if isinstance(value, str) else type(value).__name__,
    )
    def test_fields(self, field: str, value: object, says: str) -> None:
        program = fork()
        document = made(program, random.Random(0)) | {field: value}
        with pytest.raises(Refused) as caught:
            check(program, document)
        assert says in str(caught.value)

    @pytest.mark.parametrize(
        ("nodes", "says"),
        [
            ([{"kind": "magic"}], "unknown kind"),
            ([{"kind": []}], "unknown kind"),
            ([{}], "unknown kind"),
            ([7], "must be an object"),
            ([{"kind": "entry"}], "only 4 bytes"),
            ([{"kind": "forward", "trap": [2], "exits": []}], "without 'A'"),
            ([{"kind": "forward", "trap": [0, 1, 2, 3, 4], "exits": []}], "whole program"),
            ([{"kind": "forward", "trap": [], "exits": []}], "'A' is an exit"),
            ([{"kind": "forward", "trap": [0, 0], "exits": []}], "twice"),
            ([{"kind": "forward", "trap": [0], "exits": [{"statement": 4, "flow": []}]}], "is an exit"),
            ([{"kind": "forward", "trap": [], "exits": exits_of(0, 1, 2)}], "'C' is no exit"),
            ([{"kind": "backward", "trap": [], "entries": exits_of(2, 4)}], "'C' is no entry"),
            ([{"kind": "backward", "trap": [3], "entries": []}], "without 'D'"),
            ([{"kind": "backward", "trap": [0, 1, 2, 3, 4], "entries": []}], "nothing to run before"),
            ([{"kind": "backward", "trap": [], "entries": []}], "'E' is an entry"),
            ([{"kind": "cycle", "statements": []}], "empty"),
            ([{"kind": "cycle", "statements": [0, 2]}], "does not directly precede"),
            ([{"kind": "expand", "children": {}}], "'A' is ready"),
            ([{"kind": "expand", "children": {"0": None, "1": None}}], "needs a child"),
            ([{"kind": "expand", "children": {"0": 0, "1": 0}}], "index of an earlier node"),
            ([{"kind": "expand", "children": {"0": None, "1": None, "2": None}}], "2 statements are ready"),
            ([{"kind": "branch", "pair": [0, 2], "first": 0, "second": 0}], "ordered already"),
            ([{"kind": "branch", "pair": [2, 0], "first": 0, "second": 0}], "ordered already"),
            ([{"kind": "branch", "pair": [0, 0], "first": 0, "second": 0}], "ordered already"),
            ([{"kind": "branch", "pair": [0], "first": 0, "second": 0}], "two statements"),
            ([{"kind": "waypoint", "state": [0], "then": 0}], "does not precede"),
            ([{"kind": "waypoint", "state": [2], "then": 0}], "without 'A'"),
            ([{"kind": "move", "statement": 2, "then": 0}], "not ready"),
            ([{"kind": "move", "statement": 0, "then": 0}], "more than before"),
            ([{"kind": "jump", "path": [0, 2], "flow": [], "then": 0}], "the flow does not show"),
            ([{"kind": "precedence", "arcs": [{"before": 0, "after": 1, "at": 2}], "then": 0}], "one of the pair"),
            (
                [{"kind": "precedence", "arcs": [{"before": 0, "after": 1, "at": 1, "flow": []}], "then": 0}],
                "shows 12 bytes",
            ),
        ],
    )
    def test_nodes(self, nodes: list[Any], says: str) -> None:
        program = fork()
        document = made(program, random.Random(0))
        assert document["lower_bound"] == 16
        document["proofs"][""] = {"lower_bound": 16, "root": len(nodes) - 1, "nodes": nodes}
        with pytest.raises(Refused) as caught:
            check(program, document)
        assert says in str(caught.value)

    @pytest.mark.parametrize(
        ("leaf", "says"),
        [
            ({"kind": "forward", "trap": [], "exits": []}, "misses 's0'"),
            ({"kind": "backward", "trap": [0], "entries": []}, "holds 's0'"),
            ({"kind": "waypoint", "state": [], "then": 0}, "misses 's0'"),
            ({"kind": "move", "statement": 0, "then": 0}, "not ready"),
            ({"kind": "reverse", "then": 0}, "not the empty one"),
        ],
    )
    def test_nodes_at_a_state(self, leaf: dict[str, Any], says: str) -> None:
        """Below a step the same sets no longer fit."""
        nodes = [{"kind": "entry"}, leaf, {"kind": "expand", "children": {"0": 1, "1": 0, "2": 0}}]
        with pytest.raises(Refused, match=says):
            check(kept_and(3), stated(kept_and(3), nodes, 9))

    def test_one_byte_too_much(self) -> None:
        """Each leaf at exactly the bound it can show, and one above."""
        program = kept_and(2)
        flows = [{"statement": 0, "flow": []}, {"statement": 1, "flow": []}]
        leaves_at = (
            (9, {"kind": "entry"}),
            (10, {"kind": "forward", "trap": [], "exits": flows}),
            (10, {"kind": "backward", "trap": [], "entries": flows}),
            (10, {"kind": "expand", "children": {"0": None, "1": None}}),
        )
        for bound, leaf in leaves_at:
            assert check(program, stated(program, [leaf], bound)).lower_bound == bound
            with pytest.raises(Refused):
                check(program, stated(program, [leaf], bound + 1))

    def test_a_move_must_fit_the_budget(self) -> None:
        program = build("@in=9", "A in > | use 5", "B >")
        nodes = [{"kind": "entry"}, {"kind": "move", "statement": 0, "then": 0}]
        with pytest.raises(Refused, match="14 bytes, which is not within the budget"):
            check(program, stated(program, nodes, 9))

    def test_an_exit_listed_twice(self) -> None:
        exits = [{"statement": 0, "flow": []}, {"statement": 0, "flow": []}, {"statement": 1, "flow": []}]
        document = stated(kept_and(2), [{"kind": "forward", "trap": [], "exits": exits}], 10)
        with pytest.raises(Refused, match="'s0' twice"):
            check(kept_and(2), document)

    def test_a_circle_of_precedences_needs_a_cycle(self) -> None:
        program = kept_and(2)
        arcs = [{"before": u, "after": v, "at": v, "flow": []} for u, v in ((0, 1), (1, 0))]
        last = {"kind": "precedence", "arcs": arcs, "then": 0}
        assert check(program, stated(program, [{"kind": "cycle", "statements": [0, 1]}, last], 10)).optimal
        with pytest.raises(Refused, match="cyclic"):
            check(program, stated(program, [{"kind": "entry"}, last], 9))

    def test_reversal_comes_first(self) -> None:
        """The mirror image is that of the program itself; added precedences are not turned round with it."""
        program = kept_and(2)
        nodes = [
            {"kind": "entry"},
            {"kind": "reverse", "then": 0},
            {"kind": "branch", "pair": [0, 1], "first": 1, "second": 0},
        ]
        with pytest.raises(Refused, match="added precedence"):
            check(program, stated(program, nodes, 9))

    def test_precedence_below_a_state(self) -> None:
        program = fork()
        document = made(program, random.Random(0))
        for node in (
            {"kind": "precedence", "arcs": [], "then": 0},
            {"kind": "branch", "pair": [0, 1], "first": 0, "second": 0},
        ):
            nodes = [{"kind": "entry"}, node, {"kind": "expand", "children": {"0": 1, "1": None}}]
            document["proofs"][""] = {"lower_bound": 12, "root": 2, "nodes": nodes}
            with pytest.raises(Refused, match="not the empty one"):
                check(program, document)

    def test_bodies_count_only_as_far_as_they_are_proved(self) -> None:
        inner = Program((Buffer("x", 50), Buffer("y", 1)), (Statement("p", writes=(0,)), Statement("q", writes=(1,))))
        outer = Program((), (Statement("if", workspace=3, bodies=(inner,)),))
        document = made(outer, random.Random(0))
        assert check(outer, document).lower_bound == 53
        del document["proofs"]["0/0"]
        with pytest.raises(Refused, match=r"only 0 bytes|shows 3 bytes|runs in 3 bytes"):
            check(outer, document)


def changed(program: Program, rng: random.Random) -> Iterator[Program]:
    """Programs that differ a little; those that are no programs are left out."""
    for _ in range(4):
        buffers, statements = list(program.buffers), list(program.statements)
        try:
            match rng.randrange(5):
                case 0 if buffers:
                    b = rng.randrange(len(buffers))
                    buffers[b] = replace(buffers[b], size=max(0, buffers[b].size + rng.choice((-1, -2, 1))))
                case 1 if buffers:
                    b = rng.randrange(len(buffers))
                    buffers[b] = replace(buffers[b], pinned=not buffers[b].pinned)
                case 2:
                    v = rng.randrange(len(statements))
                    statements[v] = replace(statements[v], dependences=statements[v].dependences[1:])
                case 3:
                    v = rng.randrange(len(statements))
                    statements[v] = replace(statements[v], reads=statements[v].reads[1:])
                case 4:
                    v = rng.randrange(len(statements))
                    statements[v] = replace(statements[v], workspace=max(0, statements[v].workspace - 1))
            other = Program(tuple(buffers), tuple(statements))
        except PeakmemError:
            continue
        if other != program:
            yield other


class TestHostile:
    @pytest.mark.parametrize(
        "document", [None, 1, "x", [], {}, {"schema": []}, float("nan"), {"schema": "peakmem.certificate/1"}]
    )
    def test_not_a_certificate(self, document: object) -> None:
        with pytest.raises(Refused):
            check(fork(), document)

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\xff\xfe",
            b"{",
            b'{"peak": NaN}',
            b'{"peak": Infinity}',
            b'{"peak": 1, "peak": 2}',
            b"[" * 200_000 + b"]" * 200_000,
            b'{"peak": ' + b"9" * 10_000 + b"}",
        ],
        ids=["empty", "not-utf8", "cut", "nan", "infinity", "duplicate", "deep", "long-number"],
    )
    def test_files_that_are_no_json(self, data: bytes) -> None:
        with pytest.raises(InputError, match=r"cert\.json"):
            parse_json(data, "cert.json")

    def test_deep_values_are_not_walked(self) -> None:
        program = fork()
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        for field in ("schema", "program", "artifact", "lower_bound", "orders", "peak", "proofs"):
            with pytest.raises(Refused):
                check(program, made(program, random.Random(0)) | {field: deep})

    def test_long_chain_of_nodes(self) -> None:
        """Depth of a proof is bounded by the file alone; nothing recurses."""
        n = 5000
        program = kept_and(n, chain=True)
        nodes: list[dict[str, Any]] = [{"kind": "entry"}]
        nodes += [{"kind": "expand", "children": {str(n - i): i - 1}} for i in range(1, n + 1)]
        document = stated(program, nodes, 9) | {"peak": 10}
        report = check(program, document)
        assert (report.nodes, report.optimal) == (n + 1, False)

    def test_branches_must_not_blow_up(self) -> None:
        """Nested branches over one shared child double the contexts at every level."""
        n = 40
        program = kept_and(n)
        nodes: list[dict[str, Any]] = [{"kind": "entry"}]
        nodes += [{"kind": "branch", "pair": [2 * i, 2 * i + 1], "first": i, "second": i} for i in range(n // 2)]
        document = stated(program, nodes, 9)
        with pytest.raises(Refused, match="more contexts"):
            check(program, document)

    @pytest.mark.parametrize(("statements", "unused", "accepted"), [(1055, 0, True), (1056, 0, False), (1056, 1, True)])
    def test_contexts_are_counted_exactly(self, statements: int, unused: int, accepted: bool) -> None:
        """The root and one state for each statement, against 16 for each node of the list and 1024."""
        program = kept_and(statements)
        nodes = [{"kind": "entry"}] * (1 + unused)
        nodes.append({"kind": "expand", "children": {str(v): 0 for v in range(statements)}})
        document = stated(program, nodes, 9) | {"peak": 10}
        if accepted:
            assert check(program, document).nodes == statements + 1
        else:
            with pytest.raises(Refused, match=f"more contexts than the {16 * len(nodes) + 1024} allowed"):
                check(program, document)
