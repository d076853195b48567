"""Peaks of real ONNX models on ONNX Runtime: as it comes, with memory options off, with the best order too.

Every figure is measured in this run and compared with the model's prediction; a row whose prediction, bits or executed
order is off says so. Models come from the shared data folder beside the repository and from PyPI packages that are
installed without their dependencies (see packages/onnx/pyproject.toml); what is absent is named.

    python benchmarks/onnx_table.py                 # print
    python benchmarks/onnx_table.py --write         # also docs/tables/onnx.md
"""

from __future__ import annotations

import argparse
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from peakmem.api import load, optimize
from peakmem.model import PeakmemError

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "data" / "onnx"
PACKAGES = {
    "rapidocr_det": ("rapidocr-onnxruntime", "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", ["x=1,3,320,320"]),
    "rapidocr_rec": ("rapidocr-onnxruntime", "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", ["x=1,3,48,320"]),
    "rapidocr_cls": (
        "rapidocr-onnxruntime",
        "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        ["x=1,3,48,192"],
    ),
    "basic_pitch": ("basic-pitch", "basic_pitch/saved_models/icassp_2022/nmp.onnx", ["serving_default_input_2:0=1,43844,1"]),
    "magika": ("magika", "magika/models/standard_v3_3/model.onnx", ["bytes=1,2048"]),
    "silero_vad": ("silero-vad", "silero_vad/data/silero_vad.onnx", ["input=1,288", "state=2,1,128"]),
}
HEAD = (
    "model", "level", "nodes", "as it comes", "today's order, options off", "best order, options off", "proved",
    "measured = modelled", "bits", "executed order", "seconds",
)  # fmt: skip


def models() -> tuple[dict[str, tuple[Path, list[str]]], list[str]]:
    """Name -> (file, shapes), and sentences about what is absent."""
    found: dict[str, tuple[Path, list[str]]] = {p.stem: (p, []) for p in sorted(SHARED.glob("*.onnx"))}
    absent = [] if found else ["the shared data folder is not there"]
    for name, (package, file, shapes) in PACKAGES.items():
        try:
            path = Path(str(metadata.distribution(package).locate_file(file)))
        except metadata.PackageNotFoundError:
            absent.append(f"{name}: the package {package} is not installed")
            continue
        found[name] = (path, shapes)
    return found, absent


def row(name: str, path: Path, shapes: list[str], level: str, limit: float) -> list[str]:
    """One model at one level."""
    begin = time.monotonic()
    result: Any = optimize(load(path, frontend="onnx", ort_level=level, shape=tuple(shapes), repeats=0), time_limit=limit)
    check = result.verification
    if check is None:
        return [name, level, str(len(result.source.program)), f"not run: {result.unmeasured}"] + [""] * 7
    # Where an operator runs in place in some orders only, or a body's outputs come late, the proof speaks of an
    # upper bound on what the runtime takes.
    exact = result.live_peak_after == result.model.predicted_bytes and not result.source.whole.undecided
    proved = ("optimal" if result.optimal else f"bound {result.lower_bound:,}") + ("" if exact else " for the charge")
    return [
        name,
        level,
        str(len(result.source.program)),
        _bytes(check.details.get("onnxruntime_defaults_bytes")),
        _bytes(check.baseline_bytes),
        _bytes(check.optimized_bytes),
        proved,
        "yes" if check.as_predicted else "NO" if check.measured else "not measured",
        "equal" if check.bitwise_identical else "DIFFER",
        check.details["executed_order"],
        f"{time.monotonic() - begin:.1f}",
    ]


def _bytes(number: int | None) -> str:
    return "not measured" if number is None else f"{number:,}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--write", action="store_true", help="write docs/tables/onnx.md")
    parser.add_argument("--levels", default="none,basic,all")
    parser.add_argument("--only", default="", help="models whose name contains this")
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds for each proof")
    arguments = parser.parse_args()
    found, absent = models()
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    print("\n".join(lines), flush=True)
    for name, (path, shapes) in found.items():
        for level in arguments.levels.split(","):
            if arguments.only not in name:
                continue
            try:
                cells = row(name, path, shapes, level, arguments.time_limit)
            except PeakmemError as error:
                cells = [name, level, "", str(error)] + [""] * 7
            lines.append("| " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    for sentence in absent:
        print(f"absent: {sentence}")
    if arguments.write:
        from peakmem_onnx.runtime import runtime_version

        text = [
            "# ONNX models on ONNX Runtime",
            "",
            f"Made by `python benchmarks/onnx_table.py --write` with onnxruntime {runtime_version()} on the CPU, one intra-op",
            "thread. Bytes. *As it comes*: what the arena holds after two runs of a session with default options. The other",
            "columns are peaks of tensors and workspace with arena, patterns and reuse off. *Today's order* is the order in",
            "which the optimizing session itself ran the nodes. Weights and inputs are not counted. At level all",
            "ONNX Runtime's own order can differ from session to session, and the two columns before the best order with it.",
            "",
            *lines,
            "",
            *(f"Absent: {sentence}." for sentence in absent),
        ]
        target = ROOT / "docs" / "tables" / "onnx.md"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join(text).rstrip() + "\n")
        print(f"wrote {target.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
