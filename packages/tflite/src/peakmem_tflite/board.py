"""The number to copy: how large an arena a 32-bit device needs, and where its parts go when there are two memories.

The head is exact for the kernels it is planned with; the tail is an estimate (`peakmem_tflite.tail`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from peakmem.model import UsageError
from peakmem.report.words import shorten
from peakmem.system.sizes import human, in_bytes, parse_size

from peakmem_tflite.accesses import Accesses, accesses
from peakmem_tflite.arena import allocations, planner_temp, simulate
from peakmem_tflite.graph import Graph
from peakmem_tflite.scratch import ALIGNMENT, rounded
from peakmem_tflite.tail import DEVICE, NEWER, tail
from peakmem_tflite.targets import TABLES, Target, name_of


@dataclass(frozen=True)
class Arena:
    """One file on a 32-bit device, in bytes.

    Attributes
    ----------
    kernels : str
        Whose scratch is in the head.
    head : int
        Tensors and scratch.
    tail : int
        An estimate: what the interpreter and its kernels keep.
    planner : int
        The planner's own work space, which lies where the head will be.
    before : int
        An estimate: the tail there is while it plans.
    margin : int
        For what the estimate may miss; see `margin`.
    unknown : tuple of str
        Operators whose kernels keep data that no formula knows; they are missing in ``tail``.
    """

    kernels: str
    head: int
    tail: int
    planner: int
    before: int
    margin: int
    unknown: tuple[str, ...]

    @property
    def planning(self) -> int:
        """Bytes needed at the moment at which the head is planned."""
        return self.before + self.planner

    @property
    def size(self) -> int:
        """What to set ``kTensorArenaSize`` to: all that is needed at once, the margin, rounded up."""
        return rounded(max(self.head + self.tail, self.planning) + self.margin)

    def to_json(self) -> dict[str, Any]:
        return {
            "estimate": True, "pointer_bytes": DEVICE.pointer, "kernels": self.kernels, "head": self.head, "tail": self.tail,
            "while_planning": self.planning, "margin": self.margin, "tensor_arena_size": self.size,
            "bound_by": "planner" if self.planning > self.head + self.tail else "head and tail", "not_counted": list(self.unknown),
        }  # fmt: skip


def margin(graph: Graph, size: int) -> int:
    """Bytes beside an estimated tail of ``size`` bytes.

    An arena that is not aligned loses up to 15; newer interpreters keep more than the sources (`peakmem_tflite.tail.NEWER`); and one
    part in 64 of the tail, five times what the estimate missed in the one of two public logs that it missed.
    """
    more = sum(DEVICE.structure(NEWER[op.op])[0] for s in graph.subgraphs for op in s.operators if op.op in NEWER)
    return rounded(ALIGNMENT + more + size // 64)


def arena(graph: Graph, kernels: Target, *, apart: bool = False) -> Arena:
    """Figures of a file for a device; ``apart``: with head and tail in two memories."""
    buffers = allocations(graph, kernels, None, graph.plan)
    head, _ = simulate(buffers, graph.plan)
    rest = tail(graph, DEVICE, kernels, graph.plan, apart=apart)
    temp = planner_temp(graph, buffers, pointer=DEVICE.pointer)
    return Arena(name_of(kernels), head, rest.size, temp, rest.planning, margin(graph, rest.size), rest.unknown)


def sentences(found: Arena) -> tuple[str, ...]:
    """What to copy, for people."""
    more = found.planning - found.head - found.tail
    parts = [f"head {in_bytes(found.head)}", f"tail {in_bytes(found.tail)}"]
    parts += [f"{in_bytes(more)} more while it is planned"] if more > 0 else []
    kernels = "the portable kernels" if found.kernels == "reference" else found.kernels
    said = (
        f"kTensorArenaSize = {found.size}: {' + '.join(parts)} + margin {in_bytes(found.margin)}; estimated for a 32-bit device with {kernels} "
        f"(ESPHome: tensor_arena_size: {found.size})"
    )
    if not found.unknown:
        return (said,)
    return said, f"the tail leaves out what {', '.join(found.unknown)} keep, which is not known; read arena_used_bytes() on the device"


def other_kernels(graph: Graph, found: Arena) -> tuple[str, ...]:
    """For who has not named the board's kernels: the largest arena that known ones need, where that is more."""
    name, size = max(((t, arena(graph, t).size) for t in TABLES), key=lambda row: row[1])
    if size <= found.size:
        return ()
    return (f"other kernels need more, up to kTensorArenaSize = {size} with {name}; name those of the board with --target",)


