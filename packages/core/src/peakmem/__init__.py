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
    __version__: str
    from peakmem import report
    from peakmem.api import certify, load, optimize, order, verify
    from peakmem.frontends import Frontend, Model, Verification
    from peakmem.model import Buffer, PeakmemError, Program, Schedule, Statement, Timeline, timeline
    from peakmem.ordering import Ordering, order_program
    from peakmem.result import Result
    from peakmem.transform.recompute.run import recompute
    from peakmem.transform.split.run import split

__all__ = [
    "Buffer", "Frontend", "Model", "Ordering", "PeakmemError", "Program", "Result", "Schedule", "Statement", "Timeline",
    "Verification", "certify", "load", "optimize", "order", "order_program", "recompute", "report", "split",
    "timeline", "verify",
]  # fmt: skip

_HOMES = {
    "api": ("certify", "load", "optimize", "order", "verify"),
    "frontends": ("Frontend", "Model", "Verification"),
    "model": ("Buffer", "PeakmemError", "Program", "Schedule", "Statement", "Timeline", "timeline"),
    "ordering": ("Ordering", "order_program"),
    "result": ("Result",),
    "transform.recompute.run": ("recompute",),
    "transform.split.run": ("split",),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("peakmem-core")
    if name == "report":
        return import_module("peakmem.report")
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"peakmem.{module}"), name)
    raise AttributeError(f"module 'peakmem' has no attribute {name!r}")
