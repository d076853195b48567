"""What ``import peakmem`` offers: load, optimize, certify, verify."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from peakmem.frontends.contract import Frontend, Model, Verification
from peakmem.frontends.options import complete_options
from peakmem.frontends.registry import get_frontend, recognise
from peakmem.frontends.steps import Wanted, certify, run_both
from peakmem.model import RuntimeFailed, RuntimeMissing, scheduled_timeline
from peakmem.result import Result
from peakmem.system.progress import Progress, silent

__all__ = ["certify", "load", "optimize", "verify"]


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
    model: Model, *, time_limit: float | None = 60.0, measure: Wanted = True, progress: Progress | None = None
) -> Result:
    """Order, plan, rewrite and (with ``measure``) run an artifact.

    Parameters
    ----------
    model : Model
    time_limit : float, optional
        Seconds for ordering and planning together; None for no limit.
    measure : bool or "required"
        Run both artifacts on the real runtime. Where that cannot be done, ``Result.unmeasured`` says why; with
        ``"required"`` it is an error.
    progress : callable, optional

    Raises
    ------
    RuntimeMissing, RuntimeFailed
        With ``measure="required"`` only.
    """
    start = time.monotonic()
    deadline = None if time_limit is None else start + time_limit
    ordering = certify(model, time_limit=time_limit, progress=progress)
    seconds = {"order": ordering.seconds}
    if ordering.certificate is not None:
        seconds["check"] = ordering.check_seconds
    begin = time.monotonic()
    (progress or silent)("planning")
    try:
        schedule = model.schedule(ordering, deadline=deadline)
    except KeyboardInterrupt:  # keep the order; plan what can be planned at once
        schedule = model.schedule(ordering, deadline=time.monotonic())
    seconds["plan"] = time.monotonic() - begin
    begin = time.monotonic()
    try:
        rewritten = model.apply(schedule)
    except KeyboardInterrupt:  # nothing is searched here: the result is worth the moment it takes
        rewritten = model.apply(schedule)
    seconds["apply"] = time.monotonic() - begin
    program = schedule.expansion.program if schedule.expansion is not None else model.program
    found = run_both(model, rewritten, wanted=measure, progress=progress)
    if measure:
        seconds["measure"] = found.seconds
    after, notes = scheduled_timeline(program, schedule.orders).peak, (*model.notes, *ordering.notes, *schedule.notes)
    return Result(model, rewritten, ordering, schedule, ordering.peak_before, after, found, seconds, notes)


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
