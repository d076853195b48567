"""The program model: buffers, statements, orders, what is live when, and what may go wrong."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# isort: off
from peakmem_check.model.errors import (
    InputError, NotProved, PeakmemError, Refused, RuntimeFailed, RuntimeMissing, UsageError, did_you_mean, nearest,
)
from peakmem_check.model.moves import Move, moves
from peakmem_check.model.program import (
    KINDS, LARGEST_TOTAL, QUANTITIES, SCHEMA, Buffer, Kind, Overlay, Program, Statement, first_touchers,
)
# isort: on

if TYPE_CHECKING:
    from peakmem_check.model.cost import CostReport, cost_report
    from peakmem_check.model.liveness import Timeline, body_workspaces, peak_of, scheduled_timeline, timeline
    from peakmem_check.model.schedule import Expansion, Orders, Schedule

__all__ = [
    "KINDS", "LARGEST_TOTAL", "QUANTITIES", "SCHEMA", "Buffer", "CostReport", "Expansion", "InputError", "Kind", "Move",
    "NotProved", "Orders", "Overlay", "PeakmemError", "Program", "Refused", "RuntimeFailed", "RuntimeMissing", "Schedule", "Statement",
    "Timeline", "UsageError", "body_workspaces", "cost_report", "did_you_mean", "first_touchers", "moves",
    "nearest", "peak_of", "scheduled_timeline", "timeline",
]  # fmt: skip

# The checker reads none of these, and its whole run may take less time than loading them does.
_LATER = {
    "cost": ("CostReport", "cost_report"),
    "liveness": ("Timeline", "body_workspaces", "peak_of", "scheduled_timeline", "timeline"),
    "schedule": ("Expansion", "Orders", "Schedule"),
}


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
