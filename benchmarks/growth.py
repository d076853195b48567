"""Growth: chains of cells and training steps from 100 to 20,000 statements, each in a process of its own.

    python benchmarks/growth.py [--sizes 100,1000,10000] [--markdown docs/tables/growth.md]

Each row is ordered, and its certificate accepted by the independent checker, in a child process, whose peak of resident
memory is measured. The slope is that of a least-squares line through (log statements, log CPU seconds): 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
from typing import Any

from common import Clock, Load, markdown, parser, seconds, warm_up, write

SIZES = (100, 300, 1000, 3000, 10000, 20000)


def child(family: str, size: int, limit: float) -> None:
    """Order one program and print what came of it as JSON."""
    import resource

    from growth_programs import FAMILIES
    from peakmem.model import Refused
    from peakmem.ordering import order_program
    from peakmem.proof import check

    warm_up()
    program = FAMILIES[family](size)
    with Clock() as ordering:
        found = order_program(program, time_limit=limit)
    with Clock() as checking:
        verdict = "no certificate"
        if found.certificate is not None:
            try:
                report = check(program, found.certificate.to_json())
                verdict = "certified" if report.optimal else f"gap {1 - report.lower_bound / report.peak:.3%}"
            except Refused as error:
                verdict = f"refused: {error}"
    unit = 1 if sys.platform == "darwin" else 1024
    row = {
        "statements": len(program), "before": found.peak_before, "peak": found.peak, "bound": found.lower_bound,
        "cpu": ordering.cpu, "wall": ordering.wall, "check": checking.cpu, "verdict": verdict,
        "certificate": len(found.certificate.to_bytes()) if found.certificate else 0,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit,
    }  # fmt: skip
    print(json.dumps(row))


def measure(family: str, size: int, limit: float) -> dict[str, Any]:
    """The row of a child; one that ended otherwise is told as such."""
    command = [sys.executable, __file__, "--child", family, str(size), "--time-limit", str(limit)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=2 * limit + 60)
    except subprocess.TimeoutExpired:
        return {"verdict": "the process did not end in time"}
    if done.returncode:
        return {"verdict": "failed: " + (done.stderr.strip().splitlines() or ["no message"])[-1]}
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def slope(points: list[tuple[float, float]]) -> float:
    """Of the least-squares line through the logarithms."""
    logs = [(math.log(x), math.log(y)) for x, y in points]
    mean_x = sum(x for x, _ in logs) / len(logs)
    mean_y = sum(y for _, y in logs) / len(logs)
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)


def main(options: argparse.Namespace) -> int:
    from growth_programs import FAMILIES

    load = Load()
    rows = []
    sentences = []
    for family in FAMILIES:
        points = []
        proved = 0
        for size in options.sizes:
            row = measure(family, size, options.time_limit)
            print(family, size, row, file=sys.stderr, flush=True)
            if "statements" not in row:
                rows.append([family, f"{size:,} wanted", *[""] * 7, row["verdict"]])
                continue
            proved += row["verdict"] == "certified"
            points.append((row["statements"], max(row["cpu"], 1e-4)))
            rows.append([
                family, f"{row['statements']:,}", f"{row['before']:,}", f"{row['peak']:,}", seconds(row["cpu"]),
                seconds(row["wall"]), seconds(row["check"]), f"{row['certificate']:,}",
                f"{row['memory'] / 2**20:.0f}", row["verdict"],
            ])  # fmt: skip
        told = f"{family}: {proved} of {len(options.sizes)} certified"
        large = [p for p in points if p[0] >= 900]
        if len(points) > 1:
            told += f"; log-log slope of CPU seconds {slope(points):.2f}"
        if 1 < len(large) < len(points):
            told += f" ({slope(large):.2f} from about 1,000 statements on)"
        sentences.append(told + ".")
    header = ("family", "statements", "given peak B", "our peak B", "order CPU s", "order wall s", "check CPU s",
              "certificate B", "process MiB", "result")  # fmt: skip
    write(
        options.markdown,
        "Growth of ordering with the length of a program",
        "python benchmarks/growth.py --markdown docs/tables/growth.md",
        f"Limit of wall time a program: {options.time_limit:g} s. One process a row; its memory is the peak of what was "
        "resident, interpreter and libraries included. Loading libraries is not timed.",
        markdown(header, rows),
        "\n".join(f"- {s}" for s in sentences),
        load.note(),
    )
    return 0


if __name__ == "__main__":
    arguments = parser(__doc__, shared=False)
    arguments.add_argument(
        "--sizes", type=lambda text: tuple(map(int, text.split(","))), default=SIZES, help="statements, with commas"
    )
    arguments.add_argument("--time-limit", type=float, default=120.0, help="wall seconds a program (%(default)s)")
    arguments.add_argument("--child", nargs=2, metavar=("FAMILY", "SIZE"), help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.child:
        child(given.child[0], int(given.child[1]), given.time_limit)
        sys.exit(0)
    sys.exit(main(given))
