"""The proof in words: what it says is true, and its sums add up."""

from __future__ import annotations

import json
import random
import re
from itertools import combinations

import pytest
from oracles import Model, build, optimum, programs, scheduled_peak
from peakmem.model import Buffer, Program, Refused, Statement
from peakmem.ordering import order_program
from peakmem.proof import explain
from peakmem_check.proof.explain import _paths
from tinyprover import KINDS, Prover, certificate

BYTES = re.compile(r"^ +([\d,]+) B ")


def number(text: str) -> int:
    return int(text.replace(",", ""))


def test_sums_add_up_to_the_bound() -> None:
    sums = 0
    for i, program in programs(400, 200, range(1, 10), bodies=True):
        orders = {path: range(len(part)) for path, part in [("", program), *program.bodies()]}
        document = certificate(program, orders, scheduled_peak(program, orders), random.Random(i), KINDS)
        assert document is not None
        lines = explain(program, document)
        assert f"at least {optimum(program):,} B" in lines[0]
        assert "\n".join(lines).count("the whole proof has") <= 1
        total = 0
        for line in lines:
            together = re.match(r"^  together ([\d,]+) B", line)
            if together:
                assert total == number(together[1])
                assert total >= document["lower_bound"]
                sums += 1
                total = 0
            elif BYTES.match(line):
                total += number(BYTES.match(line)[1])  # type: ignore[index]
    assert sums > 50


def test_alternatives_are_true_at_every_state() -> None:
    """On each path of a flow one buffer is live at every state between L and U, and no buffer is used twice over."""
    states = 0
    for i, program in programs(401, 60, range(4, 9), tangled=True):
        model = Model(program)
        prover = Prover(program, model.workspace, 0, random.Random(i))
        dag = tuple(frozenset(p) for p in model.before)
        for v in range(model.n):
            low = prover.ancestors(dag, v)
            high = prover.all - {v} - prover.descendants(dag, v)
            paths = _paths(prover.cut(dag, v, low, high)[1])
            free = sorted(high - low)
            for k in range(len(free) + 1):
                for extra in combinations(free, k):
                    state = low | set(extra)
                    if all(model.before[u] <= state for u in state):
                        live = model.resident(state) - model.touches[v]
                        states += 1
                        assert all(live & set(buffers) for buffers in paths)
            for b, size in enumerate(model.size):
                assert sum(amount for buffers, amount in paths.items() if b in buffers) <= size
    assert states > 1000


def test_circles_in_a_flow_are_cancelled() -> None:
    flow = [
        ["s", "b0", 2],
        ["b0", 1, 2],
        [1, 0, 5],
        [0, "j1", 3],
        ["j1", "b1", 3],
        ["b1", 1, 3],
        [0, "b2", 2],
        ["b2", "t", 2],
    ]
    assert _paths(flow) == {(0, 2): 2}


def test_the_statement_that_is_the_floor() -> None:
    program = build("a=4 b=5 !c=1", "A > a", "big a > b | after A | use 6", "C b > c | after big")
    certificate_of = order_program(program).certificate
    assert certificate_of is not None
    assert explain(program, certificate_of.to_json()) == [
        "Every order of the 3 statements has a peak of at least 15 B.",
        "The order in the certificate has exactly that peak, so it is optimal.",
        "Every order first runs 'A', because all others need it.",
        "The statement 'big' is the floor: whenever it runs, it needs",
        "  6 B of workspace",
        "  9 B that it touches: b (5 B), a (4 B)",
        "  together 15 B",
    ]


def test_bodies_are_mentioned() -> None:
    inner = build("x=50", "p > x")
    program = Program((Buffer("y", 1),), (Statement("if", writes=(0,), bodies=(inner,)),))
    found = order_program(program).certificate
    assert found is not None
    text = "\n".join(explain(program, json.loads(found.to_bytes())))
    assert "body 0/0 at least 50 B" in text
    assert "together 51 B" in text


def test_the_solver_is_explained_too() -> None:
    for _, program in programs(402, 100, range(1, 14), tangled=True):
        found = order_program(program).certificate
        assert found is not None
        lines = explain(program, json.loads(found.to_bytes()))
        assert "optimal" in lines[1]
        assert len(lines) > 2


def test_an_invalid_certificate_is_not_explained() -> None:
    program = build("a=4", "A > a")
    found = order_program(program).certificate
    assert found is not None
    document = json.loads(found.to_bytes())
    document["peak"] += 1
    with pytest.raises(Refused):
        explain(program, document)
