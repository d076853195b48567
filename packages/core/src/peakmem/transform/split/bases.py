"""Base orders: which statements stand side by side decides which regions there can be.

The best order of the unsplit program often runs an operator long before the one that needs it, since it gains nothing by
waiting; in bands the two would share their rows. So other orders are looked at too: the given one, one that computes each
value just before it is needed, and best orders of the program in which statements that could run in bands together, a
value and its only reader, are one.
"""

from __future__ import annotations

from peakmem.frontends.splitting import Splittable
from peakmem.model import Buffer, Program, Statement
from peakmem.ordering.greedy import post_order
from peakmem.ordering.meter import Meter
from peakmem.ordering.portfolio import Solver
from peakmem.ordering.problem import problem_of

EFFORT = 200_000
"""Units of work (`peakmem.ordering.meter`) for the order of a fused program."""


def base_orders(source: Splittable, best: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Orders whose consecutive statements may be regions, each once, ``best`` first. O(statements) but for the ordering."""
    program = source.program
    late = post_order(problem_of(program, list(program.workspaces)))
    found = [best, tuple(range(len(program))), tuple(late), _fused(source, growing=True), _fused(source, growing=False)]
    return list(dict.fromkeys(found))


def _fused(source: Splittable, *, growing: bool) -> tuple[int, ...]:
    """The best order found where values with one reader, both of which run in bands, are computed and read at once.

    ``growing``: only values that are larger than what they are computed from.
    """
    program = source.program
    n = len(program)
    group = list(range(n))  # statement -> the last statement of what it is fused with
    for v in range(n - 1, -1, -1):
        s = program.statements[v]
        if len(s.writes) != 1 or program.buffers[s.writes[0]].pinned or isinstance(source.rule(v, "rows"), str):
            continue
        y = s.writes[0]
        readers = [w for w in program.touchers[y] if w != v]
        if len(readers) != 1 or len(program.successors[v]) != 1 or isinstance(source.rule(readers[0], "rows"), str):
            continue
        taken = sum(program.buffers[b].size for b in program.touched[v] if b != y)
        if not growing or program.buffers[y].size > taken:
            group[v] = group[readers[0]]
    members: dict[int, list[int]] = {}
    for v in range(n):
        members.setdefault(group[v], []).append(v)
    place = {last: k for k, last in enumerate(sorted(members))}
    inner = {
        program.statements[v].writes[0] for v in range(n) if group[v] != v
    }
    buffers = tuple(Buffer(b.name, 0 if i in inner else b.size, b.kind, b.pinned) for i, b in enumerate(program.buffers))
    statements = []
    for last in sorted(members):
        own = members[last]
        reads = dict.fromkeys(b for v in own for b in program.statements[v].reads if b not in inner)
        writes = dict.fromkeys(b for v in own for b in program.statements[v].writes)
        before = {place[group[u]] for v in own for u in program.predecessors[v]} - {place[last]}
        work = max(program.workspaces[v] for v in own)
        statements.append(Statement(program.statements[last].name, "", tuple(reads), tuple(writes), tuple(sorted(before)), work))
    fused = Program(buffers, tuple(statements))
    solver = Solver(problem_of(fused, list(fused.workspaces)), Meter(effort=EFFORT))
    solver.run(2)
    lasts = sorted(members)
    return tuple(v for k in solver.best for v in members[lasts[k]])
