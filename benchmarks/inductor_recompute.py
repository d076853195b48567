"""What running statements twice buys in Inductor's programs, measured.

    python benchmarks/inductor_recompute.py [--nets unet,hf_t5] [--budget 12%] [--markdown docs/tables/inductor-recompute.md]

One child process a net, one thread. Each graph is compiled with ``backend="peakmem"`` without and with a budget of extra
MACs; both are verified on their first call (bits, bytes). Inference programs then run alternately, and the ratio of
their median processor times is given.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
CALLS = 60
NETS = (
    "unet", "mlp_branches", "two_towers", "tree_mlp", "dense_mlp", "hf_t5", "hf_mixtral", "squeezenet", "expand_reduce",
    "aspp_like", "recurrent", "hf_gpt2", "hf_vit", "mixer", "bifpn", "hrnet", "densenet", "googlenet", "shufflenet",
    "randwire24", "convnext", "mobilenet_v3", "resnet18",
)  # fmt: skip


def child(net_name: str, training: bool, budget: str, time_limit: float) -> list[dict[str, Any]]:
    sys.path.insert(0, str(HERE))
    import peakmem_inductor
    import torch
    from inductor_nets import build
    from inductor_overhead import twin

    torch.set_num_threads(1)
    net, args = build(net_name, training=training, batch=2 if training else 1)
    reports = []
    compiled = []
    for extra in ({}, {"max_extra_macs": budget}):
        peakmem_inductor.reset()
        other = twin(net)
        function = torch.compile(other, backend="peakmem", options={"time_limit": time_limit, **extra})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if training:
                out = function(*args)
                parts = out if isinstance(out, tuple) else (out,)
                sum(p.sum() for p in parts).backward()
            else:
                with torch.no_grad():
                    function(*args)
        reports.append(peakmem_inductor.report())
        compiled.append(function)
    rows = []
    for before, after in zip(*reports):
        if before.statements != after.statements or not before.statements:
            raise RuntimeError(f"{net_name}: the two compilations made different programs")
        rows.append({"net": net_name, "ordered": before.to_json(), "recomputed": after.to_json(), "ratio": None})
    if not training and len(rows) == 1 and rows[0]["recomputed"]["state"] == "recomputed":
        times: list[list[float]] = [[], []]
        with torch.no_grad():
            for _ in range(CALLS):
                for function, found in zip(compiled, times):
                    begin = time.thread_time()
                    function(*args)
                    found.append(time.thread_time() - begin)
        rows[0]["ratio"] = median(times[1]) / median(times[0])
    return rows


def table(rows: list[dict[str, Any]], budget: str, failed: list[str]) -> str:
    helped = [r for r in rows if r["recomputed"]["state"] == "recomputed"]
    lines = [
        "# Inductor: statements that run twice",
        "",
        f"Made by `python benchmarks/inductor_recompute.py --budget {budget} --markdown docs/tables/inductor-recompute.md`,",
        f"torch on the CPU, one thread, small inputs. {len(rows)} graphs; running statements twice lowers {len(helped)} of them, shown",
        "here. Bytes are above entry of the call; both columns were measured on the first call, with the bits of the untouched",
        "program. *bound* is what no order reaches below without copies. *time* is the ratio of median processor times, with copies",
        "to without, where one graph could be timed alone.",
        "",
        "| graph | statements | bound | best order | with copies | less | run again | more MACs | plan | time |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for r in sorted(helped, key=lambda r: r["recomputed"]["after"] / r["ordered"]["after"]):
        a, b = r["ordered"], r["recomputed"]
        measured = b["measured"] == b["after"] and b["identical"] and a["measured"] == a["after"]
        if not measured:
            raise RuntimeError(f"{r['net']}: {b}")
        share = 100 * b["extra_macs"] / b["macs"] if b["macs"] else 0.0
        ratio = f"{r['ratio']:.2f}" if r["ratio"] else "not timed"
        lines.append(
            f"| {r['net']} {a['name'].split('_')[-1]} | {a['statements']} | {a['bound']:,} | {a['after']:,} | {b['after']:,} | "
            f"{100 * (1 - b['after'] / a['after']):.1f} % | {b['reruns']} | {share:.3f} % | {'exact' if b['exact'] else 'best found'} | {ratio} |"
        )
    rest = [r for r in rows if r not in helped]
    kinds: dict[str, list[str]] = {}
    for r in rest:
        kinds.setdefault(r["net"], []).append(r["ordered"]["name"].split("_")[-1])
    same = ", ".join(f"{net} ({', '.join(names)})" for net, names in kinds.items())
    lines += ["", f"Not lowered within this budget, {len(rest)} graphs: {same}.", ""]
    if failed:
        lines += [f"Not measured: {', '.join(failed)}.", ""]
    lines += [
        "*plan* is `exact` where no plan for the same base order reaches this peak for less MACs. Generated kernels count 0 MACs.",
        "A forward of training keeps what its backward needs as results, so nothing can be dropped in it.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nets", default=",".join(NETS))
    parser.add_argument("--budget", default="12%")
    parser.add_argument("--time-limit", type=float, default=20.0)
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one net")
    parser.add_argument("--markdown", type=Path, help="write the table there too")
    parser.add_argument("--child", choices=("inference", "training"))
    given = parser.parse_args()
    if given.child:
        print(json.dumps(child(given.nets, given.child == "training", given.budget, given.time_limit)))
        return 0
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.mkdtemp(prefix="peakmem-")
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    for net in given.nets.split(","):
        for mode in ("inference", "training"):
            command = [
                sys.executable, __file__, "--child", mode, "--nets", net, "--budget", given.budget, "--time-limit", str(given.time_limit)
            ]  # fmt: skip
            try:
                done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=given.timeout, check=True)
                found = json.loads(done.stdout.splitlines()[-1])
            except (subprocess.SubprocessError, ValueError, IndexError) as error:
                last = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
                print(f"{net} {mode}: {type(error).__name__} {' '.join(last)}", file=sys.stderr)
                failed.append(f"{net} {mode}")
                continue
            rows += found
            for r in found:
                b = r["recomputed"]
                print(f"{net} {b['name']}: {r['ordered']['after']} -> {b['after']} {b['state']} +{b['extra_macs']} MACs", file=sys.stderr, flush=True)
    text = table(rows, given.budget, failed)
    print(text)
    if given.markdown:
        given.markdown.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
