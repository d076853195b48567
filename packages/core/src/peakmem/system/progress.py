"""How long work tells where it is."""

from __future__ import annotations

from collections.abc import Callable

Progress = Callable[[str], None]
"""Called with a short present-tense sentence when a stage starts or a bound moves."""


def silent(_: str) -> None:
    """The `Progress` of who does not want to know."""
