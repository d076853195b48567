"""Runs wrappers without torch, element by element, on numbers that tell what was computed from what.

A kernel writes a hash of everything it reads and of the place it writes to, so any change of what it saw shows. Fresh
memory holds numbers that never occur twice. Storages are counted as the allocator would.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from peakmem_inductor.effects import Effects
from peakmem_inductor.forms import Wrapper
from peakmem_inductor.profile import Layout, Profile
from peakmem_inductor.record import _makers

EFFECTS = {
    "torch.ops.aten.topk.default": Effects({}),
    "torch.ops.aten.nonzero.default": Effects({}),
    "torch.ops.aten.alias.default": Effects({}, aliases=("0",)),
    "torch.ops.aten.add_.default": Effects({"0": "rw"}),
    "torch.ops.aten.rand_like.default": Effects({}, random=True),
    "torch.ops.lab.change.default": Effects({}, known=False),
}


class Storage:
    def __init__(self, cells: list[int]) -> None:
        self.cells = cells


class Tensor:
    def __init__(self, storage: Storage, shape: tuple[int, ...], stride: tuple[int, ...], offset: int = 0) -> None:
        self.storage, self.shape, self.stride, self.offset = storage, shape, stride, offset

    def places(self) -> list[int]:
        spans = [[i * s for i in range(n)] for n, s in zip(self.shape, self.stride)]
        return [self.offset + sum(at) for at in itertools.product(*spans)]

    def values(self) -> tuple[int, ...]:
        return tuple(self.storage.cells[p] for p in self.places())

    def fill(self, seed: object, *, every: int = 1) -> None:
        for i, p in enumerate(self.places()):
            if i % every == 0:
                self.storage.cells[p] = hash((seed, i))

    def size(self, dim: int) -> int:
        return self.shape[dim]

    def item(self) -> int:
        return 1 + self.values()[0] % 4


class Runtime:
    """One run: counts bytes above entry, and draws random numbers in the order of the calls."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self.fresh = itertools.count(1 << 70)
        self.drawn = 0
        self.constant = self.tensor((4, 4), (4, 1), before=True)
        self.constant.fill("constant")

    def tensor(self, shape: Sequence[int], stride: Sequence[int], *, before: bool = False) -> Tensor:
        """A tensor with a storage of its own; ``before``: that of an argument, there at entry."""
        cells = 1 + sum((n - 1) * s for n, s in zip(shape, stride)) if 0 not in shape else 0
        storage = Storage([next(self.fresh) for _ in range(cells)])
        if not before:
            self.now += 4 * cells
            self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self.free, 4 * cells)
        return Tensor(storage, tuple(shape), tuple(stride))

    def free(self, size: int) -> None:
        self.now -= size

    # -- what wrappers call ----------------------------------------------------------------------------------

    def namespace(self) -> dict[str, Any]:
        def read(a: Tensor, out: Tensor) -> None:
            out.fill(("read", a.values()))

        def inplace(a: Tensor, b: Tensor) -> None:
            a.fill(("inplace", a.values(), b.values()))

        def two(a: Tensor, b: Tensor, out: Tensor) -> None:
            out.fill(("two", a.values(), b.values()))

        def scatter(a: Tensor, out: Tensor) -> None:
            out.fill(("scatter", a.values()), every=3)

        def both(a: Tensor, x: Tensor, y: Tensor) -> None:
            seen = a.values()
            x.fill(("both", 0, seen))
            y.fill(("both", 1, seen))

        def number(a: Tensor, out: Tensor, n: int) -> None:
            out.fill(("number", a.values(), n))

        def topk(a: Tensor, k: int) -> tuple[Tensor, Tensor]:
            pair = self.tensor((4, k), (k, 1)), self.tensor((4, k), (k, 1))
            for i, t in enumerate(pair):
                t.fill(("topk", i, a.values()))
            return pair

        def nonzero(a: Tensor) -> Tensor:
            out = self.tensor((1 + sum(a.values()) % 4, 2), (2, 1))
            out.fill(("nonzero", a.values()))
            return out

        def add_(a: Tensor, b: Tensor) -> None:
            a.fill(("add", a.values(), b.values()))

        def rand_like(a: Tensor) -> Tensor:
            self.drawn += 1
            out = self.tensor(a.shape, (4, 1))
            out.fill(("rand", self.drawn))
            return out

        def change(a: Tensor) -> None:
            a.fill(("change", a.values(), self.constant.values()))
            self.constant.fill(("changed", self.constant.values()))

        aten = {"topk": topk, "nonzero": nonzero, "add_": add_, "rand_like": rand_like}
        aten["alias"] = lambda a: Tensor(a.storage, a.shape, a.stride, a.offset)
        torch = _tree({"ops": {"aten": {k: {"default": f} for k, f in aten.items()}, "lab": {"change": {"default": change}}}})
        torch.float32 = "float32"
        return {
            "torch": torch,
            "empty_strided_cpu": lambda size, stride, dtype: self.tensor(size, stride),
            "reinterpret_tensor": lambda t, size, stride, offset: Tensor(t.storage, size, stride, t.offset + offset),
            "k_read": read, "k_inplace": inplace, "k_two": two, "k_scatter": scatter, "k_number": number, "k_both": both,
            "constant0": self.constant,
        }  # fmt: skip


