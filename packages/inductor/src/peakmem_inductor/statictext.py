"""A profile derived from the text of a wrapper alone: sizes as they are written, nothing measured.

Good enough to look at somebody's wrapper, and for GPU wrappers, which peakmem orders but does not run. Every guess is
named in ``Profile.notes``.
"""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import Any

from peakmem_inductor.effects import BARRIER, Effects
from peakmem_inductor.forms import Form, Wrapper, asserted_layouts, dotted, pool_view
from peakmem_inductor.profile import Layout, Profile
from peakmem_inductor.regions import evaluate
from peakmem_inductor.simulation import merged_blocks

_RANDOM = re.compile(r"rand|dropout|bernoulli|multinomial|normal|poisson|exponential|cauchy|geometric|uniform")
_READ_ONLY = re.compile(
    r"^(torch\.ops\.)?(aten|mkldnn|mkl)\.(_?scaled_dot_product\w+|convolution(_backward)?|_convolution_pointwise|_mkl_linear|"
    r"_linear_pointwise|max_pool\w+|avg_pool\w+|_adaptive_avg_pool\w+|native_(layer|group)_norm(_backward)?|topk|sort|cumsum|_fft\w+|bmm|mm|addmm|"
    r"embedding_dense_backward|nonzero|upsample\w+|grid_sampler\w+)(\.default|\.stable|\.values)?$"
)


def text_effects(target: str) -> Effects:
    """Effects of an operator judged by its name, for want of its schema: known readers, else a full barrier."""
    if _RANDOM.search(target) or not _READ_ONLY.match(target):
        return BARRIER
    return Effects({})


def profile_from_text(wrapper: Wrapper) -> Profile:
    """Sizes from the allocations, asserts and example arguments of the text; workspaces unknown and taken as 0."""
    return _Deriver(wrapper).derive()


