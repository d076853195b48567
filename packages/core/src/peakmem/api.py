"""What ``import peakmem`` offers: load, optimize, certify, verify, and order for a graph of one's own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from peakmem.frontends.contract import Frontend, Model, Verification
from peakmem.frontends.options import complete_options
from peakmem.frontends.registry import get_frontend, recognise
from peakmem.frontends.steps import Wanted, certify, run_both
from peakmem.model import RuntimeFailed, RuntimeMissing, scheduled_timeline
from peakmem.ordering import order_program
from peakmem.ordering.owngraph import Ordered, program_from_graph
from peakmem.result import Result
from peakmem.system import clock
from peakmem.system.progress import Progress, silent

__all__ = ["certify", "load", "optimize", "order", "verify"]


def load(path: str | Path, *, frontend: str | None = None, **options: Any) -> Model:
    """Read an artifact.

    Parameters
    ----------
    path : str or Path
    frontend : str, optional
        Recognised from the content when not given.
    **options
        Options of that frontend; see ``peakmem frontends``.
    """
    path = Path(path)
    chosen: Frontend = get_frontend(frontend) if frontend else recognise(path)
    return chosen.load(path, complete_options(chosen, options))


def optimize(
    model: Model,
    *,
    time_limit: float | None = 60.0,
    effort: int | None = None,
    measure: Wanted = True,
    progress: Progress | None = None,
) -> Result:
    """Order, plan, rewrite and (with ``measure``) run an artifact.

    Parameters
    ----------
    model : Model
    time_limit : float, optional
        Seconds for ordering, planning and measuring together; None for no limit. Measuring gets at least 20, whatever the others took.
    effort : int, optional
        A limit of the ordering in units of work, the same on any machine; see `peakmem.ordering.order_program`.
    measure : bool or "required"
        Run both artifacts on the real runtime. Where that cannot be done, ``Result.unmeasured`` says why; with
        ``"required"`` it is an error.
    progress : callable, optional

    Raises
    ------
    RuntimeMissing, RuntimeFailed
        With ``measure="required"`` only.
    """
    start = clock.now()
    deadline = None if time_limit is None else start + time_limit
    ordering = certify(model, time_limit=time_limit, effort=effort, progress=progress)
    seconds = {"order": ordering.seconds}
    if ordering.certificate is not None:
        seconds["check"] = ordering.check_seconds
    begin = clock.now()
    (progress or silent)("planning")
    try:
        schedule = model.schedule(ordering, deadline=deadline)
    except KeyboardInterrupt:  # keep the order; plan what can be planned at once
        schedule = model.schedule(ordering, deadline=clock.now())
    seconds["plan"] = clock.now() - begin
    begin = clock.now()
    try:
        rewritten = model.apply(schedule)
    except KeyboardInterrupt:  # nothing is searched here: the result is worth the moment it takes
        rewritten = model.apply(schedule)
    seconds["apply"] = clock.now() - begin
    program = schedule.expansion.program if schedule.expansion is not None else model.program
    found = run_both(model, rewritten, wanted=measure, deadline=deadline, progress=progress)
    if measure:
        seconds["measure"] = found.seconds
    after, notes = scheduled_timeline(program, schedule.orders).peak, (*model.notes, *ordering.notes, *schedule.notes)
    return Result(model, rewritten, ordering, schedule, ordering.peak_before, after, found, seconds, notes)


def order(
    graph: Any,
    sizes: Mapping[Any, Any] | str,
    *,
    outputs: Iterable[Any] | None = None,
    pinned: Iterable[Any] = (),
    workspace: Mapping[Any, Any] | None = None,
    overlays: Mapping[Any, Any] | None = None,
    time_limit: float | None = 60.0,
    effort: int | None = None,
    progress: Progress | None = None,
) -> Ordered:
    """Find an order of least peak for a graph of one's own, with its proof.

    Parameters
    ----------
    graph : networkx.DiGraph or dict
        A node of a networkx graph is a statement that writes one buffer of the same name; an edge leads from it to a statement
        that reads this buffer. Or a dict from statements to what they read and write:
        ``{"conv": (["x"], ["y"]), "add": {"reads": ["x", "y"], "writes": ["z"], "workspace": 64}}``.
        Statements wait for who writes what they read, wherever it is listed. Where a buffer is written more than once, or
        in place, the statements that touch it run in the order of the dict.
    sizes : dict or str
        Bytes of each buffer, whole numbers (numpy's too); for a networkx graph perhaps the node attribute that holds them.
    outputs : iterable, optional
        Buffers kept to the end; if not given, those that are written and never read.
    pinned : iterable, optional
        Other buffers that are never freed, such as inputs that belong to the caller. An input (read, never written) is resident
        from the beginning and freed after its last use.
    workspace : dict, optional
        Bytes that a statement needs while it runs, beside what it reads and writes.
    overlays : dict, optional
        Statements that may write an output on top of one of their inputs where that one is not needed any more:
        ``{"relu": ("z", ["y"])}``. The output is one that no other statement writes, the inputs are read and not written by the
        statement, and not pinned. The peaks, the bound and its proof are then over orders and all ways to use this.
    time_limit : float, optional
        Seconds; None for no limit.
    effort : int, optional
        A limit in units of work, the same on any machine; see `peakmem.ordering.order_program`.
    progress : callable, optional

    Raises
    ------
    InputError
        For sizes that are missing, negative or no whole numbers, names that are unknown, statements that wait for each other.
    """
    program, names = program_from_graph(graph, sizes, outputs=outputs, pinned=pinned, workspace=workspace, overlays=overlays)
    found = order_program(program, time_limit=time_limit, effort=effort, progress=progress)
    return Ordered(found, tuple(names[v] for v in found.orders[""]))


def verify(model: Model, other: Model, *, outputs_only: bool = False, progress: Progress | None = None) -> Verification:
    """Is the second artifact the first one rewritten, and if so: bits equal? measured == modelled?

    First the two files are compared as they are: the same statements, constants and attributes, permuted, perhaps some of
    them twice. Where they are different programs nothing is run, and ``failures`` holds the first difference.

    Parameters
    ----------
    model, other : Model
    outputs_only : bool
        Run and compare whatever the files hold.
    progress : callable, optional

    Raises
    ------
    UsageError
        When two frontends read them.
    RuntimeMissing, RuntimeFailed
        As `Model.verify`.
    """
    structure = model.structure(other)
    if outputs_only or not structure.difference:
        told = f"different programs: {structure.difference}" if structure.difference else structure.relation
        try:
            return replace(model.verify(other, progress=progress), structure=told)
        except (RuntimeMissing, RuntimeFailed) as error:  # what the files say is known all the same
            raise type(error)(f"{error} (from the files: {told})") from None
    return Verification(
        "", "", model.quantity, None, None, model.predicted_bytes, other.predicted_bytes, bitwise_identical=None,
        structure=f"different programs: {structure.difference}",
        failures=(f"these are different programs: {structure.difference}",),
        notes=("nothing was run; --outputs-only compares what they give all the same",),
    )  # fmt: skip
