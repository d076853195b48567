"""Adapters: the contract they keep, how they are found, their options, and the built-in one for bare programs."""

from peakmem.frontends.contract import (
    Frontend,
    Inspection,
    Model,
    Option,
    RuntimeStatus,
    SharedArena,
    Structure,
    Verification,
)
from peakmem.frontends.options import asks_for_runtime, complete_options
from peakmem.frontends.registry import GROUP, OURS, discover, frontend_version, get_frontend, recognise
from peakmem.frontends.steps import Measurement, Wanted, certify, run_both
from peakmem.system.progress import Progress

__all__ = [
    "GROUP", "OURS", "Frontend", "Inspection", "Measurement", "Model", "Option", "Progress", "RuntimeStatus",
    "SharedArena", "Structure", "Verification", "Wanted", "asks_for_runtime", "certify", "complete_options", "discover", "frontend_version",
    "get_frontend", "recognise", "run_both",
]  # fmt: skip
