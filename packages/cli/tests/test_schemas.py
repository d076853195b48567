"""Every JSON document that a command prints has a schema that is shipped, and is as it says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import peakmem
import peakmem_cli
import pytest

Call = Callable[..., Any]
FOLDER = files("peakmem_cli") / "schemas"
SCHEMAS: dict[str, Any] = {
    document["title"]: document for file in FOLDER.iterdir() if file.name.endswith(".json") for document in [json.loads(file.read_text("utf-8"))]
}
READ_OR_WRITTEN = {"peakmem.program/1", "peakmem.certificate/1", "peakmem.certificate/2", "peakmem.scratch/1"}
"""Documents that are files, not printed; their pages define them."""


def valid(document: Any) -> str:
    """Validate a document by the schema that it names, down to what it holds; returns the name."""
    jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema: pip install jsonschema")
    schema = SCHEMAS[document["schema"]]
    errors = list(jsonschema.Draft202012Validator(schema).iter_errors(document))
    assert not errors, [f"{'/'.join(map(str, e.absolute_path))}: {e.message}" for e in errors[:3]]
    return str(document["schema"])


def test_schemas_are_schemas() -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema: pip install jsonschema")
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_schemas_say_what_every_object_and_list_holds() -> None:
    def bare(part: Any, place: str) -> list[str]:
        if isinstance(part, list):
            return [found for k, inner in enumerate(part) for found in bare(inner, f"{place}/{k}")]
        if not isinstance(part, dict):
            return []
        kinds = part.get("type", [])
        untold = {"object", "array"} & {*([kinds] if isinstance(kinds, str) else kinds)} and not part.keys() & {"properties", "additionalProperties", "items"}
        return [place] * bool(untold) + [found for key, inner in part.items() for found in bare(inner, f"{place}/{key}")]

    assert [found for name, schema in SCHEMAS.items() for found in bare(schema, name) if not found.endswith("/additionalProperties")] == []


def test_every_printed_document_has_a_schema() -> None:
    named: set[str] = set()
    for package in (peakmem, peakmem_cli):
        for path in Path(package.__file__ or "").parent.rglob("*.py"):
            named |= set(re.findall(r'"(peakmem\.[a-z_]+/\d)"', path.read_text(encoding="utf-8")))
    assert "peakmem.survey/1" in named
    assert named - READ_OR_WRITTEN <= SCHEMAS.keys()


def test_documents_are_as_their_schemas_say(peakmem: Call, program: Path, tmp_path: Path) -> None:
    proof, lines, table = tmp_path / "proof.json", tmp_path / "rows.jsonl", tmp_path / "plan.csv"
    table.write_text("id,lower,upper,size\na,0,3,4\nb,2,9,4\n")
    assert peakmem("certify", program, "-o", proof).code == 0
    seen = set()
    for words in (
        ("inspect", program), ("optimize", program), ("optimize", program, "--budget", "1MB", "--no-measure"),
        ("certify", program, "--explain", "--budget", "1MB"), ("check", program, proof), ("recompute", program),
        ("recompute", program, "--max-extra-macs", "100%"), ("optimize", "--recompute", program, "--max-extra-macs", "100%"),
        ("frontends",), ("arena", table), ("arena", table, "--capacity", 100), ("inspect", tmp_path / "nowhere"), ("split", program),
        ("survey", program, "-o", lines), ("merge", lines, "--against", lines),
    ):  # fmt: skip
        seen.add(valid(peakmem(*words, "--json").document))
    seen.add(valid(json.loads(lines.read_text())))
    assert seen >= {f"peakmem.{n}/1" for n in ("inspection", "result", "certified", "checked", "front", "frontends", "arena", "error", "survey", "row")}


@pytest.mark.usefixtures("toy")
def test_measured_documents_are_as_their_schemas_say(peakmem: Call, toyfile: Path, tmp_path: Path) -> None:
    better = tmp_path / "better.json"
    assert valid(peakmem("optimize", toyfile, "--snippet", "--json").document) == "peakmem.result/1"
    assert valid(peakmem("verify", toyfile, toyfile, "--budget", "1MB", "--json").document) == "peakmem.verification/1"
    assert valid(peakmem("recompute", toyfile, "--max-extra-macs", "100%", "-o", better, "--json").document) == "peakmem.front/1"


def test_a_document_with_another_field_is_not_valid(peakmem: Call, program: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema: pip install jsonschema")
    document = peakmem("certify", program, "--json").document
    for wrong in (document | {"peek": 1}, {k: v for k, v in document.items() if k != "gap"}, document | {"lower_bound": -1}):
        assert not jsonschema.Draft202012Validator(SCHEMAS["peakmem.certified/1"]).is_valid(wrong)


def test_the_command_prints_them(peakmem: Call) -> None:
    assert set(peakmem("schema").out.split()) == SCHEMAS.keys()
    assert json.loads(peakmem("schema", "peakmem.row/1").out) == json.loads(peakmem("schema", "row").out) == SCHEMAS["peakmem.row/1"]
    done = peakmem("schema", "peakmem.rows/1")
    assert (done.code, done.out) == (2, "") and "did you mean" in done.err
