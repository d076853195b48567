"""What ``import peakmem`` offers: load, optimize, certify, verify."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from peakmem.certificate import Certificate
from peakmem.errors import Refused, RuntimeFailed, RuntimeMissing
from peakmem.frontend import (
    Frontend,
    Model,
    Progress,
    Verification,
    complete_options,
    frontend_version,
    get_frontend,
    recognise,
)
from peakmem.liveness import scheduled_timeline
from peakmem.ordering import Ordering, order_program
from peakmem.program import Program
from peakmem.result import Result


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
    given: Mapping[str, Any] = options
    return chosen.load(path, complete_options(chosen, given))


def optimize(
    model: Model,
    *,
    time_limit: float | None = 60.0,
    measure: bool | Literal["required"] = True,
    progress: Progress | None = None,
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
    seconds: dict[str, float] = {}
    say: Progress = progress or (lambda _: None)
    start = time.monotonic()
    deadline = None if time_limit is None else start + time_limit
    ordering = order_program(model.program, time_limit=time_limit, progress=progress)
    seconds["order"] = time.monotonic() - start
    begin = time.monotonic()
    ordering = _checked(model, ordering, say)
    if ordering.certificate is not None:
        seconds["check"] = time.monotonic() - begin
    begin = time.monotonic()
    say("planning")
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
    verification: Verification | None = None
    unmeasured = "not run (measuring was turned off)"
    if measure:
        begin = time.monotonic()
        try:
            verification = model.verify(rewritten, progress=progress)
        except (RuntimeMissing, RuntimeFailed) as error:
            if measure == "required":
                raise
            unmeasured = str(error)
        except KeyboardInterrupt:
            unmeasured = "not run (interrupted)"
        seconds["measure"] = time.monotonic() - begin
    return Result(
        source=model,
        model=rewritten,
        ordering=ordering,
        schedule=schedule,
        certificate=ordering.certificate,
        live_peak_before=ordering.peak_before,
        live_peak_after=scheduled_timeline(program, schedule.orders).peak,
        verification=verification,
        unmeasured=unmeasured,
        seconds=seconds,
        notes=(*model.notes, *ordering.notes, *schedule.notes),
    )


def certify(model: Model, *, time_limit: float | None = 60.0, progress: Progress | None = None) -> Ordering:
    """Order only: the best order, the bound and its certificate, nothing rewritten.

    A certificate that comes back was accepted by `peakmem.check`.
    """
    ordering = order_program(model.program, time_limit=time_limit, progress=progress)
    return _checked(model, ordering, progress or (lambda _: None))


def _checked(model: Model, ordering: Ordering, say: Progress) -> Ordering:
    """Name the artifact in the certificate and let the independent checker judge it; a refused one is dropped."""
    if ordering.certificate is None:
        return ordering
    from peakmem.check import check

    document = {
        **ordering.certificate.to_json(),
        "artifact": {
            "digest": model.digest,
            "frontend": model.frontend,
            "version": frontend_version(model.frontend) or "unknown",  # a model need not come from a distribution
        },
    }
    say("checking the certificate")
    try:
        check(model.program, document)
    except Refused as error:
        note = f"peakmem's own checker refused the certificate of the order search ({error}); please report this"
        return _unproved(model, ordering, note)
    except KeyboardInterrupt:
        return _unproved(model, ordering, "the certificate is left out, since checking it was interrupted")
    return replace(ordering, certificate=Certificate(document))


def _unproved(model: Model, ordering: Ordering, note: str) -> Ordering:
    """The order without its proof, and so without the bound; what the largest single statement needs is plain to see."""
    bound = _largest_statement(model.program)
    return replace(ordering, certificate=None, lower_bound=bound, notes=(*ordering.notes, note))


def _largest_statement(program: Program) -> int:
    """Bytes of the statement that touches most: no order needs less. Bodies are left out. O(touches)."""
    sizes = [b.size for b in program.buffers]
    return max(
        (s.workspace + sum(sizes[b] for b in touched) for s, touched in zip(program.statements, program.touched)),
        default=program.entry_bytes,
    )


def verify(model: Model, other: Model, *, progress: Progress | None = None) -> Verification:
    """Run two artifacts on the real runtime: bits equal? measured == modelled?"""
    return model.verify(other, progress=progress)
