"""Each rule of the order search switched off in turn: what it costs, and that nothing true changes.

    python benchmarks/ablation.py [--time-limit 30] [--markdown docs/tables/ablation.md] [NAME ...]

The search alone is timed, without writing certificates, each run in a process of its own. Whatever is switched off, a
bound is never above a peak.
"""

from __future__ import annotations

import multiprocessing
import sys
import time
from dataclasses import fields, replace
from multiprocessing.connection import Connection

from common import Clock, Load, load_graphs, markdown, parser, seconds, warm_up, write
from peakmem.model import Program
from peakmem.ordering.meter import Meter
from peakmem.ordering.portfolio import Solver
from peakmem.ordering.problem import problem_of
from peakmem.ordering.rules import ALL, REASONS, Rules

GRAPHS = (
    "amoebanet_imagenet_4x12",
    "nasnet_imagenet_4x11",
    "randwire_cell_ws20_4_p75_s1",
    "randwire_cell_ws32_4_p75_s3",
    "randwire_cell_ws64_4_p75_s1",
    "randwire_regular_ws32_c109",
    "train_darts_imagenet_4x12",
    "train_nasnet_imagenet_4x11",
    "train_randwire_cell_ws16_4_p75_s0",
)


def child(program: Program, rules: Rules, limit: float, out: Connection) -> None:
    """Send CPU seconds, bound and peak of one search."""
    warm_up()
    problem = problem_of(program)
    with Clock() as clock:
        solver = Solver(problem, Meter(time.monotonic() + limit), None, rules)
        solver.run()
    out.send((clock.cpu, solver.bound, solver.peak))


def search(program: Program, rules: Rules, limit: float) -> tuple[float, int, int] | None:
    """CPU seconds, bound and peak; None if the search did not end even well past its limit."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(program, rules, limit, there))
    process.start()
    there.close()
    try:
        answer: tuple[float, int, int] | None = here.recv() if here.poll(limit + 10) else None
    except EOFError:
        sys.exit(f"the search of {program.name!r} with {rules} failed; its message is above")
    process.kill()
    process.join()
    return answer


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("names", nargs="*", metavar="NAME", help="graphs (default: nine)")
    arguments.add_argument("--time-limit", type=float, default=10.0, help="wall seconds a graph and rule (%(default)s)")
    options = arguments.parse_args()
    graphs = load_graphs(options.shared, options.names or GRAPHS)

    load = Load()
    switches: list[tuple[str, Rules]] = [("none", ALL)]
    switches += [(f.name, replace(ALL, **{f.name: False})) for f in fields(Rules)]
    cells: dict[str, list[str]] = {}
    closed: dict[str, int] = dict.fromkeys((name for name, _ in switches), 0)
    endless = dict.fromkeys(closed, False)
    total: dict[str, float] = dict.fromkeys(closed, 0.0)
    wrong = []
    for graph in graphs:
        optimum = graph.optimum
        for name, rules in switches:
            if endless[name]:
                cells.setdefault(name, []).append("not tried")
                continue
            found = search(graph.program, rules, options.time_limit)
            if found is None:
                cells.setdefault(name, []).append("does not end")
                endless[name] = True
                continue
            cpu, bound, peak = found
            total[name] += cpu
            gap = "" if peak <= bound else f" (gap {1 - bound / peak:.2%})"
            closed[name] += not gap
            cells.setdefault(name, []).append(seconds(cpu) + gap)
            if not gap and optimum is None:
                optimum = peak
            if bound > peak or (optimum is not None and not bound <= optimum <= peak):
                wrong.append(f"{graph.name} without {name}: {bound} to {peak}, optimum {optimum}")
            print(graph.name, name, cells[name][-1], file=sys.stderr, flush=True)
    rows = [
        [name, REASONS.get(name, "Everything is on."), f"{closed[name]} of {len(graphs)}",
         seconds(total[name]) + (", then one that did not end" if endless[name] else "")]
        for name, _ in switches
    ]  # fmt: skip
    details = [[name, *cells[name]] for name, _ in switches]
    write(
        options.markdown,
        "What each rule of the search is good for",
        "python benchmarks/ablation.py --markdown docs/tables/ablation.md",
        f"Each rule of `peakmem.ordering.rules` switched off in turn, {options.time_limit:g} s of wall time a graph. *Closed*: "
        "bound and peak meet. A search that does not end soon after its limit is stopped, and its rule is tried no more.",
        markdown(("switched off", "what the rule is", "closed", "CPU s in all"), rows, left=2),
        "CPU seconds of the search a graph, and the gap where one was left:",
        markdown(("switched off", *(g.name for g in graphs)), details),
        "Faults: " + "; ".join(wrong) + "." if wrong else "No bound exceeded an optimum or a peak, with any rule off.",
        load.note(),
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
