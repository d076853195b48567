"""What GPU programs need: predicted and reached, order and static pool, from an empty cache and from polluted ones.

    PYTHONPATH=... LD_LIBRARY_PATH=STUB LD_PRELOAD=STUB/stub.so python benchmarks/gpu_study.py run --out rows.jsonl
    python benchmarks/gpu_study.py table --out rows.jsonl --markdown docs/tables/inductor-gpu.md
    python benchmarks/gpu_study.py data --out rows.jsonl --file packages/inductor/tests/data/gpu_wrappers.json.xz

Needs a CUDA build of torch, and either a GPU or the CUDA without hardware of ``packages/inductor/tests/cuda``. There, every
allocation goes through the C++ of torch's own caching allocator, so that bytes are those of a GPU, while no kernel runs: bits are
compared only where the device computes.

Of each graph four programs run: as Inductor wrote it, with its statements permuted, in that of the orders of the same peak which
reserves least from the state as it is, and with a static pool. Requested bytes are predicted from the text and what one call
recorded; allocated and reserved bytes by a replay of the caching allocator from the state at entry. Beside them stand what Inductor
makes in its own orders and in ours, with what it was predicted to need.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import lzma
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from each_graph import buffers_in, compile_each

HERE = Path(__file__).resolve().parent
CUDA = HERE.parent / "packages" / "inductor" / "tests" / "cuda"
HISTORIES = 10
REPLAYS = 500
"""Orders that are tried for the one that reserves least."""
BATCH = 64
"""Of nets that take one: enough that requests do not all fit into the first segment of the cache."""
MIB = 1 << 20


# -- one process: one net ------------------------------------------------------------------------------------


class Segments:
    """The caching allocator's segments as a replay takes them.

    Which of two equally large free blocks serves is up to which of their segments was taken first. A snapshot does not say it; its
    history does, which is kept from the start of the process (0 for segments that were there before).
    """

    def __init__(self) -> None:
        self.taken: dict[int, int] = {}
        self.count = 0
        self.begin()

    def begin(self) -> None:
        import torch

        torch.cuda.memory._record_memory_history(context=None, stacks="python", clear_history=True)

    def state(self) -> tuple[Any, ...]:
        import torch
        from peakmem_inductor.cuda.caching import BlockState, SegmentState

        device = torch.cuda.current_device()
        snapshot = torch.cuda.memory._snapshot(device)
        self.begin()
        for entry in snapshot["device_traces"][device]:
            if entry["action"] == "segment_alloc":
                self.count += 1
                self.taken[entry["addr"]] = self.count
        found = []
        for segment in snapshot["segments"]:
            blocks = tuple(
                BlockState(
                    b["size"], b["requested_size"] if b["state"] == "active_allocated" else 0, b["state"] == "active_allocated",
                    b["state"] == "active_pending_free",
                )
                for b in segment["blocks"]
            )  # fmt: skip
            address = segment["address"]
            found.append(SegmentState(address, 0, segment["segment_type"] == "small", blocks, order=self.taken.get(address, 0)))
        return tuple(found)


def pollute(seed: int) -> list[Any]:
    """Leave a cache that some other program would leave; the blocks of it that are still in use are returned."""
    import torch

    rng = random.Random(seed)
    held: list[Any] = []
    for _ in range(rng.randint(2, 24)):
        if held and rng.random() < 0.3:
            held.pop(rng.randrange(len(held)))
        size = int(rng.choice((1 << 12, 1 << 16, 1 << 19, MIB, 4 * MIB, 12 * MIB)) * rng.uniform(0.3, 3))
        held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    rng.shuffle(held)
    return held[: len(held) // 4]


@functools.cache
def segments() -> Segments:
    """Those of this process."""
    return Segments()


def plain(segment: Any) -> list[Any]:
    """A segment's address, order and kind, and of its blocks size, bytes requested and whether they are in use, as JSON has it."""
    return [segment.address, segment.order, segment.small, [[b.size, b.requested, b.active] for b in segment.blocks]]


