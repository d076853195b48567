"""The ONNX frontend as the command line sees it: its options, what it recognises, which runtime it wants.

Nothing heavy is imported here; `OnnxFrontend.load` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peakmem.frontends import Frontend, Option, RuntimeStatus
from peakmem.model import PeakmemError

from peakmem_onnx.rules import LEVELS

if TYPE_CHECKING:
    from peakmem_onnx.model import OnnxModel

OPTIONS = (
    Option(
        "ort-level",
        "choice",
        "How far ONNX Runtime optimizes the model before its nodes are permuted.",
        default="all",
        choices=LEVELS,
    ),
    Option("dim", "text", "Fix a named dimension of the inputs.", default=(), multiple=True, metavar="NAME=N"),
    Option(
        "shape", "text", "Fix the whole shape of one input.", default=(), multiple=True, metavar="INPUT=N,N,..."
    ),
    Option(
        "try-dims",
        "flag",
        "Give dimensions that stay open the first sizes tried with which the model runs; a note says which.",
        default=False,
    ),
    Option(
        "feed",
        "text",
        "Fill an input with one value when the model is run (others get random values).",
        default=(),
        multiple=True,
        metavar="INPUT=VALUE",
    ),
    Option(
        "inputs",
        "text",
        "Arrays to run the model with, by the names of its inputs (numpy.savez); several files are several sets, and sets of several "
        "shapes make a file for all of them.",
        default=(),
        multiple=True,
        metavar="FILE.npz",
    ),
    Option(
        "threads",
        "int",
        "Intra-op threads of every session; workspace and bits may depend on it.",
        default=1,
        metavar="N",
    ),
    Option(
        "session",
        "text",
        "A setting of the sessions that you run today, for comparing; ONNX Runtime's defaults where none is given.",
        default=(),
        multiple=True,
        metavar="NAME=VALUE",
    ),
    Option(
        "run-limit",
        "int",
        "Seconds of computing after which a run of the model is ended, and the model refused: a Loop need not end by itself.",
        default=10,
        metavar="SECONDS",
    ),
    Option(
        "repeats",
        "int",
        "How often the memory of the process is measured for each kind of session, in a fresh process; 0 leaves that out.",
        default=3,
        metavar="N",
    ),
    Option(
        "all-levels",
        "flag",
        "Tell what the model takes in all (constants, loading, runs) at every --ort-level, and at which it takes least.",
        default=False,
    ),
    Option(
        "accept-inexact",
        "flag",
        "Take a file whose outputs are identical though it takes other bytes than predicted; the difference is told.",
        default=False,
    ),
    Option(
        "no-blank-unread",
        "flag",
        "Keep the names of outputs that nobody reads; ONNX Runtime then holds them to the end of the run.",
        default=False,
    ),
    Option(
        "deploy",
        "choice",
        "How the file will run: in Python with its settings, or there in a planned arena where that is measured to make the smaller "
        "process (auto); in Python, whose sessions can be told to run a file's order; there in an arena whose first "
        "region is planned; or portably (C, C++, JavaScript), where the default order and memory reuse stay; or by replay (C, C++), "
        "with an allocator that gives every request of a run its planned place.",
        default="auto",
        choices=("auto", "python", "arena", "portable", "replay"),
    ),
    Option(
        "snippet-language",
        "choice",
        "For what a planned arena and its snippet are: Python, or C and C++ (one text), whose sessions run another order.",
        default="auto",
        choices=("auto", "c"),
    ),
    Option(
        "executor",
        "choice",
        "What runs the model: one session, or every node in a session of its own, which runs any order exactly but "
        "shares no storage.",
        default="ort",
        choices=("ort", "nodes"),
    ),
)


class OnnxFrontend(Frontend):
    """Adapter for ONNX files run by ONNX Runtime on the CPU."""

    name = "onnx"
    description = "ONNX models (.onnx), run by ONNX Runtime on the CPU"
    options = OPTIONS

    def sniff(self, path: Path, head: bytes) -> bool:
        """By the name, or by the first fields of a ModelProto (a protobuf has no magic number)."""
        if path.suffix.lower() == ".onnx":
            return True
        # ir_version is field 1, a small number; what follows must be a field that a ModelProto has.
        following = (0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42)
        return len(head) > 8 and head[0] == 0x08 and 1 <= head[1] < 64 and head[2] in following and head[4:8] != b"TFL3"

    def load(self, path: Path, options: Mapping[str, Any]) -> OnnxModel:
        """Read, let ONNX Runtime optimize, and model; see `peakmem_onnx.compile.load_model`."""
        from peakmem_onnx.compile import load_model
        from peakmem_onnx.model import OnnxModel

        try:
            return load_model(OnnxModel, path, options)
        except PeakmemError as error:
            if str(error).isprintable():
                raise
            # Names in the file may hold line breaks; the sentence stays one line.
            raise type(error)("".join(c if c.isprintable() else " " for c in str(error))) from None

    def runtimes(self) -> tuple[RuntimeStatus, ...]:
        from peakmem_onnx.runtime import runtime_status

        return (runtime_status(),)


frontend = OnnxFrontend()
