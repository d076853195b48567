"""The folder of certificates, read in both directions by the command's own parts."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from make_certificates import FOLDER, OVERLAID, WITH, nodes_of
from oracles import optimum, scheduled_peak
from peakmem_check.jsonfile import read_json, read_program
from peakmem_check.model import Program, Refused
from peakmem_check.proof import check

INDEX: dict[str, dict[str, Any]] = json.loads((FOLDER / "index.json").read_text())


def program_of(row: dict[str, Any]) -> Program:
    return read_program(FOLDER / "programs" / f"{row['program']}.json")


def one_byte_apart(a: bytes, b: bytes) -> bool:
    short, long = sorted((a, b), key=len)
    if len(short) == len(long):
        return sum(x != y for x, y in zip(short, long)) == 1
    return any(long[:i] + long[i + 1 :] == short for i in range(len(long)))


@pytest.mark.parametrize("name", INDEX["true"])
def test_true(name: str) -> None:
    row = INDEX["true"][name]
    program, document = program_of(row), read_json(FOLDER / "true" / f"{name}.json")
    report = check(program, document)
    assert (report.lower_bound, report.peak) == (row["lower_bound"], row["peak"])
    assert report.lower_bound <= optimum(program)
    assert report.peak == scheduled_peak(program, document["orders"])


@pytest.mark.parametrize("name", INDEX["false"])
def test_false_by_one_byte(name: str) -> None:
    row = INDEX["false"][name]
    path = FOLDER / "false" / f"{name}.json"
    assert one_byte_apart(path.read_bytes(), (FOLDER / "true" / f"{row['true']}.json").read_bytes())
    assert row["program"] == INDEX["true"][row["true"]]["program"]
    program, document = program_of(row), read_json(path)
    assert document["program"]["digest"] == program.digest
    with pytest.raises(Refused) as caught:
        check(program, document)
    assert str(caught.value) == f"certificate: {row['because']}"


def test_programs_too_large_for_tables_are_judged_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peakmem_check.proof.graph._TABLE", 0)
    for name in INDEX["true"]:
        test_true(name)
    for name in INDEX["false"]:
        test_false_by_one_byte(name)


def test_every_file_is_listed_and_every_kind_there() -> None:
    for part, names in INDEX.items():
        assert {path.stem for path in (FOLDER / part).iterdir()} == names.keys()
    assert {path.stem for path in (FOLDER / "programs").iterdir()} == {row["program"] for row in INDEX["true"].values()}
    true: Counter[str] = Counter()
    for name in INDEX["true"]:
        true.update({node["kind"] for node in nodes_of(read_json(FOLDER / "true" / f"{name}.json"))})
    false = Counter(kind for row in INDEX["false"].values() for kind in WITH if f"({kind})" in row["because"])
    assert true.keys() == false.keys() == WITH.keys()
    assert min(true.values()) >= 3 and min(false.values()) >= 3
    for kind in OVERLAID:
        for name in (f"overlay-{kind}-", f"overlay-mirrored-{kind}-"):
            assert sum(row.startswith(name) for row in INDEX["true"]) >= 3
            assert sum(row.startswith(name) and f"({kind})" in INDEX["false"][row]["because"] for row in INDEX["false"]) >= 3
            assert sum(row.startswith(name) and "'schema'" in INDEX["false"][row]["because"] for row in INDEX["false"]) >= 3
    assert sum(row["lower_bound"] < row["peak"] for row in INDEX["true"].values()) > 3


def test_the_readme_tells_of_each_file() -> None:
    text = (FOLDER / "README.md").read_text()
    assert all(f"| {name} |" in text for names in INDEX.values() for name in names)
