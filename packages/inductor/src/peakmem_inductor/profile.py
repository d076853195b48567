"""What one run of a wrapper recorded: bytes, layouts, workspaces, who owns the arguments.

The document ``peakmem.inductor.profile/1`` stands beside a dumped wrapper (``wrapper.peakmem.json``), so that the
wrapper can be studied on another machine, without torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peakmem.model import InputError

from peakmem_inductor.effects import Effects

SCHEMA = "peakmem.inductor.profile/1"


@dataclass(frozen=True)
class Layout:
    """A tensor as it was when its name was bound.

    Attributes
    ----------
    bytes : int
        Of its whole storage.
    shape, stride : tuple of int
        In elements.
    offset : int
        Storage offset in elements.
    dtype : str
        ``torch.float32``.
    storage : str
        First name bound to the same storage, itself if it is the first.
    device : str
        Where it lies, if that is not the device whose bytes are counted; it counts nothing then.
    """

    bytes: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: str
    storage: str
    device: str = ""

    @property
    def itemsize(self) -> int:
        return itemsize(self.dtype)

    @property
    def own_bytes(self) -> int:
        """Bytes that a fresh allocation of this shape and stride counts."""
        return 0 if self.device else self.own_span

    @property
    def own_span(self) -> int:
        """Bytes of a fresh allocation of this shape and stride, wherever it is."""
        if 0 in self.shape:
            return 0
        return (1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride))) * self.itemsize

    def to_json(self) -> dict[str, Any]:
        return {
            "bytes": self.bytes,
            "shape": list(self.shape),
            "stride": list(self.stride),
            "offset": self.offset,
            "dtype": self.dtype,
            "storage": self.storage,
            **({"device": self.device} if self.device else {}),
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Layout:
        return cls(
            _natural(row["bytes"]),
            tuple(map(_natural, row["shape"])),
            tuple(map(int, row["stride"])),
            _natural(row["offset"]),
            str(row["dtype"]),
            str(row["storage"]),
            str(row.get("device", "")),
        )


@dataclass(frozen=True)
class Profile:
    """One recorded run; all bytes are what the allocator of one device was asked for.

    Attributes
    ----------
    digest : str
        Of the wrapper's source at the time of recording.
    torch : str
        Version, empty for a profile derived from the text.
    threads : int
        Threads of the run; workspaces depend on it.
    names : mapping of str to Layout
        Every local tensor name, inputs included. A name that is missing was no tensor.
    freed : tuple of str
        Inputs whose storage was released by the wrapper, by the name of the storage.
    symbols : mapping of str to int
        Symbolic sizes.
    workspaces : mapping of str to int
        Statement text -> bytes used inside it beyond what was resident before it and what it returned.
    residues : mapping of str to int
        Statement text -> bytes that its result held beyond the elements that were given names.
    requests : mapping of str to tuple of (str, int)
        Statement text -> what its call asked a CUDA device's allocator for, in order, in bytes that are negative when they go; results
        by name, all else as ``+0``, ``+1``. Of calls with several requests, where they are known.
    operators : mapping of str to Effects
    measured_peak : int or None
        Bytes above entry, as measured for the wrapper as it is.
    numbers : mapping of str to str
        Arguments and results that are no tensors, by ``repr``.
    constants : mapping of str to Layout or None
        Tensors of the module that ``call`` uses (frozen weights); None for one of an opaque format.
    notes : tuple of str
    device : str
        Whose bytes are counted: ``cpu`` or ``cuda:0``.
    """

    digest: str
    torch: str
    threads: int
    names: Mapping[str, Layout]
    freed: tuple[str, ...]
    symbols: Mapping[str, int] = field(default_factory=dict)
    workspaces: Mapping[str, int] = field(default_factory=dict)
    residues: Mapping[str, int] = field(default_factory=dict)
    requests: Mapping[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)
    operators: Mapping[str, Effects] = field(default_factory=dict)
    measured_peak: int | None = None
    numbers: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Layout | None] = field(default_factory=dict)
    opaque: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    device: str = "cpu"

    @property
    def recorded(self) -> bool:
        """False when it was only derived from the text of the wrapper."""
        return bool(self.torch)

    def allocator_of(self, layout: Layout) -> str | None:
        """Inductor's function for buffers where a tensor lies; None if that is neither the CPU nor the counted device."""
        device = layout.device or self.device
        if device == "cpu":
            return "empty_strided_cpu"
        return "empty_strided_cuda" if device == self.device and device.startswith("cuda") else None

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "wrapper": self.digest,
            "torch": self.torch,
            "threads": self.threads,
            "names": {name: x.to_json() for name, x in self.names.items()},
            "freed": list(self.freed),
            "symbols": dict(self.symbols),
            "workspaces": dict(self.workspaces),
            "residues": dict(self.residues),
            "operators": {k: v.to_json() for k, v in self.operators.items()},
            "measured_peak": self.measured_peak,
            "numbers": dict(self.numbers),
            "constants": {name: x.to_json() if x else None for name, x in self.constants.items()},
            "opaque": {name: list(shape) for name, shape in self.opaque.items()},
            "notes": list(self.notes),
            **({"device": self.device} if self.device != "cpu" else {}),
            **({"requests": {text: [list(row) for row in rows] for text, rows in self.requests.items()}} if self.requests else {}),
        }

    def to_bytes(self) -> bytes:
        """The file's bytes, the same for the same profile."""
        return json.dumps(self.to_json(), sort_keys=True, indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, document: object, *, where: str = "profile") -> Profile:
        """Read a profile; `InputError` names what is wrong."""
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise InputError(f"{where}: is not a document of schema {SCHEMA!r}; dump the wrapper again")
        try:
            names = {str(name): Layout.from_json(x) for name, x in document["names"].items()}
            constants = document.get("constants", {}).items()
            measured = document.get("measured_peak")
            return cls(
                digest=str(document["wrapper"]),
                torch=str(document["torch"]),
                threads=int(document["threads"]),
                names=names,
                freed=tuple(map(str, document["freed"])),
                symbols={str(k): int(v) for k, v in document["symbols"].items()},
                workspaces={str(k): _natural(v) for k, v in document["workspaces"].items()},
                residues={str(k): _natural(v) for k, v in document.get("residues", {}).items()},
                requests={str(k): _requests(v) for k, v in document.get("requests", {}).items()},
                operators={str(k): Effects.from_json(v) for k, v in document["operators"].items()},
                measured_peak=None if measured is None else int(measured),
                numbers={str(k): str(v) for k, v in document.get("numbers", {}).items()},
                constants={str(k): None if x is None else Layout.from_json(x) for k, x in constants},
                opaque={str(k): tuple(map(_natural, v)) for k, v in document.get("opaque", {}).items()},
                notes=tuple(map(str, document.get("notes", ()))),
                device=str(document.get("device", "cpu")),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{where}: the profile is damaged ({type(error).__name__}: {error}); dump the wrapper again"
            ) from None


