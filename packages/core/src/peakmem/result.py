"""What an optimization returns, and its JSON ``peakmem.result/1``, which ``docs/reference/documents.md`` describes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from peakmem.frontends import Measurement, Model, Verification
from peakmem.model import Schedule
from peakmem.ordering import Ordering
from peakmem.proof import CheckedCertificate

SCHEMA = "peakmem.result/1"


@dataclass(frozen=True, repr=False)
class Result:
    """Outcome of `peakmem.optimize`.

    Attributes
    ----------
    source, model : Model
        The artifact given and the rewritten one.
    ordering : Ordering
        Orders, modelled liveness peaks, lower bound.
    schedule : Schedule
        What was realized.
    live_peak_after : int
        Liveness peak of the order that was realized, in bytes.
    measurement : Measurement
        What running both showed, or why nothing was run.
    """

    source: Model
    model: Model
    ordering: Ordering
    schedule: Schedule
    live_peak_before: int
    live_peak_after: int
    measurement: Measurement = field(default_factory=Measurement)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def certificate(self) -> CheckedCertificate | None:
        """Proof of ``lower_bound``; present only if the independent checker accepted it."""
        return self.ordering.certificate

    @property
    def verification(self) -> Verification | None:
        return self.measurement.verification

    @property
    def unmeasured(self) -> str:
        """Why nothing was run; empty where both ran."""
        return self.measurement.unmeasured

    @property
    def lower_bound(self) -> int:
        """No order of the program has a lower liveness peak, in bytes."""
        return self.ordering.lower_bound

    @property
    def overlays(self) -> bool:
        """Whether the program that the bound is about permits overlays: then it is about every way to use them too."""
        return self.ordering.program.has_overlays

    @property
    def optimal(self) -> bool:
        """The realized order's peak equals the lower bound, and a checked certificate proves that bound.

        Never where the bound says nothing about the quantity that the model realizes.
        """
        return self.source.bounded and self.certificate is not None and self.live_peak_after == self.lower_bound

    @property
    def gap(self) -> float:
        """(peak - bound) / peak, 0.0 when they are equal."""
        return (self.live_peak_after - self.lower_bound) / self.live_peak_after if self.live_peak_after else 0.0

    @property
    def realized_bound(self) -> int:
        """No order realizes fewer bytes of the model's quantity: the lower bound less what the quantity leaves out."""
        return self.lower_bound - self.source.realized_offset

    @property
    def realized_optimal(self) -> bool:
        """`optimal`, and the predicted bytes of the realized quantity equal `realized_bound`."""
        return self.optimal and self.model.predicted_bytes == self.realized_bound

    def __repr__(self) -> str:
        """One line: what, bytes before and after, what is proved, whether anything ran."""
        known = "optimal" if self.realized_optimal else f"lower bound {self.realized_bound:,} B" if self.source.bounded else "no bound"
        check = self.verification
        before, after = self.source.predicted_bytes, self.model.predicted_bytes
        ran = f", measured on {check.runtime}" if check is not None and check.measured else ", predicted"
        return f"<Result of {self.source.frontend}: {self.source.quantity} {before:,} -> {after:,} B, {known}{ran}>"

    def to_json(self, *, output: str | None = None, extras: bool = True) -> dict[str, Any]:
        """The document ``peakmem.result/1``, with what the frontend adds to it."""
        check = self.verification
        names = {path: _names(self, path, order) for path, order in self.schedule.orders.items()}
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "frontend": self.source.frontend,
            "input": str(self.source.path) if self.source.path else None,
            "output": output,
            "statements": len(self.source.program),
            "live_peak_before": self.live_peak_before,
            "live_peak_after": self.live_peak_after,
            "lower_bound": self.lower_bound,
            "optimal": self.optimal,
            **({"overlays": True} if self.overlays else {}),
            "realized_bound": self.realized_bound if self.source.bounded else None,
            "realized_optimal": self.realized_optimal,
            "gap": self.gap,
            "order": names,
            "certificate": self.certificate.to_json() if self.certificate else None,
            "seconds": {k: round(v, 4) for k, v in self.seconds.items()},
            "runtime": runtime_document(self.source, self.model, self.measurement),
            "input_rule": self.source.input_rule,
            "notes": [*self.notes, *(check.notes if check else ())],
        }
        added = self.source.extras(self.model, check) if extras else {}
        return {**document, self.source.frontend: added} if added else document


def runtime_document(source: Model, model: Model | None, found: Measurement) -> dict[str, Any]:
    """The entry ``runtime``: what ran, what was predicted, what was measured."""
    check = found.verification
    return {
        "name": check.runtime if check else None,
        "version": check.version if check else None,
        "quantity": source.quantity,
        "baseline_bytes": check.baseline_bytes if check else None,
        "baseline_predicted": source.predicted_bytes,
        "predicted_bytes": model.predicted_bytes if model else None,
        "optimized_bytes": check.optimized_bytes if check else None,
        "measured": bool(check and check.measured),
        "bitwise_identical": check.bitwise_identical if check else None,
        "varied": check.varied if check else None,
        "compared": check.compared if check else found.unmeasured,
    }


def _names(result: Result, path: str, order: tuple[int, ...]) -> list[str]:
    expansion = result.schedule.expansion
    program = expansion.program if expansion is not None else result.source.program
    if path:
        program = dict(program.bodies())[path]
    return [program.statements[v].name for v in order]
