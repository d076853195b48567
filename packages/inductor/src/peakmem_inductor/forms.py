"""What a wrapper consists of: its statements (`Form`) and the whole (`Wrapper`)."""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

FormKind = Literal[
    "symbol",
    "assert",
    "allocation",
    "view",
    "reuse",
    "rename",
    "align",
    "kernel",
    "extern",
    "operator",
    "getitem",
    "measure",
    "guard",
    "none",
    "delete",
    "block",
    "context",
    "return",
]
Access = Literal["r", "w", "rw"]
"""How a kernel or operator uses one argument: reads it, overwrites it without reading, or both."""

POOL_VIEW = "alloc_from_pool"
UNBACKED = re.compile(r"\b(?:u|zuf)\d+\b")
MODULE_NAMES = frozenset({"reinterpret_tensor", POOL_VIEW, "torch", "aten", "device", "max", "min", "inf", "nan", "math", "c_void_p", "None"})


@dataclass(frozen=True)
class Form:
    """One statement of ``call``.

    Attributes
    ----------
    kind : FormKind
    text : str
        Dedented source, without trailing comment lines.
    line : int
        Line in the file, from 1.
    defines : tuple of str
        Names assigned.
    uses : tuple of str
        Local names read, in order of appearance, each once.
    deletes : tuple of str
        Names deleted.
    target : str
        Callee (``extern_kernels.mm``), the base of a view, reuse, rename or item.
    arguments : tuple of (str, ast.expr)
        Of a kernel, extern or operator: position (``"0"``) or keyword, and the expression.
    node : ast.stmt
    """

    kind: FormKind
    text: str
    line: int
    defines: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    target: str = ""
    arguments: tuple[tuple[str, ast.expr], ...] = field(default=(), repr=False)
    node: ast.stmt | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Wrapper:
    """A parsed wrapper.

    Attributes
    ----------
    source : str
    inputs : tuple of str
        Names of the arguments, in order.
    preamble : tuple of str
        Text before the first form: unpacking the arguments.
    forms : tuple of Form
        All but the closing ``return``.
    returns : Form
    outputs : tuple of str
        Local names in the return expression.
    kernels : mapping of str to tuple of Access or None
        For each kernel defined in the file, and for what is called on a tensor (``zero_``, ``copy_``), the access of its arguments by position; None for a plain number.
    once : mapping of str to str
        Kernels that must not run twice, and why.
    body_lines : tuple of (int, int)
        First and last line of the body of ``call`` (from 1, inclusive).
    indent : str
        Indentation of that body.
    context : str
        The line of a device guard around the body or parts of it, or empty; it and what it holds were unwrapped.
    devices : tuple of str
        Devices that allocations of the wrapper name (``cpu``, ``cuda``), sorted.
    call : ast.FunctionDef
        The function ``call``; not to be changed.
    inner : tuple of str
        What the functions that control flow runs call, but for kernels of the file and what only handles memory.
    """

    source: str
    inputs: tuple[str, ...]
    preamble: tuple[str, ...]
    forms: tuple[Form, ...]
    returns: Form
    outputs: tuple[str, ...]
    kernels: Mapping[str, tuple[Access | None, ...]]
    once: Mapping[str, str]
    body_lines: tuple[int, int]
    indent: str
    context: str
    devices: tuple[str, ...]
    call: ast.FunctionDef = field(repr=False, compare=False)
    inner: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """``sha256:...`` of the source."""
        return "sha256:" + hashlib.sha256(self.source.encode()).hexdigest()

    @property
    def constants(self) -> tuple[str, ...]:
        """Plain names that calls of kernels and operators take from the module, sorted."""
        local = {n for f in self.forms for n in f.defines} | set(self.inputs)
        return tuple(
            sorted(
                {
                    n.id
                    for f in self.forms
                    for _, e in f.arguments
                    for n in ast.walk(e)
                    if isinstance(n, ast.Name) and n.id not in local and n.id not in MODULE_NAMES
                }
            )
        )

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of all operators it calls, in control flow too, each once."""
        inner = (c for c in self.inner if not c.startswith("extern_kernels."))
        return tuple(dict.fromkeys((*(f.target for f in self.forms if f.kind == "operator"), *inner)))

    @property
    def donated(self) -> frozenset[str]:
        """Arguments whose storage the wrapper takes over (``buf3 = arg; del arg  # reuse``): nobody else holds them."""
        return frozenset(
            a.target
            for a, b in zip(self.forms, self.forms[1:])
            if is_reuse(a, b) and a.target in self.inputs
        )

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of symbolic sizes, in order of definition."""
        return tuple(n for f in self.forms if f.kind in ("symbol", "measure") for n in f.defines)


@dataclass(frozen=True)
class PoolView:
    """``alloc_from_pool(pool, offset, dtype, size, stride)``; the offset is in bytes."""

    pool: str
    offset: ast.expr
    dtype: str
    size: ast.expr
    stride: ast.expr


def pool_view(form: Form) -> PoolView | None:
    """What a view takes from a pool; None for any other form."""
    call = form.node.value if form.kind == "view" and isinstance(form.node, ast.Assign) else None
    if not isinstance(call, ast.Call) or dotted(call.func) != POOL_VIEW:
        return None
    return PoolView(form.target, call.args[1], ast.unparse(call.args[2]), call.args[3], call.args[4])


def asserted_layouts(form: Form) -> Iterator[tuple[str, ast.expr, ast.expr, str]]:
    """What an assert says of tensors: name, size, stride, element type (empty where it does not say)."""
    call = form.node.value if form.kind == "assert" and isinstance(form.node, ast.Expr) else None
    if not isinstance(call, ast.Call) or len(call.args) < 3:
        return
    what, size, stride = call.args[:3]
    if dotted(call.func) in ("assert_size_stride", "assert_tensor_metadata") and isinstance(what, ast.Name):
        known = dotted(call.args[3]) if dotted(call.func) == "assert_tensor_metadata" and len(call.args) > 3 else ""
        yield what.id, size, stride, known
    elif dotted(call.func) == "assert_size_stride_grouped" and all(isinstance(e, ast.Tuple | ast.List) for e in (what, size, stride)):
        assert isinstance(what, ast.Tuple | ast.List) and isinstance(size, ast.Tuple | ast.List) and isinstance(stride, ast.Tuple | ast.List)
        for name, n, s in zip(what.elts, size.elts, stride.elts):
            if isinstance(name, ast.Name):
                yield name.id, n, s, ""


def is_reuse(form: Form, following: Form | None) -> bool:
    """Whether two forms are ``new = old; del old``, possibly through a view: the storage changes its name."""
    return (
        form.kind in ("rename", "view")
        and following is not None
        and following.kind == "delete"
        and following.line == form.line
        and following.deletes == (form.target,)
    )


def lines_of(text: str) -> list[str]:
    """Lines as Python's own parser counts them; `str.splitlines` also breaks at form feeds and other rare characters."""
    rows = re.split(r"\r\n|\r|\n", text)
    return rows if rows[-1] else rows[:-1]


def dotted(node: ast.expr) -> str:
    """``a.b.c`` of a chain of attributes, or the empty string."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    parts.append(node.id)
    return ".".join(reversed(parts))


def names_in(node: ast.AST) -> Iterator[str]:
    """Names read below a node, in order of appearance, repeated as they stand."""
    found = [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]
    found.sort(key=lambda n: (n.lineno, n.col_offset))
    for n in found:
        yield n.id
