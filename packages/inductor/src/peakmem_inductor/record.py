"""Running wrappers under the counting allocator: recording a profile, and measuring without one."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from peakmem.model import PeakmemError

from peakmem_inductor.allocator import POISON
from peakmem_inductor.devices import Counting, counted_device, counting_on
from peakmem_inductor.effects import Effects, operator_effects
from peakmem_inductor.forms import Form, Wrapper
from peakmem_inductor.profile import Layout, Profile
from peakmem_inductor.simulation import merged_blocks

Call = Callable[[list[Any]], Any]
_PM = "_peakmem_recorder"
_RESULT = "_peakmem_result"
OPAQUE = "?"
"""Storage of what cannot be looked into, or of what was there before the call and is no argument."""


class NotRecorded(PeakmemError):
    """Recording could not begin; nothing has run."""


class RecordingFailed(PeakmemError):
    """Recording failed, not the program; ``result`` is what the program returned."""

    def __init__(self, reason: str, result: Any) -> None:
        super().__init__(reason)
        self.result = result


def layout_of(value: Any, storage: str, device: str = "cpu") -> Layout:
    """Layout of a plain tensor, which counts nothing if it is not on ``device``."""
    elsewhere = str(value.device) if str(value.device) != device else ""
    return Layout(
        0 if elsewhere else value.untyped_storage().nbytes(),
        tuple(map(int, value.shape)),
        tuple(map(int, value.stride())),
        int(value.storage_offset()),
        str(value.dtype),
        storage,
        elsewhere,
    )


@dataclass
class Recorder:
    """What an instrumented ``call`` reports to: its statements, names and arguments."""

    wrapper: Wrapper
    device: str = "cpu"
    poison: bool = False
    counter: Counting | None = None
    names: dict[str, Layout] = field(default_factory=dict)
    numbers: dict[str, str] = field(default_factory=dict)
    symbols: dict[str, int] = field(default_factory=dict)
    released: set[str] = field(default_factory=set)
    workspaces: dict[str, int] = field(default_factory=dict)
    residues: dict[str, int] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    opaque: dict[str, tuple[int, ...]] = field(default_factory=dict)
    requests: dict[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._weak: dict[str, tuple[Any, int]] = {}
        self._owner: dict[int, str] = {}
        self._shells: dict[int, Any] = {}  # keep the address of a storage from being used again
        self._unclaimed: set[int] = set()
        self._now = 0
        self._calls: dict[str, tuple[int, int, int]] = {}  # text -> bytes before, at its peak, after it
        self._born: dict[str, int] = {}
        self._marks = 0
        self._interval: dict[str, int] = {}  # text -> which of the counter's intervals is its call
        self._places: dict[str, dict[int, str]] = {}  # text -> address -> the fresh result that lies there
        self._running = False

    def enter(self, args: Sequence[Any]) -> None:
        """Before anything runs: who the arguments are."""
        import torch
        from torch.multiprocessing.reductions import StorageWeakRef

        for name, value in zip(self.wrapper.inputs, args):
            if not isinstance(value, torch.Tensor):
                self.numbers[name] = repr(value)
                continue
            storage = value.untyped_storage()
            self._bind(name, value, storage)
            root = self.names[name].storage
            if root == name:
                self._weak[name] = (StorageWeakRef(storage), storage.nbytes())

    def _bind(self, name: str, value: Any, storage: Any) -> bool:
        """Record a tensor; True if its storage is new: allocated since the last name was bound, or an argument's."""
        pointer, size = self._key(storage), storage.nbytes()
        new = pointer in self._unclaimed if self._running and self.device == "cpu" else pointer not in self._owner
        fresh = size == 0 or new
        root = name if fresh else self._owner.get(pointer, OPAQUE)
        if fresh and size:
            self._unclaimed.discard(pointer)
            self._owner[pointer] = name
        self.names[name] = layout_of(value, root, self.device)
        return fresh

    def _key(self, storage: Any) -> int:
        """What tells storages apart: on the CPU their addresses, of which the counter says when they are new; elsewhere the
        objects, whose shells are kept."""
        if self.device == "cpu":
            return int(storage.data_ptr())
        from torch.multiprocessing.reductions import StorageWeakRef

        key = int(storage._cdata)
        if key not in self._shells:
            self._shells[key] = StorageWeakRef(storage)
        return key

    def allocated(self, value: Any) -> None:
        """A fresh buffer, before anything is in it; the counter of the CPU has filled it already."""
        if self.poison and self.device != "cpu" and value.numel():
            value.untyped_storage().fill_(POISON)

    def start(self, counter: Counting) -> None:
        self.counter = counter
        self._running = True
        counter.mark()
        self._marks = 1

    def mark(self, text: str | None = None, gone: Sequence[str] | None = ()) -> None:
        """After a statement: ``text`` names a call whose workspace is wanted; ``gone`` are the names it deleted (None:
        perhaps any)."""
        assert self.counter is not None
        outside = 0
        for name in self._perhaps_released(gone):
            reference, size = self._weak[name]
            if reference.expired():
                outside += size
                self.released.add(name)
                del self._weak[name]
        before = self._now
        high, self._now, events = self.counter.mark(outside)
        self._marks += 1
        for pointer, size in events:
            if size >= 0:
                self._unclaimed.add(pointer)
            else:
                self._unclaimed.discard(pointer)
        if text is not None:
            self._calls[text] = (before, high, self._now)
            self._born[text] = 0
            self._interval[text] = self._marks - 1
            self._places[text] = {}
            self.workspaces[text] = max(self.workspaces.get(text, 0), high - before, 0)
            self.residues[text] = max(0, self._now - before)

    def _perhaps_released(self, gone: Sequence[str] | None) -> list[str]:
        """Arguments whose storage may have gone with some names; looking at all each time would be quadratic."""
        roots = None if gone is None else {self.names[n].storage if n in self.names else OPAQUE for n in gone}
        if roots is None or OPAQUE in roots:
            return list(self._weak)
        return [r for r in roots if r in self._weak]

    def seen(self, name: str, value: Any, text: str | None = None) -> None:
        """A name was bound; ``text`` names the call that made it."""
        import torch

        if isinstance(value, bool | int | float):
            self.numbers[name] = repr(value)
            if isinstance(value, int) and not isinstance(value, bool):
                self.symbols[name] = value
            return
        if not isinstance(value, torch.Tensor):
            if value is not None and not isinstance(value, tuple | list):
                self.others.add(name)
            return
        if value.layout is not torch.strided or value.is_mkldnn:
            self.others.add(name)
            self.names[name] = Layout(0, (), (), 0, str(value.dtype), OPAQUE)
            self.opaque[name] = tuple(map(int, value.shape))
            return
        storage = value.untyped_storage()
        fresh = self._bind(name, value, storage)
        if text in self._calls and fresh:
            self._born[text] += self.names[name].bytes
            if self.names[name].bytes:
                self._places[text][int(storage.data_ptr())] = name
            before, high, after = self._calls[text]
            self.workspaces[text] = max(0, high - before - self._born[text])
            self.residues[text] = max(0, after - before - self._born[text])

    def leave(self) -> None:
        """After everything but the results was deleted."""
        self.mark(gone=None)
        assert self.counter is not None
        intervals = self.counter.intervals()
        for text, number in self._interval.items() if intervals else ():
            rows = named_requests(intervals[number], self._places[text])
            if rows is not None and len(rows) > 1:
                self.requests[text] = rows


