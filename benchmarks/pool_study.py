"""The static pool on the CPU, over the nets of the study: one request, the planned bytes, the same bits.

    python benchmarks/pool_study.py run --out pools.jsonl [--budget SECONDS]
    python benchmarks/pool_study.py table --out pools.jsonl --markdown docs/tables/inductor-pool.md

Of each graph the program as Inductor wrote it and its best order run without and with a pool, on the same arguments, random state
and thread count, with fresh memory filled with a pattern; results and mutated arguments are compared by digests of every bit.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from each_graph import compile_each  # noqa: E402
from inductor_study import configurations, key_of  # noqa: E402


class Study:
    """A backend for `torch.compile`: at the first call of each graph everything is run, and noted in ``rows``."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def backend(self, gm: Any, example_inputs: Any) -> Any:
        return compile_each(self.graph, gm, example_inputs)

    def graph(self, loaded: Any, path: Path, original: Any, args: list[Any], generate: Any) -> Any:
        from peakmem.model import PeakmemError
        from peakmem_inductor.arguments import Again, difference
        from peakmem_inductor.devices import random_state, set_random_state
        from peakmem_inductor.dispatch import Candidate, Options, graph_name, order_candidate
        from peakmem_inductor.emitting import realize
        from peakmem_inductor.pooling import add_pool
        from peakmem_inductor.record import measure, record_profile

        candidate = Candidate("default", loaded, path, original)
        wrapper = candidate.read()
        row: dict[str, Any] = {"graph": graph_name(path).partition("_")[2]}
        self.rows.append(row)
        again = Again(wrapper.inputs, args)
        again.set_aside(args, wrapper.inputs, wrapper.inputs)
        state = random_state()
        result, profile = record_profile(wrapper, candidate.namespace, again.take())
        reference, after = again.seen(result), random_state()

        def run(text: Any) -> tuple[int, str]:
            set_random_state(state)
            made, peak = measure(text, candidate.namespace, again.take(), poison=True)
            return peak, difference(reference, again.seen(made))

        try:
            found = order_candidate(candidate, wrapper, profile, Options(time_limit=3.0))
            row.update(statements=len(found.graph.program), untouched=profile.measured_peak)
            for name, order in (("given", tuple(range(len(found.graph.program)))), ("best", found.order)):
                text, its = realize(found.graph, order)
                peak, differs = run(text)
                row[name] = {"peak": peak, "different": differs}
                try:
                    pooled = add_pool(text, its, fixed_sizes=True)
                except PeakmemError as error:
                    row[name]["no_pool"] = str(error)
                    continue
                peak, differs = run(pooled.wrapper)
                row[name]["pool"] = {
                    "bytes": pooled.size, "least": pooled.least, "inside": pooled.inside, "outside": len(pooled.outside),
                    "predicted": pooled.predicted, "peak": peak, "different": differs,
                }  # fmt: skip
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"
        finally:
            set_random_state(after)
        return result


def one(config: dict[str, Any]) -> list[dict[str, Any]]:
    import torch
    from inductor_nets import build
    from torch._functorch import config as functorch_config
    from torch._inductor import config as inductor_config

    torch._dynamo.reset()
    torch.set_num_threads(config["threads"])
    study = Study()
    net, args = build(config["net"], training=config["training"], batch=config["batch"])
    with functorch_config.patch(enable_autograd_cache=False), inductor_config.patch(freezing=bool(config.get("freezing"))):
        compiled = torch.compile(net, backend=study.backend, dynamic=bool(config["dynamic"]))
        if config["training"]:
            out = compiled(*args)
            sum(o.sum() for o in (out if isinstance(out, tuple) else (out,))).backward()
        else:
            with torch.no_grad():
                compiled(*args)
    return study.rows


