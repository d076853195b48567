"""What a device printed while it planned: the memory plan, or how large a head it asked for.

TFLite Micro built with ``TF_LITE_SHOW_MEMORY_USE`` prints a line for each buffer, tensors first, in the order of
`peakmem_tflite.arena.allocations`, then scratch buffers (``GreedyMemoryPlanner::PrintMemoryPlan``). What is not a tensor of the
file is scratch, and its first use names the operator: that needs no table and no knowledge of the kernels. Without a plan the
size of the head is all that is left: ``Arena allocation head`` of the recording allocator, or ``Failed to resize buffer.
Requested`` where the arena was too small (ESPHome shows it in its log).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from peakmem.model import InputError
from peakmem.system.sizes import in_bytes

from peakmem_tflite.arena import Allocation, allocations, head
from peakmem_tflite.graph import Graph
from peakmem_tflite.targets import TABLES, Listed, Target

_ROW = re.compile(r"\(id=(\d+)\): size=(\d+), offset=(-?\d+), first_used=(-?\d+),? last_used=(-?\d+)")
_HEAD = re.compile(r"(?:Arena allocation head (\d+) bytes|Failed to resize buffer\. Requested: (\d+))")
_MOST = 2**31


@dataclass(frozen=True)
class Row:
    """A buffer as the device planned it: bytes, offset, and its first and last step."""

    size: int
    offset: int
    first: int
    last: int


@dataclass(frozen=True)
class DeviceLog:
    """Plans and heads that a log holds, for one model or several.

    Attributes
    ----------
    name : str
        Of the file, for sentences.
    plans : sequence of sequence of Row
    heads : sequence of int
        Bytes, where only those were printed.
    """

    name: str
    plans: Sequence[Sequence[Row]]
    heads: Sequence[int]

    @classmethod
    def parse(cls, text: str, name: str) -> DeviceLog:
        """Read a log; lines of other things are passed over.

        Raises
        ------
        InputError
            When it holds neither a plan nor the size of a head.
        """
        plans: list[list[Row]] = []
        heads = []
        for line in text.splitlines():
            if row := _ROW.search(line):
                number, *values = map(int, row.groups())
                if number == 0:
                    plans.append([])
                if not plans or number != len(plans[-1]) or max(map(abs, values)) >= _MOST:
                    raise InputError(f"{name}: its memory plan is incomplete at id={number}; log the whole plan again")
                plans[-1].append(Row(*values))
            elif found := _HEAD.search(line):
                heads.append(int(found[1] or found[2]))
        if not plans and not heads:
            raise InputError(
                f"{name}: holds neither a memory plan (build TFLite Micro with TF_LITE_SHOW_MEMORY_USE) nor the size of a head "
                "('Arena allocation head' or 'Failed to resize buffer. Requested')"
            )
        return cls(name, plans, heads)

    def plan_of(self, graph: Graph) -> Sequence[Row] | None:
        """The plan whose tensors are those of a file, in its order; None if there is none."""
        mine = [a for a in allocations(graph, Listed("", graph, {}), None, graph.plan) if a.tensor >= 0]
        return next((plan for plan in self.plans if _fits(plan, mine)), None)

    def target(self, graph: Graph) -> Target:
        """The kernels that the log shows at work on this very file.

        Raises
        ------
        InputError
            When no plan in it is of this file, and no known kernels lead to a head that it names.
        """
        plan = self.plan_of(graph)
        if plan is not None:
            return self._listed(graph, plan)
        if self.plans:
            raise InputError(f"{self.name}: no memory plan in it has the tensors of this file in this order; log the device running it")
        known = {name: head(graph, name, None, graph.plan) for name in TABLES}
        for name, size in known.items():
            if size in self.heads:
                return name
        sizes = ", ".join(f"{name} {in_bytes(size)}" for name, size in known.items())
        raise InputError(
            f"{self.name}: the device asked for {' or '.join(map(in_bytes, sorted(set(self.heads))))}, which is what no known "
            f"kernels ask for with this file ({sizes}); log its memory plan"
        )

    def head_of(self, graph: Graph) -> int | None:
        """Bytes of the head that the device planned for a file; None where the log does not tell."""
        plan = self.plan_of(graph)
        if plan is not None:
            return max((row.offset + row.size for row in plan), default=0)
        return self.heads[-1] if self.heads and not self.plans else None

    def _listed(self, graph: Graph, plan: Sequence[Row]) -> Listed:
        everywhere = Listed("", graph, {(k, i): (1,) for k, s in enumerate(graph.subgraphs) for i in range(len(s.operators))})
        rows = allocations(graph, everywhere, None, graph.plan)
        steps = {a.first: (a.subgraph, a.operator) for a in rows if a.tensor < 0}
        mine = sum(a.tensor >= 0 for a in rows)
        sizes: dict[tuple[int, int], tuple[int, ...]] = {}
        for row in plan[mine:]:
            if row.first < 0:  # of a subgraph that nothing runs
                continue
            if row.first not in steps:
                raise InputError(f"{self.name}: a scratch buffer of {in_bytes(row.size)} is used at step {row.first}, which is no operator")
            sizes[steps[row.first]] = (*sizes.get(steps[row.first], ()), row.size)
        return Listed(f"the log {self.name}", graph, sizes)


def _fits(plan: Sequence[Row], mine: Sequence[Allocation]) -> bool:
    rows = [(row.size, row.first, row.last) for row in plan[: len(mine)]]
    return rows == [(a.size, a.first, a.last) for a in mine]
