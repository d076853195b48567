"""Every graph of the shared data: peak as given, our peak, the bound, its certificate, and how long it all took.

    python benchmarks/graphs.py [--shared DIR] [--time-limit 60] [--markdown docs/tables/graphs.md] [NAME ...]

A graph counts as certified only if the independent checker accepts its certificate and the bound equals the peak.
"""

from __future__ import annotations

import sys

from common import Clock, Load, load_graphs, markdown, parser, quantile, seconds, warm_up, write


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("names", nargs="*", metavar="NAME", help="graphs (default: all)")
    arguments.add_argument("--time-limit", type=float, default=60.0, help="wall seconds a graph (%(default)s)")
    options = arguments.parse_args()
    graphs = load_graphs(options.shared, options.names or None)

    from peakmem.model import Refused
    from peakmem.ordering import order_program
    from peakmem.proof import check

    warm_up()
    load = Load()
    rows = []
    cpu = []
    certified = known = agreeing = lower = higher = 0
    wrong: list[str] = []
    for graph in graphs:
        with Clock() as ordering:
            found = order_program(graph.program, time_limit=options.time_limit)
        verdict = "no certificate"
        size = 0
        with Clock() as checking:
            if found.certificate is not None:
                try:
                    report = check(graph.program, found.certificate.to_json())
                    verdict = "optimal" if report.optimal else f"gap {1 - report.lower_bound / report.peak:.2%}"
                except Refused as error:
                    verdict = "refused"
                    wrong.append(f"{graph.name}: the checker refused the certificate: {error}")
        if found.certificate is not None:
            size = len(found.certificate.to_bytes())
        spent = max(0.0, ordering.cpu - checking.cpu)  # ordering checks its certificate too
        certified += verdict == "optimal"
        lower += found.peak < found.peak_before
        higher += found.peak > found.peak_before
        if graph.optimum is not None:
            known += 1
            agrees = graph.optimum == found.peak
            agreeing += agrees
            agreement = "same" if agrees else f"{graph.optimum:,}"
            if verdict == "optimal" and not agrees:
                wrong.append(f"{graph.name}: the known optimum is {graph.optimum}, ours {found.peak}")
        else:
            agreement = "none known"
        cpu.append(spent)
        rows.append([
            graph.name, len(graph.program), f"{found.peak_before:,}", f"{found.peak:,}", f"{found.lower_bound:,}",
            verdict, agreement, seconds(spent), seconds(max(0.0, ordering.wall - checking.wall)), seconds(checking.cpu), f"{size:,}",
        ])  # fmt: skip
        print(*rows[-1], file=sys.stderr, flush=True)
    header = ("graph", "statements", "given peak B", "our peak B", "bound B", "result", "known optimum",
              "order CPU s", "order wall s", "check CPU s", "certificate B")  # fmt: skip
    summary = (
        f"{len(graphs)} graphs, {certified} certified optimal; {lower} got a lower peak than as given, {higher} a higher one. "
        f"Optimum known before: {known}, ours the same: {agreeing}. CPU seconds of ordering: median "
        f"{seconds(quantile(cpu, 0.5))}, 95th percentile {seconds(quantile(cpu, 0.95))}, largest {seconds(max(cpu))}."
    )
    write(
        options.markdown,
        "Statement graphs: optimal orders and their certificates",
        "python benchmarks/graphs.py --markdown docs/tables/graphs.md",
        "Names beginning with `inductor/` are wrappers recorded from Inductor; their peaks include the freed inputs that "
        "are resident at entry. Reading the file is not timed, nor is loading libraries; seconds of ordering are without its check.",
        markdown(header, rows),
        summary,
        *(["Faults: " + "; ".join(wrong) + "."] if wrong else []),
        load.note(),
    )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
