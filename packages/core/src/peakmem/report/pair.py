"""Two artifacts that are there already: the one before and the one after."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from peakmem import words
from peakmem.errors import RuntimeFailed, RuntimeMissing, UsageError
from peakmem.frontend import Model, Progress, Verification
from peakmem.liveness import timeline
from peakmem.result import Result, realized_offset
from peakmem.schedule import Schedule
from peakmem.sizes import human


@dataclass(frozen=True)
class Pair:
    """What is known of two artifacts.

    Attributes
    ----------
    result : Result
        ``source`` and ``model`` are the two. The bound and its certificate are those of the *second* program: no order of
        its statements needs less, whatever the first file was.
    """

    result: Result

    @property
    def answer(self) -> str:
        """As the first line of ``optimize``; it says so where the second file is not in the best order found."""
        result = self.result
        ordering = result.ordering
        if ordering.peak < result.live_peak_after:
            known = words.proof(ordering.peak, ordering.lower_bound, certified=result.certificate is not None)
            instead = "" if result.source.quantity == "live_peak" else f" instead of {human(result.live_peak_after)}"
            return words.answer(
                result, known=f"an order with a live_peak of {human(ordering.peak)}{instead} exists, {known}"
            )
        return words.answer(result)


def compare(
    model: Model,
    other: Model,
    *,
    time_limit: float | None = 60.0,
    measure: bool | Literal["required"] = True,
    progress: Progress | None = None,
) -> Pair:
    """Certify the second artifact and (with ``measure``) run both.

    Raises
    ------
    UsageError
        When they are not two versions of one program: other frontends, quantities, or bytes at entry.
    RuntimeMissing, RuntimeFailed
        With ``measure="required"`` only.
    """
    from peakmem.api import certify

    for what, first, second in (
        ("frontend", model.frontend, other.frontend),
        ("quantity", model.quantity, other.quantity),
        ("bytes resident at entry", realized_offset(model), realized_offset(other)),
    ):
        if first != second:
            raise UsageError(f"{other.path}: is no version of {model.path}: {what} {second} instead of {first}")
    begin = time.monotonic()
    ordering = certify(other, time_limit=time_limit, progress=progress)
    seconds = {"order": time.monotonic() - begin}
    verification: Verification | None = None
    unmeasured = "not run (measuring was turned off)"
    if measure:
        begin = time.monotonic()
        try:
            verification = model.verify(other, progress=progress)
        except (RuntimeMissing, RuntimeFailed) as error:
            if measure == "required":
                raise
            unmeasured = str(error)
        except KeyboardInterrupt:
            unmeasured = "not measured (interrupted)"
        seconds["measure"] = time.monotonic() - begin
    result = Result(
        source=model,
        model=other,
        ordering=ordering,
        schedule=Schedule({}),
        certificate=ordering.certificate,
        live_peak_before=timeline(model.program).peak,
        live_peak_after=timeline(other.program).peak,
        verification=verification,
        unmeasured=unmeasured,
        seconds=seconds,
        notes=tuple(dict.fromkeys((*model.notes, *other.notes, *ordering.notes))),
    )
    return Pair(result)
