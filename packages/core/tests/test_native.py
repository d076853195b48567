"""Small compiled libraries: built once, kept where it can be written, and a sentence where that fails."""

from __future__ import annotations

import ctypes
import shutil
import sys
import tempfile

import pytest
from peakmem.model import RuntimeMissing
from peakmem.system import native
from peakmem.system.native import build_library

FAKE = """
import pathlib, sys
log = pathlib.Path(__file__).with_name("log")
with log.open("a") as file:
    print(*sys.argv[1:], file=file)
pathlib.Path(sys.argv[sys.argv.index("-o") + 1]).write_bytes(b"library")
"""
"""A compiler that writes down how it was called."""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a source, a cache of its own and a compiler that only says it was called; nothing built before."""
    (tmp_path / "small.c").write_text("int answer(void) { return 42; }\n")
    (tmp_path / "small.cpp").write_text("extern \"C\" int answer() { return 42; }\n")
    (tmp_path / "fake.py").write_text(FAKE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in ("CC", "CXX"):
        monkeypatch.setenv(variable, f"{sys.executable} {tmp_path / 'fake.py'}")
    forget()
    yield tmp_path
    forget()


def forget():
    build_library.cache_clear()
    native._own_folder.cache_clear()


def calls(place):
    log = place / "log"
    return log.read_text().splitlines() if log.exists() else []


def test_a_real_compiler(place, monkeypatch):
    monkeypatch.delenv("CC")
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("needs a C compiler")
    assert ctypes.CDLL(str(build_library(place / "small.c", ("-O1",)))).answer() == 42


def test_built_once_for_a_source_and_what_it_depends_on(place):
    first = build_library(place / "small.c")
    assert first.parent == place / "cache" / "peakmem"
    forget()  # as in another process
    assert build_library(place / "small.c") == first
    assert len(calls(place)) == 1
    assert calls(place)[0].startswith(f"-shared -fPIC {place / 'small.c'} -o ")
    others = {build_library(place / "small.c", ("-O2",)), build_library(place / "small.c", beside="2.0"), build_library(place / "small.cpp")}
    assert len(others | {first}) == 4
    assert calls(place)[1].endswith(" -O2")
    (place / "small.c").write_text("int answer(void) { return 43; }\n")
    forget()
    assert build_library(place / "small.c") != first
    assert len(calls(place)) == 5
    assert sorted(p.name for p in first.parent.iterdir()) == sorted(
        {p.name for p in others} | {first.name, build_library(place / "small.c").name}
    )


def test_a_cache_that_cannot_be_written(place, monkeypatch):
    """Then a temporary folder of this process holds it, for as long as the process lives."""
    (place / "cache").write_text("a file where the folder should be")
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    found = build_library(place / "small.c")
    assert found.read_bytes() == b"library"
    assert found.parent.parent == place
    assert found.parent.name.startswith("peakmem-")
    assert build_library(place / "small.c", beside="x").parent == found.parent
    forget()

    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(RuntimeMissing, match=r"no folder can be written for peakmem's small library small.c \(No space left on device\); set TMPDIR"):
        build_library(place / "small.c")


@pytest.mark.parametrize(("name", "package", "variable"), [("small.c", "gcc", "CC"), ("small.cpp", r"g\+\+", "CXX")])
def test_no_compiler(place, monkeypatch, name, package, variable):
    monkeypatch.delenv(variable)
    monkeypatch.setenv("PATH", str(place))
    with pytest.raises(RuntimeMissing, match=rf"found no compiler; install one \(Debian: apt install {package}\) or name it in {variable}$"):
        build_library(place / name)
    monkeypatch.setenv(variable, "abacus -v")
    with pytest.raises(RuntimeMissing, match=rf"the compiler 'abacus -v' cannot be run; name another in {variable}$"):
        build_library(place / name)


@pytest.mark.parametrize(
    ("says", "reason"),
    [("small.c:1: warning: odd\nsmall.c:2: error: no such thing \nlinker: end", "small.c:2: error: no such thing"), ("", "exit code 3")],
)
def test_a_compiler_that_fails(place, says, reason):
    (place / "fake.py").write_text(f"import sys\nsys.stderr.write({says!r})\nsys.exit(3)\n")
    with pytest.raises(RuntimeMissing) as caught:
        build_library(place / "small.c")
    assert str(caught.value).endswith(f"could not build peakmem's small.c: {reason}")
    assert list((place / "cache" / "peakmem").iterdir()) == []


def test_a_compiler_that_never_ends_is_a_sentence(place, monkeypatch):
    from peakmem.model import RuntimeFailed

    (place / "fake.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(native, "LIMIT", 0.5)
    with pytest.raises(RuntimeFailed, match=r"did not end within 0\.5 s"):
        build_library(place / "small.c")
