"""A survey as a fleet meets it: all models at hand, damaged, endless and oddly named ones among them, killed, resumed, shared out.

    python benchmarks/fleet.py FOLDER [--largest BYTES] [--only PATTERN] [--packages] [--dask] [--jobs 2]

FOLDER must not exist; models are copied into it (of the shared data, and with ``--packages`` of distributions that are installed here),
and beside them are planted a file cut in half, an ONNX model whose Loop never ends, and a name that is neither UTF-8 nor harmless.
Then the same table is made

whole       in one run,
killed      with SIGTERM once a third of the rows are there, then resumed with ``--resume``,
shared out  as two shards, then merged,
dask        by two local workers (``--dask``; needs dask and distributed),

and compared as CSV, byte for byte. It ends with 1 where two tables differ, a row is missing, or the endless model held the survey up.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from common import SHARED

HOSTILE = os.fsdecode(b"x\xff'; <script>alert(1)</script> $(touch owned) -o.json").replace("/", "_")
ENDLESS = "endless.onnx"


def models(shared: Path, packages: bool) -> Iterator[Path]:
    """Files that a frontend may know, each content once."""
    roots = [shared / "tflite", shared / "onnx", shared / "graphs", shared / "faults" / "graphs"]
    if packages:
        roots.append(Path(sysconfig.get_paths()["purelib"]))
    seen = set()
    for root in roots:
        for path in sorted(root.rglob("*")):
            if path.suffix not in (".tflite", ".onnx", ".json") or not path.is_file() or path.name == "KNOWN.json" or "cert" in path.name:
                continue
            if root == roots[-1] and packages and (path.suffix == ".json" or "test" in str(path.relative_to(root))):
                continue
            digest = hashlib.sha256(path.read_bytes()).digest()
            if digest not in seen:
                seen.add(digest)
                yield path


def endless() -> bytes:
    """A Loop without a number of trips whose body says: go on."""
    from onnx import TensorProto, helper

    def value(name: str, kind: int, shape: list[int]) -> object:
        return helper.make_tensor_value_info(name, kind, shape)

    body = helper.make_graph(
        [
            helper.make_node("Constant", [], ["on"], value=helper.make_tensor("on", TensorProto.BOOL, [], [True])),
            helper.make_node("Add", ["state", "state"], ["next"]),
        ],
        "body",
        [value("i", TensorProto.INT64, []), value("before", TensorProto.BOOL, []), value("state", TensorProto.FLOAT, [4])],
        [value("on", TensorProto.BOOL, []), value("next", TensorProto.FLOAT, [4])],
    )
    graph = helper.make_graph(
        [helper.make_node("Loop", ["", "", "x"], ["y"], body=body)], "endless",
        [value("x", TensorProto.FLOAT, [4])], [value("y", TensorProto.FLOAT, [4])],
    )  # fmt: skip
    made: bytes = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    return made


def plant(folder: Path, found: Iterable[Path]) -> None:
    folder.mkdir(parents=True)
    good = list(found)
    for path in good:
        shutil.copy(path, folder / f"{path.parent.name}-{path.name}")
    largest = max(good, key=lambda p: (p.suffix != ".json", p.stat().st_size))  # half a JSON file may be passed over as none of ours
    (folder / f"cut{largest.suffix}").write_bytes(largest.read_bytes()[: largest.stat().st_size // 2])
    program = next((p for p in good if p.suffix == ".json"), Path(__file__).parents[1] / "examples" / "branches.json")
    (folder / HOSTILE).write_bytes(b" " + program.read_bytes())  # other bytes, or it would be the same model
    (folder / ENDLESS).write_bytes(endless())


class Run:
    """One way to the table, its files in a folder of its own."""

    def __init__(self, models: Path, place: Path, options: list[str]) -> None:
        self.models, self.place, self.options = models, place, options
        place.mkdir()

    def command(self, *more: str | Path) -> list[str]:
        outputs = ["-o", str(self.place / "rows.jsonl"), "-o", str(self.place / "table.csv")]
        return [sys.executable, "-m", "peakmem_cli", "survey", str(self.models), *outputs, *self.options, *map(str, more)]

    def go(self, *more: str | Path) -> float:
        """Run to the end; the seconds that it took."""
        start = time.monotonic()
        done = subprocess.run(self.command(*more), capture_output=True, text=True)
        assert done.returncode in (0, 1, 2), done.stderr
        assert "Traceback" not in done.stderr and "internal error" not in done.stderr + done.stdout, done.stderr
        assert self.rows(), done.stderr  # 2 is said of a survey that did not begin, too
        return time.monotonic() - start

    def rows(self) -> list[bytes]:
        path = self.place / "rows.jsonl"
        return path.read_bytes().splitlines(keepends=True) if path.exists() else []

    def table(self) -> list[str]:
        """Lines of the table, the rows sorted: their order is that in which they were done."""
        head, *rows = (self.place / "table.csv").read_text("utf-8").splitlines(keepends=True)
        return [head, *sorted(rows)]

    def killed_at(self, count: int) -> int:
        """SIGTERM once so many rows are there; how many were there when it had ended."""
        with subprocess.Popen(self.command(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            while process.poll() is None and len(self.rows()) < count:
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate()
        assert process.returncode == 128 + signal.SIGTERM, f"{process.returncode}: {said}"
        return len(self.rows())


@contextmanager
def cluster() -> Iterator[str]:
    """A Dask scheduler with two workers; yields its address."""
    address = "tcp://127.0.0.1:8797"
    with ExitStack() as stack:
        for words in (
            ["scheduler", "--host", "127.0.0.1", "--port", "8797", "--no-dashboard"],
            ["worker", address, "--nworkers", "2", "--nthreads", "1", "--no-dashboard"],
        ):
            process = subprocess.Popen([sys.executable, "-m", "dask", *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        from distributed import Client

        with Client(address, timeout=600) as client:
            client.wait_for_workers(2, timeout=600)
        yield address


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--shared", type=Path, default=SHARED, metavar="DIR", help="shared data (%(default)s)")
    parser.add_argument("--largest", type=int, default=1 << 30, metavar="BYTES", help="leave out larger files")
    parser.add_argument("--only", action="append", metavar="PATTERN", help="file names; repeatable")
    parser.add_argument("--packages", action="store_true", help="models of installed distributions, too")
    parser.add_argument("--dask", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--time-limit", default="10")
    parser.add_argument("--model-limit", default="20")
    given = parser.parse_args()
    if given.folder.exists():
        sys.exit(f"{given.folder}: exists already")
    place = given.folder / "models"
    found = models(given.shared, given.packages)
    patterns = given.only or ["*"]
    chosen = [p for p in found if p.stat().st_size <= given.largest and any(fnmatch.fnmatch(p.name, o) for o in patterns)]
    plant(place, chosen)
    options = ["--time-limit", given.time_limit, "--model-limit", given.model_limit, "-j", str(given.jobs)]
    ways: dict[str, Run] = {}

    ways["whole"] = whole = Run(place, given.folder / "whole", options)
    took = whole.go()
    print(f"whole: {len(whole.rows())} rows in {took:.0f} s", flush=True)

    ways["killed"] = killed = Run(place, given.folder / "killed", options)
    there = killed.killed_at(max(1, len(whole.rows()) // 3))
    killed.go("--resume")
    print(f"killed with {there} rows, resumed to {len(killed.rows())}", flush=True)

    parts = [Run(place, given.folder / f"shard{k}", options) for k in (1, 2)]
    for k, part in enumerate(parts, 1):
        part.go("--shard", f"{k}/2")
    ways["shared out"] = merged = Run(place, given.folder / "merged", options)
    files = [str(part.place / "rows.jsonl") for part in parts]
    outputs = ["-o", str(merged.place / "rows.jsonl"), "-o", str(merged.place / "table.csv")]
    done = subprocess.run([sys.executable, "-m", "peakmem_cli", "merge", *files, *outputs], capture_output=True, text=True)
    assert done.returncode in (0, 1, 2), done.stderr  # 2: a row has an error, as planted
    print(f"shards of {' and '.join(str(len(p.rows())) for p in parts)} rows, merged to {len(merged.rows())}", flush=True)

    if given.dask:
        ways["dask"] = spread = Run(place, given.folder / "dask", options)
        with cluster() as address:
            spread.go("--backend", f"dask,scheduler_host={address}")
        print(f"dask: {len(spread.rows())} rows", flush=True)

    faults = [f"{name}: differs from the table in one run" for name, run in ways.items() if run.table() != whole.table()]
    for name, run in ways.items():
        for ours, theirs in zip(whole.table(), run.table()):
            if ours != theirs:
                print(f"{name}:\n  - {ours}  + {theirs}", end="", file=sys.stderr)
    listed = {row["model"]: row for row in csv.DictReader(whole.table())}
    files_there = len(list(place.iterdir()))
    if len(listed) != files_there:
        faults.append(f"{files_there} files, {len(listed)} rows")
    for name in (ENDLESS, *(n for n in listed if n.startswith("cut."))):
        if not listed[name]["error"]:
            faults.append(f"{name}: no error")
        print(f"{name}: {listed[name]['error']}")
    print("\n".join(faults) if faults else f"{len(ways)} ways, the same table of {len(listed)} models")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