def read(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def run_all(out: Path, budget: float, only: str) -> None:
    begin = time.monotonic()
    done = {key_of(e["config"]) for e in read(out)}
    for config in configurations():
        if key_of(config) in done or only not in config["net"]:
            continue
        if time.monotonic() - begin > budget:
            break
        entry: dict[str, Any] = {"config": config}
        try:
            entry["rows"] = one(config)
        except Exception as error:
            entry["failed"] = f"{type(error).__name__}: {str(error)[:300]}"
        import torch

        entry["torch"] = torch.__version__
        with out.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        print(config["net"], len(entry.get("rows", ())), entry.get("failed", ""), f"{time.monotonic() - begin:.0f} s", flush=True)


def table(out: Path) -> str:
    """The study as markdown; every figure is from the rows."""
    entries = read(out)
    rows = [{**r, "config": e["config"]} for e in entries for r in e.get("rows", ())]
    pools = [(r, n, r[n]["pool"]) for r in rows for n in ("given", "best") if "pool" in r.get(n, {})]
    none = [r for r in rows if "no_pool" in r.get("given", {})]
    total = len(configurations())
    lines: list[str] = []
    say = lines.append
    say("# Static pools on the CPU\n")
    say(f"Made by `benchmarks/pool_study.py` with torch {', '.join(sorted({e['torch'] for e in entries}))}; bytes above entry of the call.\n")
    say(f"- {len({key_of(e['config']) for e in entries if 'rows' in e})} of the {total} configurations of the study; {len(rows)} graphs, {len(none)} of which have no buffer that can lie in a pool.")
    say(f"- {len(pools)} programs with a pool, in Inductor's order and in the best one: bits equal in {sum(not p['different'] for *_, p in pools)}, measured bytes as predicted in {sum(p['peak'] == p['predicted'] for *_, p in pools)}.")
    say(f"- The pool is as small as any can be in {sum(p['least'] for *_, p in pools)} of them; buffers in pools: {sum(p['inside'] for *_, p in pools)}, outside: {sum(p['outside'] for *_, p in pools)}.")
    best = [(r, p) for r, n, p in pools if n == "best"]
    say(f"- With a pool the best order needs no more than the untouched program in {sum(p['peak'] <= r['untouched'] for r, p in best)} of {len(best)} graphs: results and what operators return lie beside it.\n")
    say("| net | graph | threads | shapes | statements | untouched | best order | with a pool | pool | buffers in it | outside |")
    say("|" + "---|" * 11)
    for r in sorted(rows, key=lambda r: (r["config"]["net"], r["graph"], r["config"]["threads"], r["config"]["dynamic"], bool(r["config"].get("freezing")))):
        c = r["config"]
        shapes = ("dynamic" if c["dynamic"] else "static") + (", frozen" if c.get("freezing") else "")
        if "error" in r or "best" not in r:
            say(f"| {c['net']} | {r['graph']} | {c['threads']} | {shapes} | - | {r.get('error', '')} |" + " - |" * 5)
            continue
        p = r["best"].get("pool")
        cells = [f"{p['peak']:,}" + (" *" if p["different"] else ""), f"{p['bytes']:,}", str(p["inside"]), str(p["outside"])] if p else ["-"] * 4
        say(f"| {c['net']} | {r['graph']} | {c['threads']} | {shapes} | {r['statements']} | {r['untouched']:,} | {r['best']['peak']:,} | " + " | ".join(cells) + " |")
    failed = [e for e in entries if "failed" in e]
    if failed:
        say("\nFailed to run: " + "; ".join(f"{e['config']['net']}: {e['failed'].splitlines()[0][:120]}" for e in failed) + ".")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="run what is not in --out yet")
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--budget", type=float, default=float("inf"), help="stop starting configurations after so many seconds")
    run.add_argument("--only", default="", help="only nets whose name contains this")
    shown = verbs.add_parser("table", help="print or write the table")
    shown.add_argument("--out", type=Path, required=True)
    shown.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    if given.verb == "run":
        run_all(given.out, given.budget, given.only)
    elif given.markdown:
        given.markdown.write_text(table(given.out))
    else:
        print(table(given.out), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
