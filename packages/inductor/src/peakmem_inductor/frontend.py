"""The frontend ``inductor``: dumped wrappers. Importing it imports neither torch nor numpy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peakmem.frontends import Frontend, Option, RuntimeStatus
from peakmem.model import InputError

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
    )

    def sniff(self, path: Path, head: bytes) -> bool:
        from peakmem_inductor.wrapper import looks_like_wrapper

        return looks_like_wrapper(head) or _is_ahead_of_time(head)

    def load(self, path: Path, options: Mapping[str, Any]) -> InductorModel:
        from peakmem_inductor.model import load_model

        with path.open("rb") as file:
            if _is_ahead_of_time(file.read(4096)):
                raise InputError(f"{path}: was compiled by AOTInductor, to C++ that peakmem does not permute; give a Python wrapper")
        return load_model(path, options)

    def runtimes(self) -> tuple[RuntimeStatus, ...]:
        from peakmem_inductor.model import PIP, torch_version

        return (RuntimeStatus("torch", torch_version(), PIP),)


def _is_ahead_of_time(head: bytes) -> bool:
    """A package of AOTInductor (a zip file), or the C++ of one."""
    return (head.startswith(b"PK") and b"/data/aotinductor/" in head) or b"torch/csrc/inductor/aoti_" in head


frontend = InductorFrontend()
