"""A model run node by node: every node in a session of its own, in the file's order.

Any topological order runs exactly as written, whatever ONNX Runtime would make of the whole file. No node sees another
one's storage, so nothing is a view and nothing works in place; a value is dropped after its last reader. Used in the
child process (see `peakmem_onnx.child`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Types = Mapping[str, tuple[int, list[int] | None]]


def constants_of(graphs: Iterable[Any]) -> dict[str, Any]:
    """Initializers and Constant nodes of GraphProtos, by the value they give."""
    from peakmem_onnx.graph import is_constant

    found: dict[str, Any] = {}
    for graph in graphs:
        found.update((i.name, i) for i in graph.initializer)
        found.update((i.values.name, i) for i in graph.sparse_initializer)
        found.update((node.output[0], node) for node in graph.node if is_constant(node))
    return found


def alone(model: Any, node: Any, known: Mapping[str, Any], types: Types) -> tuple[Any, list[str], list[str]]:
    """A model of one node with its constants; the names of its inputs and outputs."""
    import onnx

    single = onnx.ModelProto(ir_version=model.ir_version)
    single.opset_import.extend(model.opset_import)
    single.graph.name = node.name
    places = {"TensorProto": single.graph.initializer, "SparseTensorProto": single.graph.sparse_initializer,
              "NodeProto": single.graph.node}
    inputs = []
    for name in dict.fromkeys(name for name in node.input if name):
        if name in known:
            places[known[name].DESCRIPTOR.name].append(known[name])
        else:
            inputs.append(name)
            single.graph.input.append(onnx.helper.make_tensor_value_info(name, *types[name]))
    outputs = [name for name in node.output if name]
    single.graph.output.extend(onnx.helper.make_tensor_value_info(name, *types[name]) for name in outputs)
    single.graph.node.append(node)
    return single, inputs, outputs


class NodeByNode:
    """Sessions of single nodes with the interface that measuring needs.

    Parameters
    ----------
    data : bytes
        The model, without control flow.
    open_session : callable
        From the bytes of a model to a session.
    types : mapping of str to (int, list of int or None)
        Element type of every value that a node reads or writes, and its shape where that is the same in every run.
    """

    def __init__(
        self, data: bytes, open_session: Callable[[bytes], Any], types: Types
    ) -> None:
        import onnx

        from peakmem_onnx.graph import is_constant

        model = onnx.ModelProto()
        model.ParseFromString(data)
        graph = model.graph
        known = constants_of([graph])
        self.steps: list[tuple[str, Any, list[str], list[str]]] = []
        last: dict[str, int] = {}
        for node in (n for n in graph.node if not is_constant(n)):
            single, inputs, outputs = alone(model, node, known, types)
            last.update((name, len(self.steps)) for name in inputs)
            try:
                session = open_session(single.SerializeToString())
            except Exception as error:
                raise RuntimeError(f"node {node.name!r} does not run alone: {error}") from None
            self.steps.append((node.name, session, inputs, outputs))
        written = {name for _, _, _, outputs in self.steps for name in outputs}
        self.outputs = [v.name for v in graph.output if v.name in written]
        self.done: list[list[str]] = []
        for step, (_, _, inputs, outputs) in enumerate(self.steps):
            ended = [name for name in inputs if last[name] == step and name in written]
            self.done.append([n for n in (*ended, *(o for o in outputs if o not in last)) if n not in self.outputs])

    @property
    def order(self) -> list[str]:
        """Names of the nodes in the order of one run."""
        return [name for name, _, _, _ in self.steps]

    def take(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs as ONNX Runtime holds them, before anything is counted."""
        import onnxruntime as ort

        return {
            name: array if isinstance(array, ort.OrtValue) else ort.OrtValue.ortvalue_from_numpy(array)
            for name, array in feeds.items()
        }

    def run(self, held: Mapping[str, Any]) -> dict[str, Any]:
        """One run; the outputs as ONNX Runtime holds them."""
        alive = dict(held)
        for (_, session, inputs, outputs), done in zip(self.steps, self.done, strict=True):
            alive.update(zip(outputs, session.run_with_ort_values(outputs, {n: alive[n] for n in inputs}), strict=True))
            for name in done:
                del alive[name]
        return {name: alive[name] for name in self.outputs}
