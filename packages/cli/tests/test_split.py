"""``peakmem split``: what it refuses, and what it says of a real model."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from .test_schemas import valid

Call = Callable[..., Any]
MODEL = Path(__file__).resolve().parents[4] / "shared" / "data" / "tflite" / "tflm_person_detect.tflite"



def real(test: Callable[..., None]) -> Callable[..., None]:
    """Skips where the shared models or the frontend that reads them are not here."""
    shared = pytest.mark.skipif(not MODEL.is_file(), reason="the shared models are not here (shared/data/tflite)")
    frontend = pytest.mark.skipif(not find_spec("peakmem_tflite"), reason="needs the frontend: pip install peakmem-tflite")
    return shared(frontend(test))


@pytest.mark.parametrize(("arguments", "said"), [
    (("--region", "3..x", "--bands", "2"), "no region"),
    (("--region", "2..3"), "--bands"),
    (("--bands", "2"), "--region"),
    (("--region", "2..3:width", "--bands", "2"), "rows and channels, and kept"),
    (("--region", "2..3", "--bands", "2", "--max-extra-macs", "2%"), "nothing is searched"),
    (("--plot", "front.png"), "not a .svg file"),
    (("--objective", "speed"), "not one of"),
])  # fmt: skip
def test_bad_usage_is_refused_before_any_work(peakmem: Call, program: Path, arguments: tuple[str, ...], said: str) -> None:
    done = peakmem("split", program, *arguments)
    assert done.code == 2
    assert said in done.err
    assert done.out == ""


def test_a_frontend_without_maps_of_rows_says_so(peakmem: Call, program: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = peakmem("split", program, "-o", out)
    assert done.code == 1
    assert "cannot split" in done.err
    assert not out.exists()
    assert peakmem("optimize", program, "--split", "2%", "-o", out).code == 1
    assert peakmem("optimize", program, "--split", "2%", "--recompute").code == 2


@real
def test_a_real_model_in_bands(peakmem: Call, tmp_path: Path) -> None:
    out, plot, page = tmp_path / "out.tflite", tmp_path / "front.svg", tmp_path / "page.html"
    arguments = ("split", MODEL, "--max-extra-macs", "5%", "--no-measure", "-o", out, "--plot", plot, "--report", page)
    done = peakmem(*arguments)
    assert (done.code, done.err) == (0, "")
    first = done.out.splitlines()[0]
    assert "below the certified optimum of the unsplit model with overlays (55,296 B)" in first  # a reshape's, at the end
    assert "for this split, over all orders and overlays; predicted" in first
    assert "more MACs" in first
    assert plot.read_text().startswith("<svg")
    assert "rows" in page.read_text()
    assert peakmem(*arguments).code == 2  # the outputs exist
    told = peakmem("verify", MODEL, out)
    assert "bands" in told.out or "tflite-micro" in told.err


@real
def test_regions_by_hand_and_the_document(peakmem: Call, tmp_path: Path) -> None:
    done = peakmem("split", MODEL, "--region", "2..3", "--bands", "4", "--no-measure", "--json")
    document = done.document
    assert valid(document) == "peakmem.result/1"
    assert document["split"]["regions"] == [
        {"statements": ["2:CONV_2D", "3:DEPTHWISE_CONV_2D"], "bands": 4, "axis": "rows", "halo": "computed"}
    ]
    assert document["runtime"]["predicted_bytes"] == 36864
    assert document["optimal"]
    assert document["split"]["unsplit"]["optimal"]
    in_one_step = peakmem("optimize", MODEL, "--split", "2%", "--no-measure", "--json").document
    assert valid(in_one_step) == "peakmem.result/1" and in_one_step["split"]["front"]
    assert in_one_step["runtime"]["predicted_bytes"] <= 36864


@real
def test_what_cannot_be_reached_is_not_written(peakmem: Call, tmp_path: Path) -> None:
    out = tmp_path / "out.tflite"
    done = peakmem("split", MODEL, "--target-peak", "9000", "--max-extra-macs", "1%", "--no-measure", "-o", out)
    assert done.code == 1
    assert "not written" in done.err
    assert not out.exists()
    worse = peakmem("split", MODEL, "--region", "24..24", "--bands", "3", "--no-measure", "-o", out)
    assert worse.code in (0, 1)
    assert out.exists() is (worse.code == 0)


@real
def test_an_arena_above_the_target_is_no_success(peakmem: Call, capsys: pytest.CaptureFixture[str]) -> None:
    from peakmem import load
    from peakmem import split as split_model
    from peakmem_cli.commands.split import regions, tell
    from peakmem_cli.screen import Screen

    found = split_model(load(MODEL), regions=regions(["2..3"], [4]), measure=False)
    assert found.model is not None
    found.target = found.model.predicted_bytes + found.source.realized_offset
    assert tell(found, Screen(as_json=False, quiet=True), None, {}) == 0
    found.target -= 1
    assert tell(found, Screen(as_json=False, quiet=True), None, {}) == 1
    assert "over target: arena_head" in capsys.readouterr().err