def profile_path(wrapper: Path) -> Path:
    """Where the profile of a dumped wrapper stands: ``wrapper.peakmem.json`` beside ``wrapper.py``."""
    return wrapper.with_name(wrapper.name.removesuffix(".py") + ".peakmem.json")


def read_profile(path: Path) -> Profile:
    """Read a profile from a file; `InputError` names file and remedy."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise InputError(f"{path}: is not JSON ({error}); dump the wrapper again") from None
    return Profile.from_json(document, where=str(path))


_SIZES = {
    "float64": 8,
    "int64": 8,
    "uint64": 8,
    "complex64": 8,
    "complex128": 16,
    "complex32": 4,
    "float32": 4,
    "int32": 4,
    "uint32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int16": 2,
    "uint16": 2,
}


def itemsize(dtype: str) -> int:
    """Bytes of one element; everything not listed (bool, int8, float8) has one."""
    return _SIZES.get(dtype.removeprefix("torch."), 1)


def _requests(rows: object) -> tuple[tuple[str, int], ...]:
    """What a call asks for: each name comes once, and goes at most once, with the same bytes."""
    if not isinstance(rows, list):
        raise ValueError(f"{rows!r} is no list of requests")
    found = [(str(name), change) for name, change in rows]
    live: dict[str, int] = {}
    for name, change in found:
        if name not in live:
            live[name] = _natural(change)
        elif live[name] and change == -live[name]:
            live[name] = 0
        else:
            raise ValueError(f"{change!r} is no request of {name}")
    return tuple(found)


def _natural(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is not a size")
    return value
