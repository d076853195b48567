"""What the first steps of training need under peakmem, against Inductor.

    python benchmarks/first_call.py [--nets mlp_branches,unet] [--rows rows.jsonl] [--markdown docs/tables/first-call.md]

Two fresh processes a net, one under each backend, one thread. The counting allocator sees the whole of each step, forward
and backward, with the compilation inside the first one; the peak of the process is the kernel's (``VmHWM``). peakmem
records in step 1, checks better orders in step 2 and runs them from step 3.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from resumable import add_rows, collect, last_line

HERE = Path(__file__).resolve().parent
NETS = (
    "mlp_branches", "aspp_like", "dense_mlp", "tree_mlp", "hf_mixtral", "two_towers", "dropper", "expand_reduce", "hf_gpt2", "hf_bert",
    "mixer", "gpt2_dropout", "hf_albert", "squeezenet", "convnext", "hf_vit", "recurrent", "bifpn", "shufflenet", "unet", "densenet",
    "googlenet",
)  # fmt: skip
ROOM = 0.01
"""What the first step may need beyond Inductor's, as a share."""


def process_peak() -> int:
    """Most resident bytes of this process so far."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return 1024 * int(line.split()[1])
    return 0


def solver_size() -> tuple[int, int]:
    """Bytes by which loading the solver of minimum cuts enlarges a fresh process, and how many of them are pages of files."""
    code = """
def resident():
    rows = dict(row.split(":", 1) for row in open("/proc/self/status"))
    return [1024 * int(rows[what].split()[0]) for what in ("VmRSS", "RssFile")]
import numpy
before = resident()
from ortools.graph.python import max_flow
print(*(a - b for a, b in zip(resident(), before)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    total, files = map(int, done.stdout.split())
    return total, files


def child(net_name: str, backend: str, steps: int) -> dict[str, Any]:
    sys.path.insert(0, str(HERE))
    import peakmem_inductor
    import torch
    from inductor_nets import build

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    net, args = build(net_name, training=True, batch=2)
    compiled = torch.compile(net, backend=backend)
    peaks = []
    for _ in range(steps):
        net.zero_grad()
        with peakmem_inductor.step() as measured:
            out = compiled(*args)
            sum(part.sum() for part in (out if isinstance(out, tuple) else (out,))).backward()
        peaks.append(measured.peak)
        del out
    states = [[r.name.split("_")[-1], r.state] for r in peakmem_inductor.report()] if backend == "peakmem" else []
    return {"peaks": peaks, "process": process_peak(), "states": states, "solver": "ortools.graph.python.max_flow" in sys.modules}


def table(rows: list[tuple[str, dict[str, Any], dict[str, Any]]], failed: list[str]) -> str:
    worst = max((b["peaks"][0] / a["peaks"][0] for _, a, b in rows), default=0.0)
    lines = [
        "# Inductor: the first steps",
        "",
        "Made by `python benchmarks/first_call.py --markdown docs/tables/first-call.md`, torch on the CPU, one thread, batch 2.",
        "Bytes above the start of a step of forward and backward, as the counting allocator saw them, compilation included.",
        f"Of {len(rows)} nets the first step under peakmem needs at most {worst:.4f} times what it needs under Inductor.",
        "Process: the most resident megabytes of the process, most of which is torch and its compiler.",
        "",
        "| net | forward, backward | Inductor, step 1 | peakmem, step 1 | step 2 | step 3 | process, Inductor | process, peakmem |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for net, a, b in rows:
        states = ", ".join(state for _, state in b["states"])
        peaks = " | ".join(f"{n:,}" for n in (a["peaks"][0], *b["peaks"][:3]))
        lines.append(f"| {net} | {states} | {peaks} | {a['process'] / 1e6:.0f} | {b['process'] / 1e6:.0f} |")
    missing = [n for n in NETS if n not in {net for net, *_ in rows} and n not in failed]
    if missing:
        lines += ["", f"Not run yet: {', '.join(missing)}."]
    if failed:
        lines += ["", f"Not measured: {', '.join(failed)}."]
    solved = [net for net, _, b in rows if b["solver"]]
    if solved:
        total, files = solver_size()
        lines += [
            "",
            f"For {', '.join(solved)} the first bound was not met and minimum cuts were computed, whose solver a process then loads:",
            f"{total / 1e6:.0f} MB in a fresh process, {files / 1e6:.0f} MB of them pages of library files.",
        ]
    lines += ["", "Step 2 runs a better order and the original on the same arguments, one after the other, and sets aside in a file what they free."]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one process")
    add_rows(parser)
    parser.add_argument("--markdown", type=Path, help="write the table there too")
    parser.add_argument("--child", choices=("inductor", "peakmem"))
    given = parser.parse_args()
    if given.child:
        print(json.dumps(child(given.nets, given.child, 3)))
        return 0
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.mkdtemp(prefix="peakmem-")
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    # Only compiled kernels are shared: with whole graphs from a cache the second process would compile nothing, and need less.
    environment |= {"TORCHINDUCTOR_FX_GRAPH_CACHE": "0", "TORCHINDUCTOR_AUTOGRAD_CACHE": "0"}

    def both(net: str) -> list[dict[str, Any]]:
        command = [sys.executable, __file__, "--nets", net, "--child"]
        return [last_line([*command, backend], environment, given.timeout) for backend in ("inductor", "peakmem")]

    found, failed = collect(given.nets.split(","), None if given.no_run else both, given.rows)
    rows = [(net, a, b) for net, (a, b) in found]
    text = table(rows, failed)
    print(text)
    if given.markdown:
        given.markdown.write_text(text)
    return int(any(b["peaks"][0] > (1 + ROOM) * a["peaks"][0] for _, a, b in rows))


if __name__ == "__main__":
    raise SystemExit(main())
