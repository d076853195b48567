"""Orders of least peak.

`order_program` is the one entry: it orders bodies first, innermost first, then the program around them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from peakmem.model import Program, Refused, scheduled_timeline
from peakmem.system import clock
from peakmem.system.progress import Progress

if TYPE_CHECKING:
    from peakmem.ordering.meter import Meter
    from peakmem.ordering.portfolio import Flat
    from peakmem.ordering.problem import Problem
    from peakmem.proof import Certificate, CheckedCertificate


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
    certificate : CheckedCertificate or None
        Proof of ``lower_bound``, which the checker accepted.
    seconds, check_seconds : float
        For ordering, and for checking the certificate.
    interrupted : bool
        Stopped by Ctrl-C, by the time limit or by the effort before the search was complete.
    """

    program: Program
    orders: dict[str, tuple[int, ...]]
    peak_before: int
    peak: int
    lower_bound: int
    certificate: CheckedCertificate | None = None
    seconds: float = 0.0
    check_seconds: float = 0.0
    interrupted: bool = False
    notes: tuple[str, ...] = field(default=())


def order_program(
    program: Program,
    *,
    time_limit: float | None = None,
    effort: int | None = None,
    progress: Progress | None = None,
    artifact: Mapping[str, str] | None = None,
) -> Ordering:
    """Find orders of least peak, and a certificate for the bound that was reached.

    Bodies are ordered first, innermost first; the peak of a body enters the statement around it as workspace. The
    result is never worse than the given order, deterministic unless a time limit strikes, and an order that is
    already optimal is returned unchanged.

    Parameters
    ----------
    program : Program
    time_limit : float, optional
        Seconds; the best found by then is returned.
    effort : int, optional
        The same as units of work, about one a statement run at one state: without a time limit, the answer is then the same
        on any machine and under any load. See `peakmem.ordering.meter`.
    progress : callable, optional
    artifact : mapping, optional
        What the certificate says of the file that the program was read from; see `peakmem.proof.accept`.

    Returns
    -------
    Ordering
        Its ``lower_bound`` is the one that ``certificate`` proves, which the independent checker has accepted; without a
        certificate it is what the largest single statement needs. A `KeyboardInterrupt` ends the search, the writing of
        the proof or its check early instead of being raised.
    """
    from peakmem.ordering.meter import Meter
    from peakmem.ordering.problem import problem_of
    from peakmem.proof import Certificate, schema_of

    start = clock.now()
    meter = Meter(None if time_limit is None else start + time_limit, effort)
    given: dict[str, tuple[int, ...]] = {"": tuple(range(len(program)))}
    for path, body in program.bodies():
        given[path] = tuple(range(len(body)))
    before = scheduled_timeline(program, given).peak

    orders: dict[str, tuple[int, ...]] = {}
    peaks: dict[str, int] = {}
    proofs: dict[str, Any] = {}
    interrupted = False
    notes: list[str] = []
    for path, part in [*program.bodies(), ("", program)]:
        prefix = path + "/" if path else ""
        upper = _workspaces(part, prefix, peaks)
        lower = _workspaces(part, prefix, {p: proof["lower_bound"] for p, proof in proofs.items()})
        flat, stopped = _solve(problem_of(part, upper), meter, progress)
        interrupted |= stopped
        orders[path], peaks[path] = tuple(flat.order), flat.peak
        if lower != upper:
            # A body kept a gap: its proved bound, not its peak, may stand in a proof.
            flat, stopped = _solve(problem_of(part, lower), meter, progress)
            interrupted |= stopped
        proof, failed, stopped = _prove(flat, meter)
        interrupted |= stopped
        if failed:
            why = "writing out its proof was interrupted" if stopped else "its proof is too long to write out"
            notes.append(f"a bound of {failed:,} B was found by search, but {why}; the certificate proves the next lower one")
        if proof is not None:
            proofs[path] = proof
    if peaks[""] >= before:
        orders, peaks[""] = given, before
    bound = proofs[""]["lower_bound"] if "" in proofs else 0
    certificate = None
    if "" in proofs:
        certificate = Certificate(
            {
                "schema": schema_of(program, proofs),
                "program": {"digest": program.digest},
                "artifact": None,
                "lower_bound": bound,
                "orders": {path: list(order) for path, order in sorted(orders.items())},
                "peak": peaks[""],
                "proofs": proofs,
            }
        )
    seconds = clock.now() - start
    checked: CheckedCertificate | None = None
    if certificate is not None:
        if progress is not None:
            progress("checking the certificate")
        checked, note = _accepted(program, certificate, artifact)
        if note:
            bound = _largest_statement(program)
            notes.append(note)
    return Ordering(
        program=program,
        orders=orders,
        peak_before=before,
        peak=peaks[""],
        lower_bound=bound,
        certificate=checked,
        seconds=seconds,
        check_seconds=clock.now() - start - seconds,
        interrupted=interrupted and bound < peaks[""],
        notes=tuple(notes),
    )


def _accepted(
    program: Program, certificate: Certificate, artifact: Mapping[str, str] | None
) -> tuple[CheckedCertificate | None, str]:
    """The proof as the checker accepts it, or None and why not: the order is kept without it."""
    from peakmem.proof import accept

    try:
        return accept(program, certificate, artifact), ""
    except Refused as error:
        return None, f"peakmem's own checker refused the certificate of the order search ({error}); please report this"
    except KeyboardInterrupt:
        return None, "the certificate is left out, since checking it was interrupted"


def _largest_statement(program: Program) -> int:
    """Bytes of the statement that touches most: no order needs less. Bodies are left out. O(touches)."""
    sizes = [b.size for b in program.buffers]
    return max(
        (
            s.workspace + sum(sizes[b] for b in touched) - max((gain for _, gain in gains), default=0)
            for s, touched, gains in zip(program.statements, program.touched, program.gains)
        ),
        default=program.entry_bytes,
    )


def _workspaces(program: Program, prefix: str, inner: Mapping[str, int]) -> list[int]:
    return [
        s.workspace + max((inner.get(f"{prefix}{v}/{k}", 0) for k in range(len(s.bodies))), default=0)
        for v, s in enumerate(program.statements)
    ]


def _solve(problem: Problem, meter: Meter, progress: Progress | None) -> tuple[Flat, bool]:
    from peakmem.ordering.portfolio import Solver

    solver = Solver(problem, meter, progress)
    stopped = False
    try:
        solver.run()
    except KeyboardInterrupt:
        stopped = True
    return solver.result(), stopped or meter.out


WRITING = 400_000
"""Units of work that writing out a proof gets, however little time the search has left: two or three seconds."""


def _prove(flat: Flat, meter: Meter) -> tuple[dict[str, Any] | None, int, bool]:
    """The proof of the best bound that can be written out, the better bound that could not (or 0), and whether Ctrl-C
    is why; it then settles for a bound whose proof is short."""
    from peakmem.ordering.evidence import TooLarge, Writer
    from peakmem.ordering.meter import Meter, OutOfTime

    # What the search proved in time deserves to be written out, so the limits are stretched a little.
    effort = None if meter.effort is None else max(meter.effort - meter.spent, meter.effort // 4, 1_000_000)
    writing = Meter(meter.deadline, effort, granted=WRITING)
    failed, stopped = 0, False
    for evidence in flat.evidence:
        try:
            return Writer(evidence, meter=writing).write(), failed, stopped
        except (TooLarge, OutOfTime):
            failed = failed or evidence.level
        except KeyboardInterrupt:
            failed, stopped = failed or evidence.level, True
            writing = Meter(effort=WRITING)
    return None, failed, stopped
