"""What a model takes in sessions other than the recipe's."""

from __future__ import annotations

from typing import Any

from peakmem.frontends import Verification

from peakmem_onnx.artifact import Artifact
from peakmem_onnx.orders import file_order
from peakmem_onnx.portable import best_numbering
from peakmem_onnx.ways import ARENA, NATIVE, NODES, PORTABLE, RECIPE, REPLAY

DEFAULT = "default order, reuse on; arena and patterns off"


def scenarios(model: Artifact, other: Artifact, verification: Verification | None) -> list[dict[str, Any]]:
    """Rows of settings and bytes, from what runs today to the best.

    ``measured_bytes`` is None where nothing was run, ``modelled_bytes`` where there is no model.
    """
    details = verification.details if verification is not None else {}
    before = verification.baseline_bytes if verification is not None else None
    after = verification.optimized_bytes if verification is not None else None
    arena = details.get("onnxruntime_defaults_bytes")
    rows: list[tuple[str, str, int | None, int | None]] = [
        (
            "ONNX Runtime as it comes",
            "default order; arena, patterns and reuse on; what the arena holds after two runs",
            None,
            arena,
        )
    ]
    if model.way is NODES:
        rows += [
            ("given order, node by node", "every node in a session of its own", model.predicted_bytes, before),
            ("new order, node by node", "every node in a session of its own", other.predicted_bytes, after),
        ]
    elif model.way is ARENA:
        loose = [one.bytes_under(RECIPE) for one in (model, other)]
        rows += [
            ("given order, planned arena", "its first region planned, memory patterns and reuse off", model.predicted_bytes, before),
            ("new order, planned arena", "the same", other.predicted_bytes, after),
            ("given order, memory options off", "arena, patterns and reuse off", loose[0], None),
            ("new order, memory options off", "arena, patterns and reuse off", loose[1], None),
        ]
    elif model.way in (NATIVE, REPLAY):
        what = "replayed places" if model.way is REPLAY else "planned arena"
        rows += [
            (f"given order, {what}", model.way.name, model.predicted_bytes, before),
            (f"new order, {what}", model.way.name, other.predicted_bytes, after),
            ("given order, default session", DEFAULT, model.bytes_under(PORTABLE, model.executed), None),
            ("new order, default session", DEFAULT, other.bytes_under(PORTABLE, other.executed), None),
        ]
    elif model.way is PORTABLE:
        today = model.bytes_under(RECIPE, file_order)
        rows += [
            ("today's order, default session", DEFAULT, model.predicted_bytes, before),
            ("portable file, default session", DEFAULT + "; for C, C++ and JavaScript", other.predicted_bytes, after),
            ("today's order, memory options off", "arena, patterns and reuse off; Python only", today, None),
        ]
    else:
        _, portable = best_numbering(other.graph, other.facts, [_order_of(model, other)])
        default = [one.bytes_under(PORTABLE) for one in (model, other)]
        rows += [
            ("given file, default session", DEFAULT, default[0], details.get("given_default_session_bytes")),
            ("new file, default session", DEFAULT, default[1], details.get("new_default_session_bytes")),
            ("portable file, default session", DEFAULT + "; for C, C++ and JavaScript", portable, None),
            ("today's order, memory options off", "arena, patterns and reuse off", model.predicted_bytes, before),
            ("new order, memory options off", "the recipe", other.predicted_bytes, after),
        ]
    keys = ("name", "settings", "modelled_bytes", "measured_bytes")
    return [dict(zip(keys, row, strict=True)) for row in rows]


def _order_of(model: Artifact, other: Artifact) -> list[int]:
    """The order of ``model`` as indices into ``other``'s nodes; those that only one of them has are left out."""
    index = {node.name: node.index for node in other.graph.nodes}
    return [index[node.name] for node in model.graph.nodes if node.name in index]