def named_requests(events: Sequence[tuple[int, int]], places: Mapping[int, str]) -> tuple[tuple[str, int], ...] | None:
    """The requests of one call by name: those left at an address of ``places`` are that result, the others are ``+0``, ``+1``.

    None if something went that had been there before, or a result did not come: then the call is not what it seems.

    >>> named_requests([(16, 100), (32, 8), (32, -8), (32, 40)], {16: "buf1", 32: "buf2"})
    (('buf1', 100), ('+0', 8), ('+0', -8), ('buf2', 40))
    """
    live: dict[int, int] = {}
    gone: dict[int, int] = {}
    for i, (address, size) in enumerate(events):
        if size >= 0:
            live[address] = i
        elif address in live:
            gone[i] = live.pop(address)
        else:
            return None
    if not places.keys() <= live.keys():
        return None
    named = {live[address]: name for address, name in places.items()}
    names: dict[int, str] = {}
    others = 0
    rows = []
    for i, (_, size) in enumerate(events):
        if i in gone:
            rows.append((names[gone[i]], size))
            continue
        names[i] = named.get(i) or f"+{others}"
        others += i not in named
        rows.append((names[i], size))
    return tuple(rows)


class Guarded:
    """Passes reports on to a recorder; a fault of ours ends the recording, never the program that is recorded."""

    def __init__(self, recorder: Recorder) -> None:
        self.failure = ""
        self._recorder = recorder

    def _report(self, method: Callable[..., None], *arguments: Any) -> None:
        if not self.failure:
            try:
                method(*arguments)
            except Exception as error:
                self.failure = f"recording failed ({type(error).__name__}: {error})"

    def mark(self, text: str | None = None, gone: Sequence[str] | None = ()) -> None:
        self._report(self._recorder.mark, text, gone)

    def seen(self, name: str, value: Any, text: str | None = None) -> None:
        self._report(self._recorder.seen, name, value, text)

    def allocated(self, value: Any) -> None:
        self._report(self._recorder.allocated, value)

    def leave(self) -> None:
        self._report(self._recorder.leave)


