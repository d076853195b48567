"""Recomputation as users call it: what it refuses before any work."""

from __future__ import annotations

from pathlib import Path

import peakmem
import pytest
from peakmem.model import UsageError
from peakmem.transform.recompute import integer


def test_a_missing_solver_is_named_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    model = peakmem.load(Path(__file__).parents[3] / "examples" / "branches.json")
    monkeypatch.setattr(integer, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'peakmem-core\[recompute\]'"):
        peakmem.recompute(model, max_extra_macs="1%")
