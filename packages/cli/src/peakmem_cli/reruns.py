"""What is asked of a recomputation, as three commands offer it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from peakmem.model import UsageError

from peakmem_cli.common import size

if TYPE_CHECKING:
    from peakmem.frontends import Model, Progress, Wanted
    from peakmem.transform.recompute import Recomputation

TargetPeak = Annotated[
    int | None,
    typer.Option("--target-peak", metavar="SIZE", parser=size, help="Choose the cheapest plan with this live peak or less."),
]
MaxExtraMacs = Annotated[
    str | None,
    typer.Option("--max-extra-macs", metavar="N|P%", help="Spend no more than this; chooses the lowest peak within."),
]
Cap = Annotated[int, typer.Option("--cap", metavar="N", help="The most times any operator runs.")]
Threshold = Annotated[
    list[str] | None,
    typer.Option("--threshold", metavar="OP=SIZE", help="Results of OP are candidates only above SIZE; repeatable."),
]


@dataclass(frozen=True)
class Reruns:
    """The four options together."""

    target_peak: int | None = None
    max_extra_macs: str | None = None
    cap: int = 2
    threshold: tuple[str, ...] = ()

    @property
    def given(self) -> bool:
        return self != Reruns()

    @property
    def thresholds(self) -> dict[str, int]:
        """``OP=SIZE`` as a map."""
        from peakmem.system.sizes import parse_size

        result = {}
        for text in self.threshold:
            op, equals, number = text.rpartition("=")
            if not equals or not op:
                raise UsageError(f"--threshold: {text!r} is not OP=SIZE, such as Conv=64KiB")
            try:
                result[op] = parse_size(number)
            except UsageError as error:
                raise UsageError(f"--threshold: {error}") from None
        return result

    def named(self) -> dict[str, object]:
        """The options as a page names them."""
        said: dict[str, object] = {"--recompute": "yes", "--cap": self.cap}
        if self.target_peak is not None:
            said["--target-peak"] = f"{self.target_peak:,} B"
        if self.max_extra_macs is not None:
            said["--max-extra-macs"] = self.max_extra_macs
        if self.threshold:
            said["--threshold"] = list(self.threshold)
        return said

    def look(self, model: Model, *, time_limit: float | None, measure: Wanted, progress: Progress | None) -> Recomputation:
        """Plan, and realize what was asked for."""
        import peakmem

        return peakmem.recompute(
            model,
            target_peak=self.target_peak,
            max_extra_macs=self.max_extra_macs,
            cap=self.cap,
            thresholds=self.thresholds,
            time_limit=time_limit,
            measure=measure,
            progress=progress,
        )
