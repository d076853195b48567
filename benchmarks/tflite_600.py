"""The whole time of ``peakmem optimize`` on a TFLite model of 600 operators, measuring on TFLite Micro included.

    python benchmarks/tflite_600.py [--cells N] [--runs N]

Needs ``peakmem-cli`` and TFLite Micro (``pip install 'peakmem-tflite[tflm]'``). The model is a chain of cells of six
operators, written by the builders of the tests. Each run is a fresh process; printed are its wall time, the processor
time of it and its children, and the stages as the result has them, each as a share of the wall time, and the time of a
bare ``peakmem --help`` beside. Exit code 1 where the fastest run took 5 s of wall time or more: on a busy machine read
the processor time, which that limit is meant for.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import tflite_builders

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 5.0
"""Seconds."""


def timed(*arguments: str) -> tuple[float, float, bytes]:
    """Wall seconds and processor seconds of one ``peakmem`` process and its children, and what it printed."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "peakmem_cli", *arguments], stdout=subprocess.PIPE, check=True)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, default=100, help="cells of six operators")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    tests = tflite_builders()
    walls = []
    with tempfile.TemporaryDirectory(prefix="peakmem-") as folder:
        path = Path(folder, "cells.tflite")
        path.write_bytes(tests.encode(tests.cells(arguments.cells)))
        bare, _, _ = timed("--help")
        print(f"{path.stat().st_size:,} bytes, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}; --help took {bare:.2f} s")
        for _ in range(arguments.runs):
            wall, processor, text = timed("optimize", str(path), "--json")
            walls.append(wall)
            result = json.loads(text)
            runtime = result["runtime"]
            stages = {name: f"{100 * s / wall:.0f} %" for name, s in result["seconds"].items()}
            print(
                f"{result['statements']} operators: {wall:.2f} s wall ({wall / bare:.1f} x --help), {processor:.2f} s of "
                f"processors; {stages}; head {runtime['baseline_bytes']} -> {runtime['optimized_bytes']}, "
                f"{'measured' if runtime['measured'] else 'NOT MEASURED'}, "
                f"{'optimal' if result['optimal'] else 'not proved'}, "
                f"{'same bits' if runtime['bitwise_identical'] else 'BITS DIFFER OR NOT COMPARED'}"
            )
    within = min(walls) < LIMIT
    print(f"fastest {min(walls):.2f} s: {'under' if within else 'NOT under'} {LIMIT:.0f} s (load now {os.getloadavg()[0]:.1f})")
    return 0 if within else 1


if __name__ == "__main__":
    sys.exit(main())
