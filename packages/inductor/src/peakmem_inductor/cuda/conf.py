"""Settings of the caching allocator, as ``PYTORCH_CUDA_ALLOC_CONF`` gives them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from peakmem.model import UsageError

MIB = 1 << 20
LARGE_SEGMENT = 20 * MIB
"""Segment from which requests above 1 MiB and below 10 MiB are cut, where nothing else is set."""

INTERVALS = 16
"""Powers of two from 1 MiB on that each have a number of divisions of their own; the last holds for all above."""

_WITHOUT_BYTES = frozenset(
    {
        "backend", "graph_capture_record_stream_reuse", "pinned_free_catch_all", "pinned_max_cached_size_mb", "pinned_max_round_threshold_mb",
        "pinned_num_register_threads", "pinned_reserve_segment_size_mb", "pinned_use_background_threads", "pinned_use_cuda_host_register",
        "release_lock_on_cudamalloc", "throw_on_cudamalloc_oom",
    }
)  # fmt: skip
"""Keys that PyTorch knows and that change no figure here (``backend`` is looked at apart)."""


@dataclass(frozen=True)
class Settings:
    """How the allocator was told to work; the defaults are PyTorch's.

    Attributes
    ----------
    max_split_size : int or None
        Bytes from which on a block is neither split nor given to a smaller request; None: no limit.
    large_segment_size : int
        Bytes of the segments that requests between 1 and 10 MiB are cut from, and of the pages of expandable segments.
    max_non_split_rounding_size : int or None
        How much larger a block of ``max_split_size`` or more may be than the request it serves; None: ``large_segment_size``.
    roundup_power2_divisions : tuple of int
        Steps between two powers of two that sizes are rounded up to, for 1 MiB and below, 2 MiB, ..., 32 GiB and above; 0 or 1:
        sizes are rounded to 512 bytes.
    garbage_collection_threshold : float
        Share of the memory allowed to the process above which cached blocks are given back by age; 0: never. It counts only
        where a fraction was set.
    expandable_segments : bool
        One range of addresses for each stream and pool that grows by pages, instead of a segment for each large request.
    memory_fraction : float or None
        Share of the device that the process may take; None: not set.
    """

    max_split_size: int | None = None
    large_segment_size: int = LARGE_SEGMENT
    max_non_split_rounding_size: int | None = None
    roundup_power2_divisions: tuple[int, ...] = (0,) * INTERVALS
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    memory_fraction: float | None = None

    @classmethod
    def parse(cls, text: str) -> Settings:
        """Read the text of ``PYTORCH_CUDA_ALLOC_CONF``.

        Raises
        ------
        UsageError
            With the key and what it may be.
        """
        settings = cls()
        for key, value in _pairs(text):
            settings = settings._with(key, value)
        return settings

    def _with(self, key: str, value: str) -> Settings:
        if key == "max_split_size_mb":
            size = _megabytes(key, value)
            if size < self.large_segment_size:
                raise UsageError(f"allocator setting {key}:{value}: must be at least {self.large_segment_size // MIB}")
            return replace(self, max_split_size=size)
        if key == "max_non_split_rounding_mb":
            size = _megabytes(key, value)
            if size < self.large_segment_size:
                raise UsageError(f"allocator setting {key}:{value}: must be at least {self.large_segment_size // MIB}")
            return replace(self, max_non_split_rounding_size=size)
        if key == "large_segment_size_mb":
            size = _megabytes(key, value)
            if size <= 2 * MIB:
                raise UsageError(f"allocator setting {key}:{value}: must be more than 2")
            return replace(self, large_segment_size=size)
        if key == "garbage_collection_threshold":
            return replace(self, garbage_collection_threshold=_share(key, value, top=False))
        if key == "per_process_memory_fraction":
            return replace(self, memory_fraction=_share(key, value, top=True))
        if key == "roundup_power2_divisions":
            return replace(self, roundup_power2_divisions=_divisions(key, value))
        if key == "expandable_segments":
            if value not in ("True", "False"):
                raise UsageError(f"allocator setting {key}:{value}: must be True or False")
            return replace(self, expandable_segments=value == "True")
        if key == "backend" and value != "native":
            raise UsageError(f"allocator setting {key}:{value}: only PyTorch's own allocator (native) can be replayed")
        if key not in _WITHOUT_BYTES:
            raise UsageError(f"allocator setting {key!r} is not known; known are {', '.join(sorted(_KNOWN))}")
        return self

    @property
    def tolerated(self) -> int:
        """`max_non_split_rounding_size` with its default."""
        return self.large_segment_size if self.max_non_split_rounding_size is None else self.max_non_split_rounding_size


_KNOWN = (
    "max_split_size_mb", "max_non_split_rounding_mb", "large_segment_size_mb", "garbage_collection_threshold", "per_process_memory_fraction",
    "roundup_power2_divisions", "expandable_segments",
)  # fmt: skip


def _pairs(text: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    left = re.sub(r"\s", "", text)
    while left:
        match = re.match(r"([^:,\[\]]+):(\[[^\]]*\]|[^:,\[\]]+)(?:,|$)", left)
        if match is None:
            raise UsageError(f"allocator settings {text!r}: expected KEY:VALUE pairs with commas between, at {left[:40]!r}")
        pairs.append((match[1], match[2]))
        left = left[match.end() :]
    return pairs


def _whole(key: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,15}", value):
        raise UsageError(f"allocator setting {key}:{value}: must be a whole number")
    return int(value)


def _megabytes(key: str, value: str) -> int:
    return _whole(key, value) * MIB


def _share(key: str, value: str, *, top: bool) -> float:
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if not (0 < share < 1 or (top and share in (0, 1))):
        raise UsageError(f"allocator setting {key}:{value}: must be between 0 and 1")
    return share


def _power_of_two(key: str, value: str, *, zero: bool) -> int:
    number = _whole(key, value)
    if number & (number - 1) or not (number or zero):
        raise UsageError(f"allocator setting {key}: {value} must be a power of two")
    return number


def _divisions(key: str, value: str) -> tuple[int, ...]:
    if not value.startswith("["):
        return (_power_of_two(key, value, zero=False),) * INTERVALS
    divisions = [0] * INTERVALS
    last, first = 0, True
    for part in filter(None, value[1:-1].split(",")):
        boundary, _, count = part.partition(":")
        number = _power_of_two(key, count, zero=True)
        if boundary == ">":
            divisions[last + 1 :] = [number] * (INTERVALS - last - 1)
            continue
        last = min(_power_of_two(key, boundary, zero=False).bit_length() - 1, INTERVALS - 1)
        if first:
            divisions[:last] = [number] * last
            first = False
        divisions[last] = number
    return tuple(divisions)