class Study:
    """A backend for `torch.compile`: at the first call of each graph everything is run, and noted in ``rows``."""

    def __init__(self, time_limit: float, own_orders: bool = True) -> None:
        self.rows: list[dict[str, Any]] = []
        self.time_limit = time_limit
        self.own_orders = own_orders
        self.computes = False
        self.segments = segments()
        self.inputs: tuple[str, ...] = ()

    def backend(self, gm: Any, example_inputs: Any) -> Any:
        return compile_each(self.graph, gm, example_inputs, len(METHODS) + 1 if self.own_orders else 0)

    def graph(self, loaded: Any, path: Any, original: Any, args: list[Any], generate: Any) -> Any:
        from peakmem.model import PeakmemError
        from peakmem_inductor.arguments import Again, difference, written_inputs
        from peakmem_inductor.cuda.reserving import reserve_least
        from peakmem_inductor.devices import computes, random_state
        from peakmem_inductor.dispatch import Candidate, Options, compile_call, graph_name, order_candidate
        from peakmem_inductor.effects import operator_effects
        from peakmem_inductor.emitting import realize
        from peakmem_inductor.passes import GivenOrder, MethodPass
        from peakmem_inductor.record import record_profile
        from peakmem_inductor.simulation import simulate

        row: dict[str, Any] = {"graph": graph_name(path).partition("_")[2], "source": path.read_text()}
        self.rows.append(row)
        candidate = Candidate("default", loaded, path, original)
        try:
            wrapper = candidate.read()
        except PeakmemError as error:
            row["left_alone"] = str(error)
            return original(args)
        self.inputs = wrapper.inputs
        again = Again(wrapper.inputs, args)
        # What a step's graphs hand on is let go by them; parameters and the user's inputs are not.
        again.set_aside(args, [n for n in wrapper.inputs if not re.match(r"(primals_|arg)\d", n)], written_inputs(wrapper, operator_effects))
        state = random_state()
        result = original(again.take())  # tunes kernels
        try:
            result, profile = record_profile(wrapper, candidate.namespace, again.take())
            row["profile"] = profile.to_json()
            row["computes"] = self.computes = computes(profile.device)
            found = order_candidate(candidate, wrapper, profile, Options(time_limit=self.time_limit))
            after = found.after
            found.add_pool(None)
            found.after = after
            row.update(order=list(found.order), statements=len(found.graph.program), bound=found.bound, certified=found.certificate is not None, unpooled=found.unpooled)
            ordered, its = found.ordered()
            programs = {"untouched": (wrapper, profile, original), "permuted": (ordered, its, compile_call(ordered, candidate.namespace, "permuted"))}
            if found.pooled is not None:
                row["plan"] = {"bytes": found.pooled.size, "inside": found.pooled.inside, "outside": found.pooled.outside, "least": found.pooled.least}
                programs["pool"] = (found.pooled.wrapper, found.pooled.profile, compile_call(found.pooled.wrapper, candidate.namespace, "pool"))
            result, reference = None, {}
            gc.collect()

            def reserving(segments: Any, addresses: dict[str, int]) -> Any:
                best = reserve_least(found.graph, found.order, segments, addresses, bound=found.bound, replays=REPLAYS)
                text, record = realize(found.graph, best.order)
                return text, record, compile_call(text, candidate.namespace, "reserving")

            for name in PROGRAMS:
                if name not in programs and name != "reserving":
                    continue
                choose = reserving if name == "reserving" else lambda *_, its=programs[name]: its
                runs, seen = zip(*(self.run(choose, again, state, h) for h in range(HISTORIES + 1)), strict=True)
                row[name] = {"predicted": found.after if name == "reserving" else simulate(*programs[name][:2]), "runs": runs}
                if row["computes"]:
                    reference = seen[0] if name == "untouched" else reference
                    row[name]["identical"] = not any(difference(reference, other) for other in seen)
            if not self.own_orders:
                return original(again.take())
            handed = GivenOrder(buffers_in(found.graph, found.order))
            for name, chosen in (*((m, MethodPass(m)) for m in METHODS), ("regenerated", handed)):
                row[name] = self.generated(chosen, generate, again, state)
            row["regenerated"]["predicted"] = found.after
        except Exception as error:
            row["error"] = f"{type(error).__name__}: {error}"
        return original(again.take()) if result is None else result

    def generated(self, chosen: Any, generate: Any, again: Any, state: Any) -> dict[str, Any]:
        """The program that Inductor makes in an order: requested bytes as Inductor estimates them, and as they are."""
        import torch
        from peakmem_inductor.devices import set_random_state

        try:
            module, _ = generate(chosen)
            for _ in range(2):  # the first call tunes kernels
                set_random_state(state)
                args = again.take()
                torch.cuda.reset_peak_memory_stats()
                entry = figures("current")[0]
                result = module.call(args)
                measured = figures("peak")[0] - entry
                del result
            return {"predicted": chosen.estimates[0] if chosen.estimates else None, "measured": measured}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def run(self, choose: Any, again: Any, state: Any, history: int) -> tuple[dict[str, Any], dict[str, bytes]]:
        """One run from an empty cache (0) or from one of the polluted ones: its bytes, and digests of what it made.

        ``choose`` gives the program, its profile and its function for the state at entry."""
        import torch
        from peakmem_inductor.cuda.caching import CachingAllocator
        from peakmem_inductor.cuda.programs import replay_program, trace_of
        from peakmem_inductor.devices import set_random_state

        torch.cuda.empty_cache()
        args = again.take()
        set_random_state(state)
        torch.cuda.empty_cache()
        others = pollute(history) if history else []
        addresses = {n: a.untyped_storage().data_ptr() for n, a in zip(self.inputs, args) if isinstance(a, torch.Tensor)}
        state_at_entry = self.segments.state()
        wrapper, profile, call = choose(state_at_entry, addresses)
        trace = trace_of(wrapper, profile)
        allocator = CachingAllocator(state=state_at_entry)
        torch.cuda.reset_peak_memory_stats()
        entry = figures("current")
        del_args = list(args)
        args.clear()
        result = call(del_args)
        measured = [peak - base for peak, base in zip(figures("peak"), entry)]
        seen = again.seen(result) if self.computes else {}
        del result, others
        replayed = replay_program(trace, allocator, addresses)
        predicted = [getattr(replayed.peak, n) - base for n, base in zip(("requested", "allocated", "reserved"), entry)]
        row: dict[str, Any] = {"predicted": predicted, "measured": measured, "ties": replayed.ties, "workspaces": trace.workspaces}
        if history in KEPT_STATES:
            row["entry"] = {"segments": [plain(s) for s in state_at_entry], "addresses": {n: addresses[n] for n in trace.arguments.values()}}
        return row, seen


