"""From a program and its orders to items of one arena."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from peakmem.arena.items import Item
from peakmem.model import Program, timeline


def lifetimes(program: Program, orders: Mapping[str, Sequence[int]] | None = None) -> tuple[Item, ...]:
    """Items of every resident buffer and workspace, bodies inlined.

    A statement takes one step; a statement with bodies takes one step of its own and then one for the entry and one for
    each statement of every body, one body after the other, during all of which what it touches and its own workspace
    stay resident. Workspaces appear as items ``"workspace of <statement>"``; below a body, names begin with its path
    and a colon.

    Parameters
    ----------
    program : Program
    orders : mapping of str to sequence of int, optional
        Body path -> order; bodies it does not name keep their given order.

    Notes
    -----
    ``liveness_peak(lifetimes(program, orders))`` is ``scheduled_timeline(program, orders).peak``; where there are overlays, with
    `may_share` of the same two.
    """
    return _collected(program, orders)[0]


def may_share(program: Program, orders: Mapping[str, Sequence[int]] | None = None) -> tuple[tuple[int, int], ...]:
    """The pairs of these items, by index, that overlays permit to share their first byte: (dying input, output).

    Only those that the orders leave usable. A statement with bodies takes several steps, so its output meets the input before
    that one dies: its overlay, which the liveness peak counts, permits nothing here.
    """
    return _collected(program, orders)[1]


def _collected(
    program: Program, orders: Mapping[str, Sequence[int]] | None
) -> tuple[tuple[Item, ...], tuple[tuple[int, int], ...]]:
    result: list[Item] = []
    pairs: list[tuple[int, int]] = []
    _collect(program, orders or {}, "", 0, result, pairs)
    return tuple(result), tuple(pairs)


def _collect(
    program: Program, orders: Mapping[str, Sequence[int]], path: str, start: int, result: list[Item], pairs: list[tuple[int, int]]
) -> int:
    """Append the items and pairs of one program whose entry is at step ``start``; return the first step after it."""
    label = f"{path}:" if path else ""
    prefix = f"{path}/" if path else ""
    order = orders.get(path)
    line = timeline(program, order, [s.workspace for s in program.statements])
    begins: list[int] = []
    ends: list[int] = []
    now = start + 1
    for v in line.order:
        statement = program.statements[v]
        begins.append(now)
        now += 1
        for k, body in enumerate(statement.bodies):
            now = _collect(body, orders, f"{prefix}{v}/{k}", now, result, pairs)
        ends.append(now - 1)
        if statement.workspace:
            result.append(Item(f"{label}workspace of {statement.name}", statement.workspace, begins[-1], ends[-1]))
    last_step = now - 1
    item: dict[int, int] = {}
    for b, buffer in enumerate(program.buffers):
        if line.first[b] > line.last[b] or buffer.kind == "constant":
            continue
        first = start if line.first[b] < 0 else begins[line.first[b]]
        last = last_step if line.last[b] >= len(ends) else ends[line.last[b]]
        item[b] = len(result)
        result.append(Item(label + buffer.name, buffer.size, first, last))
    for step, v in enumerate(line.order):
        if not program.statements[v].bodies:
            pairs += [(item[a], item[o]) for a, o, _ in line.overlays_at(step)]
    return now
