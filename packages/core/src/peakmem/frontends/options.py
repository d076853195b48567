"""Options of frontends: how they are declared and how what was given is completed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from peakmem.frontends.contract import Frontend
from peakmem.model import RuntimeMissing, UsageError, did_you_mean


def complete_options(frontend: Frontend, given: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in defaults; `UsageError` on an unknown option."""
    known = {option.key: option for option in frontend.options}
    for key in given:
        if key not in known:
            raise UsageError(
                f"frontend {frontend.name!r} has no option {key!r} (it has {', '.join(sorted(known)) or 'none'})"
                + did_you_mean(key, known)
            )
    return {key: given.get(key, option.default) for key, option in known.items()}


def asks_for_runtime(frontend: Frontend, given: Mapping[str, Any]) -> bool:
    """Whether the options given name a runtime (see `Option.names_runtime`); ask before a model is measured.

    Raises
    ------
    RuntimeMissing
        When they do and it is not installed; with the pip line that brings it.
    """
    named = [option for option in frontend.options if option.names_runtime and option.key in given]
    for option in named:
        for status in frontend.runtimes():
            if status.name == given[option.key] and status.version is None:
                raise RuntimeMissing(f"--{option.name}: {status.name} is not installed; try: {status.pip}")
    return bool(named)
