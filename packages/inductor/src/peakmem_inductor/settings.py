"""Settings of Inductor whose wrappers differ, each a candidate to permute.

Permuting a wrapper cannot undo what its generation decided (fusion, buffers taken over in place), so the wrappers of
several settings are permuted, each exactly, and the least is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peakmem.model import UsageError

dump_folder: Path | None = None
"""Where wrappers are dumped while `peakmem_inductor.dump` is open."""

CANDIDATES = ("default", "off", "lpmf", "bfs", "dfs", "noreuse")
"""``default``: as configured; ``off``: without Inductor's own reordering; ``lpmf``, ``bfs``, ``dfs``: with exactly that
one of its heuristics; ``noreuse``: ``off`` and without taking over dead buffers."""


def parse_candidates(value: object) -> tuple[str, ...]:
    """The ``candidates`` option: a number (the first so many of `CANDIDATES`), names, or ``"default,lpmf"``.

    ``default`` always comes first: its bits are the reference.
    """
    if isinstance(value, bool):
        raise UsageError(f"candidates: {value!r} is neither a number nor a list of names")
    if isinstance(value, int):
        if not 1 <= value <= len(CANDIDATES):
            raise UsageError(f"candidates: {value} is not between 1 and {len(CANDIDATES)}")
        return CANDIDATES[:value]
    names = value.replace(",", " ").split() if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(n, str) for n in names):
        raise UsageError(f"candidates: {value!r} is neither a number nor a list of names")
    unknown = [n for n in names if n not in CANDIDATES]
    if unknown:
        raise UsageError(f"candidates: {unknown[0]!r} is none of {', '.join(CANDIDATES)}")
    return ("default", *(n for n in dict.fromkeys(names) if n != "default"))


def config_of(name: str) -> dict[str, Any] | None:
    """Patches of ``torch._inductor.config`` for a candidate; None where this torch lacks what it needs."""
    from torch._inductor import config

    if name == "default":
        return {}
    patches: dict[str, Any] = {}
    if hasattr(config, "reorder_for_peak_memory"):
        patches["reorder_for_peak_memory"] = False
    elif name == "off":
        return None
    if name == "noreuse":
        patches["allow_buffer_reuse"] = False
    elif name in ("lpmf", "bfs", "dfs"):
        if not hasattr(config, "_post_fusion_custom_pass") or not patches or config._post_fusion_custom_pass is not None:
            return None
        from peakmem_inductor.passes import MethodPass

        patches["_post_fusion_custom_pass"] = MethodPass(name)
    return patches
