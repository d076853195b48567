"""torch as each test finds it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import pytest


@contextmanager
def fresh_torch() -> Iterator[Any]:
    """torch with one thread and no compiled graphs, or a skip that says what is missing."""
    if find_spec("torch") is None:
        pytest.skip("torch is not installed (pip install 'peakmem-inductor[torch]')")
    if not (shutil.which("g++") or shutil.which("c++")):
        pytest.skip("no C++ compiler: Inductor cannot compile here")
    import peakmem_inductor
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch._dynamo.reset()
    torch.manual_seed(0)
    peakmem_inductor.reset()
    try:
        yield torch
    finally:
        torch.set_num_threads(threads)
        torch._dynamo.reset()
