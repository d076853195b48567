"""Whole training steps: what order gives, and what a search over what the forward saves gives on top.

    python benchmarks/training_steps.py [--nets mlp_branches,hf_gpt2:8] [--markdown docs/tables/training-steps.md]

One child process a net (``name:batch``), one thread, ``options={"memory": "least"}``. Modelled before anything runs: the
step at every budget, as Inductor wrote it and in the best orders. Measured by the counting allocator at the budget taken:
step 1, which runs what Inductor wrote, and step 3, which runs the orders that were checked in step 2.
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

HERE = Path(__file__).resolve().parent
NETS = ("mlp_branches", "hf_gpt2:8", "aspp_like", "hf_mixtral", "unet", "hf_bert:8", "tree_mlp", "mixer")


def child(net_name: str) -> dict[str, Any]:
    sys.path.insert(0, str(HERE))
    import peakmem_inductor
    import torch
    from inductor_nets import build

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    name, _, batch = net_name.partition(":")
    net, args = build(name, training=True, batch=int(batch or 2))

    def loss(*inputs: Any) -> Any:
        out = net(*inputs)
        return sum(part.square().mean() for part in (out if isinstance(out, tuple) else (out,)))

    compiled = torch.compile(loss, backend="peakmem", options={"memory": "least"})
    peaks = []
    for _ in range(3):
        net.zero_grad()
        with peakmem_inductor.step() as measured:
            compiled(*args).backward()
        peaks.append(measured.peak)
    report = peakmem_inductor.report()
    return {"peaks": peaks, "choice": report.choices[0].to_json(), "states": [r.state for r in report]}


def table(rows: list[tuple[str, dict[str, Any]]], failed: list[str]) -> str:
    lines = [
        "# Inductor: training steps",
        "",
        "Made by `python benchmarks/training_steps.py --markdown docs/tables/training-steps.md`, torch on the CPU, one thread.",
        "Bytes above the start of a step of forward and backward with the loss in the graph. *order* is the change at equal",
        "budget; *all* that against Inductor at budget 1. Measured columns were measured, and equal what was modelled before",
        "anything ran where no sign stands (`~`).",
        "",
        "| net | Inductor, budget 1 (modelled) | peakmem, budget 1 (modelled) | budget taken | Inductor there (measured) | peakmem (measured) | order | all | more MACs |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for net, row in rows:
        budgets = row["choice"]["budgets"]
        taken = next(b for b in budgets if b["chosen"])
        first, third = row["peaks"][0], row["peaks"][2]
        at_one = next((b for b in budgets if b["budget"] == 1.0), None)
        one = f"{at_one['before']:,} | {at_one['after']:,}" if at_one else "- | -"
        lines.append(
            f"| {net} | {one} | {taken['budget']} | {'' if first == taken['before'] else '~'}{first:,} | "
            f"{'' if third == taken['after'] else '~'}{third:,} | {100 * (third / first - 1):+.1f} % | "
            + (f"{100 * (third / at_one['before'] - 1):+.1f} %" if at_one else "-")
            + f" | {100 * taken['extra_macs'] / taken['macs'] if taken['macs'] else 0.0:.1f} % |"
        )
    lines += ["", "All budgets with programs of their own, modelled: Inductor -> peakmem.", ""]
    for net, row in rows:
        cells = "; ".join(f"{b['budget']}: {b['before']:,} -> {b['after']:,}" for b in row["choice"]["budgets"])
        lines.append(f"- {net}: {cells}")
    if failed:
        lines += ["", f"Not measured: {', '.join(failed)}."]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one net")
    parser.add_argument("--markdown", type=Path, help="write the table there too")
    parser.add_argument("--child", action="store_true")
    given = parser.parse_args()
    if given.child:
        print(json.dumps(child(given.nets)))
        return 0
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.mkdtemp(prefix="peakmem-")
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    rows: list[tuple[str, dict[str, Any]]] = []
    failed = []
    for net in given.nets.split(","):
        command = [sys.executable, __file__, "--child", "--nets", net]
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=given.timeout, check=True)
            row = json.loads(done.stdout.splitlines()[-1])
            if not any(b["chosen"] for b in row["choice"]["budgets"]):
                raise ValueError(row["choice"]["reason"])
        except (subprocess.SubprocessError, ValueError, IndexError) as error:
            last = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
            print(f"{net}: {type(error).__name__} {' '.join(last)}", file=sys.stderr)
            failed.append(net)
            continue
        rows.append((net, row))
        print(net, row["peaks"], row["states"], file=sys.stderr, flush=True)
    text = table(rows, failed)
    print(text)
    if given.markdown:
        given.markdown.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
