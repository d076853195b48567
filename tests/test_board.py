"""The command line of boards: the C array, two memories, an arena that several models share. Through ``main``, as a shell calls it."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("peakmem_tflite", reason="needs the frontend: pip install peakmem-tflite")
pytest.importorskip("peakmem_cli", reason="needs the command line: pip install peakmem-cli")
from peakmem_cli.main import main

pytestmark = pytest.mark.beside("tflite")

BUILDERS = Path(__file__).parents[1] / "packages" / "tflite" / "tests" / "conftest.py"


@pytest.fixture(scope="module")
def builders():
    spec = importlib.util.spec_from_file_location("tflite_builders", BUILDERS)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def files(builders, tmp_path):
    paths = []
    for name in ("convolutions", "diamond", "streaming"):
        paths.append(tmp_path / f"{name}.tflite")
        paths[-1].write_bytes(builders.encode(getattr(builders, name)()))
    return paths


def test_the_array_is_that_of_the_file_written(files, tmp_path, capsys):
    out, array = tmp_path / "small.tflite", tmp_path / "small model.cc"
    assert main(["optimize", str(files[0]), "-o", str(out), "--c-array", str(array), "--no-measure"]) == 0
    text = array.read_text()
    body = text[text.index("{") : text.index("}")]
    assert bytes(int(byte, 16) for byte in re.findall(r"0x([0-9a-f]{2})", body)) == out.read_bytes()
    assert "const unsigned int small_model_len" in text
    assert f"wrote {array}" in capsys.readouterr().out
    before = array.read_bytes()
    assert main(["optimize", str(files[0]), "--c-array", str(array), "--no-measure"]) == 2
    assert array.read_bytes() == before
    assert main(["optimize", str(files[0]), "--c-array", str(array), "--no-measure", "--force"]) == 0
    assert array.read_bytes() == before  # the same text again


def test_the_array_is_for_frontends_that_have_one(builders, tmp_path, capsys):
    from peakmem.model import Buffer, Program, Statement

    path = tmp_path / "program.json"
    program = Program((Buffer("a", 4, "input"), Buffer("b", 4, "output", pinned=True)), (Statement("s", reads=(0,), writes=(1,)),))
    path.write_text(json.dumps(program.to_json()))
    assert main(["optimize", str(path), "--c-array", str(tmp_path / "a.c")]) == 2
    assert "writes no C array" in capsys.readouterr().err
    assert main(["arena", str(path), str(path)]) == 2
    assert "knows no arena that several models share" in capsys.readouterr().err


def test_the_number_to_copy_is_the_second_line(files, capsys):
    for command in ("optimize", "inspect"):
        assert main([command, str(files[0]), "--no-measure", "--target", "reference"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert re.match(r"kTensorArenaSize = \d+: head [\d,]+ B \+ tail", lines[1])


def test_two_memories_on_the_command_line(files, capsys):
    given = ["--no-measure", "--target", "reference", "--memory", "sram=3KiB", "--memory", "psram"]
    assert main(["optimize", str(files[0]), "--json", *given]) == 0
    board = json.loads(capsys.readouterr().out)["tflite"]["board"]["after"]
    assert [row["fits"] for row in board["memories"]].count(True) >= 1
    assert board["memories"][0]["fits"]
    assert main(["optimize", str(files[0]), "--memory", "sram=3KiB"]) == 2
    assert "name two memories" in capsys.readouterr().err


def test_one_arena_for_several_models(files, tmp_path, capsys):
    source = tmp_path / "arenas.h"
    assert main(["arena", *map(str, files), "--no-measure", "--snippet-out", str(source)]) == 0
    printed = capsys.readouterr().out
    size = int(re.search(r"kTensorArenaSize = (\d+)", printed)[1])
    assert f"constexpr size_t kTensorArenaSize = {size};" in source.read_text()
    assert main(["arena", *map(str, files), "--no-measure", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "peakmem.shared_arena/1"
    assert document["tensor_arena_size"] == size < document["separate_arenas"]
    assert [row["model"] for row in document["models"]] == list(map(str, files))
    assert main(["arena", str(files[0])]) == 2
    assert main(["arena", str(files[0]), str(tmp_path / "none.tflite")]) == 2
    (tmp_path / "bad.tflite").write_bytes(b"\0\0\0\0TFL3")
    assert main(["arena", str(files[0]), str(tmp_path / "bad.tflite"), "--snippet-out", str(tmp_path / "new.h")]) == 2
    assert not (tmp_path / "new.h").exists()
