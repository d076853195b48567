"""The documents ``peakmem.front/1`` and ``peakmem.result/1`` of a recomputation; ``docs/reference/documents.md`` describes them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from peakmem.frontends import Measurement, Model, Verification
from peakmem.model import Expansion, Schedule, cost_report
from peakmem.ordering import Ordering
from peakmem.result import Result, runtime_document
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
        Of the program as it is, nothing run twice; without overlays, as plans are.
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
        notes = [note for part in parts if part is not None for note in part.notes]
        if self.source.program.has_overlays:
            notes.append("plans of recomputation, and the peaks they are compared with, use no overlays")
        return tuple(dict.fromkeys(notes))

    def to_json(self, *, output: str | None = None) -> dict[str, Any]:
        """The document ``peakmem.front/1``."""
        program, first = self.source.program, self.problems[0]
        statement = self.floor.statement
        return {
            "schema": SCHEMA,
            "frontend": self.source.frontend,
            "input": str(self.source.path) if self.source.path else None,
            "output": output,
            "statements": len(program),
            "macs": self.macs,
            "uncounted": cost_report(program).uncounted,
            "never_twice": first.excluded,
            "cap": first.cap,
            "max_extra_macs": first.max_extra_macs,
            "live_peak_before": self.ordering.peak_before,
            "live_peak_ordered": self.ordering.peak,
            "floor": {
                "bytes": self.floor.size,
                "statement": None if statement is None else program.statements[statement].name,
                "reason": self.floor.sentence(program),
            },
            "at_floor": self.at_floor,
            "base_orders": [[program.statements[v].name for v in p.order] for p in self.problems],
            "complete": self.front.complete if self.front else False,
            "interrupted": self.interrupted,
            "points": [_point(p) for p in self.front.points] if self.front else [],
            "free_order": [
                {"live_peak": p.peak, "extra_macs": p.extra_macs, "extra_macs_any_order": macs} for p, macs in self.free
            ],
            "chosen": None if self.point is None else _point(self.point),
            "live_peak_after": None if self.reordering is None else self.reordering.peak,
            "unrealized": self.unrealized,
            "runtime": runtime_document(self.source, self.model, self.measurement),
            "seconds": {k: round(v, 4) for k, v in self.seconds.items()},
            "notes": list(self.notes),
        }


def result_document(found: Recomputation, *, output: str | None = None) -> dict[str, Any]:
    """The document ``peakmem.result/1`` with ``recompute``."""
    again, source = found.reordering, found.source
    ordering = again or found.ordering
    schedule = Schedule(ordering.orders, expansion=found.expansion if again else None)
    proved = again is None and ordering.certificate is not None
    bound, peak = ordering.lower_bound if proved else found.floor.size, ordering.peak
    result = Result(
        source, found.model or source, ordering, schedule, found.ordering.peak_before, peak, found.measurement, found.seconds
    )  # fmt: skip
    inner = found.to_json(output=output)
    inner["reordering"] = again and {
        "lower_bound": again.lower_bound if again.certificate else None,
        "optimal": again.certificate is not None and again.peak == again.lower_bound,
        "certificate": again.certificate.to_json() if again.certificate else None,
    }
    return {
        **result.to_json(output=output, extras=found.model is not None),
        "lower_bound": bound,
        "optimal": source.bounded and proved and peak == bound,
        "realized_bound": bound - source.realized_offset if source.bounded else None,
        "realized_optimal": False,  # where an order alone is optimal, no artifact with it was made here
        "gap": (peak - bound) / peak if peak else 0.0,
        "certificate": ordering.certificate.to_json() if proved and ordering.certificate else None,
        "runtime": inner.pop("runtime"),
        "seconds": inner.pop("seconds"),
        "notes": inner.pop("notes"),
        "recompute": inner,
    }


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
