"""Recomputed copies: written, run, measured, the same bits."""

from __future__ import annotations

import pytest
from onnx import TensorProto, helper
from peakmem.api import load
from peakmem.model import Buffer, Expansion, Program, Refused, Schedule, Statement
from peakmem.transform.recompute import RerunProblem, expand, make_plan

from .conftest import model, needs_runtime, value, weight

pytestmark = needs_runtime


def stem_reused_late(alias: bool):
    """A stem that is cheap to repeat, read at the beginning and at the end; a wide middle."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["s"], name="stem"),
        helper.make_node("Conv", ["s", "down"], ["d"], name="down", strides=[4, 4]),
        helper.make_node("Conv", ["d", "up"], ["m"], name="up"),
        helper.make_node("Conv", ["m", "in"], ["n"], name="narrow"),
        helper.make_node("ReduceMean", ["n"], ["k"], name="mean", axes=[1, 2, 3]),
    ]
    weights = [weight("w", 8, 3, 1, 1), weight("down", 8, 8, 4, 4), weight("up", 512, 8, 1, 1), weight("in", 8, 512, 1, 1)]
    late = "s"
    if alias:
        nodes.append(helper.make_node("Reshape", ["s", "shape"], ["flat"], name="flatten"))
        weights.append(helper.make_tensor("shape", 7, [2], [8, 1024]))
        late = "flat"
    nodes.append(helper.make_node("ReduceSum", [late], ["t"], name="late", keepdims=0))
    nodes.append(helper.make_node("Add", ["t", "k"], ["y"], name="add"))
    return model(nodes, [value("x", [1, 3, 32, 32])], [value("y", None)], weights)


def repeat_stem(program: Program) -> Expansion:
    """The stem once more, right before the late reader (or its alias)."""
    by_name = {s.name: i for i, s in enumerate(program.statements)}
    stem = by_name["stem"]
    (original,) = program.statements[stem].writes
    at = min(by_name[n] for n in ("flatten", "late") if n in by_name)
    buffers = (*program.buffers, Buffer("s again", program.buffers[original].size))
    fresh = len(program.buffers)
    statements: list[Statement] = []
    statement_of = []
    for i, s in enumerate(program.statements):
        if i == at:
            statements.append(Statement("stem again", s.op, writes=(fresh,), cost=program.statements[stem].cost))
            statement_of.append(stem)
        swap = s.name in ("late", "flatten")
        statements.append(
            Statement(
                s.name,
                s.op,
                tuple(fresh if swap and b == original else b for b in s.reads),
                tuple(fresh if swap and b == original else b for b in s.writes),
                tuple(range(len(statements))),
                s.workspace,
                s.cost,
                s.pure,
            )
        )
        statement_of.append(i)
    return Expansion(
        Program(buffers, tuple(statements)), tuple(statement_of), (*range(len(program.buffers)), original)
    )


@pytest.mark.parametrize("alias", [False, True])
def test_repeated_stem_lowers_the_measured_peak(store, alias):
    m = load(store(stem_reused_late(alias)), frontend="onnx", ort_level="none")
    order = ["stem", "down", "up", "narrow", "mean", *(["flatten"] if alias else []), "late", "add"]
    by_name = {s.name: i for i, s in enumerate(m.program.statements)}
    given = m.apply(Schedule({"": tuple(by_name[n] for n in order)}))
    expansion = repeat_stem(given.program)
    repeated = given.apply(Schedule({"": tuple(range(len(expansion.program)))}, expansion=expansion))
    assert len(repeated.graph.nodes) == len(given.graph.nodes) + 1 + alias  # the alias of the copy is one more node
    check = given.verify(repeated)
    check.raise_for_difference()
    assert check.bitwise_identical
    if check.measured:
        assert check.as_predicted
        assert check.optimized_bytes < check.baseline_bytes
    assert repeated.predicted_bytes < given.predicted_bytes
    # The copied stem's MACs are counted.
    stem = given.program.statements[0].cost
    assert stem == 8 * 32 * 32 * 3
    assert sum(s.cost for s in repeated.program.statements) == sum(s.cost for s in given.program.statements) + stem


def test_impure_statements_are_not_repeated(store):
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["stem"], name="stem"),
        helper.make_node("Exp", ["stem"], ["e"], name="early"),
        helper.make_node("Add", ["stem", "e"], ["y"], name="late"),
    ]
    m = load(store(model(nodes, [value("x", [4])], [value("y", [4])])), frontend="onnx", ort_level="none")
    expansion = repeat_stem(m.program)
    with pytest.raises(Refused, match="may not run twice"):
        m.apply(Schedule({"": tuple(range(len(expansion.program)))}, expansion=expansion))


def test_orders_of_bodies_are_those_of_the_enlarged_program(store):
    """A copy before a branch moves the branch; the order of its body must still reach it."""
    then = helper.make_graph(
        [
            helper.make_node("Neg", ["k"], ["t1"], name="t1"),
            helper.make_node("Abs", ["k"], ["t2"], name="t2"),
            helper.make_node("Add", ["t1", "t2"], ["t3"], name="t3"),
        ],
        "then", [], [value("t3", [1, 1])],
    )  # fmt: skip
    other = helper.make_graph([helper.make_node("Sin", ["k"], ["e1"], name="e1")], "else", [], [value("e1", [1, 1])])
    nodes = [
        helper.make_node("Exp", ["x"], ["s"], name="stem"),
        helper.make_node("ReduceMax", ["s"], ["k"], name="max", keepdims=1),
        helper.make_node("If", ["c"], ["h"], name="branch", then_branch=then, else_branch=other),
        helper.make_node("Add", ["s", "h"], ["t"], name="late"),
        helper.make_node("Mul", ["t", "k"], ["y"], name="mul"),
    ]
    proto = model(nodes, [value("x", [1, 64]), value("c", [], TensorProto.BOOL)], [value("y", None)])
    m = load(store(proto), frontend="onnx", ort_level="none")
    assert [s.name for s in m.program.statements] == ["stem", "max", "branch", "late", "mul"]
    assert [s.name for s in m.program.statements[2].bodies[1].statements] == ["t2", "t1", "t3"]  # as it runs
    problem = RerunProblem(m.program, tuple(range(5)))
    (stem,) = (i for i, u in enumerate(problem.units) if u.members == (0,))
    expansion = expand(make_plan(problem, [(2, stem)]))
    assert [s.name for s in expansion.program.statements][2:4] == ["stem#2", "branch"]
    repeated = m.apply(Schedule({"": tuple(range(6)), "3/1": (1, 0, 2)}, expansion=expansion))
    assert [s.name for s in repeated.program.statements[3].bodies[1].statements] == ["t1", "t2", "t3"]
    check = m.verify(repeated)
    check.raise_for_difference()
    assert check.bitwise_identical
