"""Every command and every Python block of the documentation is executed, each page in a folder of its own with the files it names.

What cannot be done here is skipped with its reason: a frontend or runtime that is not installed, a page about a cluster.
"""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from peakmem.frontends import discover
from peakmem_cli.main import main

from .conftest import SAMPLES, make_inductor, make_onnx, make_program, make_tflite
from .test_readme import PAGES, ROOT, blocks, typed

NEEDS = {"onnx": ("onnx", "onnxruntime"), "tflite": ("tflite", "tflite_micro"), "inductor": ("inductor", "torch")}
"""Frontend -> itself and the module of its runtime."""

ELSEWHERE = {
    "--backend": "needs workers", "dask": "needs a cluster", "curl": "needs the network", "--device-log": "needs the log of a board",
    "--inputs": "needs arrays of the model's inputs",
}  # fmt: skip
"""What a line may name that is tried in other tests or nowhere."""

SHOWN = {"tutorial.md": "tests/test_readme.py runs it and compares what it prints", "plugin.md": "its blocks are pieces of tests/plugin",
         "cuda_snapshots.md": "what records needs a GPU; packages/inductor/tests reads what was recorded"}  # fmt: skip


def need(frontend: str) -> None:
    name, module = NEEDS[frontend]
    if name not in discover():
        pytest.skip(f"needs the frontend: pip install peakmem-{name}")
    if find_spec(module) is None:
        pytest.skip(f"needs {module}")


def kinds(page: Path, text: str) -> set[str]:
    """Frontends whose files a text of a page names."""
    found = {name for name, end in (("tflite", ".tflite"), ("onnx", ".onnx"), ("inductor", "wrappers/")) if end in text}
    if "peakmem_inductor" in text or 'backend="peakmem"' in text:
        found.add("inductor")
    return found | ({"onnx"} if "onnxruntime" in text else set())


SAMPLE = {".tflite": make_tflite, ".onnx": make_onnx, ".json": make_program}
"""What stands for a model of a page, by the end of its name."""

WRITTEN = ("-o", "--output", "--snippet-out", "--c-array", "--report", "--plot", "--front", "--certificate-out", "--program-out", "--figure")
"""Options whose values are outputs."""


def put(path: Path, page: str) -> None:
    """A sample under the name that a page has for it."""
    if path.exists():
        return
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(SAMPLE[path.suffix](Path(folder)), path)
    if path.suffix == ".onnx" and "batch=1" in page:
        import onnx

        model = onnx.load(path)
        for value in (*model.graph.input, *model.graph.output):
            value.type.tensor_type.shape.dim[0].dim_param = "batch"
        onnx.save(model, str(path))


def furnish(folder: Path, wanted: set[str], page: str) -> None:
    """Put there what the pages call ``program.json``, ``wrappers/0_backward.py`` and so on, and models that Python reads."""
    for name in wanted:
        need(name)
    put(folder / "program.json", page)
    shutil.copy(ROOT / "examples" / "branches.json", folder)
    (folder / "plan.csv").write_text("id,lower,upper,size\na,0,2,8\nb,1,3,8\n")
    (folder / "models").mkdir()
    shutil.copy(folder / "program.json", folder / "models" / "one.json")
    if "proof.json" in page:
        assert main(["certify", str(folder / "program.json"), "-o", str(folder / "proof.json"), "-q"]) == 0
    for name in re.findall(r"(?:load|session|InferenceSession)\(\"([^\"/]+\.(?:tflite|onnx))\"", page):
        put(folder / name, page)
    if "inductor" in wanted:
        (folder / "wrappers").mkdir()
        wrapper = make_inductor(folder / "wrappers")
        for name in ("0_inference", "0_backward"):
            for file in (folder / "wrappers").glob(f"{wrapper.stem}*"):
                if not file.stem.startswith(name):
                    shutil.copy(file, file.with_name(file.name.replace(wrapper.stem, name)))


def commands(page: Path) -> list[list[str]]:
    return [words for words in typed(page) if words and words[0] != "--version"]


