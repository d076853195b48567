"""Old import names, kept for one release: they give what stands in the new room, with a `DeprecationWarning`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    **dict.fromkeys(("cost", "errors", "liveness", "moves", "program", "schedule"), "model"),
    **dict.fromkeys(("certificate", "check", "explain"), "proof"),
    **{name: f"ordering.{name}" for name in ("bounds", "cuts", "precedence", "problem", "rules")},
    "ordering.flat": "ordering.portfolio",
    "ordering.descent": "ordering.walk",
    "arena.exact": "arena.solver",
    "files": "system.files",
    "sizes": "system.sizes",
    "frontend": "frontends",
    "programfile": "frontends.programfile",
    "words": "report.words",
    "recompute": "transform.recompute",
    "recompute.problem": "transform.recompute.reruns",
    "recompute.greedy": "transform.recompute.lowering",
    "recompute.milp": "transform.recompute.integer",
    "recompute.plot": "report.front",
}
"""Old name -> new one, both below ``peakmem``."""

OUTSIDE = {"jsonfile": "peakmem_check.jsonfile", "proofgraph": "peakmem_check.proof.graph"}


def new_name(old: str) -> str | None:
    """Where a module of ``peakmem`` stands now; None if it never moved."""
    name = old.removeprefix("peakmem.")
    if name in OUTSIDE:
        return OUTSIDE[name]
    if name in MOVED:
        return f"peakmem.{MOVED[name]}"
    return f"peakmem.transform.{name}" if name.startswith("recompute.") else None


class _Forward(ModuleType):
    """The old package ``peakmem.recompute``, which is the function of that name as well."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return import_module("peakmem.transform.recompute").recompute(*arguments, **options)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # such as __path__, by which a second copy of the new files would be found
            raise AttributeError(name)
        return getattr(import_module("peakmem.transform.recompute"), {"Problem": "RerunProblem"}.get(name, name))


class Moved(MetaPathFinder, Loader):
    """Finds old names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("peakmem.") or new_name(fullname) is None:
            return None
        return ModuleSpec(fullname, self, is_package=fullname == "peakmem.recompute")

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Forward(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        new = new_name(module.__name__)
        assert new is not None
        warnings.warn(f"{module.__name__} is {new} now; the old name goes with the next release", DeprecationWarning, 3)
        found = import_module(new)
        if module.__name__ != "peakmem.recompute":
            sys.modules[module.__name__] = found


if not any(isinstance(finder, Moved) for finder in sys.meta_path):
    sys.meta_path.append(Moved())