def figures(which: str) -> list[int]:
    import torch

    stats = torch._C._cuda_memoryStats(torch.cuda.current_device())
    return [int(stats[f"{name}_bytes"]["all"][which]) for name in ("requested", "allocated", "reserved")]


class _Nothing:
    def run(self, *args: Any, **kwargs: Any) -> None:
        """A launch that a device without hardware would accept and not do."""


def without_hardware() -> None:
    """Where no kernel runs, none needs to be compiled: what is allocated is up to the program around them."""
    import convolutions
    from torch._inductor.async_compile import AsyncCompile

    convolutions.install()
    AsyncCompile.triton = lambda self, *args, **kwargs: _Nothing()  # type: ignore[method-assign]


def child(config: dict[str, Any], target: Path, time_limit: float, convolutions: str, own_orders: bool = True) -> None:
    sys.path[:0] = [str(HERE), convolutions or str(CUDA)]
    import torch
    from inductor_nets import build
    from torch._functorch import config as functorch_config

    functorch_config.enable_autograd_cache = False  # a hit would skip the generation that is studied
    if os.environ.get("LD_PRELOAD", "").endswith("stub.so"):
        without_hardware()
    study = Study(time_limit, own_orders)
    net, args = build(config["net"], training=config["training"], batch=config["batch"])
    net, args = net.cuda(), tuple(a.cuda() for a in args)
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


