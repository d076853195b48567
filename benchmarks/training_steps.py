"""Whole training steps: what order gives, and what a search over what the forward saves gives on top.

    python benchmarks/training_steps.py [--nets mlp_branches,gpt2_loss:8@0.5] [--rows rows.jsonl] [--markdown docs/tables/training-steps.md]
    python benchmarks/training_steps.py --search [--nets mlp_branches,res_conv:8] [--rows search.jsonl]

One child process a row, one thread: ``name:batch`` is compiled with ``options={"memory": "least"}``, ``name:batch@budget`` with
torch's ``activation_memory_budget`` set. Each step is forward, backward and Adam, the loss in the graph. Modelled before
anything runs: the step at every budget, as Inductor wrote it and in the best orders. Measured by the counting allocator:
step 1, which runs what Inductor wrote, and step 3, which runs the orders that were checked in step 2. A second child is
given what the first one needed as ``target_peak`` and must find its way there by itself.

``--search`` looks for the least and runs nothing: for each net all sets of saved values that were generated, torch's by budget and
peakmem's own, with the modelled peak of the step and the MACs, and whether another one needs less of both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from resumable import add_rows, collect, last_line

HERE = Path(__file__).resolve().parent
NETS = ("mlp_branches", "gpt2_loss:8@0.5", "gpt2_loss:8", "hf_gpt2:8", "aspp_like", "hf_mixtral", "tree_mlp", "mixer", "unet", "hf_bert:8")
SEARCHED = ("mlp_branches", "gpt2_loss:8", "res_conv:8", "attention:4")
ROWS = ("saved activations", "held since the forward", "saved activations and results", "temporaries", "gradients", "workspaces")


def child(net_name: str, target: int, search: bool = False) -> dict[str, Any]:
    sys.path.insert(0, str(HERE))
    import peakmem_inductor
    import torch
    from inductor_nets import build
    from torch._functorch import config

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    spec, _, budget = net_name.partition("@")
    name, _, batch = spec.partition(":")
    net, args = build(name, training=True, batch=int(batch or 2))

    def loss(*inputs: Any) -> Any:
        out = net(*inputs)
        return out if out.dim() == 0 else out.square().mean()

    options: dict[str, Any] = {"target_peak": target} if target else {} if budget else {"memory": "least"}
    if search:
        return searched(loss, args)
    optimizer = torch.optim.Adam(net.parameters())
    phases = []
    with config.patch(activation_memory_budget=float(budget)) if budget and not target else warnings.catch_warnings():
        compiled = torch.compile(loss, backend="peakmem", options=options)
        for _ in range(3):
            with peakmem_inductor.step() as measured:
                compiled(*args).backward()
                optimizer.step()
                optimizer.zero_grad()
            phases.append(measured.phases)
    report = peakmem_inductor.report()
    (choice,) = report.choices or (None,)
    return {
        "phases": phases, "choice": choice.to_json() if choice else None, "states": [r.state for r in report],
        "identical": [r.identical for r in report], "step": report.steps[0].to_json(),
    }  # fmt: skip


def searched(loss: Any, args: Any) -> dict[str, Any]:
    """What a search for the least finds; what it takes is not compiled."""
    import torch
    from peakmem_inductor import backend

    class Found(BaseException):
        pass

    found = []

    def stop(choice: Any) -> None:
        found.append(choice)
        raise Found

    backend.add_choice = stop
    with contextlib.suppress(Found):
        torch.compile(loss, backend="peakmem", options={"memory": "least"})(*args)
    return {"choice": found[0].to_json()}


def label(b: dict[str, Any]) -> str:
    return "own" if b["budget"] is None else str(b["budget"])


def front(rows: list[tuple[str, dict[str, Any]]]) -> list[str]:
    """A table of all sets that were generated."""
    lines = [
        "| net | saved | values saved | Inductor | best orders | no order needs less than | more MACs | on the front |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for net, row in rows:
        for b in sorted((row["choice"] or row["target"]["choice"])["budgets"], key=lambda b: (-b["after"], b["macs"])):
            more = f"{100 * b['extra_macs'] / b['macs']:.1f} %" if b["macs"] else ""
            lines.append(
                f"| {net} | {'peakmem' if b['budget'] is None else 'torch at ' + label(b)}{', taken' if b['chosen'] else ''} | {len(b['saved'])} | "
                f"{b['before']:,} | {b['after']:,} | {b['bound']:,} | {more} | {'yes' if b['front'] else ''} |"
            )
    return lines


def search_table(rows: list[tuple[str, dict[str, Any]]], failed: list[str]) -> str:
    """Where sets of our own beat every budget, and where not."""
    lines = [
        "# Inductor: what to save", "",
        "Made by `python benchmarks/training_steps.py --search`, torch on the CPU, one thread; modelled from generated programs, which did",
        "not run. Bytes above the start of the step.", "",
        *front(rows), "",
    ]  # fmt: skip
    for net, row in rows:
        budgets = row["choice"]["budgets"]
        torchs = min((b for b in budgets if b["budget"] is not None), key=lambda b: (b["after"], b["macs"]))
        own = [b for b in budgets if b["budget"] is None]
        least = min(own, key=lambda b: (b["after"], b["macs"]), default=torchs)
        if least["after"] < torchs["after"]:
            told = f"{100 * (least['after'] / torchs['after'] - 1):.1f} % against the least of all budgets"
        elif any(b["after"] <= torchs["after"] and b["macs"] < torchs["macs"] for b in own):
            told = "the least of all budgets with fewer MACs"
        else:
            told = "no set of our own needs less than every budget"
        lines.append(f"- {net}: {told}; {row['choice']['generated']} pairs generated, {row['choice']['looked']} sets looked at.")
    if failed:
        lines += ["", f"Not searched: {', '.join(failed)}."]
    return "\n".join(lines) + "\n"


def peaks(row: dict[str, Any]) -> list[int]:
    """Of forward and backward, each step."""
    return [max(p["forward"], p["backward"]) for p in row["phases"]]


def arguments(row: dict[str, Any]) -> int:
    """Resident before the step, without what the optimizer keeps."""
    resident = row["step"]["resident"]
    return int(resident["parameters"] + resident["other arguments"])


def parts(row: dict[str, Any]) -> dict[str, int]:
    """What is live at the peak of the permuted step, by row of the table."""
    found: dict[str, int] = {}
    for what, size in row["step"]["live"].items():
        key = "workspaces" if "workspace" in what else what if what in ROWS else "temporaries"
        found[key] = found.get(key, 0) + size
    return found


def table(rows: list[tuple[str, dict[str, Any]]], failed: list[str]) -> str:
    lines = [
        "# Inductor: training steps",
        "",
        "Made by `python benchmarks/training_steps.py --rows steps.jsonl --markdown docs/tables/training-steps.md`, torch on the CPU, one thread.",
        "Peak of forward and backward with the loss in the graph, bytes above the start of the step. *Inductor* and *peakmem* were measured",
        "at the same budget (torch's `activation_memory_budget`), with equal bits: *order* is the change between them. *all* is the change",
        "against Inductor at budget 1, which is modelled. *own* is a set of saved values that peakmem chose. What was measured equals what was modelled before anything ran where no sign stands",
        "(`~`). `name:batch`; with `@` the budget was given, else `options={\"memory\": \"least\"}` took it. *target*: a call with nothing but",
        "`options={\"target_peak\": ...}`, the bytes that the row needs with all arguments: the budget that it found, and what it needed.",
        "",
        "| net | budget | Inductor | peakmem | order | Inductor at budget 1 | all | more MACs | target_peak | found |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    for net, row in rows:
        first, _, third = peaks(row)
        if False in row["identical"] or not {"kept", "permuted"}.issuperset(row["states"]):
            raise RuntimeError(f"{net}: {row['states']}, bits equal: {row['identical']}")
        choice = row["choice"] or row["target"]["choice"]
        taken = next((b for b in choice["budgets"] if b["chosen"] and net.partition("@")[2] in ("", label(b))), None)
        budget = label(taken) if taken else net.partition("@")[2]
        before, after = (taken["before"], taken["after"]) if taken else (row["step"]["before"], row["step"]["peak"])
        at_one = next((b for b in choice["budgets"] if b["budget"] == 1.0), None)
        whole = f"{at_one['before']:,} | {100 * (third / at_one['before'] - 1):+.1f} %" if at_one else " | "
        more = f"{100 * taken['extra_macs'] / taken['macs'] if taken['macs'] else 0.0:.1f} %" if taken else ""
        other = row["target"]
        found = next((b for b in other["choice"]["budgets"] if b["chosen"]), None)
        limit = other["choice"]["target"]
        needed = arguments(other) + peaks(other)[2]
        told = f"{'own set' if found['budget'] is None else 'budget ' + label(found)}: {needed:,}" if found and needed <= limit else f"missed: {needed:,}"
        lines.append(
            f"| {net} | {budget} | {'' if first == before else '~'}{first:,} | {'' if third == after else '~'}{third:,} | "
            f"{100 * (third / first - 1):+.1f} % | {whole} | {more} | {limit:,} | {told} |"
        )
    lines += [
        "", "What is there at the peak of the permuted step, modelled; the last columns are resident during it. *optimizer's step* is the",
        "highest the counting allocator saw while Adam stepped, above the start of the step: gradients are there then.", "",
        "| net | peak in | " + " | ".join(ROWS) + " | parameters | other arguments | optimizer state | optimizer's step |",
        "|---|---|" + "---:|" * (len(ROWS) + 4),
    ]  # fmt: skip
    for net, row in rows:
        live, step = parts(row), row["step"]
        cells = [f"{live.get(what, 0):,}" for what in ROWS]
        cells += [f"{step['resident'].get(what, 0):,}" for what in ("parameters", "other arguments", "optimizer state")]
        lines.append(f"| {net} | {step['phase']} | " + " | ".join(cells) + f" | {row['phases'][2]['optimizer']:,} |")
    lines += ["", "All sets of saved values that were generated, modelled; a row is on the front if no other one needs less and no more MACs.", ""]
    lines += front(rows)
    missing = [n for n in NETS if n not in {net for net, _ in rows} and n not in failed]
    if missing:
        lines += ["", f"Not run yet: {', '.join(missing)}."]
    if failed:
        lines += ["", f"Not measured: {', '.join(failed)}."]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nets")
    parser.add_argument("--search", action="store_true", help="search alone, without running what was found")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds for one child")
    add_rows(parser)
    parser.add_argument("--markdown", type=Path, help="write the table there too")
    parser.add_argument("--child", action="store_true")
    parser.add_argument("--target", type=int, default=0)
    given = parser.parse_args()
    nets = given.nets or ",".join(SEARCHED if given.search else NETS)
    if given.child:
        print(json.dumps(child(nets, given.target, given.search)))
        return 0
    cache = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or tempfile.mkdtemp(prefix="peakmem-")
    environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}

    def both(net: str) -> Any:
        command = [sys.executable, __file__, "--child", "--nets", net]
        row = last_line(command, environment, given.timeout)
        if row["choice"] and not any(b["chosen"] for b in row["choice"]["budgets"]):
            raise ValueError(row["choice"]["reason"])
        target = arguments(row) + peaks(row)[2]
        return {**row, "target": last_line([*command, "--target", str(target)], environment, given.timeout)}

    def one(net: str) -> Any:
        return last_line([sys.executable, __file__, "--child", "--search", "--nets", net], environment, given.timeout)

    rows, failed = collect(nets.split(","), None if given.no_run else one if given.search else both, given.rows)
    text = search_table(rows, failed) if given.search else table(rows, failed)
    print(text)
    if given.markdown:
        given.markdown.write_text(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
