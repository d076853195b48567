"""The study: Inductor's own orders, our certified order regenerated, and our permuted statements, all measured.

    python benchmarks/inductor_study.py run --out study.jsonl          # resumable; one child process a configuration
    python benchmarks/inductor_study.py table --out study.jsonl --markdown docs/tables/inductor.md

Each row is one graph of one configuration (net, training or not, threads, static or dynamic shapes). Bytes are above
entry of the call. For each setting: what was predicted, what a run realized, whether the outputs have the bits of the
untouched wrapper.

untouched
    Inductor as configured by default.
lpmf, bfs, dfs
    Exactly one of its reorderings, whatever it estimates; predicted is Inductor's own estimate.
regenerated
    Our certified order of the untouched wrapper, handed back to the scheduler (``_post_fusion_custom_pass``), which
    generates code again; predicted is the certified peak.
permuted
    The statements of the untouched wrapper in that order, as text.
least
    The best of the wrappers above but ``regenerated``, each permuted.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from each_graph import buffers_in, compile_each

HERE = Path(__file__).resolve().parent
METHODS = ("lpmf", "bfs", "dfs")
RANDOM_ORDERS = 3


def configurations() -> list[dict[str, Any]]:
    """All configurations, the cheapest to compile first; training gives two rows each, forward and backward."""
    sys.path.insert(0, str(HERE))
    from inductor_nets import NETS

    deep = [n for n in NETS if n.startswith("deeplab")]
    small = [n for n in NETS if n not in deep]
    linear = ["mlp_branches", "hf_mixtral", "dropper", "tree_mlp", "dense_mlp", "two_towers"]
    cheap = ["aspp_like", "expand_reduce", *linear]
    rows: list[dict[str, Any]] = []

    def add(nets: list[str], training: bool, threads: int = 1, **more: bool) -> None:
        for net in nets:
            row = {"net": net, "training": training, "threads": threads, "dynamic": False, "batch": 2 if training else 1, **more}
            if row not in rows:
                rows.append(row)

    add(cheap, True)
    add(cheap, False)
    add(["deeplabv3_resnet50_64"], False)
    add(linear, False, dynamic=True)
    add(linear, False, freezing=True)
    add(linear, False, threads=2)
    add(linear, True, dynamic=True)
    add(linear, True, threads=2)
    add(["aspp_like", "expand_reduce", "squeezenet", "shufflenet"], False, threads=2)
    add(["recurrent", "bifpn", "hf_vit", "convnext", "hf_albert", "aspp_like", "expand_reduce"], False)
    add(["aspp_like", "expand_reduce", "squeezenet"], False, freezing=True)
    add(["aspp_like"], True, threads=2)
    add(["deeplabv3_mobilenetv3_64"], False)
    add(small, False)
    add(["hf_gpt2"], False, threads=2)
    add(["expand_reduce", "hf_gpt2"], False, dynamic=True)
    add(["squeezenet", "randwire24", "hf_gpt2", "hf_bert", "densenet", "unet", "hf_vit", "hrnet"], True)
    add(["deeplabv3_mobilenetv3_128", "deeplabv3_resnet50_128", "deeplabv3_resnet101_64"], False)
    add(small, True)
    add(["deeplabv3_resnet50_256", "deeplabv3_resnet101_128"], False)
    add(["deeplabv3_mobilenetv3_64"], True)
    add(["hf_bert", "hf_albert"], False, dynamic=True)
    return rows


def key_of(row: dict[str, Any]) -> str:
    return json.dumps(row, sort_keys=True)


# -- one configuration, in a child process -------------------------------------------------------------------


class Study:
    """A backend that measures every setting at the first call of each graph."""

    def __init__(self, time_limit: float) -> None:
        self.rows: list[dict[str, Any]] = []
        self.time_limit = time_limit

    def backend(self, gm: Any, example_inputs: Any) -> Any:
        return compile_each(self.first, gm, example_inputs, len(METHODS) + 1)

    def first(self, module: Any, path: Path, original: Any, args: list[Any], generate: Any) -> Any:
        import torch
        from generators import random_order
        from peakmem.model import PeakmemError
        from peakmem_inductor.arguments import Again, difference
        from peakmem_inductor.dispatch import Candidate, Options, graph_name, order_candidate
        from peakmem_inductor.emitting import emit
        from peakmem_inductor.passes import GivenOrder, MethodPass
        from peakmem_inductor.record import measure, record_profile
        from peakmem_inductor.simulation import simulate
        from peakmem_inductor.wrapper import parse_wrapper

        row: dict[str, Any] = {"graph": graph_name(path).split("_")[-1]}
        self.rows.append(row)
        candidate = Candidate("default", module, path, original)
        try:
            wrapper = candidate.read()
        except PeakmemError as error:
            row["fallback"] = str(error)
            return original(args)
        again = Again(wrapper.inputs, args)
        again.set_aside(args, wrapper.inputs, wrapper.inputs)
        state = torch.get_rng_state()
        result, profile = record_profile(wrapper, candidate.namespace, again.take())
        reference = again.seen(result)
        after_state = torch.get_rng_state()

        def run(other: Any, namespace: Any, act: Any, poison: bool) -> tuple[Any, str, Any]:
            torch.set_rng_state(state)
            made, measured = act(other, namespace, again.take(), **({"poison": True} if poison else {}))
            return made, difference(reference, again.seen(made)), measured

        try:
            _, differs, _ = run(wrapper, candidate.namespace, measure, False)
            row["reproducible"] = not differs
            found = order_candidate(candidate, wrapper, profile, Options(time_limit=self.time_limit))
            graph, program = found.graph, found.graph.program
            row["statements"] = len(program)
            row["certified"] = found.certified
            row["bound"] = found.bound
            row["untouched"] = {
                "predicted": simulate(wrapper, profile), "realized": profile.measured_peak, "identical": True,
            }  # fmt: skip
            orders = {"permuted": found.order}
            for i in range(RANDOM_ORDERS):
                orders[f"random{i}"] = random_order(i, program)
            for name, order in orders.items():
                text = parse_wrapper(emit(graph, order).source, where=name)
                _, differs, peak = run(text, candidate.namespace, measure, True)
                row[name] = {"predicted": graph.predicted(order), "realized": peak, "identical": not differs}
            best = found
            for name in METHODS:
                chosen = MethodPass(name)
                row[name], other = self.generated(name, chosen, generate, run, order_candidate, Candidate)
                if other is not None and row[name].get("identical") and other.after < best.after:
                    best = other
            text = parse_wrapper(emit(best.graph, best.order).source, where="least")
            _, differs, peak = run(text, best.candidate.namespace, measure, True)
            row["least"] = {
                "predicted": best.after, "realized": peak, "identical": not differs, "from": best.candidate.name,
                "certified": best.certified, "bound": best.bound,
            }  # fmt: skip
            if (row["untouched"]["realized"] or 0) < best.after:
                row["least"] = {**row["untouched"], "from": "untouched", "certified": False, "bound": best.bound}
            handed = GivenOrder(buffers_in(graph, found.order))
            row["regenerated"], _ = self.generated("given", handed, generate, run, None, Candidate)
            row["regenerated"]["estimate"] = row["regenerated"].pop("predicted", None)
            row["regenerated"]["predicted"] = found.after
        except PeakmemError as error:
            row["fallback"] = str(error)
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"
            logging.exception("study")
        finally:
            torch.set_rng_state(after_state)
        return result

    def generated(self, name: str, chosen: Any, generate: Any, run: Any, order: Any, candidate_type: Any) -> tuple[dict[str, Any], Any]:
        from peakmem_inductor.dispatch import Options
        from peakmem_inductor.record import measure, record_profile

        try:
            module, path = generate(chosen)
            candidate = candidate_type(name, module, path, module.call)
            wrapper = candidate.read()
            _, differs, realized = run(wrapper, candidate.namespace, measure, False)
            found = None
            if order is not None:
                _, _, profile = run(wrapper, candidate.namespace, record_profile, False)
                found = order(candidate, wrapper, profile, Options(time_limit=self.time_limit))
            estimate = chosen.estimates[0] if chosen.estimates else None
            return {"predicted": estimate, "realized": realized, "identical": not differs}, found
        except Exception as error:
            logging.exception(name)
            return {"error": f"{type(error).__name__}: {error}"}, None


def child(config: dict[str, Any], target: Path, time_limit: float) -> None:
    sys.path[:0] = [str(HERE), str(HERE.parent / "packages" / "check" / "tests")]
    import torch
    from inductor_nets import build
    from torch._functorch import config as functorch_config
    from torch._inductor import config as inductor_config

    functorch_config.enable_autograd_cache = False  # a hit would skip the generation that is studied
    inductor_config.freezing = bool(config.get("freezing"))
    torch.set_num_threads(config["threads"])
    study = Study(time_limit)
    net, args = build(config["net"], training=config["training"], batch=config["batch"])
    compiled = torch.compile(net, backend=study.backend, dynamic=bool(config["dynamic"]))
    if config["training"]:
        out = compiled(*args)
        parts = out if isinstance(out, tuple) else (out,)
        sum(o.sum() for o in parts).backward()
    else:
        with torch.no_grad():
            compiled(*args)
    target.write_text(json.dumps({"torch": torch.__version__, "rows": study.rows}))


# -- the parent ----------------------------------------------------------------------------------------------


def run_all(out: Path, timeout: float, time_limit: float, only: str, budget: float) -> None:
    done = set()
    if out.exists():
        entries = [json.loads(line) for line in out.read_text().splitlines()]
        done = {key_of(e["config"]) for e in entries if e.get("rows") or "failed" in e}
    wanted = [c for c in configurations() if key_of(c) not in done and only in c["net"]]
    start = time.monotonic()
    for number, config in enumerate(wanted):
        if time.monotonic() - start > budget:
            print(f"stopped by --budget with {len(wanted) - number} configurations to go", file=sys.stderr)
            break
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "rows.json"
            command = [sys.executable, __file__, "child", json.dumps(config), str(target), "--time-limit", str(time_limit)]
            entry: dict[str, Any] = {"config": config}
            environment = {
                "TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir()) / "peakmem-inductor-study"),
                **os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1",
            }  # fmt: skip
            try:
                ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
                if target.exists():
                    entry.update(json.loads(target.read_text()))
                else:
                    entry["failed"] = ran.stderr[-2000:]
                if os.environ.get("STUDY_LOG"):
                    print(ran.stderr[-4000:], file=sys.stderr)
            except subprocess.TimeoutExpired:
                entry["failed"] = f"no answer within {timeout:.0f} s"
        entry["seconds"] = round(time.monotonic() - begin, 1)
        with out.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        print(f"{number + 1}/{len(wanted)} {config['net']} {entry['seconds']} s {'FAILED' if 'failed' in entry else ''}", flush=True)


def exact(cell: dict[str, Any] | None) -> bool:
    return bool(cell) and cell.get("predicted") == cell.get("realized") and cell.get("identical") is True


def table(out: Path) -> str:
    """The study as markdown; every figure is from the rows of ``out``."""
    entries = [json.loads(line) for line in out.read_text().splitlines()]
    columns = ("untouched", *METHODS, "regenerated", "permuted", "least")
    lines, rows, failed, fallbacks = [], [], [], []
    versions = sorted({e["torch"] for e in entries if "torch" in e})
    for entry in entries:
        config = entry["config"]
        if "failed" in entry:
            failed.append((config, entry["failed"].strip().splitlines()[-1][:160]))
        for row in entry.get("rows", ()):
            row["config"] = config
            if "fallback" in row or "error" in row:
                fallbacks.append(row)
            else:
                rows.append(row)
    rows.sort(key=lambda r: (r["config"]["net"], r["graph"], r["config"]["threads"], r["config"]["dynamic"]))
    total = len(rows) + len(fallbacks)
    say = lines.append
    say("# Inductor: predicted and realized peaks\n")
    say(f"Made by `benchmarks/inductor_study.py` with torch {', '.join(versions)} on CPU; bytes above entry of the call.\n")
    say("Small networks: what is compared here are ways to order. What order gives at the widths that people use, where peaks often lie")
    say("elsewhere, is [another table](inductor-wide.md); what it gives to a whole step of training [a third](training-steps.md).\n")
    known = {key_of(c): c for c in configurations()}
    there = {key_of(e["config"]) for e in entries if e.get("rows")}
    missing = [c for key, c in known.items() if key not in there]
    ran = len(known) - len(missing)
    say(f"- {ran} of the {len(known)} configurations of the study have run so far" + (" (`run` goes on where it stopped)." if ran < len(known) else "."))
    say(f"- {total} graphs; {len(fallbacks)} left alone ({_percent(len(fallbacks), total)}); {len(failed)} configurations failed to run.")
    good = [r for r in rows if exact(r.get("permuted")) and exact(r.get("untouched"))]
    say(f"- permuted statements: modelled == measured and bits equal in {len(good)} of {len(rows)} graphs.")
    tries = [r[f"random{i}"] for r in rows for i in range(RANDOM_ORDERS) if f"random{i}" in r]
    say(f"- random topological orders: exact in {sum(map(exact, tries))} of {len(tries)}.")
    certified = [r for r in rows if r["certified"]]
    say(f"- order certified optimal in {len(certified)} of {len(rows)} graphs ({_percent(len(certified), len(rows))}).")
    better = [r for r in rows if r["permuted"]["realized"] < r["untouched"]["realized"]]
    say(f"- permuting lowers the peak of the untouched wrapper in {len(better)} graphs; the best of the wrappers, permuted, in "
        f"{len([r for r in rows if r['least']['realized'] < r['untouched']['realized']])}.\n")  # fmt: skip
    say("| setting | graphs | prediction missed | worse than untouched | better than untouched | other bits |")
    say("|---|---|---|---|---|---|")
    for name in columns:
        cells = [(r, r[name]) for r in rows if "realized" in r.get(name, {})]
        missed = sum(c["predicted"] != c["realized"] for _, c in cells)
        worse = sum(c["realized"] > r["untouched"]["realized"] for r, c in cells)
        lower = sum(c["realized"] < r["untouched"]["realized"] for r, c in cells)
        other = sum(not c["identical"] for _, c in cells)
        say(f"| {name} | {len(cells)} | {missed} | {worse} | {lower} | {other} |")
    say("\nEach cell: realized bytes; in brackets the prediction where it missed; `*` where bits differ from the untouched wrapper.\n")
    say("| net | graph | threads | shapes | statements | " + " | ".join(columns) + " | change | order |")
    say("|" + "---|" * (len(columns) + 7))
    for r in rows:
        config = r["config"]
        cells = []
        for name in columns:
            c = r.get(name, {})
            if "realized" not in c:
                cells.append("failed")
                continue
            text = f"{c['realized']:,}"
            if c["predicted"] != c["realized"]:
                text += f" ({c['predicted']:,})" if c["predicted"] is not None else " (-)"
            cells.append(text + ("" if c["identical"] else " *"))
        before, after = r["untouched"]["realized"], r["least"]["realized"]
        change = f"{100 * (after - before) / before:+.1f} %" if before else "-"
        proof = "optimal" if r["certified"] else f"bound {r['bound']:,}"
        say(f"| {config['net']} | {r['graph']} | {config['threads']} | {'dynamic' if config['dynamic'] else 'static'}{', frozen' if config.get('freezing') else ''} | {r['statements']} | "
            + " | ".join(cells) + f" | {change} | {proof} |")  # fmt: skip
    if fallbacks or failed:
        say("\n## Left alone or failed\n")
        for r in fallbacks:
            say(f"- {r['config']['net']} {r['graph']}: {r.get('fallback') or r.get('error')}")
        for config, reason in failed:
            say(f"- {config['net']} (training {config['training']}, threads {config['threads']}): {reason}")
    if missing:
        say("\n## Not run yet\n")
        say("These compile longest and stand last in the list: " + ", ".join(map(_describe, missing)) + ".")
    return "\n".join(lines) + "\n"


def _describe(config: dict[str, Any]) -> str:
    words = ["training" if config["training"] else "inference"]
    words += [f"{config['threads']} threads"] if config["threads"] > 1 else []
    words += [w for w, key in (("dynamic", "dynamic"), ("frozen", "freezing")) if config.get(key)]
    return f"{config['net']} ({', '.join(words)})"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="run what is not in --out yet")
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--timeout", type=float, default=900.0, help="seconds for one configuration")
    run.add_argument("--time-limit", type=float, default=20.0, help="seconds for ordering one graph")
    run.add_argument("--only", default="", help="only nets whose name contains this")
    run.add_argument("--budget", type=float, default=float("inf"), help="stop starting configurations after so many seconds")
    shown = verbs.add_parser("table", help="print or write the table")
    shown.add_argument("--out", type=Path, required=True)
    shown.add_argument("--markdown", type=Path)
    one = verbs.add_parser("child")
    one.add_argument("config")
    one.add_argument("target", type=Path)
    one.add_argument("--time-limit", type=float, default=20.0)
    given = parser.parse_args()
    if given.verb == "run":
        run_all(given.out, given.timeout, given.time_limit, given.only, given.budget)
    elif given.verb == "child":
        child(json.loads(given.config), given.target, given.time_limit)
    else:
        text = table(given.out)
        if given.markdown:
            given.markdown.parent.mkdir(parents=True, exist_ok=True)
            given.markdown.write_text(text)
        else:
            print(text, end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
