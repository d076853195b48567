"""``torch.compile(net, backend="peakmem")``.

Inductor compiles as always; only the ``call`` of the module it loads is replaced, so nothing of peakmem is persisted
in Inductor's caches and cached graphs work as fresh ones.
"""

from __future__ import annotations

import atexit
import functools
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from peakmem.model import UsageError, did_you_mean
from peakmem.system.sizes import parse_size
from peakmem.transform.recompute import parse_extra_macs

from peakmem_inductor import steps
from peakmem_inductor.dispatch import Candidate, Dispatcher, Options, log
from peakmem_inductor.reporting import GraphReport, add, add_choice
from peakmem_inductor.serving import say_no_graph, untried, warn
from peakmem_inductor.settings import config_of, parse_candidates

_local = threading.local()
_installed = threading.Lock()
OPTIONS = ("candidates", "verify", "time_limit", "dump", "shapes", "max_extra_macs", "cap", "pure", "target_peak", "memory", "pool")
reached = False
"""Whether torch.compile ever gave the backend a graph."""
atexit.register(say_no_graph)


def peakmem(
    gm: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None, mode: str | None = None
) -> Any:
    """The backend: ``torch.compile(net, backend="peakmem", options={...})``.

    Parameters
    ----------
    options : mapping, optional
        ``candidates``
            Inductor settings to generate wrappers with: a number or names, see `peakmem_inductor.settings`. Each
            costs one more compilation. Default 1.
        ``verify``
            Compare bits and bytes on the first call (default True).
        ``time_limit``
            Seconds for ordering one graph (default 5), and as many for planning reruns.
        ``dump``
            Folder to write each wrapper and its profile to.
        ``shapes``
            Sets of sizes and thread counts per graph for which an order is kept (default 8); further ones run the
            original program.
        ``pure``
            Custom operators (``["ns::name"]``) without effects but what their schemas declare: the same arguments give
            the same bits. They may be moved, and run once more by the check. Others are never run twice.
        ``max_extra_macs``
            Run statements again where that needs less memory, for at most ``"0.5%"`` more multiply-accumulate
            operations, or a number of them. Default: nothing runs twice.
        ``cap``
            The most times any statement runs, with ``max_extra_macs`` (default 2).
        ``target_peak``
            Bytes (``"2GiB"`` or a number) that forward and backward of a training step may need, all arguments included;
            optimizer state and gradients of earlier steps are not. What the forward saves for the backward is chosen so,
            for the fewest more multiply-accumulate operations; see `peakmem_inductor.budgets`.
        ``memory``
            ``"least"``: the same for the least peak, whatever it costs.
        ``pool``
            True: lay the buffers of each program at planned offsets in one allocation, made anew by every call; results and
            what operators return stay outside, and may raise the peak beside it. ``"fits"``: only where that needs no more
            memory than the untouched program. See `peakmem_inductor.pooling`.
        Anything else is an option of ``torch._inductor.config``.
    mode : str, optional
        A mode of Inductor, such as ``"max-autotune-no-cudagraphs"``.

    Raises
    ------
    UsageError
        For a bad value of one of ours, or an option that neither has; Inductor reports bad values of its own.
    """
    import torch
    from torch._inductor import compile_fx as module
    from torch._inductor import config

    global reached
    if not reached and (reason := untried(torch.__version__)):
        warn(reason)
        add(GraphReport("(torch)", state="untried", reason=reason))
    reached = True
    ours, patches = split_options(options or {})
    if mode is not None and mode != "default":
        from torch._inductor import list_mode_options

        patches = {**list_mode_options(mode), **patches}
    for name in patches:
        if name.replace("-", "_") not in config.get_config_copy():
            raise UsageError(
                f"option {name!r}: neither peakmem ({', '.join(OPTIONS)}) nor torch._inductor.config has it"
                + did_you_mean(name, OPTIONS)
            )
    _install()
    steps.watch_optimizers()
    with _active(_single(ours)), _own_graphs(len(ours.candidates) > 1), _budget(ours, gm, example_inputs, patches):
        return module.compile_fx(
            gm,
            example_inputs,
            inner_compile=functools.partial(_inner, ours, module.compile_fx_inner),
            config_patches=dict(patches) or None,
        )


