"""What a model takes in all at every level of ONNX Runtime's optimizer: constants, which it may multiply, and activations.

Each level is studied as if the file had been read with it, in the order given and in the way asked for. What loading takes and
leaves is measured in processes (`peakmem_onnx.process`); what a run takes on top is the predicted bytes, so that the figure does
not depend on how the C library happens to keep what is freed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from peakmem.frontends import Progress
from peakmem.model import InputError
from peakmem.system.sizes import short

from peakmem_onnx import process
from peakmem_onnx.artifact import Artifact
from peakmem_onnx.compile import at_level
from peakmem_onnx.feeds import write_feeds
from peakmem_onnx.rules import LEVELS
from peakmem_onnx.runtime import scratch


@dataclass(frozen=True)
class Total:
    """One level; bytes.

    Attributes
    ----------
    level : str
    weight_bytes : int
        All constants of the file at that level.
    run_bytes : int
        Predicted quantity of the way, for the order given.
    load_bytes, loaded_bytes : int or None
        Measured: peak while loading, and what is left of it; None where processes are not measured.
    """

    level: str
    weight_bytes: int
    run_bytes: int
    load_bytes: int | None
    loaded_bytes: int | None

    @property
    def total(self) -> int:
        """The one figure: the larger of what loading takes, and what it leaves with a run; without measuring, constants and a run."""
        if self.load_bytes is None or self.loaded_bytes is None:
            return self.weight_bytes + self.run_bytes
        return max(self.load_bytes, self.loaded_bytes + self.run_bytes)


def totals(model: Artifact, *, progress: Progress | None = None) -> tuple[list[Total], list[str]]:
    """Every level at which the source of a model runs, and sentences about the others. The first level comes first.

    Nothing for a file that peakmem wrote: it has no other levels.

    Raises
    ------
    RuntimeFailed
        Where processes are to be measured and cannot be.
    """
    if not model.origin.source:
        return [], ["the model was optimized already, so it has no other levels"]
    studied: dict[str, Artifact] = {}
    notes = []
    for level in LEVELS:
        if progress is not None:
            progress(f"studying --ort-level {level}")
        try:
            studied[level] = model if level == model.origin.level else at_level(model, level)
        except InputError as error:
            notes.append(f"--ort-level {level}: {error}")
    rows = {}
    if model.origin.repeats:
        with scratch() as folder:
            found = []
            for level, one in studied.items():
                path = folder / f"{level}.onnx"
                path.write_bytes(one.serialized())
                found.append(process.deployed(one, level, path))
            taken = process.run_configurations(found, write_feeds(model.origin.feeds[:1], folder), model.origin.repeats, folder, progress)
            rows = {row.name: row for row in taken}
    return [
        Total(level, one.weight_bytes, one.predicted_bytes, rows[level].load if rows else None, rows[level].loaded if rows else None)
        for level, one in studied.items()
    ], notes


def sentences(rows: Sequence[Total]) -> list[str]:
    """One line a level, and the best one; of equal ones the lowest."""
    lines = []
    for row in rows:
        told = f"constants {short(row.weight_bytes)}, a run {short(row.run_bytes)}"
        if row.load_bytes is not None and row.loaded_bytes is not None:
            told += f", loading +{short(row.load_bytes)} of which +{short(row.loaded_bytes)} stay"
        lines.append(f"--ort-level {row.level}: {short(row.total)} in all ({told})")
    if rows:
        best = min(rows, key=lambda row: row.total)
        lines.append(f"the level that takes least in all is {best.level}, before anything is permuted")
    return lines


def document(rows: Sequence[Total]) -> list[dict[str, Any]]:
    """The entry ``levels`` of documents."""
    return [{**asdict(row), "total_bytes": row.total} for row in rows]
