"""A survey of all models at hand, broken off, shared out and spread over workers: is it one table each time?

    python benchmarks/fleet.py [--folder DIR ...] [--time-limit S] [--dask]

Into one folder go copies of the models of ``shared/data`` and of the packages ``pymicro-wakeword``, ``silero-vad``,
``basic-pitch``, ``magika`` and ``rapidocr-onnxruntime`` where they are installed, with a file cut in half, a model whose loop
never ends, and one whose name holds a line feed, a quote, a tag and a byte that is no UTF-8. Then ``peakmem survey`` runs
over it (1) whole; (2) ended by SIGTERM in the middle and resumed; (3) as two shards, merged; (4) with ``--dask`` on two
workers of a local Dask cluster. Compared are all rows in all that says nothing of time: file, exit code, bytes, bounds,
what is proved, and the sentence of an error. Needs the frontends with their runtimes, and ``dask[distributed]`` for (4).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import SHARED

PACKAGES = ("pymicro_wakeword", "silero_vad", "basic_pitch", "magika", "rapidocr_onnxruntime")
HOSTILE = b"'quote\nfeed <b>bold \xff.tflite"
ENDLESS = SHARED / "faults" / "onnx" / "endless.onnx"
SURVEY = (sys.executable, "-m", "peakmem_cli", "survey")


def models() -> Iterator[tuple[str, Path]]:
    """Names in the folder, and files: those of the shared data, then those of installed packages."""
    for kind in ("tflite", "onnx"):
        for path in sorted((SHARED / kind).glob(f"*.{kind}")):
            yield path.name, path
    for package in PACKAGES:
        found = importlib.util.find_spec(package)
        if found is None or not found.submodule_search_locations:
            print(f"{package}: not installed, so its models are left out")
            continue
        place = Path(next(iter(found.submodule_search_locations)))
        for path in sorted([*place.rglob("*.tflite"), *place.rglob("*.onnx")]):
            yield f"{package}-{'-'.join(path.relative_to(place).parts)}", path


def plant(folder: Path) -> int:
    """Fill the folder; how many models it holds."""
    whole = list(models())
    for name, path in whole:
        shutil.copyfile(path, folder / name)
    first = whole[0][1].read_bytes()
    (folder / "cut.tflite").write_bytes(first[: len(first) // 2])
    shutil.copyfile(ENDLESS, folder / "endless.onnx")
    shutil.copyfile(whole[0][1], os.fsdecode(os.fsencode(folder) + b"/" + HOSTILE))
    return len(whole) + 3


def told(path: Path) -> dict[str, Any]:
    """Of each row, what must not differ from run to run."""
    rows = {}
    for line in path.read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        row = json.loads(line)
        result = row["result"] or {}
        runtime = result.get("runtime", {})
        numbers = ("baseline_bytes", "baseline_predicted", "optimized_bytes", "predicted_bytes", "measured", "bitwise_identical")
        rows[row["name"]] = (
            row["code"], re.sub(r"after [0-9.]+ s", "after some time", row["error"]), result.get("realized_bound"),
            result.get("realized_optimal"), *(runtime.get(name) for name in numbers),
        )  # fmt: skip
    return rows


def survey(folder: Path, out: Path, *options: str, stop_after: int | None = None) -> int:
    """Run it; with ``stop_after`` it is sent SIGTERM once so many rows are written."""
    begin = time.monotonic()
    command = [*SURVEY, str(folder), "-o", str(out), "--quiet", *options]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while stop_after is not None and child.poll() is None:
        if out.exists() and out.read_bytes().count(b"\n") >= stop_after:
            child.send_signal(signal.SIGTERM)
            break
        time.sleep(0.1)
    code = child.wait()
    rows = len(out.read_bytes().splitlines())
    print(f"  {' '.join(options)}: exit {code}, {rows} rows, {time.monotonic() - begin:.0f} s", flush=True)
    return code


def compare(name: str, first: dict[str, Any], second: dict[str, Any]) -> int:
    different = [key for key in sorted({*first, *second}) if first.get(key) != second.get(key)]
    print(f"{name}: {len(second)} rows, {len(different)} differ from the whole run", flush=True)
    for key in different:
        print(f"  {key!a}\n    {first.get(key)}\n    {second.get(key)}")
    return len(different)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--time-limit", default="60", metavar="SECONDS")
    arguments.add_argument("--options", default="", help="further options of peakmem survey, as one word")
    arguments.add_argument("--dask", action="store_true", help="also on two workers of a local Dask cluster")
    given = arguments.parse_args()
    options = ["--time-limit", given.time_limit, *given.options.split()]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        folder = place / "models"
        folder.mkdir()
        count = plant(folder)
        print(f"{count} models, three of them planted")
        survey(folder, place / "whole.jsonl", *options)
        whole = told(place / "whole.jsonl")
        wrong = int(len(whole) != count)
        survey(folder, place / "broken.jsonl", *options, stop_after=count // 2)
        survey(folder, place / "broken.jsonl", *options, "--resume")
        wrong += compare("ended by SIGTERM and resumed", whole, told(place / "broken.jsonl"))
        for shard in "12":
            survey(folder, place / f"shard{shard}.jsonl", *options, "--shard", f"{shard}/2")
        merged = place / "merged.jsonl"
        subprocess.run(
            [sys.executable, "-m", "peakmem_cli", "merge", *(str(place / f"shard{n}.jsonl") for n in "12"), "-o", str(merged), "--quiet"],
            stdout=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        wrong += compare("two shards merged", whole, told(merged))
        if given.dask:
            from distributed import LocalCluster

            with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
                backend = f"dask,scheduler_host={cluster.scheduler_address}"
                survey(folder, place / "dask.jsonl", *options, "--backend", backend, "--jobs", "2")
            wrong += compare("two workers of Dask", whole, told(place / "dask.jsonl"))
    print("one table each time" if not wrong else f"{wrong} rows differ")
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