def configurations() -> list[dict[str, Any]]:
    """The nets of the CPU study, for inference and training; those that compile longest come last."""
    sys.path.insert(0, str(HERE))
    from inductor_nets import NETS

    deep = [n for n in NETS if n.startswith("deeplab")]
    small = [n for n in NETS if n not in deep]
    linear = ["mlp_branches", "hf_mixtral", "dropper", "tree_mlp", "dense_mlp", "two_towers"]
    rows = []
    for nets, training, dynamic in (
        (linear, False, False), (linear, True, False), (small, False, False), (small, True, False), (linear, False, True),
        (linear, True, True), (deep, False, False),
    ):  # fmt: skip
        for net in nets:
            row = {"net": net, "training": training, "dynamic": dynamic, "batch": BATCH}
            if row not in rows:
                rows.append(row)
    return rows


def key_of(config: dict[str, Any]) -> str:
    return json.dumps(config, sort_keys=True)


def read(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def run_all(out: Path, timeout: float, time_limit: float, only: str, part: str, budget: float, convolutions: str) -> None:
    which, of = map(int, part.split("/"))
    wanted = list(enumerate(configurations()))
    start = time.monotonic()
    for number, config in wanted:
        if number % of != which - 1 or only not in config["net"] or key_of(config) in {key_of(e["config"]) for e in read(out)}:
            continue
        if time.monotonic() - start > budget:
            break
        entry: dict[str, Any] = {"config": config}
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            target = Path(folder) / "rows.json"
            command = [sys.executable, __file__, "child", json.dumps(config), str(target), "--time-limit", str(time_limit), "--convolutions", convolutions]
            environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
            try:
                ran = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=environment)
                entry.update(json.loads(target.read_text()) if target.exists() else {"failed": ran.stderr[-1500:]})
            except subprocess.TimeoutExpired:
                entry["failed"] = f"no answer within {timeout:.0f} s"
        entry["seconds"] = round(time.monotonic() - begin, 1)
        with out.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        print(config["net"], "training" if config["training"] else "inference", entry["seconds"], entry.get("failed", "")[-200:], flush=True)


FIXED = ("untouched", "permuted", "pool")
PROGRAMS = ("untouched", "permuted", "reserving", "pool")
KEPT_STATES = (0, 1)
"""Histories whose state at entry is kept, for the tests."""
METHODS = ("lpmf", "bfs", "dfs")
"""Inductor's own orders."""


def counts(rows: list[dict[str, Any]], program: str) -> dict[str, int]:
    """How often each prediction was reached, of all graphs and histories."""
    found = {"graphs": 0, "requested": 0, "runs": 0, "allocated": 0, "reserved": 0, "apart": 0}
    for row in rows:
        if program not in row:
            continue
        runs = row[program]["runs"]
        found["graphs"] += 1
        found["requested"] += all(r["measured"][0] == row[program]["predicted"] == r["predicted"][0] for r in runs)
        found["runs"] += len(runs)
        found["allocated"] += sum(r["measured"][1] == r["predicted"][1] for r in runs)
        found["reserved"] += sum(r["measured"][2] == r["predicted"][2] for r in runs)
        found["apart"] += len({r["measured"][2] for r in runs[1:]}) > 1
    return found


