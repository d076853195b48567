"""The replay beside PyTorch's real allocator, on requests that nobody has recorded, and the backend on a CUDA without hardware: needs a CUDA
build of PyTorch and no GPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
from cases import RANDOM, Case
from random_traces import random_trace
from recorded import replayed
from stub import build

HERE = Path(__file__).resolve().parent
FIRST, COUNT = 1_000_000, 25
"""Seeds that are in no recording."""


@pytest.fixture(scope="module")
def stub(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    found = find_spec("torch")
    site = Path(found.origin).parent.parent if found and found.origin else None
    if site is None or not (site / "torch" / "lib" / "libtorch_cuda.so").is_file():
        pytest.skip("no CUDA build of torch is installed (pip install torch==2.14.1)")
    if not shutil.which("c++") or not shutil.which("nm"):
        pytest.skip("no C++ compiler or no nm: the CUDA without hardware cannot be built")
    return build(site, tmp_path_factory.mktemp("stub"))


@pytest.mark.parametrize("case", RANDOM, ids=lambda case: case.name)
def test_the_replay_is_the_allocator(case: Case, stub: dict[str, str]) -> None:
    """Requested, allocated, active and reserved, after every event."""
    command = [sys.executable, str(HERE / "recorder.py"), "random", str(FIRST), str(COUNT)]
    done = subprocess.run(command, env=os.environ | stub | case.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    real = dict(map(json.loads, done.stdout.splitlines()))
    assert len(real) == COUNT
    for seed, rows in real.items():
        assert [list(row) for row in replayed(case, random_trace(seed))] == rows, seed


def test_the_backend_on_a_cuda_without_hardware(stub: dict[str, str], tmp_path: Path) -> None:
    """The tests of the backend that need a device, where torch finds one that is none; there they must not skip."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-rs", str(HERE / "test_backend_on_cuda.py")]
    environment = {n: v for n, v in os.environ.items() if not n.startswith("PYTEST_")}
    done = subprocess.run(
        command, env=environment | stub | {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "inductor")}, capture_output=True, text=True, cwd=HERE.parent
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