def split_options(options: Mapping[str, Any]) -> tuple[Options, dict[str, Any]]:
    """Our options and the rest, which are Inductor's; `UsageError` for a bad value."""
    ours = {k.replace("-", "_"): v for k, v in options.items() if k.replace("-", "_") in OPTIONS}
    rest = {k: v for k, v in options.items() if k.replace("-", "_") not in OPTIONS}
    values: dict[str, Any] = {}
    if "candidates" in ours:
        values["candidates"] = parse_candidates(ours["candidates"])
    if "verify" in ours:
        if not isinstance(ours["verify"], bool):
            raise UsageError(f"verify: {ours['verify']!r} is neither True nor False")
        values["verify"] = ours["verify"]
    if "time_limit" in ours:
        limit = ours["time_limit"]
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit >= 0:
            raise UsageError(f"time_limit: {limit!r} is not a number of seconds")
        values["time_limit"] = float(limit)
    if ours.get("dump") is not None:
        folder = Path(ours["dump"])
        if not folder.is_dir():
            raise UsageError(f"dump: {folder} is no folder; create it first")
        values["dump"] = folder
    if "shapes" in ours:
        if isinstance(ours["shapes"], bool) or not isinstance(ours["shapes"], int) or ours["shapes"] < 0:
            raise UsageError(f"shapes: {ours['shapes']!r} is not a count")
        values["shapes"] = ours["shapes"]
    if ours.get("max_extra_macs") is not None:
        budget = ours["max_extra_macs"]
        if isinstance(budget, bool) or not isinstance(budget, int | str):
            raise UsageError(f"max_extra_macs: {budget!r} is neither a whole number nor a percentage such as '0.5%'")
        try:
            parse_extra_macs(str(budget), 0)
        except UsageError as error:
            raise UsageError(f"max_extra_macs: {str(error).removeprefix('extra MACs: ')}") from None
        values["max_extra_macs"] = str(budget)
    if ours.get("target_peak") is not None:
        size = ours["target_peak"]
        if isinstance(size, bool) or not isinstance(size, int | str):
            raise UsageError(f"target_peak: {size!r} is neither a number of bytes nor a size such as '2GiB'")
        try:
            values["target_peak"] = parse_size(str(size))
        except UsageError as error:
            raise UsageError(f"target_peak: {error}") from None
    if ours.get("memory") is not None:
        if ours["memory"] != "least":
            raise UsageError(f"memory: {ours['memory']!r} is not 'least'")
        if "target_peak" in values:
            raise UsageError("memory and target_peak: give one of them")
        values["least"] = True
    if "pool" in ours:
        if not (isinstance(ours["pool"], bool) or ours["pool"] == "fits"):
            raise UsageError(f"pool: {ours['pool']!r} is none of True, False and 'fits'")
        values["pool"] = "always" if ours["pool"] is True else ours["pool"] or ""
    if "cap" in ours:
        cap = ours["cap"]
        if isinstance(cap, bool) or not isinstance(cap, int) or cap < 1:
            raise UsageError(f"cap: {cap!r} is not a count of 1 or more; every statement runs at least once")
        values["cap"] = cap
    if "pure" in ours:
        given = ours["pure"]
        names = list(given) if isinstance(given, list | tuple | set | frozenset) else [given]
        bad = [n for n in names if not isinstance(n, str) or not re.fullmatch(r"\w+::\w+", n)]
        if bad:
            raise UsageError(f"pure: {bad[0]!r} is no name of an operator, such as 'namespace::name'")
        values["pure"] = frozenset(names)
    return Options(**values), rest


@contextmanager
def _budget(options: Options, gm: Any, example_inputs: Sequence[Any], patches: Mapping[str, Any]) -> Iterator[None]:
    """With an option about the memory of a step, search what the forward is to save and compile with that."""
    import torch

    if not options.least and options.target_peak is None:
        yield
        return
    from torch._inductor import compile_fx as module

    from peakmem_inductor import budgets

    def compile_with(inner: Any) -> Any:
        return module.compile_fx(_copy(gm), example_inputs, inner_compile=inner, config_patches=dict(patches) or None)

    trains = torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in example_inputs)
    target = None if options.least else options.target_peak
    if any(isinstance(x, torch.Tensor) and x.device.type != "cpu" for x in example_inputs):
        choice = budgets.Choice(target, (), "whole steps are modelled on the CPU only")
        warn(f"{'memory' if options.least else 'target_peak'}: {choice.reason}")
    elif not trains:
        choice = budgets.Choice(target, (), "the graph is not trained, so nothing is saved for a backward")
    else:
        with _active(None):
            choice = budgets.choose(compile_with, _active, target=target, time_limit=options.time_limit, pure=options.pure)
        if choice.reason:
            warn(f"target_peak: {choice.reason}" if target is not None else f"memory: {choice.reason}")
    add_choice(choice)
    if choice.chosen is None:
        yield
        return
    with choice.chosen.applied():
        yield


