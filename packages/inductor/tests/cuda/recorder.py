"""Gives traces to PyTorch's real allocator and writes down what it says after every event.

Runs under the CUDA that owns no hardware (`stub`), with the settings of its environment. ``python recorder.py random FIRST COUNT``
prints a line of JSON for each random trace with the figures after every event, ``digests`` in the place of ``random`` their digests;
``python recorder.py trace`` does so for traces that it reads, one in a line.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from peakmem_inductor.cuda.caching import Event

sys.path.insert(0, str(Path(__file__).resolve().parent))
from random_traces import random_trace
from recorded import digest


def figures() -> tuple[int, int, int, int]:
    stats = torch._C._cuda_memoryStats(0)
    return tuple(stats[f"{name}_bytes"]["all"]["current"] for name in ("requested", "allocated", "active", "reserved"))  # type: ignore[return-value]


class Recorder:
    """The real allocator, empty before each trace."""

    def __init__(self) -> None:
        torch.cuda.init()
        self.stub = ctypes.CDLL(None)
        self.streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(3))]
        fraction = os.environ.get("PEAKMEM_FRACTION")
        if fraction:
            torch.cuda.set_per_process_memory_fraction(float(fraction))
        self.clear()

    def clear(self) -> None:
        """Empty the allocator."""
        self.stub.peakmem_stub_hold_events(0)
        torch.cuda.empty_cache()
        if self.stub.peakmem_stub_restart():
            # A range of addresses for which there was no memory when it was made is given back only once it was used.
            for stream in self.streams:
                for size in (1, 2 << 20):
                    with torch.cuda.stream(stream):
                        torch.empty(size, dtype=torch.uint8, device="cuda")
            torch.cuda.empty_cache()
            if self.stub.peakmem_stub_restart():
                raise SystemExit("the allocator is not empty between traces")

    def run(self, events: Iterable[Event]) -> list[tuple[int, int, int, int]]:
        """Figures after each event; a request that ran out of memory changes what was cached and nothing else."""
        alive: dict[int, Any] = {}
        rows = []
        for event in events:
            if event.kind == "alloc":
                with torch.cuda.stream(self.streams[event.stream]):
                    try:
                        alive[event.block] = torch.empty(event.size, dtype=torch.uint8, device="cuda")
                    except torch.cuda.OutOfMemoryError:
                        alive[event.block] = None
            elif event.kind == "free":
                del alive[event.block]
            elif event.kind == "record":
                if alive[event.block] is not None:
                    alive[event.block].record_stream(self.streams[event.stream])
            elif event.kind == "empty":
                torch.cuda.empty_cache()
            else:
                self.stub.peakmem_stub_hold_events(event.kind == "hold")
            rows.append(figures())
        alive.clear()
        self.clear()
        return rows


def main(arguments: list[str]) -> None:
    recorder = Recorder()
    if arguments[0] in ("random", "digests"):
        first, count = int(arguments[1]), int(arguments[2])
        for seed in range(first, first + count):
            rows = recorder.run(random_trace(seed))
            print(json.dumps([seed, rows if arguments[0] == "random" else digest(rows)]), flush=True)
    else:
        for line in sys.stdin:
            print(json.dumps(recorder.run(Event(*row) for row in json.loads(line))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
