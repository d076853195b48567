"""Other ways to order the same graphs, in one run: peak, bound, seconds.

    python benchmarks/side_by_side.py [--limit 15] [--markdown docs/tables/side_by_side.md] [NAME ...]

LPMF, BFS, DFS
    The functions of ``torch._inductor.memory`` themselves (needs torch; tried with 2.13.0), on stand-ins for scheduler
    nodes that carry what these functions read: dependences, sizes, readers, outputs. They know no workspace. A buffer
    that several statements may bear has no single allocating node, so such graphs cannot be driven and say so.
dynamic program
    Exact, over down-sets, level by level, as tflite-tools (Liberis and Lane 2019) and SERENITY (Ahn et al. 2020) do; states
    dearer than the given order are dropped. It ends without an answer beyond ``--states`` states or the limit.
MILP
    A 0-1 program in the manner of OLLA (Steiner et al. 2022) solved by HiGHS: done[v, t], live[b, t], with the spans that
    ancestors and descendants leave. HiGHS proves within floating-point tolerances. Not tried beyond ``--largest``
    statements, where the model has over a hundred thousand variables.
peakmem
    Order, bound and a certificate that the independent checker accepts.

All peaks are worked out again by the one simulator of this program from the order that each method gives.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from math import gcd
from typing import Any

from common import Clock, Load, load_graphs, markdown, parser, seconds, warm_up, write
from peakmem.model import Program
from peakmem.ordering.cuts import births_of
from peakmem.ordering.problem import Problem, problem_of

GRAPHS = (
    "unet_like",
    "nasnet_normal_cell_48x28",
    "fx_timm_hrnet_w18_small",
    "randwire_cell_ws16_4_p75_s0",
    "randwire_cell_ws20_4_p75_s1",
    "randwire_cell_ws32_4_p75_s3",
    "randwire_cell_ws64_4_p75_s1",
    "darts_imagenet_4x12",
    "nasnet_imagenet_4x11",
    "amoebanet_imagenet_4x12",
    "train_unet_like",
    "train_randwire_cell_ws16_4_p75_s0",
    "inductor/hf_t5",
    "inductor/squeezenet1_1",
)


@dataclass
class Answer:
    """What a method says; ``note`` stands where there is no order."""

    order: list[int] | None = None
    bound: int | None = None
    note: str = ""


# -- Inductor's own ----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class StandIn:
    """What the functions of ``torch._inductor.memory`` read of a scheduler node."""

    statement: int
    name: str
    outputs: list[Any] = field(default_factory=list)
    unmet_dependencies: list[Any] = field(default_factory=list)
    mpi_node: Any = None

    def get_outputs(self) -> list[Any]:
        return self.outputs

    def get_buffer_names(self) -> list[str]:
        return [b.name for b in self.outputs] or [self.name]

    def get_name(self) -> str:
        return self.name


@dataclass(eq=False)
class BufferStandIn:
    name: str
    mpi_buffer: Any

    def get_name(self) -> str:
        return self.name


@dataclass(frozen=True)
class Dependence:
    name: str


def inductor(problem: Problem, method: str) -> Answer:
    """Drive ``topological_sort_lpmf``, ``_bfs`` or ``_dfs``."""
    if births_of(problem) is not None:
        return Answer(note="not to be driven: buffers with several births")
    try:
        from torch._inductor import memory
        from torch.utils._ordered_set import OrderedSet
    except ImportError:
        return Answer(note="torch is missing")
    nodes = [StandIn(v, f"op{v}") for v in range(len(problem))]
    buffers: dict[str, BufferStandIn] = {}
    freeable: dict[str, Any] = {}
    outputs: Any = OrderedSet()
    readers: list[Any] = [OrderedSet() for _ in nodes]
    for b, touchers in enumerate(problem.touchers):
        if not touchers:
            continue
        name, size, pinned = f"buf{b}", problem.size[b], problem.pinned[b]
        others = OrderedSet([nodes[t] for t in touchers if problem.entry[b] or t != touchers[0]])
        if problem.entry[b]:
            info = memory.MemoryPlanningInfoForBuffer(0, size, others, others)
            made: Any = memory.FreeableInputBuffer(name, info)
            freeable[name] = made
        else:
            info = memory.MemoryPlanningInfoForBuffer(size, size, others, others)
            made = BufferStandIn(name, info)
            buffers[name] = made
            nodes[touchers[0]].outputs.append(made)
        for node in others:
            readers[node.statement].add(made)
        if pinned:
            outputs.add(name)
    for v, node in enumerate(nodes):
        node.mpi_node = memory.MemoryPlanningInfoForNode(
            index=v,
            size=sum(b.mpi_buffer.size_alloc for b in node.outputs),
            pred_buffers=readers[v],
            pred_nodes=OrderedSet([nodes[u] for u in problem.preds[v]]),
            succ_nodes=OrderedSet([nodes[w] for w in problem.succs[v]]),
        )
        node.unmet_dependencies = [Dependence(nodes[u].get_buffer_names()[0]) for u in problem.preds[v]]
    if method == "LPMF":
        found = memory.topological_sort_lpmf(nodes, freeable, buffers, outputs)
    else:
        found = getattr(memory, f"topological_sort_{method.lower()}")(nodes)
    return Answer([node.statement for node in found])


# -- dynamic program ---------------------------------------------------------------------------------------------------


def down_sets(problem: Problem, limit: float, states: int) -> Answer:
    """Least peak to reach each down-set, one level of equally large down-sets after the other."""
    deadline = time.monotonic() + limit
    n = len(problem)
    ceiling = problem.order_peak(range(n))
    before = [sum(1 << u for u in row) for row in problem.preds]
    touching = [sum(1 << t for t in row) for row in problem.touchers]
    # down-set -> (peak, rest, last statement, the entry before)
    level: dict[int, tuple[int, int, int, Any]] = {0: (problem.entry_bytes, problem.entry_bytes, -1, None)}
    seen = 0
    for _ in range(n):
        following: dict[int, tuple[int, int, int, Any]] = {}
        for done, entry in level.items():
            seen += 1
            if seen > states:
                return Answer(note=f"more than {states:,} states")
            if not seen & 255 and time.monotonic() > deadline:
                return Answer(note=f"not done in {limit:g} s ({seen:,} states)")
            peak, rest = entry[:2]
            for v in range(n):
                bit = 1 << v
                if done & bit or before[v] & ~done:
                    continue
                new = gone = 0
                for b in problem.touched[v]:
                    if not problem.entry[b] and not touching[b] & done:
                        new += problem.size[b]
                    if not problem.pinned[b] and not touching[b] & ~(done | bit):
                        gone += problem.size[b]
                here = max(peak, rest + problem.workspace[v] + new)
                old = following.get(done | bit)
                if here <= ceiling and (old is None or here < old[0]):
                    following[done | bit] = (here, rest + new - gone, v, entry)
        level = following
    ((least, *_),) = [entry[:1] for entry in level.values()]
    (entry,) = level.values()
    order = []
    while entry is not None and entry[2] >= 0:
        order.append(entry[2])
        entry = entry[3]
    return Answer(order[::-1], least)


# -- MILP --------------------------------------------------------------------------------------------------------------


def milp(problem: Problem, limit: float, largest: int) -> Answer:
    """Minimize the peak: done[v, t] (v has run when step t ends), live[b, t] (b is resident during step t)."""
    n = len(problem)
    if n > largest:
        return Answer(note=f"not tried: more than {largest} statements")
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint
    from scipy.optimize import milp as solve
    from scipy.sparse import coo_array

    births = births_of(problem) or [() if e else t[:1] for e, t in zip(problem.entry, problem.touchers)]
    ancestors, descendants = _reach(problem.preds, range(n)), _reach(problem.succs, range(n - 1, -1, -1))
    used = [b for b, t in enumerate(problem.touchers) if t and problem.size[b]]
    row_of = {b: i for i, b in enumerate(used)}
    count = n * n + len(used) * n + 1

    def done(v: int, t: int) -> int:
        return v * n + t

    def live(b: int, t: int) -> int:
        return n * n + row_of[b] * n + t

    unit = gcd(*[problem.size[b] for b in used], *problem.workspace) or 1
    outside = problem.base + sum(
        s for s, e, p, t in zip(problem.size, problem.entry, problem.pinned, problem.touchers) if e and p and not t
    )
    lower, upper = np.zeros(count), np.ones(count)
    upper[-1] = np.inf
    for v in range(n):
        for t in range(n):
            if t < ancestors[v].bit_count():
                upper[done(v, t)] = 0
            if t >= n - 1 - descendants[v].bit_count():
                lower[done(v, t)] = 1
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    low: list[float] = []
    high: list[float] = []

    def constrain(terms: list[tuple[int, float]], least: float, most: float) -> None:
        for column, value in terms:
            rows.append(len(low))
            columns.append(column)
            values.append(value)
        low.append(least)
        high.append(most)

    for t in range(n):
        constrain([(done(v, t), 1) for v in range(n)], t + 1, t + 1)
        memory: list[tuple[int, float]] = [(live(b, t), problem.size[b] // unit) for b in used]
        for v, w in enumerate(problem.workspace):
            if w:
                memory.append((done(v, t), w // unit))
                if t:
                    memory.append((done(v, t - 1), -(w // unit)))
        constrain([*memory, (count - 1, -1)], -np.inf, 0)
        for v in range(n):
            if t:
                constrain([(done(v, t), 1), (done(v, t - 1), -1)], 0, 1)
            for u in problem.preds[v]:
                constrain([(done(v, t), 1), *([(done(u, t - 1), -1)] if t else [])], -np.inf, 0)
        for b in used:
            # live >= [born by the end of t] - [all touchers done before t]
            for born in [None] if problem.entry[b] else births[b]:
                start = [] if born is None else [(done(born, t), -1.0)]
                for last in [None] if problem.pinned[b] else problem.touchers[b]:
                    end = [] if last is None or not t else [(done(last, t - 1), 1.0)]
                    constrain([(live(b, t), 1.0), *start, *end], 1.0 if born is None else 0.0, np.inf)
    objective = np.zeros(count)
    objective[-1] = 1
    integral = np.concatenate([np.ones(n * n), np.zeros(count - n * n)])
    matrix = coo_array((values, (rows, columns)), shape=(len(low), count)).tocsr()
    result = solve(
        objective,
        integrality=integral,
        bounds=Bounds(lower, upper),
        constraints=LinearConstraint(matrix, low, high),
        options={"time_limit": limit},
    )
    bound = None
    if result.mip_dual_bound is not None and np.isfinite(result.mip_dual_bound):
        bound = int(np.ceil(result.mip_dual_bound - 1e-6)) * unit + outside
    if result.x is None:
        return Answer(None, bound, f"no order in {limit:g} s")
    when = {v: sum(1 - round(result.x[done(v, t)]) for t in range(n)) for v in range(n)}
    return Answer(sorted(range(n), key=when.__getitem__), bound)


def _reach(rows: list[tuple[int, ...]], order: range) -> list[int]:
    masks = [0] * len(rows)
    for v in order:
        for u in rows[v]:
            masks[v] |= masks[u] | 1 << u
    return masks


# -- ours ----------------------------------------------------------------------------------------------------------------


def ours(program: Program, limit: float) -> Answer:
    from peakmem.ordering import order_program
    from peakmem.proof import check

    found = order_program(program, time_limit=limit)
    if found.certificate is not None:
        check(program, found.certificate.to_json())
    return Answer(list(found.orders[""]), found.lower_bound if found.certificate else None)


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("names", nargs="*", metavar="NAME", help=f"graphs (default: {len(GRAPHS)} of them)")
    arguments.add_argument("--limit", type=float, default=15.0, help="wall seconds a graph and method (%(default)s)")
    arguments.add_argument("--states", type=int, default=400_000, help="states of the dynamic program (%(default)s)")
    arguments.add_argument("--largest", type=int, default=200, help="statements of the MILP (%(default)s)")
    options = arguments.parse_args()
    graphs = load_graphs(options.shared, options.names or GRAPHS)

    import scipy.optimize  # noqa: F401  (loading libraries is not ordering)

    try:
        from torch import __version__ as torch_version
        from torch._inductor import memory  # noqa: F401

        told = f"torch {torch_version}"
    except ImportError:
        told = "torch is not installed, so Inductor's functions were not run"
    warm_up()
    load = Load()
    rows = []
    wrong = []
    for graph in graphs:
        problem = problem_of(graph.program)
        methods = {
            "as given": lambda p=problem: Answer(list(range(len(p)))),
            "LPMF": lambda p=problem: inductor(p, "LPMF"),
            "BFS": lambda p=problem: inductor(p, "BFS"),
            "DFS": lambda p=problem: inductor(p, "DFS"),
            "dynamic program": lambda p=problem: down_sets(p, options.limit, options.states),
            "MILP": lambda p=problem: milp(p, options.limit, options.largest),
            "peakmem": lambda g=graph: ours(g.program, options.limit),
        }
        best = None
        answers = []
        for method, run in methods.items():
            with Clock() as clock:
                answer = run()
            peak = None
            if answer.order is not None:
                graph.program.validate_order(answer.order)
                peak = problem.order_peak(answer.order)
                best = peak if best is None else min(best, peak)
            answers.append((method, answer, peak, clock))
        for method, answer, peak, clock in answers:
            if answer.bound is not None and best is not None and answer.bound > best:
                wrong.append(f"{graph.name}: {method} claims {answer.bound}, but there is an order of {best}")
            remark = answer.note
            if not remark and answer.bound is not None and peak is not None:
                remark = "optimal" if answer.bound == peak else f"gap {1 - answer.bound / peak:.2%}"
            rows.append([
                graph.name if method == "as given" else "", method, len(problem) if method == "as given" else "",
                "" if peak is None else f"{peak:,}", "" if answer.bound is None else f"{answer.bound:,}",
                "" if method == "as given" else seconds(clock.cpu), "" if method == "as given" else seconds(clock.wall),
                remark,
            ])  # fmt: skip
            print(graph.name, *rows[-1][1:], file=sys.stderr, flush=True)
    header = ("graph", "method", "statements", "peak B", "proved bound B", "CPU s", "wall s", "remark")
    write(
        options.markdown,
        "Side by side: other ways to order the same graphs",
        "python benchmarks/side_by_side.py --markdown docs/tables/side_by_side.md",
        f"Limit {options.limit:g} s of wall time a graph and method, {options.states:,} states for the dynamic program. "
        f"Inductor's functions: {told}. For peakmem the seconds include writing and checking the certificate; for the MILP, "
        "building the model. Only peakmem's bounds come with a proof that is checked apart.",
        markdown(header, rows, left=2),
        "Faults: " + "; ".join(wrong) + "." if wrong else "No claimed bound exceeds the best order of any method.",
        load.note(),
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
