"""The frontend object. Imports nothing heavy: listing frontends must cost nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peakmem.frontends import Frontend, Option, RuntimeStatus
from peakmem.model import InputError, UsageError, did_you_mean

from peakmem_tflite.settings import RUNTIMES, TARGETS, Settings, installed

if TYPE_CHECKING:
    from peakmem_tflite.model import TfliteModel

class TfliteFrontend(Frontend):
    """Reads TensorFlow Lite files (``.tflite``)."""

    name = "tflite"
    description = "TensorFlow Lite models (.tflite), run by TFLite Micro, LiteRT or tflite-runtime"
    options = (
        Option(
            "target",
            "choice",
            "Kernels whose scratch buffers are charged; only the portable reference kernels are known so far.",
            default="reference",
            choices=TARGETS,
        ),
        Option(
            "no-plan",
            "flag",
            "Write no offsets into the file; search an order whose greedy arena is small instead.",
            default=False,
        ),
        Option(
            "runtime",
            "choice",
            "The interpreter that runs both models.",
            default="tflm",
            choices=tuple(RUNTIMES),
            names_runtime=True,
        ),
        Option(
            "steps",
            "int",
            "Invocations in a row over which tensors are compared, state carried from one to the next.",
            default=20,
        ),
    )

    def sniff(self, path: Path, head: bytes) -> bool:
        """By the file identifier of the schema."""
        del path
        return head[4:8] == b"TFL3"

    def load(self, path: Path, options: Mapping[str, Any]) -> TfliteModel:
        """Read a model; `InputError` names what is wrong with it."""
        from peakmem_tflite.model import TfliteModel

        settings = Settings(
            target=options.get("target", "reference"),
            no_plan=bool(options.get("no_plan", False)),
            runtime=options.get("runtime", "tflm"),
            steps=int(options.get("steps", 20)),
        )
        if settings.steps < 1:
            raise UsageError(f"--steps is {settings.steps}; give at least 1")
        if settings.target not in TARGETS:
            close = did_you_mean(settings.target, TARGETS)
            raise UsageError(f"--target {settings.target!r} is unknown (known are {', '.join(TARGETS)}){close}")
        if settings.runtime not in RUNTIMES:
            close = did_you_mean(settings.runtime, RUNTIMES)
            raise UsageError(f"--runtime {settings.runtime!r} is unknown (known are {', '.join(RUNTIMES)}){close}")
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror})") from None
        return TfliteModel.from_bytes(data, path=Path(path), settings=settings)

    def runtimes(self) -> tuple[RuntimeStatus, ...]:
        """Installed interpreters by their distributions' versions; none is imported."""
        return tuple(RuntimeStatus(name, installed(name), line) for name, (_, line) in RUNTIMES.items())


frontend = TfliteFrontend()
