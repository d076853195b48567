"""What happened to each graph compiled with ``backend="peakmem"``."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from peakmem_inductor.rows import GraphReport as GraphReport

if TYPE_CHECKING:
    from peakmem_inductor.budgets import Choice
    from peakmem_inductor.steps import StepReport


class Report(list[GraphReport]):
    """A list of `GraphReport`; prints as a table, then what is known of whole training steps.

    Attributes
    ----------
    steps : list of StepReport
        One for each forward with a backward; see `peakmem_inductor.steps`.
    choices : list of Choice
        One for each graph compiled with ``target_peak`` or ``memory``; see `peakmem_inductor.budgets`.
    """

    def __init__(self, rows: Iterable[GraphReport] = (), steps: Iterable[StepReport] = (), choices: Iterable[Choice] = ()) -> None:
        super().__init__(rows)
        self.steps, self.choices = list(steps), list(choices)

    def __str__(self) -> str:
        return "\n".join(filter(None, (self.table(), *map(str, self.steps), *map(str, self.choices))))

    def table(self) -> str:
        """The graphs alone."""
        if not self:
            return "no graph has run yet under backend='peakmem'"
        head = ("graph", "statements", "before", "after", "bound", "", "state")
        rows = [head]
        for g in self:
            proof = "certified optimal" if g.certified else "best found" if g.bound is not None else ""
            state = g.state + (f": {g.reason}" if g.reason else "")
            if g.state == "recomputed":
                proof = "exact plan" if g.exact else "best found"
                share = f"{100 * g.extra_macs / g.macs:.3f} % more MACs" if g.macs else f"{g.extra_macs:,} more MACs"
                state += f": {g.reruns} statement{'s' if g.reruns > 1 else ''} once more, {share}"
            if g.pool and g.state in ("pooled", "recomputed", "planned"):
                state += f": {g.pool}"
            if g.unpooled and g.state in ("permuted", "recomputed", "planned", "kept"):
                state += f"; no pool: {g.unpooled}"
            if g.state == "planned":
                state += ": the next call checks it"
            if g.uncompared and g.state in ("permuted", "recomputed", "pooled"):
                state += f"; not compared: {g.uncompared}"
            if g.unchecked and g.state in ("permuted", "recomputed", "pooled"):
                state += f"; not checked: {g.unchecked}"
            rows.append((g.name, str(g.statements), _n(g.before), _n(g.after), _n(g.bound), proof, state))
        widths = [max(len(r[i]) for r in rows) for i in range(len(head) - 1)]
        return "\n".join(
            "  ".join((r[0].ljust(widths[0]), *(r[i].rjust(widths[i]) for i in range(1, len(widths))), r[-1])).rstrip()
            for r in rows
        )

    __repr__ = __str__

    def to_json(self) -> list[dict[str, Any]]:
        return [g.to_json() for g in self]


def _n(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


_reports: list[GraphReport] = []
_choices: list[Choice] = []
_lock = threading.Lock()


def add(report: GraphReport) -> None:
    """Add a report, once."""
    with _lock:
        if not any(r is report for r in _reports):
            _reports.append(report)


def add_choice(choice: Choice) -> None:
    """Add what a search of the budgets found."""
    with _lock:
        _choices.append(choice)


def report() -> Report:
    """Reports of all graphs that have run so far, in the order of their first calls.

    Where torch.compile gave the backend no graph at all, one row says why.
    """
    from peakmem_inductor.serving import no_graph, say_no_graph
    from peakmem_inductor.steps import step_reports

    with _lock:
        found = Report(_reports, step_reports(), _choices)
    if not found and (reason := no_graph()):
        say_no_graph()
        found.append(GraphReport("(no graph)", reason=reason))
    return found


def reset() -> None:
    """Forget the reports."""
    from peakmem_inductor.steps import forget

    with _lock:
        _reports.clear()
        _choices.clear()
    forget()