# Two memories.


@dataclass(frozen=True)
class Memory:
    """A memory of the board: its name, and its bytes; None where it has enough."""

    name: str
    size: int | None


@dataclass(frozen=True)
class Placing:
    """Where the parts of an arena lie.

    Attributes
    ----------
    head, tail : int
        Numbers of memories.
    need : tuple of int
        Bytes asked of each memory.
    fits : bool
    slow : int
        Bytes read and written in memories other than the first, in one invocation.
    """

    head: int
    tail: int
    need: tuple[int, ...]
    fits: bool
    slow: int


def memories(texts: Sequence[str]) -> tuple[Memory, ...]:
    """Memories from ``NAME=SIZE`` or ``NAME``, the fastest first.

    Raises
    ------
    UsageError
        For more or fewer than two, a name that stands twice or is no name, a size that is none.
    """
    found = []
    for text in texts:
        name, given, size = text.partition("=")
        if not name.replace("_", "").isalnum():
            raise UsageError(f"--memory {text!r}: give NAME=SIZE, or NAME alone for one that is large enough")
        found.append(Memory(name, parse_size(size) if given else None))
    if found and (len(found) != 2 or found[0].name == found[1].name):
        raise UsageError("--memory: name two memories, the faster first: --memory sram=320KiB --memory psram")
    return tuple(found)


def placings(graph: Graph, kernels: Target, given: Sequence[Memory]) -> tuple[list[Placing], Accesses]:
    """All that TFLite Micro can realize with two memories, the best first: what fits, then least traffic in the slow one.

    The interpreter takes one block for all tensors and scratch (the non-persistent arena) and one for all that it keeps (the
    persistent arena); single tensors cannot be put apart. Where both lie in one memory they are one arena.
    """
    found = []
    counted = accesses(graph, kernels)
    for h in range(len(given)):
        for t in range(len(given)):
            one = arena(graph, kernels, apart=h != t)
            need = [0] * len(given)
            if h == t:
                need[h] = one.size
            else:
                need[h] = rounded(max(one.head, one.planner))
                need[t] = rounded(one.tail + one.margin)
            fits = all(m.size is None or n <= m.size for m, n in zip(given, need))
            found.append(Placing(h, t, tuple(need), fits, counted.head * (h > 0) + counted.tail * (t > 0)))
    return sorted(found, key=lambda p: (not p.fits, p.slow, p.need[1], p.need)), counted


def placing_sentences(graph: Graph, kernels: Target, given: Sequence[Memory]) -> tuple[str, ...]:
    """Where the arenas go, for people."""
    rows, counted = placings(graph, kernels, given)
    best = rows[0]
    names = [m.name for m in given]
    total = counted.head + counted.tail
    hot = f"; hottest tensor: {shorten(counted.hottest)!r}, {in_bytes(counted.hottest_bytes)}" if counted.hottest else ""
    lines = [
        f"bytes read and written in one invocation, as the portable kernels do (estimated): {in_bytes(counted.head)} in the head, "
        f"{in_bytes(counted.tail)} in the tail{hot}; TFLite Micro puts all tensors into one block, so none of them can be put apart"
    ]
    for row in rows:
        where = f"one arena in {names[row.head]}" if row.head == row.tail else f"head in {names[row.head]}, tail in {names[row.tail]}"
        need = ", ".join(f"{name} {human(n)}" for name, n in zip(names, row.need) if n)
        share = f"{100 * row.slow / total:.1f} % of the traffic in {names[1]}" if total else "no traffic"
        state = ("best: " if row is best else "") if row.fits else "does not fit: "
        lines.append(f"{state}{where}: needs {need}; {share}")
    return tuple(lines)
