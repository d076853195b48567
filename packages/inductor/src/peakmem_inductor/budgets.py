"""Choosing what the forward saves for the backward: torch's ``activation_memory_budget``, and sets of our own.

Every set of saved values gives another pair of programs. Their texts are generated without compiling a kernel, modelled as a
step (`peakmem_inductor.steps`) and ordered; then only the chosen pair is compiled. The peak is not monotonic in the budget,
so all budgets are looked at, unless one that costs no more MACs is good enough. From their sets a search on the joint graph
(`peakmem_inductor.joint`) goes on to others; what its model finds best is generated and modelled just like the budgets.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from peakmem_inductor.joint import Joint, Saved
from peakmem_inductor.profile import Layout, Profile
from peakmem_inductor.simulation import simulate
from peakmem_inductor.statictext import profile_from_text
from peakmem_inductor.steps import Phase, model_step
from peakmem_inductor.wrapper import parse_wrapper

log = logging.getLogger("peakmem_inductor")

BUDGETS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)

OWN = 6
"""The most sets of our own that are generated."""

EVALUATIONS = 30_000
"""What one descent on the joint graph may take: sets times the nodes of the graph; 20 sets at least."""


@dataclass(frozen=True)
class Budget:
    """One set of saved values, modelled.

    Attributes
    ----------
    budget : float or None
        The ``activation_memory_budget`` of which it is torch's choice; None for one of our own.
    resident : int
        Bytes of the forward's arguments: parameters, buffers, inputs.
    before, after : int
        Peak of the step above its start, as Inductor wrote the programs and in the best orders found.
    bound : int
        No orders of these statements need less.
    extra_macs : int
        More than at budget 1.
    saved : tuple of str
        Torch's names of what is saved, beside the forward's arguments.
    digest : str
        Of the joint graph that has these names.
    """

    budget: float | None
    resident: int
    before: int
    after: int
    bound: int
    macs: int
    extra_macs: int
    chosen: bool = False
    saved: tuple[str, ...] = ()
    digest: str = ""

    @property
    def name(self) -> str:
        return "own" if self.budget is None else f"{self.budget:.1f}"

    def less(self, other: Budget) -> bool:
        """Whether nothing speaks for the other one: neither its peak nor its MACs."""
        pair, against = (self.after, self.macs), (other.after, other.macs)
        return pair != against and all(a <= b for a, b in zip(pair, against))

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let torch part joint graphs in this way meanwhile."""
        from torch._functorch import config as functorch
        from torch._inductor import config

        if self.budget is not None:
            with functorch.patch(activation_memory_budget=self.budget):
                yield
        else:
            from peakmem_inductor.partitions import SavedValues

            with config.patch(custom_partitioner_fn=SavedValues(self.saved, self.digest)):
                yield


@dataclass(frozen=True)
class Choice:
    """What a search found.

    Attributes
    ----------
    target : int or None
        Bytes that forward and backward may need with all arguments; None for the least.
    budgets : tuple of Budget
        Those looked at, torch's first; of several with the same programs the first.
    reason : str
        Why nothing was searched, or why the target is missed.
    generated, looked : int
        Pairs of programs that were generated, and sets that were modelled on the joint graph alone.
    refused : tuple of str
        Budgets that are not taken, with the reason.
    """

    target: int | None
    budgets: tuple[Budget, ...]
    reason: str = ""
    generated: int = 0
    looked: int = 0
    refused: tuple[str, ...] = ()

    @property
    def chosen(self) -> Budget | None:
        return next((b for b in self.budgets if b.chosen), None)

    @property
    def front(self) -> tuple[Budget, ...]:
        """Those that no other one beats in both peak and MACs, by falling peak."""
        kept = [b for b in self.budgets if not any(o.less(b) for o in self.budgets)]
        return tuple(sorted(kept, key=lambda b: (-b.after, b.macs)))

    def to_json(self) -> dict[str, Any]:
        rows = [asdict(b) | {"front": b in self.front} for b in self.budgets]
        return {
            "target": self.target, "reason": self.reason, "generated": self.generated, "looked": self.looked,
            "refused": list(self.refused), "budgets": rows,
        }  # fmt: skip

    def __str__(self) -> str:
        what = "least memory" if self.target is None else f"at most {self.target:,} bytes with all arguments"
        rows = [f"saved for the backward, looking for {what}" + (f": {self.reason}" if self.reason else "")]
        taken = self.chosen
        if taken is not None:
            own = f"a set of {len(taken.saved)} values that peakmem chose" if taken.budget is None else f"what torch saves at budget {taken.name}"
            rows[0] += f": {own}, for {_more(taken)}; {self.generated} pairs of programs were generated"
            rows[0] += f", {self.looked} sets modelled on the joint graph" if self.looked else ""
        front = self.front
        for b in self.budgets:
            rows.append(
                f"  {b.name}: step {b.before:,} -> {b.after:,} above its start, {b.resident + b.after:,} with all "
                f"arguments, {_more(b)}" + (", on the front" if b in front else "") + (" <- taken" if b.chosen else "")
            )
            if b.budget is None and b in front:
                rows.append(f"    saves {', '.join(b.saved)}")
        rows += [f"  {r}" for r in self.refused]
        return "\n".join(rows)


