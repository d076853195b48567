"""What peakmem knows of a TFLite file."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

PLAN_NAME = "OfflineMemoryAllocation"
"""Name of the metadata entry in which TFLite Micro looks for planned offsets."""

CONTROL_FLOW = frozenset({"IF", "WHILE", "CALL_ONCE"})
"""Operators whose subgraphs TFLite Micro plans in line."""


@dataclass(frozen=True, slots=True)
class Window:
    """How a convolution moves over its input: steps and spread by width and height, and results for each input channel."""

    stride: tuple[int, int]
    dilation: tuple[int, int] = (1, 1)
    multiplier: int = 1


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor.

    Attributes
    ----------
    name : str
        Of any text; may be empty or stand twice.
    shape : tuple of int
    type : str
        Name of the element type, such as ``INT8``.
    size : int
        Bytes as TFLite Micro counts them (4-bit elements take a byte each), not rounded.
    buffer : int
    constant : bool
        Its data are in the file.
    variable : bool
        Its value lives on from one invocation to the next.
    scales : int
        Of its quantization: more than one where each channel has its own.
    """

    name: str
    shape: tuple[int, ...]
    type: str
    size: int
    buffer: int
    constant: bool
    variable: bool
    scales: int = 0

    @property
    def elements(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator.

    Attributes
    ----------
    op : str
        Builtin name, or the custom code of a custom operator.
    custom : bool
    version : int
    inputs, outputs, intermediates : tuple of int
        Tensor indices; -1 among the inputs stands for an omitted one.
    callees : tuple of int
        Subgraphs it runs, in the order in which TFLite Micro plans them.
    resource : tuple of str or None
        Container and shared name, for VAR_HANDLE.
    rank : int
        For SVDF.
    detections : tuple of int or None
        Most detections and number of classes, for TFLite_Detection_PostProcess.
    window : Window or None
        Of convolutions.
    axis : int or None
        Along which CONCATENATION, PACK and UNPACK join or part; perhaps counted from the end.
    """

    op: str
    custom: bool
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    intermediates: tuple[int, ...] = ()
    callees: tuple[int, ...] = ()
    resource: tuple[str, str] | None = None
    rank: int = 1
    detections: tuple[int, int] | None = None
    window: Window | None = None
    axis: int | None = None


@dataclass(frozen=True)
class Subgraph:
    """One subgraph; ``vector`` is the position of the first entry of its operator vector in the file."""

    name: str
    tensors: tuple[Tensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[Operator, ...]
    vector: int

    @cached_property
    def producer(self) -> dict[int, int]:
        """Tensor -> operator that produces it."""
        return {t: i for i, op in enumerate(self.operators) for t in op.outputs}


@dataclass(frozen=True)
class Metadata:
    """A metadata entry: its name, its buffer, and where its data are in the file (position, bytes)."""

    name: str
    buffer: int
    at: int
    length: int


@dataclass(frozen=True)
class Graph:
    """A whole file.

    Attributes
    ----------
    data : bytes
    subgraphs : tuple of Subgraph
    metadata : tuple of Metadata
    external : tuple of int
        Positions of 64-bit offsets, counted from the start of the file, to data outside the flatbuffer.
    """

    data: bytes
    subgraphs: tuple[Subgraph, ...]
    metadata: tuple[Metadata, ...]
    external: tuple[int, ...] = ()

    @cached_property
    def bases(self) -> tuple[int, ...]:
        """Index of the first tensor of each subgraph when the tensors of all are counted through."""
        result, total = [], 0
        for subgraph in self.subgraphs:
            result.append(total)
            total += len(subgraph.tensors)
        return tuple(result)

    @property
    def tensor_count(self) -> int:
        return sum(len(s.tensors) for s in self.subgraphs)

    @cached_property
    def plan(self) -> tuple[int, ...] | None:
        """Offsets of the offline plan in the file, for all tensors counted through; None without a plan, or without offsets.

        TFLite Micro obeys the last entry of that name.
        """
        found = [m for m in self.metadata if m.name == PLAN_NAME]
        if not found:
            return None
        entry = found[-1]
        count = self.tensor_count
        data = self.data[entry.at : entry.at + entry.length]
        offsets = tuple(int.from_bytes(data[12 + 4 * i : 16 + 4 * i], "little", signed=True) for i in range(count))
        return offsets if set(offsets) - {-1} else None

    @cached_property
    def callers(self) -> tuple[int, ...]:
        """How many places run each subgraph; the main one counts one."""
        counts = [1 if k == 0 else 0 for k in range(len(self.subgraphs))]
        for subgraph in self.subgraphs:
            for op in subgraph.operators:
                for callee in op.callees:
                    counts[callee] += 1
        return tuple(counts)
