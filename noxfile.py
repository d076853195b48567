"""Test sessions. ``nox`` runs all that CI runs; each session makes its own environment.

Two sessions run at a time, so that one tests while another installs; what a session says is printed when it is over
(``nox -j 1`` prints it at once). Our own packages are built once, by the session ``wheels``, which all others wait for; a
session names all of them that it needs in one pip command, since they need each other and are on no index.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import nox

nox.needs_version = ">=2026.10.20"  # it runs sessions beside each other
# The longest come first: a short one at the end leaves no core idle for long. Most of all compiling kernels takes its time; pip takes a twentieth.
nox.options.sessions = ["inductor", "onnx", "core", "tflite", "cli", "lint", "check"]
nox.options.parallel = 2
nox.options.allow_parallel = True
nox.options.reuse_existing_virtualenvs = True
# Only sessions outside the default name an interpreter; one that is not here is skipped, and nox says so.
nox.options.error_on_missing_interpreters = False

ROOT = Path(__file__).parent
PLUGIN = "./tests/plugin"
CORE = ("check", "core")
TESTING = ("pytest", "pytest-xdist", "hypothesis")
TORCH = "torch==2.13.0"
"""The release whose wrappers the inductor tests were written against."""

TORCH_CUDA = "torch==2.14.1"
"""The newest release that was tried, a CUDA build of some 5 GB; runs without a GPU on a CUDA that owns no hardware."""

CONTRACT = ("tests/test_blocks.py", "tests/test_contract.py", "tests/test_readme.py", "tests/test_report.py")
"""Where tests that span packages say more beside another frontend: those marked so run in its session, all of them in ``cli``."""

RUNNING = tuple(f"packages/tflite/tests/test_{name}.py" for name in ("enlarge", "faults", "frontend", "measure", "process", "structure"))
"""Tests of the TFLite frontend whose outcome hangs on the runtime; those of files alone run once."""

WAKE_WORD = "pymicro-wakeword==2.5.0"
"""Carries real TFLite models; only its files are used, so it comes without what it depends on."""

ONNX_MODELS = ("silero-vad==6.2.3", "basic-pitch==0.4.0", "magika==1.0.3", "rapidocr-onnxruntime==1.4.4")
"""Carry real ONNX models; likewise."""


ONNX_RUNTIMES = ("1.21.0", "1.26.0", "newest")
"""The oldest release that the ONNX frontend takes, one between, and the newest that pip finds."""

BY_RELEASE = tuple(
    f"packages/onnx/tests/test_{name}.py"
    for name in ("orders", "models", "structure", "arena", "held", "untied", "native", "feeds", "split", "splitcheck")
)
"""Tests of the ONNX frontend whose outcome hangs on the release of ONNX Runtime."""


def need(session: nox.Session, *packages: str) -> None:
    """Skip a session whose package is not in this checkout."""
    for package in packages:
        if not (ROOT / "packages" / package / "pyproject.toml").is_file():
            session.skip(f"packages/{package} is not here")


def present() -> list[str]:
    return sorted(path.parent.name for path in (ROOT / "packages").glob("*/pyproject.toml"))


def install(session: nox.Session, packages: tuple[str, ...], *requirements: str) -> None:
    """Install our packages, each the name of its folder with or without an extra, and what else is named.

    Bytecode is not compiled beforehand: most of what is installed is never imported.
    """
    folder = built(session)
    wheels = []
    for package in packages:
        name, bracket, extra = package.partition("[")
        (wheel,) = folder.glob(f"peakmem_{name}-*.whl")
        wheels.append(f"{wheel}{bracket}{extra}")
    again = Path(session.virtualenv.location, "installed")
    if again.exists():  # of an earlier run: pip takes wheels of one version for the same ones
        session.install("--no-compile", "--force-reinstall", "--no-deps", *wheels)
    session.install("--no-compile", *wheels, *requirements)
    again.touch()


def built(session: nox.Session) -> Path:
    """Where the wheels of this checkout are."""
    return Path(session.cache_dir, "wheels")


def test(session: nox.Session, *arguments: str) -> None:
    """Run tests on all cores; they are given out one by one, and a process without any takes from those of another.

    What they import is compiled once: their many processes would spend most of their time on it where the surroundings
    keep Python from writing bytecode. Threads of OpenMP that wait for work sleep: there are more of them than cores.
    """
    session.env.update({"PYTHONDONTWRITEBYTECODE": "", "OMP_WAIT_POLICY": "passive"})
    session.run("pytest", f"--numprocesses={os.cpu_count()}", "--dist=worksteal", *arguments, *session.posargs)


@nox.session
def wheels(session: nox.Session) -> None:
    """Build our packages, once for all sessions."""
    session.install("hatchling>=1.27", "setuptools>=77")
    folder = built(session)
    shutil.rmtree(folder, ignore_errors=True)
    sources = [*(f"./packages/{package}" for package in present()), PLUGIN]
    session.run(
        "python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", f"--wheel-dir={folder}", *sources
    )


@nox.session(requires=["wheels"])
def lint(session: nox.Session) -> None:
    """ruff and strict mypy over all packages."""
    install(session, tuple(present()), "ruff", "mypy", "types-networkx", "scipy-stubs")
    session.run("ruff", "check", ".")
    session.run("mypy", *(f"packages/{package}/src" for package in present()))


@nox.session(requires=["wheels"])
def check(session: nox.Session) -> None:
    """The checker alone: the standard library, and the C compiler for the second one."""
    install(session, ("check",), "networkx", *TESTING)
    test(session, "packages/check/tests")


@nox.session(requires=["wheels"])
def core(session: nox.Session) -> None:
    """The core: no frontend, no runtime; both checkers on what it proves. With the compiled kernel, which tests hold to the Python."""
    install(session, ("check", "core[recompute]", "native"), *TESTING)
    test(session, "packages/core/tests", "packages/native/tests", "packages/check/tests/test_c_checker.py")


@nox.session(requires=["wheels"])
def cli(session: nox.Session) -> None:
    """The command line, and what spans packages, with the tiny plugin as the only adapter."""
    install(session, (*CORE, "cli", "tape"), "joblib", "jsonschema", "pyarrow", *TESTING)
    test(session, "packages/cli/tests", "tests")


@nox.session(requires=["wheels"])
@nox.parametrize("runtime", ["tflm", "tflite-runtime", "litert"])
def tflite(session: nox.Session, runtime: str) -> None:
    """The TFLite frontend with one runtime, and the contract on a real model."""
    need(session, "tflite")
    loops = ("native",) if runtime == "tflm" else ()  # the searches for splits run here: compiled, they take half as long
    install(session, (*CORE, *loops, f"tflite[{runtime}]", "cli", "tape"), *TESTING)
    session.install("--no-compile", "--no-deps", WAKE_WORD)
    if runtime == "tflm":
        test(session, "--beside=tflite", "packages/tflite/tests", "tests/test_board.py", *CONTRACT)
    else:
        test(session, "--beside=tflite", *RUNNING, *CONTRACT)


@nox.session(requires=["wheels"])
def onnx(session: nox.Session) -> None:
    """The ONNX frontend with ONNX Runtime, and the contract."""
    need(session, "onnx")
    install(session, (*CORE, "onnx[runtime]", "cli", "tape"), *TESTING)
    session.install("--no-compile", "--no-deps", *ONNX_MODELS)
    test(session, "--beside=onnx", "packages/onnx/tests", *CONTRACT)


@nox.session(python=["3.11", "3.12", "3.13"], requires=["wheels"])
@nox.parametrize("runtime", ONNX_RUNTIMES)
def onnx_versions(session: nox.Session, runtime: str) -> None:
    """The ONNX frontend with releases of ONNX Runtime on each Python."""
    need(session, "onnx")
    wanted = "onnxruntime" if runtime == "newest" else f"onnxruntime=={runtime}"
    asked = ("python", "-m", "pip", "install", "--dry-run", "--no-deps", "--only-binary=:all:", wanted)
    if "No matching distribution" in str(session.run(*asked, silent=True, success_codes=(0, 1))):
        session.skip(f"{wanted} has no wheel for Python {session.python}")
    install(session, (*CORE, "onnx", "cli"), wanted, *TESTING)
    # Files alone are used: that one of them names an earlier Python does not matter.
    session.install("--no-compile", "--no-deps", "--ignore-requires-python", *ONNX_MODELS)
    test(session, *BY_RELEASE)


@nox.session(requires=["wheels"])
def inductor(session: nox.Session) -> None:
    """The Inductor frontend with PyTorch, and the contract."""
    need(session, "inductor")
    install(session, (*CORE, "inductor[torch]", "cli", "tape"), TORCH, *TESTING)
    session.env["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # a pool would import torch once for each of its processes
    test(session, "--beside=inductor", "--beside=cuda-snapshot", "packages/inductor/tests", *CONTRACT)


@nox.session(name="inductor-cuda", requires=["wheels"])
def inductor_cuda(session: nox.Session) -> None:
    """The Inductor frontend with the newest torch of its range, and the replay of the caching allocator beside the real one."""
    need(session, "inductor")
    install(session, (*CORE, "inductor", "cli", "tape"), TORCH_CUDA, "setuptools", *TESTING)
    session.env["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    test(session, "--beside=inductor", "--beside=cuda-snapshot", "packages/inductor/tests", *CONTRACT)


@nox.session(python=["3.12", "3.13"], requires=["wheels"])
def newer(session: nox.Session) -> None:
    """The core and the command line on later versions of Python."""
    install(session, (*CORE, "native", "cli", "tape"), "joblib", "jsonschema", "pyarrow", *TESTING)
    test(session, "packages/check/tests", "packages/core/tests", "packages/native/tests", "packages/cli/tests", "tests")


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation, with every warning an error."""
    session.install("mkdocs>=1.6", "mkdocs-material>=9.5", "mkdocstrings[python]>=0.26", "ruff")
    session.run("mkdocs", "build", "--strict", *session.posargs)