def _more(b: Budget) -> str:
    return f"{100 * b.extra_macs / b.macs:.1f} % more MACs" if b.macs else f"{b.extra_macs:,} more MACs"


class _Seen(Exception):
    """The partition is one that was looked at."""


@dataclass
class _Loaded:
    module: Any
    wrapper: Wrapper


class _Search:
    """Generates pairs of programs, each set of saved values once."""

    def __init__(self, compile_with: Any, watch: Any, effects: Callable[[str], Effects], time_limit: float, pure: frozenset[str]) -> None:
        self.compile_with, self.watch, self.effects, self.time_limit, self.pure = compile_with, watch, effects, time_limit, pure
        self.found: list[Budget] = []
        self.refused: list[str] = []
        self.problem = ""
        self.generated = 0
        self.joint: Joint | None = None
        self.digest = ""
        self.torchs: dict[float, Saved] = {}
        self.sets: dict[Saved, Budget] = {}
        self._seen: set[Saved] = set()
        self._texts: set[str] = set()

    def generate(self, budget: float | None, own: Saved | None = None) -> Budget | None:
        """The step of a budget of torch's, or of a set of our own; None where there is none that is new."""
        from torch._functorch import config as functorch
        from torch._inductor import compile_fx as module
        from torch._inductor import config

        from peakmem_inductor.partitions import Choosing

        loaded: dict[str, _Loaded] = {}
        saved: list[Saved] = []

        def inner(gm: Any, example_inputs: Any, **kwargs: Any) -> Any:
            kind = "backward" if kwargs.get("is_backward") else "forward"
            if kind == "forward":
                if gm.code in self._texts:
                    raise _Seen
                self._texts.add(gm.code)

            def receive(loaded_module: Any, path: Path) -> None:
                loaded[kind] = _Loaded(loaded_module, parse_wrapper(path.read_text(), where=path.name))

            with self.watch(receive):
                return module.compile_fx_inner(gm, example_inputs, **kwargs)

        def chooser(graph: Any, info: Any, results: int, torchs: Callable[[float | None], list[Any]]) -> list[Any]:
            names = self._read(graph, info, results, torchs)
            if self.joint is None or names is None:
                return torchs(None)
            if own is not None:
                wanted = {*self.joint.names(own), *(n.name for n in info.inputs)}
                chosen = [n for n in graph.nodes if n.name in wanted]
            else:
                chosen = torchs(budget)
            mine = self.joint.split({names[n.name] for n in chosen}).saved
            if mine in self._seen:
                raise _Seen
            self._seen.add(mine)
            saved.append(mine)
            return chosen

        where = "a set of our own" if budget is None else f"budget {budget}"
        known = self.torchs.get(budget) if budget is not None else own
        if known is not None and self.joint is not None:
            if known in self._seen:
                return None
            if budget != BUDGETS[0] and (reason := self.joint.barred(known)):
                self._seen.add(known)
                self.refused.append(f"{where} is refused, it would compute again {reason}")
                return None
        patches: dict[str, Any] = {"force_non_lazy_backward_lowering": True, "enable_autograd_cache": False}
        if budget is not None:
            patches["activation_memory_budget"] = budget
        inductor = {"fx_graph_cache": False, "fx_graph_remote_cache": False, "custom_partitioner_fn": Choosing(chooser)}
        try:
            with functorch.patch(patches), config.patch(inductor), no_kernels():
                self.compile_with(inner)
            if set(loaded) != {"forward", "backward"}:
                raise PeakmemError("it has no backward of its own")
            self.generated += 1
            made = _modelled(budget, loaded["forward"], loaded["backward"], self.effects, self.time_limit)
        except Exception as error:
            if any(isinstance(e, _Seen) for e in _chain(error)):
                return None
            self.problem = self.problem or f"{where}: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
            log.info("%s: %s: %s", where, type(error).__name__, error)
            log.debug("%s", where, exc_info=True)
            return None
        if saved and self.joint is not None:
            made = replace(made, saved=self.joint.names(saved[0]), digest=self.digest)
        made = replace(made, extra_macs=made.macs - (self.found[0].macs if self.found else made.macs))
        self.found.append(made)
        if saved:
            self.sets[saved[0]] = made
        return made

    def _read(self, graph: Any, info: Any, results: int, torchs: Callable[[float | None], list[Any]]) -> dict[str, int] | None:
        """Numbers of the values of a joint graph by name; None for one that is not the one seen first.

        The first time all budgets are asked for, so that none is generated whose set is another one's.
        """
        from peakmem_inductor.partitions import digest_of, read_joint

        digest = digest_of(graph)
        if not self.digest:
            self.digest = digest
            try:
                joint = read_joint(graph, info, results, self.pure)
                names = {v.name: i for i, v in enumerate(joint.values)}
                self.torchs = {b: joint.split({names[n.name] for n in torchs(b)}).saved for b in BUDGETS}
                self.joint = joint
            except Exception as error:
                self.refused.append(f"other budgets are refused, the joint graph could not be read: {error}")
                log.info("the joint graph could not be read: %s: %s", type(error).__name__, error)
                log.debug("the joint graph", exc_info=True)
        if self.joint is None or digest != self.digest:
            return None
        return {v.name: i for i, v in enumerate(self.joint.values)}

    def improve(self, limit: int | None) -> None:
        """Generate sets of our own that the model of the joint graph says are better; ``limit`` is what the step may need."""
        for _ in range(OWN):
            proposal = self._propose(limit)
            if proposal is None:
                return
            self.generate(None, proposal)

    def _propose(self, limit: int | None) -> Saved | None:
        """The set that promises most: the least peak, or the fewest MACs of a peak that the best one has or that fits.

        What the model says of a set is corrected by what it missed at the set from which the search went.
        """
        joint = self.joint
        if joint is None:
            return None
        best = pick(self.sets.values(), limit)
        if best is None:
            return None
        promised: list[tuple[tuple[int, ...], tuple[int, ...], Saved]] = []
        for saved, made in self.sets.items():
            known = joint.estimate(saved)
            if known is None or any(o.less(made) for o in self.sets.values()):
                continue
            missed = made.after - known.peak
            goals = [best.after if limit is None or best.after > limit else limit]
            for ceiling in (None, goals[0] - missed):
                other = joint.descend(saved, max(20, EVALUATIONS // len(joint.values)), ceiling=ceiling, avoid=self._seen)
                if other is None:
                    continue
                said = joint.estimate(other)
                assert said is not None
                row = replace(made, after=said.peak + missed, macs=made.macs + said.macs - known.macs)
                if _rank(row, limit) < _rank(best, limit):
                    promised.append((_rank(row, limit), tuple(sorted(other)), other))
        return min(promised)[2] if promised else None


def _rank(b: Budget, limit: int | None) -> tuple[int, ...]:
    """Smaller is better: for a limit the fewest MACs that fit, else the least peak."""
    if limit is not None and b.after <= limit:
        return (0, b.macs, b.after)
    return (1, b.after, b.macs)


def pick(found: Iterable[Budget], limit: int | None) -> Budget | None:
    """The best of those found for a limit of the step, or for the least."""
    return min(found, key=lambda b: _rank(b, limit), default=None)


def choose(
    compile_with: Callable[[Callable[..., Any]], Any],
    watch: Callable[[Callable[[Any, Path], None]], Any],
    *,
    target: int | None,
    time_limit: float,
    pure: frozenset[str],
) -> Choice:
    """Search what to save.

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
    The cost is the generation of up to 11 pairs of programs for the budgets and `OWN` for sets of our own; equal sets are
    generated once. A set of torch's is refused where the backward would draw random numbers again or call an operator again
    that may have hidden effects: torch does that at low budgets, and the gradients are then wrong.
    """
    from torch._inductor import config

    from peakmem_inductor.effects import operator_effects

    def effects(name: str) -> Effects:
        return operator_effects(name, pure=pure)

    if config.custom_partitioner_fn is not None:
        return Choice(target, (), "a custom_partitioner_fn of yours chooses what is saved")
    search = _Search(compile_with, watch, effects, time_limit, pure)

    def limit() -> int | None:
        return target - search.found[0].resident if target is not None else None

    for budget in BUDGETS:
        made = search.generate(budget)
        if search.joint is None:
            break  # what another budget would compute again is not known
        if made is not None and target is not None and made.resident + made.after <= target:
            break
    if not search.found:
        problem = search.problem
        return Choice(target, (), f"no budget could be modelled ({problem})" if problem else "no budget could be modelled")
    best = pick(search.found, limit())
    if target is None or (best is not None and (best.extra_macs > 0 or best.resident + best.after > target)):
        search.improve(limit())
    best = pick(search.found, limit())
    assert best is not None
    reason = ""
    if target is not None and best.resident + best.after > target:
        reason = f"none needs so little; the least is {best.resident + best.after:,}"
    looked = len(search.joint.estimates) if search.joint is not None else 0
    rows = tuple(replace(b, chosen=b is best) for b in search.found)
    return Choice(target, rows, reason, search.generated, looked, tuple(search.refused))


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


def _modelled(budget: float | None, first: _Loaded, second: _Loaded, effects: Callable[[str], Effects], time_limit: float) -> Budget:
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

