"""ONNX Runtime through its C interface, as C and C++ programs use it, driven from the child process.

The wheel brings the shared library of that interface beside the Python module. Functions of the interface stand in a table that
only ever grows, so a function is named by its place in it; see ``onnxruntime_c_api.h``.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PLACES = {
    "GetErrorMessage": 2, "CreateEnv": 3, "CreateSession": 7, "CreateSessionFromArray": 8, "Run": 9, "CreateSessionOptions": 10,
    "SetSessionExecutionMode": 13, "EnableProfiling": 14, "EnableMemPattern": 16, "DisableMemPattern": 17,
    "EnableCpuMemArena": 18, "DisableCpuMemArena": 19, "SetSessionLogSeverityLevel": 22, "SetSessionGraphOptimizationLevel": 23,
    "SetIntraOpNumThreads": 24, "SetInterOpNumThreads": 25, "SessionGetOutputCount": 31, "SessionGetOutputName": 37,
    "CreateTensorWithDataAsOrtValue": 49, "GetTensorMutableData": 51, "GetTensorElementType": 60, "GetDimensionsCount": 61,
    "GetDimensions": 62, "GetTensorTypeAndShape": 65, "CreateCpuMemoryInfo": 69, "AllocatorFree": 76,
    "GetAllocatorWithDefaultOptions": 78, "ReleaseStatus": 93, "ReleaseSession": 95, "ReleaseValue": 96,
    "ReleaseTensorTypeAndShapeInfo": 99, "SessionEndProfiling": 110, "AddSessionConfigEntry": 130,
    "CreateAndRegisterAllocator": 144, "CreateArenaCfgV2": 164, "RegisterAllocator": 176,
}  # fmt: skip
"""Of the functions used here, in the table of the interface."""

VERSION = 15
"""Of the interface: the first with all of them is older."""

LEVELS = {"none": 0, "basic": 1, "extended": 2, "all": 99}
_ELEMENTS = {
    "float32": 1, "uint8": 2, "int8": 3, "uint16": 4, "int16": 5, "int32": 6, "int64": 7, "bool": 9, "float16": 10,
    "float64": 11, "uint32": 12, "uint64": 13, "complex64": 14, "complex128": 15,
}  # fmt: skip
_BITS = {16: "uint16", 17: "uint8", 18: "uint8", 19: "uint8", 20: "uint8"}
"""Types that numpy has not by itself (bfloat16, those of eight bits), and what is read instead."""

_WIDTHS = {16: 16, 17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4}
"""Bits of an element of these types, and of those of four bits."""

_OUTPUT = ctypes.c_size_t(-1).value


def library_of_the_wheel() -> Path | None:
    """The shared library of the C interface; None in a wheel without one. Nothing is imported."""
    from importlib.util import find_spec

    found = find_spec("onnxruntime")
    folders = list(found.submodule_search_locations or ()) if found is not None else []
    files = [file for folder in folders for file in Path(folder, "capi").glob("libonnxruntime.so*")]
    return min(files, default=None)


class Interface:
    """The table of functions, and the environment of this process; what is ``verbose`` logs what arenas take."""

    def __init__(self, *, verbose: bool = False) -> None:
        path = library_of_the_wheel()
        if path is None:
            raise RuntimeError("this package of ONNX Runtime has no shared library with the C interface")

        class Base(ctypes.Structure):
            _fields_ = [("get", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)), ("version", ctypes.c_void_p)]

        library = ctypes.CDLL(str(path))
        library.OrtGetApiBase.restype = ctypes.POINTER(Base)
        table = library.OrtGetApiBase().contents.get(VERSION)
        if not table:
            raise RuntimeError(f"the C interface of ONNX Runtime has no version {VERSION} any more")
        self.table = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))
        self.environment = self.made("CreateEnv", 1 if verbose else 3, b"peakmem")
        self.memory = self.made("CreateCpuMemoryInfo", 0, 0)

    def function(self, name: str, kinds: Sequence[Any], result: Any = ctypes.c_void_p) -> Any:
        return ctypes.CFUNCTYPE(result, *kinds)(self.table[PLACES[name]] or 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Call; whole numbers as int, pointers as the objects of ctypes. An error of the runtime becomes one of Python."""
        kinds = [ctypes.c_int if isinstance(a, int) else ctypes.c_char_p if isinstance(a, bytes) else ctypes.c_void_p for a in arguments]
        status = self.function(name, kinds)(*(ctypes.addressof(a) if isinstance(a, ctypes.Array) else a for a in arguments))
        if status:
            told = self.function("GetErrorMessage", [ctypes.c_void_p], ctypes.c_char_p)(status)
            self.release("ReleaseStatus", ctypes.c_void_p(status))
            raise RuntimeError(told.decode(errors="replace"))

    def made(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        """What a function makes: its last argument is where to."""
        result = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(result))
        return result

    def release(self, name: str, thing: ctypes.c_void_p) -> None:
        self.function(name, [ctypes.c_void_p], None)(thing)


