"""Records the real allocator anew: ``python record.py SITE_PACKAGES``, run by the Python of a CUDA build of PyTorch.

Builds the CUDA that owns no hardware, runs the programs, gives their requests and random traces to PyTorch's allocator under all
cases and writes ``recorded/``. Takes an hour on two cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cases import PROGRAMS, RANDOM, Case
from peakmem_inductor.cuda.caching import Event
from recorded import differences, pack, save

HERE = Path(__file__).resolve().parent
TRACES = 640
"""Random traces of each case."""


def run(script: str, *arguments: object, stub: Mapping[str, str], case: Case, given: str = "") -> list[Any]:
    environment = os.environ | stub | case.environment
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, env=environment, input=given, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def main(site: Path) -> None:
    from stub import build

    with tempfile.TemporaryDirectory() as folder:
        stub = build(site, Path(folder) / "stub")
        programs = run("programs.py", 0, 10_000, stub=stub, case=Case())
        print(len(programs), "programs", flush=True)
        given = "".join(json.dumps(program["events"]) + "\n" for program in programs)
        figures = [run("recorder.py", "trace", stub=stub, case=case, given=given) for case in PROGRAMS]
        keep_programs(programs, figures)
        keep_random([run("recorder.py", "digests", k * TRACES, TRACES, stub=stub, case=case) for k, case in enumerate(RANDOM)])


def keep_programs(programs: list[Any], figures: list[list[Any]]) -> None:
    kept = []
    for k, program in enumerate(programs):
        packed = pack([Event(*row) for row in program["events"]])
        rows = {case.name: differences(packed, figures[c][k]) for c, case in enumerate(PROGRAMS)}
        kept.append({"name": program["name"], "events": packed, "peaks": program["peaks"], "kept": program["kept"], "rows": rows})
    save("programs", kept)


def keep_random(digests: list[list[Any]]) -> None:
    save("random", [{"case": case.name, "digests": dict(rows)} for case, rows in zip(RANDOM, digests, strict=True)])


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]))
