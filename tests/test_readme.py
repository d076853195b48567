"""What README.md and the documentation tell people to type exists, and prints what they say."""

from __future__ import annotations

import itertools
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

import peakmem
import pytest
from peakmem.frontends import OURS, discover, get_frontend
from peakmem_cli.main import COMMANDS, main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "packages").glob("*/README.md"))]
INSTALL = "python3 -m venv .venv && .venv/bin/pip install ./packages/check ./packages/core"
TESTS = "python3 -m venv .venv && .venv/bin/pip install nox && .venv/bin/nox"


def blocks(page: Path, *languages: str) -> list[str]:
    """Contents of the fenced blocks of a page in these languages."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [text for language, text in found if language in languages]


def typed(page: Path) -> list[list[str]]:
    """Every ``peakmem`` command line of a page, as words."""
    lines = []
    for block in blocks(page, "sh", "console"):
        for line in block.replace("\\\n", " ").splitlines():
            for part in line.removeprefix("$ ").split(" && "):
                words = shlex.split(part, comments=True)
                if words and words[0].rpartition("/")[2] == "peakmem":
                    lines.append(words[1:])
    return lines


def options_of(command: str, frontend: str | None, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Options that the help of a command shows, for one frontend."""
    assert main([command, *(["--frontend", frontend] if frontend else []), "--help"]) == 0
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", capsys.readouterr().out))


@pytest.mark.beside
@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_exist_with_their_options(
    page: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    owners = {page.stem, page.parent.name} & {"tflite", "onnx", "inductor"}  # a page about one frontend types its options
    for words in typed(page):
        if words[0].startswith("--"):
            assert main([words[0]]) == 0
            continue
        assert words[0] in COMMANDS, f"{page}: peakmem {words[0]}"
        named = [b for a, b in itertools.pairwise(words) if a == "--frontend"]
        ends = {".tflite": "tflite", ".onnx": "onnx", ".pickle": "cuda-snapshot"}
        files = [ends[Path(w).suffix] for w in words[1:] if Path(w).suffix in ends]
        frontend = next(iter([*named, *owners, *files]), None)
        if frontend is not None and frontend not in discover():
            continue  # judged in the session that installs it
        if "--frontend" not in options_of(words[0], None, capsys):
            frontend = None
        missing = {w.partition("=")[0] for w in words[1:] if w.startswith("-")} - options_of(words[0], frontend, capsys)
        assert not missing, f"{page}: peakmem {' '.join(words)}: {missing}"


def test_readme_has_the_two_lines() -> None:
    lines = "".join(blocks(ROOT / "README.md", "sh")).splitlines()
    assert sum(line.startswith(INSTALL) for line in lines) == 1
    assert lines.count(TESTS) == 1


def test_paths_and_extras_that_are_installed_exist() -> None:
    for page in PAGES:
        for folder, extra in re.findall(r"\./packages/(\w+)(?:\[([\w,-]+)\])?", page.read_text()):
            project = ROOT / "packages" / folder / "pyproject.toml"
            if not project.is_file():
                continue
            extras = tomllib.loads(project.read_text())["project"].get("optional-dependencies", {})
            assert set(filter(None, extra.split(","))) <= set(extras), f"{page}: {folder}[{extra}]"


@pytest.mark.beside
def test_install_hints_are_right_once_published_and_have_their_folder_here() -> None:
    """The README says how to read a hint in a clone: the same extra of the folder called like the frontend."""
    hints = [(name, status.pip) for name in discover() for status in get_frontend(name).runtimes()]
    hints = [(name, hint) for name, hint in hints if name in OURS]
    if not hints:
        pytest.skip("needs a frontend with runtimes: pip install peakmem-tflite")
    for name, hint in hints:
        found = re.fullmatch(r"(?:on Python 3\.11, [\w ]+: )?pip install 'peakmem-(\w+)\[([\w-]+)\]'", hint)
        assert found is not None, hint
        assert found[1] == name
        project = tomllib.loads((ROOT / "packages" / name / "pyproject.toml").read_text())["project"]
        assert project["name"] == f"peakmem-{name}"
        assert found[2] in project["optional-dependencies"]
    text = " ".join((ROOT / "README.md").read_text().split())
    said = re.search(r"where a message says `pip install 'peakmem-(\w+)\[(\w+)\]'`, type `'\./packages/(\w+)\[(\w+)\]'`", text)
    assert said is not None
    assert said.group(1, 2) == said.group(3, 4)


def test_ci_runs_the_line_of_the_readme() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    pattern = re.search(r"grep -m 1 -E '([^']+)' README\.md", script)
    assert pattern is not None
    matching = [line for line in (ROOT / "README.md").read_text().splitlines() if re.match(pattern[1], line)]
    assert matching == [TESTS]


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page}: {target}"