def instrument(
    wrapper: Wrapper, namespace: Mapping[str, Any], device: str = "cpu", *, poison: bool = False
) -> tuple[Call, Recorder, Guarded]:
    """``call`` with a report after every statement; the statements themselves are unchanged.

    Parameters
    ----------
    wrapper : Wrapper
    namespace : mapping
        Globals of the wrapper's module; copied.
    device : str
        Whose bytes are counted.
    poison : bool
        Fill fresh buffers of a device whose counter does not.
    """
    recorder = Recorder(wrapper, device, poison)
    forms = {(f.line, id(f)): f for f in wrapper.forms}
    by_line: dict[int, list[Form]] = {}
    for f in forms.values():
        by_line.setdefault(f.line, []).append(f)
    groups = {f.line: f.text for f in merged_blocks(wrapper.forms) if f.kind == "block"}
    made_by = _makers(wrapper)
    local = set(wrapper.inputs)
    body: list[ast.stmt | int] = []
    reports: list[str] = []
    block_text: list[str | None] = [None]

    def report(line: str) -> None:
        body.append(len(reports))
        reports.append(line)

    def flush_block() -> None:
        if block_text[0] is not None:
            report(f"{_PM}.mark({block_text[0]!r}, None)")
            block_text[0] = None

    def add(statements: Sequence[ast.stmt]) -> None:
        for node in statements:
            if isinstance(node, ast.With):
                add(node.body)  # not run: see `record_profile`
                continue
            queue = by_line.get(node.lineno, [])
            form = queue.pop(0) if queue else None
            if isinstance(node, ast.Return):
                flush_block()
                assert node.value is not None
                body.append(ast.fix_missing_locations(ast.Assign([ast.Name(_RESULT, ast.Store())], node.value)))
                for name in sorted(local):
                    report(f"{name} = None")
                report(f"{_PM}.leave()")
                report(f"return {_RESULT}")
                continue
            if form is None:  # unpacking
                body.append(node)
                continue
            if form.kind != "block":
                flush_block()
            elif block_text[0] is None:
                block_text[0] = groups[form.line]
            body.append(node)
            local.update(form.defines)
            local.difference_update(form.deletes)
            if form.kind in ("kernel", "extern", "operator"):
                report(f"{_PM}.mark({form.text!r})")
            elif form.kind == "allocation":
                report(f"{_PM}.mark()")
                if poison and device != "cpu":
                    report(f"{_PM}.allocated({form.defines[0]})")
            elif form.kind == "delete":
                report(f"{_PM}.mark(None, {form.deletes!r})")
            if form.kind == "block":
                local.update(form.deletes)
            elif form.kind not in ("none", "delete", "context", "align"):
                for name in form.defines:
                    report(f"{_PM}.seen({name!r}, {name}, {made_by.get(name)!r})")

    add(wrapper.call.body)
    arguments = [a.arg for a in wrapper.call.args.args]
    rows = "".join(f"    {line}\n" for line in reports)  # one at a time would cost more than all the rest
    module = ast.parse(f"def _peakmem_instrumented():\n{rows}")
    function = module.body[0]
    assert isinstance(function, ast.FunctionDef)
    lines = function.body
    function.args, function.body = wrapper.call.args, [lines[s] if isinstance(s, int) else s for s in body]
    space = dict(namespace)
    guarded = space[_PM] = Guarded(recorder)
    exec(compile(module, "<peakmem instrumented>", "exec"), space)
    inner = space["_peakmem_instrumented"]
    if arguments[:1] == ["self"]:
        return (lambda args: inner(None, args)), recorder, guarded
    return inner, recorder, guarded


