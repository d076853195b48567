"""Which elements of a storage a view covers: disjoint slices of a concatenation may be written in any order."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from peakmem_inductor.profile import Layout

EXACT_LIMIT = 1 << 24
"""Elements up to which overlap is decided exactly; above it, bounds decide (and may say "overlap" needlessly)."""


@dataclass(frozen=True)
class Region:
    """Elements ``offset + sum(i_k * stride_k)`` of a storage, for ``0 <= i_k < shape_k``."""

    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    itemsize: int

    @property
    def span(self) -> tuple[int, int]:
        """First and one past the last byte."""
        if 0 in self.shape:
            return (0, 0)
        steps = [(n - 1) * s for n, s in zip(self.shape, self.stride)]
        low = self.offset + sum(min(x, 0) for x in steps)
        high = self.offset + sum(max(x, 0) for x in steps)
        return (low * self.itemsize, (high + 1) * self.itemsize)


def overlap(a: Region | None, b: Region | None) -> bool:
    """Whether two regions of one storage share an element; None is the whole storage.

    Exact for regions of equal element size and at most `EXACT_LIMIT` elements, otherwise by their bounds.
    """
    if a is None or b is None or a == b:
        return True
    (a0, a1), (b0, b1) = a.span, b.span
    if a1 <= b0 or b1 <= a0:
        return False
    if a.itemsize != b.itemsize:
        return True
    return _overlap(a, b)


@lru_cache(maxsize=4096)
def _overlap(a: Region, b: Region) -> bool:
    import numpy as np

    if max(a.span[1], b.span[1]) // a.itemsize > EXACT_LIMIT:
        return True
    mark = np.zeros(max(a.span[1], b.span[1]) // a.itemsize, dtype=bool)
    mark[_elements(a)] = True
    return bool(mark[_elements(b)].any())


def _elements(region: Region) -> Any:
    import numpy as np

    found = np.array([region.offset], dtype=np.int64)
    for n, s in zip(region.shape, region.stride):
        if s == 0:
            continue
        found = (found[:, None] + np.arange(n, dtype=np.int64) * s).reshape(-1)
    return found


def of_layout(layout: Layout) -> Region:
    return Region(layout.offset, layout.shape, layout.stride, layout.itemsize)


def inline_view(call: ast.Call, base: Layout, symbols: Mapping[str, int]) -> Region | None:
    """Region of ``reinterpret_tensor(base, size, stride, offset)``; None where a size cannot be evaluated."""
    if len(call.args) != 4:
        return None
    size, stride, offset = (evaluate(a, symbols) for a in call.args[1:])
    if not (isinstance(size, tuple) and isinstance(stride, tuple) and isinstance(offset, int)):
        return None
    return Region(base.offset + offset, size, stride, base.itemsize)


def evaluate(node: ast.expr, symbols: Mapping[str, int]) -> int | tuple[int, ...] | None:
    """Value of a size expression (numbers, known symbols, ``+ - * // %``, min, max, tuples); None if it has others."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, int) and not isinstance(node.value, bool) else None
    if isinstance(node, ast.Name):
        return symbols.get(node.id)
    if isinstance(node, ast.Tuple | ast.List):
        items = [evaluate(e, symbols) for e in node.elts]
        return tuple(i for i in items if isinstance(i, int)) if all(isinstance(i, int) for i in items) else None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = evaluate(node.operand, symbols)
        return -value if isinstance(value, int) else None
    if isinstance(node, ast.BinOp):
        left, right = evaluate(node.left, symbols), evaluate(node.right, symbols)
        if not (isinstance(left, int) and isinstance(right, int)):
            return None
        if isinstance(node.op, ast.Add):
            return left + right
        if isinstance(node.op, ast.Sub):
            return left - right
        if isinstance(node.op, ast.Mult):
            return left * right
        if isinstance(node.op, ast.FloorDiv) and right:
            return left // right
        if isinstance(node.op, ast.Mod) and right:
            return left % right
        return None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("max", "min"):
        values = [v for v in (evaluate(a, symbols) for a in node.args) if isinstance(v, int)]
        if values and len(values) == len(node.args):
            return max(values) if node.func.id == "max" else min(values)
    return None
