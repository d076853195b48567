"""What is not served, and why: said once as a warning, and in a row of the report."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Sequence
from typing import Any

TRIED = ("2.13.0", "2.14.1")
"""Oldest and newest version of torch that peakmem was tried with."""
_warned: set[str] = set()


class PeakmemWarning(RuntimeWarning):
    """A program runs as Inductor wrote it, or permuted without a check; the text says why."""


def warn(text: str, key: str | None = None) -> None:
    """Warn, once in a process for each ``key`` (default: the text)."""
    if (key or text) not in _warned:
        _warned.add(key or text)
        warnings.warn(f"peakmem: {text}", PeakmemWarning, stacklevel=3)


def refusal(source: str, args: Sequence[Any]) -> str:
    """Why a program is left alone before its statements are read, or the empty string.

    Parameters
    ----------
    source : str
        Text of the module that Inductor loaded.
    args : sequence
    """
    import torch

    from peakmem_inductor.arguments import special

    devices = {a.device.type for a in args if isinstance(a, torch.Tensor)} | set(re.findall(r"\bempty_strided_(\w+)\(", source))
    if devices - {"cpu", "cuda"}:
        return f"the graph runs on {', '.join(sorted(devices - {'cpu', 'cuda'}))}; only graphs on the CPU or CUDA are permuted"
    chips = {str(a.device) for a in args if isinstance(a, torch.Tensor) and a.device.type == "cuda"}
    if len(chips) > 1:
        return f"the graph runs on several devices, {', '.join(sorted(chips))}"
    if "cuda" in devices and not torch.cuda.is_available():
        return "the graph runs on cuda, which torch cannot use here"
    if "cuda" in devices and torch.cuda.is_current_stream_capturing():
        return "it is being captured into a CUDA graph, whose memory is not the program's any more"
    if not re.search(r"^\s*def call\(", source, re.M):
        return "it was generated with cpp_wrapper=True, as C++ that peakmem does not permute; turn that off"
    for i, value in enumerate(args):
        kind = special(value)
        if kind:
            return f"argument {i} is {kind}, which peakmem can neither copy nor compare"
    return ""


def untried(version: str) -> str:
    """What to say about a version of torch that is outside of `TRIED`, or the empty string."""
    low, now, high = (tuple(map(int, re.findall(r"\d+", v)[:3])) for v in (TRIED[0], version, TRIED[1]))
    if low <= now <= high:
        return ""
    return f"torch {version} was never tried with peakmem, {TRIED[0]} to {TRIED[1]} were; keep the check of the first call on"


def no_graph() -> str:
    """Why torch.compile never gave the backend a graph although it was asked for, or the empty string."""
    registry = sys.modules.get("torch._dynamo.backends.registry")
    backend = sys.modules.get("peakmem_inductor.backend")
    if registry is None or "peakmem" not in getattr(registry, "_COMPILER_FNS", ()) or getattr(backend, "reached", True):
        return ""
    from torch._dynamo.utils import counters

    frames = counters["frames"]["total"]
    if not frames:
        return ""
    breaks = [" ".join(line.strip() for line in text.splitlines()[:2]) for text in counters["graph_break"]]
    why = f": {breaks[0]}" if breaks else ""
    return f"torch.compile looked at {frames} function{'s' if frames > 1 else ''} and gave peakmem no graph{why}"


def say_no_graph() -> None:
    """Warn at the end of a process in which the backend was asked for and got nothing."""
    reason = no_graph()
    if reason:
        warn(reason)
