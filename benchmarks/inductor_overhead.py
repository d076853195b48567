"""What peakmem adds to compiling and running: Inductor and peakmem on one graph of about 200 statements.

    python benchmarks/inductor_overhead.py [--nodes 100]

Each backend compiles in a child process with a cache folder of its own, in which only the precompiled headers are
warm. Printed are processor seconds of the process and its compilers (wall clock depends on who else is working), and
the ratio of the run times of the two programs, measured alternately in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent


def processor_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def child(backend: str, nodes: int) -> dict[str, Any]:
    sys.path.insert(0, str(HERE))
    import peakmem_inductor
    import torch
    from inductor_nets import RandWire

    torch.set_num_threads(1)
    with torch.no_grad():
        torch.compile(lambda x: torch.softmax(x, 0), backend="inductor")(torch.randn(4))  # precompiled headers
        torch._dynamo.reset()
        torch.manual_seed(0)
        net, x = RandWire(nodes=nodes, width=8).eval(), torch.randn(1, 3, 32, 32)
        begin = processor_seconds()
        compiled = torch.compile(net, backend=backend)
        compiled(x)
        row: dict[str, Any] = {"first": processor_seconds() - begin}
        if backend == "peakmem":
            report = peakmem_inductor.report()[0]
            row["report"] = report.to_json()
            plain = torch.compile(net, backend="inductor")
            plain(x)
            times: dict[str, list[float]] = {"plain": [], "permuted": []}
            for _ in range(100):
                for name, function in (("plain", plain), ("permuted", compiled)):
                    start = time.perf_counter()
                    function(x)
                    times[name].append(time.perf_counter() - start)
            row["run"] = {name: median(values) for name, values in times.items()}
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--child", default="")
    given = parser.parse_args()
    if given.child:
        print(json.dumps(child(given.child, given.nodes)))
        return 0
    rows = {}
    for backend in ("inductor", "peakmem"):
        with tempfile.TemporaryDirectory() as cache:
            environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
            command = [sys.executable, __file__, "--child", backend, "--nodes", str(given.nodes)]
            run = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
            rows[backend] = json.loads(run.stdout.splitlines()[-1])
    report, run = rows["peakmem"]["report"], rows["peakmem"]["run"]
    print(f"{report['statements']} statements, {report['state']}: {report['before']:,} -> {report['after']:,} bytes")
    a, b = rows["inductor"]["first"], rows["peakmem"]["first"]
    print(f"first call: inductor {a:.1f} s, peakmem {b:.1f} s of processor time ({100 * (b - a) / a:+.1f} %)")
    print(f"run: inductor {1e3 * run['plain']:.2f} ms, peakmem {1e3 * run['permuted']:.2f} ms (ratio {run['permuted'] / run['plain']:.3f})")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
