"""Two artifacts that are there already: the one before and the one after."""

from __future__ import annotations

from dataclasses import dataclass

from peakmem.frontends import Model, Progress, Wanted, certify, run_both
from peakmem.model import Schedule, UsageError, peak_of
from peakmem.report import words
from peakmem.result import Result
from peakmem.system.sizes import human


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
            known = words.proof(ordering.peak, ordering.lower_bound, certified=result.certificate is not None, overlays=result.overlays)
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
    measure: Wanted = True,
    progress: Progress | None = None,
) -> Pair:
    """Certify the second artifact and (with ``measure``) run both.

    Raises
    ------
    UsageError
        When they are not two versions of one program: other frontends, or other bytes at entry.
    RuntimeMissing, RuntimeFailed
        With ``measure="required"`` only.
    """
    other = model.same_kind(other)
    if model.realized_offset != other.realized_offset:
        raise UsageError(
            f"{other.path}: is no version of {model.path}: bytes resident at entry {other.realized_offset} instead of "
            f"{model.realized_offset}"
        )
    ordering = certify(other, time_limit=time_limit, progress=progress)
    seconds = {"order": ordering.seconds}
    found = run_both(model, other, wanted=measure, progress=progress)
    if measure:
        seconds["measure"] = found.seconds
    before, after = peak_of(model.program), peak_of(other.program)
    notes = tuple(dict.fromkeys((*model.notes, *other.notes, *ordering.notes)))
    return Pair(Result(model, other, ordering, Schedule({}), before, after, found, seconds, notes))
