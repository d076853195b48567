"""Random ONNX nets with random regions in random bands: equal bit for bit on ONNX Runtime, or refused.

    python benchmarks/split_onnx.py [--nets 500] [--regions 3] [--seed 0] [--keep DIR]

Nets are those of the tests (``packages/onnx/tests/splitnets.py``): float32, float16, quantized by pairs of operators and by
quantized operators, of several operator sets, at any level of ONNX Runtime's optimizer. Each region is laid out, written, and judged
by the run that `peakmem split` makes before anything is written. What passes is held against two others that know nothing of
bands: sessions of ONNX Runtime alone, of one and of three threads and with other inputs, must give every output bit for bit; and the static
check of the two files must find the second to be the first in bands. Printed are the counts by kind of net, and the reasons of what
is refused. Exit code 1 where anything that passed is wrong; ``--keep`` saves those files.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import ModuleType

import peakmem
from common import markdown, of_tests
from peakmem.model import PeakmemError, Refused

LEVELS = ("none", "basic", "extended", "all")
COLUMNS = ("nets", "regions", "not laid out", "other bits, refused", "equal", "of them by channels", "wrong")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", type=int, default=500)
    parser.add_argument("--regions", type=int, default=3, help="tried in each net")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="where files that are wrong go")
    arguments = parser.parse_args()
    tests = of_tests("packages/onnx/tests/splitnets.py")
    counts: dict[str, Counter[str]] = {}
    reasons: Counter[str] = Counter()
    try:
        look(tests, arguments, counts, reasons)
    except KeyboardInterrupt:
        print("ended by Ctrl-C; these are the nets so far", file=sys.stderr)
    total: Counter[str] = Counter()
    for count in counts.values():
        total.update(count)
    rows = [[kind, *(counts[kind][c] for c in COLUMNS)] for kind in sorted(counts)]
    print(markdown(("kind", *COLUMNS), [*rows, ["all", *(total[c] for c in COLUMNS)]], 1))
    print(markdown(("refused because", "times"), reasons.most_common(), 1))
    return 1 if total["wrong"] else 0


def look(tests: ModuleType, arguments: argparse.Namespace, counts: dict[str, Counter[str]], reasons: Counter[str]) -> None:
    """All nets, counted by kind; every one that is wrong is printed."""
    for seed in range(arguments.seed, arguments.seed + arguments.nets):
        if (seed - arguments.seed) % 25 == 0:
            print(f"net {seed}", file=sys.stderr, flush=True)
        rng = random.Random(seed)
        kind, level = rng.choice(tests.KINDS), rng.choice(LEVELS)
        proto = tests.image_net(seed, kind=kind)
        count = counts.setdefault(kind, Counter())
        count["nets"] += 1
        with tempfile.TemporaryDirectory(prefix="peakmem-") as folder:
            path = Path(folder, "net.onnx")
            path.write_bytes(proto.SerializeToString())
            try:
                one = peakmem.load(path, frontend="onnx", ort_level=level)
            except PeakmemError as error:
                reasons[f"the net itself: {str(error).removeprefix(str(path))}"] += 1
                continue
            for k, region in enumerate(tests.regions(one.splittable(), rng, arguments.regions)):
                count["regions"] += 1
                laid = tests.laid_out(one, region)
                if isinstance(laid, str):
                    count["not laid out"] += 1
                    reasons[tests.plain(laid)] += 1
                    continue
                wrong = ""
                try:
                    made = one.apply_split(laid)
                    wrong = tests.same_outputs(one.serialized(), made.serialized(), seed) or one.structure(made).difference
                except Refused as error:
                    count["other bits, refused"] += 1
                    reasons[tests.plain(str(error))] += 1
                    continue
                except PeakmemError as error:
                    wrong = str(error)
                count["wrong" if wrong else "equal"] += 1
                count["of them by channels"] += region.axis == "channels" and not wrong
                if wrong:
                    print(f"net {seed} ({kind}, level {level}), {region}: {wrong}", flush=True)
                    if arguments.keep is not None:
                        arguments.keep.mkdir(parents=True, exist_ok=True)
                        (arguments.keep / f"net{seed}_{level}_{k}.onnx").write_bytes(proto.SerializeToString())


if __name__ == "__main__":
    sys.exit(main())