def table(out: Path) -> str:
    """The study as markdown; every figure is from the rows."""
    entries = read(out)
    rows = [{**row, "config": e["config"]} for e in entries for row in e.get("rows", ())]
    served = [r for r in rows if "permuted" in r]
    lines: list[str] = []
    say = lines.append
    versions = ", ".join(sorted({e["torch"] for e in entries if "torch" in e}))
    say("# Inductor on a GPU: predicted and reached\n")
    computed = sum(bool(r.get("computes")) for r in served)
    what = "on a GPU" if computed == len(served) else "with torch's own caching allocator on a CUDA without hardware, where no kernel runs"
    say(f"Made by `benchmarks/gpu_study.py` with torch {versions} {what}; bytes above entry of the call.\n")
    say(f"- {len(entries)} configurations, {sum('failed' in e for e in entries)} of which did not run; {len(rows)} graphs.")
    say(f"- {len(served)} of {len(rows)} graphs ({100 * len(served) / max(1, len(rows)):.1f} %) are permuted; {sum('pool' in r for r in served)} have a static pool.")
    lower = sum(r["permuted"]["predicted"] < r["untouched"]["predicted"] for r in served)
    say(f"- The best order needs less than the untouched program in {lower} graphs.")
    say(f"- Each program ran from an empty cache and after {HISTORIES} histories of other requests.\n")
    say("| program | graphs | requested as predicted | runs | allocated as replayed | reserved as replayed | graphs whose growth of reserved depends on the history |")
    say("|---|---|---|---|---|---|---|")
    for program in PROGRAMS:
        c = counts(served, program)
        say(f"| {program} | {c['graphs']} | {c['requested']} | {c['runs']} | {c['allocated']} | {c['reserved']} | {c['apart']} |")
    say("\nThe published study of order predictions on GPUs missed 19 of its 50 configurations. What Inductor makes of a graph in its own")
    say("orders, and in ours handed back to it, against what it was predicted to request (its own estimate; our certified peak):\n")
    say("| order | graphs | prediction missed | worse than untouched | better than untouched |")
    say("|---|---|---|---|---|")
    for name in (*METHODS, "regenerated"):
        cells = [(r[name], r["untouched"]["predicted"]) for r in served if "measured" in r.get(name, {})]
        missed = sum(c["predicted"] != c["measured"] for c, _ in cells)
        say(f"| {name} | {len(cells)} | {missed} | {sum(c['measured'] > u for c, u in cells)} | {sum(c['measured'] < u for c, u in cells)} |")
    gains = [[b["measured"][2] - a["measured"][2] for a, b in zip(r["reserving"]["runs"], r["permuted"]["runs"])] for r in served if "reserving" in r]
    say(f"\n*Reserving* is, for each state at entry, the order of the same peak for which the replay reserves least of {REPLAYS} tried: less than the")
    say(f"permuted program in {sum(g > 0 for row in gains for g in row)} of {sum(map(len, gains))} runs ({sum(any(g > 0 for g in row) for row in gains)} graphs), more in {sum(g < 0 for row in gains for g in row)}.\n")
    say("Below: peak of requested bytes; then growth of reserved bytes from an empty cache, and the least and most of it after the histories.\n")
    say("| net | graph | shapes | statements | untouched | permuted | pool | bytes in the pool | untouched reserved | permuted reserved | reserving reserved | pool reserved |")
    say("|" + "---|" * 12)
    for r in sorted(served, key=lambda r: (r["config"]["net"], r["graph"], r["config"]["dynamic"])):
        cells = []
        for program in FIXED:
            cells.append(f"{r[program]['predicted']:,}" if program in r else "-")
        cells.append(f"{r['plan']['bytes']:,}" if "plan" in r else "-")
        for program in PROGRAMS:
            grown = [x["measured"][2] for x in r[program]["runs"]] if program in r else []
            cells.append(f"{grown[0]:,}; {min(grown[1:]):,} to {max(grown[1:]):,}" if grown else "-")
        shapes = "dynamic" if r["config"]["dynamic"] else "static"
        say(f"| {r['config']['net']} | {r['graph']} | {shapes} | {r['statements']} | " + " | ".join(cells) + " |")
    odd = [r for r in rows if "permuted" not in r]
    failed = [e for e in entries if "failed" in e]
    if odd or failed:
        say("\n## Left alone or failed\n")
        for r in odd:
            say(f"- {r['config']['net']} {r['graph']}: {r.get('left_alone') or r.get('error')}")
        for e in failed:
            last = (e["failed"].strip().splitlines() or [""])[-1][:160]
            say(f"- {e['config']['net']} ({'training' if e['config']['training'] else 'inference'}): {last}")
    return "\n".join(lines) + "\n"


