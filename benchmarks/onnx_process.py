"""Memory of the process that runs an ONNX model: ONNX Runtime as it comes, and deployments in which the plan is realised.

Compared are ONNX Runtime with its defaults, the same without memory patterns, the optimized file in a planned arena (Python) and
with replayed places (the C interface). Every figure is resident memory above what imports and inputs need, at its highest from
loading to the fourth run; the median of fresh processes that alternate. The time is CPU time of a process's fastest run, as the
ratio of the medians. Bits and predicted bytes are checked by runs of their own; a row that is off says so.

    python benchmarks/onnx_process.py                       # print
    python benchmarks/onnx_process.py --write               # also docs/tables/onnx-process.md
"""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

from common import ROOT, Load, markdown, parser, write
from peakmem.api import load, optimize
from peakmem.model import PeakmemError
from peakmem_onnx import process
from peakmem_onnx.capi import library_of_the_wheel
from peakmem_onnx.feeds import write_feeds
from peakmem_onnx.runtime import runtime_version, scratch

SHAPES = {"rapidocr_det": ("x=1,3,480,640",), "basic_pitch": ("serving_default_input_2:0=1,43844,1",)}
FILES = {
    "rapidocr_det": ("rapidocr-onnxruntime", "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"),
    "basic_pitch": ("basic-pitch", "basic_pitch/saved_models/icassp_2022/nmp.onnx"),
    "unet_like": ("", "onnx/unet_like.onnx"),
    "nas_like": ("", "onnx/nas_like.onnx"),
    "aspp_like": ("", "onnx/aspp_like.onnx"),
    "calibration": ("", "faults/onnx/ort26768_calibration.onnx"),
}
HEAD = (
    "model", "as it comes", "patterns off", "planned arena", "replayed places", "arena: predicted", "replay: predicted", "time arena",
    "time replay", "bits and bytes", "target",
)  # fmt: skip
LESS, SLOWER = 0.20, 1.10
"""What is wanted of a deployment: so much less than as it comes, less than with patterns off, and at most so much slower."""


def file_of(name: str, shared: Path) -> Path | str:
    """The model, or why there is none."""
    package, file = FILES[name]
    if not package:
        return shared / file if (shared / file).exists() else "the shared data folder is not there"
    try:
        return Path(str(metadata.distribution(package).locate_file(file)))
    except metadata.PackageNotFoundError:
        return f"the package {package} is not installed"


def row(name: str, path: Path, repeats: int, limit: float) -> list[str]:
    """One model."""
    options = {"frontend": "onnx", "shape": SHAPES.get(name, ()), "repeats": 0}
    made, off = [], []
    for deploy in ("arena", "replay"):
        result = optimize(load(path, deploy=deploy, **options), time_limit=limit)
        check = result.verification
        assert check is not None
        if check.failures or not check.bitwise_identical or check.optimized_bytes != check.predicted_bytes:
            off.append(f"{deploy}: {check.failures or (check.bitwise_identical, check.predicted_bytes, check.optimized_bytes)}")
        made.append(result.model)
    with scratch() as folder:
        feeds = write_feeds(made[0].one_of_each, folder)
        found = process.configurations(load(path, **options), None, folder)
        for model in made:
            file = folder / f"{model.way.quantity}.onnx"
            file.write_bytes(model.serialized())
            found.append(process.deployed(model, model.way.name, file))
        rows = process.run_configurations(found, feeds, repeats, folder)
    default, plain, *deployed = rows
    peaks = [f"{one.peak / 2**20:.1f}" for one in rows]
    ratios = [one.seconds / default.seconds for one in deployed]
    met = [
        one.peak <= (1 - LESS) * default.peak and one.peak < plain.peak and ratio <= SLOWER
        for one, ratio in zip(deployed, ratios, strict=True)
    ]
    return [
        name, *peaks, *(f"{model.predicted_bytes / 2**20:.1f}" for model in made), *(f"{ratio:.2f}" for ratio in ratios),
        "; ".join(off) or "equal", ", ".join("met" if one else "missed" for one in met),
    ]  # fmt: skip


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("--write", action="store_true", help="write docs/tables/onnx-process.md")
    arguments.add_argument("--models", default=",".join(FILES), metavar="A,B", help="which models (%(default)s)")
    arguments.add_argument("--repeats", type=int, default=11, metavar="N", help="processes of each kind (%(default)s)")
    arguments.add_argument("--time-limit", type=float, default=20.0, metavar="SECONDS", help="for each order (%(default)s)")
    given = arguments.parse_args()
    if library_of_the_wheel() is None:
        sys.exit("this package of ONNX Runtime has no shared library with the C interface, so there is nothing to replay with")
    load_of_machine = Load()
    process.LIMIT = float("inf")
    rows, notes = [], []
    for name in given.models.split(","):
        path = file_of(name, given.shared) if name in FILES else "is not one of the models"
        if isinstance(path, str):
            notes.append(f"{name}: {path}")
            continue
        try:
            rows.append(row(name, path, given.repeats, given.time_limit))
        except PeakmemError as error:
            notes.append(f"{name}: {error}")
        print(f"{name} is done", file=sys.stderr)
    write(
        ROOT / "docs" / "tables" / "onnx-process.md" if given.write else given.markdown,
        "ONNX Runtime: what the process takes",
        "python benchmarks/onnx_process.py --write",
        f"MiB of resident memory above imports and inputs, onnxruntime {runtime_version()}, one thread, median of {given.repeats} processes "
        f"that alternate; time is CPU time against the session as it comes. Target: at least {LESS:.0%} below as it comes, below patterns "
        f"off, at most {SLOWER:.2f} of the CPU time (arena, replay).",
        markdown(HEAD, rows),
        *notes,
        load_of_machine.note(),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
