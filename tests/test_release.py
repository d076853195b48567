"""What is published belongs together: one version, exact pins between ours, licence, addresses, extras that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PROJECTS: dict[str, dict[str, Any]] = {
    path.parent.name: tomllib.loads(path.read_text())["project"] for path in sorted(ROOT.glob("packages/*/pyproject.toml"))
}
VERSION = PROJECTS["cli"]["version"]


def needs(project: dict[str, Any]) -> list[str]:
    extras = project.get("optional-dependencies", {})
    return [*project["dependencies"], *(need for extra in extras.values() for need in extra)]


@pytest.mark.parametrize("name", sorted(PROJECTS))
def test_metadata_is_whole(name: str) -> None:
    project, folder = PROJECTS[name], ROOT / "packages" / name
    assert project["name"] == f"peakmem-{name}"
    assert project["version"] == VERSION
    assert project["license"] == "Apache-2.0" and project["license-files"] == ["LICENSE"]
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert project["authors"] and project["keywords"] and {"Source", "Issues", "Changelog"} <= project["urls"].keys()
    for target in re.findall(r"\]\(([^)]+)\)", (folder / project["readme"]).read_text()):
        assert target.startswith("https://"), f"{target} leads nowhere where the README is shown"


@pytest.mark.parametrize("name", sorted(PROJECTS))
def test_links_into_the_repository_lead_to_files(name: str) -> None:
    address = PROJECTS[name]["urls"]["Homepage"]
    text = (ROOT / "packages" / name / "README.md").read_text() + str(PROJECTS[name]["urls"])
    for path in re.findall(re.escape(address) + r"/(?:blob|tree)/main/([^)'#]+)", text):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("name", sorted(PROJECTS))
def test_pins_between_ours_are_exact_and_extras_exist(name: str) -> None:
    for need in needs(PROJECTS[name]):
        if need.startswith("peakmem-"):
            found = re.fullmatch(r"peakmem-(\w+)(?:\[([\w,-]+)\])?==(.+)", need)
            assert found is not None, need
            other, extras, version = found.groups()
            assert version == VERSION, need
            for extra in (extras or "").split(","):
                assert not extra or extra in PROJECTS[other]["optional-dependencies"], need


TEXTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/README.md")])


def test_what_is_installed_from_a_clone_is_told_whole() -> None:
    """Ours are on no index: what one of them needs of ours stands in the same command."""
    commands = [(path, line) for path in TEXTS for line in re.findall(r"pip install ([^`\n]*packages/[^`\n]*)", path.read_text())]
    assert len(commands) > 5
    for path, line in commands:
        named = dict(re.findall(r"packages/([a-z]+)(?:\[([a-z,-]+)\])?", line.partition(" && ")[0]))
        for name, extras in named.items():
            optional = PROJECTS[name].get("optional-dependencies", {})
            needed = [*PROJECTS[name]["dependencies"], *(need for extra in extras.split(",") if extra for need in optional[extra])]
            missing = {other for need in needed for other in re.findall(r"^peakmem-(\w+)", need) if other not in named}
            assert not missing, f"{path.relative_to(ROOT)}: pip install {line}: {name} needs {missing}"


def test_what_messages_tell_to_install_can_be_installed() -> None:
    told = set()
    for path in (*ROOT.glob("packages/*/src/**/*.py"), *TEXTS):
        told |= set(re.findall(r"pip install [\"']?(peakmem-[a-z]+)(?:\[([a-z-]+)\])?", path.read_text()))
    assert ("peakmem-tflite", "tflm") in told
    for distribution, extra in told:
        project = PROJECTS[distribution.removeprefix("peakmem-")]
        assert not extra or extra in project["optional-dependencies"], f"{distribution}[{extra}]"


def test_the_version_is_the_same_in_every_place() -> None:
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()
    import peakmem

    assert re.fullmatch(r"\d+\.\d+\.\d+.*", peakmem.__version__)
