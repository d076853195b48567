"""What differs between devices: counting what an allocator is asked for, the random state, reading and writing memory.

On the CPU a counting allocator is put under torch; on CUDA torch's own caching allocator counts ``requested_bytes``, which depend
on the program alone (what it allocates and reserves for them depends on what ran before, too).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Any, Protocol

from peakmem_inductor.allocator import counting

CHUNK = 16 << 20
"""Bytes of a device's memory that are read or written at a time."""


class Counting(Protocol):
    """Reads what is counted while a program runs."""

    peak: int

    def mark(self, outside: int = 0) -> tuple[int, int, list[tuple[int, int]]]:
        """See `peakmem_inductor.allocator.Counter.mark`."""

    def intervals(self) -> list[list[tuple[int, int]]]:
        """The requests up to each mark, as `mark` returns them, where they are known only afterwards; else nothing."""


class CudaCounter:
    """Requested bytes of one CUDA device, above the start; argument blocks that go are seen there, too.

    The requests themselves are those of the allocator's history, if it is on; what came between two marks is told by how many there had
    been at each.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._start, _, self._first = self._figures()
        self._counts: list[int] = []
        self.peak = 0
        """Highest so far, above the start, in bytes."""

    def _figures(self) -> tuple[int, int, int]:
        import torch

        stats = torch._C._cuda_memoryStats(self._index)
        torch._C._cuda_resetPeakMemoryStats(self._index)
        found, blocks = stats["requested_bytes"]["all"], stats["allocation"]["all"]
        return int(found["current"]), int(found["peak"]), int(blocks["allocated"]) + int(blocks["freed"])

    def mark(self, outside: int = 0) -> tuple[int, int, list[tuple[int, int]]]:
        """Peak since the last mark and current bytes above the start."""
        now, high, count = self._figures()
        self._counts.append(count - self._first)
        self.peak = max(self.peak, high - self._start)
        return high - self._start, now - self._start, []

    def intervals(self) -> list[list[tuple[int, int]]]:
        """The requests up to each mark; nothing if the history lacks some of them."""
        import torch

        if not self._counts or not _keeps_history():
            return []
        traces = torch.cuda.memory._snapshot(self._index)["device_traces"]
        rows = [
            (int(e["addr"]), int(e["size"]) if e["action"] == "alloc" else -int(e["size"]))
            for e in traces[self._index]
            if e["action"] in ("alloc", "free_completed")
        ]
        since = self._figures()[2] - self._first
        if len(rows) < since:
            return []
        rows = rows[len(rows) - since :]
        return [rows[start:end] for start, end in zip([0, *self._counts], self._counts)]


def _keeps_history() -> bool:
    import torch

    try:
        return bool(torch._C._cuda_isHistoryEnabled())
    except RuntimeError:  # an allocator that is not torch's own
        return False


@contextmanager
def _history(device: str) -> Iterator[None]:
    """The history of CUDA's allocator, which may be the user's own; not every allocator has one."""
    import torch

    record = torch.cuda.memory._record_memory_history
    begun = False
    if not _keeps_history():
        with suppress(RuntimeError):
            record(context=None, stacks="python", device=device)
            begun = True
    try:
        yield
    finally:
        if begun:
            record(enabled=None, device=device)


@contextmanager
def counting_on(device: str, *, poison: bool = False, requests: bool = False) -> Iterator[Counting]:
    """Count what the allocator of a device (``cpu``, ``cuda:0``) is asked for; on CUDA that device is the current one meanwhile,
    nothing is filled, and single requests are known if ``requests`` says so."""
    if device == "cpu":
        with counting(poison=poison) as counter:
            yield counter
        return
    import torch

    with torch.cuda.device(device), _history(device) if requests else nullcontext():
        counter_on_cuda = CudaCounter(torch.device(device).index)
        yield counter_on_cuda
        counter_on_cuda.mark()


def counted_device(devices: Sequence[str], args: Sequence[Any]) -> str:
    """The device whose bytes count: the one CUDA device that a program or its arguments are on, else the CPU."""
    import torch

    found = {str(a.device) for a in args if isinstance(a, torch.Tensor) and a.device.type == "cuda"}
    if found:
        return min(found)
    return f"cuda:{torch.cuda.current_device()}" if "cuda" in devices else "cpu"


def random_state() -> tuple[Any, ...]:
    """Copies of torch's generators, the CPU's and those of all CUDA devices: a state as a tensor would add to the peak of a small graph."""
    return tuple(generator.clone_state() for generator in _generators())


def set_random_state(state: tuple[Any, ...]) -> None:
    """Set torch's generators back to what they were when they were copied."""
    for generator, copy in zip(_generators(), state):
        generator.set_state(copy.get_state())


def _generators() -> tuple[Any, ...]:
    import torch

    cuda = torch.cuda.default_generators if torch.cuda.is_available() and torch.cuda.is_initialized() else ()
    return (torch.default_generator, *cuda)


def parts_of(storage: Any) -> Iterator[Any]:
    """The memory of a storage as buffers, without a copy on the CPU; of another device `CHUNK` bytes at a time."""
    size = storage.nbytes()
    if not size:
        return
    if storage.device.type == "cpu":
        yield (ctypes.c_ubyte * size).from_address(storage.data_ptr())
        return
    flat = _flat(storage)
    for start in range(0, size, CHUNK):
        yield flat[start : start + CHUNK].cpu().numpy()


def fill(storage: Any, file: Any) -> int:
    """Read a storage's contents from a file; how many bytes there were."""
    import torch

    size = storage.nbytes()
    if not size:
        return 0
    if storage.device.type == "cpu":
        return int(file.readinto((ctypes.c_ubyte * size).from_address(storage.data_ptr())))
    flat, done = _flat(storage), 0
    while done < size:
        data = file.read(min(CHUNK, size - done))
        if not data:
            break
        flat[done : done + len(data)].copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        done += len(data)
    return done


def _flat(storage: Any) -> Any:
    import torch

    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage, 0, (storage.nbytes(),), (1,))


def computes(device: str) -> bool:
    """Whether kernels of a device do what they say; a CUDA that owns no hardware accepts and does not run them."""
    import torch

    if device == "cpu":
        return True
    with torch.no_grad():
        numbers = torch.arange(64, dtype=torch.int64)
        return bool(torch.equal((numbers.to(device) * 3 + 1).cpu(), numbers * 3 + 1))


def misaligned(value: Any) -> bool:
    """Whether Inductor would copy an argument, since its first byte is not at a multiple of 16."""
    return bool(value.data_ptr() % 16)
