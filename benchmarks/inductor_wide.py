"""Inductor's programs of networks at the widths that people use: as written against permuted.

    python benchmarks/inductor_wide.py --rows wide.jsonl --markdown docs/tables/inductor-wide.md

One child process a configuration, one thread; resumable with ``--rows``. Every program is modelled from its text, no kernel
compiled: sizes as written, workspaces of operators measured by running each alone on zeros. Where a configuration says
``run``, it also runs as users run it (``backend="peakmem"``): both programs measured on the same arguments, bits compared.
Training has a cross-entropy loss in the graph.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

from resumable import collect, last_line

HERE = Path(__file__).resolve().parent
CALLS = 3
CONFIGURATIONS = (  # net, batch, training, runs
    ("DeepLabV3, ResNet trunk (1,1,1,2), 321", 8, False, True), ("DeepLabV3, ResNet-50, 321", 8, False, False),
    ("DeepLabV3, ResNet-50, 513", 2, False, False), ("ResNet-50, 224", 8, False, False), ("ResNet-18, 224", 8, False, True),
    ("U-Net, 64 to 1024, 256", 1, False, False), ("MobileNetV2, 224", 8, False, False), ("SqueezeNet 1.1, 224", 8, False, True),
    ("GoogLeNet, 224", 8, False, False), ("DenseNet-121, 224", 8, False, False), ("ConvNeXt-T, 224", 8, False, False),
    ("ViT-B/16, 224", 8, False, False), ("BERT base, 128 tokens", 8, False, False), ("GPT-2, 512 tokens", 1, False, False),
    ("DARTS, 14 cells of 48, 224", 8, False, False), ("SqueezeNet 1.1, 224", 8, True, True), ("ResNet-18, 224", 8, True, False),
    ("DeepLabV3, ResNet trunk (1,1,1,2), 321", 2, True, False), ("ResNet-50, 224", 32, True, False),
    ("U-Net, 64 to 1024, 256", 2, True, False), ("GPT-2, 512 tokens", 4, True, False), ("BERT base, 128 tokens", 16, True, False),
    ("ViT-B/16, 224", 16, True, False), ("GoogLeNet, 224", 32, True, False), ("DARTS, 20 cells of 36, 32", 96, True, False),
    ("GPT-2 as in transformers, 512 tokens", 4, True, False),
)  # fmt: skip


def function_of(name: str, training: bool, batch: int) -> tuple[Any, Any, tuple[Any, ...]]:
    """The net, what is compiled, and its arguments."""
    import torch
    from inductor_nets import build

    net, args = build(name, training=training, batch=batch)
    if not training:
        return net, net, args
    with torch.no_grad():
        shape = torch.Size(net(*(a[:2] for a in args)).shape)
    if not shape:
        return net, net, args
    sizes = (batch, *shape[2:]) if len(shape) == 4 else (batch * shape[1],) if len(shape) == 3 else (batch,)
    classes = shape[1] if len(shape) == 4 else shape[-1]
    target = torch.randint(0, classes, sizes)

    def loss(*inputs: Any) -> Any:
        out = net(*inputs[:-1])
        return torch.nn.functional.cross_entropy(out.flatten(0, 1) if out.dim() == 3 else out, inputs[-1])

    return net, loss, (*args, target)


class _Generated(Exception):
    """All texts are there; nothing is to run."""


def texts(function: Any, args: tuple[Any, ...]) -> dict[str, tuple[Any, Any]]:
    """Module and parsed text of each graph, generated without compiling a kernel."""
    import torch
    from peakmem_inductor import backend, budgets
    from peakmem_inductor.wrapper import parse_wrapper
    from torch._functorch import config as functorch
    from torch._inductor import compile_fx as module
    from torch._inductor import config

    found: dict[str, tuple[Any, Any]] = {}

    def inner(gm: Any, example_inputs: Any, **kwargs: Any) -> Any:
        kind = backend._name(kwargs).partition("_")[2]

        def receive(loaded: Any, path: Path) -> None:
            found[kind] = (loaded, parse_wrapper(path.read_text(), where=path.name))

        with backend._active(receive):
            return module.compile_fx_inner(gm, example_inputs, **kwargs)

    def generate(gm: Any, example_inputs: Any) -> Any:
        patches = {"force_non_lazy_backward_lowering": True, "enable_autograd_cache": False}
        with functorch.patch(patches), config.patch(fx_graph_cache=False), budgets.no_kernels():
            module.compile_fx(gm, example_inputs, inner_compile=inner)
        raise _Generated

    backend._install()
    try:
        torch.compile(function, backend=generate, fullgraph=True)(*args)
    except Exception as error:
        if not found or not any(isinstance(e, _Generated) for e in budgets._chain(error)):
            raise
    torch._dynamo.reset()
    return found


def modelled(found: dict[str, tuple[Any, Any]], time_limit: float) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Rows of the graphs, and of the step where there is one."""
    from peakmem.ordering import order_program
    from peakmem_inductor.budgets import carried, joint_graphs, text_graph
    from peakmem_inductor.effects import operator_effects
    from peakmem_inductor.simulation import simulate
    from peakmem_inductor.steps import Phase, model_step

    if "inference" in found:
        module, wrapper = found["inference"]
        graphs = {"inference": text_graph(wrapper, vars(module), operator_effects)}
    else:
        (first, forward), (second, backward) = found["forward"], found["backward"]
        graphs = dict(zip(("forward", "backward"), joint_graphs(forward, backward, (vars(first), vars(second)), operator_effects)))
    rows, before, after = [], [], []
    for name, graph in graphs.items():
        program = graph.program
        start = time.monotonic()
        ordering = order_program(program, time_limit=time_limit)
        entry = program.entry_bytes
        was, least = simulate(graph.wrapper, graph.profile), ordering.peak - entry
        bound = ordering.lower_bound - entry
        base = carried(*graphs.values()) if name == "backward" else 0
        natural, order = tuple(range(len(program))), ordering.orders[""]
        before.append(Phase(name, program, natural, base, was, was, None))
        after.append(Phase(name, program, order if least < was else natural, base, was, min(was, least), min(was, bound)))
        rows.append({
            "graph": name, "statements": len(program), "before": was, "after": min(was, least), "bound": min(was, bound),
            "certified": ordering.certificate is not None and ordering.certificate.lower_bound == ordering.peak and least <= was,
            "seconds": round(time.monotonic() - start, 1),
        })  # fmt: skip
    if len(graphs) == 1:
        rows[0]["where"] = _where(model_step("", before, {}))
        return rows, None
    was, now = model_step("", before, {}), model_step("", after, {})
    return rows, {"before": was.peak, "after": now.peak, "bound": now.bound, "where": f"{was.phase}, {_where(was)}", "live": now.live}


