"""What a search stopped early may claim: no less than its proof shows, no more than is true, the same every time."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from oracles import bottleneck, programs
from peakmem.frontends.programfile import frontend
from peakmem.model import Buffer, Program, Refused, Statement
from peakmem.ordering import Ordering, order_program
from peakmem.ordering.bounds import forward_trap
from peakmem.ordering.meter import Meter, OutOfTime
from peakmem.ordering.problem import problem_of
from peakmem.proof import check

FAULTS = Path(__file__).parents[4] / "shared" / "data" / "faults" / "graphs"
needs_faults = pytest.mark.skipif(not FAULTS.is_dir(), reason="needs the shared data (faults/graphs/), which is not here")


def shared(name: str) -> Program:
    return frontend.load(FAULTS / name, {}).program


def raised(ordering: Ordering) -> dict[str, Any]:
    """The certificate, claiming one byte more."""
    assert ordering.certificate is not None
    document = json.loads(ordering.certificate.to_bytes())
    document["lower_bound"] += 1
    document["proofs"][""]["lower_bound"] += 1
    return document  # type: ignore[no-any-return]


def training_step(n: int) -> Program:
    """n layers forwards, whose outputs are kept, n backwards; and n statements beside them that nothing orders."""
    buffers = [Buffer("x", 8, "input")]
    statements: list[Statement] = []
    for i in range(n):
        buffers.append(Buffer(f"a{i}", 16))
        statements.append(Statement(f"f{i}", reads=(i,), writes=(i + 1,), dependences=(i - 1,) if i else ()))
    for i in reversed(range(n)):
        buffers.append(Buffer(f"g{i}", 8))
        here = len(buffers) - 1
        last = len(statements) - 1
        statements.append(Statement(f"b{i}", reads=(i + 1, here - 1), writes=(here,), dependences=tuple(sorted({i, last}))))
    for i in range(n):
        buffers.append(Buffer(f"s{i}", 1, "output", pinned=True))
        statements.append(Statement(f"s{i}", writes=(len(buffers) - 1,)))
    return Program(tuple(buffers), tuple(statements))


class TestHotStatements:
    def test_one_cut_proves_a_large_training_step(self) -> None:
        program = training_step(600)
        found = order_program(program, effort=20 * len(program))
        assert found.peak == found.lower_bound
        assert found.certificate is not None
        (proof,) = found.certificate.to_json()["proofs"].values()
        nodes = [node for node in proof["nodes"] if node["kind"] == "forward"]
        assert [len(node["exits"]) for node in nodes] == [1]

    @needs_faults
    def test_a_training_graph_of_three_thousand_statements(self) -> None:
        found = order_program(shared("bound/big.prog.json"), effort=100_000)
        assert found.lower_bound > 0.99 * found.peak

    @needs_faults
    def test_unconnected_statements_beside_a_training_graph(self) -> None:
        found = order_program(shared("union_nasnet_branches.json"), effort=100_000)
        assert found.lower_bound == found.peak == 40_044_672


class TestClaims:
    def test_what_the_proof_shows_is_what_is_claimed(self) -> None:
        """One byte more is refused, wherever the search was stopped."""
        stopped = searches = 0
        for i, program in programs(311, 500, range(6, 14), tangled=True):
            found = order_program(program, effort=random.Random(i).randrange(1, 300))
            assert found.lower_bound <= bottleneck(program) <= found.peak
            with pytest.raises(Refused):
                check(program, raised(found))
            assert found.certificate is not None
            stopped += found.lower_bound < found.peak
            searches += any(n["kind"] == "expand" for n in found.certificate.to_json()["proofs"][""]["nodes"])
        assert stopped > 20
        assert searches > 0

    def test_the_first_bound_has_its_proof_where_buffers_have_several_births(self) -> None:
        several = 0
        for _, program in programs(316, 600, range(4, 12)):
            found = order_program(program, effort=0)
            assert found.certificate is not None, found.notes
            assert found.lower_bound <= bottleneck(program)
            several += any(len(births) > 1 for births in program.births)
        assert several > 50

    @needs_faults
    @pytest.mark.parametrize("effort", [10_000, 30_000, 300_000])
    def test_on_a_large_graph(self, effort: int) -> None:
        program = shared("bound/big.prog.json")
        with pytest.raises(Refused):
            check(program, raised(order_program(program, effort=effort)))

    def test_a_trap_stopped_while_it_grows_keeps_the_last_one_that_closed(self) -> None:
        kept = 0
        for _, program in programs(312, 200, range(8, 13), tangled=True):
            problem = problem_of(program)
            whole = forward_trap(problem, 0)
            for effort in range(5, 200, 20):
                try:
                    trap = forward_trap(problem, 0, meter=Meter(effort=effort))
                except OutOfTime:
                    continue
                assert trap.level <= whole.level
                kept += trap.exits != () and not trap.closed
        assert kept > 50


class TestEffort:
    def test_the_same_answer_every_time(self) -> None:
        for i, program in programs(313, 60, range(8, 16), tangled=True):
            effort = random.Random(i).randrange(1, 2000)
            first, second = (order_program(program, effort=effort) for _ in range(2))
            assert first.orders == second.orders
            assert first.certificate == second.certificate

    def test_more_effort_gives_orders_that_are_no_worse(self) -> None:
        better = 0
        for _, program in programs(314, 100, range(8, 16), tangled=True):
            found = [order_program(program, effort=effort) for effort in (0, 50, 500, 5000)]
            assert all(a.peak >= b.peak for a, b in pairwise(found))
            assert found[-1].peak == found[-1].lower_bound == bottleneck(program)
            better += found[0].peak > found[-1].peak or found[0].lower_bound < found[-1].lower_bound
        assert better > 50

    def test_a_share_counts_above(self) -> None:
        whole = Meter(effort=10)
        part = whole.share(4)
        part.spend(3)
        assert (part.out, whole.spent) == (False, 3)
        part.spend(1)
        assert (part.out, whole.out) == (True, False)
        whole.spend(6)
        assert whole.share(5).out
        with pytest.raises(OutOfTime):
            whole.check()
