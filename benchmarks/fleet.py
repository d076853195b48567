"""A survey as a fleet meets it: all models at hand, damaged, endless and oddly named ones among them, killed, resumed, shared out.

    python benchmarks/fleet.py FOLDER [--largest BYTES] [--only PATTERN] [--packages] [--dask] [--jobs 2] [--write]

FOLDER must not exist; models are copied into it (of the shared data, and with ``--packages`` of distributions that are installed here),
and beside them are planted files cut in half, an ONNX model whose Loop never ends, a name that is neither UTF-8 nor harmless, and a JSON
file that is no program. The search is limited by work (``--effort``), for the same answer every time; ONNX models with open dimensions are given the first sizes that run.
Then the same table is made

whole       in one run,
killed      with SIGTERM once a third of the rows are there, then resumed with ``--resume``,
shared out  as two shards, then merged,
dask        by two local workers (``--dask``; needs dask and distributed),

and compared as CSV, byte for byte. ``--write`` makes ``docs/tables/fleet.md`` of it. It ends with 1 where two tables differ, a row is missing, or the endless model held the survey up.
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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from common import ROOT, SHARED

HOSTILE = os.fsdecode(b"x\xff'; <script>alert(1)</script> $(touch owned) -o.json").replace("/", "_")
ENDLESS, NO_MODEL = "endless.onnx", "alexa.json"
TABLE = ROOT / "docs" / "tables" / "fleet.md"


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
    for suffix in sorted({p.suffix for p in good}):
        whole = max((p for p in good if p.suffix == suffix), key=lambda p: (p.stat().st_size, p.name)).read_bytes()
        (folder / f"cut{suffix}").write_bytes(whole[: len(whole) // 2])
    (folder / NO_MODEL).write_text('{"type": "micro", "model": "alexa.tflite", "micro": {"tensor_arena_size": 22348}}')
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
    parser.add_argument("--time-limit", default="60")
    parser.add_argument("--model-limit", default="120")
    parser.add_argument("--effort", default="200000")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.relative_to(ROOT)}")
    given = parser.parse_args()
    if given.folder.exists():
        sys.exit(f"{given.folder}: exists already")
    place = given.folder / "models"
    patterns = given.only or ["*"]
    found = [p for p in models(given.shared, given.packages) if any(fnmatch.fnmatch(p.name, o) for o in patterns)]
    chosen = [p for p in found if p.stat().st_size <= given.largest]
    plant(place, chosen)
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    left_out = f"; {len(found) - len(chosen)} of more than {given.largest:,} B left out" if len(chosen) < len(found) else ""
    say(f"{len(chosen)} models{left_out}, and {len(list(place.iterdir())) - len(chosen)} files planted beside them")
    options = ["--option", "onnx:try-dims", "--time-limit", given.time_limit, "--model-limit", given.model_limit, "--effort", given.effort, "-j", str(given.jobs)]
    ways: dict[str, Run] = {}

    ways["whole"] = whole = Run(place, given.folder / "whole", options)
    took = whole.go()
    say(f"whole: {len(whole.rows())} rows in {took:.0f} s, {given.jobs} at a time")

    ways["killed"] = killed = Run(place, given.folder / "killed", options)
    there = killed.killed_at(max(1, len(whole.rows()) // 3))
    killed.go("--resume")
    say(f"killed with {there} rows, resumed to {len(killed.rows())}")

    parts = [Run(place, given.folder / f"shard{k}", options) for k in (1, 2)]
    for k, part in enumerate(parts, 1):
        part.go("--shard", f"{k}/2")
    ways["shared out"] = merged = Run(place, given.folder / "merged", options)
    files = [str(part.place / "rows.jsonl") for part in parts]
    outputs = ["-o", str(merged.place / "rows.jsonl"), "-o", str(merged.place / "table.csv")]
    done = subprocess.run([sys.executable, "-m", "peakmem_cli", "merge", *files, *outputs], capture_output=True, text=True)
    assert done.returncode in (0, 1, 2), done.stderr  # 2: a row has an error, as planted
    say(f"shards of {' and '.join(str(len(p.rows())) for p in parts)} rows, merged to {len(merged.rows())}")

    if given.dask:
        ways["dask"] = spread = Run(place, given.folder / "dask", options)
        with cluster() as address:
            spread.go("--backend", f"dask,scheduler_host={address}")
        say(f"dask, two workers: {len(spread.rows())} rows")

    faults = [f"{name}: differs from the table in one run" for name, run in ways.items() if run.table() != whole.table()]
    for name, run in ways.items():
        for ours, theirs in zip(whole.table(), run.table()):
            if ours != theirs:
                print(f"{name}:\n  - {ours}  + {theirs}", end="", file=sys.stderr)
    listed = {row["model"]: row for row in csv.DictReader(whole.table())}
    files_there = len(list(place.iterdir())) - 1
    if len(listed) != files_there or NO_MODEL in listed:
        faults.append(f"{files_there} files and one that is no model, {len(listed)} rows")
    for name in (ENDLESS, *(n for n in listed if n.startswith("cut."))):
        if not listed[name]["error"]:
            faults.append(f"{name}: no error")
        say(f"{name}: {listed[name]['error']}")
    for name, row in listed.items():
        if row["error"] and name != ENDLESS and not name.startswith("cut."):
            say(f"{name}: {row['error']}")
    say("; ".join(faults) if faults else f"{len(ways)} ways, the same table of {len(listed)} models")
    if given.write and not faults:
        words = ["FOLDER", *(["--packages"] if given.packages else []), *(["--dask"] if given.dask else []), "--jobs", str(given.jobs)]
        words += ["--largest", str(given.largest)] if chosen != found else []
        write(lines, [*listed.values()], " ".join([*words, "--write"]))
    return 1 if faults else 0


def write(lines: Sequence[str], rows: Sequence[dict[str, str]], command: str) -> None:
    """The page: what was said, and a line for each frontend."""
    text = ["# A survey broken off, shared out and resumed", "", f"Made by `python benchmarks/fleet.py {command}`.", ""]
    text += [f"- {line.replace('<', '&lt;')}" for line in lines]
    text += ["", "| frontend | models | need less | certified optimal | measured | bitwise identical | failed |", "|---|---:|---:|---:|---:|---:|---:|"]
    for frontend in sorted({row["frontend"] for row in rows}):
        ours = [row for row in rows if row["frontend"] == frontend]
        answered = [row for row in ours if row["after_bytes"]]
        less = sum(int(row["after_bytes"]) < int(row["before_bytes"]) for row in answered)
        counts = [sum(row[name] == "true" for row in ours) for name in ("certified_optimal", "measured", "bitwise_identical")]
        text.append(f"| {frontend} | {len(ours)} | {less} | {' | '.join(map(str, counts))} | {len(ours) - len(answered)} |")
    TABLE.write_text("\n".join(text) + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
