"""Planned places for the requests of a run, for programs that bring an allocator of their own (C, C++).

What a session asks for, request by request, is recorded once; it is the same in every run at the same shapes. The requests are
placed in one block as buffers of known lifetimes (`peakmem.arena`), for every shape by itself: runs of two shapes share the block. Outputs stay outside: they belong to the caller, who may hold
them into the next run, so they come from the C library.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from peakmem.arena import Item, plan
from peakmem.model import RuntimeFailed, RuntimeMissing
from peakmem.system.native import build_library

from peakmem_onnx.feeds import write_feeds
from peakmem_onnx.runtime import ask, scratch

SOURCE = Path(__file__).with_name("replay.c")
ALIGNMENT = 64


@dataclass(frozen=True)
class Places:
    """Where the requests of one run go.

    Attributes
    ----------
    sizes : tuple of int
        Bytes of each request, in the order of the requests.
    offsets : tuple of int or None
        In the block; None for an output.
    bytes : int
        Of the block.
    lower_bound : int
        No block for these requests is smaller.
    outputs : int
        Bytes of all outputs.
    """

    sizes: tuple[int, ...]
    offsets: tuple[int | None, ...]
    bytes: int
    lower_bound: int
    outputs: int

    @property
    def total(self) -> int:
        """What a run takes: the block and its outputs."""
        return self.bytes + self.outputs


def job(shapes: Sequence[Places], sets: Sequence[int] = (0,)) -> dict[str, Any]:
    """For `peakmem_onnx.child`; ``sets`` are the numbers of the input sets that were recorded."""
    return {
        "sizes": [size for one in shapes for size in one.sizes],
        "offsets": [at for one in shapes for at in one.offsets],
        "ends": list(accumulate(len(one.sizes) for one in shapes)),
        "bytes": max(one.bytes for one in shapes),
        "sets": list(sets),
        "library": str(allocator_library()),
    }


def allocator_library() -> Path:
    """The allocator of `SOURCE` as it is measured.

    Raises
    ------
    RuntimeMissing
        Without a compiler.
    """
    return build_library(SOURCE, ("-std=gnu11", "-O2", "-DPEAKMEM_MEASURED", "-lpthread"))


def places_of(trace: Sequence[int]) -> Places:
    """Places for what was recorded: sizes, and -1 - the number of the request that is given back; what is not is an output.

    The placement is the best that the planner of arenas finds; ``bytes == lower_bound`` where none is smaller.
    """
    born: list[int] = []
    gone: dict[int, int] = {}
    for step, entry in enumerate(trace):
        if entry < 0:
            gone[-1 - entry] = step
        else:
            born.append(step)
    sizes = [trace[step] for step in born]
    inner = sorted(gone)
    placed = plan([Item(str(i), sizes[i], born[i], gone[i] - 1) for i in inner], alignment=ALIGNMENT)
    at = dict(zip(inner, placed.offsets, strict=True))
    outside = sum(size for i, size in enumerate(sizes) if i not in at)
    return Places(tuple(sizes), tuple(at.get(i) for i in range(len(sizes))), placed.size, placed.lower_bound, outside)


def recorded(data: bytes, sets: Sequence[Any], session: dict[str, Any]) -> tuple[Places, ...]:
    """Places for what a session of the C interface asks for when it runs a model, for each set of inputs.

    Parameters
    ----------
    data : bytes
        The model.
    sets : sequence of dict of str to numpy.ndarray
        One of each shape.
    session : dict
        Level, threads and external data; see `peakmem_onnx.capi.Session`.

    Raises
    ------
    RuntimeFailed, RuntimeMissing
        Where it cannot be run or recorded.
    """
    with scratch() as folder:
        model = folder / "model.onnx"
        model.write_bytes(data)
        empty = Places((), (), 0, 0, 0)
        step = {**session, "do": "record", "capi": True, "replay": job([empty]), "model": str(model),
                "feeds_files": write_feeds(sets, folder)}
        (answer,) = ask(folder, [step])
    return apart([places_of(trace) for trace in answer["traces"]])


SMALL = 64
"""What shapes have in common gets places of its own where that is at most the SMALL-th part of the block."""


def apart(shapes: Sequence[Places]) -> tuple[Places, ...]:
    """The requests with which several shapes begin get the same places in all of them, above all others.

    Nobody can tell which of these shapes the run is of, as long as it asks for what they have in common.
    """
    alike = [
        max((_common(one.sizes, other.sizes) for other in shapes if other is not one), default=0) for one in shapes
    ]
    block = max(one.bytes for one in shapes)
    sizes = [max(one.sizes[i] for one, count in zip(shapes, alike, strict=True) if i < count) for i in range(max(alike))]
    starts = [0, *accumulate(sizes)]
    if not sizes or starts[-1] * SMALL > block:
        return tuple(shapes)
    found = []
    for one, count in zip(shapes, alike, strict=True):
        offsets = [None if at is None else block + starts[i] if i < count else at for i, at in enumerate(one.offsets)]
        found.append(replace(one, offsets=tuple(offsets), bytes=block + starts[-1]))
    return tuple(found)


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def unavailable() -> str:
    """Why nothing can be recorded here; empty where it can."""
    from peakmem_onnx.capi import library_of_the_wheel

    if library_of_the_wheel() is None:
        return "this package of ONNX Runtime has no shared library with the C interface"
    try:
        allocator_library()
    except (RuntimeFailed, RuntimeMissing) as error:
        return str(error)
    return ""