class _Deriver:
    def __init__(self, wrapper: Wrapper) -> None:
        self.wrapper = wrapper
        self.names: dict[str, Layout] = {}
        self.symbols: dict[str, int] = {}
        self.numbers: dict[str, str] = {}
        self.guessed: list[str] = []
        self.device = "cpu"

    def derive(self) -> Profile:
        self.arguments()
        asserted = self.asserted()
        freed: set[str] = set()
        sizes = {f.target for f in self.wrapper.forms if f.kind == "symbol"}
        for form in merged_blocks(self.wrapper.forms):
            if form.kind == "symbol":
                value = self.symbols.get(form.target)
                if value is not None:
                    self.symbols[form.defines[0]] = value
            elif form.kind == "allocation":
                self.allocation(form)
            elif form.kind in ("view", "rename") and form.target in self.names:
                self.alias(form)
            elif form.kind in ("extern", "operator", "block"):
                dtype = next((self.names[n].dtype for n in form.uses if n in self.names), "torch.float32")
                for name in form.defines:
                    self.result(name, asserted.get(name), dtype)
            elif form.kind == "getitem":
                base = self.names.get(form.target)
                dtype = base.dtype if base else "torch.float32"
                self.result(form.defines[0], asserted.get(form.defines[0]), dtype)
            freed.update(n for n in form.deletes if n in self.wrapper.inputs and not re.match(r"(primals_|arg)\d", n))
        notes = [
            "no recorded profile: sizes are read from the text, workspaces of operators are unknown and taken as 0",
            "arguments named primals_* or arg* are taken as the caller's, others that are deleted as freed",
        ]
        if self.guessed:
            shown = ", ".join(self.guessed[:5]) + (", ..." if len(self.guessed) > 5 else "")
            notes.append(f"the element type of {shown} is taken from the operator's arguments")
        unknown = [n for n in self.wrapper.inputs if n not in self.names and n not in self.numbers and n not in sizes]
        if unknown:
            shown = ", ".join(unknown[:5]) + (", ..." if len(unknown) > 5 else "")
            notes.append(f"nothing in the text tells the size of {shown}: what is no number among them is missing from all bytes here")
        effects = {f.target: text_effects(f.target) for f in self.wrapper.forms if f.kind == "operator"}
        return Profile(
            digest=self.wrapper.digest,
            torch="",
            threads=0,
            names=self.names,
            freed=tuple(sorted(freed)),
            symbols=self.symbols,
            operators=effects,
            numbers=self.numbers,
            notes=tuple(notes),
            device=self.device,
        )

    def arguments(self) -> None:
        """From ``get_args`` or ``benchmark_compiled_module`` at the end of the file, else from the asserts."""
        tree = ast.parse(self.wrapper.source)
        devices = sorted(set(re.findall(r"device='(cuda:\d+)'", self.wrapper.source)))
        if devices or "cuda" in self.wrapper.devices:
            self.device = devices[0] if devices else "cuda:0"
        for function in tree.body:
            if isinstance(function, ast.FunctionDef) and function.name in ("get_args", "benchmark_compiled_module"):
                for node in function.body:
                    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                        self.argument(node.targets[0].id, node.value)
        for form in self.wrapper.forms:
            for name, size, stride, dtype in asserted_layouts(form):
                if name in self.wrapper.inputs and name not in self.names:
                    if not dtype:
                        self.guessed.append(name)
                    self.bind(name, size, stride, dtype or "torch.float32")

    def argument(self, name: str, value: ast.expr) -> None:
        if name not in self.wrapper.inputs:
            return
        if isinstance(value, ast.Constant) and isinstance(value.value, int):
            self.symbols[name] = value.value
            self.numbers[name] = repr(value.value)
        elif isinstance(value, ast.Call) and dotted(value.func) in ("rand_strided", "torch.as_strided"):
            args = value.args if dotted(value.func) == "rand_strided" else value.args[1:]
            given = {k.arg: k.value for k in value.keywords}
            dtype = ast.unparse(given["dtype"]) if "dtype" in given else "torch.float32"
            self.bind(name, args[0], args[1], dtype, device=ast.unparse(given["device"]).strip("'") if "device" in given else "cpu")

    def bind(self, name: str, size: ast.expr, stride: ast.expr, dtype: str, storage: str = "", device: str = "") -> None:
        elsewhere = device if device not in ("", self.device) else ""
        shape, steps = evaluate(size, self.symbols), evaluate(stride, self.symbols)
        if isinstance(shape, tuple) and isinstance(steps, tuple):
            bare = Layout(0, shape, steps, 0, dtype, storage or name, elsewhere)
            self.names[name] = replace(bare, bytes=bare.own_bytes)

    def asserted(self) -> dict[str, tuple[ast.expr, ast.expr, str]]:
        found: dict[str, tuple[ast.expr, ast.expr, str]] = {}
        for form in self.wrapper.forms:
            for name, size, stride, dtype in asserted_layouts(form):
                if dtype or name not in found:
                    found[name] = (size, stride, dtype)
        for form in reversed(self.wrapper.forms):  # asserts stand on the last of several names
            if form.kind == "rename" and form.defines[0] in found:
                found.setdefault(form.target, found[form.defines[0]])
        return found

    def allocation(self, form: Form) -> None:
        node: Any = form.node
        args = node.value.args
        if len(args) >= 2:
            dtype = ast.unparse(args[2]) if len(args) > 2 else "torch.float32"
            for keyword in node.value.keywords:
                if keyword.arg == "dtype":
                    dtype = ast.unparse(keyword.value)
            device = "cpu" if form.target == "empty_strided_cpu" else self.device
            self.bind(form.defines[0], args[0], args[1], dtype, device=device)

    def alias(self, form: Form) -> None:
        base = self.names[form.target]
        node: Any = form.node
        if form.kind == "rename":
            self.names[form.defines[0]] = base
            return
        taken = pool_view(form)
        if taken is not None:
            self.bind(form.defines[0], taken.size, taken.stride, taken.dtype, base.storage, base.device)
            place = evaluate(taken.offset, self.symbols)
            made = self.names.get(form.defines[0])
            if made is not None and isinstance(place, int):
                self.names[form.defines[0]] = replace(made, bytes=base.bytes, offset=place // made.itemsize)
            return
        args = node.value.args
        self.bind(form.defines[0], args[1], args[2], base.dtype, base.storage, base.device)
        made = self.names.get(form.defines[0])
        offset = evaluate(args[3], self.symbols)
        if made is not None and isinstance(offset, int):
            self.names[form.defines[0]] = replace(made, bytes=base.bytes, offset=base.offset + offset)

    def result(self, name: str, shape: tuple[ast.expr, ast.expr, str] | None, dtype: str) -> None:
        if shape is not None:
            if not shape[2]:
                self.guessed.append(name)
            self.bind(name, shape[0], shape[1], shape[2] or dtype)

