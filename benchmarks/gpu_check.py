"""On a machine with a GPU, in less than ten minutes: requested, allocated and reserved bytes as predicted, and the same bits.

    python benchmarks/gpu_check.py [--out rows.jsonl] [--minutes 9]

Needs a CUDA build of torch, `peakmem-core` and `peakmem-inductor`; nothing is downloaded. Small networks are compiled for inference
and training; of every graph the program as Inductor wrote it, its best order, and that with a static pool are run from an empty
cache and from polluted ones, see `gpu_study`. Then whole training steps run under ``backend="peakmem"`` and are compared with
``backend="inductor"`` bit by bit. On a CUDA without hardware no kernel runs, and bits are ``not compared``.

Exit code 0: everything was as predicted; 1: something was not, and the lines with ``MISS`` say what.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import gpu_study

NETS = ("mlp_branches", "tree_mlp", "dropper", "hf_gpt2", "expand_reduce", "unet", "hf_t5", "recurrent", "hf_bert", "resnet18")


def predictions(row: dict[str, Any]) -> list[str]:
    """One line for each program of a graph."""
    lines = []
    for program in gpu_study.PROGRAMS:
        if program not in row:
            continue
        runs = row[program]["runs"]
        requested = all(r["measured"][0] == row[program]["predicted"] for r in runs)
        same = {n: sum(r["measured"][i] == r["predicted"][i] for r in runs) for i, n in ((1, "allocated"), (2, "reserved"))}
        bits = row[program].get("identical")
        word = "not compared" if bits is None else "same bits" if bits else "OTHER BITS"
        told = f"{program:9} requested {row[program]['predicted']:>12,}, {len(runs)} runs: allocated as replayed {same['allocated']}, reserved {same['reserved']}; {word}"
        fine = requested and bits is not False
        lines.append(("ok   " if fine else "MISS ") + told + ("" if requested else f"; measured {[r['measured'][0] for r in runs]}"))
    return lines


def steps(name: str, pool: bool) -> str:
    """Three training steps under both backends: gradients bit by bit, where the device computes."""
    import peakmem_inductor
    import torch
    from inductor_nets import build
    from peakmem_inductor.backend import peakmem
    from peakmem_inductor.devices import computes

    def gradients(backend: Any) -> list[Any]:
        torch._dynamo.reset()
        net, args = build(name, training=True, batch=2)
        net, args = net.cuda(), tuple(a.cuda() for a in args)
        compiled = torch.compile(net, backend=backend)
        found = []
        for _ in range(4):
            net.zero_grad()
            torch.manual_seed(7)
            out = compiled(*args)
            sum(o.float().sum() for o in (out if isinstance(out, tuple) else (out,))).backward()
            found += [p.grad.clone() for p in net.parameters() if p.grad is not None]
        return found

    peakmem_inductor.reset()
    want, got = gradients("inductor"), gradients(partial(peakmem, options={"pool": pool}))
    rows = peakmem_inductor.report()
    states = ", ".join(f"{r.name} {r.state}" + (f" ({r.reason})" if r.reason else "") for r in rows)
    wrong = [r for r in rows if r.state in ("restored", "left alone") or (r.measured is not None and r.measured != r.after)]
    word = "not compared"
    if computes("cuda:0"):
        equal = all(torch.equal(a, b) for a, b in zip(want, got, strict=True))
        word = "same bits" if equal else "OTHER BITS"
        wrong += [] if equal else rows[:1]
    return ("MISS " if wrong else "ok   ") + f"{name} steps{' with a pool' if pool else ''}: {states}; gradients {word}"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="keep all rows here, for `gpu_study.py table`")
    parser.add_argument("--minutes", type=float, default=9.0, help="stop starting networks after so many minutes")
    parser.add_argument("--nets", default=",".join(NETS), help="names from inductor_nets.py")
    parser.add_argument("--convolutions", default="", help="folder of convolutions.py, for a CUDA without hardware")
    given = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        print("gpu_check: torch finds no CUDA device here; nothing was run", file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")
    print(f"torch {torch.__version__} on {torch.cuda.get_device_name(0)}", flush=True)
    begin, missed = time.monotonic(), 0

    def late() -> bool:
        return time.monotonic() - begin > 60 * given.minutes

    def say(line: str) -> None:
        nonlocal missed
        missed += line.startswith("MISS")
        print(line, flush=True)

    for name in filter(None, given.nets.split(",")):
        for training in (False, True):
            if late():
                break
            config = {"net": name, "training": training, "dynamic": False, "batch": gpu_study.BATCH}
            entry: dict[str, Any] = {"config": config}
            torch._dynamo.reset()
            try:
                with tempfile.TemporaryDirectory() as folder:
                    target = Path(folder) / "rows.json"
                    gpu_study.child(config, target, 5.0, given.convolutions, own_orders=False)
                    entry.update(json.loads(target.read_text()))
            except Exception as error:
                entry["failed"] = f"{type(error).__name__}: {error}"
                say(f"MISS {name}: {entry['failed'][:200]}")
            for row in entry.get("rows", ()):
                reason = row.get("left_alone") or row.get("error")
                print(f"{name} {row['graph']}" + (f": {row['statements']} statements" if "statements" in row else ""))
                for line in [f"MISS {reason}"] if reason else predictions(row):
                    say(line)
            if given.out is not None:
                with given.out.open("a") as file:
                    file.write(json.dumps(entry) + "\n")
    for name in ("mlp_branches", "hf_gpt2"):
        for pool in (False, True):
            if not late():
                say(steps(name, pool))
    print(f"{missed} lines with MISS; {time.monotonic() - begin:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
