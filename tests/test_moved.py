"""Old import names work for one release, and say so."""

from __future__ import annotations

import subprocess
import sys

import pytest

OLD = {
    "peakmem.program": "Program",
    "peakmem.liveness": "timeline",
    "peakmem.errors": "InputError",
    "peakmem.check": "check",
    "peakmem.certificate": "Certificate",
    "peakmem.proofgraph": "Dag",
    "peakmem.jsonfile": "read_json",
    "peakmem.frontend": "Model",
    "peakmem.programfile": "ProgramModel",
    "peakmem.files": "write_atomically",
    "peakmem.words": "answer",
    "peakmem.bounds": "forward_trap",
    "peakmem.ordering.flat": "Solver",
    "peakmem.recompute": "RerunProblem",
    "peakmem.recompute.problem": "parse_extra_macs",
    "peakmem.recompute.floors": "floor",
}


@pytest.mark.parametrize(("module", "name"), OLD.items())
def test_old_names_give_the_new_things_with_a_warning(module: str, name: str) -> None:
    code = (
        "import warnings, importlib\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        f"    old = importlib.import_module({module!r})\n"
        f"from peakmem._moved import new_name\n"
        f"assert getattr(old, {name!r}) is getattr(importlib.import_module(new_name({module!r})), {name!r})\n"
        f"print([str(w.message) for w in seen if w.category is DeprecationWarning])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert f"{module} is " in done.stdout


def test_the_old_package_is_the_function_too() -> None:
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "import peakmem\n"
        "new = peakmem.recompute\n"
        "from peakmem.transform.recompute import recompute\n"
        "assert recompute is new and callable(peakmem.recompute)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)


def test_nothing_of_ours_uses_an_old_name() -> None:
    code = "import peakmem, peakmem.api, peakmem.report.page, peakmem.transform.recompute, peakmem_cli.main"
    subprocess.run([sys.executable, "-W", "error::DeprecationWarning:peakmem", "-c", code], check=True, timeout=600)
