"""How the recomputation solvers scale with the width of the retention graph and with the length of the program.

Run: ``python benchmarks/recompute_scaling.py [--seconds 20]``

Programs are ladders (`generators.ladder`, beside the tests of the checker): ``rungs`` stages, in each ``width`` cheap
values that are kept for a late reading. The width of the retention graph follows ``width``; the length follows
``rungs``. Every line is one target, half way between the floor and the peak, solved by each method alone. Ratios within
one run are what counts: the tree decomposition's time should grow with ``2 ** width`` in the first table and linearly
in the second.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from peakmem.transform.recompute import RerunProblem, floor, front, solve, trace
from peakmem.transform.recompute.horizon import Horizon
from peakmem.transform.recompute.retention import build
from peakmem.transform.recompute.treewidth import eliminations, solve_treewidth

sys.path += [str(Path(__file__).parents[1] / "packages" / name / "tests") for name in ("check", "core")]

from generators import ladder
from slots import Method, solve_slots, tight_steps

METHODS = ("intervals", "auto")
FULL: tuple[Method, ...] = ("treewidth", "integer")


def measure(rungs: int, width: int, seconds: float) -> list[str]:
    """One row: statements, widths and table sizes of both eliminations, seconds and answers of the methods."""
    program = ladder(rungs, width)
    problem = RerunProblem(program, tuple(range(len(program))))
    target = (trace(problem, ()).peak + floor(program).size) // 2
    horizon = Horizon(problem, target)
    model = build(horizon, tight_steps(horizon))
    assert model is not None
    widths = {e.kind: e for e in eliminations(model)}
    begin = time.perf_counter()
    relaxed = solve_treewidth(model, budget=None, largest_table=2**22)
    spent = time.perf_counter() - begin
    bound = "too wide" if relaxed is None else f"{relaxed.bound} in {spent:.2f}s"
    row = [str(rungs), str(width), str(len(program)), str(widths["time"].width)]
    row += [str(widths["min-fill"].width) if "min-fill" in widths else "-", bound]
    for name in FULL:
        begin = time.perf_counter()
        status, plan = solve_slots(problem, target, name, seconds)
        row.append(f"{status if plan is None else plan.extra_macs} in {time.perf_counter() - begin:.2f}s")
    for method in METHODS:
        outcome = solve(problem, target, time_limit=seconds, method=method)  # type: ignore[arg-type]
        if outcome.status == "exact" and outcome.plan is not None:
            row.append(f"{outcome.plan.extra_macs} in {outcome.seconds:.2f}s")
        else:
            row.append(f"{outcome.status} in {outcome.seconds:.2f}s")
    return row


HEAD = ["rungs", "width", "statements", "width (time)", "width (min-fill)", "relaxation", *FULL, *METHODS]


def table(rows: list[list[str]]) -> None:
    columns = [max(len(r[i]) for r in [HEAD, *rows]) for i in range(len(HEAD))]
    for row in [HEAD, *rows]:
        print("  ".join(cell.rjust(n) for cell, n in zip(row, columns)), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="limit for each solve")
    seconds = parser.parse_args().seconds
    print("against width, 3 rungs:")
    table([measure(3, width, seconds) for width in (2, 3, 4, 5, 6, 8)])
    print("\nagainst length, width 3:")
    table([measure(rungs, 3, seconds) for rungs in (2, 4, 8, 16, 32)])
    print("\nfront of a net of 700 statements (limit 30 s):")
    program = ladder(77, 4)
    problem = RerunProblem(program, tuple(range(len(program))))
    found = front(problem, time_limit=30.0)
    exact = sum(p.exact for p in found.points)
    print(f"{len(program)} statements: {len(found.points)} points, {exact} exact, complete {found.complete}, {found.seconds:.1f}s")


if __name__ == "__main__":
    main()
