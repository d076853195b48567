"""ONNX models for peakmem: orders that ONNX Runtime really executes, peaks that it really reaches."""

from __future__ import annotations

from typing import Any

__all__ = ["frontend", "session"]


def __getattr__(name: str) -> Any:
    if name == "frontend":
        from peakmem_onnx.frontend import frontend

        return frontend
    if name == "session":
        from peakmem_onnx.deploy import session

        return session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