def test_the_page_about_plugins_shows_the_plugin() -> None:
    plugin = (ROOT / "tests" / "plugin" / "src" / "peakmem_tape" / "frontend.py").read_text()
    pieces = blocks(ROOT / "docs" / "howto" / "plugin.md", "python")
    assert len(pieces) >= 4
    for piece in pieces:
        assert piece in plugin, piece


def session(page: Path) -> list[tuple[str, str]]:
    """Commands after ``$`` in the console blocks of a page, each with the output that the page shows."""
    found: list[tuple[str, str]] = []
    for block in blocks(page, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output.rstrip()))
    return found


def run(command: str, folder: Path) -> str:
    words = shlex.split(command)
    assert words[0] == "peakmem"
    done = subprocess.run(
        [sys.executable, "-m", "peakmem_cli", *words[1:]], cwd=folder, capture_output=True, text=True, timeout=600
    )
    lines = (done.stdout + done.stderr).splitlines()
    return "\n".join(line.rstrip() for line in lines).rstrip()


def test_the_tutorial_prints_what_it_says(tmp_path: Path) -> None:
    shutil.copy(ROOT / "examples" / "branches.json", tmp_path)
    steps = session(ROOT / "docs" / "tutorial.md")
    assert len(steps) >= 4
    for command, output in steps:
        assert run(command, tmp_path) == output, command


def wake_word() -> Path:
    """The model of the README; skips without it or without the frontend."""
    try:
        model = distribution("pymicro-wakeword").locate_file("pymicro_wakeword/models/okay_nabu.tflite")
    except PackageNotFoundError:
        pytest.skip("needs a real model: pip install --no-deps pymicro-wakeword==2.5.0")
    if "tflite" not in discover():
        pytest.skip("needs the frontend: pip install peakmem-tflite")
    return Path(str(model))


@pytest.mark.beside("tflite")
def test_the_output_that_the_readme_shows_is_real(tmp_path: Path) -> None:
    model = wake_word()
    if find_spec("tflite_micro") is None:
        pytest.skip("needs TensorFlow Lite Micro: pip install 'peakmem-tflite[tflm]'")
    shown = [block for block in blocks(ROOT / "README.md", "text") if block.startswith("arena_head")]
    assert len(shown) == 1
    printed = run(f"peakmem optimize --frontend tflite {shlex.quote(str(model))} -o out.tflite", tmp_path)

    def unversioned(text: str) -> list[str]:
        return re.sub(r"0\.dev\d+", "VERSION", text).splitlines()

    lines = unversioned(shown[0])
    assert len(lines) > 5
    assert unversioned(printed)[: len(lines)] == lines


@pytest.mark.beside("tflite")
@pytest.mark.parametrize(("picture", "kind"), [("okay_nabu.svg", "memory"), ("okay_nabu_arena.svg", "arena")])
def test_the_pictures_are_drawn_from_a_run(picture: str, kind: str, tmp_path: Path) -> None:
    model, out = wake_word(), tmp_path / picture
    command = [ROOT / "docs" / "make_picture.py", model, out, "--frontend", "tflite", "--figure", kind]
    subprocess.run([sys.executable, *map(str, command)], check=True, timeout=600)
    assert out.read_text() == (ROOT / "docs" / picture).read_text()

def test_the_python_reference_is_complete_and_names_what_there_is() -> None:
    page = (ROOT / "docs" / "reference" / "python.md").read_text("utf-8")
    assert [name for name in peakmem.__all__ if not re.search(rf"\b{name}\b", page)] == []
    for name in re.findall(r"^::: (\S+)$", page, re.MULTILINE):
        found = pkgutil.resolve_name(name)
        home = getattr(found, "__module__", None)
        assert home is None or name == f"{home}.{found.__name__}", f"{name} is described where it is imported, not where it stands"
