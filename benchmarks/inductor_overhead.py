"""What peakmem adds to compiling and running one graph of about 200 statements.

    python benchmarks/inductor_overhead.py [--nodes 100] [--markdown docs/tables/inductor-overhead.md]

A child process compiles with a cache folder of its own, in which only the precompiled headers are warm. peakmem leaves
Inductor's compilation as it is; all it adds happens in the first calls of the graph: recording and ordering in the first,
verifying there too or, for a graph that frees or writes arguments, in the second. The graph here is inference, so one
call has it all, and the program ends with an error if it has not. So one run gives both figures: processor seconds of the
process and its compilers up to the end of that call, and how many of them were spent there beyond a plain call. (Two separate compilations differ by more than what is to be
measured; wall clock depends on who else is working.) Then both programs run alternately.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import types
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
CALLS = 200
LIMIT = 5.0
"""Seconds of wall clock for ordering, the default of the backend."""


def processor_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def twin(net: Any) -> Any:
    """The same net with a code object of its own: of two programs for one code object, torch checks the guards of one
    before those of the other, which is no property of either."""
    forward = type(net).forward
    own = types.FunctionType(forward.__code__.replace(), forward.__globals__, "forward")
    copied = copy.deepcopy(net)
    copied.__class__ = type("Twin", (type(net),), {"forward": own})
    return copied


def child(nodes: int) -> dict[str, Any]:
    sys.path.insert(0, str(HERE))
    import peakmem_inductor
    import torch
    from inductor_nets import RandWire
    from peakmem.ordering import order_program
    from peakmem_inductor.dispatch import Dispatcher

    inside: list[float] = []

    def timed(act: Any) -> Any:
        def call(self: Dispatcher, key: Any, args: list[Any]) -> Any:
            begin = processor_seconds()
            try:
                return act(self, key, args)
            finally:
                inside.append(processor_seconds() - begin)

        return call

    torch.set_num_threads(1)
    with torch.no_grad():
        torch.compile(lambda x: torch.softmax(x, 0), backend="inductor")(torch.randn(4))  # precompiled headers
        torch._dynamo.reset()
        torch.manual_seed(0)
        net, x = RandWire(nodes=nodes, width=8).eval(), torch.randn(1, 3, 32, 32)
        for name in ("_first", "_second"):
            setattr(Dispatcher, name, timed(getattr(Dispatcher, name)))
        begin = processor_seconds()
        compiled = torch.compile(net, backend="peakmem")
        compiled(x)
        total = processor_seconds() - begin
        report = peakmem_inductor.report()[0]
        if report.state != "permuted" or not report.identical or len(inside) != 1:
            raise RuntimeError(f"what is timed is no permuted graph, checked in its first call: {report}")
        plain = torch.compile(twin(net), backend="inductor")
        plain(x)
        times: dict[str, list[float]] = {"plain": [], "permuted": [], "again": []}
        for _ in range(CALLS):
            for name, function in (("plain", plain), ("permuted", compiled), ("again", plain)):
                start = time.thread_time()
                function(x)
                times[name].append(time.thread_time() - start)
        run = {name: median(values) for name, values in times.items()}
        begin = processor_seconds()
        for _ in range(10):
            plain(x)
        once = (processor_seconds() - begin) / 10
        begin = processor_seconds()
        order_program(report.program, time_limit=LIMIT)
        return {
            "total": total, "added": sum(inside) - once, "ordering": processor_seconds() - begin, "run": run,
            "report": report.to_json(),
        }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--markdown", type=Path, help="write the result there too")
    parser.add_argument("--child", action="store_true")
    given = parser.parse_args()
    if given.child:
        print(json.dumps(child(given.nodes)))
        return 0
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        command = [sys.executable, __file__, "--child", "--nodes", str(given.nodes)]
        row = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=True).stdout.splitlines()[-1])
    report, run = row["report"], row["run"]
    alone = row["total"] - row["added"]
    most = 1 + (row["added"] - row["ordering"] + max(LIMIT, row["ordering"])) / alone
    text = f"""# Inductor: what peakmem costs

Made by `benchmarks/inductor_overhead.py`: a net of {given.nodes} nodes, {report['statements']} statements, inference,
one thread, kernels not cached. Recording, ordering and the check are all in the first call.

| | Inductor | peakmem | ratio |
|---|---|---|---|
| processor seconds up to the end of the first call | {alone:.1f} | {row['total']:.1f} | {row['total'] / alone:.3f} |
| milliseconds of a later call (processor time, median of {CALLS}, alternating) | {1e3 * run['plain']:.2f} | {1e3 * run['permuted']:.2f} | {run['permuted'] / run['plain']:.3f} |
| peak bytes | {report['before']:,} | {report['after']:,} | {report['after'] / report['before']:.3f} |

- Of the {row['added']:.1f} s that peakmem adds, ordering takes about {row['ordering']:.1f} s; its limit is {LIMIT:.0f} s of wall clock, with which the first ratio would be {most:.3f}.
- Bound {report['bound']:,} bytes: {'certified optimal' if report['certified'] else 'not certified within the limit'}.
- Inductor's program against itself in the same run: {run['again'] / run['plain']:.3f}.
- Where Inductor finds its kernels in its cache it is faster, and the same {row['added']:.1f} s weigh more.
"""
    print(text, end="")
    if given.markdown:
        given.markdown.parent.mkdir(parents=True, exist_ok=True)
        given.markdown.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
