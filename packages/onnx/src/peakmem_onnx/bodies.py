"""Who allocates what when a control-flow node runs its body.

Measured on onnxruntime 1.32:

If
    Outputs whose shape the planner knows are allocated before the body runs; the others when the body writes them.
Loop
    The iteration number and the condition take 64 bytes each. Every iteration allocates the body's outputs anew; what
    the iteration before has carried over stays until the iteration ends, and one piece of every scan output stays to
    the end. Then the outputs are allocated as copies, with everything of the last iteration still there. A carried
    value that an Identity passes through is shared.
Scan
    Outputs are allocated before the body runs, which writes into them. Carried values take one more storage from two
    iterations on, and another from three on; the runtime reports them as workspace.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from peakmem_onnx.graph import ALIGNMENT, Graph, Node, Value


@dataclass(frozen=True)
class Frame:
    """A body's surroundings.

    Attributes
    ----------
    early : frozenset of str
        Outputs of the body that live in storage its node has allocated before.
    passed : frozenset of str
        Outputs that share their input.
    state : int
        Bytes besides, from the beginning of the body to its end.
    late : int
        Bytes of the node's own outputs that are not there while the body runs.
    closing : int
        Bytes of the body's outputs that stay while the node's outputs are allocated.
    """

    early: frozenset[str] = frozenset()
    passed: frozenset[str] = frozenset()
    state: int = 0
    late: int = 0
    closing: int = 0

    @property
    def floor(self) -> int:
        """Bytes inside the node beyond its inputs and outputs at its end."""
        return self.state + self.closing

    def extra(self, peak: int) -> int:
        """Bytes inside the node beyond its inputs and outputs, when its body peaks at ``peak`` (state included)."""
        return max(peak - self.late, self.floor)


def idle(node: Node) -> int:
    """Bytes inside a node, beyond its outputs, when its body never runs: a Loop copies what it was given."""
    return 2 * ALIGNMENT if node.op == "Loop" else 0


def frame(node: Node | None, body: Graph, values: Mapping[str, Value], outer: Mapping[str, Value], trips: int) -> Frame:
    """The frame of a body.

    Parameters
    ----------
    node : Node or None
        Whose body it is; None for the top level.
    body : Graph
    values, outer : mapping of str to Value
        Of the body's level and of the node's.
    trips : int
        How often the body runs in one execution of the node.
    """
    if node is None:
        return Frame()
    own = [name for name in body.outputs if name in values]
    if node.op == "If":
        early = frozenset(n for n in own if all(isinstance(d, int) for d in values[n].planned or ("",)))
        return Frame(early=early, late=sum(values[n].bytes for n in own if n not in early))
    if node.op == "Scan":
        return Frame(early=frozenset(own))
    given = set(body.inputs[1:])
    passed = frozenset(
        n
        for inner in body.nodes
        if inner.op == "Identity" and not inner.domain and inner.inputs[0] in given
        for n in inner.outputs
        if n in body.outputs
    )
    carries = len(node.inputs) - 2
    sizes = {n: 0 if n in passed else values[n].bytes for n in own}
    carried = sum(sizes.get(n, 0) for n in body.outputs[1 : 1 + carries]) if trips > 1 else 0
    pieces = sum(sizes.get(n, 0) for n in body.outputs[1 + carries :]) * max(0, trips - 1)
    return Frame(
        passed=passed,
        state=2 * ALIGNMENT + carried + pieces,
        late=sum(outer[n].bytes for n in node.outputs if n in outer),
        closing=sum(sizes.values()),
    )



def carried_by_scan(node: Node, body: Graph) -> tuple[str, ...]:
    """Outputs of a Scan's body that it carries to the next iteration."""
    scanned = next((int(a.i) for a in node.proto.attribute if a.name == "num_scan_inputs"), 0)
    return body.outputs[: len(node.inputs) - scanned]
