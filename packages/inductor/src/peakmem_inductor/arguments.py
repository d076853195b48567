"""Arguments of a wrapper: the same ones for several runs, comparison bit by bit, and which of them the wrapper writes."""

from __future__ import annotations

import ctypes
import hashlib
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from peakmem_inductor.devices import CHUNK, fill, parts_of
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
    if value.device.type not in ("cpu", "cuda"):
        return f"on {value.device.type}"
    if value.layout is not torch.strided or value.is_mkldnn:
        return f"of layout {value.layout}".replace("torch.", "")
    kinds = {"quantized": value.is_quantized, "nested": value.is_nested, "a zero without storage": value._is_zerotensor()}
    return next((kind for kind, found in kinds.items() if found), "")


class Again:
    """The arguments of one call, for several runs of it without a second set of them in memory.

    What no run frees or writes is passed to every run as it is. What one frees or writes is set aside in a file without a
    name (in ``TMPDIR``) before the first run, and comes back into memory when the next run begins.

    Parameters
    ----------
    names, args : sequences
        Names and values of the arguments. Storages are watched without keeping them alive, until `set_aside`: holding an
        argument would change who frees it.
    """

    def __init__(self, names: Sequence[str], args: Sequence[Any]) -> None:
        import torch

        self._values: list[Any] = []  # None for a tensor that is made again from its form
        self._forms: list[_TensorForm | None] = []
        self._blocks: dict[int, _Block] = {}
        self._names: dict[str, int] = {}
        for name, value in zip(names, args):
            if not isinstance(value, torch.Tensor):
                self._values.append(value)
                self._forms.append(None)
                continue
            storage = value.untyped_storage()
            self._blocks.setdefault(storage._cdata, _Block(storage))
            self._names[name] = storage._cdata
            self._values.append(None)
            self._forms.append(_TensorForm.of(value))
        self._held: dict[int, Any] = {}
        self._first: list[Any] | None = None
        self._file: Any = None
        self._written: list[str] = []

    def alive(self) -> dict[str, Any]:
        """Storages that somebody still holds, by argument."""
        found = {name: self._blocks[key].alive() for name, key in self._names.items()}
        return {name: storage for name, storage in found.items() if storage is not None}

    @property
    def aside(self) -> bool:
        """Whether what runs may free or write was set aside."""
        return self._file is not None

    def hold(self) -> bool:
        """After a run that wrote no argument: hold all of them for further runs; False, and nothing is held, if that run
        freed one."""
        found = {key: block.alive() for key, block in self._blocks.items()}
        if any(storage is None and self._blocks[key].size for key, storage in found.items()):
            return False
        self._held = found
        return True

    def set_aside(self, args: list[Any], freed: Collection[str], written: Collection[str]) -> None:
        """Before the first run: empty ``args``, hold what no run frees and copy to a file what one frees or writes.

        Raises
        ------
        OSError
            When the file has no room; ``args`` is as it was.

        Notes
        -----
        Linear in the bytes set aside, which are read from where they are.
        """
        import torch

        self._written = [n for n in self._names if n in written]
        going = {self._names[n] for n in freed if n in self._names}
        wanted = going | {self._names[n] for n in self._written}
        file = tempfile.TemporaryFile() if wanted else None  # noqa: SIM115 (closed with the last reference)
        place = 0
        for key in sorted(wanted, key=list(self._blocks).index):
            storage = self._blocks[key].alive()
            assert file is not None and storage is not None
            self._blocks[key].place = place
            for part in parts_of(storage):
                place += file.write(part)
        if file is not None:
            file.flush()
        for i, value in enumerate(args):
            if isinstance(value, torch.Tensor) and value.untyped_storage()._cdata not in going:
                self._values[i] = value
        self._file, self._first = file, list(args)
        args.clear()

    def take(self) -> list[Any]:
        """Arguments for one run, with the contents of the beginning; the first time they are the ones given."""
        if self._first is not None:
            given, self._first = self._first, None
            return given
        written = {self._names[n] for n in self._written}
        present: dict[int, Any] = {}
        for key, block in self._blocks.items():
            storage = block.alive()
            if storage is None or (key in written and block.size):
                storage = self._restored(block, storage)
            present[key] = storage
        return [
            value if value is not None or form is None else form.over(present[form.block])
            for value, form in zip(self._values, self._forms)
        ]

    def _restored(self, block: _Block, storage: Any) -> Any:
        import torch
        from torch.multiprocessing.reductions import StorageWeakRef

        if storage is None:
            storage = torch.empty(block.size, dtype=torch.uint8, device=block.device).untyped_storage()
            block.reference = StorageWeakRef(storage)
        if not block.size:
            return storage
        if block.place is None:
            raise RuntimeError("an argument is gone that no recorded run freed")
        self._file.seek(block.place)
        if fill(storage, self._file) != block.size:
            raise OSError("the file of the arguments set aside is too short")
        return storage

    def seen(self, result: Sequence[Any], names: Collection[str] | None = None) -> dict[str, bytes]:
        """Digests of a run: of every output, and of those arguments among ``names`` (default: those set aside because
        runs may write them) that still exist."""
        alive = self.alive()
        found = {f"output {i}": digest(value) for i, value in enumerate(result)}
        found.update((n, _digest_of_bytes(alive[n])) for n in (self._written if names is None else names) if n in alive)
        return found


