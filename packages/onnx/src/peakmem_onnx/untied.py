"""Declared shapes that no session can take for equal by mistake: default sessions then keep no dead storage.

A session of the C interface keeps the storage of a dead tensor for a later one whose declared shape is the same, and holds it until
then. That cannot be switched off there. But a dimension is the same only where it has the same number or the same name. So the
inputs' dimensions are left open, without names, and every value's dimensions get names that it shares with the values of its storage
alone, as operators that work in place need it. What is computed does not depend on declared shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peakmem_onnx.facts import element_type
from peakmem_onnx.graph import Graph, Value
from peakmem_onnx.protos import real_inputs


def untie(proto: Any, graph: Graph, values: Mapping[str, Value], root: Mapping[str, str]) -> None:
    """Declare shapes as said above in ``proto``, the model of ``graph``; ``root`` tells a value's storage."""
    for info in real_inputs(proto.graph):
        for d in info.type.tensor_type.shape.dim:
            d.Clear()
    del proto.graph.value_info[:]
    names: dict[str, int] = {}
    for node in graph.nodes:
        for name in node.outputs:
            if not name or name in graph.outputs:
                continue
            info = proto.graph.value_info.add(name=name)
            tensor = info.type.tensor_type
            tensor.elem_type = element_type(values[name].element)
            tensor.shape.SetInParent()
            number = names.setdefault(root[name], len(names))
            for axis in range(len(values[name].shape)):
                tensor.shape.dim.add(dim_param=f"storage{number}_{axis}")
