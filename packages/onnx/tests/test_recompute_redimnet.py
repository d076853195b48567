"""The known good case of recomputation, planned, written and measured in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import peakmem
import pytest
from peakmem.transform.recompute import recompute

MODEL = Path(__file__).resolve().parents[4] / "shared" / "data" / "onnx" / "redimnet_s_random.onnx"


@pytest.mark.skipif(not MODEL.exists(), reason=f"shared data is absent ({MODEL.name})")
def test_redimnet_needs_6_percent_less_for_less_than_half_a_percent_more_macs() -> None:
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    model = peakmem.load(MODEL, frontend="onnx", ort_level="basic")
    found = recompute(model, max_extra_macs="0.45%", time_limit=120)
    assert found.macs == 246_696_000
    assert found.ordering.certificate is not None
    assert found.ordering.peak == found.ordering.lower_bound
    assert found.point is not None
    assert found.point.exact
    assert found.point.extra_macs <= 0.0045 * found.macs
    check = found.verification
    assert check is not None
    assert not check.failures
    assert check.as_predicted  # measured as modelled, before and after
    assert check.bitwise_identical
    assert check.baseline_bytes is not None
    assert check.optimized_bytes is not None
    assert check.optimized_bytes <= 0.94 * check.baseline_bytes
    assert check.optimized_bytes < found.ordering.peak
