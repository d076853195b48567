"""peakmem: lower the peak memory of a program by permuting its statements, and prove when no order can do better.

    >>> import peakmem
    >>> model = peakmem.load("wake_word.tflite")            # doctest: +SKIP
    >>> result = peakmem.optimize(model)                    # doctest: +SKIP
    >>> result.model.save("wake_word.opt.tflite")           # doctest: +SKIP

Everything is imported on first use, so that ``import peakmem`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peakmem import report as report
    from peakmem.api import certify as certify
    from peakmem.api import load as load
    from peakmem.api import optimize as optimize
    from peakmem.api import verify as verify
    from peakmem.errors import PeakmemError as PeakmemError
    from peakmem.liveness import Timeline as Timeline
    from peakmem.liveness import timeline as timeline
    from peakmem.ordering import Ordering as Ordering
    from peakmem.ordering import order_program as order_program
    from peakmem.program import Buffer as Buffer
    from peakmem.program import Program as Program
    from peakmem.program import Statement as Statement
    from peakmem.result import Result as Result
    from peakmem.schedule import Schedule as Schedule

_HOMES = {
    "load": "api",
    "optimize": "api",
    "certify": "api",
    "verify": "api",
    "PeakmemError": "errors",
    "Timeline": "liveness",
    "timeline": "liveness",
    "Ordering": "ordering",
    "order_program": "ordering",
    "Buffer": "program",
    "Program": "program",
    "Statement": "program",
    "Result": "result",
    "Schedule": "schedule",
}

__all__ = sorted([*_HOMES, "report"])


def __getattr__(name: str) -> Any:
    if name == "report":
        return import_module("peakmem.report")
    if name in _HOMES:
        return getattr(import_module(f"peakmem.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'peakmem' has no attribute {name!r}")