class Value:
    """An output as ONNX Runtime holds it; given back when this object goes."""

    def __init__(self, interface: Interface, pointer: ctypes.c_void_p) -> None:
        self._interface, self._pointer = interface, pointer

    def numpy(self) -> Any:
        """A copy."""
        import numpy as np

        call = self._interface.call
        kind, rank = ctypes.c_int(), ctypes.c_size_t()
        info = self._interface.made("GetTensorTypeAndShape", self._pointer)
        call("GetTensorElementType", info, ctypes.byref(kind))
        call("GetDimensionsCount", info, ctypes.byref(rank))
        shape = (ctypes.c_int64 * max(1, rank.value))()
        self._interface.function("GetDimensions", [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t])(info, shape, rank.value)
        self._interface.release("ReleaseTensorTypeAndShapeInfo", info)
        names = {**{number: name for name, number in _ELEMENTS.items()}, **_BITS}
        if kind.value not in names:
            raise RuntimeError(f"outputs of element type {kind.value} are not read through the C interface")
        data = self._interface.made("GetTensorMutableData", self._pointer)
        array = np.empty(tuple(shape[: rank.value]), names[kind.value])
        if array.nbytes:
            ctypes.memmove(array.ctypes.data, data, array.nbytes)
        return array

    def __del__(self) -> None:
        self._interface.release("ReleaseValue", self._pointer)


