"""What the benchmarks of the order engine share: where the graphs are, timing, and tables in markdown."""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import platform
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from peakmem.frontends.programfile import frontend
from peakmem.model import Program

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data"
sys.path.append(str(ROOT / "packages" / "check" / "tests"))  # for `generators`


@dataclass(frozen=True)
class Graph:
    """A statement graph of the shared data; ``known`` is its row of ``KNOWN.json``, empty where there is none."""

    name: str
    program: Program
    known: dict[str, Any]

    @property
    def optimum(self) -> int | None:
        return self.known.get("optimum")


@dataclass
class Clock:
    """Seconds of CPU time of this process and of wall time, of the block that it surrounds."""

    cpu: float = 0.0
    wall: float = 0.0

    def __enter__(self) -> Clock:
        self._cpu, self._wall = time.process_time(), time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.cpu, self.wall = time.process_time() - self._cpu, time.perf_counter() - self._wall


def parser(text: str | None, *, shared: bool = True) -> argparse.ArgumentParser:
    """A command line with ``--markdown`` and, where the shared graphs are used, ``--shared``."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    if shared:
        made.add_argument("--shared", type=Path, default=SHARED, metavar="DIR", help="shared data (%(default)s)")
    made.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too")
    return made


def graph_files(shared: Path) -> list[Path]:
    """Every graph of the shared data; ends the program with a sentence where there is none."""
    folder = shared / "graphs"
    files = sorted(folder.glob("*.json")) + sorted((folder / "inductor").glob("*.json"))
    files = [f for f in files if f.name != "KNOWN.json"]
    if not files:
        sys.exit(f"no graphs in {folder}: this benchmark needs the shared data, name its folder with --shared DIR")
    return files


def load_graphs(shared: Path, names: Iterable[str] | None = None) -> list[Graph]:
    """Graphs by name (default: all, the recorded wrappers last), in the order in which they are named."""
    files = {_name(f): f for f in graph_files(shared)}
    wanted = list(files) if names is None else list(names)
    unknown = [name for name in wanted if name not in files]
    if unknown:
        sys.exit(f"no graph is called {unknown[0]!r}; graphs are {', '.join(files)}")
    known = json.loads((shared / "graphs" / "KNOWN.json").read_bytes())
    return [Graph(name, frontend.load(files[name], {}).program, known.get(name, {})) for name in wanted]


def _name(path: Path) -> str:
    return f"inductor/{path.stem}" if path.parent.name == "inductor" else path.stem


# -- tables ----------------------------------------------------------------------------------------------------------


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """A table; the first ``left`` columns are text, the others stand at the right."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * left + "---:|" * (len(header) - left)]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines)


def seconds(value: float) -> str:
    """Three significant digits, never an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def warm_up() -> None:
    """Order a small program, so that loading libraries is not taken for ordering."""
    from growth_programs import nasnet_chain
    from peakmem.ordering import order_program

    order_program(nasnet_chain(100))


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least ``share`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


class Load:
    """Load of the machine over a run, for the foot of a table: timings mean little without it."""

    def __init__(self) -> None:
        self.first = self._now()

    @staticmethod
    def _now() -> float | None:
        return os.getloadavg()[0] if hasattr(os, "getloadavg") else None

    def note(self) -> str:
        """One paragraph: versions, cores, load."""
        last = self._now()
        told = (
            f"load average {self.first:.1f} when it began and {last:.1f} when it ended"
            if self.first is not None and last is not None
            else "load unknown"
        )
        return (
            f"Made on {os.cpu_count()} cores of {platform.machine()}, {told}, Python {platform.python_version()}, "
            f"OR-tools {version('ortools')}. CPU seconds are those of this process; wall seconds grow with the load of "
            "the machine, and CPU seconds too where cores share caches."
        )


def write(target: Path | None, title: str, command: str, *paragraphs: str) -> None:
    """Print the paragraphs and, with a target, write the page."""
    print("\n\n".join(paragraphs))
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        body = "\n\n".join([f"# {title}", f"Made by `{command}`.", *paragraphs])
        target.write_text(body + "\n")


def tflite_builders() -> ModuleType:
    """The test package's writer of small TFLite files."""
    return of_tests("packages/tflite/tests/conftest.py")


def of_tests(path: str) -> ModuleType:
    """A module of the tests, by its place in the repository."""
    spec = importlib.util.spec_from_file_location(Path(path).parts[1] + "_" + Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module
