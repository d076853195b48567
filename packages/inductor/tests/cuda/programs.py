"""Programs whose requests are recorded: small networks, run once for inference or trained for two steps.

``python programs.py FIRST COUNT`` runs programs under the CUDA that owns no hardware and prints one line of JSON each: its name,
its requests as PyTorch's memory history has them, and the peaks that ``memory_stats`` had after it.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent))
import convolutions


class Block(nn.Module):
    """Attention and a feed-forward part."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.inputs, self.outputs = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        b, t, d = x.shape
        q, k, v = self.inputs(self.first(x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        weights = q @ k.transpose(-1, -2) / (d // self.heads) ** 0.5
        if self.causal:
            weights = weights.masked_fill(torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1), float("-inf"))
        x = x + self.outputs((weights.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Residual(nn.Module):
    def __init__(self, a: int, b: int, stride: int = 1) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.Conv2d(b, b, 3, 1, 1, bias=False)
        self.n1, self.n2 = nn.GroupNorm(8, b), nn.GroupNorm(8, b)
        self.skip = nn.Conv2d(a, b, 1, stride, bias=False) if stride > 1 or a != b else nn.Identity()

    def forward(self, x: Any) -> Any:
        return F.relu(self.n2(self.two(F.relu(self.n1(self.one(x))))) + self.skip(x))


class UNet(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        w = width
        self.down = nn.ModuleList([Residual(3, w), Residual(w, 2 * w, 2), Residual(2 * w, 4 * w, 2)])
        self.grow = nn.ModuleList([nn.ConvTranspose2d(4 * w, 2 * w, 2, 2), nn.ConvTranspose2d(2 * w, w, 2, 2)])
        self.up = nn.ModuleList([Residual(4 * w, 2 * w), Residual(2 * w, w)])
        self.head = nn.Conv2d(w, 3, 1)

    def forward(self, x: Any) -> Any:
        kept = []
        for part in self.down:
            x = part(x)
            kept.append(x)
        for grow, part, skip in zip(self.grow, self.up, (kept[1], kept[0]), strict=True):
            x = part(torch.cat([grow(x), skip], 1))
        return self.head(x)


class Cell(nn.Module):
    """A recurrent cell, unrolled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gates = nn.Linear(2 * width, 4 * width)

    def forward(self, x: Any) -> Any:
        h = c = torch.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            i, f, g, o = self.gates(torch.cat([x[:, t], h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return h


class Words(nn.Module):
    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.body = nn.Sequential(*(Block(width, 4, causal=True) for _ in range(layers)))
        self.head = nn.Linear(width, words)

    def forward(self, x: Any) -> Any:
        return self.head(self.body(self.table(x)))


def dense(*widths: int) -> nn.Module:
    parts: list[nn.Module] = []
    for a, b in pairwise(widths):
        parts += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*parts)


def image(b: int, size: int) -> Any:
    return torch.empty(b, 3, size, size, device="cuda")


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Any], tuple[int, ...]]] = {
    "dense": (lambda: dense(512, 2048, 2048, 512, 10), lambda b: torch.empty(b, 512, device="cuda"), (1, 64, 700, 3000)),
    "funnel": (lambda: dense(4096, 1024, 256, 64, 256, 1024, 4096), lambda b: torch.empty(b, 4096, device="cuda"), (8, 250, 1500)),
    "attention": (lambda: nn.Sequential(Block(256, 4), Block(256, 4)), lambda b: torch.empty(b, 128, 256, device="cuda"), (1, 4, 9, 33)),
    "wide": (lambda: nn.Sequential(*(Block(768, 12) for _ in range(3))), lambda b: torch.empty(b, 197, 768, device="cuda"), (1, 3, 7)),
    "words": (lambda: Words(5000, 192, 3), lambda b: torch.zeros(b, 96, dtype=torch.long, device="cuda"), (1, 5, 16)),
    "recurrent": (lambda: Cell(300), lambda b: torch.empty(b, 12, 300, device="cuda"), (2, 40, 500)),
    "residual": (
        lambda: nn.Sequential(Residual(3, 32), Residual(32, 64, 2), Residual(64, 64), Residual(64, 128, 2), nn.AdaptiveAvgPool2d(1)),
        lambda b: image(b, 96), (1, 6, 20, 64),
    ),
    "unet": (lambda: UNet(24), lambda b: image(b, 128), (1, 4, 13)),
}  # fmt: skip

COMPILED = (("dense", 700), ("attention", 4), ("words", 5), ("residual", 6))
"""Networks and batch sizes that are run through ``torch.compile`` too."""


def names() -> list[str]:
    found = []
    for network, (_, _, batches) in NETWORKS.items():
        for batch in batches:
            found += [f"{network}-{batch}-{mode}" for mode in ("infer", "sgd", "adam", "half-infer", "half-sgd", "checkpointed-sgd", "ragged-sgd", "accumulate-adam")]
    for network, batch in COMPILED:
        found += [f"{network}-{batch}-compiled-{mode}" for mode in ("infer", "sgd")]
    return found


def run(name: str) -> None:
    """Run one program; all it allocated but what libraries keep is free afterwards."""
    network, size, *modes = name.split("-")
    make, data, _ = NETWORKS[network]
    batch = int(size)
    net = make().cuda()
    if "half" in modes:
        net = net.bfloat16()

    def given(count: int) -> Any:
        x = data(count)
        return x.bfloat16() if "half" in modes and x.is_floating_point() else x

    call: Any = torch.compile(net) if "compiled" in modes else net
    if modes[-1] == "infer":
        with torch.no_grad():
            y = call(given(batch))
        del y
        return
    lr = {"sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), "adam": lambda p: torch.optim.Adam(p, foreach="accumulate" not in modes)}
    optimizer = lr[modes[-1]](net.parameters())
    for step in range(2):
        x = given(max(batch - step, 1) if "ragged" in modes else batch)  # the next batch a little smaller: blocks fit badly
        for _ in range(2 if "accumulate" in modes else 1):
            y = torch.utils.checkpoint.checkpoint(call, x, use_reentrant=False) if "checkpointed" in modes else call(x)
            y.float().square().mean().backward()
            del y
        optimizer.step()
        optimizer.zero_grad()


def recorded(trace: list[dict[str, Any]]) -> list[list[Any]]:
    """Events of the memory history, as rows of `Event`; what was freed and not allocated in it is left out."""
    alive: dict[int, int] = {}
    streams: dict[int, int] = {}
    rows: list[list[Any]] = []
    for entry in trace:
        if entry["action"] == "alloc":
            alive[entry["addr"]] = len(rows)
            rows.append(["alloc", len(rows), entry["size"], streams.setdefault(entry["stream"], len(streams))])
        elif entry["action"] == "free_requested" and entry["addr"] in alive:
            rows.append(["free", alive.pop(entry["addr"])])
    return rows


def main(arguments: list[str]) -> None:
    convolutions.install()
    torch._inductor.config.compile_threads = 1
    for name in chosen(arguments):
        run(name) if "compiled" in name else None  # compiles; tries of autotuning are no part of the program
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        kept = torch.cuda.memory_stats()
        torch.cuda.memory._record_memory_history(max_entries=1_000_000, context=None, clear_history=True)
        run(name)
        gc.collect()
        stats = torch.cuda.memory_stats()
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        torch.cuda.memory._record_memory_history(enabled=None)
        peaks = [stats[f"{what}_bytes.all.peak"] - kept[f"{what}_bytes.all.current"] for what in ("requested", "allocated", "active", "reserved")]
        print(json.dumps({"name": name, "events": recorded(trace), "peaks": peaks, "kept": kept["reserved_bytes.all.current"]}), flush=True)


def chosen(arguments: list[str]) -> Iterator[str]:
    first, count = map(int, arguments)
    yield from names()[first : first + count]


if __name__ == "__main__":
    main(sys.argv[1:])