@dataclass
class _Block:
    """One storage of the arguments: a weak reference, and where in the file its contents are."""

    reference: Any
    size: int
    place: int | None
    device: Any

    def __init__(self, storage: Any) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        self.reference, self.size, self.place = StorageWeakRef(storage), storage.nbytes(), None
        self.device = storage.device

    def alive(self) -> Any:
        import torch

        return torch.UntypedStorage._new_with_weak_ptr(self.reference.cdata)


@dataclass(frozen=True)
class _TensorForm:
    """What makes a tensor of a storage; that gradients are wanted is left out, as ``call`` runs without them."""

    block: int
    dtype: Any
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    conj: bool
    neg: bool

    @classmethod
    def of(cls, value: Any) -> _TensorForm:
        return cls(
            value.untyped_storage()._cdata, value.dtype, tuple(value.shape), tuple(value.stride()),
            value.storage_offset(), value.is_conj(), value.is_neg(),
        )  # fmt: skip

    def over(self, storage: Any) -> Any:
        import torch

        with torch.no_grad():
            fresh = torch.empty(0, dtype=self.dtype, device=storage.device)
            fresh.set_(storage, self.offset, self.shape, self.stride)
            torch._C._set_conj(fresh, self.conj)
            torch._C._set_neg(fresh, self.neg)
        return fresh


def _digest_of_bytes(storage: Any) -> bytes:
    state = hashlib.blake2b(digest_size=32)
    for part in parts_of(storage):
        state.update(part)
    return state.digest()


def digest(value: Any) -> bytes:
    """Digest of a result: type, shape, stride and every bit; elements that nobody can see do not count.

    A tensor whose elements lie without gaps is read where it is; of others a part of at most a megabyte is copied at a time.
    """
    import torch

    if not isinstance(value, torch.Tensor):
        return repr((type(value), value)).encode()
    head = (str(value.dtype), tuple(value.shape), value.stride(), value.is_conj(), value.is_neg())
    state = hashlib.blake2b(repr(head).encode(), digest_size=32)
    with torch.no_grad():
        plain = value.detach()
        torch._C._set_conj(plain, False)  # the bits as they are stored; the marks are in the head
        torch._C._set_neg(plain, False)
        order = sorted(range(plain.dim()), key=lambda d: -plain.stride(d))
        _absorb(state, plain.permute(order))
    return state.digest()


def _absorb(state: Any, tensor: Any) -> None:
    import torch

    size = tensor.numel() * tensor.element_size()
    if not size:
        return
    if tensor.is_contiguous() or size <= 1 << 20 or not tensor.dim():
        tensor = tensor.contiguous()
        if tensor.device.type == "cpu":
            state.update((ctypes.c_ubyte * size).from_address(tensor.data_ptr()))
            return
        flat = tensor.view(-1).view(torch.uint8)
        for start in range(0, size, CHUNK):
            state.update(flat[start : start + CHUNK].cpu().numpy())
        return
    for part in tensor:
        _absorb(state, part)


def difference(a: Mapping[str, bytes], b: Mapping[str, bytes]) -> str:
    """Name of the first output or argument that two runs do not share or whose bits differ, or the empty string.

    An argument that only one of the runs left alive is not compared.
    """
    for what in {**a, **b}:
        if a.get(what) != b.get(what) and (what.startswith("output ") or (what in a and what in b)):
            return what
    return ""
