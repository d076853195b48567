"""Writes a memory snapshot under the CUDA that owns no hardware: ``python snapping.py KIND OUT``, with a line of JSON of the peaks.

Kinds: ``whole`` (a history from the first request on), ``late`` (one that begins with memory in use, and a cache emptied on the way),
``late-expandable`` (the same of another program; give it expandable_segments:True), ``cut`` (one whose beginning was overwritten),
``streams`` (blocks used on two streams).
"""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent))
import convolutions
import programs


def several_streams() -> None:
    other = torch.cuda.Stream()
    for k in range(20):
        with torch.cuda.stream(other):
            x = torch.empty(700_000 * (k % 7 + 1), device="cuda")
        x.record_stream(torch.cuda.default_stream())
        del x
        torch.empty(100_000 * k + 5, device="cuda")


def shortened(value: Any) -> Any:
    """Without the folders of the machine."""
    if isinstance(value, dict):
        value = {key: shortened(part) for key, part in value.items()}
        file = value.get("filename")
        if isinstance(file, str) and "/" in file:
            inside = file.partition("/site-packages/")[2]
            value["filename"] = f"/site-packages/{inside}" if inside else f"/program/{file.rpartition('/')[2]}"
        return value
    if isinstance(value, (list, tuple)):
        return type(value)(map(shortened, value))
    return value


def main(kind: str, out: Path) -> None:
    convolutions.install()
    name = "unet-4-sgd" if kind == "late-expandable" else "attention-9-sgd"
    kept: list[Any] = []
    if kind.startswith("late"):
        programs.run(name)
        kept += [torch.empty(5 << 20, device="cuda"), *(torch.empty(300_000 * (k + 1), device="cuda") for k in range(10))]
        del kept[1::2]
    torch.cuda.memory._record_memory_history(max_entries=700 if kind == "cut" else 100_000, context="all", stacks="python")
    programs.run(name)
    if kind.startswith("late"):
        torch.cuda.empty_cache()
        programs.run(name)
    if kind == "streams":
        several_streams()
    stats = torch.cuda.memory_stats()
    out.write_bytes(pickle.dumps(shortened(torch.cuda.memory._snapshot())))
    print(json.dumps({"kind": kind, **{what: stats[f"{what}_bytes.all.peak"] for what in ("requested", "allocated", "reserved")}}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
