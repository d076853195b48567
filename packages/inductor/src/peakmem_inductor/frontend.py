"""The frontend ``inductor``: dumped wrappers. Importing it imports neither torch nor numpy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peakmem.frontends import Frontend, Option, RuntimeStatus

if TYPE_CHECKING:
    from peakmem_inductor.model import InductorModel


class InductorFrontend(Frontend):
    """Reads wrappers that ``peakmem_inductor.dump`` wrote, or any wrapper of Inductor."""

    name = "inductor"
    description = "PyTorch Inductor wrappers (wrapper.py with wrapper.peakmem.json beside it)"
    options = (
        Option(
            "profile",
            "text",
            "Recorded profile of the wrapper (default: NAME.peakmem.json beside NAME.py, else sizes from the text).",
            metavar="FILE",
        ),
        Option(
            "pool",
            "flag",
            "Lay the buffers at planned offsets in one allocation, which the program makes anew in every call (optimize).",
        ),
        Option(
            "least-reserved",
            "flag",
            "Of the orders with the least peak take one for which torch's caching allocator reserves least (GPU programs, optimize).",
        ),
        Option(
            "cache",
            "text",
            "With --least-reserved: a memory snapshot whose end is the allocator's state before the call (default: nothing but the arguments).",
            metavar="FILE",
        ),
    )

    def sniff(self, path: Path, head: bytes) -> bool:
        from peakmem_inductor.wrapper import is_ahead_of_time, looks_like_wrapper

        return looks_like_wrapper(head) or is_ahead_of_time(head)

    def load(self, path: Path, options: Mapping[str, Any]) -> InductorModel:
        from peakmem_inductor.model import load_model

        return load_model(path, options)

    def runtimes(self) -> tuple[RuntimeStatus, ...]:
        from peakmem_inductor.model import PIP, torch_version

        return (RuntimeStatus("torch", torch_version(), PIP),)


frontend = InductorFrontend()
