"""What got worse since an earlier survey."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from peakmem_cli.fleet.rows import Row


@dataclass(frozen=True)
class Comparison:
    """Rows beside those of an earlier survey, by the name of the model.

    Attributes
    ----------
    worse, better : tuple of str
        A sentence for each model.
    new, gone : tuple of str
        Models of one survey alone.
    """

    worse: tuple[str, ...]
    better: tuple[str, ...]
    new: tuple[str, ...]
    gone: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return {"worse": [*self.worse], "better": [*self.better], "new": [*self.new], "gone": [*self.gone]}

    @property
    def line(self) -> str:
        counts = ((self.worse, "worse"), (self.better, "better"), (self.new, "new"), (self.gone, "gone"))
        return "against the earlier survey: " + ", ".join(f"{len(which)} {what}" for which, what in counts)


def compare(rows: Sequence[Row], earlier: Sequence[Row], *, complete: bool) -> Comparison:
    """Compare; models without a row now are gone only if the survey was ``complete``."""
    then = {row.model.name: row for row in earlier}
    now = {row.model.name: row for row in rows}
    worse, better = [], []
    for name, row in now.items():
        if name in then:
            bad, good = _between(then[name], row)
            worse += [f"{name}: {'; '.join(bad)}"] if bad else []
            better += [f"{name}: {'; '.join(good)}"] if good and not bad else []
    new = tuple(name for name in now if name not in then)
    gone = tuple(sorted(name for name in then if name not in now)) if complete else ()
    return Comparison(tuple(worse), tuple(better), new, gone)


def _between(then: Row, now: Row) -> tuple[list[str], list[str]]:
    """What is worse and what is better."""
    from peakmem.report.words import change

    if now.result is None or then.result is None:
        if then.result is not None:
            return [f"failed: {now.error}"], []
        return [], ["answered again"] if now.result is not None else []
    bad: list[str] = []
    good: list[str] = []
    if then.quantity == now.quantity and then.after != now.after:
        sides = bad if now.after > then.after else good
        sides.append(f"{now.quantity} {then.after:,} B -> {now.after:,} B {change(then.after, now.after)}")
    if then.optimal != now.optimal:
        (good if now.optimal else bad).append("certified optimal" if now.optimal else "no longer certified optimal")
    if then.runtime["measured"] and not now.runtime["measured"]:
        bad.append("no longer measured")
    if then.runtime["bitwise_identical"] and now.runtime["bitwise_identical"] is False:
        bad.append("no longer bitwise identical")
    if then.code == 0 and now.code != 0:
        bad.append(now.error)
    return bad, good
