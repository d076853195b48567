"""The documents ``peakmem.front/1`` and ``peakmem.result/1`` of a recomputation; ``docs/reference/documents.md`` describes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from peakmem.frontends import Measurement, Model, Verification
from peakmem.model import Expansion, cost_report
from peakmem.ordering import Ordering
from peakmem.result import SCHEMA as RESULT
from peakmem.result import runtime_document
from peakmem.transform.recompute.floors import Floor
from peakmem.transform.recompute.pareto import Front, Point
from peakmem.transform.recompute.reruns import RerunProblem

SCHEMA = "peakmem.front/1"


@dataclass(kw_only=True)
class Enlarged:
    """What was found for a program, and the program with copies.

    Attributes
    ----------
    ordered_peak : int
        Bytes of the best order, nothing run twice.
    problems : list of RerunProblem
        One for each base order tried.
    floor : Floor
    front : Front or None
        None when only a target was asked for.
    point : Point or None
        The chosen plan. Its peak may lie above the target, where the enlarged program in its new order does not.
    free : list of (Point, int)
        For small programs: points of the front (or the chosen one), with the least extra MACs over *every* base order.
    expansion : Expansion or None
        The enlarged program; None without a chosen plan, or where ``unrealized`` says why.
    reordering : Ordering or None
        Of the enlarged program; its certificate, if any, is a proof about that program alone.
    interrupted : bool
    seconds : dict of str to float
    """

    ordered_peak: int
    problems: list[RerunProblem]
    floor: Floor
    front: Front | None = None
    point: Point | None = None
    free: list[tuple[Point, int]] = field(default_factory=list)
    expansion: Expansion | None = None
    reordering: Ordering | None = None
    unrealized: str = ""
    interrupted: bool = False
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def at_floor(self) -> bool:
        """Recomputation cannot help: the best order already needs no more than every schedule does."""
        return self.ordered_peak <= self.floor.size

    @property
    def macs(self) -> int:
        return self.problems[0].total_macs


@dataclass(kw_only=True)
class Recomputation(Enlarged):
    """What was found for an artifact, and what was made of it.

    Attributes
    ----------
    source : Model
    ordering : Ordering
        Of the program as it is, nothing run twice.
    model : Model or None
        The rewritten artifact; None without a chosen plan, or where ``unrealized`` says why.
    measurement : Measurement
        What running both showed, or why nothing was run.
    """

    source: Model
    ordering: Ordering
    model: Model | None = None
    measurement: Measurement = field(default_factory=Measurement)

    @property
    def verification(self) -> Verification | None:
        return self.measurement.verification

    @property
    def unmeasured(self) -> str:
        return self.measurement.unmeasured

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences a reader must know, each once: of both artifacts, of both orderings, of the measurement."""
        parts = (self.source, self.ordering, self.reordering, self.model, self.verification)
        return tuple(dict.fromkeys(note for part in parts if part is not None for note in part.notes))

    def to_json(self, *, output: str | None = None) -> dict[str, Any]:
        """The document ``peakmem.front/1``."""
        return front_document(self, output=output)


def front_document(found: Recomputation, *, output: str | None = None) -> dict[str, Any]:
    """The document ``peakmem.front/1``."""
    program, first = found.source.program, found.problems[0]
    statement = found.floor.statement
    return {
        "schema": SCHEMA,
        "frontend": found.source.frontend,
        "input": str(found.source.path) if found.source.path else None,
        "output": output,
        "statements": len(program),
        "macs": found.macs,
        "uncounted": cost_report(program).uncounted,
        "never_twice": first.excluded,
        "cap": first.cap,
        "max_extra_macs": first.max_extra_macs,
        "live_peak_before": found.ordering.peak_before,
        "live_peak_ordered": found.ordering.peak,
        "floor": {
            "bytes": found.floor.size,
            "statement": None if statement is None else program.statements[statement].name,
            "reason": found.floor.sentence(program),
        },
        "at_floor": found.at_floor,
        "base_orders": [[program.statements[v].name for v in p.order] for p in found.problems],
        "complete": found.front.complete if found.front else False,
        "interrupted": found.interrupted,
        "points": [_point(p) for p in found.front.points] if found.front else [],
        "free_order": [
            {"live_peak": p.peak, "extra_macs": p.extra_macs, "extra_macs_any_order": macs} for p, macs in found.free
        ],
        "chosen": None if found.point is None else _point(found.point),
        "live_peak_after": None if found.reordering is None else found.reordering.peak,
        "unrealized": found.unrealized,
        "runtime": runtime_document(found.source, found.model, found.measurement),
        "seconds": {k: round(v, 4) for k, v in found.seconds.items()},
        "notes": list(found.notes),
    }


def result_document(found: Recomputation, *, output: str | None = None) -> dict[str, Any]:
    """The document ``peakmem.result/1`` with ``recompute``."""
    again = found.reordering
    ordering, program = found.ordering, found.source.program
    if again is not None and found.expansion is not None:
        ordering, program = again, found.expansion.program
    bodies = dict(program.bodies())
    proved = again is None and ordering.certificate is not None
    bound = ordering.lower_bound if proved else found.floor.size
    peak = ordering.peak
    check = found.verification
    inner = front_document(found, output=output)
    inner["reordering"] = again and {
        "lower_bound": again.lower_bound if again.certificate else None,
        "optimal": again.certificate is not None and again.peak == again.lower_bound,
        "certificate": again.certificate.to_json() if again.certificate else None,
    }
    document: dict[str, Any] = {
        "schema": RESULT,
        "frontend": found.source.frontend,
        "input": inner["input"],
        "output": output,
        "statements": len(found.source.program),
        "live_peak_before": found.ordering.peak_before,
        "live_peak_after": peak,
        "lower_bound": bound,
        "optimal": found.source.bounded and proved and peak == bound,
        "realized_bound": bound - found.source.realized_offset if found.source.bounded else None,
        "realized_optimal": False,  # where an order alone is optimal, no artifact with it was made here
        "gap": (peak - bound) / peak if peak else 0.0,
        "order": {
            path: [(bodies[path] if path else program).statements[v].name for v in order]
            for path, order in ordering.orders.items()
        },
        "certificate": ordering.certificate.to_json() if proved and ordering.certificate else None,
        "seconds": inner.pop("seconds"),
        "runtime": inner.pop("runtime"),
        "input_rule": found.source.input_rule,
        "notes": inner.pop("notes"),
        "recompute": inner,
    }
    if found.model is not None:
        extras = found.source.extras(found.model, check)
        if extras:
            document[found.source.frontend] = extras
    return document


def _point(point: Point) -> dict[str, Any]:
    plan, problem = point.plan, point.plan.problem
    statements = problem.program.statements
    return {
        "live_peak": point.peak,
        "extra_macs": point.extra_macs,
        "exact": point.exact,
        "lower_bound_macs": point.lower_bound,
        "base_order": point.base,
        "reruns": [
            {"before": statements[problem.order[gap]].name, "run": [statements[v].name for v in problem.units[u].members]}
            for gap, u in plan.reruns
        ],
    }
