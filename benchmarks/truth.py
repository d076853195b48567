"""The solver against exhaustive search on tens of thousands of random programs.

    python benchmarks/truth.py [--programs 20000] [--seed 0] [--overlays]

Every program is solved by `peakmem.ordering.order_program` and by a bottleneck shortest path over all states; orders,
peaks, bounds and certificates are compared, and a third of the programs also in reverse, relabelled and with every
buffer split. Up to 9 statements the walk through all orders is a second oracle. With ``--overlays`` every program has some
(then reversal and splitting would change it, and only relabelling is tried), and peaks are the least over the ways to use them
too. Prints counts; exits 1 on the first disagreement, with the smallest program found that shows it.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "packages" / "core" / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "packages" / "check" / "tests"))

from oracles import bottleneck, brute_force, least_workspaces, programs
from truth import examine, examine_invariance

SHARES: list[tuple[str, float, range, dict[str, bool]]] = [
    ("mixed, 0 to 9 statements", 0.5, range(10), {}),
    ("mixed, with bodies, 0 to 8", 0.15, range(9), {"bodies": True}),
    ("mixed, 10 to 14", 0.1, range(10, 15), {}),
    ("tangled, 4 to 14", 0.2, range(4, 15), {"tangled": True}),
    ("tangled, 15 to 20", 0.05, range(15, 21), {"tangled": True}),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--programs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--overlays", action="store_true")
    options = parser.parse_args()
    total: Counter[str] = Counter()
    begin = time.perf_counter()
    for k, (word, share, sizes, kind) in enumerate(SHARES):
        start = time.perf_counter()
        counts: Counter[str] = Counter()
        kind = {**kind, "overlays": options.overlays}
        for i, program in programs(1000 * options.seed + k, round(options.programs * share), sizes, **kind):
            try:
                examine(program, counts)
                counts["with overlays"] += program.has_overlays
                if len(program) <= 9:
                    workspaces = least_workspaces(program)
                    counts["brute force"] += 1
                    assert brute_force(program, workspaces) == bottleneck(program, workspaces), "the oracles disagree"
                if i % 3 == 0:
                    counts["in disguise"] += 1
                    examine_invariance(random.Random(i), program)
            except AssertionError as error:
                print(f"DISAGREEMENT on {word}, number {i} of seed {options.seed}: {error}")
                return 1
        total += counts
        print(
            f"{word}: {counts['programs']} programs, 0 disagreements, {time.perf_counter() - start:.1f} s", flush=True
        )
    print(f"total: {total['programs']} programs in {time.perf_counter() - begin:.1f} s, 0 disagreements")
    for word, count in sorted(total.items()):
        print(f"  {word}: {count}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
