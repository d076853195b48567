"""Each rule of the order search switched off in turn: what it costs, and that nothing true changes.

    python benchmarks/ablation.py [--time-limit 30] [--markdown docs/tables/ablation.md] [NAME ...]

The search alone is timed, without writing certificates. Whatever is switched off, a bound is never above a peak.
"""

from __future__ import annotations

import sys
import time
from dataclasses import fields, replace

from common import Clock, Load, load_graphs, markdown, parser, seconds, write

GRAPHS = (
    "amoebanet_imagenet_4x12",
    "nasnet_imagenet_4x11",
    "randwire_cell_ws20_4_p75_s1",
    "randwire_cell_ws32_4_p75_s3",
    "randwire_ws32_c78_s0",
    "randwire_regular_ws32_c109",
    "train_darts_imagenet_4x12",
    "train_nasnet_imagenet_4x11",
    "train_randwire_cell_ws16_4_p75_s0",
    "train_unet_like",
)


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("names", nargs="*", metavar="NAME", help="graphs (default: ten)")
    arguments.add_argument("--time-limit", type=float, default=10.0, help="wall seconds a graph and rule (%(default)s)")
    options = arguments.parse_args()
    graphs = load_graphs(options.shared, options.names or GRAPHS)

    import ortools.graph.python.max_flow  # noqa: F401  (loading it is start-up, not ordering)
    from peakmem.ordering.flat import Solver
    from peakmem.problem import problem_of
    from peakmem.rules import ALL, REASONS, Rules

    load = Load()
    switches: list[tuple[str, Rules]] = [("none", ALL)]
    switches += [(f.name, replace(ALL, **{f.name: False})) for f in fields(Rules)]
    cells: dict[str, list[str]] = {}
    closed: dict[str, int] = dict.fromkeys((name for name, _ in switches), 0)
    total: dict[str, float] = dict.fromkeys(closed, 0.0)
    wrong = []
    optima: dict[str, int] = {}
    for graph in graphs:
        problem = problem_of(graph.program)
        for name, rules in switches:
            with Clock() as clock:
                solver = Solver(problem, time.monotonic() + options.time_limit, None, rules)
                solver.run()
            total[name] += clock.cpu
            gap = "" if solver.peak <= solver.bound else f" (gap {1 - solver.bound / solver.peak:.2%})"
            closed[name] += not gap
            cells.setdefault(name, []).append(seconds(clock.cpu) + gap)
            optimum = optima.get(graph.name, graph.optimum)
            if not gap and optimum is None:
                optima[graph.name] = optimum = solver.peak
            if solver.bound > solver.peak or (optimum is not None and not solver.bound <= optimum <= solver.peak):
                wrong.append(f"{graph.name} without {name}: {solver.bound} to {solver.peak}, optimum {optimum}")
            print(graph.name, name, cells[name][-1], file=sys.stderr, flush=True)
    rows = [
        [name, REASONS.get(name, "Everything is on."), f"{closed[name]} of {len(graphs)}", seconds(total[name])]
        for name, _ in switches
    ]
    details = [[name, *cells[name]] for name, _ in switches]
    write(
        options.markdown,
        "What each rule of the search is good for",
        "python benchmarks/ablation.py --markdown docs/tables/ablation.md",
        f"Each rule of `peakmem.rules` switched off in turn, {options.time_limit:g} s of wall time a graph. *Closed*: "
        "bound and peak meet.",
        markdown(("switched off", "what the rule is", "closed", "CPU s in all"), rows, left=2),
        "CPU seconds of the search a graph, and the gap where one was left:",
        markdown(("switched off", *(g.name for g in graphs)), details),
        "Faults: " + "; ".join(wrong) + "." if wrong else "No bound exceeded an optimum or a peak, with any rule off.",
        load.note(),
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
