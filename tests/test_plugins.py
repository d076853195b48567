"""Plugins as a user meets them: found, listed, clashing, broken."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from peakmem.frontends import registry
from peakmem.model import UsageError


class _Distribution:
    def __init__(self, name: str) -> None:
        self.name = name
        self.version = "1"


def _point(name: str, value: str, distribution: str) -> EntryPoint:
    point = EntryPoint(name, value, registry.GROUP)
    vars(point)["dist"] = _Distribution(distribution)
    return point


def test_a_clash_names_both_distributions(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [_point("tape", "a.b:c", "left-tape"), _point("tape", "d.e:f", "right-tape")]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    with pytest.raises(UsageError, match=r"'tape': left-tape and right-tape"):
        registry.discover()


def test_frontends_are_sorted_whatever_the_order_of_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [_point(name, "m:o", name) for name in ("zeta", "alpha", "mid")]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    assert list(registry.discover()) == ["alpha", "mid", "zeta"]


def test_a_broken_plugin_does_not_hide_the_others(monkeypatch: pytest.MonkeyPatch, tape: Path) -> None:
    points = [_point("broken", "no_such_module_at_all:x", "broken-one"), *registry.discover().values()]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    assert registry.recognise(tape).name == "tape"
    with pytest.raises(UsageError, match="'broken' of broken-one cannot be loaded"):
        registry.get_frontend("broken")


def test_an_object_that_is_no_frontend_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "entry_points", lambda group: [_point("odd", "json:dumps", "odd-one")])
    with pytest.raises(UsageError, match="'odd' of odd-one is no "):
        registry.get_frontend("odd")


def test_a_file_that_two_frontends_take_is_not_guessed(monkeypatch: pytest.MonkeyPatch, tape: Path) -> None:
    point = next(p for p in registry.discover().values() if p.name == "tape")
    points = [_point("again", point.value, "again-tape"), *registry.discover().values()]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    with pytest.raises(UsageError, match="--frontend"):
        registry.recognise(tape)