def _makers(wrapper: Wrapper) -> dict[str, str]:
    """Name -> text of the call that returned it, through tuples."""
    result: dict[str, str] = {}
    for form in merged_blocks(wrapper.forms):
        if form.kind in ("kernel", "extern", "operator", "block"):
            result.update(dict.fromkeys(form.defines, form.text))
        elif form.kind == "getitem" and form.target in result:
            result[form.defines[0]] = result[form.target]
    return result


def record_profile(
    wrapper: Wrapper, namespace: Mapping[str, Any], args: list[Any], effects: Callable[[str], Effects] = operator_effects
) -> tuple[Any, Profile]:
    """Run the wrapper once, as it is, and record it; ``args`` is emptied as ``call`` does.

    Returns
    -------
    result
        What ``call`` returned.
    profile : Profile

    Raises
    ------
    RuntimeMissing, NotRecorded
        Without a C++ compiler, or when the text cannot be instrumented; nothing has run.
    RecordingFailed
        Recording itself failed; the exception carries the result.
    Exception
        Whatever ``call`` raises.
    """
    import torch

    try:
        device = counted_device(wrapper.devices, args)
        run, recorder, guarded = instrument(wrapper, namespace, device)
        recorder.enter(args)
        operators = {name: effects(name) for name in wrapper.operators}
    except Exception as error:
        raise NotRecorded(f"recording could not begin ({type(error).__name__}: {error})") from error
    with counting_on(device, requests=True) as counter:
        recorder.start(counter)
        result = run(args)
        peak = counter.peak
    if guarded.failure:
        raise RecordingFailed(guarded.failure, result)
    try:
        constants = _constants(wrapper, namespace, recorder)
    except Exception as error:
        raise RecordingFailed(f"recording failed ({type(error).__name__}: {error})", result) from error
    notes = tuple(f"{name} is an opaque tensor" for name in sorted(recorder.others))
    profile = Profile(
        digest=wrapper.digest,
        torch=torch.__version__,
        threads=torch.get_num_threads(),
        names=recorder.names,
        freed=tuple(sorted(recorder.released)),
        symbols=recorder.symbols,
        workspaces=recorder.workspaces,
        residues={k: v for k, v in recorder.residues.items() if v},
        requests=recorder.requests,
        operators=operators,
        measured_peak=peak,
        numbers=recorder.numbers,
        constants=constants,
        opaque=recorder.opaque,
        notes=notes,
        device=device,
    )
    return result, profile


def _constants(wrapper: Wrapper, namespace: Mapping[str, Any], recorder: Recorder) -> dict[str, Layout | None]:
    import torch

    constants: dict[str, Layout | None] = {}
    for name in wrapper.constants:
        value = namespace.get(name)
        if not isinstance(value, torch.Tensor):
            continue
        plain = value.layout is torch.strided and not value.is_mkldnn
        constants[name] = layout_of(value, name, recorder.device) if plain else None
        if not plain:
            recorder.opaque[name] = tuple(map(int, value.shape))
    return constants


def measure(wrapper: Wrapper, namespace: Mapping[str, Any], args: list[Any], *, poison: bool = False) -> tuple[Any, int]:
    """Run a wrapper once and measure its peak above entry in bytes; arguments it releases count as it does so.

    ``poison`` fills every fresh block, so that reading what nobody wrote cannot go unnoticed.
    """
    device = counted_device(wrapper.devices, args)
    run, recorder, guarded = instrument(wrapper, namespace, device, poison=poison)
    recorder.enter(args)
    with counting_on(device, poison=poison) as counter:
        recorder.start(counter)
        result = run(args)
        if guarded.failure:
            raise RecordingFailed(guarded.failure, result)
        return result, counter.peak