WITH_COMMANDS = [p for p in PAGES if commands(p) and p.name not in SHOWN]
WITH_PYTHON = [p for p in PAGES if blocks(p, "python") and p.name not in SHOWN]


def marked(pages: list[Path]) -> list[Any]:
    """As parameters, with the frontends whose files they name."""
    return [
        pytest.param(page, id=str(page.relative_to(ROOT)), marks=[pytest.mark.beside(*named)] if (named := kinds(page, page.read_text())) else [])
        for page in pages
    ]


def test_no_page_is_forgotten() -> None:
    for page in PAGES:
        for language, text in re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL):
            assert language or not re.search(r"^(peakmem|pip|import|from) ", text, re.MULTILINE), f"{page}: a block without its language:\n{text}"
    assert {p.name for p in PAGES if blocks(p, "sh", "python", "console")} <= {
        p.name for p in (*WITH_COMMANDS, *WITH_PYTHON)
    } | set(SHOWN)
    assert set(SAMPLES) >= set(NEEDS)


@pytest.mark.parametrize("page", marked(WITH_COMMANDS))
def test_commands_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [words for words in commands(page) if not any(w.split(",")[0] in ELSEWHERE for w in words)]
    lines = [words for words in lines if not words[0].startswith("-") and ".venv" not in " ".join(words)]
    if not lines:
        pytest.skip("nothing here without workers or the network")
    text = page.read_text()
    furnish(tmp_path, set().union(*(kinds(page, " ".join(words)) for words in lines)), text)
    monkeypatch.chdir(tmp_path)
    for words in lines:
        for before, word in itertools.pairwise(words):
            if before not in WRITTEN and Path(word).suffix in (".tflite", ".onnx"):
                put(Path(word), text)
        for shard in {w for w in words if w.endswith(".jsonl") and words[0] == "merge"}:
            if not Path(shard).exists() and shard != words[words.index("-o") + 1]:
                assert main(["survey", "models", "--shard", "1/1", "-o", shard]) == 0
        if "--against" in words:
            assert main(["survey", "models", "-o", words[words.index("--against") + 1], "--force"]) == 0
        forced = [] if words[0] in ("inspect", "check", "verify", "frontends", "schema") or "--resume" in words else ["--force"]
        limited = ["--time-limit", "20"] if words[0] in ("optimize", "recompute", "split", "report", "certify") else []
        silent = ["--no-measure"] if words[0] in ("optimize", "recompute", "split", "report", "survey", "arena", "inspect") else []
        silent = [] if words[0] == "arena" and any(w.endswith(".csv") for w in words) else silent
        code = main([*words, *forced, *silent, *(limited if "--time-limit" not in words else [])])
        said = capsys.readouterr()
        assert code in (0, 1, 3), f"peakmem {shlex.join(words)}: {said.err}"  # a model of the tests may miss a target of the page
        assert "internal error" not in said.err and "Traceback" not in said.err + said.out
        if code == 0 and "-o" in words:
            assert Path(words[words.index("-o") + 1]).exists()


@pytest.mark.parametrize("page", marked(WITH_PYTHON))
def test_python_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = blocks(page, "python")
    wanted = kinds(page, "\n".join(pieces))
    furnish(tmp_path, wanted, "\n".join(pieces))
    for name in re.findall(r"save\(\"([^\"]+)\"\)", "\n".join(pieces)):
        (tmp_path / name).unlink(missing_ok=True)  # a page writes it before it reads it
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "page"}
    if "inductor" in wanted:
        names |= network()
    for piece in pieces:
        names.pop("compiled", None)
        if "compiled(x)" in piece and "compiled =" not in piece:
            names["compiled"] = names["torch"].compile(names["net"], backend="peakmem")
        exec(compile(piece, str(page), "exec"), names)


def network() -> dict[str, Any]:
    """What the pages about PyTorch call ``net``, ``x`` and ``optimizer``."""
    import torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
    return {"torch": torch, "net": net, "x": torch.randn(16, 8), "optimizer": torch.optim.SGD(net.parameters(), 0.1)}
