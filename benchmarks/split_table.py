"""Splitting on TFLite Micro: what no order of a model reaches, and what its bands need.

    python benchmarks/split_table.py [--write] [--max-extra-macs 10%] [--target NAME] [FOLDER or FILE ...]

Needs TFLite Micro (``pip install 'peakmem-tflite[tflm]'``). Without arguments it takes the models of
``../shared/data/tflite``. Every figure is computed in this run; with the portable kernels heads and smallest arenas are
measured on the interpreter, and outputs compared bit for bit, else heads are predicted. ``--write`` also writes
``docs/tables/split.md``.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import peakmem
from peakmem.model import PeakmemError
from peakmem.transform.split import Objective, Splitting

ROOT = Path(__file__).resolve().parents[1]
OBJECTIVES: tuple[Objective, ...] = ("arena", "peak")
HEADER = ("model", "as given", "unsplit", "split", "less", "more MACs", "smallest arena", "file", "regions", "proof", "CPU s")


def row(path: Path, share: str, target: str | None, limit: float, objective: Objective = "arena") -> tuple[list[str], list[str]]:
    """Cells of one model, and what is wrong with it."""
    options = {"target": target} if target else {}
    begin = time.process_time()
    model = peakmem.load(path, **options)
    found = peakmem.split(model, max_extra_macs=share, objective=objective, measure="required", time_limit=limit)
    seconds = time.process_time() - begin
    wrong = []
    best = found.ordering.peak
    unsplit = f"{best}" + ("" if found.unsplit_optimal else f" (at least {found.unsplit_bound})")
    check = found.verification
    alike = check is not None and check.varied is False  # outputs that are the same for every input: equal bits tell little
    given = [path.stem + " *" * alike, str(model.predicted_bytes), unsplit]
    if found.result is None or found.split is None:
        return [*given, "-", "-", "-", "-", "-", found.reason, "-", f"{seconds:.1f}"], wrong
    assert check is not None and found.model is not None
    if check.failures:
        wrong += [f"{path.name}: {failure}" for failure in check.failures]
    if check.measured and not (check.as_predicted and check.bitwise_identical):
        wrong.append(f"{path.name}: measured {check.optimized_bytes}, predicted {check.predicted_bytes}; bits: {check.bitwise_identical}")
    head = found.model.predicted_bytes
    arenas = [check.details[key]["smallest_arena"] for key in ("arena_before", "arena_after")]
    sizes = [len(m.data) for m in (model, found.model)]  # type: ignore[attr-defined]
    regions = ", ".join(f"{r.first}..{r.last} in {r.bands}{' ch' if r.axis == 'channels' else ' kept' if r.kept else ''}" for r in found.split.regions)
    return [
        *given,
        f"{head}",
        f"{100 * (best - head) / best:.1f} %",
        f"{100 * found.split.extra_macs / found.macs:.2f} %" if found.macs else str(found.split.extra_macs),
        f"{arenas[0]} -> {arenas[1]}",
        f"{sizes[0]} -> {sizes[1]}",
        regions,
        _proof(found),
        f"{seconds:.1f}",
    ], wrong


def _proof(found: Splitting) -> str:
    made = found.result
    assert made is not None
    return "optimal for this split" if made.realized_optimal else f"bound {made.realized_bound}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT.parent / "shared" / "data" / "tflite"])
    parser.add_argument("--write", action="store_true", help="write docs/tables/split.md")
    parser.add_argument("--max-extra-macs", default="10%", help="of each model")
    parser.add_argument("--target", help="kernels whose scratch is charged")
    parser.add_argument("--time-limit", type=float, default=120.0, help="seconds for one model")
    arguments = parser.parse_args()
    files = [f for p in arguments.paths for f in (sorted(p.glob("*.tflite")) if p.is_dir() else [p])]
    if not files:
        print("no models found: name a folder of .tflite files", file=sys.stderr)
        return 2
    lines = ["| " + " | ".join(HEADER) + " |", "|---|" + "---:|" * 7 + "---|---|---:|"]
    print("\n".join(lines))
    wrong: list[str] = []
    lower = {"arena": 0, "peak": 0}
    for file in files:
        for objective in OBJECTIVES:
            try:
                cells, faults = row(file, arguments.max_extra_macs, arguments.target, arguments.time_limit, objective)
            except PeakmemError as error:
                cells, faults = [file.stem, *["-"] * 7, str(error), "-", "-"], []
            lower[objective] += cells[3] != "-" and int(cells[3]) < int(cells[2].split()[0])
            if objective == "peak":
                cells[0] += " (head alone)"
            lines.append("| " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
            wrong += faults
            if "--objective peak" not in cells[8]:
                break
    measured = "predicted" if arguments.target not in (None, "reference") else "measured"
    summary = (
        f"{len(files)} models: {lower['arena']} need less split than in any order of the unsplit model, within {arguments.max_extra_macs} more MACs, "
        f"what further operators take of the arena counted; {lower['peak']} more do where the head alone counts; "
        + (f"every {measured} head equals the prediction, every output bitwise identical." if not wrong else f"{len(wrong)} faults:")
    )
    if any(" * |" in line for line in lines):
        summary += " Outputs of models with * are the same for every input, so that equal bits tell little of them."
    print("\n".join(["", summary, *wrong]))
    if arguments.write:
        target = ROOT / "docs" / "tables" / "split.md"
        notes = [
            "# TFLite Micro: heads of the arena below every order",
            "",
            f"Made by `python benchmarks/split_table.py --write --max-extra-macs {arguments.max_extra_macs}`. *unsplit* is the best order of the",
            "model as it is, certified optimal unless a bound stands beside it; *split* the head of the arena of the model in bands, ordered",
            "and planned; *less* compares the two. Regions count operators in the base order of the search. Smallest arenas are those of a",
            "64-bit host. What further operators take of the arena is counted, as estimated; *head alone* are rows of `--objective peak`, of",
            "models where bands save less than that. CPU seconds are those of searching, ordering, planning and writing, not of the interpreter, on the machine that",
            "made the table.",
            "",
        ]
        target.write_text("\n".join([*notes, *lines, "", summary, *wrong]) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