@contextmanager
def _own_graphs(wanted: bool) -> Iterator[None]:
    """Keep AOTAutograd from answering out of its cache, which would skip the generation of the other candidates."""
    from torch._functorch import config

    if wanted and hasattr(config, "enable_autograd_cache"):
        with config.patch(enable_autograd_cache=False):
            yield
    else:
        yield


# -- the hook ------------------------------------------------------------------------------------------------

_Loaded = Callable[[Any, Path], None]


@contextmanager
def _active(receive: _Loaded | None) -> Iterator[None]:
    """Modules that Inductor loads on this thread meanwhile go to ``receive``."""
    before = getattr(_local, "receive", None)
    _local.receive = receive
    try:
        yield
    finally:
        _local.receive = before


def _single(options: Options) -> _Loaded:
    """For modules loaded without compiling (a cache had the whole graph): one candidate."""

    def receive(module: Any, path: Path) -> None:
        module.call = Dispatcher([Candidate("default", module, path, module.call)], options)

    return receive


def _inner(options: Options, compile_inner: Any, gm: Any, example_inputs: Any, **kwargs: Any) -> Any:
    """Compile one graph with every candidate setting; the result runs the first one's module."""
    loaded: list[tuple[Any, Path]] = []

    def receive(module: Any, path: Path) -> None:
        loaded.append((module, path))

    def swap(module: Any, path: Path) -> None:
        candidates = [Candidate("default", module, path, module.call)]
        module.call = Dispatcher(candidates, options)
        made.append((module, candidates))

    made: list[tuple[Any, list[Candidate]]] = []
    extra = options.candidates[1:]
    graphs = [_copy(gm) for _ in extra] if extra else []
    with _active(swap):
        compiled = compile_inner(gm, example_inputs, **kwargs)
    if not made and any(n.op.startswith("call") for n in gm.graph.nodes):
        row = GraphReport(_name(kwargs), reason="Inductor made no Python program for the graph, or could not load it by its file")
        warn(f"{row.name} runs as Inductor wrote it: {row.reason}", row.reason)
        add(row)
    if len(made) != 1:
        return compiled
    _, candidates = made[0]
    for name, graph in zip(extra, graphs):
        loaded.clear()
        try:
            from torch._guards import TracingContext
            from torch._inductor import config

            patches = config_of(name)
            if patches is None:
                log.info("candidate %s: this version of torch has no such setting", name)
                continue
            with config.patch(patches), TracingContext.report_output_strides(), _active(receive):
                compile_inner(graph, example_inputs, **kwargs)
        except Exception as error:
            log.info("candidate %s: %s: %s", name, type(error).__name__, error)
            log.debug("candidate %s", name, exc_info=True)
            continue
        if len(loaded) == 1:
            candidates.append(Candidate(name, loaded[0][0], loaded[0][1], loaded[0][0].call))
    return compiled


def _name(kwargs: Mapping[str, Any]) -> str:
    kind = "backward" if kwargs.get("is_backward") else "inference" if kwargs.get("is_inference") else "forward"
    return f"{kwargs.get('graph_id')}_{kind}"


def _copy(gm: Any) -> Any:
    """A copy of a graph, its parameters shared, with all that compilations look at."""
    import copy

    import torch

    made = torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))
    made.meta.update(gm.meta)
    for name, value in vars(gm).items():
        made.__dict__.setdefault(name, value)
    for old, new in zip(gm.graph.nodes, made.graph.nodes):
        for name, value in vars(old).items():  # where arguments come from, which a copied node forgets
            if name not in vars(new):
                setattr(new, name, value)
    return made


def _install() -> None:
    """Watch `PyCodeCache.load_by_key_path`, once in a process; without a receiver it does what it always did."""
    from torch._inductor.codecache import PyCodeCache

    with _installed:
        present = PyCodeCache.__dict__["load_by_key_path"]
        if getattr(present, "_peakmem", False):
            return
        original = present.__func__

        @functools.wraps(original)
        def load_by_key_path(cls: Any, key: str, path: str, linemap: Any = None, attrs: Any = None, **more: Any) -> Any:
            module = original(cls, key, path, linemap, attrs, **more)
            receive = getattr(_local, "receive", None)
            if receive is not None and attrs is not None and callable(getattr(module, "call", None)):
                receive(module, Path(path))
            return module

        replacement: Any = classmethod(load_by_key_path)  # type: ignore[arg-type]
        replacement._peakmem = True
        PyCodeCache.load_by_key_path = replacement
