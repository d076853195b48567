"""What ONNX Runtime's arenas and the allocator of planned places hold of every model, predicted and by their own account.

Four ways to open a session: as it comes (arena, patterns and reuse on, two runs), in a planned arena in Python, in one through the
C interface, and with planned places there. *Predicted* comes from a replay, without the allocator in question; the account of an arena
is ONNX Runtime's log, that of the places is our allocator's and, for what comes from the C library beside it, a count. A model with
open dimensions is also run as it comes with inputs of a second shape: what its arena takes then.

    python benchmarks/onnx_held.py                    # print
    python benchmarks/onnx_held.py --write            # also docs/tables/onnx-held.md, row by row
    python benchmarks/onnx_held.py --write --keep     # rows that are there already are kept, as long as the release is the same
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from common import ROOT, Load, markdown, parser, write
from onnx_table import models
from peakmem.api import load
from peakmem.model import PeakmemError
from peakmem_onnx.artifact import Artifact
from peakmem_onnx.feeds import write_feeds
from peakmem_onnx.held import Account, account
from peakmem_onnx.replaying import unavailable
from peakmem_onnx.runtime import ask, counting_library, runtime_version, scratch, uncounted

FAULTS = {
    "bigru": {}, "if_then_loop": {}, "ort26768_calibration": {}, "ort8095_tile_fold": {},
}  # fmt: skip
SECOND = {
    "rapidocr_det": {"x": (1, 3, 256, 448)}, "rapidocr_rec": {"x": (1, 3, 48, 480)}, "rapidocr_cls": {"x": (2, 3, 48, 192)},
    "basic_pitch": {"serving_default_input_2:0": (2, 43844, 1)}, "magika": {"bytes": (4, 2048)},
    "silero_vad": {"input": (3, 288), "state": (2, 3, 128)},
}  # fmt: skip
"""Inputs of a second shape; other inputs stay."""
LEVELS = "none,all"
DEPLOYED = ({"deploy": "arena"}, {"deploy": "arena", "snippet_language": "c"}, {"deploy": "replay"})
PAGE = ROOT / "docs" / "tables" / "onnx-held.md"
HEAD = (
    "model", "level", "as it comes", "its second run", "a second shape", "planned arena", "planned arena, C", "planned places, C",
    "predicted",
)  # fmt: skip


def today(model: Artifact, sets: list[dict[str, Any]], level: str) -> Account:
    """A session of the file as it was given, all options at their defaults."""
    with scratch() as folder:
        path = folder / "given.onnx"
        path.write_bytes(model.origin.source)
        step = {"level": level, "reuse": True, "pattern": True, "arena": True, "model": str(path), "external": model.origin.external,
                "feeds_files": write_feeds(sets, folder)}  # fmt: skip
        return account(step, folder)


def told(model: Artifact) -> tuple[str, str]:
    """What a file in its way was predicted to hold, and what it does hold where that is something else."""
    with scratch() as folder:
        path = folder / "m.onnx"
        path.write_bytes(model.serialized())
        step = {"do": "held", "level": "none", **model.session, "model": str(path), "external": model.origin.external, "turns": 3,
                "feeds_files": write_feeds(model.origin.feeds[:1], folder), "log": str(folder / "log")}  # fmt: skip
        if model.way.planned:
            taken = ask(folder, [step])[0]["phases"][-1]["regions"]
            wanted = list(model.layout)
        else:
            taken = [ask(folder, [{**step, "do": "measure"}], preload=counting_library())[0]["taken"]]
            wanted = [model.predicted_bytes]
    cell = " + ".join(f"{size:,}" for size in wanted)
    return cell, "" if taken == wanted else f"{cell} predicted, {' + '.join(f'{size:,}' for size in taken)} taken"


def row(name: str, path: Path, options: dict[str, Any], level: str) -> list[str]:
    """One model at one level."""
    off, deployed = [], []
    options = {"frontend": "onnx", "ort_level": level, "repeats": 0, **options}
    model = None
    for way in DEPLOYED:
        try:
            one = load(path, **options, **way)
            model = model or one
            cell, difference = told(one)
            off += [f"{one.way.name}: {difference}"] if difference else []
        except PeakmemError as error:
            cell = f"refused: {str(error).partition(': ')[2]}"
        deployed.append(cell)
    model = model or load(path, **options)
    level = model.origin.level  # a lower one where the optimizer gives up
    own = today(model, model.origin.feeds[:1], level)
    if not own.equal:
        off.append(f"as it comes: {own.told} instead of {own.predicted}")
    more = "no open dimension"
    if name in SECOND:
        with tempfile.TemporaryDirectory() as folder:
            first = model.origin.feeds[0]
            second = {k: np.resize(a, SECOND[name].get(k, a.shape)).astype(a.dtype) for k, a in first.items()}
            files = []
            for number, arrays in enumerate((first, second)):
                files.append(str(Path(folder, f"{number}.npz")))
                np.savez(files[-1], **arrays)
            both = load(path, **{**options, "ort_level": level, "shape": (), "inputs": tuple(files)})
            found = today(both, [first, second], level)
        more = " + ".join(f"{sum(regions):,}" for regions in found.told[3:])
        if not found.equal:
            off.append(f"a second shape: {found.told} instead of {found.predicted}")
    return [name, level, f"{own.held:,}", f"{sum(own.told[2]):,}", more, *deployed, "; ".join(off) or "equal"]


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--write", action="store_true", help="write docs/tables/onnx-held.md")
    arguments.add_argument("--keep", action="store_true", help="make the rows that the page has not")
    arguments.add_argument("--levels", default=LEVELS, metavar="A,B", help="of ONNX Runtime's optimizer (%(default)s)")
    arguments.add_argument("--only", default="", metavar="TEXT", help="models whose name contains this")
    given = arguments.parse_args()
    if counting_library() is None:
        sys.exit(f"nothing can be predicted here: {uncounted()}")
    if why := unavailable():
        sys.exit(f"nothing can be replayed here: {why}")
    found, absent = models()
    all_of_them: dict[str, tuple[Path, dict[str, Any]]] = {name: (path, {"shape": tuple(shapes)}) for name, (path, shapes) in found.items()}
    for name, options in FAULTS.items():
        file = given.shared / "faults" / "onnx" / f"{name}.onnx"
        if file.exists():
            all_of_them[name] = (file, options)
    load_of_machine = Load()
    target = PAGE if given.write else given.markdown
    rows = kept(PAGE) if given.keep else {}
    for name, (path, options) in all_of_them.items():
        for level in given.levels.split(",") if given.only in name else ():
            if (name, level) in rows:
                continue
            try:
                rows[name, level] = row(name, path, options, level)
            except PeakmemError as error:
                rows[name, level] = [name, level, *[""] * 6, str(error).replace(str(path), name)]
            print("| " + " | ".join(rows[name, level]) + " |", file=sys.stderr, flush=True)
            wanted = [(one, each) for one in all_of_them for each in LEVELS.split(",")]
            missing = [f"{one} ({each})" for one, each in wanted if (one, each) not in rows]
            page(target, [rows[key] for key in (*wanted, *sorted(rows.keys() - wanted)) if key in rows], absent, missing, load_of_machine)
    return 0


def kept(file: Path) -> dict[tuple[str, str], list[str]]:
    """The rows of a page that this release of ONNX Runtime made."""
    if not file.exists() or f"onnxruntime {runtime_version()}," not in file.read_text():
        return {}
    lines = [line.strip("|").split("|") for line in file.read_text().splitlines() if line.startswith("|")][2:]
    return {(cells[0].strip(), cells[1].strip()): [cell.strip() for cell in cells] for cells in lines}


def page(target: Path | None, rows: Iterable[list[str]], absent: list[str], missing: list[str], load_of_machine: Load) -> None:
    """Print what there is, and what is missing, and write it."""
    write(
        target,
        "ONNX Runtime: what allocators hold",
        "python benchmarks/onnx_held.py --write",
        f"Bytes, onnxruntime {runtime_version()}, one thread. *As it comes*: regions of the arena of a default session after two runs of the "
        "file as given, optimized at the level, and what the second of these runs took (with memory patterns it asks for one block); *a "
        "second shape*: what the arena took in two more runs, of other inputs. *Planned arena*: its regions, mostly one, after three runs with "
        "the outputs of the run before still held; in C sessions keep dead storages for tensors of the same shape. *Places*: the block and "
        "the outputs. The files are as ONNX Runtime makes them and in the order in which it runs them: no order was sought. *Predicted* is `equal` where every region of every phase, from loading to the last run, and every byte of the places was "
        "predicted. Constants are not counted.",
        markdown(HEAD, rows, left=2),
        *(f"Absent: {sentence}." for sentence in absent),
        *([f"Not run yet: {', '.join(missing)}; `--keep` runs them and keeps the others."] if missing else []),
        load_of_machine.note(),
    )


if __name__ == "__main__":
    sys.exit(main())
