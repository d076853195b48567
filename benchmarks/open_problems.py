"""Bounds over time on the graphs whose optimum was open.

    python benchmarks/open_problems.py [--time-limit 60] [--markdown docs/tables/open.md] [--plot FILE.svg] [NAME ...]

Each line is what the order search reported as it went: seconds, lower bound, best peak. The last line of a graph is
what the written certificate proves, as the independent checker says. ``--plot`` needs matplotlib (``pip install
matplotlib``).
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any

from common import Graph, Load, load_graphs, markdown, parser, seconds, warm_up, write

GRAPHS = {
    "randwire_cell_ws32_4_p75_s3": 60.0,
    "randwire_cell_ws64_4_p75_s1": 120.0,
    "train_densenet121": 120.0,
    "randwire_cell_ws256_4_p75_s3": 240.0,
}
"""Graph -> wall seconds that it is given."""

SENTENCE = re.compile(r"lower bound ([\d,]+) B, best peak ([\d,]+) B")


def trace(graph: Graph, limit: float) -> tuple[list[tuple[float, float, int, int]], str]:
    """(wall, CPU, lower, upper) of each report, the last for what is certified, and the verdict on it."""
    from peakmem.model import Refused
    from peakmem.ordering import order_program
    from peakmem.proof import check

    points: list[tuple[float, float, int, int]] = []
    wall, cpu = time.perf_counter(), time.process_time()

    def heard(sentence: str) -> None:
        told = SENTENCE.search(sentence)
        if told:
            lower, upper = (int(n.replace(",", "")) for n in told.groups())
            if not points or points[-1][2:] != (lower, upper):
                points.append((time.perf_counter() - wall, time.process_time() - cpu, lower, upper))

    found = order_program(graph.program, time_limit=limit, progress=heard)
    points.append((time.perf_counter() - wall, time.process_time() - cpu, found.lower_bound, found.peak))
    if found.certificate is None:
        return points, "no certificate"
    begin = time.process_time()
    try:
        report = check(graph.program, found.certificate.to_json())
    except Refused as error:
        return points, f"certificate refused: {error}"
    told = "certified optimal" if report.optimal else f"certified, gap {1 - report.lower_bound / report.peak:.3%}"
    size = len(found.certificate.to_bytes())
    return points, f"{told}; certificate {size:,} B, checked in {seconds(time.process_time() - begin)} CPU s"


def plot(target: Path, traces: dict[str, list[tuple[float, float, int, int]]]) -> None:
    """Steps of both bounds over wall time, a panel a graph, as SVG."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "peakmem"
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(1, len(traces), figsize=(4 * len(traces), 3.2), squeeze=False)
    for axis, (name, points) in zip(axes[0], traces.items()):
        times = [max(p[0], 0.01) for p in points]
        for index, label in ((3, "best peak"), (2, "lower bound")):
            axis.step(times, [p[index] for p in points], where="post", label=label)
        axis.set_xscale("log")
        axis.set_xlim(left=0.01)
        axis.xaxis.set_minor_formatter(ticker.NullFormatter())
        axis.set_title(name, fontsize=8)
        axis.set_xlabel("wall seconds")
        axis.ticklabel_format(axis="y", style="plain", useOffset=False)
        axis.tick_params(labelsize=7)
    axes[0][0].set_ylabel("bytes")
    axes[0][0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("names", nargs="*", metavar="NAME", help=f"graphs (default: {', '.join(GRAPHS)})")
    arguments.add_argument("--time-limit", type=float, help="wall seconds a graph (default: 60 to 240)")
    arguments.add_argument("--plot", type=Path, metavar="FILE", help="bounds over time as SVG")
    options = arguments.parse_args()
    if options.plot is not None:
        try:
            import matplotlib  # noqa: F401
        except ImportError:
            sys.exit("the plot needs matplotlib: pip install matplotlib, or leave --plot away")
    graphs = load_graphs(options.shared, options.names or GRAPHS)

    warm_up()
    load = Load()
    traces: dict[str, list[tuple[float, float, int, int]]] = {}
    rows: list[list[Any]] = []
    sentences = []
    for graph in graphs:
        limit = options.time_limit or GRAPHS.get(graph.name, 60.0)
        points, verdict = trace(graph, limit)
        traces[graph.name] = points
        for wall, cpu, lower, upper in points:
            gap = f"{1 - lower / upper:.3%}" if lower < upper else "none"
            rows.append([graph.name, seconds(wall), seconds(cpu), f"{lower:,}", f"{upper:,}", gap])
        before = graph.known
        known = (
            f" KNOWN.json of the shared data has {before['single_cut_bound']:,} to {before['upper']:,} B."
            if before and before.get("optimum") is None
            else ""
        )
        sentences.append(
            f"- {graph.name}, {len(graph.program)} statements, limit {limit:g} s: {points[-1][2]:,} to "
            f"{points[-1][3]:,} B, {verdict}.{known}"
        )
        print(sentences[-1], file=sys.stderr, flush=True)
    picture = ""
    if options.plot is not None:
        plot(options.plot, traces)
        picture = f"![bounds over time]({options.plot.name})"
    header = ("graph", "wall s", "CPU s", "lower bound B", "best peak B", "gap")
    write(
        options.markdown,
        "Bounds over time on graphs whose optimum was open",
        "python benchmarks/open_problems.py --markdown docs/tables/open.md --plot docs/tables/open.svg",
        "\n".join(sentences),
        *([picture] if picture else []),
        "A line for each report of the search; the last of a graph is what its certificate proves.",
        markdown(header, rows),
        load.note(),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
