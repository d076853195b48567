"""What a model takes in sessions other than the recipe's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from peakmem.frontend import Verification

if TYPE_CHECKING:
    from peakmem_onnx.model import OnnxModel


def scenarios(model: OnnxModel, other: OnnxModel, verification: Verification | None) -> list[dict[str, Any]]:
    """Rows of settings and bytes, from what runs today to the best."""
    details = verification.details if verification is not None else {}
    rows = []

    def row(name: str, settings: str, modelled: int | None, measured: int | None) -> None:
        rows.append({"name": name, "settings": settings, "modelled_bytes": modelled, "measured_bytes": measured})

    row(
        "ONNX Runtime as it comes",
        "default order, arena, patterns and reuse on; bytes the arena holds after two runs",
        None,
        details.get("onnxruntime_defaults_bytes"),
    )
    row("given file, default session", "default order, reuse on, arena and patterns off", model.default_bytes(reuse=True), None)
    row("new file, default session", "default order, reuse on, arena and patterns off", other.default_bytes(reuse=True), None)
    row("today's order, memory options off", "arena, patterns and reuse off", model.predicted_bytes,
        verification.baseline_bytes if verification else None)
    row("new order, memory options off", "the recipe", other.predicted_bytes,
        verification.optimized_bytes if verification else None)
    return rows
