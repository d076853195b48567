"""Damaged TFLite files all the way: read, ordered, planned, rewritten, and run beside what was made of them.

    python benchmarks/tflite_mutations.py [--files 5000] [--seed 0] [--keep DIR]

Files of the tests' builders and small ones of ``../shared/data/tflite``, with bytes changed, cut out or cut off. What is not
refused is optimized, without measuring and without a plan by turns, and where a different file comes out, both run on TFLite
Micro (needs ``pip install 'peakmem-tflite[tflm]'``), each in a process of its own, over several steps. Exit code 1 where a
written file gives other outputs than the one given, or anything but a sentence is raised; ``--keep`` saves those files.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from functools import partial
from pathlib import Path

from common import tflite_builders
from peakmem.model import PeakmemError
from peakmem.ordering import order_program
from peakmem_tflite.child import Tflm, isolated
from peakmem_tflite.measure import _job
from peakmem_tflite.model import TfliteModel
from peakmem_tflite.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
STEPS, SECONDS = 4, 10.0
LARGEST, WORK = 120_000, 2_000_000
"""Bytes and MACs of a shared model that is taken."""


def originals() -> dict[str, bytes]:
    tests = tflite_builders()
    made = {name: tests.encode(getattr(tests, name)()) for name in ("diamond", "streaming", "branching", "convolutions")}
    made |= {f"random {seed}": tests.encode(tests.random_file(seed, 20)) for seed in range(6)}
    shared = sorted((ROOT.parent / "shared" / "data" / "tflite").glob("*.tflite"))
    for path in shared:
        data = path.read_bytes()
        if len(data) <= LARGEST and sum(s.cost for s in TfliteModel.from_bytes(data).program.statements) <= WORK:
            made[path.stem] = data
    return made


def damaged(data: bytes, rng: random.Random) -> bytes:
    """A copy with something wrong, most often in the tables and not in the weights."""
    found = bytearray(data)
    kind = rng.random()
    if kind < 0.05:
        del found[rng.randrange(len(found)) :]
    elif kind < 0.1:
        begin, end = sorted(rng.randrange(len(found)) for _ in range(2))
        del found[begin:end]
    else:
        for _ in range(rng.choice((1, 1, 1, 2, 8))):
            i = rng.randrange(len(found) - 4)
            found[i : i + 4] = rng.choice(
                (bytes([found[i] ^ 1 << rng.randrange(8)]) + found[i + 1 : i + 4], bytes([rng.randrange(9)]) + found[i + 1 : i + 4],
                 b"\xff\xff\xff\xff", bytes(4), b"\xff\xff\xff\x7f", rng.randbytes(4))
            )  # fmt: skip
    return bytes(found)


def outcome(tflm: Tflm, data: bytes, settings: Settings) -> tuple[str, bytes]:
    """What became of a file, and the file made of it."""
    try:
        model = TfliteModel.from_bytes(data, settings=settings)
        other = model.apply(model.schedule(order_program(model.program, time_limit=2, effort=20_000)))
    except PeakmemError as error:
        return ("refused" if "\n" not in str(error) else "ERROR of several lines"), b""
    except Exception as error:
        return f"ERROR {type(error).__name__}: {error}", b""
    if other.data == model.data:
        return "left as it is", b""
    runs = []
    for subject in (model, other):
        job = _job(subject.judged, ())
        if job["arena"] > 1 << 30:
            return "too large to run", other.data
        work = partial(tflm.run, subject.judged.data, job, STEPS, False, SECONDS / 2)
        found = isolated(work, SECONDS)
        if "late" in found:
            return "runs too long", other.data
        if "error" in found:
            return ("DOES NOT RUN any more" if runs else "does not run as given"), other.data
        runs.append(found["result"])
    # On a busy machine the one or the other had no time for all steps.
    return ("same outputs" if all(a == b for a, b in zip(*runs)) else "OTHER OUTPUTS"), other.data


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for files that show a fault")
    options = parser.parse_args()
    given, tflm, counts = originals(), Tflm(), Counter[str]()
    rng = random.Random(options.seed)
    for number in range(options.files):
        name = rng.choice(sorted(given))
        data = damaged(given[name], rng)
        settings = Settings(named=bool(number % 2), no_plan=number % 4 == 3)
        what, made = outcome(tflm, data, settings)
        counts[what] += 1
        if what.split()[0].isupper():
            print(f"{number}: {name}: {what}", flush=True)
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{number}.tflite").write_bytes(data)
                (options.keep / f"{number}.made.tflite").write_bytes(made)
        if (number + 1) % 500 == 0:
            print(f"{number + 1} files: {dict(counts)}", file=sys.stderr, flush=True)
    print("\n".join(f"{count:6} {what}" for what, count in counts.most_common()))
    bad = sum(count for what, count in counts.items() if what.split()[0].isupper())
    print(f"{options.files} files, {bad} faults")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
