"""Arguments of a wrapper: copies for a second run, comparison bit by bit, and which of them the wrapper writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from peakmem_inductor.effects import EXTERN, Effects
from peakmem_inductor.forms import Wrapper, names_in


def written_inputs(wrapper: Wrapper, effects: Callable[[str], Effects]) -> frozenset[str]:
    """Inputs that some statement may write, directly, through a view or after taking over their storage."""
    base = {name: name for name in wrapper.inputs}
    written: set[str] = set()
    for form in wrapper.forms:
        if form.kind in ("view", "rename") and form.target in base:
            base[form.defines[0]] = base[form.target]
            continue
        if form.kind == "block":
            written.update(base[n] for n in form.uses if n in base)
            continue
        if form.kind not in ("kernel", "extern", "operator"):
            continue
        known = EXTERN if form.kind == "extern" else effects(form.target) if form.kind == "operator" else None
        for key, expression in form.arguments:
            if known is None:
                accesses = wrapper.kernels[form.target]
                access = accesses[int(key)] if key.isdigit() and int(key) < len(accesses) else "r"
                access = access or "r"
            else:
                access = known.accesses.get(key, "r") if known.known else "rw"
            if access != "r":
                written.update(base[n] for n in names_in(expression) if n in base)
    return frozenset(written)


def copies(args: Sequence[Any], keep: Sequence[bool]) -> list[Any]:
    """Copy the tensors among ``args`` but those to keep; tensors that share a storage share its copy."""
    import torch

    storages: dict[int, Any] = {}
    result = []
    for value, kept in zip(args, keep):
        if kept or not isinstance(value, torch.Tensor):
            result.append(value)
            continue
        storage = value.untyped_storage()
        copy = storages.get(storage._cdata)
        if copy is None:
            block = torch.empty(storage.nbytes(), dtype=torch.uint8)
            copy = block.untyped_storage()
            copy.copy_(storage)
            storages[storage._cdata] = copy
        with torch.no_grad():
            fresh = torch.empty(0, dtype=value.dtype)
            fresh.set_(copy, value.storage_offset(), value.shape, value.stride())
        result.append(fresh)
    return result


class Watch:
    """Argument storages, watched without keeping them alive: holding an argument would change who frees it.

    Parameters
    ----------
    names, args : sequences
        Names and values of the arguments.
    """

    def __init__(self, names: Sequence[str], args: Sequence[Any]) -> None:
        import torch
        from torch.multiprocessing.reductions import StorageWeakRef

        self._references = {
            name: StorageWeakRef(value.untyped_storage())
            for name, value in zip(names, args)
            if isinstance(value, torch.Tensor)
        }

    def alive(self) -> dict[str, Any]:
        """Storages that somebody still holds, by argument."""
        import torch

        found = {name: torch.UntypedStorage._new_with_weak_ptr(r.cdata) for name, r in self._references.items()}
        return {name: storage for name, storage in found.items() if storage is not None}


def differing_storage(a: dict[str, Any], b: dict[str, Any]) -> str:
    """Name of the first storage present in both whose bytes differ, or the empty string."""
    import torch

    for name, x in a.items():
        y = b.get(name)
        if y is None or x._cdata == y._cdata:
            continue
        if x.nbytes() != y.nbytes():
            return name
        left = torch.empty(0, dtype=torch.uint8).set_(x)
        right = torch.empty(0, dtype=torch.uint8).set_(y)
        if not torch.equal(left, right):
            return name
    return ""


def same_bits(a: Any, b: Any) -> bool:
    """Whether two results agree in type, shape, stride and every bit; tensors with NaN compare like others."""
    import torch

    if isinstance(a, torch.Tensor) != isinstance(b, torch.Tensor):
        return False
    if not isinstance(a, torch.Tensor):
        return type(a) is type(b) and repr(a) == repr(b)
    if a.dtype != b.dtype or a.shape != b.shape or a.stride() != b.stride():
        return False
    if a.numel() == 0:
        return True
    with torch.no_grad():
        x = a.detach().contiguous().reshape(-1).view(torch.uint8)
        y = b.detach().contiguous().reshape(-1).view(torch.uint8)
        return bool(torch.equal(x, y))


def first_difference(a: Sequence[Any], b: Sequence[Any], what: str) -> str:
    """Name of the first pair that differs (``output 3``), or the empty string."""
    if len(a) != len(b):
        return f"the number of {what}s"
    for i, (x, y) in enumerate(zip(a, b)):
        if not same_bits(x, y):
            return f"{what} {i}"
    return ""
