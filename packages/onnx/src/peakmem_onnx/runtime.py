"""ONNX Runtime at arm's length: what is installed, child processes, the counting library."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from peakmem.frontends import RuntimeStatus
from peakmem.model import RuntimeFailed, RuntimeMissing
from peakmem.system.native import build_library
from peakmem.system.process import run_child

PIP = "pip install 'peakmem-onnx[runtime]'"
DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-directml", "onnxruntime-openvino", "ort-nightly")
TIMEOUT = 600.0
OLDEST = (1, 21)
"""The first release that tells the workspace of each node (``session.collect_node_memory_stats_to_file``)."""


def runtime_version() -> str | None:
    """Version of the installed ONNX Runtime, found without importing it."""
    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None


def runtime_status() -> RuntimeStatus:
    return RuntimeStatus("onnxruntime", runtime_version(), PIP)


def require_runtime() -> str:
    """The installed version, or `RuntimeMissing` with the pip line that brings one."""
    version = runtime_version()
    if version is None:
        raise RuntimeMissing(f"ONNX Runtime is not installed; it optimizes and runs the model: {PIP}")
    numbers = [int(n) for n in re.findall(r"\d+", version)[:2]]
    if tuple(numbers) < OLDEST:
        wanted = ".".join(map(str, OLDEST))
        raise RuntimeMissing(f"onnxruntime {version} is too old, it does not tell workspaces; {wanted} or newer is needed: {PIP}")
    return version


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder for the files of one conversation with a child."""
    with tempfile.TemporaryDirectory(prefix="peakmem-onnx-") as name:
        yield Path(name)


def ask(
    folder: Path, steps: Sequence[Mapping[str, Any]], *, preload: Path | None = None, timeout: float = TIMEOUT
) -> list[dict[str, Any]]:
    """Let a child process do ``steps`` (see `peakmem_onnx.child`) and return its answers, one a step.

    A step that is ``optional`` may fail; its answer then holds only an ``error``.

    Raises
    ------
    RuntimeMissing
        When ONNX Runtime is not installed.
    RuntimeFailed
        When the child crashed, took too long, or the runtime refused; the message is the runtime's first line.
    """
    require_runtime()
    job, answer = folder / "job.json", folder / "answer.json"
    job.write_text(json.dumps({"steps": list(steps)}))
    answer.unlink(missing_ok=True)
    environment = child_environment(os.environ)
    if preload is not None:
        environment["LD_PRELOAD"] = _preloadable(preload.absolute(), folder)
    done = run_child(
        [sys.executable, "-m", "peakmem_onnx.child", str(job), str(answer)],
        what="ONNX Runtime",
        limit=timeout,
        environment=environment,
        folder=folder,
    )
    if not answer.exists():
        raise RuntimeFailed(f"ONNX Runtime ended without an answer ({done.last_words})")
    if preload is not None and b"cannot be preloaded" in done.err:
        raise RuntimeFailed(f"the system does not load {preload}, which counts allocations; is its folder one that programs may run from?")
    results: list[dict[str, Any]] = json.loads(answer.read_text())
    for step, result in zip(steps, results, strict=False):
        if "error" in result and not step.get("optional"):
            raise RuntimeFailed(one_line(result["error"]))
    return results


def _preloadable(library: Path, folder: Path) -> str:
    """What to call a library for a child that works in ``folder``: a path with a space or a colon would be read as several."""
    if not re.search(r"[\s:]", str(library)):
        return str(library)
    link = folder / "preload.so"
    if not link.is_symlink():
        link.symlink_to(library)
    return f"./{link.name}"


PATHS = ("PYTHONPATH", "LD_LIBRARY_PATH")
"""Lists of folders; made absolute, for a child has a working folder of its own."""

KEPT = (
    *PATHS, "PATH", "HOME", "TMPDIR", "TEMP", "TMP", "VIRTUAL_ENV", "GLIBC_TUNABLES", "NIX_LD", "NIX_LD_LIBRARY_PATH", "QEMU_LD_PREFIX",
    "LANG", "LC_ALL", "LC_CTYPE", "LOCPATH", "LOCALE_ARCHIVE", "PYTHONUTF8", "PYTHONCOERCECLOCALE", "PYTHONIOENCODING",
    "PYTHONHOME", "PYTHONPLATLIBDIR", "PYTHONUSERBASE", "PYTHONNOUSERSITE", "PYTHONSAFEPATH", "PYTHONPYCACHEPREFIX",
    "PYTHONDONTWRITEBYTECODE",
)  # fmt: skip
"""Variables that a child is given, beside ONNX Runtime's own, which begin with ``ORT_``: where modules and libraries are found, where
files may be written, and how names are read."""


def child_environment(given: Mapping[str, str]) -> dict[str, str]:
    """Only what a child needs: on Linux any other variable, a number of threads say, would move what lies in memory, by whose
    addresses ONNX Runtime's layout optimizer goes (see `peakmem_onnx.child`)."""
    if not sys.platform.startswith("linux"):
        return {name: value for name, value in given.items() if name != "PEAKMEM_ONNX_CHILD"}
    kept = {name: value for name, value in given.items() if name in KEPT or name.startswith("ORT_")}
    return kept | {name: os.pathsep.join(map(os.path.abspath, kept[name].split(os.pathsep))) for name in PATHS if kept.get(name)}


def one_line(text: str) -> str:
    """The runtime's message without its line breaks and its code prefix, at most 400 characters."""
    line = " ".join(text.split())
    marker = "[ONNXRuntimeError] : "
    if marker in line:
        line = line.split(marker, 1)[1]
    return line if len(line) <= 400 else line[:397] + "..."


def counting_library() -> Path | None:
    """The compiled counting library; None where `uncounted` says why."""
    return _counting()[0]


def uncounted() -> str:
    """Why allocations are not counted; empty where they are."""
    return _counting()[1]


@cache
def _counting() -> tuple[Path | None, str]:
    if not sys.platform.startswith("linux"):
        return None, "that needs Linux"
    try:
        return build_library(Path(__file__).with_name("preload.c"), ("-O2", "-ldl", "-lpthread")), ""
    except (RuntimeMissing, RuntimeFailed) as error:
        return None, str(error)
