"""Whose kernels run on the device, and what each of its operators asks for.

A target is the name of a table (kernels whose sources are public), or scratch by operator, as a device's log or a file of the
user lists it (`Listed`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from peakmem.model import InputError

from peakmem_tflite.cmsis_nn import CORES
from peakmem_tflite.esp_nn import RELEASES
from peakmem_tflite.graph import Graph, Operator, Subgraph
from peakmem_tflite.scratch import REFERENCE, Rule, rounded

SCHEMA = "peakmem.scratch/1"

TABLES: Mapping[str, Mapping[str, Rule]] = {"reference": REFERENCE, **RELEASES, **CORES}

ABOUT = {
    "reference": "TFLite Micro's portable kernels",
    **{name: f"Espressif's kernels on an ESP32-S3, {'release ' * ('.' in name)}{name.rpartition('-')[2]}" for name in RELEASES},
    "cmsis-nn-dsp": "Arm's kernels on cores with the DSP extension",
    "cmsis-nn-mve": "Arm's kernels on cores with MVE",
}

Key = tuple[object, ...]


@dataclass(frozen=True)
class Listed:
    """Scratch by operator of one file, and of those rewritten from it.

    Attributes
    ----------
    name : str
        Where it is from, for sentences.
    graph : Graph
        The file it was listed for.
    sizes : mapping
        (subgraph, operator) of that file -> bytes of its requests. Operators left out ask for nothing.
    """

    name: str
    graph: Graph
    sizes: Mapping[tuple[int, int], tuple[int, ...]]

    @cached_property
    def _by_key(self) -> dict[Key, tuple[int, ...]]:
        found: dict[Key, tuple[int, ...]] = {}
        for k, subgraph in enumerate(self.graph.subgraphs):
            for i, op in enumerate(subgraph.operators):
                found[_kind(subgraph, op)] = found[_place(k, op)] = self.sizes.get((k, i), ())
        return found

    def requests(self, k: int, subgraph: Subgraph, op: Operator) -> tuple[int, ...]:
        """Of the operator itself, wherever it stands, or of one like it: a copy reads the same constants."""
        return self._by_key.get(_place(k, op), self._by_key.get(_kind(subgraph, op), ()))


Target = str | Listed
"""A name in `TABLES`, or what was listed."""


def _place(k: int, op: Operator) -> Key:
    """What tells an operator from the others of its file, in every order."""
    return ("place", k, op.op, op.outputs or op.inputs)


def _kind(subgraph: Subgraph, op: Operator) -> Key:
    """What tells an operator from others, whichever values it reads."""
    tensors = [subgraph.tensors[t] if t >= 0 else None for t in (*op.inputs, *op.outputs)]
    return ("kind", op.op, op.window, tuple((t.shape, t.type, t.buffer if t.constant else -1) if t else None for t in tensors))


def requests(target: Target, k: int, subgraph: Subgraph, op: Operator) -> tuple[int, ...]:
    """Bytes of each scratch request of one operator of subgraph ``k``, rounded, in the order in which the kernel asks.

    An operator whose inputs are not what its kernel expects gets none: the kernel refuses to prepare it.
    """
    if isinstance(target, Listed):
        return tuple(rounded(size) for size in target.requests(k, subgraph, op))
    rule = TABLES[target].get(op.op)
    if rule is None:
        return ()
    inputs = [subgraph.tensors[t] if t >= 0 else None for t in op.inputs]
    try:
        return tuple(rounded(max(0, size)) for size in rule(op, inputs, [subgraph.tensors[t] for t in op.outputs]))
    except (LookupError, ValueError, ArithmeticError):
        return ()


def name_of(target: Target) -> str:
    return target.name if isinstance(target, Listed) else target


@dataclass(frozen=True)
class ScratchFile:
    """A file ``peakmem.scratch/1``, read: its name, and a row for each operator that asks for scratch."""

    name: str
    rows: Sequence[Mapping[str, Any]]

    @classmethod
    def parse(cls, text: str, name: str) -> ScratchFile:
        """Read it; `InputError` where it is not such a file."""
        try:
            document = json.loads(text)
        except ValueError as error:
            raise InputError(f"{name}: is not JSON ({error})") from None
        rows = document.get("operators") if isinstance(document, dict) and document.get("schema") == SCHEMA else None
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise InputError(f'{name}: is not {{"schema": "{SCHEMA}", "operators": [{{"output": ..., "bytes": ...}}, ...]}}')
        return cls(name, rows)

    def listed(self, graph: Graph) -> Listed:
        """Scratch of the operator that produces a tensor, which a row names by its name or its number.

        Raises
        ------
        InputError
            Naming the row: no such tensor or subgraph, nothing produces it, or bytes are not whole numbers from 0 on.
        """
        sizes: dict[tuple[int, int], tuple[int, ...]] = {}
        for i, row in enumerate(self.rows):
            place = f"{self.name}: operators[{i}]"
            k, output, size = row.get("subgraph", 0), row.get("output"), row.get("bytes")
            if type(k) is not int or not 0 <= k < len(graph.subgraphs):
                raise InputError(f"{place}: there is no subgraph {k!r}")
            tensors = graph.subgraphs[k].tensors
            named = [t for t, x in enumerate(tensors) if (output == t if type(output) is int else output == x.name)]
            if len(named) != 1:
                what = f"{len(named)} tensors are" if named else "no tensor is"
                raise InputError(f"{place}: {what} called {output!r}; name the operator's output by its number")
            producer = graph.subgraphs[k].producer.get(named[0])
            if producer is None:
                raise InputError(f"{place}: no operator produces tensor {output!r}")
            requested = size if isinstance(size, list) else [size]
            if not all(type(n) is int and 0 <= n < 2**31 for n in requested):
                raise InputError(f"{place}: bytes must be a whole number or a list of them, not {size!r}")
            sizes[k, producer] = tuple(n for n in requested if n)
        return Listed(f"the file {self.name}", graph, sizes)
