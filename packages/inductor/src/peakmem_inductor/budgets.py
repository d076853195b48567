"""Choosing how much the forward saves for the backward: a search over torch's ``activation_memory_budget``.

Every budget gives another pair of programs. Their texts are generated without compiling a kernel, modelled as a step
(`peakmem_inductor.steps`) and ordered; then only the chosen pair is compiled. The peak is not monotonic in the budget, so
all of them are looked at, unless one that costs no more MACs is good enough.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from peakmem.model import PeakmemError
from peakmem.ordering import order_program

from peakmem_inductor.building import build_graph
from peakmem_inductor.effects import Effects
from peakmem_inductor.emitting import rename
from peakmem_inductor.forms import Wrapper, names_in
from peakmem_inductor.graph import Graph
from peakmem_inductor.profile import Layout, Profile
from peakmem_inductor.simulation import simulate
from peakmem_inductor.statictext import profile_from_text
from peakmem_inductor.steps import Phase, model_step
from peakmem_inductor.wrapper import parse_wrapper

log = logging.getLogger("peakmem_inductor")

BUDGETS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)


@dataclass(frozen=True)
class Budget:
    """One value of ``activation_memory_budget``, modelled.

    Attributes
    ----------
    budget : float
    resident : int
        Bytes of the forward's arguments: parameters, buffers, inputs.
    before, after : int
        Peak of the step above its start, as Inductor wrote the programs and in the best orders found.
    bound : int
        No orders of these statements need less.
    extra_macs : int
        More than at budget 1.
    """

    budget: float
    resident: int
    before: int
    after: int
    bound: int
    macs: int
    extra_macs: int
    chosen: bool = False


@dataclass(frozen=True)
class Choice:
    """What a search found.

    Attributes
    ----------
    target : int or None
        Bytes that forward and backward may need with all arguments; None for the least.
    budgets : tuple of Budget
        Those looked at; of several with the same programs the first.
    reason : str
        Why nothing was searched, or why the target is missed.
    """

    target: int | None
    budgets: tuple[Budget, ...]
    reason: str = ""

    @property
    def chosen(self) -> Budget | None:
        return next((b for b in self.budgets if b.chosen), None)

    def to_json(self) -> dict[str, Any]:
        return {"target": self.target, "reason": self.reason, "budgets": [asdict(b) for b in self.budgets]}

    def __str__(self) -> str:
        what = "least memory" if self.target is None else f"at most {self.target:,} bytes with all arguments"
        rows = [f"budgets, looking for {what}" + (f": {self.reason}" if self.reason else "")]
        for b in self.budgets:
            share = f"{100 * b.extra_macs / b.macs:.1f} % more MACs" if b.macs else f"{b.extra_macs:,} more MACs"
            rows.append(
                f"  {b.budget:.1f}: step {b.before:,} -> {b.after:,} above its start, {b.resident + b.after:,} with all "
                f"arguments, {share}" + (" <- taken" if b.chosen else "")
            )
        return "\n".join(rows)


class _Seen(Exception):
    """The partition is one that was looked at."""


@dataclass
class _Loaded:
    module: Any
    wrapper: Wrapper


def choose(
    compile_with: Callable[[Callable[..., Any]], Any],
    watch: Callable[[Callable[[Any, Path], None]], Any],
    *,
    target: int | None,
    time_limit: float,
    pure: frozenset[str],
) -> Choice:
    """Search the budgets.

    Parameters
    ----------
    compile_with : callable
        Compiles a copy of the graph with an inner compiler, under the settings of the moment.
    watch : callable
        Context in which loaded modules go to a receiver.
    target : int or None
        Bytes, all arguments included; None for the least.
    time_limit : float
        Seconds for ordering one graph.
    pure : frozenset of str
        Custom operators without hidden effects.

    Notes
    -----
    The cost is the generation of up to 11 pairs of programs; equal partitions are generated once.
    """
    from torch._functorch import config as functorch
    from torch._inductor import compile_fx as module
    from torch._inductor import config

    from peakmem_inductor.effects import operator_effects

    def effects(name: str) -> Effects:
        return operator_effects(name, pure=pure)

    partitions: set[str] = set()
    found: list[Budget] = []
    problem = ""
    for budget in BUDGETS:
        loaded: dict[str, _Loaded] = {}

        def inner(gm: Any, example_inputs: Any, loaded: dict[str, _Loaded] = loaded, **kwargs: Any) -> Any:
            kind = "backward" if kwargs.get("is_backward") else "forward"
            if kind == "forward":
                if gm.code in partitions:
                    raise _Seen
                partitions.add(gm.code)

            def receive(loaded_module: Any, path: Path) -> None:
                loaded[kind] = _Loaded(loaded_module, parse_wrapper(path.read_text(), where=path.name))

            with watch(receive):
                return module.compile_fx_inner(gm, example_inputs, **kwargs)

        patches = {"activation_memory_budget": budget, "force_non_lazy_backward_lowering": True, "enable_autograd_cache": False}
        try:
            with functorch.patch(patches), config.patch(fx_graph_cache=False, fx_graph_remote_cache=False), no_kernels():
                compile_with(inner)
            if set(loaded) != {"forward", "backward"}:
                raise PeakmemError("it has no backward of its own")
            found.append(_modelled(budget, loaded["forward"], loaded["backward"], effects, time_limit))
        except _Seen:
            continue
        except Exception as error:
            if any(isinstance(e, _Seen) for e in _chain(error)):
                continue
            problem = problem or f"budget {budget}: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
            log.info("budget %s: %s: %s", budget, type(error).__name__, error)
            log.debug("budget %s", budget, exc_info=True)
            continue
        if target is not None and found[-1].resident + found[-1].after <= target:
            break
    if not found:
        return Choice(target, (), f"no budget could be modelled ({problem})" if problem else "no budget could be modelled")
    base = found[0].macs
    found = [replace(b, extra_macs=b.macs - base) for b in found]
    best = min(found, key=lambda b: (b.after, b.extra_macs))
    reason = ""
    if target is not None:
        good = [b for b in found if b.resident + b.after <= target]
        if good:
            best = min(good, key=lambda b: (b.extra_macs, b.after))
        else:
            reason = f"none needs so little; the least is {best.resident + best.after:,}"
    return Choice(target, tuple(replace(b, chosen=b is best) for b in found), reason)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


@contextmanager
def no_kernels() -> Iterator[None]:
    """Let generated C++ kernels be loaded without compiling them; nothing that is loaded meanwhile may run."""
    from torch._inductor.async_compile import AsyncCompile

    original = AsyncCompile.cpp_pybinding

    def refuse(*_: Any) -> None:
        raise RuntimeError("a kernel that was never compiled")

    AsyncCompile.cpp_pybinding = lambda *_: refuse
    try:
        yield
    finally:
        AsyncCompile.cpp_pybinding = original


def _modelled(budget: float, first: _Loaded, second: _Loaded, effects: Callable[[str], Effects], time_limit: float) -> Budget:
    forward, backward = first.wrapper, second.wrapper
    graphs = joint_graphs(forward, backward, (vars(first.module), vars(second.module)), effects)
    phases = []
    for name, graph in zip(("forward", "backward"), graphs):
        ordering = order_program(graph.program, time_limit=time_limit)
        entry = graph.program.entry_bytes
        before = simulate(graph.wrapper, graph.profile)
        after = min(before, ordering.peak - entry)
        base = 0 if name == "forward" else carried(*graphs)
        bound = min(before, ordering.lower_bound - entry)
        phases.append(Phase(name, graph.program, ordering.orders[""], base, before, after, bound))
    step = model_step("", phases, {})
    macs = sum(s.cost for g in graphs for s in g.program.statements)
    resident = sum(b.size for b in graphs[0].program.buffers if b.kind == "input")
    return Budget(budget, resident, step.before, step.peak, step.bound or 0, macs, 0)


def results_of(wrapper: Wrapper) -> list[str]:
    """The name behind every result of ``call``, in order; empty where a result has none."""
    value = wrapper.returns.node.value if isinstance(wrapper.returns.node, ast.Return) else None
    elements = value.elts if isinstance(value, ast.Tuple | ast.List) else []
    return [next((n for n in names_in(e) if n in wrapper.outputs), "") for e in elements]


def carried(forward: Graph, backward: Graph) -> int:
    """Bytes above the start of the step when the backward begins: all results of the forward, and gradients of them."""
    made = sum(b.size for b in forward.program.buffers if b.kind == "output")
    layouts = [backward.profile.names[n] for n in backward.wrapper.inputs if n.startswith("tangents") and n in backward.profile.names]
    return made + sum({x.storage: x.bytes for x in layouts}.values())


def text_graph(wrapper: Wrapper, namespace: Mapping[str, Any], effects: Callable[[str], Effects]) -> Graph:
    """A program from its text and the globals of its module, with the workspaces of its operators; nothing of it runs."""
    return build_graph(wrapper, with_workspaces(_text_profile(wrapper, effects), wrapper, namespace, effects))


def _text_profile(wrapper: Wrapper, effects: Callable[[str], Effects]) -> Profile:
    profile = profile_from_text(wrapper)
    return replace(profile, operators={k: effects(k) for k in profile.operators})


def joint_graphs(
    forward: Wrapper, backward: Wrapper, namespaces: Sequence[Mapping[str, Any]], effects: Callable[[str], Effects]
) -> tuple[Graph, Graph]:
    """Both programs of a step from their texts; what the backward may free is told by the results of the forward.

    Raises
    ------
    PeakmemError
        Where sizes are symbolic, or the texts do not tell which result is which argument.
    """
    if forward.symbols or backward.symbols:
        raise PeakmemError("sizes that change cannot be modelled before the first call")
    first, profile = text_graph(forward, namespaces[0], effects), _text_profile(backward, effects)
    results = results_of(forward)
    kept = [n for n in backward.inputs if not n.startswith("tangents")]
    given, saved = results[: len(results) - len(kept)], results[len(results) - len(kept) :]
    owners = [first.buffer_of.get(n) for n in saved]
    callers = {first.buffer_of[n] for n in given if n in first.buffer_of}
    freed: list[str] = []
    storages: dict[int, str] = {}
    names = dict(profile.names)
    for name, owner in zip(kept, owners, strict=True):
        layout = names.get(name)
        if owner is None or layout is None:
            raise PeakmemError(f"what {name} of the backward is in the forward is not known")
        buffer = first.program.buffers[owner]
        if layout.bytes > buffer.size:
            raise PeakmemError(f"{name} has {layout.bytes:,} bytes in the backward and {buffer.size:,} in the forward")
        root = storages.setdefault(owner, name)
        names[name] = replace(layout, bytes=buffer.size, storage=root)
        if buffer.kind != "input" and owner not in callers:
            freed.append(root)
    # The gradient of a single number, the loss, stays with who called `backward`.
    freed += [n for n in backward.inputs if n.startswith("tangents") and n in names and names[n].shape]
    profile = replace(profile, names=names, freed=tuple(sorted(set(freed))))
    second = build_graph(backward, with_workspaces(profile, backward, namespaces[1], effects))
    return first, second


_probed: dict[tuple[Any, ...], int] = {}


def with_workspaces(profile: Profile, wrapper: Wrapper, namespace: Mapping[str, Any], effects: Callable[[str], Effects]) -> Profile:
    """The profile with workspaces of operators, each measured by running it alone on zeros of its shapes."""
    import torch

    found: dict[str, int] = {}
    for form in wrapper.forms:
        if form.kind not in ("extern", "operator") or any(n not in profile.names for n in form.uses):
            continue
        if form.kind == "operator" and (not effects(form.target).known or effects(form.target).random):
            continue
        layouts = [profile.names[n] for n in form.uses]
        text = rename(form.text, {name: f"_{i}" for i, name in enumerate(dict.fromkeys((*form.uses, *form.defines)))})
        key = (text, torch.get_num_threads(), *((x.shape, x.stride, x.offset, x.dtype, x.bytes) for x in layouts))
        if key not in _probed:
            try:
                _probed[key] = _probe(form.text, dict(zip(form.uses, layouts)), namespace)
            except Exception as error:
                log.info("the workspace of %s is taken as 0: %s", form.target, error)
                _probed[key] = 0
        found[form.text] = _probed[key]
    return replace(profile, workspaces=found, threads=torch.get_num_threads())


def _probe(text: str, layouts: Mapping[str, Layout], namespace: Mapping[str, Any]) -> int:
    """Bytes that a call uses inside beyond what it returns."""
    import torch

    from peakmem_inductor.allocator import counting

    space = dict(namespace)
    with torch.no_grad():
        for name, layout in layouts.items():
            dtype = getattr(torch, layout.dtype.removeprefix("torch."))
            block = torch.zeros(layout.bytes, dtype=torch.uint8).untyped_storage()
            space[name] = torch.empty(0, dtype=dtype).set_(block, layout.offset, layout.shape, layout.stride)
        with counting() as counter:
            counter.mark()
            exec(text, space)
            high, now, _ = counter.mark()
    return max(0, high - now)