def data(out: Path, file: Path, dumps: Path | None) -> None:
    """What the tests read: wrappers, what one call recorded, and the peaks that torch's allocator had; ``dumps`` is a folder of
    wrappers that ``options={"dump": ...}`` wrote on CUDA, which ran as they are only."""
    found = []
    for entry in read(out):
        for row in entry.get("rows", ()):
            if "untouched" in row:
                config = entry["config"]
                name = f"{config['net']} {row['graph']}{' dynamic' if config['dynamic'] else ''}"
                peaks = {p: row[p]["runs"][0]["measured"][0] for p in FIXED if p in row}
                entries = {
                    p: [[r["entry"], r["measured"]] for r in row[p]["runs"] if "entry" in r] for p in FIXED if p in row
                }
                pool = {"bytes": row["plan"]["bytes"], "least": row["plan"]["least"]} if "plan" in row else None
                found.append(
                    {"name": name, "torch": entry["torch"], "source": row["source"], "profile": row["profile"], "order": row["order"],
                     "pool": pool, "requested": peaks, "entries": entries}
                )  # fmt: skip
    for path in sorted(dumps.glob("*.py")) if dumps is not None else ():
        profile = json.loads(path.with_name(path.stem + ".peakmem.json").read_text())
        found.append(
            {"name": path.stem, "torch": profile["torch"], "source": path.read_text(), "profile": profile, "order": None, "pool": None,
             "requested": {"untouched": profile["measured_peak"]}}
        )  # fmt: skip
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(lzma.compress(json.dumps(found, sort_keys=True).encode(), preset=9 | lzma.PRESET_EXTREME))
    print(f"{len(found)} wrappers, {file.stat().st_size:,} bytes")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="run what is not in --out yet")
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--timeout", type=float, default=900.0, help="seconds for one configuration")
    run.add_argument("--time-limit", type=float, default=20.0, help="seconds for ordering one graph")
    run.add_argument("--only", default="", help="only nets whose name contains this")
    run.add_argument("--part", default="1/1", help="I/N: only every N-th configuration, from the I-th on")
    run.add_argument("--budget", type=float, default=float("inf"), help="stop starting configurations after so many seconds")
    shown = verbs.add_parser("table", help="print or write the table")
    shown.add_argument("--out", type=Path, required=True)
    shown.add_argument("--markdown", type=Path)
    packed = verbs.add_parser("data", help="write what the tests read")
    packed.add_argument("--out", type=Path, required=True)
    packed.add_argument("--file", type=Path, required=True)
    packed.add_argument("--dumps", type=Path, help="a folder of dumped wrappers to add")
    one = verbs.add_parser("child")
    one.add_argument("config")
    one.add_argument("target", type=Path)
    one.add_argument("--time-limit", type=float, default=20.0)
    for each in (run, one):
        each.add_argument("--convolutions", default="", help="folder of convolutions.py, for a CUDA without hardware")
    given = parser.parse_args()
    if given.verb == "run":
        run_all(given.out, given.timeout, given.time_limit, given.only, given.part, given.budget, given.convolutions)
    elif given.verb == "child":
        child(json.loads(given.config), given.target, given.time_limit, given.convolutions)
    elif given.verb == "data":
        data(given.out, given.file, given.dumps)
    elif given.markdown:
        given.markdown.write_text(table(given.out))
    else:
        print(table(given.out), end="")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
