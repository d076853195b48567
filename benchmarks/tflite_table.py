"""Heads of TFLite Micro arenas, predicted and measured: as given, reordered, planned, both, and searched without a plan.

    python benchmarks/tflite_table.py [--write] [--no-targets] [FOLDER or FILE ...]

Needs TFLite Micro (``pip install 'peakmem-tflite[tflm]'``). Without arguments it takes the models of
``../shared/data/tflite``. Every figure is computed in this run; a head is printed only where the interpreter measured
exactly what was predicted, else both numbers are. Then a column for the kernels of each known board: the head as given and that of
a file ordered and planned for them, which are predicted, since no such kernels run here; and the arena that a 32-bit device needs
for the planned file with the portable kernels, an estimate. ``--write`` also writes ``docs/tables/tflite.md``.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import replace
from pathlib import Path

from peakmem.model import Schedule, scheduled_timeline
from peakmem.ordering import order_program
from peakmem.proof import check
from peakmem_tflite import planning
from peakmem_tflite.measure import heads
from peakmem_tflite.model import TfliteModel
from peakmem_tflite.settings import Settings
from peakmem_tflite.targets import TABLES

ROOT = Path(__file__).resolve().parents[1]
HEADER = ("model", "operators", "as given", "order only", "plan only", "order + plan", "no plan, searched",
          "live peak of the order", "proof", "seconds", "kTensorArenaSize, estimated")  # fmt: skip
BOARDS = tuple(target for target in TABLES if target != "reference")


def on_boards(model: TfliteModel, limit: float, wrong: list[str]) -> list[str]:
    """Heads as given and planned, for each known board."""
    cells = []
    for target in BOARDS:
        given = TfliteModel(model.graph, Settings(target, named=True), model.path)
        planned = given.apply(given.schedule(order_program(given.program, time_limit=limit)))
        if planned.predicted_bytes > given.predicted_bytes:
            wrong.append(f"{model.path}, {target}: {given.predicted_bytes} became {planned.predicted_bytes}")
        cells.append(f"{given.predicted_bytes} -> {planned.predicted_bytes}")
    return cells


def row(path: Path, limit: float, boards: bool) -> tuple[list[str], list[str]]:
    """Cells of one model, and what is wrong with it."""
    model = TfliteModel.from_bytes(path.read_bytes(), path=path, settings=Settings(named=True))
    begin = time.perf_counter()
    ordering = order_program(model.program, time_limit=limit)
    planned = model.apply(model.schedule(ordering))
    seconds = time.perf_counter() - begin
    target = model.settings.target
    alone = planning.place(model.graph, model.mapped, target, model.given)
    searching = replace(model, settings=Settings(no_plan=True, named=True))
    variants = {
        "as given": model,
        "order only": model.apply(Schedule(ordering.orders)),
        "plan only": model.apply(model.named(alone)),
        "order + plan": planned,
        "no plan, searched": searching.apply(searching.schedule(ordering)),
    }
    wrong = []
    cells = {}
    for (name, variant), head in zip(variants.items(), heads([m.graph for m in variants.values()])):
        predicted = variant.predicted_bytes
        cells[name] = f"{predicted}" if head == predicted else f"{predicted} ({head} measured)"
        if head != predicted:
            wrong.append(f"{path.name}, {name}: predicted {predicted}, measured {head}")
    peak = scheduled_timeline(planned.program, {}).peak
    if planned.predicted_bytes != peak:
        wrong.append(f"{path.name}: the arena ({planned.predicted_bytes}) misses the live peak of its order ({peak})")
    proof = f"bound {ordering.lower_bound}"
    if ordering.certificate is not None:
        check(model.program, ordering.certificate.to_json())
        if ordering.lower_bound == peak:
            proof = "optimal"
    operators = str(sum(len(s.operators) for s in model.graph.subgraphs))
    told = on_boards(model, limit, wrong) if boards else []
    return [path.stem, operators, *cells.values(), str(peak), proof, f"{seconds:.2f}", str(planned.board.size), *told], wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT.parent / "shared" / "data" / "tflite"])
    parser.add_argument("--write", action="store_true", help="write docs/tables/tflite.md")
    parser.add_argument("--no-targets", action="store_true", help="leave the columns of boards out")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds for the order of one model")
    arguments = parser.parse_args()
    files = [f for p in arguments.paths for f in (sorted(p.glob("*.tflite")) if p.is_dir() else [p])]
    if not files:
        print("no models found: name a folder of .tflite files", file=sys.stderr)
        return 2
    header = HEADER if arguments.no_targets else (*HEADER, *BOARDS)
    lines = ["| " + " | ".join(header) + " |", "|---|" + "---:|" * (len(header) - 1)]
    print("\n".join(lines))
    wrong: list[str] = []
    for file in files:
        cells, faults = row(file, arguments.time_limit, not arguments.no_targets)
        lines.append("| " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
        wrong += faults
    summary = (
        f"{len(files)} models, {5 * len(files)} arenas: "
        + ("every measured head equals the predicted one, and every planned arena is the live peak of its order."
           if not wrong else f"{len(wrong)} faults:")
    )  # fmt: skip
    print("\n".join(["", summary, *wrong]))
    if arguments.write:
        target = ROOT / "docs" / "tables" / "tflite.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        notes = [
            "# TFLite Micro: heads of the arena in bytes",
            "",
            "Made by `python benchmarks/tflite_table.py --write`; measured on the real interpreter with its portable",
            "kernels. *order only* is the order of least live peak with the interpreter's own planner, *no plan,",
            "searched* an order chosen for that planner. Seconds are those of ordering, planning and rewriting, not of",
            "measuring, on the machine that made the table. *kTensorArenaSize* is for *order + plan* on a 32-bit device with",
            "portable kernels, head and margin included, an estimate. The columns of boards are heads as given and as planned",
            "for that board's kernels, predicted.",
            "",
        ]
        target.write_text("\n".join([*notes, *lines, "", summary, *wrong]) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
