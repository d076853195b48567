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

from peakmem import _moved as _moved

if TYPE_CHECKING:
    from peakmem import report as report
    from peakmem.api import certify as certify
    from peakmem.api import load as load
    from peakmem.api import optimize as optimize
    from peakmem.api import order as order
    from peakmem.api import verify as verify
    from peakmem.frontends import Frontend as Frontend
    from peakmem.frontends import Model as Model
    from peakmem.frontends import Verification as Verification
    from peakmem.model import Buffer as Buffer
    from peakmem.model import PeakmemError as PeakmemError
    from peakmem.model import Program as Program
    from peakmem.model import Schedule as Schedule
    from peakmem.model import Statement as Statement
    from peakmem.model import Timeline as Timeline
    from peakmem.model import timeline as timeline
    from peakmem.ordering import Ordering as Ordering
    from peakmem.ordering import order_program as order_program
    from peakmem.result import Result as Result
    from peakmem.transform.recompute.run import recompute as recompute

_HOMES = {
    "certify": "api",
    "load": "api",
    "optimize": "api",
    "order": "api",
    "verify": "api",
    "Model": "frontends",
    "Frontend": "frontends",
    "Verification": "frontends",
    "Buffer": "model",
    "PeakmemError": "model",
    "Program": "model",
    "Schedule": "model",
    "Statement": "model",
    "Timeline": "model",
    "timeline": "model",
    "Ordering": "ordering",
    "order_program": "ordering",
    "Result": "result",
    "recompute": "transform.recompute.run",
}

__all__ = sorted([*_HOMES, "report"])


def __getattr__(name: str) -> Any:
    if name == "report":
        return import_module("peakmem.report")
    if name in _HOMES:
        return getattr(import_module(f"peakmem.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'peakmem' has no attribute {name!r}")
