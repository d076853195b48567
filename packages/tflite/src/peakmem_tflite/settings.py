"""What a caller may choose, and which runtimes there are; imports nothing heavy."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from peakmem_tflite.devicelog import DeviceLog
from peakmem_tflite.targets import ScratchFile


def only_where_a_wheel_is(python: tuple[int, ...], line: str) -> str:
    """The line that installs tflite-runtime, told to be in vain where there is no wheel of it."""
    return line if python < (3, 12) else f"on Python 3.11, for which alone there is a wheel: {line}"


RUNTIMES = {
    "tflm": ("tflite-micro", "pip install 'peakmem-tflite[tflm]'"),
    "tflite-runtime": ("tflite-runtime", only_where_a_wheel_is(tuple(sys.version_info[:2]), "pip install 'peakmem-tflite[tflite-runtime]'")),
    "litert": ("ai-edge-litert", "pip install 'peakmem-tflite[litert]'"),
}
"""Runtime -> distribution that carries it, and the line that installs it."""


@dataclass(frozen=True)
class Settings:
    """Options of the frontend; see `peakmem_tflite.frontend.TfliteFrontend.options`.

    Attributes
    ----------
    target : str
        Kernels whose scratch is charged.
    named : bool
        The caller named them, so nothing is asked about other kernels.
    scratch : ScratchFile or None
        Scratch by operator instead.
    logs : tuple of DeviceLog
        What devices printed.
    memories : tuple of str
        Two memories of the board, the faster first; see `peakmem_tflite.board.memories`.
    drop_untouched : bool
        Tensors that nothing touches get no memory in the new file.
    overlay : bool or None
        Whether plans may put outputs on top of dying inputs: None where the kernels' bits are known, True everywhere.
    overlay_inputs : bool
        On top of the file's inputs too.
    join_in_place : bool
        Tensors may lie inside those that they are joined to or cut from.
    """

    target: str = "reference"
    no_plan: bool = False
    runtime: str = "tflm"
    steps: int = 20
    named: bool = False
    scratch: ScratchFile | None = None
    logs: tuple[DeviceLog, ...] = ()
    memories: tuple[str, ...] = ()
    drop_untouched: bool = False
    overlay: bool | None = None
    overlay_inputs: bool = False
    join_in_place: bool = False


def installed(runtime: str) -> str | None:
    """Version of the distribution that carries a runtime, or None."""
    try:
        return version(RUNTIMES[runtime][0])
    except PackageNotFoundError:
        return None
