"""peakmem for PyTorch Inductor.

    >>> net = torch.compile(net, backend="peakmem")             # doctest: +SKIP
    >>> net(x)                                                  # doctest: +SKIP
    >>> print(peakmem_inductor.report())                        # doctest: +SKIP

Everything is imported on first use; reading a dumped wrapper needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peakmem_inductor.dumping import dump as dump
    from peakmem_inductor.reporting import GraphReport as GraphReport
    from peakmem_inductor.reporting import Report as Report
    from peakmem_inductor.reporting import report as report
    from peakmem_inductor.reporting import reset as reset
    from peakmem_inductor.serving import PeakmemWarning as PeakmemWarning
    from peakmem_inductor.steps import step as step

_HOMES = {"dump": "dumping", "report": "reporting", "reset": "reporting", "GraphReport": "reporting", "Report": "reporting"}
_HOMES |= {"PeakmemWarning": "serving", "step": "steps"}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"peakmem_inductor.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'peakmem_inductor' has no attribute {name!r}")
