"""From an order to its memory over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from peakmem_check.model.program import Program


@dataclass(frozen=True)
class Timeline:
    """Memory of one order, step by step.

    Attributes
    ----------
    order : tuple of int
        The statements in execution order.
    bytes_at : tuple of int
        ``mem(S_i, v_i)`` of each step, in bytes.
    peak : int
        The largest of them; for a program without statements the bytes resident at entry.
    peak_step : int
        The first step that reaches it (0 for a program without statements).
    first, last : tuple of int
        For each buffer the first and the last step at which it is resident: ``-1`` as first for entry, ``n`` as last
        for a pinned one; ``(0, -1)`` for a buffer that is never resident.
    workspaces : tuple of int
        Workspace of each statement as it was charged (bodies included), by statement id.

    Notes
    -----
    What is resident at a step (`live_at`, and the workspace) sums to ``bytes_at`` and what an overlay saves there (`saved_at`).
    """

    program: Program
    order: tuple[int, ...]
    bytes_at: tuple[int, ...]
    peak: int
    peak_step: int
    first: tuple[int, ...]
    last: tuple[int, ...]
    workspaces: tuple[int, ...]

    def live_at(self, step: int) -> tuple[int, ...]:
        """Buffers resident while the statement of ``step`` runs, largest first, then by id."""
        live = [b for b in range(len(self.first)) if self.first[b] <= step <= self.last[b]]
        return tuple(sorted(live, key=lambda b: (-self.program.buffers[b].size, b)))

    def overlays_at(self, step: int) -> tuple[tuple[int, int, int], ...]:
        """Overlays that this order permits at a step: (input that dies there, output, bytes they may share), best first."""
        v = self.order[step]
        overlay = self.program.statements[v].overlay
        if overlay is None:
            return ()
        dying = [(a, overlay.output, gain) for a, gain in self.program.gains[v] if self.last[a] == step]
        return tuple(sorted(dying, key=lambda row: -row[2]))

    def saved_at(self, step: int) -> int:
        """Bytes that the best overlay of a step saves."""
        return max((gain for _, _, gain in self.overlays_at(step)), default=0)


def timeline(program: Program, order: Sequence[int] | None = None, workspaces: Sequence[int] | None = None) -> Timeline:
    """Memory of ``order`` (the given order if None).

    Parameters
    ----------
    program : Program
    order : sequence of int, optional
        A permutation of the statements that honours the dependences; not checked here
        (see `Program.validate_order`).
    workspaces : sequence of int, optional
        Workspace to charge for each statement; default `Program.workspaces` (bodies in their given order).

    Notes
    -----
    O(statements + touches).
    """
    sequence = tuple(range(len(program))) if order is None else tuple(order)
    charged = program.workspaces if workspaces is None else tuple(workspaces)
    peak, bytes_at, first, last = program.live_bytes(sequence, charged)
    return Timeline(
        program=program,
        order=sequence,
        bytes_at=tuple(bytes_at),
        peak=peak,
        peak_step=bytes_at.index(peak) if bytes_at else 0,
        first=tuple(first),
        last=tuple(last),
        workspaces=charged,
    )


def peak_of(program: Program, order: Sequence[int] | None = None) -> int:
    """Peak of an order in bytes; see `timeline`."""
    return timeline(program, order).peak


def body_workspaces(program: Program, orders: Mapping[str, Sequence[int]], prefix: str = "") -> tuple[int, ...]:
    """Workspace of each statement when bodies run in ``orders`` (a map body path -> order).

    Bodies that ``orders`` does not name keep their given order.
    """
    result = []
    for v, s in enumerate(program.statements):
        inner = 0
        for k, body in enumerate(s.bodies):
            path = f"{prefix}{v}/{k}"
            inner = max(inner, timeline(body, orders.get(path), body_workspaces(body, orders, path + "/")).peak)
        result.append(s.workspace + inner)
    return tuple(result)


def scheduled_timeline(program: Program, orders: Mapping[str, Sequence[int]]) -> Timeline:
    """Timeline of the whole program when it and its bodies run in ``orders`` (path ``""`` is the program itself)."""
    return timeline(program, orders.get(""), body_workspaces(program, orders))
