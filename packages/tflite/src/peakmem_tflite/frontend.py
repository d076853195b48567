"""The frontend object. Imports nothing heavy: listing frontends must cost nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peakmem.frontends import Frontend, Option, RuntimeStatus
from peakmem.model import InputError, UsageError, did_you_mean

from peakmem_tflite.devicelog import DeviceLog
from peakmem_tflite.settings import RUNTIMES, Settings, installed
from peakmem_tflite.targets import TABLES, ScratchFile

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
            "Kernels of the board, whose scratch buffers are charged. Not given: the portable ones, and no file is written "
            "that would be larger with others known.",
            choices=tuple(TABLES),
        ),
        Option(
            "scratch",
            "text",
            "Scratch by operator, as JSON (peakmem.scratch/1), for kernels that no table knows.",
            metavar="FILE",
        ),
        Option(
            "device-log",
            "text",
            "What a board printed while it planned; its scratch is charged, and verify compares its head with the prediction. "
            "May be given several times.",
            default=(),
            multiple=True,
            metavar="FILE",
        ),
        Option(
            "memory",
            "text",
            "A memory of the board; give two, the faster first, and see what of the arena goes where. The second may do without a size.",
            default=(),
            multiple=True,
            metavar="NAME=SIZE",
        ),
        Option(
            "drop-untouched",
            "flag",
            "Tensors that no operator and no signature names get no memory in the new file: there their shape is [0].",
            default=False,
        ),
        Option(
            "no-plan",
            "flag",
            "Write no offsets into the file; search an order whose greedy arena is small instead.",
            default=False,
        ),
        Option(
            "overlay",
            "flag",
            "Put outputs on top of dying inputs for all kernels that read before they write. Not given: for those only whose bits were "
            "compared; kernels of the board's library may be others.",
            default=False,
        ),
        Option(
            "overlay-inputs",
            "flag",
            "Also on top of the file's inputs: what is in them is gone when the run ends.",
            default=False,
        ),
        Option(
            "join-in-place",
            "flag",
            "Put tensors inside those that they are joined to or cut from, where that makes the arena smaller.",
            default=False,
        ),
        Option(
            "no-overlay",
            "flag",
            "Every buffer gets bytes of its own.",
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
            target=options.get("target") or "reference",
            named=options.get("target") is not None,
            no_plan=bool(options.get("no_plan", False)),
            runtime=options.get("runtime", "tflm"),
            steps=int(options.get("steps", 20)),
            scratch=ScratchFile.parse(_text(options["scratch"]), str(options["scratch"])) if options.get("scratch") else None,
            logs=tuple(DeviceLog.parse(_text(log), str(log)) for log in options.get("device_log", ())),
            memories=tuple(options.get("memory", ())),
            drop_untouched=bool(options.get("drop_untouched", False)),
            overlay=False if options.get("no_overlay") else True if options.get("overlay") else None,
            overlay_inputs=bool(options.get("overlay_inputs", False)),
            join_in_place=bool(options.get("join_in_place", False)),
        )
        for asked in ("overlay", "overlay_inputs", "join_in_place"):
            for refused in ("no_overlay", "no_plan"):
                if options.get(asked) and options.get(refused):
                    why = "buffers share bytes only where a plan says so" if refused == "no_plan" else "give one of them"
                    raise UsageError(f"--{asked.replace('_', '-')} and --{refused.replace('_', '-')} contradict each other: {why}")
        if settings.memories:
            from peakmem_tflite.board import memories

            memories(settings.memories)  # bad ones are refused before any work
        if settings.named and settings.scratch:
            raise UsageError("--target and --scratch both say what kernels ask for; give one of them")
        if settings.steps < 1:
            raise UsageError(f"--steps is {settings.steps}; give at least 1")
        if settings.target not in TABLES:
            close = did_you_mean(settings.target, TABLES)
            raise UsageError(f"--target {settings.target!r} is unknown (known are {', '.join(TABLES)}){close}")
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


def _text(path: str) -> str:
    try:
        return Path(path).read_bytes().decode("utf-8", "replace")
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None


frontend = TfliteFrontend()