def _where(step: Any) -> str:
    return f"{step.statement.removeprefix('extern_kernels.').split('.default')[0].split('.')[-1]}, {step.position} of {step.statements}"


def measured(name: str, training: bool, batch: int) -> dict[str, Any]:
    """What runs gave: rows of the graphs; of training the steps, else processor seconds of alternating calls."""
    import peakmem_inductor
    import torch
    from inductor_overhead import twin

    net, function, args = function_of(name, training, batch)
    peakmem_inductor.reset()
    compiled = torch.compile(function, backend="peakmem", options={"time_limit": 60})
    found: dict[str, Any] = {}
    if training:
        peaks = []
        for _ in range(3):
            net.zero_grad()
            with peakmem_inductor.step() as step:
                compiled(*args).backward()
            peaks.append(step.peak)
        found["steps"] = peaks
    else:
        with torch.no_grad():
            plain = torch.compile(twin(net), backend="inductor")
            times: list[list[float]] = [[], []]
            for i in range(CALLS + 1):
                for act, seen in zip((plain, compiled), times):
                    begin = time.thread_time()
                    act(*args)
                    if i:
                        seen.append(time.thread_time() - begin)
        found["times"] = [median(t) for t in times]
    found["rows"] = [r.to_json() for r in peakmem_inductor.report()]
    for row in found["rows"]:
        row.pop("certificate")
    return found


def child(number: int, time_limit: float) -> dict[str, Any]:
    sys.path.insert(0, str(HERE))
    import torch

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    name, batch, training, runs = CONFIGURATIONS[number]
    with torch.no_grad() if not training else torch.enable_grad():
        _, function, args = function_of(name, training, batch)
        rows, step = modelled(texts(function, args), time_limit)
    return {"torch": torch.__version__, "rows": rows, "step": step, "run": measured(name, training, batch) if runs else None}


# -- the page ------------------------------------------------------------------------------------------------


def change(before: int, after: int) -> str:
    return f"{100 * (after / before - 1):+.1f} %"


