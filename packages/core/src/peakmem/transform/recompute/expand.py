"""From a plan to an ordinary program with copies, and to a good order of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from peakmem.model import Buffer, Expansion, Orders, Program, Statement
from peakmem.system.progress import Progress
from peakmem.transform.recompute.plan import Plan

if TYPE_CHECKING:
    from peakmem.ordering import Ordering


def expand(plan: Plan) -> Expansion:
    """The enlarged program: its given order is the plan's, and its peak in it is the plan's peak.

    It has no overlays: plans are made without them, and an input that is dropped and made again does not die where it did.

    A copy of a statement called ``conv`` is called ``conv#2`` and writes buffers of its own, called after the
    originals in the same way. Statements that read a recomputed value read its newest copy.

    Dependences
    -----------
    A base statement keeps all its dependences, since others may be implied through them, and also waits for what made
    the copies that it reads. A copy depends on what made its sources, and on whatever its original depends on for a
    reason that buffers do not tell (a number, an effect). A statement that overwrites a source of a copy depends on that
    copy.
    """
    problem = plan.problem
    program = problem.program
    buffers = list(program.buffers)
    statements: list[Statement] = []
    statement_of: list[int] = []
    buffer_of = list(range(len(buffers)))
    taken = {b.name for b in buffers}
    taken_statements = {s.name for s in program.statements}
    current = list(range(len(buffers)))
    base: dict[int, int] = {}  # original statement -> its base run
    runs: dict[int, int] = dict.fromkeys(range(len(program)), 1)
    makers: dict[int, dict[int, int]] = {}  # instance -> original writer -> who made this instance
    late_readers: dict[int, list[tuple[int, int]]] = {}  # instance -> copies that read it: (copy, original)

    def emit(v: int, rename: Mapping[int, int], dependences: set[int], name: str) -> int:
        s = program.statements[v]
        new = len(statements)
        statements.append(
            replace(
                s,
                name=name,
                reads=tuple(rename.get(b, current[b]) for b in s.reads),
                writes=tuple(rename.get(b, current[b]) for b in s.writes),
                dependences=tuple(sorted(dependences)),
                overlay=None,
            )
        )
        statement_of.append(v)
        for b in program.touched[v]:
            if b in s.writes:
                makers.setdefault(rename.get(b, current[b]), {})[v] = new
        return new

    def explained(p: int, v: int) -> bool:
        """Whether ``v`` waits for ``p`` only because one of them writes what the other touches."""
        a, b = program.statements[p], program.statements[v]
        return a.pure and not (
            set(a.writes).isdisjoint(program.touched[v]) and set(b.writes).isdisjoint(program.touched[p])
        )

    def again(v: int) -> str:
        runs[v] += 1
        return _fresh(f"{program.statements[v].name}#{runs[v]}", taken_statements)

    def copy(unit: int) -> None:
        fresh: dict[int, int] = {}
        here: dict[int, int] = {}
        for v in problem.units[unit].members:
            for b in problem.writes[v]:
                if b not in fresh:
                    fresh[b] = len(buffers)
                    buffers.append(Buffer(_fresh(f"{program.buffers[b].name}#{runs[v] + 1}", taken),
                                          program.buffers[b].size))
                    buffer_of.append(b)
            shared = set(program.touched[v])
            needs = {c for w, c in here.items() if not shared.isdisjoint(program.touched[w])}
            # A dependence that buffers do not explain stands for something the adapter knows.
            needs.update(here.get(p, base[p]) for p in program.predecessors[v] if not explained(p, v))
            for b in program.touched[v]:
                if b not in fresh:
                    needs.update(
                        m for w, m in makers.get(current[b], {}).items() if problem.position[w] < problem.position[v]
                    )
                late_readers.setdefault(fresh.get(b, current[b]), []).append((len(statements), v))
            here[v] = emit(v, fresh, needs, again(v))
        for b in problem.units[unit].delivers:
            current[b] = fresh[b]

    k = 0
    for step, v in enumerate(problem.order):
        while k < len(plan.reruns) and plan.reruns[k][0] == step:
            copy(plan.reruns[k][1])
            k += 1
        needs = {base[p] for p in program.predecessors[v]}
        for b in program.touched[v]:
            if current[b] >= len(program.buffers):
                needs.update(makers.get(current[b], {}).values())
            if b in program.statements[v].writes:
                needs.update(c for c, m in late_readers.get(current[b], []) if problem.position[m] < step)
        base[v] = emit(v, {}, needs, program.statements[v].name)
    return Expansion(Program(tuple(buffers), tuple(statements), program.name), tuple(statement_of), tuple(buffer_of))


def _fresh(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "'"
    taken.add(name)
    return name


def body_orders(expansion: Expansion, orders: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Orders of bodies, moved from the original's body paths to those of the enlarged program.

    Control flow never runs twice, so each body occurs once.
    """
    new_id = {v: i for i, v in reversed(list(enumerate(expansion.statement_of)))}
    result = {}
    for path, order in orders.items():
        if path:
            head, _, tail = path.partition("/")
            result[f"{new_id[int(head)]}/{tail}"] = tuple(order)
    return result


def order_expansion(
    expansion: Expansion,
    *,
    bodies: Orders | None = None,
    time_limit: float | None = None,
    progress: Progress | None = None,
) -> Ordering:
    """Order the enlarged program again; never worse than the plan's own order.

    Parameters
    ----------
    expansion : Expansion
    bodies : Orders, optional
        The orders of bodies for which the plan was made, by the paths of the original program.

    Notes
    -----
    An order of the enlarged program that is certified is certified for that program alone: another plan may lead
    lower.
    """
    from peakmem.model import scheduled_timeline
    from peakmem.ordering import order_program

    found = order_program(expansion.program, time_limit=time_limit, progress=progress)
    planned = {path: tuple(range(len(body))) for path, body in expansion.program.bodies()}
    planned |= {"": tuple(range(len(expansion.program))), **body_orders(expansion, bodies or {})}
    peak = scheduled_timeline(expansion.program, planned).peak
    return found if found.peak <= peak else replace(found, orders=planned, peak=peak)