def _tree(value: Any) -> Any:
    if not isinstance(value, dict):
        return staticmethod(value)
    return type("_", (), {k: _tree(v) for k, v in value.items()})


def run(
    wrapper: Wrapper,
    donated: set[str],
    seen: Callable[[str, Tensor], None] | None = None,
    called: Callable[[str, int, int], None] | None = None,
) -> tuple[tuple[Any, ...], int]:
    """Results, arguments and the constant as numbers, and the peak in bytes above entry."""
    runtime = Runtime()
    space = runtime.namespace()
    held = []
    for name in wrapper.inputs:
        tensor = runtime.tensor((4, 4), (4, 1), before=True)
        tensor.fill(name)
        space[name] = tensor
        if name not in donated:
            held.append(tensor)
        if seen is not None:
            seen(name, tensor)
        del tensor
    for form in wrapper.forms:
        before, peak, runtime.peak = runtime.now, runtime.peak, runtime.now
        exec(form.text, space)
        if called is not None and form.kind == "operator":
            called(form.text, runtime.peak - before, runtime.now - before)
        runtime.peak = max(peak, runtime.peak)
        for name in form.defines:
            if seen is not None and name in space:
                seen(name, space[name])
    result = eval(wrapper.returns.text.removeprefix("return "), space)
    for name in {n for f in wrapper.forms for n in f.defines} | set(wrapper.inputs):
        space.pop(name, None)
    numbers = tuple((r.shape, r.stride, r.values()) if isinstance(r, Tensor) else r for r in result)
    return (numbers, tuple(t.values() for t in held), runtime.constant.values(), runtime.drawn), runtime.peak


def profile_of(wrapper: Wrapper, donated: set[str]) -> tuple[tuple[Any, ...], Profile]:
    """Run a wrapper and record it, as `record_profile` does with torch."""
    names: dict[str, Layout] = {}
    owner: weakref.WeakKeyDictionary[Storage, str] = weakref.WeakKeyDictionary()
    numbers: dict[str, str] = {}
    symbols: dict[str, int] = {}

    def seen(name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            root = owner.setdefault(value.storage, name)
            size = 4 * len(value.storage.cells)
            names[name] = Layout(size, value.shape, value.stride, value.offset, "torch.float32", root)
        elif isinstance(value, int):
            numbers[name], symbols[name] = repr(value), value

    makers = _makers(wrapper)
    calls: dict[str, tuple[int, int]] = {}
    results, peak = run(wrapper, donated, seen, lambda text, *more: calls.update({text: more}))
    born = dict.fromkeys(calls, 0)
    for name, text in makers.items():
        if text in born and name in names and names[name].storage == name:
            born[text] += names[name].bytes
    profile = Profile(
        digest=wrapper.digest, torch="fake", threads=1, names=names, freed=tuple(sorted(donated)), symbols=symbols,
        workspaces={t: high - born[t] for t, (high, _) in calls.items()},
        residues={t: left - born[t] for t, (_, left) in calls.items() if left > born[t]}, numbers=numbers, operators=EFFECTS, measured_peak=peak,
    )  # fmt: skip
    return results, profile
