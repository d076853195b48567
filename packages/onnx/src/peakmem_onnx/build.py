"""Facts and nodes -> Program and replayed peak, bodies included."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from peakmem.model import Buffer, Program

from peakmem_onnx.bodies import Frame, frame, idle
from peakmem_onnx.facts import Facts, Key, complete
from peakmem_onnx.graph import Graph, Node
from peakmem_onnx.planner import plan
from peakmem_onnx.programs import build


@dataclass(frozen=True)
class Whole:
    """The Program of a graph with its bodies.

    Attributes
    ----------
    program : Program
    root : dict of str to str
        Value -> the value that names its buffer, at this level.
    undecided : tuple of str
        Nodes, at any level, that run in place in some orders only.
    """

    program: Program
    root: dict[str, str]
    undecided: tuple[str, ...]


def build_program(
    graph: Graph, facts: Facts, key: Key = (), node: Node | None = None, *, sharing: bool = True, first: bool = True
) -> Whole:
    """The Program of a level in file order; ``sharing`` and ``first`` as in `peakmem_onnx.programs.build`.

    All outputs of a control-flow node count from its start. Where they come late (`Frame.late`) the body is charged so
    much less, as far as its state allows; what remains is charged too much, and `replay` is exact. The end of a Loop,
    when its outputs are copied, stands beside its body as a second one without statements.
    """
    undecided: list[str] = []
    bodies: dict[int, tuple[Program, ...]] = {}
    for v in graph.nodes:
        inner = []
        for attribute, body in v.bodies:
            path = (*key, v.name, attribute)
            if complete(body, facts.values[path]):
                whole = build_program(body, facts, path, v, sharing=sharing, first=first)
                undecided.extend(whole.undecided)
                inner.append(whole.program)
                floor = _frame(body, facts, path, v).floor
                if floor:
                    end = Buffer("(end of the loop)", floor, "input", True)
                    inner.append(Program((end,), (), "/".join((*path, "end"))))
            else:
                own = idle(v)  # what its statements take is not known, and a note says so
                inner.append(Program((Buffer("(state of the loop)", own, "input", True),) if own else (), (), "/".join(path)))
        if inner:
            bodies[v.index] = tuple(inner)
    around = _frame(graph, facts, key, node)
    outputs = frozenset(graph.outputs) if node is not None and node.op == "If" else around.early
    built = build(
        graph,
        facts.values[key],
        tuple(range(len(graph.nodes))),
        workspace={v.index: facts.workspace.get(v.name, 0) for v in graph.nodes},
        costs={v.index: facts.costs.get(v.name, 0) for v in graph.nodes},
        bodies=bodies,
        uncharged=outputs,
        passed=around.passed,
        state=max(0, around.state - around.late),
        sharing=sharing,
        first=first,
        name="/".join(key) or "graph",
    )
    return Whole(built.program, built.root, (*undecided, *built.undecided))


def _frame(graph: Graph, facts: Facts, key: Key, node: Node | None) -> Frame:
    if node is None:
        return Frame()
    return frame(node, graph, facts.values[key], facts.values[key[:-2]], facts.trips.get(node.name, 0))


Ordered = Callable[[Graph], Sequence[int]]


def replay(
    graph: Graph,
    facts: Facts,
    ordered: Ordered,
    *,
    reuse: bool = False,
    sharing: bool = True,
    key: Key = (),
    node: Node | None = None,
) -> tuple[int, ...]:
    """Bytes at each step when every level runs in the order that ``ordered`` gives it; exact for that order."""
    values = facts.values[key]
    workspace = {}
    for v in graph.nodes:
        inner = 0
        for attribute, body in v.bodies:
            path = (*key, v.name, attribute)
            if complete(body, facts.values[path]):
                steps = replay(body, facts, ordered, reuse=reuse, sharing=sharing, key=path, node=v)
                inner = max(inner, _frame(body, facts, path, v).extra(max(steps, default=0)))
            else:
                inner = max(inner, idle(v))
        workspace[v.index] = facts.workspace.get(v.name, 0) + inner
    around = _frame(graph, facts, key, node)
    steps = plan(
        graph, values, ordered(graph), workspace, reuse=reuse, sharing=sharing, uncharged=around.early, passed=around.passed
    ).bytes_at
    return tuple(around.state + step for step in steps)