def table(found: dict[int, dict[str, Any]], failed: list[str]) -> str:
    versions = sorted({row["torch"] for row in found.values()})
    lines = [
        "# Inductor: networks at the widths that people use",
        "",
        f"Made by `python benchmarks/inductor_wide.py --rows wide.jsonl --markdown docs/tables/inductor-wide.md` with torch {', '.join(versions)}",
        "on the CPU, one thread. Bytes above entry of the call, as Inductor wrote the program and with its statements permuted.",
        "*modelled*: from the text of the program, no kernel compiled, with workspaces of operators measured one by one. *measured*: both",
        "programs also ran on the same arguments, with these bytes and equal bits. *optimal*: certified, no order of these statements needs",
        "less; else the certified bound. *peak at*: the statement at which the program as written has its peak. Networks and input size;",
        "`benchmarks/inductor_nets.py` builds them without downloads.",
        "",
        "## Graphs",
        "",
        "| network | batch | graph | statements | Inductor | permuted | change | order | how known | peak at |",
        "|---|---:|---|---:|---:|---:|---:|---|---|---|",
    ]
    steps, notes = [], []
    for number, row in sorted(found.items()):
        name, batch, _, _ = CONFIGURATIONS[number]
        ran = row["run"]
        for at, r in enumerate(row["rows"]):
            how = "modelled"
            if ran:
                other = ran["rows"][at]
                kept = other["state"] == "kept"
                if (other["before"], other["measured"]) == (r["before"], r["after"]) and (kept or other["identical"]):
                    how = "measured" + ("" if not kept else " (kept)")
                else:
                    raise RuntimeError(f"{name} {r['graph']}: modelled {r}, ran {other}")
            proof = "optimal" if r["certified"] else f"bound {r['bound']:,}"
            lines.append(
                f"| {name} | {batch} | {r['graph']} | {r['statements']} | {r['before']:,} | {r['after']:,} | {change(r['before'], r['after'])} | "
                f"{proof} | {how} | {r.get('where', '')} |"
            )
        if row["step"]:
            s = row["step"]
            most = ", ".join(f"{what} {n:,}" for what, n in sorted(s["live"].items(), key=lambda x: -x[1])[:3])
            how = "modelled"
            if ran:
                if (ran["steps"][0], ran["steps"][2]) != (s["before"], s["after"]):
                    raise RuntimeError(f"{name}: step modelled {s}, ran {ran['steps']}")
                how = "measured"
            steps.append(
                f"| {name} | {batch} | {s['before']:,} | {s['after']:,} | {change(s['before'], s['after'])} | {s['bound']:,} | {how} | "
                f"{s['where']} | {most} |"
            )
        if ran and "times" in ran:
            a, b = ran["times"]
            notes.append(f"- {name}, batch {batch}: processor time of a call {b / a:.3f} times Inductor's ({a:.2f} s, median of {CALLS}, alternating).")
    lines += [
        "", "## Steps of training", "",
        "Forward and backward with a cross-entropy loss, above the start of the step (parameters and inputs are there already). *bound*: no",
        "orders of the two graphs need less; where it equals what Inductor needs, only saving less for the backward helps",
        "([training steps](training-steps.md)).", "",
        "| network | batch | Inductor | permuted | change | bound | how known | peak at | most of it |",
        "|---|---:|---:|---:|---:|---:|---|---|---|", *steps,
    ]  # fmt: skip
    if notes:
        lines += ["", "## Time", "", *notes]
    if failed:
        lines += ["", f"Not found: {', '.join(failed)}."]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", default="", help="only configurations whose network contains this")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for one configuration")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for ordering one graph")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="append each row there, and go on from those that stand there")
    parser.add_argument("--markdown", type=Path, help="write the table there too")
    parser.add_argument("--child", type=int)
    given = parser.parse_args()
    if given.child is not None:
        print(json.dumps(child(given.child, given.time_limit)))
        return 0
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.mkdtemp(prefix="peakmem-")
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    numbers = {json.dumps(c): i for i, c in enumerate(CONFIGURATIONS) if given.only in c[0]}

    def find(key: str) -> Any:
        command = [sys.executable, __file__, "--child", str(numbers[key]), "--time-limit", str(given.time_limit)]
        return last_line(command, environment, given.timeout)

    rows, failed = collect(numbers, find, given.rows)
    text = table({numbers[key]: row for key, row in rows}, failed)
    print(text)
    if given.markdown:
        given.markdown.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
