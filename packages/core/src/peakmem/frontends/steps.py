"""What every verb does with a model: certify its order; run it beside what was made of it, or say why not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from peakmem.frontends.contract import Model, Verification
from peakmem.frontends.registry import frontend_version
from peakmem.model import RuntimeFailed, RuntimeMissing
from peakmem.ordering import Ordering, order_program
from peakmem.system import clock
from peakmem.system.progress import Progress

LEAST = 20.0
"""Seconds that measuring gets, however long ordering and planning took."""

Wanted = bool | Literal["required"]
"""Whether to run; with ``"required"`` it is an error where that cannot be done."""


@dataclass(frozen=True)
class Measurement:
    """What running showed.

    Attributes
    ----------
    verification : Verification or None
    unmeasured : str
        Why there is none; empty where there is one.
    seconds : float
    """

    verification: Verification | None = None
    unmeasured: str = "not run (measuring was turned off)"
    seconds: float = 0.0


def run_both(
    model: Model, other: Model, *, wanted: Wanted = True, deadline: float | None = None, progress: Progress | None = None
) -> Measurement:
    """Run both on the real runtime and compare.

    ``deadline`` is a moment of `peakmem.system.clock`; it is kept where the frontend can end a run, but `LEAST` seconds there always are.

    Ctrl-C ends the running, not the caller: what was found before is still worth printing.

    Raises
    ------
    RuntimeMissing, RuntimeFailed
        With ``wanted="required"`` only.
    """
    if not wanted:
        return Measurement()
    begin = clock.now()
    seconds = None if deadline is None else max(LEAST, deadline - begin)
    try:
        return Measurement(model.verify_within(other, seconds, progress=progress), "", clock.now() - begin)
    except (RuntimeMissing, RuntimeFailed) as error:
        if wanted == "required":
            raise
        return Measurement(None, str(error), clock.now() - begin)
    except KeyboardInterrupt:
        return Measurement(None, "not run (interrupted)", clock.now() - begin)


def certify(
    model: Model, *, time_limit: float | None = 60.0, effort: int | None = None, progress: Progress | None = None
) -> Ordering:
    """Order only: the best order, the bound and its certificate, nothing rewritten.

    A certificate that comes back was accepted by `peakmem.proof.check` and names the artifact.
    """
    artifact = {
        "digest": model.digest,
        "frontend": model.frontend,
        "version": frontend_version(model.frontend) or "unknown",  # a model need not come from a distribution
    }
    return order_program(model.program, time_limit=time_limit, effort=effort, progress=progress, artifact=artifact)
