"""The floor: what no schedule can go below, even if it recomputes freely and in any order.

When the peak of a program *is* its floor, neither another order nor recomputation can lower it, and the statement
that sets the floor is the reason. This takes milliseconds, so it is asked first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from peakmem.model import Program


@dataclass(frozen=True)
class Floor:
    """A lower bound on the peak of every schedule of a program, with recomputation or without.

    Attributes
    ----------
    size : int
        Bytes.
    rule : {"statement", "first", "pinned"}
        ``statement``: ``statement`` cannot run in less. ``first``: whichever statement runs first, the inputs are
        all there; ``statement`` is the cheapest of them. ``pinned``: what is never freed fills it alone.
    statement : int or None
        The statement that sets it; None for ``pinned``.
    buffers : tuple of int
        What is resident then, largest first.
    workspace : int
        Workspace of ``statement`` in it, in bytes.
    saved : int
        The most that an overlay of ``statement`` can save, in bytes: it is taken off.
    """

    size: int
    rule: str
    statement: int | None
    buffers: tuple[int, ...]
    workspace: int
    saved: int = 0

    def sentence(self, program: Program, *, show: Callable[[str], str] = str) -> str:
        """Why no schedule needs less, as one sentence for people; ``show`` makes what is printed of a name."""
        names = [f"{show(program.buffers[b].name)} ({program.buffers[b].size:,})" for b in self.buffers[:4]]
        if len(self.buffers) > 4:
            rest = sum(program.buffers[b].size for b in self.buffers[4:])
            names.append(f"{len(self.buffers) - 4} more ({rest:,})")
        if self.workspace:
            names.append(f"workspace ({self.workspace:,})")
        held = ", ".join(names) or "nothing"
        if self.saved:
            held += f", less {self.saved:,} that an overlay may save"
        if self.statement is None:
            return f"what is never freed takes {self.size:,} bytes alone: {held}"
        name = show(program.statements[self.statement].name)
        if self.rule == "first":
            return f"no first statement needs less than {name!r}: {self.size:,} bytes with all inputs there: {held}"
        return f"statement {name!r} cannot run in less than {self.size:,} bytes: {held}"


def floor(program: Program) -> Floor:
    """The largest of three bounds that hold for any order and any recomputation.

    1. When statement ``v`` runs *for the first time*, resident are: its workspace, all it touches, the pinned
       inputs, the pinned buffers that its ancestors touch (they have run), and the freeable inputs that its
       descendants touch (they have not run, and an input cannot be made again).
    2. Some statement without ancestors is the first of all; all inputs are there, and what it writes.
    3. At the end everything pinned is resident.

    A copy never takes part in these arguments, so it does not matter which statements may run twice. The workspace
    of a control-flow statement counts the floor of its bodies, so orders of bodies do not matter either. Where the
    statement has an overlay, the most that it can save is taken off, whether its input dies there or not.

    Complexity
    ----------
    O(statements x (pinned buffers + inputs)) with one big-integer closure; milliseconds for a thousand statements.
    """
    n = len(program.statements)
    sizes = [b.size for b in program.buffers]
    touched = program.touched
    workspace = [s.workspace + max((floor(body).size for body in s.bodies), default=0) for s in program.statements]
    held: list[set[int]] = [set(t) for t in touched]
    for b, buffer in enumerate(program.buffers):
        if buffer.kind == "constant":
            continue
        if buffer.kind == "input" and buffer.pinned:
            for resident in held:
                resident.add(b)
        elif buffer.pinned:
            for v in _reach(program.successors, program.touchers[b], range(n)):
                held[v].add(b)
        elif buffer.kind == "input":
            for v in _reach(program.predecessors, program.touchers[b], range(n - 1, -1, -1)):
                held[v].add(b)

    def largest_first(buffers: set[int]) -> tuple[int, ...]:
        return tuple(sorted(buffers, key=lambda b: (-sizes[b], b)))

    pinned = {b for b, x in enumerate(program.buffers) if x.pinned and (program.touchers[b] or x.kind == "input")}
    saved = [max((gain for _, gain in gains), default=0) for gains in program.gains]
    best = Floor(sum(sizes[b] for b in pinned), "pinned", None, largest_first(pinned), 0)
    first: tuple[int, int, set[int]] | None = None
    for v in range(n):
        if not program.predecessors[v]:
            resident = {*program.entry, *touched[v]}
            size = workspace[v] + sum(sizes[b] for b in resident) - saved[v]
            if first is None or size < first[0]:
                first = (size, v, resident)
    if first is not None and first[0] > best.size:
        best = Floor(first[0], "first", first[1], largest_first(first[2]), workspace[first[1]], saved[first[1]])
    for v in range(n):
        size = workspace[v] + sum(sizes[b] for b in held[v]) - saved[v]
        if size > best.size or (size == best.size and best.rule != "statement"):
            best = Floor(size, "statement", v, largest_first(held[v]), workspace[v], saved[v])
    return best


def _reach(neighbours: Sequence[Sequence[int]], start: Iterable[int], statements: Iterable[int]) -> set[int]:
    """Strict descendants (or ancestors) of any of ``start``; ``statements`` come in an order that the arcs follow."""
    met = {w for v in start for w in neighbours[v]}
    for v in statements:
        if v in met:
            met.update(neighbours[v])
    return met
