"""Several models on one arena: the largest head is shared, the tails stand one below the other.

That is what TFLite Micro does where interpreters are made with one ``MicroAllocator``. The head holds nothing that outlives an
invocation, so it may be written over by the next model; state lies in the tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from peakmem.model import InputError
from peakmem.system.sizes import in_bytes

from peakmem_tflite.arena import planned_variables
from peakmem_tflite.board import Arena, arena
from peakmem_tflite.describe import identifier
from peakmem_tflite.graph import Graph
from peakmem_tflite.scratch import rounded
from peakmem_tflite.tail import DEVICE, resources, tail
from peakmem_tflite.targets import Target


@dataclass(frozen=True)
class Tenant:
    """One model: its name in sentences and in C, its file, the kernels charged."""

    name: str
    identifier: str
    graph: Graph
    kernels: Target


@dataclass(frozen=True)
class Shared:
    """One arena for several models on a 32-bit device, in bytes; tails are estimates.

    Attributes
    ----------
    alone : tuple of Arena
        Each model with an arena of its own.
    head : int
        Of the model with the largest.
    tails : tuple of int
        What each model adds, in the order in which the interpreters are made; the first also what all of them use.
    planning : int
        The most that is needed while one of them plans, the tails of those before included.
    margin : int
    """

    alone: tuple[Arena, ...]
    head: int
    tails: tuple[int, ...]
    planning: int
    margin: int

    @property
    def size(self) -> int:
        """What to set ``kTensorArenaSize`` to."""
        return rounded(max(self.head + sum(self.tails), self.planning) + self.margin)

    @property
    def apart(self) -> int:
        """Bytes of as many arenas as there are models."""
        return sum(one.size for one in self.alone)

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        rows = [{"model": n, "head": a.head, "tail": t, "alone": a.to_json()} for n, a, t in zip(names, self.alone, self.tails)]
        return {
            "estimate": True, "head": self.head, "tail": sum(self.tails), "while_planning": self.planning, "margin": self.margin,
            "tensor_arena_size": self.size, "separate_arenas": self.apart, "models": rows,
        }  # fmt: skip


def share(tenants: Sequence[Tenant]) -> Shared:
    """Figures of one arena, the interpreters made in the order given.

    Raises
    ------
    InputError
        For a plan that puts variables into the head: the next model would write over them.
    """
    alone, tails, planning, used = [], [], 0, 0
    for tenant in tenants:
        if planned_variables(tenant.graph):
            raise InputError(
                f"{tenant.name}: its plan puts variable tensors into the head, where another model would write over its state; "
                "make a file without that plan (peakmem optimize --no-plan)"
            )
        one = arena(tenant.graph, tenant.kernels)
        here = tail(tenant.graph, DEVICE, tenant.kernels, tenant.graph.plan, behind=used)
        alone.append(one)
        tails.append(here.size - used)
        planning, used = max(planning, here.planning + one.planner), here.size
    return Shared(tuple(alone), max(a.head for a in alone), tuple(tails), planning, sum(a.margin for a in alone))


def sentences(tenants: Sequence[Tenant], found: Shared) -> tuple[str, ...]:
    """For people: each model, then what must be kept to."""
    rows = [
        f"{tenant.name}: head {in_bytes(one.head)}, tail {in_bytes(size)} (estimated); alone kTensorArenaSize = {one.size}"
        for tenant, one, size in zip(tenants, found.alone, found.tails)
    ]
    unknown = sorted({op for one in found.alone for op in one.unknown})
    if unknown:
        rows.append(f"the tails leave out what {', '.join(unknown)} keep, which is not known")
    return (*rows, "one model runs at a time, and its outputs are read before another one gets its inputs")


def identifiers(names: Sequence[str]) -> list[str]:
    """Names for C, no two alike."""
    found: list[str] = []
    for name in names:
        made = plain = identifier(name)
        number = 2
        while made in found:
            made, number = f"{plain}_{number}", number + 1
        found.append(made)
    return found


def source(tenants: Sequence[Tenant], found: Shared) -> str:
    """C++ that makes the interpreters on one allocator."""
    lines = [
        f"// {len(tenants)} models on one arena: the largest head, {found.head} bytes, is shared; the tails, {sum(found.tails)} bytes, are estimated for",
        "// 32-bit pointers. Set the inputs of a model, invoke it and read its outputs before you touch another one.",
        f"constexpr size_t kTensorArenaSize = {found.size};",
        "alignas(16) static uint8_t tensor_arena[kTensorArenaSize];",
        "tflite::MicroAllocator* allocator = tflite::MicroAllocator::Create(tensor_arena, kTensorArenaSize);",
    ]
    for tenant in tenants:
        name, more, count = tenant.identifier, "", len(resources(tenant.graph))
        if count:
            lines.append(f"auto* {name}_variables = tflite::MicroResourceVariables::Create(allocator, {count});")
            more = f", {name}_variables"
        lines.append(f"static tflite::MicroInterpreter {name}_interpreter(tflite::GetModel({name}), resolver, allocator{more});")
    calls = " || ".join(f"{tenant.identifier}_interpreter.AllocateTensors() != kTfLiteOk" for tenant in tenants)
    return "\n".join([*lines, f"if ({calls}) return kTfLiteError;", ""])
