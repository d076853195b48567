"""Under which settings, on which device, traces were given to the real allocator."""

from __future__ import annotations

from dataclasses import dataclass, replace

from peakmem_inductor.cuda.conf import Settings

MIB = 1 << 20
AMPLE = 80 << 30


@dataclass(frozen=True)
class Case:
    """``conf`` as in PYTORCH_CUDA_ALLOC_CONF; ``fraction`` as given to ``set_per_process_memory_fraction``."""

    conf: str = ""
    total: int = AMPLE
    addresses: str = "up"
    fraction: float | None = None

    @property
    def settings(self) -> Settings:
        settings = Settings.parse(self.conf)
        return settings if self.fraction is None else replace(settings, memory_fraction=self.fraction)

    @property
    def environment(self) -> dict[str, str]:
        variables = {"PEAKMEM_STUB_TOTAL": str(self.total), "PEAKMEM_STUB_ADDRESSES": self.addresses}
        if self.conf:
            variables["PYTORCH_CUDA_ALLOC_CONF"] = self.conf
        if self.fraction is not None:
            variables["PEAKMEM_FRACTION"] = str(self.fraction)
        return variables

    @property
    def name(self) -> str:
        parts = [self.conf or "defaults", self.addresses]
        if self.total != AMPLE:
            parts.append(f"{self.total // MIB} MiB")
        if self.fraction is not None:
            parts.append(f"fraction {self.fraction}")
        return ", ".join(parts)


RANDOM = (
    Case(),
    Case(addresses="down"),
    Case("", 600 * MIB, "spread"),
    Case("max_split_size_mb:20"),
    Case("max_split_size_mb:32", 500 * MIB, "spread"),
    Case("roundup_power2_divisions:4", addresses="down"),
    Case("roundup_power2_divisions:[1:8,4:2,16:4,>:1]", 600 * MIB, "spread"),
    Case("expandable_segments:True"),
    Case("expandable_segments:True", 500 * MIB, "spread"),
    Case("garbage_collection_threshold:0.5", 900 * MIB, "spread", 0.9),
    Case("garbage_collection_threshold:0.6,max_split_size_mb:40", 900 * MIB, "up", 0.8),
    Case("garbage_collection_threshold:0.4,per_process_memory_fraction:0.7", 1200 * MIB, "down"),
    Case("large_segment_size_mb:12"),
    Case("large_segment_size_mb:40,expandable_segments:True", addresses="down"),
    Case("max_split_size_mb:24,max_non_split_rounding_mb:30", addresses="spread"),
    Case("expandable_segments:True,max_split_size_mb:20", 700 * MIB, "down"),
)
"""For random traces. Small devices, so that memory runs out; all places of segments, so that the order does not follow from them."""

PROGRAMS = (
    Case(),
    Case("max_split_size_mb:20"),
    Case("roundup_power2_divisions:4"),
    Case("expandable_segments:True"),
    Case("garbage_collection_threshold:0.5", 2048 * MIB, fraction=0.4),
    Case("large_segment_size_mb:12"),
    Case("roundup_power2_divisions:[1:8,4:2,16:4,>:1],max_split_size_mb:64", addresses="spread"),
)
"""For recorded programs."""
