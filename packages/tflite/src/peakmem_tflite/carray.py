"""A file as C source, for firmware that links its model."""

from __future__ import annotations

from typing import Literal

from peakmem_tflite.describe import identifier
from peakmem_tflite.scratch import ALIGNMENT

_ROW = 12
"""Bytes in a line."""

_ALIGNED = {"c++": f"alignas({ALIGNMENT}) ", "c": f"__attribute__((aligned({ALIGNMENT}))) "}


def c_array(data: bytes, name: str, digest: str, language: Literal["c", "c++"]) -> str:
    """An array that holds the bytes, aligned as the interpreter wants it, and their number; the same text every time."""
    name = identifier(name)
    rows = [data[i : i + _ROW] for i in range(0, len(data), _ROW)]
    outer = ["extern const unsigned char " + name + "[];", "extern const unsigned int " + name + "_len;", ""] if language == "c++" else []
    return "\n".join(
        [
            f"// {len(data)} bytes, {digest}",
            *outer,
            f"{_ALIGNED[language]}const unsigned char {name}[] = {{",
            *("  " + " ".join(f"0x{byte:02x}," for byte in row) for row in rows),
            "};",
            f"const unsigned int {name}_len = {len(data)};",
            "",
        ]
    )
