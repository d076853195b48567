"""Test sessions. ``nox`` runs all that CI runs; each session makes its own environment.

Local packages stand in one pip command, since they need each other and are on no index.
"""

from __future__ import annotations

from pathlib import Path

import nox

nox.options.sessions = ["lint", "check", "core", "cli", "tflite", "onnx", "inductor"]
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
"""Of what spans packages, the tests that say more beside another frontend; session ``cli`` runs them all."""

RUNNING = tuple(f"packages/tflite/tests/test_{name}.py" for name in ("enlarge", "faults", "frontend", "measure", "process", "structure"))
"""Tests of the TFLite frontend whose outcome hangs on the runtime; those of files alone run once."""

WAKE_WORD = "pymicro-wakeword==2.5.0"
"""Carries real TFLite models; only its files are used, so it comes without what it depends on."""

ONNX_MODELS = ("silero-vad==6.2.3", "basic-pitch==0.4.0", "magika==1.0.3", "rapidocr-onnxruntime==1.4.4")
"""Carry real ONNX models; likewise."""


ONNX_RUNTIMES = ("1.21.0", "1.26.0", "newest")
"""The oldest release that the ONNX frontend takes, one between, and the newest that pip finds."""

BY_RELEASE = tuple(f"packages/onnx/tests/test_{name}.py" for name in ("orders", "models", "structure", "arena", "split", "splitcheck"))
"""Tests of the ONNX frontend whose outcome hangs on the release of ONNX Runtime."""


def need(session: nox.Session, *packages: str) -> None:
    """Skip a session whose package is not in this checkout."""
    for package in packages:
        if not (ROOT / "packages" / package / "pyproject.toml").is_file():
            session.skip(f"packages/{package} is not here")


def local(package: str, extra: str = "") -> str:
    return f"./packages/{package}" + (f"[{extra}]" if extra else "")


def present() -> list[str]:
    return sorted(path.parent.name for path in (ROOT / "packages").glob("*/pyproject.toml"))


def test(session: nox.Session, *paths: str) -> None:
    session.run("pytest", "--numprocesses=auto", "--dist=loadfile", *paths, *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """ruff and strict mypy over all packages."""
    session.install("ruff", "mypy", "types-networkx", "scipy-stubs", *map(local, present()))
    session.run("ruff", "check", ".")
    session.run("mypy", *(f"packages/{package}/src" for package in present()))


@nox.session
def check(session: nox.Session) -> None:
    """The checker alone: the standard library, and the C compiler for the second one."""
    session.install(local("check"), "networkx", *TESTING)
    test(session, "packages/check/tests")


@nox.session
def core(session: nox.Session) -> None:
    """The core: no frontend, no runtime; both checkers on what it proves. With the compiled kernel, which tests hold to the Python."""
    session.install(local("check"), local("core", "recompute"), local("native"), *TESTING)
    test(session, "packages/core/tests", "packages/native/tests", "packages/check/tests/test_c_checker.py")


@nox.session
def cli(session: nox.Session) -> None:
    """The command line, and what spans packages, with the tiny plugin as the only adapter."""
    session.install(*map(local, CORE), local("cli"), PLUGIN, "joblib", "jsonschema", "pyarrow", *TESTING)
    test(session, "packages/cli/tests", "tests")


@nox.session
@nox.parametrize("runtime", ["tflm", "tflite-runtime", "litert"])
def tflite(session: nox.Session, runtime: str) -> None:
    """The TFLite frontend with one runtime, and the contract on a real model."""
    need(session, "tflite")
    session.install(*map(local, CORE), local("tflite", runtime), local("cli"), PLUGIN, *TESTING)
    session.install("--no-deps", WAKE_WORD)
    if runtime == "tflm":
        test(session, "packages/tflite/tests", "tests/test_board.py", *CONTRACT)
    else:
        test(session, *RUNNING, *CONTRACT)


@nox.session
def onnx(session: nox.Session) -> None:
    """The ONNX frontend with ONNX Runtime, and the contract."""
    need(session, "onnx")
    session.install(*map(local, CORE), local("onnx", "runtime"), local("cli"), PLUGIN, *TESTING)
    session.install("--no-deps", *ONNX_MODELS)
    test(session, "packages/onnx/tests", *CONTRACT)


@nox.session(python=["3.11", "3.12", "3.13"])
@nox.parametrize("runtime", ONNX_RUNTIMES)
def onnx_versions(session: nox.Session, runtime: str) -> None:
    """The ONNX frontend with releases of ONNX Runtime on each Python."""
    need(session, "onnx")
    wanted = "onnxruntime" if runtime == "newest" else f"onnxruntime=={runtime}"
    session.install(wanted, *map(local, (*CORE, "onnx", "cli")), *TESTING)
    session.install("--no-deps", *ONNX_MODELS)
    test(session, *BY_RELEASE)


@nox.session
def inductor(session: nox.Session) -> None:
    """The Inductor frontend with PyTorch, and the contract."""
    need(session, "inductor")
    session.install(TORCH, *map(local, CORE), local("inductor", "torch"), local("cli"), PLUGIN, *TESTING)
    test(session, "packages/inductor/tests", *CONTRACT)


@nox.session(name="inductor-cuda")
def inductor_cuda(session: nox.Session) -> None:
    """The Inductor frontend with the newest torch of its range, and the replay of the caching allocator beside the real one."""
    need(session, "inductor")
    session.install(TORCH_CUDA, "setuptools", *map(local, CORE), local("inductor"), local("cli"), PLUGIN, *TESTING)
    test(session, "packages/inductor/tests", *CONTRACT)


@nox.session(python=["3.12", "3.13"])
def newer(session: nox.Session) -> None:
    """The core and the command line on later versions of Python."""
    session.install(*map(local, CORE), local("native"), local("cli"), PLUGIN, "joblib", "jsonschema", "pyarrow", *TESTING)
    test(session, "packages/check/tests", "packages/core/tests", "packages/native/tests", "packages/cli/tests", "tests")


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation, with every warning an error."""
    session.install("mkdocs>=1.6", "mkdocs-material>=9.5", "mkdocstrings[python]>=0.26", "ruff")
    session.run("mkdocs", "build", "--strict", *session.posargs)