class Run:
    """A run of a session with certain inputs, of which nothing is left to do but to run, as in a program in C; call it."""

    def __init__(self, session: Session, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> None:
        import numpy as np

        self._interface = api = session.interface
        self._session = session.session
        self._arrays: list[Any] = []
        self._inputs = (ctypes.c_void_p * max(1, len(feeds)))()
        self._given = len(feeds)
        size, pointer = ctypes.c_size_t, ctypes.c_void_p
        create = api.function("CreateTensorWithDataAsOrtValue", [pointer, pointer, size, pointer, size, ctypes.c_int, pointer])
        for index, (name, fed) in enumerate(feeds.items()):
            if isinstance(fed, np.ndarray):
                array = np.ascontiguousarray(fed)
                if str(array.dtype) not in _ELEMENTS:
                    raise RuntimeError(f"input {name!r} is of a type that is not fed through the C interface")
                data, bytes_, dims, kind = array.ctypes.data, array.nbytes, fed.shape, _ELEMENTS[str(array.dtype)]
            else:  # a value of Python's interface
                array, data, dims, kind = fed, fed.data_ptr(), fed.shape(), fed.element_type()
                bytes_ = -(-math.prod(dims) * _WIDTHS[kind] // 8)
            shape = (ctypes.c_int64 * max(1, len(dims)))(*dims)
            self._arrays.append((array, shape))
            value = pointer()
            create(api.memory, data, bytes_, shape, len(dims), kind, ctypes.byref(value))
            self._inputs[index] = value.value
        wanted = list(names) if names is not None else session.outputs()
        self._wanted = len(wanted)
        self._given_names = (ctypes.c_char_p * max(1, len(feeds)))(*(name.encode() for name in feeds))
        self._wanted_names = (ctypes.c_char_p * max(1, len(wanted)))(*(name.encode() for name in wanted))
        self._run = api.function("Run", [pointer, pointer, pointer, pointer, size, pointer, size, pointer])

    def __call__(self) -> list[Value]:
        api, outputs = self._interface, (ctypes.c_void_p * max(1, self._wanted))()
        names = self._given_names, self._wanted_names
        if status := self._run(self._session, None, names[0], self._inputs, self._given, names[1], self._wanted, outputs):
            told = api.function("GetErrorMessage", [ctypes.c_void_p], ctypes.c_char_p)(status).decode(errors="replace")
            raise RuntimeError(told)
        return [Value(api, ctypes.c_void_p(value)) for value in outputs[: self._wanted]]

    def __del__(self) -> None:
        for value in self._inputs[: self._given]:
            self._interface.release("ReleaseValue", ctypes.c_void_p(value))


class Session:
    """A session as a C program opens it, with what `peakmem_onnx.child` wants of one.

    Parameters
    ----------
    job : dict
        As for `peakmem_onnx.child.options_for`; the order is always the default one, and memory reuse is on. ``replay`` has the
        plan (sizes, offsets, bytes) and the shared library of ``replay.c``, ``chunk`` the bytes of a planned arena.
    interface : Interface, optional
        Opened before, so that its own memory is not counted.
    """

    def __init__(self, job: Mapping[str, Any], interface: Interface | None = None) -> None:
        self.interface = api = interface or Interface()
        options = api.made("CreateSessionOptions")
        api.call("SetSessionLogSeverityLevel", options, 3)
        api.call("SetSessionGraphOptimizationLevel", options, LEVELS[job["level"]])
        api.call("SetSessionExecutionMode", options, 0)
        api.call("SetIntraOpNumThreads", options, job.get("threads", 1))
        api.call("SetInterOpNumThreads", options, 1)
        api.call("EnableMemPattern" if job.get("pattern") else "DisableMemPattern", options)
        api.call("EnableCpuMemArena" if job.get("arena") or job.get("chunk") else "DisableCpuMemArena", options)
        entries = dict(job.get("config", {}))
        if job.get("external"):
            entries["session.model_external_initializers_file_folder_path"] = job["external"]
        self.allocator: Any = None
        if job.get("replay"):
            self._register(job["replay"])
            entries["session.use_env_allocators"] = "1"
        elif job.get("chunk"):
            keys = (ctypes.c_char_p * 2)(b"initial_chunk_size_bytes", b"max_dead_bytes_per_chunk")
            numbers = (ctypes.c_size_t * 2)(job["chunk"], 1)
            settings = ctypes.c_void_p()
            api.call("CreateArenaCfgV2", keys, numbers, 2, ctypes.byref(settings))
            memory = api.made("CreateCpuMemoryInfo", 1, 0)
            api.call("CreateAndRegisterAllocator", api.environment, memory, settings)
            entries["session.use_env_allocators"] = "1"
        for name, text in entries.items():
            api.call("AddSessionConfigEntry", options, name.encode(), text.encode())
        if job.get("profile"):
            api.call("EnableProfiling", options, job["profile"].encode())
        self.session = api.made("CreateSession", api.environment, job["model"].encode(), options)
        self.arm()

    def _register(self, replay: Mapping[str, Any]) -> None:
        library = ctypes.CDLL(replay["library"])
        library.measured_new.restype = ctypes.c_void_p
        library.measured_record.restype = ctypes.c_size_t
        count, shapes = len(replay["sizes"]), len(replay["ends"])
        sizes = (ctypes.c_size_t * max(1, count))(*replay["sizes"])
        offsets = (ctypes.c_size_t * max(1, count))(*(_OUTPUT if at is None else at for at in replay["offsets"]))
        ends = (ctypes.c_size_t * shapes)(*replay["ends"])
        bytes_ = ctypes.c_size_t(replay["bytes"])
        made = library.measured_new(self.interface.memory, ctypes.c_size_t(shapes), ends, sizes, offsets, bytes_)
        self.allocator = (library, ctypes.c_void_p(made))
        self.interface.call("RegisterAllocator", self.interface.environment, self.allocator[1])

    def arm(self) -> None:
        """From here on requests get their places, and are counted from zero."""
        if self.allocator is not None:
            library, made = self.allocator
            library.measured_arm(made, 1)

    def counts(self) -> dict[str, int]:
        """What the allocator of the plan has counted since `arm`."""
        library, made = self.allocator
        out = (ctypes.c_size_t * 6)()
        library.measured_counts(made, out)
        return dict(zip(("hits", "outputs", "misses", "missed_bytes", "touched", "holding"), map(int, out), strict=True))

    def recorded(self, feeds: Mapping[str, Any], room: int) -> list[int]:
        """Requests and releases of one run: sizes, and -1 - the number of what is given back; outputs stay.

        It is the second run that is recorded: the first one may make room that threads keep.
        """
        library, made = self.allocator
        self.run(None, feeds)
        trace, blocks = (ctypes.c_int64 * room)(), (ctypes.c_void_p * room)()
        library.measured_record(made, trace, blocks, ctypes.c_size_t(room))
        values = self.run(None, feeds)
        length = library.measured_record(made, None, None, ctypes.c_size_t(0))
        del values
        if length > room:
            raise RuntimeError("the run asks for more than can be recorded")
        return list(trace[:length])

    def outputs(self) -> list[str]:
        """Their names."""
        api = self.interface
        count = ctypes.c_size_t()
        api.call("SessionGetOutputCount", self.session, ctypes.byref(count))
        allocator = api.made("GetAllocatorWithDefaultOptions")
        names = []
        for index in range(count.value):
            text = ctypes.c_void_p()
            kinds = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p]
            api.function("SessionGetOutputName", kinds)(self.session, index, allocator, ctypes.byref(text))
            names.append(ctypes.string_at(text.value or 0).decode())
            api.call("AllocatorFree", allocator, text)
        return names

    def run(self, names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Value]:
        """One run."""
        return Run(self, names, feeds)()

    def end_profiling(self) -> str:
        """The name of the profile."""
        api = self.interface
        allocator, text = api.made("GetAllocatorWithDefaultOptions"), ctypes.c_void_p()
        api.call("SessionEndProfiling", self.session, allocator, ctypes.byref(text))
        name = ctypes.string_at(text.value or 0).decode()
        api.call("AllocatorFree", allocator, text)
        return name
