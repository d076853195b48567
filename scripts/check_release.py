"""Build all distributions, look into the files, and try them where nothing else is installed.

    python scripts/check_release.py dist [--no-environments]

Needs ``build`` and ``twine``. What is tested is what would be published: the wheels, and wheels made from the sdists.
"""

from __future__ import annotations

import argparse
import email
import os
import re
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


def try_in_clean_environment(dist: Path, requirement: str, tries: list[list[str]], *, binary: bool = True) -> None:
    """Install one requirement from the built files alone (and what others made from an index) and run commands."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        ours = ",".join(f"peakmem-{p}" for p in PACKAGES)
        from_source = [] if binary else ["--no-binary", ours]
        run(python, "-m", "pip", "install", "--quiet", "--find-links", dist.resolve(), *from_source, requirement)
        clean = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
        for words in tries:
            said = run(python.with_name(words[0]), *words[1:], cwd=folder, env=clean)
            print(said[:400])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("dist", type=Path)
    parser.add_argument("--no-environments", action="store_true", help="build and look, install nothing")
    parser.add_argument("--no-isolation", action="store_true", help="build with the hatchling and setuptools of this environment")
    parser.add_argument("--extras", default="tflm,onnxruntime", help="of the command, each tried in an environment of its own")
    given = parser.parse_args()
    for package in PACKAGES:
        how = ["--no-isolation"] if given.no_isolation else []
        run(sys.executable, "-m", "build", *how, "--outdir", given.dist, ROOT / "packages" / package)
    run(sys.executable, "-m", "twine", "check", "--strict", *sorted(given.dist.iterdir()))
    look_into(given.dist)
    if given.no_environments:
        return
    program = str(EXAMPLE)
    try_in_clean_environment(given.dist, "peakmem-check", [["peakmem-check", "--help"]])
    try_in_clean_environment(given.dist, "peakmem-cli", [["peakmem", "--version"], ["peakmem", "optimize", program]], binary=False)
    for extra in filter(None, given.extras.split(",")):
        try_in_clean_environment(given.dist, f"peakmem-cli[{extra}]", [["peakmem", "frontends"], ["peakmem", "optimize", program]])


if __name__ == "__main__":
    main()
