"""Arguments of a wrapper: copies for a second run, comparison bit by bit, and which of them the wrapper writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from peakmem_inductor.effects import Effects, accesses_of
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
        if form.kind in ("kernel", "extern", "operator"):
            for expression, access in accesses_of(form, wrapper, effects):
                if access != "r":
                    written.update(base[n] for n in names_in(expression) if n in base)
    return frozenset(written)


def special(value: Any) -> str:
    """What makes a tensor one that cannot be copied and compared bit by bit, or the empty string."""
    import torch

    if not isinstance(value, torch.Tensor):
        return ""
    if type(value) not in (torch.Tensor, torch.nn.Parameter):  # its operations may be the user's code
        return f"a {type(value).__name__}"
    if value.device.type != "cpu":
        return f"on {value.device.type}"
    if value.layout is not torch.strided or value.is_mkldnn:
        return f"of layout {value.layout}".replace("torch.", "")
    kinds = {"quantized": value.is_quantized, "nested": value.is_nested, "a zero without storage": value._is_zerotensor()}
    return next((kind for kind, found in kinds.items() if found), "")


def copies(args: Sequence[Any], keep: Sequence[bool]) -> list[Any]:
    """Copy the tensors among ``args`` but those to keep; tensors that share a storage share its copy, kept or not.

    A copy has strides, offset, conjugate and negative bit of its original; that gradients are wanted is not copied, as
    ``call`` runs without them.
    """
    import torch

    storages: dict[int, Any] = {}
    wanted = {v.untyped_storage()._cdata for v, kept in zip(args, keep) if not kept and isinstance(v, torch.Tensor)}
    result = []
    for value in args:
        if not isinstance(value, torch.Tensor) or value.untyped_storage()._cdata not in wanted:
            result.append(value)
            continue
        storage = value.untyped_storage()
        copy = storages.get(storage._cdata)
        if copy is None:
            block = torch.empty(storage.nbytes(), dtype=torch.uint8, device="cpu")
            copy = block.untyped_storage()
            copy.copy_(storage)
            storages[storage._cdata] = copy
        with torch.no_grad():
            fresh = torch.empty(0, dtype=value.dtype, device="cpu")
            fresh.set_(copy, value.storage_offset(), value.shape, value.stride())
            torch._C._set_conj(fresh, value.is_conj())
            torch._C._set_neg(fresh, value.is_neg())
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
        left = torch.empty(0, dtype=torch.uint8, device="cpu").set_(x)
        right = torch.empty(0, dtype=torch.uint8, device="cpu").set_(y)
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
    if (a.dtype, a.shape, a.stride(), a.is_conj(), a.is_neg()) != (b.dtype, b.shape, b.stride(), b.is_conj(), b.is_neg()):
        return False
    if a.numel() == 0:
        return True
    with torch.no_grad():
        x = a.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        y = b.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        return bool(torch.equal(x, y))


def first_difference(a: Sequence[Any], b: Sequence[Any], what: str) -> str:
    """Name of the first pair that differs (``output 3``), or the empty string."""
    if len(a) != len(b):
        return f"the number of {what}s"
    for i, (x, y) in enumerate(zip(a, b)):
        if not same_bits(x, y):
            return f"{what} {i}"
    return ""
