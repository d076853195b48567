"""What recomputation costs at targets spread between the floor and the best order's peak, on large graphs.

    python benchmarks/recompute_targets.py [--seconds 5] [--targets 10] [--orders FILE] [--markdown FILE] [NAME ...]

Each line is one target, given ``--seconds`` wall seconds: whether a plan was found, its price, a proven lower bound on
every plan of the same base order, and the gap between the two. ``--orders`` keeps the base orders in a file, so that two
versions of the solver can be compared on the same ones.

Targets are evenly spaced between the floor and the peak of the best order; *of peak* is the target's share of that peak.
*exact*: no plan for the base order costs less; *gap*: not settled in time, with a plan or (-) without; *infeasible*: no plan for
the base order reaches the target. *peak B* is the peak of the plan.

*settled by* is what proved the bound, or that there is no plan, and *plan by* what found the plan: ``free``, nothing costs less
than 0; ``cp-sat`` and ``highs`` solve relaxations, whose solutions may be plans (``relaxation``); ``intervals``, CP-SAT on the
full problem or on few units; ``lowering`` and ``eviction`` are heuristics, and lowering also mends the reruns of a relaxation. A second table counts them. A third gives seconds until the first relaxation of one target is settled by each solver alone, at most
``--seconds``: a long narrow program, which the tree decomposition answers without a solver; one on which CP-SAT wins; and one on
which HiGHS does.

The statement graphs hold no MACs, so there are two sets of prices: *none*, as the graphs are (every plan is free; the only
question is whether there is one, and then with how few reruns), and *made up*: a convolution costs its kernel's area times
the bytes it writes, a fully connected layer the bytes it reads, anything else 0.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from common import Load, load_graphs, markdown, parser, seconds, warm_up, write
from generators import ladder
from peakmem.model import Program, Statement
from peakmem.ordering import order_program
from peakmem.transform.recompute import RerunProblem, floor, solve, trace
from peakmem.transform.recompute.horizon import Horizon
from peakmem.transform.recompute.integer import Answer, Scaled, solve_cpsat, solve_highs
from peakmem.transform.recompute.retention import build
from peakmem.transform.recompute.solver import FIRST_MODEL, grow
from peakmem.transform.recompute.treewidth import solve_treewidth

GRAPHS = ("nasnet_imagenet_4x44", "train_densenet121", "train_unet_like", "fx_timm_densenet121", "randwire_ws32_c78_s0")
KERNEL = re.compile(r"(?:bw_|wgrad_)?(?:conv|dwconv|stem|squeeze|Conv2d|upconv)")
AREA = re.compile(r"(\d+)x(\d+)")


def priced(program: Program) -> Program:
    """The same program with made-up MACs, see above."""

    def price(s: Statement) -> int:
        if KERNEL.match(s.op):
            area = AREA.search(s.op)
            size = int(area[1]) * int(area[2]) if area else 9
            return size * sum(program.buffers[b].size for b in s.writes)
        if s.op.endswith("fc"):
            return sum(program.buffers[b].size for b in s.reads)
        return 0

    return replace(program, statements=tuple(replace(s, cost=price(s)) for s in program.statements))


def base_order(program: Program, kept: dict[str, list[int]], limit: float) -> tuple[int, ...]:
    if program.name not in kept:
        found = order_program(program, time_limit=limit)
        kept[program.name] = list(found.orders.get("", range(len(program))))
    return tuple(kept[program.name])


HEADER = ("graph", "prices", "status", "settled by", "plan by", "statements", "target B", "of peak", "peak B", "reruns", "MACs", "bound",
          "gap", "wall s")  # fmt: skip


def measure(name: str, problem: RerunProblem, prices: str, count: int, limit: float) -> list[list[str]]:
    """One row for each of ``count`` targets strictly between the floor and the peak."""
    peak, low = trace(problem, ()).peak, floor(problem.program).size
    rows = []
    for k in range(count, 0, -1):
        target = low + (peak - low) * k // (count + 1)
        begin = time.perf_counter()
        outcome = solve(problem, target, time_limit=limit)
        spent = time.perf_counter() - begin
        plan = outcome.plan
        rows.append([
            name, prices, outcome.status, "-" if outcome.status == "gap" else outcome.bound_by, outcome.plan_by or "-",
            f"{len(problem.order)}", f"{target:,}", f"{target / peak:.1%}",
            "-" if plan is None else f"{plan.peak:,}", "-" if plan is None else f"{len(plan.reruns)}",
            "-" if plan is None else f"{plan.extra_macs:,}", "-" if outcome.status == "infeasible" else f"{outcome.lower_bound:,}",
            "-" if outcome.gap is None else f"{outcome.gap:.1%}", seconds(spent),
        ])  # fmt: skip
        print(*rows[-1], file=sys.stderr, flush=True)
    return rows


def counts(rows: list[list[str]]) -> str:
    """How many targets each method settled, and how many plans, kept to the end, each found."""
    settled, found = (Counter(r[k] for r in rows if r[k] != "-") for k in (3, 4))
    names = sorted({*settled, *found})
    return markdown(("method", "settled", "plans"), [[n, f"{settled[n]}", f"{found[n]}"] for n in names], left=1)


ALONE = (("ladder", "64 rungs, 3 kept", 0.5), ("train_unet_like", "made-up", 1 / 11), ("randwire_ws32_c78_s0", "made-up", 1 / 11))
"""A graph, its prices, and a target as a share of the way from the floor to the peak: each solver settles one soonest."""


def alone(problem: RerunProblem, share: float, limit: float) -> list[str]:
    """Variables of the first relaxation of a target, and seconds of each solver with its answer."""
    low, now = floor(problem.program).size, trace(problem, ())
    horizon = Horizon(problem, low + int((now.peak - low) * share))
    steps: set[int] = set()
    broken = {step: size for step, size in zip(now.base_step, now.bytes_at) if size > horizon.target}
    grow(horizon, steps, broken, FIRST_MODEL)
    model = build(horizon, steps)
    assert model is not None
    rows = Scaled(model, None)
    solvers: tuple[Callable[[], Answer | None], ...] = (
        lambda: solve_treewidth(model, budget=None, largest_table=2**18),
        lambda: solve_cpsat(rows, time_limit=limit, effort=1e9),
        lambda: solve_highs(rows, time_limit=limit),
    )
    cells = [f"{model.size}"]
    for solver in solvers:
        begin = time.perf_counter()
        answer = solver()
        spent = seconds(time.perf_counter() - begin)
        cells.append("too wide" if answer is None else spent if answer.exact else f"open after {spent}")
    return cells


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("names", nargs="*", metavar="NAME", help="graphs (default: five large ones)")
    arguments.add_argument("--seconds", type=float, default=5.0, help="wall seconds a target (%(default)s)")
    arguments.add_argument("--targets", type=int, default=10, help="targets a graph (%(default)s)")
    arguments.add_argument("--prices", choices=("none", "made-up", "both"), default="both")
    arguments.add_argument("--order-limit", type=float, default=30.0, help="wall seconds of ordering a graph (%(default)s)")
    arguments.add_argument("--orders", type=Path, metavar="FILE", help="read base orders there, and keep new ones")
    options = arguments.parse_args()
    kept: dict[str, list[int]] = {}
    if options.orders is not None and options.orders.exists():
        kept = json.loads(options.orders.read_text())
    warm_up()
    import ortools.sat.python.cp_model  # noqa: F401  # loading it is not part of a target
    load = Load()
    rows = []
    for graph in load_graphs(options.shared, options.names or GRAPHS):
        order = base_order(graph.program, kept, options.order_limit)
        if options.orders is not None:
            options.orders.write_text(json.dumps(kept))
        for prices, program in (("none", graph.program), ("made-up", priced(graph.program))):
            if options.prices in (prices, "both"):
                rows += measure(graph.name, RerunProblem(program, order), prices, options.targets, options.seconds)
    single = []
    for name, prices, share in ALONE if not options.names else ():
        program = ladder(64, 3) if name == "ladder" else priced(load_graphs(options.shared, [name])[0].program)
        order = tuple(range(len(program))) if name == "ladder" else base_order(program, kept, options.order_limit)
        single.append([name, prices, *alone(RerunProblem(program, order), share, options.seconds)])
    write(
        options.markdown,
        "Recomputation at targets between floor and peak",
        f"python benchmarks/recompute_targets.py --seconds {options.seconds:g}",
        (__doc__ or "").split("\n\n", 2)[2].strip(),
        markdown(HEADER, rows, left=5),
        f"{len(rows)} targets, {options.seconds:g} wall seconds each: {sum(r[4] != '-' for r in rows)} with a plan, "
        f"{sum(r[2] == 'exact' for r in rows)} exact, {sum(r[2] == 'infeasible' for r in rows)} proved out of reach, "
        f"{sum(r[2] == 'gap' and r[4] == '-' for r in rows)} with neither plan nor refutation.",
        counts(rows),
        markdown(("graph", "prices", "variables", "tree decomposition s", "CP-SAT s", "HiGHS s"), single, left=2),
        load.note(),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
