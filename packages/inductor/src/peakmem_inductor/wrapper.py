"""Reading a generated wrapper: the statements of its ``call``, one `Form` each, with the names they define and use.

Nothing here needs torch. The text is sliced by lines and never rewritten; a form this module does not know raises
`UnknownForm`, and whoever asked leaves the whole graph alone.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Callable

from peakmem.model import InputError

from peakmem_inductor.forms import POOL_VIEW, Access, Form, FormKind, Wrapper, dotted, lines_of, names_in
from peakmem_inductor.signatures import cpp_accesses, runs_once, triton_accesses

ALLOCATION = re.compile(r"empty_strided(_\w+)?$")
SYMBOL = re.compile(r"(?:s|u|zuf|ps|ks)\d+$")
_VIEW = "reinterpret_tensor"
_METHODS: dict[str, tuple[Access | None, ...]] = {"zero_": ("w",), "copy_": ("w", "r", None)}
"""What is called on a buffer as a method, and how it uses the buffer and its arguments."""
_BEYOND_MODEL = re.compile(r"_c10d_functional|alloc_from_pool|resize_|\.set_\b")
"""Operators that change storages themselves, share one between buffers, or finish after they return."""


_HANDLES = re.compile(
    r"^(?:empty_strided\w*|reinterpret_tensor|assert_\w+|len|range|min|max|\w*Error)$|\.(?:clear|item|clone|size|stride|numel)$"
)
"""Calls in branches and loops that act on nothing outside."""

_OWN_NAMES = (
    ast.Lambda, ast.NamedExpr, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.Yield, ast.YieldFrom, ast.Await,
)  # fmt: skip


class UnknownForm(InputError):
    """The wrapper holds something this version does not know; the graph must be left as it is."""


def is_ahead_of_time(head: bytes) -> bool:
    """A package of AOTInductor (a zip file), or the C++ of one."""
    return (head.startswith(b"PK") and b"/data/aotinductor/" in head) or b"torch/csrc/inductor/aoti_" in head


def looks_like_wrapper(head: bytes) -> bool:
    """Whether a file starts like a generated wrapper (its first 4096 bytes are enough)."""
    return b"AsyncCompile" in head and b"torch._inductor" in head and b"empty_strided" in head


def parse_wrapper(source: str, *, where: str = "wrapper") -> Wrapper:
    """Read a wrapper.

    Raises
    ------
    UnknownForm
        At the first statement that is none of the known forms.
    InputError
        When the text is not Python or has no ``call``.

    Notes
    -----
    Linear in the length of the text.
    """
    try:
        tree = ast.parse(source)
    except (RecursionError, MemoryError):
        raise InputError(f"{where}: is nested too deep; give a wrapper that Inductor wrote") from None
    except (SyntaxError, ValueError) as error:
        raise InputError(f"{where}: is not Python text ({error}); give a wrapper that Inductor wrote") from None
    return _Reader(source, tree, where).read()


class _Reader:
    def __init__(self, source: str, tree: ast.Module, where: str) -> None:
        self.source = source
        self.lines = lines_of(source)
        self.tree = tree
        self.where = where
        self.local: set[str] = set()
        self.containers: set[str] = set()
        self.kernels: dict[str, tuple[Access | None, ...]] = dict(_METHODS)
        self.foreign: set[str] = set()
        self.once: dict[str, str] = {}
        self.functions: dict[str, ast.FunctionDef] = {}
        self.devices: set[str] = set()

    def fail(self, node: ast.AST, what: str) -> UnknownForm:
        line = getattr(node, "lineno", 0)
        text = self.lines[line - 1].strip() if 0 < line <= len(self.lines) else ""
        return UnknownForm(f"{self.where}: line {line}: {what}: {text[:120]!r}; the graph is left as it is")

    def slice(self, node: ast.stmt) -> str:
        """Text of a statement, dedented; comments after it on the line are kept out."""
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        rows = self.lines[node.lineno - 1 : node.end_lineno]
        rows[-1] = rows[-1].encode()[: node.end_col_offset].decode()
        rows[0] = rows[0].encode()[node.col_offset :].decode()
        if len(rows) > 1:
            pad = " " * node.col_offset
            rows[1:] = [r[len(pad) :] if r.startswith(pad) else r for r in rows[1:]]
        return "\n".join(rows)

    def read(self) -> Wrapper:
        call: ast.FunctionDef | None = None
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef):
                if node.name == "call":
                    call = node
                else:
                    self.functions[node.name] = node
            elif isinstance(node, ast.ClassDef) and node.name == "Runner":
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef) and inner.name == "call":
                        call = inner
            elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                self.kernel(node)
        if call is None:
            raise InputError(f"{self.where}: has no call(args); give a wrapper that Inductor wrote")
        body = list(call.body)
        inputs: tuple[str, ...] = ()
        preamble: list[str] = []
        while body:
            node = body[0]
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id == "args":
                target = node.targets[0]
                elements = target.elts if isinstance(target, ast.Tuple | ast.List) else None
                if elements is None or not all(isinstance(e, ast.Name) for e in elements):
                    raise self.fail(node, "cannot read how the arguments are unpacked")
                inputs = tuple(e.id for e in elements if isinstance(e, ast.Name))
            elif not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and dotted(node.value.func) == "args.clear"):
                break
            preamble.append(self.slice(node))
            body.pop(0)
        if len(set(inputs)) != len(inputs):
            raise self.fail(call, "an argument stands twice")
        self.local.update(inputs)
        context = ""
        forms: list[Form] = []
        returns: Form | None = None
        while body:
            node = body.pop(0)
            if isinstance(node, ast.With):
                guard = self.lines[node.lineno - 1].strip()
                if context not in ("", guard) or not _is_device_guard(node):  # another device
                    raise self.fail(node, "an unknown with block")
                context = guard
                body = [*node.body, *body]
                continue
            if isinstance(node, ast.Return):
                if body or node.value is None:
                    raise self.fail(node, "a return in the middle")
                returns = Form("return", self.slice(node), node.lineno, uses=self.uses(node.value), node=node)
                break
            forms.append(self.form(node))
        if returns is None:
            raise self.fail(call, "call does not end in a return")
        assert call.end_lineno is not None
        first = call.body[0]
        row = self.lines[first.lineno - 1]
        return Wrapper(
            source=self.source,
            inputs=inputs,
            preamble=tuple(preamble),
            forms=tuple(forms),
            returns=returns,
            outputs=returns.uses,
            kernels=self.kernels,
            once=self.once,
            body_lines=(first.lineno, call.end_lineno),
            indent=row[: len(row) - len(row.lstrip())],
            context=context,
            devices=tuple(sorted(self.devices)),
            call=call,
            inner=self.inner(call),
        )

    def inner(self, call: ast.FunctionDef) -> tuple[str, ...]:
        found: dict[str, None] = {}
        reached: set[str] = set()
        queue = [call]
        while queue:
            body = queue.pop()
            for node in ast.walk(body):
                if not isinstance(node, ast.Call):
                    continue
                name = dotted(node.func.func if isinstance(node.func, ast.Call) else node.func).removesuffix(".run")
                if name in self.functions and name not in reached:
                    reached.add(name)
                    queue.append(self.functions[name])
                elif body is not call and name not in self.functions and name not in self.kernels and not _HANDLES.search(name):
                    found[name or "something without a name"] = None
        return tuple(sorted(found))

    def uses(self, node: ast.AST) -> tuple[str, ...]:
        return tuple(dict.fromkeys(n for n in names_in(node) if n in self.local))

    def kernel(self, node: ast.Assign) -> None:
        """Record a kernel definition of the module."""
        assert isinstance(node.value, ast.Call)
        target = node.targets[0]
        maker = dotted(node.value.func)
        if not isinstance(target, ast.Name) or not maker.startswith("async_compile."):
            return
        strings = [
            n.value for n in ast.walk(node.value) if isinstance(n, ast.Constant) and isinstance(n.value, str)
        ]
        code = max(strings, key=len, default="")
        if maker == "async_compile.cpp_pybinding":
            access = cpp_accesses(code)
        elif maker == "async_compile.triton":
            access = triton_accesses(code)
        else:
            return
        if access is None:
            self.foreign.add(target.id)
        else:
            self.kernels[target.id] = access
            reason = runs_once(code)
            if reason:
                self.once[target.id] = reason

    # -- one statement ---------------------------------------------------------------------------------------

    def form(self, node: ast.stmt) -> Form:
        self.plain(node)
        for handler in _HANDLERS.get(type(node), ()):
            form = handler(self, node)
            if form is not None:
                self.local.update(form.defines)
                return form
        raise self.fail(node, "an unknown statement")

    def plain(self, node: ast.stmt) -> None:
        """Refuse names that mean something else inside a statement, and texts whose lines would not survive indenting."""
        for n in ast.walk(node):
            if isinstance(n, _OWN_NAMES):
                raise self.fail(node, "an unknown expression")
            if isinstance(n, ast.Constant | ast.JoinedStr) and n.lineno != n.end_lineno:
                raise self.fail(node, "a text over several lines")

    def make(self, kind: FormKind, node: ast.stmt, value: ast.AST | None = None, **more: object) -> Form:
        used = self.uses(value) if value is not None else ()
        return Form(kind, self.slice(node), node.lineno, uses=used, node=node, **more)  # type: ignore[arg-type]

    def delete(self, node: ast.stmt) -> Form | None:
        assert isinstance(node, ast.Delete)
        if not all(isinstance(t, ast.Name) and t.id in self.local for t in node.targets):
            return None
        return self.make("delete", node, deletes=tuple(t.id for t in node.targets if isinstance(t, ast.Name)))

    def guard(self, node: ast.stmt) -> Form | None:
        """``if not (u0 >= 0): raise RuntimeError(...)``."""
        assert isinstance(node, ast.If)
        if node.orelse or len(node.body) != 1 or not isinstance(node.body[0], ast.Raise):
            return None
        return self.make("guard", node, node.test)

    def block(self, node: ast.stmt) -> Form | None:
        """cond and while: a block that calls the graphs of its branches."""
        stored = {
            n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
        }
        for n in ast.walk(node):
            if isinstance(n, ast.Return | ast.Try | ast.With | ast.For | ast.FunctionDef | ast.Raise):
                return None
            if isinstance(n, ast.Call):
                name = dotted(n.func)
                if not (name in self.functions or name.split(".")[-1] in ("item", "clone", "len", "range")):
                    return None
        deleted = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Del)}
        loaded = self.uses(node)
        return Form(
            "block",
            _without_deletes(self.slice(node)),
            node.lineno,
            defines=tuple(sorted(stored)),
            uses=tuple(dict.fromkeys((*loaded, *sorted(deleted & self.local)))),
            deletes=tuple(sorted(deleted & self.local)),
            node=node,
        )

    def expression(self, node: ast.stmt) -> Form | None:
        assert isinstance(node, ast.Expr)
        value = node.value
        if isinstance(value, ast.Constant):
            return self.make("none", node)
        if not isinstance(value, ast.Call):
            return None
        name = dotted(value.func)
        if name.startswith("assert_"):
            return self.make("assert", node, value)
        if isinstance(value.func, ast.Call) and dotted(value.func.func).startswith("assert_"):
            return self.make("assert", node, value)
        if isinstance(value.func, ast.Call):
            return None
        whole, _, method = name.rpartition(".")
        if method in _METHODS and whole in self.local and not value.keywords and len(value.args) < len(_METHODS[method]):
            blocking = all(isinstance(a, ast.Constant) and a.value is False for a in value.args[1:])
            if not blocking or (method == "zero_") == bool(value.args):
                return None
            assert isinstance(value.func, ast.Attribute)
            arguments = tuple((str(i), a) for i, a in enumerate((value.func.value, *value.args)))
            return self.make("kernel", node, value, target=method, arguments=arguments)
        if name in ("torch.cuda.set_device", "torch.xpu.set_device"):
            return self.make("context", node, value)
        return self.computation(node, value, ())

    def assignment(self, node: ast.stmt) -> Form | None:
        assert isinstance(node, ast.Assign)
        target = node.targets[0]
        value = node.value
        if isinstance(value, ast.Constant) and value.value is None:
            names = tuple(t.id for t in node.targets if isinstance(t, ast.Name))
            return self.make("none", node, defines=names) if len(names) == len(node.targets) else None
        if len(node.targets) != 1:
            return None
        if isinstance(target, ast.Subscript):
            return self.container_store(node, target, value)
        if isinstance(target, ast.Tuple):
            return self.unpacking(node, target, value)
        if not isinstance(target, ast.Name):
            return None
        name = target.id
        if isinstance(value, ast.Name):
            if SYMBOL.match(name):
                return self.make("symbol", node, value, defines=(name,), target=value.id)
            if value.id in self.containers:
                self.containers.add(name)
                return self.make("block", node, value, defines=(name,))
            return self.make("rename", node, value, defines=(name,), target=value.id)
        if isinstance(value, ast.Subscript):
            base = value.value
            while isinstance(base, ast.Subscript):
                base = base.value
            if isinstance(base, ast.Name) and base.id in self.local:
                return self.make("getitem", node, value, defines=(name,), target=base.id)
            return None
        if isinstance(value, ast.BinOp) and isinstance(value.left, ast.List) and isinstance(value.op, ast.Mult):
            self.containers.add(name)
            return self.make("block", node, value, defines=(name,))
        if isinstance(value, ast.List) and all(dotted(e) or isinstance(e, ast.Subscript) for e in value.elts):
            self.containers.add(name)
            return self.make("block", node, value, defines=(name,))
        if isinstance(value, ast.Call):
            return self.call(node, name, value)
        if SYMBOL.match(name) or isinstance(value, ast.BinOp | ast.IfExp | ast.Compare):
            return self.make("measure", node, value, defines=(name,)) if self.numeric(value) else None
        return None

    def numeric(self, value: ast.expr) -> bool:
        """Whether an expression is arithmetic on symbols and numbers."""
        allowed = (ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Compare, ast.Constant, ast.operator, ast.unaryop, ast.cmpop, ast.Load)
        return all(
            isinstance(n, allowed) or (isinstance(n, ast.Name) and SYMBOL.match(n.id)) for n in ast.walk(value)
        )

    def call(self, node: ast.Assign, name: str, value: ast.Call) -> Form | None:
        callee = dotted(value.func)
        if callee == "int" and len(value.args) == 1 and not value.keywords:  # which branch of a conditional runs
            inner = value.args[0]
            if isinstance(inner, ast.Call):
                form = self.call(node, name, inner)
                return form if form is not None and form.kind == "measure" else None
            return self.make("measure", node, value, defines=(name,)) if self.numeric(inner) else None
        if ALLOCATION.match(callee):
            device = callee.removeprefix("empty_strided").removeprefix("_") or "cpu"
            for k in value.keywords:
                if k.arg == "device" and isinstance(k.value, ast.Constant):
                    device = str(k.value.value).split(":")[0]
            self.devices.add(device)
            return self.make("allocation", node, value, defines=(name,), target=callee)
        if callee == _VIEW:
            base = value.args[0]
            if not isinstance(base, ast.Name):
                return None
            return self.make("view", node, value, defines=(name,), target=base.id)
        if callee == "copy_if_misaligned":
            same = len(value.args) == 1 and isinstance(value.args[0], ast.Name) and value.args[0].id == name
            return self.make("align", node, value, defines=(name,), target=name) if same else None
        if callee == POOL_VIEW:
            pool = value.args[0] if len(value.args) == 5 and not value.keywords else None
            if not isinstance(pool, ast.Name):
                return None
            return self.make("view", node, value, defines=(name,), target=pool.id)
        if callee in ("get_raw_stream", "torch._C._cuda_getCurrentRawStream"):
            return self.make("context", node, value, defines=(name,))
        if isinstance(value.func, ast.Attribute) and isinstance(value.func.value, ast.Name):
            base_name = value.func.value.id
            if base_name in self.local:
                if value.func.attr in ("item", "size", "stride", "storage_offset", "numel", "dim"):
                    return self.make("measure", node, value, defines=(name,), target=base_name)
                return None
        if callee in self.functions:
            return self.make("block", node, value, defines=(name,))
        if not callee or callee.split(".")[0] in self.local:
            return None
        return self.computation(node, value, (name,))

    def computation(self, node: ast.stmt, value: ast.Call, defines: tuple[str, ...]) -> Form | None:
        callee = dotted(value.func)
        head = callee.split(".")[0]
        if any(isinstance(a, ast.Starred) for a in value.args) or any(k.arg is None for k in value.keywords):
            return None
        arguments = [(str(i), a) for i, a in enumerate(value.args)]
        arguments += [(str(k.arg), k.value) for k in value.keywords]
        kind: FormKind
        name = callee.removesuffix(".run")
        if name in self.kernels:
            kind = "kernel"
            callee = name
        elif head == "extern_kernels" or (name in self.foreign and callee == f"{name}.run"):
            kind = "extern"
        elif callee.startswith(("torch.ops.", "aten.", "inductor_ops.", "_quantized.")):
            if _BEYOND_MODEL.search(callee):
                return None
            kind = "operator"
        else:
            return None
        return self.make(kind, node, value, defines=defines, target=callee, arguments=tuple(arguments))

    def container_store(self, node: ast.Assign, target: ast.Subscript, value: ast.expr) -> Form | None:
        """``buf1[0] = buf0``: filling the list that a loop carries."""
        if isinstance(target.value, ast.Name) and target.value.id in self.containers and isinstance(value, ast.Name):
            form = self.make("block", node, value)
            return Form("block", form.text, form.line, uses=(*form.uses, target.value.id), node=node)
        return None

    def unpacking(self, node: ast.Assign, target: ast.Tuple, value: ast.expr) -> Form | None:
        """``(a, b) = some_graph(args)`` before a loop."""
        if not (isinstance(value, ast.Call) and dotted(value.func) in self.functions):
            return None
        names = tuple(e.id for e in target.elts if isinstance(e, ast.Name))
        self.containers.update(names)
        return self.make("block", node, node, defines=names)


_Handler = Callable[[_Reader, ast.stmt], Form | None]
_HANDLERS: dict[type[ast.stmt], tuple[_Handler, ...]] = {
    ast.Delete: (_Reader.delete,),
    ast.If: (_Reader.guard, _Reader.block),
    ast.While: (_Reader.block,),
    ast.Expr: (_Reader.expression,),
    ast.Assign: (_Reader.assignment,),
}


def _is_device_guard(node: ast.With) -> bool:
    if len(node.items) != 1 or not isinstance(node.items[0].context_expr, ast.Call):
        return False
    return dotted(node.items[0].context_expr.func).rsplit(".", 1)[-1] in ("_DeviceGuard", "device", "DeviceGuard")


def _without_deletes(text: str) -> str:
    """A block without its own deletes: they stand in one branch only, ours follow the block."""
    rows = [
        re.sub(r"^(\s*)del [\w, ]+$", r"\1pass", row) for row in lines_of(text)
    ]
    return textwrap.dedent("\n".join(rows))
