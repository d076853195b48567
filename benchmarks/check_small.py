"""What it costs to check one small certificate: a fresh environment, the command in it, and Python itself beside.

    python benchmarks/check_small.py [--runs 20]

Printed are the seconds that an environment with ``peakmem-check`` alone takes to make, how much it holds, and the
processor time (user and system, the whole process from its start) of the command on each certificate of
``packages/check/certificates`` in turn, beside that of ``python -c pass``. Exit code 1 if the least of the command is not
under 0.1 s, or a verdict is wrong.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from statistics import median

PACKAGE = Path(__file__).parent.parent / "packages" / "check"
CERTIFICATES = PACKAGE / "certificates"
MOST = 0.1  # seconds of processor time


def cpu_seconds(command: Sequence[str], expected: int) -> float:
    """Processor time of a process of its own; `SystemExit` if it ends with another code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != expected:
        sys.exit(f"{' '.join(command)}: exit code {done.returncode} instead of {expected}: {done.stderr.strip()}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def files() -> Iterator[tuple[str, str, int]]:
    """Program, certificate and exit code of every pair in the folder."""
    index = json.loads((CERTIFICATES / "index.json").read_text())
    for part, code in (("true", 0), ("false", 1)):
        for name, row in index[part].items():
            yield str(CERTIFICATES / "programs" / f"{row['program']}.json"), str(CERTIFICATES / part / f"{name}.json"), code


def installed(folder: Path) -> Path:
    """A new environment with the package; returns its folder of programs."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    made = time.perf_counter()
    subprocess.run([folder / "bin" / "pip", "install", "-q", "--disable-pip-version-check", PACKAGE], check=True)
    size = sum(path.stat().st_size for path in folder.glob("lib/*/site-packages/peakmem_check*/**/*") if path.is_file())
    print(f"environment {made - start:.1f} s, installation {time.perf_counter() - made:.1f} s, {size / 1e3:.0f} kB installed")
    return folder / "bin"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        programs = installed(Path(folder) / "venv")
        bare, command = [], []
        for program, certificate, code in islice(cycle(files()), runs):
            bare.append(cpu_seconds([str(programs / "python"), "-c", "pass"], 0))
            command.append(cpu_seconds([str(programs / "peakmem-check"), program, certificate], code))
    for name, seconds in (("python -c pass", bare), ("peakmem-check", command)):
        print(f"{name:15} least {min(seconds):.3f} s, median {median(seconds):.3f} s of processor time in {runs} runs")
    print(f"ratio {min(command) / min(bare):.1f} (least), {median(command) / median(bare):.1f} (median)")
    return int(min(command) >= MOST)


if __name__ == "__main__":
    sys.exit(main())
