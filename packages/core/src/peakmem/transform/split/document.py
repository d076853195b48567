"""What a splitting returns, and its document ``peakmem.result/1`` with ``split``; ``docs/howto/split.md`` describes it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from peakmem.frontends import Measurement, Model, Verification
from peakmem.frontends.splitting import Region, Split
from peakmem.model import Schedule, peak_of
from peakmem.ordering import Ordering
from peakmem.result import Result, runtime_document
from peakmem.system.sizes import in_bytes
from peakmem.transform.split.search import Searched


@dataclass(kw_only=True)
class Splitting:
    """What was found for an artifact, and what was made of it.

    Attributes
    ----------
    source : Model
        The artifact given.
    ordering : Ordering
        Of its program as it is: the best order, and the bound that no order of it undercuts.
    macs : int
        MACs of the program.
    most : int or None
        How many more a split might cost; None where regions were given.
    target : int or None
        Bytes that were asked for.
    search : Searched or None
        The front; None where the regions were given.
    split : Split or None
        The regions that were realized; none in it where an order alone met the target.
    written, model : Model or None
        The artifact split, and the same ordered and planned; None where ``reason`` says why.
    reordering : Ordering or None
        Of the split program.
    schedule : Schedule or None
        Of the split program, as realized.
    measurement : Measurement
        What running the given artifact and the split one showed.
    reason : str
        Why nothing was made.
    overhead : int
        Bytes that a further statement costs the runtime beside the quantity, about.
    weight : int
        Of those, what the search counts.
    """

    source: Model
    ordering: Ordering
    macs: int
    most: int | None = None
    target: int | None = None
    search: Searched | None = None
    split: Split | None = None
    written: Model | None = None
    model: Model | None = None
    reordering: Ordering | None = None
    schedule: Schedule | None = None
    measurement: Measurement = field(default_factory=Measurement)
    reason: str = ""
    overhead: int = 0
    weight: int = 0
    interrupted: bool = False
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def verification(self) -> Verification | None:
        return self.measurement.verification

    @property
    def added(self) -> int:
        """How many statements the split program has more than the given one."""
        return 0 if self.split is None else len(self.split.steps) - len(self.source.program)

    @property
    def unsplit_bound(self) -> int | None:
        """No order of the unsplit program realizes fewer bytes of the model's quantity; None where that is not proved."""
        if self.ordering.certificate is None or not self.source.bounded:
            return None
        return self.ordering.lower_bound - self.source.realized_offset

    @property
    def unsplit_optimal(self) -> bool:
        """Whether an order of the unsplit program reaches that bound."""
        return self.unsplit_bound is not None and self.ordering.peak == self.ordering.lower_bound

    @property
    def result(self) -> Result | None:
        """The split program ordered and planned, as `peakmem.optimize` would return it; None where nothing was made."""
        if self.written is None or self.model is None or self.reordering is None or self.schedule is None:
            return None
        after = peak_of(self.model.program)
        notes = (*self.reordering.notes, *self.schedule.notes)
        return Result(
            self.written, self.model, self.reordering, self.schedule, peak_of(self.source.program), after, self.measurement,
            self.seconds, notes,
        )  # fmt: skip

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences a reader must know, each once."""
        parts = (self.source, self.ordering, self.reordering, self.schedule, self.model, self.verification)
        return tuple(dict.fromkeys([*self._beside(), *(note for part in parts if part is not None for note in part.notes)]))

    def _beside(self) -> list[str]:
        """Whether the further statements take more than the quantity saves."""
        if self.split is None or self.model is None:
            return []
        taken, saved = self.added * self.overhead, self.source.predicted_bytes - self.model.predicted_bytes
        if taken <= saved:
            return []
        return [f"{self.added} more statements take about {in_bytes(taken)} beside {self.source.quantity}, estimated, more than the {in_bytes(saved)} saved; without --objective peak both are counted"]

    def to_json(self, *, output: str | None = None) -> dict[str, Any]:
        """The document ``peakmem.result/1``: of the split program where one was made, with ``split``."""
        made = self.result
        base = made or Result(
            self.source, self.source, self.ordering, Schedule(self.ordering.orders), self.ordering.peak_before,
            self.ordering.peak, self.measurement, self.seconds,
        )  # fmt: skip
        check = self.verification
        extras = self.source.extras(self.model, check) if self.model is not None else {}
        return {
            **base.to_json(output=output, extras=False),
            "input": str(self.source.path) if self.source.path else None,
            "statements": len(self.source.program),
            "runtime": runtime_document(self.source, self.model, self.measurement),
            "seconds": {k: round(v, 4) for k, v in self.seconds.items()},
            "notes": list(self.notes),
            "split": self._split(),
            **({self.source.frontend: extras} if extras else {}),
        }

    def _split(self) -> dict[str, Any]:
        names = [s.name for s in self.source.program.statements]

        def region(order: tuple[int, ...], r: Region) -> dict[str, Any]:
            return {"statements": [names[v] for v in order[r.first : r.last + 1]], "bands": r.bands, "axis": r.axis, "halo": "kept" if r.kept else "computed"}

        return {
            "reason": self.reason or None,
            "macs": self.macs,
            "max_extra_macs": self.most,
            "target_peak": self.target,
            "unsplit": {
                "live_peak": self.ordering.peak,
                "lower_bound": self.ordering.lower_bound if self.ordering.certificate else None,
                "optimal": self.unsplit_optimal,
                "certificate": self.ordering.certificate.to_json() if self.ordering.certificate else None,
            },
            "regions": [region(self.split.order, r) for r in self.split.regions] if self.split is not None else [],
            "extra_macs": self.split.extra_macs if self.split is not None else None,
            "statements": len(self.split.steps) if self.split is not None else None,
            "front": [
                {
                    "live_peak": p.peak, "extra_macs": p.extra_macs, "statements": len(names) + p.added,
                    "regions": [region(p.order, r) for r in p.regions],
                }
                for p in self.search.points
            ] if self.search is not None else [],
            "complete": self.search.complete if self.search is not None else None,
            "interrupted": self.interrupted,
        }  # fmt: skip
