"""What a model takes in sessions other than the recipe's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from peakmem.frontend import Verification

if TYPE_CHECKING:
    from peakmem_onnx.model import OnnxModel

DEFAULT = "default order, reuse on; arena and patterns off"


def scenarios(model: OnnxModel, other: OnnxModel, verification: Verification | None) -> list[dict[str, Any]]:
    """Rows of settings and bytes, from what runs today to the best.

    ``measured_bytes`` is None where nothing was run, ``modelled_bytes`` where there is no model.
    """
    details = verification.details if verification is not None else {}
    _, portable = other.best_numbering(model)
    rows = [
        (
            "ONNX Runtime as it comes",
            "default order; arena, patterns and reuse on; what the arena holds after two runs",
            None,
            details.get("onnxruntime_defaults_bytes"),
        ),
        ("given file, default session", DEFAULT, model.default_bytes(reuse=True), details.get("given_default_session_bytes")),
        ("new file, default session", DEFAULT, other.default_bytes(reuse=True), details.get("new_default_session_bytes")),
        ("portable file, default session", DEFAULT + "; for C, C++ and JavaScript", portable, None),
        (
            "today's order, memory options off",
            "arena, patterns and reuse off",
            model.predicted_bytes,
            verification.baseline_bytes if verification else None,
        ),
        (
            "new order, memory options off",
            "the recipe",
            other.predicted_bytes,
            verification.optimized_bytes if verification else None,
        ),
    ]
    keys = ("name", "settings", "modelled_bytes", "measured_bytes")
    return [dict(zip(keys, row, strict=True)) for row in rows]
