"""``peakmem recompute`` on bare programs: the front, a chosen plan, refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import peakmem as library
import pytest
from generators import ladder, random_program
from peakmem.model import peak_of
from peakmem.transform.recompute.oracle import free_order

Call = Callable[..., Any]


@pytest.fixture
def stages(tmp_path: Path) -> Path:
    path = tmp_path / "stages.json"
    document = ladder(2, 3).to_json()
    for row in document["statements"]:
        row["op"] = "Keep" if row["id"].startswith("k") else "Other"
    path.write_text(json.dumps(document))
    return path


def test_the_front_is_shown_and_written(peakmem: Call, stages: Path, tmp_path: Path) -> None:
    out = tmp_path / "front.json"
    done = peakmem("recompute", stages, "--front", out)
    assert (done.code, done.err) == (0, "")
    document = json.loads(out.read_text())
    assert document["schema"] == "peakmem.front/1"
    assert document["complete"]
    points = [(p["live_peak"], p["extra_macs"]) for p in document["points"]]
    assert len(points) > 2
    assert points == sorted(points, reverse=True, key=lambda p: p[0])
    for peak, macs in points:
        assert f"{peak:,} B" in done.out
        assert f"{macs:,}" in done.out
    assert document["floor"]["bytes"] <= points[-1][0]
    assert f"wrote {out}" in done.out


def test_a_target_chooses_the_cheapest_plan_and_the_program_written_has_its_peak(
    peakmem: Call, stages: Path, tmp_path: Path
) -> None:
    points = peakmem("recompute", stages, "--json").document["points"]
    out = tmp_path / "out.json"
    done = peakmem("recompute", stages, "--target-peak", points[1]["live_peak"], "-o", out, "--json")
    assert done.code == 0
    assert done.document["chosen"]["extra_macs"] == points[1]["extra_macs"]
    assert done.document["chosen"]["exact"]
    written, source = library.load(out).program, library.load(stages).program
    assert peak_of(written) == done.document["live_peak_after"] <= points[1]["live_peak"]
    assert sum(s.cost for s in written.statements) - sum(s.cost for s in source.statements) == points[1]["extra_macs"]
    assert len(written) == len(source) + sum(len(r["run"]) for r in points[1]["reruns"])


def test_a_budget_chooses_the_lowest_peak_within(peakmem: Call, stages: Path) -> None:
    points = peakmem("recompute", stages, "--json").document["points"]
    done = peakmem("recompute", stages, "--max-extra-macs", points[1]["extra_macs"], "--json")
    assert done.document["chosen"]["live_peak"] == points[1]["live_peak"]
    assert max(p["extra_macs"] for p in done.document["points"]) == points[1]["extra_macs"]


def test_at_the_floor_the_answer_is_one_line_with_the_reason(peakmem: Call, tmp_path: Path) -> None:
    chain = tmp_path / "chain.json"
    buffers = [{"id": "x", "bytes": 8, "kind": "input"}, {"id": "a", "bytes": 64}, {"id": "y", "bytes": 8, "kind": "output"}]
    rows = [
        {"id": "up", "reads": ["x"], "writes": ["a"]},
        {"id": "down", "reads": ["a"], "writes": ["y"], "dependences": ["up"]},
    ]
    chain.write_text(json.dumps({"schema": "peakmem.program/1", "buffers": buffers, "statements": rows}))
    done = peakmem("recompute", chain)
    assert done.code == 0
    first, second, *rest = done.out.splitlines()
    assert "is at the floor: recomputation cannot help" in first
    assert second.startswith("floor ")
    assert "cannot run in less than" in second
    assert not rest


def test_a_target_out_of_reach_names_the_floor_and_the_least_peak(peakmem: Call, stages: Path) -> None:
    document = peakmem("recompute", stages, "--json").document
    low, last = document["floor"]["bytes"], document["points"][-1]
    done = peakmem("recompute", stages, "--target-peak", low - 1)
    assert (done.code, done.out) == (1, "")
    assert f"{low:,} bytes" in done.err
    assert f"{last['live_peak']:,} bytes for {last['extra_macs']:,} extra MACs" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--cap", "0"], "cap: 0 is below 1"),
        (["--max-extra-macs", "101%"], "not between 0% and 100%"),
        (["--max-extra-macs", "lots"], "neither a whole number nor a percentage"),
        (["--threshold", "Conv"], "is not OP=SIZE"),
        (["--threshold", "Cnov=4KiB"], "no operator 'Cnov' (it has Keep, Other)"),
        (["-o", "out.json"], "give --target-peak or --max-extra-macs"),
    ],
)
def test_bad_settings_are_one_sentence(peakmem: Call, stages: Path, arguments: list[str], sentence: str) -> None:
    done = peakmem("recompute", stages, *arguments)
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
    assert done.err.count("\n") == 1


def test_without_macs_there_is_no_share_of_them(peakmem: Call, program: Path) -> None:
    document = json.loads(program.read_text())
    for row in document["statements"]:
        row.pop("cost", None)
    program.write_text(json.dumps(document))
    done = peakmem("recompute", program, "--max-extra-macs", "7")
    assert "MACs more MACs" not in done.out
    assert "0 MACs" not in done.out
    assert "lowers it within 7 more MACs" in done.out.splitlines()[0]


def test_operators_that_never_run_twice_are_listed(peakmem: Call, stages: Path) -> None:
    done = peakmem("recompute", stages)
    assert "never run twice (random, stateful, control flow, overwriting an input, or of unknown price): Other x8" in done.out


def test_nothing_is_written_where_nothing_is_gained(peakmem: Call, stages: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = peakmem("recompute", stages, "--max-extra-macs", "0", "-o", out)
    assert done.code == 1
    assert "no plan within the limits given lowers the peak" in done.err
    assert not out.exists()


def test_optimize_recompute_is_the_same_command(peakmem: Call, stages: Path) -> None:
    chosen = ("--max-extra-macs", "20", "--json")
    ours = peakmem("recompute", stages, *chosen).document
    theirs = peakmem("optimize", "--recompute", stages, *chosen).document["recompute"]
    for key in set(ours) - {"seconds", "runtime", "notes"}:
        assert ours[key] == theirs[key]


def test_options_of_recomputation_need_it(peakmem: Call, stages: Path) -> None:
    done = peakmem("optimize", stages, "--max-extra-macs", "20")
    assert done.code == 2
    assert "need --recompute" in done.err
    done = peakmem("optimize", stages, "--recompute", "--require-optimal")
    assert done.code == 2
    assert "never certified optimal" in done.err


def test_optimize_recompute_prints_the_result_of_optimize_and_the_recomputation(peakmem: Call, stages: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    done = peakmem("optimize", "--recompute", stages, "--max-extra-macs", "20", "-o", out, "--json")
    document = done.document
    plain = peakmem("optimize", stages, "--json").document
    assert document["schema"] == "peakmem.result/1"
    assert set(plain) - {"program"} <= set(document)
    assert set(plain["runtime"]) <= set(document["runtime"])
    assert document["output"] == str(out)
    written = library.load(out).program
    assert document["order"][""] == [s.name for s in written.statements]
    assert document["live_peak_after"] == peak_of(written) < plain["live_peak_after"]
    # What is proved of orders alone does not hold any more; the floor does.
    assert document["optimal"] is False
    assert document["certificate"] is None
    inner = document["recompute"]
    assert document["lower_bound"] == inner["floor"]["bytes"] <= document["live_peak_after"]
    assert document["realized_bound"] == document["lower_bound"]  # of a bare program both are the live peak
    assert document["realized_optimal"] is False
    assert inner["schema"] == "peakmem.front/1"
    assert inner["chosen"] in inner["points"]
    again = inner["reordering"]
    assert again["optimal"] == (again["certificate"] is not None and again["lower_bound"] == document["live_peak_after"])


def test_the_front_is_drawn_the_same_each_time(peakmem: Call, stages: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a.svg", tmp_path / "b.svg"
    document = peakmem("recompute", stages, "--plot", first, "--json").document
    done = peakmem("recompute", stages, "--plot", second)
    assert f"wrote {second}" in done.out
    assert first.read_bytes() == second.read_bytes()
    marks = [e for e in ElementTree.parse(first).iter() if e.tag.endswith("circle")]
    assert len(marks) == len(document["points"])
    heights = [float(e.attrib["cy"]) for e in marks]
    assert heights == sorted(heights)  # less memory is further down
    assert [e[0].text for e in marks] == [
        f"{p['live_peak']:,} B for {p['extra_macs']:,} extra MACs, exact for its base order" for p in document["points"]
    ]


def test_a_picture_of_another_kind_is_refused_before_any_work(peakmem: Call, stages: Path, tmp_path: Path) -> None:
    done = peakmem("recompute", stages, "--plot", tmp_path / "front.png")
    assert (done.code, done.out) == (2, "")
    assert "is not a .svg file" in done.err


def test_what_a_free_base_order_would_save_is_told(peakmem: Call, tmp_path: Path) -> None:
    path = tmp_path / "free.json"
    path.write_text(json.dumps(random_program(7, 6).to_json()))
    done = peakmem("recompute", path, "--json")
    cheaper = [p for p in done.document["free_order"] if p["extra_macs_any_order"] < p["extra_macs"]]
    assert cheaper
    for p in cheaper:
        assert p["extra_macs_any_order"] == free_order(library.load(path).program, p["live_peak"])
    lines = peakmem("recompute", path).out
    assert "over every base order (exact for small programs; every point settled)" in lines
    assert "another one may be cheaper" not in lines


def test_a_program_too_large_for_all_base_orders_says_that_others_may_be_cheaper(peakmem: Call, stages: Path) -> None:
    assert peakmem("recompute", stages, "--json").document["free_order"] == []
    assert "another one may be cheaper" in peakmem("recompute", stages).out
