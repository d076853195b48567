"""The frontend ``cuda-snapshot``: PyTorch's memory snapshots. Importing it imports neither torch nor the reader."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from peakmem.frontends import Frontend, Inspection, Model, Option
from peakmem.model import UsageError


class SnapshotFrontend(Frontend):
    """Reads what ``torch.cuda.memory._dump_snapshot`` wrote, for ``peakmem inspect``."""

    name = "cuda-snapshot"
    description = "memory snapshots of PyTorch (torch.cuda.memory._dump_snapshot), for peakmem inspect"
    options = (
        Option(
            "allocator-setting", "text",
            "Say what the same requests would reserve under this setting of PYTORCH_CUDA_ALLOC_CONF; may be given several times.",
            default=(), multiple=True, metavar="KEY:VALUE",
        ),
    )  # fmt: skip

    def sniff(self, path: Path, head: bytes) -> bool:
        from peakmem_inductor.cuda.snapshots import looks_like_snapshot

        return looks_like_snapshot(head)

    def load(self, path: Path, options: Mapping[str, Any]) -> Model:
        raise UsageError(f"{path}: is a memory snapshot: a record of what ran, with nothing to put in order; peakmem inspect reads it")

    def inspect(self, path: Path, options: Mapping[str, Any]) -> Inspection:
        from peakmem_inductor.cuda.telling import inspection

        return inspection(path, options["allocator_setting"])


frontend = SnapshotFrontend()
