"""A training step as a whole: forward, backward and optimizer, modelled from the recorded graphs or measured.

Bytes are above the start of the step, that is beside what is resident before the forward runs: parameters, arguments,
optimizer state and gradients that are still there.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from peakmem.model import Program, timeline

from peakmem_inductor.rows import GraphReport

ONEDNN = ("mkldnn", "convolution", "onednn")


@dataclass(frozen=True)
class Phase:
    """One graph of a step.

    Attributes
    ----------
    name : {"forward", "backward"}
    program : Program
    order : tuple of int
    base : int
        Bytes above the start of the step when the graph is called.
    before : int
        Peak above entry of the call as Inductor wrote it; ``bound`` is what no order of the statements needs less than.
    bound : int or None
    inputs : mapping of str to str
        What an argument is that the graph may free: ``saved activations`` or ``gradient of the loss``.
    """

    name: str
    program: Program
    order: tuple[int, ...]
    base: int
    before: int
    after: int
    bound: int | None
    inputs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SavedTensor:
    """A saved activation that is there at the peak of the backward.

    Attributes
    ----------
    name : str
        Of the argument.
    bytes : int
    last_use : str
        Statement after which it goes.
    forced : bool
        One of its readers runs after the statement of the peak in every order, so no order frees it before.
    """

    name: str
    bytes: int
    last_use: str
    forced: bool


@dataclass
class StepReport:
    """Peak of a training step.

    Attributes
    ----------
    graphs : str
        Inductor's number of the pair of graphs.
    peak : int
        Modelled, above the start of the step; ``before`` is that of the programs as Inductor wrote them.
    phase, statement, position, statements :
        Where it lies.
    live : mapping of str to int
        What is live there, in bytes; the sum is ``peak``.
    saved : list of SavedTensor
        Saved activations at the peak, largest first; empty where it lies in the forward.
    resident : mapping of str to int
        What was there before the step began: parameters, other arguments, optimizer state.
    bound : int or None
        No orders of the statements of both graphs need less.
    optimizer : str
        How the optimizer steps, if one has stepped.
    phases : mapping of str to int
        Peak of each phase.
    """

    graphs: str
    peak: int
    before: int
    phase: str
    statement: str
    position: int
    statements: int
    live: dict[str, int]
    saved: list[SavedTensor]
    resident: dict[str, int]
    bound: int | None
    phases: dict[str, int]
    optimizer: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        rows = [
            f"step of graph {self.graphs}: {self.peak:,} bytes above its start (modelled), in the {self.phase} at statement "
            f"{self.position} of {self.statements}, {self.statement}",
            "  live there: " + "; ".join(f"{what} {n:,}" for what, n in self.live.items()),
        ]
        if self.resident:
            rows.append("  resident before: " + "; ".join(f"{what} {n:,}" for what, n in self.resident.items()))
        gain = f"order: {self.before:,} -> {self.peak:,}" if self.peak < self.before else "order: no gain"
        if self.bound is not None:
            gain += f"; no order of these graphs needs less than {self.bound:,}"
        rows.append(f"  {gain}; to save less for the backward is the partitioner's: options={{'memory': 'least'}}")
        for tensor in self.saved[:3]:
            rows.append(
                f"  saved {tensor.name}: {tensor.bytes:,}, last read by {tensor.last_use}; "
                + ("no order frees it before the peak" if tensor.forced else "an order could free it before the peak")
            )
        if len(self.saved) > 3:
            rest = self.saved[3:]
            rows.append(f"  and {len(rest)} more saved tensors there: {sum(t.bytes for t in rest):,}")
        if self.optimizer:
            rows.append(f"  {self.optimizer}")
        return "\n".join(rows)


def model_step(graphs: str, phases: Sequence[Phase], resident: Mapping[str, int]) -> StepReport:
    """The peak of a step from its graphs, and what is live there; linear in their sizes.

    The statement of the peak and what is live there are those of the statements as modelled, in their order.
    """
    lines = [(p, timeline(p.program, p.order)) for p in phases]
    phase, line = max(lines, key=lambda x: x[0].base + x[0].after)
    program, step = phase.program, line.peak_step
    v = line.order[step]
    live: dict[str, int] = {}

    def add(what: str, size: int) -> None:
        if size:
            live[what] = live.get(what, 0) + size

    present = line.live_at(step)
    entered = sum(program.buffers[b].size for b in program.entry if not program.buffers[b].pinned)
    add("held since the forward", phase.base - entered)
    for b in present:
        buffer = program.buffers[b]
        if buffer.kind == "input":
            if not buffer.pinned:
                add(phase.inputs.get(buffer.name, "saved activations"), buffer.size)
        elif buffer.kind == "output":
            add("gradients" if phase.name == "backward" else "saved activations and results", buffer.size)
        else:
            add("temporaries", buffer.size)
    op = program.statements[v].op
    maker = "oneDNN's workspace" if any(w in op for w in ONEDNN) else f"workspace of {op}"
    add(maker, line.workspaces[v])
    add("difference of the text from its statements", phase.base + phase.after - sum(live.values()))
    bounds = [p.bound if p.bound is None else p.base + p.bound for p in phases]
    return StepReport(
        graphs=graphs,
        peak=phase.base + phase.after,
        before=max(p.base + p.before for p in phases),
        phase=phase.name,
        statement=op or program.statements[v].name,
        position=step + 1,
        statements=len(line.order),
        live=live,
        saved=_saved(program, line, step, phase.inputs) if phase.name == "backward" else [],
        resident=dict(resident),
        bound=None if None in bounds else max(b for b in bounds if b is not None),
        phases={p.name: p.base + p.after for p in phases},
    )


def _saved(program: Program, line: Any, step: int, inputs: Mapping[str, str]) -> list[SavedTensor]:
    """Saved activations at a step, and whether one of their readers follows the statement in every order."""
    after = _descendants(program, line.order[step])
    found = []
    for b in line.live_at(step):
        buffer = program.buffers[b]
        if buffer.kind != "input" or buffer.pinned or inputs.get(buffer.name, "") == LOSS:
            continue
        last = program.statements[line.order[line.last[b]]]
        forced = any(t in after for t in program.touchers[b])
        found.append(SavedTensor(buffer.name, buffer.size, last.op or last.name, forced))
    return sorted(found, key=lambda t: (-t.bytes, t.name))


def _descendants(program: Program, v: int) -> set[int]:
    """A statement and all that depend on it."""
    found, stack = {v}, [v]
    while stack:
        for w in program.successors[stack.pop()]:
            if w not in found:
                found.add(w)
                stack.append(w)
    return found


LOSS = "gradient of the loss"

# -- what runs tell ------------------------------------------------------------------------------------------


@dataclass
class _Forward:
    row: GraphReport
    results: list[tuple[Any, int]]  # weak reference and bytes of each storage the forward made
    resident: dict[str, int]


@dataclass
class _Pair:
    forward: _Forward
    backward: GraphReport | None = None
    base: int = 0
    inputs: dict[str, str] = field(default_factory=dict)


_pairs: dict[str, _Pair] = {}
_optimizers: dict[int, tuple[Any, str, int]] = {}  # id -> weak reference, how it steps, bytes of its state
_parameters: dict[int, Any] = {}  # id -> weak reference; tensors do not compare as keys must
_lock = threading.Lock()


def saw_forward(row: GraphReport, args: Mapping[int, tuple[int, bool]], result: Sequence[Any]) -> None:
    """A forward was recorded; ``args`` are its storages: address, then bytes and whether it is a parameter."""
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef

    number, _, kind = row.name.partition("_")
    if kind != "forward":
        return
    made: dict[int, tuple[Any, int]] = {}
    for value in result:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            if storage._cdata not in args:
                made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
    parameters = sum(n for n, is_parameter in args.values() if is_parameter)
    resident = {"parameters": parameters, "other arguments": sum(n for n, _ in args.values()) - parameters}
    with _lock:
        _pairs[number] = _Pair(_Forward(row, list(made.values()), resident))


def argument_storages(args: Sequence[Any]) -> dict[int, tuple[int, bool]]:
    """Storages of arguments by address: bytes, and whether a parameter lies in it."""
    import torch

    found: dict[int, tuple[int, bool]] = {}
    for value in args:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            parameter = isinstance(value, torch.nn.Parameter)
            if parameter:
                _parameters[id(value)] = weakref.ref(value)
            found[storage._cdata] = (storage.nbytes(), parameter or found.get(storage._cdata, (0, False))[1])
    return found


def saw_backward(row: GraphReport, names: Sequence[str], args: Sequence[Any]) -> None:
    """A backward is about to be recorded: what of its forward is still there, and what its arguments are."""
    import torch

    number, _, kind = row.name.partition("_")
    pair = _pairs.get(number)
    if kind != "backward" or pair is None:
        return
    alive = {r.cdata: n for r, n in pair.forward.results if not r.expired()}
    base = sum(alive.values())
    for name, value in zip(names, args):
        if not isinstance(value, torch.Tensor):
            continue
        if name.startswith("tangents"):
            pair.inputs[name] = LOSS
            storage = value.untyped_storage()
            if storage._cdata not in alive:
                alive[storage._cdata] = storage.nbytes()
                base += storage.nbytes()
    pair.backward, pair.base = row, base


def step_reports() -> list[StepReport]:
    """One for each pair of graphs of which both have been recorded."""
    found = []
    with _lock:
        pairs = dict(_pairs)
    for number, pair in pairs.items():
        rows = (pair.forward.row, pair.backward)
        if any(r is None or r.program is None or r.before is None or r.after is None for r in rows):
            continue
        phases = []
        for row, base in zip(rows, (0, pair.base)):
            assert row is not None and row.program is not None and row.before is not None and row.after is not None
            moved = row.state in ("permuted", "recomputed", "pooled", "planned")
            program = row.enlarged if moved and row.enlarged is not None else row.program
            order = row.order if moved else tuple(range(len(program)))
            name = row.name.partition("_")[2]
            bound = min(row.bound, row.before) if row.bound is not None else None
            phases.append(Phase(name, program, order, base, row.before, row.after, bound, pair.inputs))
        report = model_step(number, phases, pair.forward.resident)
        _add_optimizers(report)
        found.append(report)
    return found


def _add_optimizers(report: StepReport) -> None:
    told = []
    for reference, how, state in list(_optimizers.values()):
        if reference() is not None:
            told.append(how)
            if state:
                report.resident["optimizer state"] = report.resident.get("optimizer state", 0) + state
    report.optimizer = "; ".join(dict.fromkeys(told))


def forget() -> None:
    """Forget all steps."""
    with _lock:
        _pairs.clear()
        _optimizers.clear()


_hooked = False


def watch_optimizers() -> None:
    """See every optimizer step from now on: how it works, what state it keeps."""
    global _hooked
    if _hooked:
        return
    _hooked = True
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    register_optimizer_step_pre_hook(lambda *_: _mark("outside of the graphs"))
    register_optimizer_step_post_hook(_stepped)


def _stepped(optimizer: Any, *_: Any) -> None:
    import torch

    _mark("optimizer")
    seen = _optimizers.get(id(optimizer))
    if seen is not None and seen[0]() is optimizer:
        return
    state = 0
    for values in optimizer.state.values():
        state += sum(v.untyped_storage().nbytes() for v in values.values() if isinstance(v, torch.Tensor))
    groups = optimizer.param_groups
    name = type(optimizer).__name__
    if any(g.get("fused") for g in groups):
        how = f"{name} is fused: it steps in place, without temporaries"
    elif any(g.get("foreach") for g in groups):
        how = f"{name} steps all tensors at once (foreach=True), with temporaries of the size of all of them; foreach=False takes one at a time"
    elif "fused" in optimizer.defaults:
        how = f"{name} steps in place, one tensor at a time, with temporaries of the largest; fused=True needs none"
    else:
        how = f"{name}: how it steps is not known"
    _optimizers[id(optimizer)] = (weakref.ref(optimizer), how, state)


# -- measuring -----------------------------------------------------------------------------------------------


class Measured:
    """A step as the counting allocator saw it.

    Attributes
    ----------
    phases : dict of str to int
        Highest bytes above the start in each phase: ``forward``, ``backward``, ``optimizer``, ``inference`` and
        ``outside of the graphs``, in the order in which they began.
    left : int
        Bytes above the start at the end.
    """

    def __init__(self) -> None:
        self.phases: dict[str, int] = {}
        self.left = 0
        self._watcher: Any = None
        self._gone: list[tuple[Any, int]] = []

    @property
    def peak(self) -> int:
        """Highest bytes above the start of the step."""
        return max(self.phases.values(), default=0)

    @property
    def where(self) -> str:
        """The phase of the peak."""
        return max(self.phases, key=lambda p: self.phases[p], default="")

    def _mark(self, phase: str) -> None:
        outside = sum(n for r, n in self._gone if r.expired())
        self._gone = [(r, n) for r, n in self._gone if not r.expired()]
        high, self.left = self._watcher.mark(outside)
        self.phases[phase] = max(self.phases.get(phase, high), high)

    def __str__(self) -> str:
        rows = "; ".join(f"{phase} {n:,}" for phase, n in self.phases.items())
        return f"measured: {self.peak:,} bytes above the start of the step, in {self.where} ({rows})"


current: Measured | None = None
"""The step being measured."""


def _mark(phase: str) -> None:
    if current is not None:
        current._mark(phase)


@contextmanager
def phase(name: str) -> Iterator[None]:
    """A graph runs; what happened since the last one was outside."""
    _mark("outside of the graphs")
    try:
        yield
    finally:
        _mark(name)


@contextmanager
def step() -> Iterator[Measured]:
    """Measure one training step with the counting allocator.

    >>> with peakmem_inductor.step() as measured:               # doctest: +SKIP
    ...     net(x).sum().backward()
    ...     optimizer.step()
    ...     optimizer.zero_grad()
    >>> print(measured)                                         # doctest: +SKIP

    Yields
    ------
    Measured
        Bytes above the start. Gradients that were there at the start and go meanwhile are subtracted at the next call of
        a graph or the optimizer; anything else that was there before is not seen when it goes.

    Raises
    ------
    RuntimeMissing
        Without a C++ compiler, or when another step is being measured.
    """
    global current
    from torch.multiprocessing.reductions import StorageWeakRef

    from peakmem_inductor.allocator import watching

    watch_optimizers()
    measured = Measured()
    with watching() as measured._watcher:
        for key, reference in list(_parameters.items()):
            parameter = reference()
            if parameter is None:
                del _parameters[key]
            elif parameter.grad is not None:
                storage = parameter.grad.untyped_storage()
                measured._gone.append((StorageWeakRef(storage), storage.nbytes()))
        parameter = storage = None  # holds nothing of the user's
        current = measured
        try:
            yield measured
        finally:
            current = None
            measured._mark("outside of the graphs")
