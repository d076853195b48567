"""The compiled loops against the Python that they stand for: the same beam and the same searches, timed in one process.

    python benchmarks/native.py [--shared DIR] [--width 64] [--effort 4000000] [--markdown docs/tables/native.md] [NAME ...]

The beam looks for an order below the peak as given, from both ends, until it finds one or ends. The trap grows from the start as far
as it goes, from both ends; its minimum cuts are solved by the same solver in both. The search is the whole order search with an
effort, without its certificate. Results and units of work are compared.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from common import Clock, Load, load_graphs, markdown, parser, quantile, seconds, warm_up, write

GRAPHS = (
    "randwire_cell_ws64_4_p75_s1",
    "randwire_cell_ws256_4_p75_s3",
    "randwire_regular_ws32_c109",
    "nasnet_imagenet_4x44",
    "amoebanet_imagenet_4x12",
    "darts_imagenet_4x12",
    "train_densenet121",
    "train_nasnet_imagenet_4x11",
)


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("names", nargs="*", metavar="NAME", help="graphs (default: eight)")
    arguments.add_argument("--width", type=int, default=64, help="of the beam (%(default)s)")
    arguments.add_argument("--effort", type=int, default=4_000_000, help="units of work of the search (%(default)s)")
    options = arguments.parse_args()

    from peakmem.ordering import native
    from peakmem.ordering.beam import beam
    from peakmem.ordering.bounds import Trap, forward_trap
    from peakmem.ordering.cuts import births_of
    from peakmem.ordering.meter import Meter
    from peakmem.ordering.portfolio import Solver
    from peakmem.ordering.problem import problem_of, waypoints

    os.environ.pop("PEAKMEM_PURE", None)
    if native.kernel() is None:
        sys.exit("this benchmark compares with peakmem-native, which is not installed: pip install ./packages/native")

    graphs = load_graphs(options.shared, options.names or GRAPHS)
    warm_up()
    load = Load()
    rows = []
    ratios: list[float] = []
    wrong: list[str] = []

    def timed(name: str, run: Callable[[], Any]) -> tuple[float, float, Any]:
        """CPU seconds compiled and in Python, and what both gave."""
        with Clock() as compiled:
            first = run()
        os.environ["PEAKMEM_PURE"] = "1"
        try:
            with Clock() as python:
                second = run()
        finally:
            del os.environ["PEAKMEM_PURE"]
        if first != second:
            wrong.append(f"{name}: the two differ")
        return compiled.cpu, python.cpu, first

    for graph in graphs:
        whole = problem_of(graph.program)
        part = max(whole.parts(waypoints(whole)), key=len)
        ceiling = part.order_peak(range(len(part))) - 1

        sides = part, part.reversed()

        def beams(sides: Any = sides, ceiling: int = ceiling) -> tuple[list[list[int]], int]:
            meter = Meter()
            return [beam(side, options.width, ceiling, meter) for side in sides], meter.spent

        def traps(sides: Any = sides) -> tuple[list[Trap], int]:
            meter = Meter()
            floors = [max(side.floor, default=side.entry_bytes) for side in sides]
            return [forward_trap(s, f, births=births_of(s), meter=meter) for s, f in zip(sides, floors)], meter.spent

        def solver(whole: Any = whole) -> tuple[list[int], int, int]:
            meter = Meter(effort=options.effort)
            found = Solver(whole, meter)
            found.run()
            return found.best, found.bound, meter.spent

        fast, slow, (_, units) = timed(graph.name, beams)
        ratios.append(slow / fast)
        row = [graph.name, len(part), f"{units:,}", seconds(fast), seconds(slow), f"{slow / fast:.1f}"]
        for run in (traps, solver):
            fast, slow, found = timed(graph.name, run)
            row += [f"{found[-1]:,}", seconds(fast), seconds(slow), f"{slow / fast:.1f}"]
        rows.append(row)
        print(*rows[-1], file=sys.stderr, flush=True)
    header = ("graph", "statements of the part", "beam units", "compiled s", "Python s", "ratio",
              "trap units", "compiled s", "Python s", "ratio", "search units", "compiled s", "Python s", "ratio")  # fmt: skip
    write(
        options.markdown,
        "The compiled loops and the Python that they stand for",
        "python benchmarks/native.py --markdown docs/tables/native.md",
        f"Beams of width {options.width} through the largest part of each graph, from both ends; traps from its start and "
        f"from its end, with the minimum cuts that they take; and the whole order search with {options.effort:,} units of work. CPU seconds of one run each, in one process; orders, bounds and units of work were compared.",
        markdown(header, rows),
        f"Python to compiled for the beam: median {quantile(ratios, 0.5):.1f}, least {min(ratios):.1f}.",
        "Faults: " + "; ".join(wrong) + "." if wrong else "No result differed.",
        load.note(),
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
