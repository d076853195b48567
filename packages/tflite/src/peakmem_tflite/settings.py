"""What a caller may choose, and which runtimes there are; imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

RUNTIMES = {
    "tflm": ("tflite-micro", "pip install 'peakmem-tflite[tflm]'"),
    "tflite-runtime": ("tflite-runtime", "pip install 'peakmem-tflite[tflite-runtime]'"),
    "litert": ("ai-edge-litert", "pip install 'peakmem-tflite[litert]'"),
}
"""Runtime -> distribution that carries it, and the line that installs it."""

TARGETS = ("reference",)
"""Kernels whose scratch buffers are known; see `peakmem_tflite.scratch`."""


@dataclass(frozen=True)
class Settings:
    """Options of the frontend; see `peakmem_tflite.frontend.TfliteFrontend.options`."""

    target: str = "reference"
    no_plan: bool = False
    runtime: str = "tflm"
    steps: int = 20


def installed(runtime: str) -> str | None:
    """Version of the distribution that carries a runtime, or None."""
    try:
        return version(RUNTIMES[runtime][0])
    except PackageNotFoundError:
        return None
