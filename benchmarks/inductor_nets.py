"""Small networks after well-known families, built here so that a study needs no downloads.

Each builder returns ``(module, inputs)``; ``inputs(batch)`` makes arguments. Widths and resolutions are small: what
matters is the shape of the graph, and a study compiles hundreds of wrappers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Inputs = Callable[[int], tuple[Tensor, ...]]
Built = tuple[nn.Module, Inputs]


def image(channels: int, size: int) -> Inputs:
    return lambda batch: (torch.randn(batch, channels, size, size),)


def tokens(length: int, vocabulary: int = 200) -> Inputs:
    return lambda batch: (torch.randint(0, vocabulary, (batch, length)),)


def features(*shape: int) -> Inputs:
    return lambda batch: (torch.randn(batch, *shape),)


class ConvBN(nn.Sequential):
    """Convolution, BatchNorm, ReLU."""

    def __init__(self, cin: int, cout: int, k: int = 3, s: int = 1, d: int = 1, g: int = 1, relu: bool = True) -> None:
        layers: list[nn.Module] = [
            nn.Conv2d(cin, cout, k, s, d * (k // 2), d, g, bias=False), nn.BatchNorm2d(cout)
        ]  # fmt: skip
        super().__init__(*layers, *([nn.ReLU()] if relu else []))


class AsppLike(nn.Module):
    """A stem and four dilated branches, the head of DeepLab."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 3, 2, 1)
        self.branches = nn.ModuleList(
            nn.ModuleList([nn.Conv2d(64, 128, 1), nn.Conv2d(128, 32, 3, padding=d, dilation=d)]) for d in (1, 6, 12, 18)
        )
        self.out = nn.Conv2d(128, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        return self.out(torch.cat([F.relu(b(F.relu(a(x)))) for a, b in self.branches], 1))


class ExpandReduce(nn.Module):
    """Six branches, all expansions written before all reductions."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.up = nn.ModuleList(nn.Conv2d(16, 128, 1) for _ in range(6))
        self.down = nn.ModuleList(nn.Conv2d(128, 16, 3, padding=1) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        wide = [F.relu(u(x)) for u in self.up]
        return torch.cat([d(w) for d, w in zip(self.down, wide)], 1).sum(1)


class MlpBranches(nn.Module):
    """Eight wide branches, all first layers written first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(64, 1024) for _ in range(8))
        self.second = nn.ModuleList(nn.Linear(1024, 64) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        wide = [F.gelu(layer(x)) for layer in self.first]
        return torch.stack([layer(w) for layer, w in zip(self.second, wide)]).mean(0)


class RandWire(nn.Module):
    """Nodes ReLU, convolution, BatchNorm with random predecessors."""

    def __init__(self, nodes: int = 24, width: int = 16, seed: int = 3) -> None:
        super().__init__()
        rng = random.Random(seed)
        self.sources = [sorted(rng.sample(range(i + 1), min(i + 1, rng.randint(1, 3)))) for i in range(nodes)]
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.nodes = nn.ModuleList(
            nn.Sequential(nn.ReLU(), nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)) for _ in range(nodes)
        )

    def forward(self, x: Tensor) -> Tensor:
        values = [self.stem(x)]
        for node, sources in zip(self.nodes, self.sources):
            values.append(node(torch.stack([values[i] for i in sources]).sum(0)))
        used = {i for s in self.sources for i in s}
        return torch.stack([v for i, v in enumerate(values) if i not in used]).mean(0)


class UNet(nn.Module):
    """Three levels, two convolutions each, transposed convolutions up."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64)) -> None:
        super().__init__()
        a, b, c = widths
        self.d1 = nn.Sequential(ConvBN(3, a), ConvBN(a, a))
        self.d2 = nn.Sequential(ConvBN(a, b), ConvBN(b, b))
        self.mid = nn.Sequential(ConvBN(b, c), ConvBN(c, c))
        self.up2 = nn.ConvTranspose2d(c, b, 2, 2)
        self.u2 = nn.Sequential(ConvBN(2 * b, b), ConvBN(b, b))
        self.up1 = nn.ConvTranspose2d(b, a, 2, 2)
        self.u1 = nn.Sequential(ConvBN(2 * a, a), ConvBN(a, a))
        self.out = nn.Conv2d(a, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.d1(x)
        two = self.d2(F.max_pool2d(one, 2))
        mid = self.mid(F.max_pool2d(two, 2))
        two = self.u2(torch.cat([self.up2(mid), two], 1))
        one = self.u1(torch.cat([self.up1(two), one], 1))
        return self.out(one)


class Basic(nn.Module):
    def __init__(self, cin: int, cout: int, s: int = 1) -> None:
        super().__init__()
        self.a, self.b = ConvBN(cin, cout, 3, s), ConvBN(cout, cout, 3, relu=False)
        self.skip = ConvBN(cin, cout, 1, s, relu=False) if s != 1 or cin != cout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.b(self.a(x)) + self.skip(x))


class Bottleneck(nn.Module):
    def __init__(self, cin: int, mid: int, s: int = 1, d: int = 1) -> None:
        super().__init__()
        out = 4 * mid
        self.body = nn.Sequential(ConvBN(cin, mid, 1), ConvBN(mid, mid, 3, s, d), ConvBN(mid, out, 1, relu=False))
        self.skip = ConvBN(cin, out, 1, s, relu=False) if s != 1 or cin != out else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.skip(x))


class Pooled(nn.Module):
    """Features, global pooling, a classifier."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.fc = body, nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(x).mean((2, 3)))


def bottlenecks(layers: tuple[int, ...], width: int = 8, dilate: bool = False) -> tuple[nn.Module, int]:
    """The trunk of a bottleneck ResNet; ``dilate`` keeps the resolution in the last two stages."""
    blocks: list[nn.Module] = [ConvBN(3, width, 7, 2), nn.MaxPool2d(3, 2, 1)]
    cin, d = width, 1
    for stage, count in enumerate(layers):
        mid = width * 2**stage
        s = 2 if stage else 1
        if dilate and stage >= 2:
            s, d = 1, d * 2
        for i in range(count):
            blocks.append(Bottleneck(cin, mid, s if i == 0 else 1, d))
            cin = 4 * mid
    return nn.Sequential(*blocks), cin


class DeepLab(nn.Module):
    """A trunk, an ASPP head with image pooling, up to the size of the input."""

    def __init__(self, trunk: nn.Module, width: int, rates: tuple[int, ...] = (12, 24, 36), mid: int = 32) -> None:
        super().__init__()
        self.trunk = trunk
        self.branches = nn.ModuleList([ConvBN(width, mid, 1), *(ConvBN(width, mid, 3, d=r) for r in rates)])
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(width, mid, 1), nn.ReLU())
        self.project = ConvBN(mid * (len(rates) + 2), mid, 1)
        self.head = nn.Sequential(ConvBN(mid, mid, 3), nn.Conv2d(mid, 21, 1))

    def forward(self, x: Tensor) -> Tensor:
        f = self.trunk(x)
        parts = [b(f) for b in self.branches]
        parts.append(F.interpolate(self.pool(f), size=f.shape[-2:], mode="bilinear", align_corners=False))
        y = self.head(self.project(torch.cat(parts, 1)))
        return F.interpolate(y, size=x.shape[-2:], mode="bilinear", align_corners=False)


class InvertedResidual(nn.Module):
    def __init__(self, cin: int, cout: int, expand: int, s: int = 1, k: int = 3, se: bool = False, hard: bool = False) -> None:
        super().__init__()
        mid = cin * expand
        act: Callable[[], nn.Module] = nn.Hardswish if hard else nn.ReLU6
        self.up = nn.Sequential(nn.Conv2d(cin, mid, 1, bias=False), nn.BatchNorm2d(mid), act())
        self.dw = nn.Sequential(nn.Conv2d(mid, mid, k, s, k // 2, groups=mid, bias=False), nn.BatchNorm2d(mid), act())
        self.se = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(mid, mid // 4, 1), nn.ReLU(), nn.Conv2d(mid // 4, mid, 1), nn.Hardsigmoid()
        ) if se else None  # fmt: skip
        self.down = ConvBN(mid, cout, 1, relu=False)
        self.add = s == 1 and cin == cout

    def forward(self, x: Tensor) -> Tensor:
        y = self.dw(self.up(x))
        if self.se is not None:
            y = y * self.se(y)
        y = self.down(y)
        return x + y if self.add else y


class DenseNet(nn.Module):
    def __init__(self, blocks: tuple[int, ...] = (4, 4), growth: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        width, stages = 16, []
        for count in blocks:
            layers = []
            for _ in range(count):
                layers.append(nn.Sequential(nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, growth, 3, padding=1)))
                width += growth
            stages.append(nn.ModuleList(layers))
        self.stages = nn.ModuleList(stages)
        self.fc = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for i, stage in enumerate(self.stages):
            if i:
                x = F.avg_pool2d(x, 2)
            for layer in stage:
                x = torch.cat([x, layer(x)], 1)
        return self.fc(x.mean((2, 3)))


class Inception(nn.Module):
    def __init__(self, cin: int) -> None:
        super().__init__()
        self.one = ConvBN(cin, 16, 1)
        self.three = nn.Sequential(ConvBN(cin, 12, 1), ConvBN(12, 24, 3))
        self.five = nn.Sequential(ConvBN(cin, 4, 1), ConvBN(4, 8, 3))
        self.pool = ConvBN(cin, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(F.max_pool2d(x, 3, 1, 1))], 1)


class Fire(nn.Module):
    def __init__(self, cin: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.s = nn.Conv2d(cin, squeeze, 1)
        self.one, self.three = nn.Conv2d(squeeze, expand, 1), nn.Conv2d(squeeze, expand, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.s(x))
        return torch.cat([F.relu(self.one(x)), F.relu(self.three(x))], 1)


class HrNet(nn.Module):
    """Two resolutions side by side, exchanged twice."""

    def __init__(self, w: int = 16) -> None:
        super().__init__()
        self.stem = ConvBN(3, w, 3, 2)
        self.down = ConvBN(w, 2 * w, 3, 2)
        self.high = nn.ModuleList(Basic(w, w) for _ in range(2))
        self.low = nn.ModuleList(Basic(2 * w, 2 * w) for _ in range(2))
        self.to_low = nn.ModuleList(ConvBN(w, 2 * w, 3, 2, relu=False) for _ in range(2))
        self.to_high = nn.ModuleList(ConvBN(2 * w, w, 1, relu=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        high = self.stem(x)
        low = self.down(high)
        for i in range(2):
            a, b = self.high[i](high), self.low[i](low)
            high = F.relu(a + F.interpolate(self.to_high[i](b), scale_factor=2.0))
            low = F.relu(b + self.to_low[i](a))
        return torch.cat([high, F.interpolate(low, scale_factor=2.0)], 1)


class ShuffleUnit(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        half = width // 2
        self.body = nn.Sequential(ConvBN(half, half, 1), ConvBN(half, half, 3, g=half, relu=False), ConvBN(half, half, 1))

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        y = torch.cat([a, self.body(b)], 1)
        n, c, h, w = y.shape
        return y.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


class ConvNextBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.dw = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.dw(x).permute(0, 2, 3, 1))
        return x + self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)


class BiFpn(nn.Module):
    """Three levels, one top-down and one bottom-up pass."""

    def __init__(self, w: int = 24) -> None:
        super().__init__()
        self.stem = ConvBN(3, w, 3, 2)
        self.levels = nn.ModuleList(ConvBN(w, w, 3, 2) for _ in range(2))
        self.down = nn.ModuleList(ConvBN(w, w) for _ in range(2))
        self.up = nn.ModuleList(ConvBN(w, w) for _ in range(2))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        p3 = self.stem(x)
        p4 = self.levels[0](p3)
        p5 = self.levels[1](p4)
        t4 = self.down[0](p4 + F.interpolate(p5, scale_factor=2.0))
        o3 = self.down[1](p3 + F.interpolate(t4, scale_factor=2.0))
        o4 = self.up[0](p4 + t4 + F.max_pool2d(o3, 2))
        return o3, o4, self.up[1](p5 + F.max_pool2d(o4, 2))


class Attention(nn.Module):
    def __init__(self, width: int, heads: int = 4, causal: bool = False, plain: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.heads, self.causal, self.plain = heads, causal, plain

    def forward(self, x: Tensor, memory: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        m = x if memory is None else memory
        n, t, c = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(n, y.shape[1], self.heads, c // self.heads).transpose(1, 2)

        q, k, v = split(self.q(x)), split(self.k(m)), split(self.v(m))
        if self.plain:
            score = q @ k.transpose(-1, -2) / math.sqrt(c // self.heads)
            y = torch.softmax(score if bias is None else score + bias, -1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.o(y.transpose(1, 2).reshape(n, t, c))


class Block(nn.Module):
    """A transformer layer: pre- or post-norm, GELU feed-forward, optional dropout and cross-attention."""

    def __init__(self, width: int, *, causal: bool = False, pre: bool = True, plain: bool = False, drop: float = 0.0, cross: bool = False) -> None:
        super().__init__()
        self.att = Attention(width, causal=causal, plain=plain)
        self.cross = Attention(width, plain=plain) if cross else None
        self.n1, self.n2, self.n3 = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.pre, self.drop = pre, nn.Dropout(drop)

    def forward(self, x: Tensor, memory: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        if self.pre:
            x = x + self.drop(self.att(self.n1(x), bias=bias))
            if self.cross is not None:
                x = x + self.cross(self.n3(x), memory)
            return x + self.drop(self.down(F.gelu(self.up(self.n2(x)))))
        x = self.n1(x + self.drop(self.att(x, bias=bias)))
        return self.n2(x + self.drop(self.down(F.gelu(self.up(x)))))


class Encoder(nn.Module):
    """Tokens in, logits out: BERT (post-norm), GPT-2 (pre-norm, causal), ALBERT (one layer shared)."""

    def __init__(self, layers: int = 2, width: int = 64, vocabulary: int = 200, shared: bool = False, **more: Any) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(vocabulary, width), nn.Embedding(128, width)
        self.norm = nn.LayerNorm(width)
        made = [Block(width, **more) for _ in range(1 if shared else layers)]
        self.layers, self.repeat = nn.ModuleList(made), layers if shared else 1
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.norm(self.word(ids) + self.position(torch.arange(ids.shape[1], device=ids.device)))
        for _ in range(self.repeat):
            for layer in self.layers:
                x = layer(x)
        return self.head(x)


class T5(nn.Module):
    """Encoder and decoder with a relative position bias."""

    def __init__(self, width: int = 64, vocabulary: int = 200) -> None:
        super().__init__()
        self.word, self.bias = nn.Embedding(vocabulary, width), nn.Embedding(32, 4)
        self.encoder = nn.ModuleList(Block(width, plain=True) for _ in range(2))
        self.decoder = nn.ModuleList(Block(width, plain=True, cross=True) for _ in range(2))
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        t = ids.shape[1]
        at = torch.arange(t, device=ids.device)
        bias = self.bias((at[None] - at[:, None]).abs().clamp(max=31)).permute(2, 0, 1)
        x = self.word(ids)
        memory = x
        for layer in self.encoder:
            memory = layer(memory, bias=bias)
        for layer in self.decoder:
            x = layer(x, memory, bias=bias)
        return self.head(x)


class ViT(nn.Module):
    def __init__(self, width: int = 64, size: int = 32, patch: int = 8, layers: int = 2) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))
        self.layers = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patch(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.cls.expand(y.shape[0], -1, -1), y], 1) + self.position
        for layer in self.layers:
            y = layer(y)
        return self.head(self.norm(y[:, 0]))


class Mixer(nn.Module):
    def __init__(self, width: int = 48, count: int = 16) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 8, 8)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))
        self.mix = nn.ModuleList(nn.Sequential(nn.Linear(count, 64), nn.GELU(), nn.Linear(64, count)) for _ in range(2))
        self.mlp = nn.ModuleList(nn.Sequential(nn.Linear(width, 128), nn.GELU(), nn.Linear(128, width)) for _ in range(2))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = self.patch(x).flatten(2).transpose(1, 2)
        for i in range(2):
            y = y + self.mix[i](self.norms[2 * i](y).transpose(1, 2)).transpose(1, 2)
            y = y + self.mlp[i](self.norms[2 * i + 1](y))
        return self.head(y.mean(1))


class Mixture(nn.Module):
    """Four experts, all evaluated and weighted, as small mixtures are trained."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 4)
        self.up = nn.ModuleList(nn.Linear(width, 256) for _ in range(4))
        self.side = nn.ModuleList(nn.Linear(width, 256) for _ in range(4))
        self.down = nn.ModuleList(nn.Linear(256, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        gate = torch.softmax(self.gate(x), -1)
        hidden = [F.silu(u(x)) * s(x) for u, s in zip(self.up, self.side)]
        return x + torch.stack([d(h) * gate[..., i : i + 1] for i, (d, h) in enumerate(zip(self.down, hidden))]).sum(0)


class Dropper(nn.Module):
    """Linear layers with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(96, 96) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + F.dropout(F.relu(layer(x)), 0.3, self.training)
        return x


class Recurrent(nn.Module):
    """A GRU cell written out over eight steps."""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(width, width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.zeros(x.shape[0], x.shape[2], dtype=x.dtype, device=x.device)
        states = []
        for t in range(8):
            h = self.cell(x[:, t], h)
            states.append(self.head(h))
        return torch.stack(states, 1)


class TreeMlp(nn.Module):
    """Eight wide leaves, merged pairwise, a level at a time."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.leaves = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(8))
        self.merges = nn.ModuleList(nn.Linear(4 * width, 4 * width // (2 if i < 4 else 1)) for i in range(4))
        self.ends = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        level = [F.relu(leaf(x)) for leaf in self.leaves]
        level = [F.relu(m(a + b)) for m, a, b in zip(self.merges, level[::2], level[1::2])]
        level = [e(a + b) for e, a, b in zip(self.ends, level[::2], level[1::2])]
        return level[0] * level[1]


class DenseMlp(nn.Module):
    """Every layer reads the concatenation of all before it."""

    def __init__(self, width: int = 48, layers: int = 5) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width * (i + 1), width) for i in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        parts = [x]
        for layer in self.layers:
            parts.append(torch.tanh(layer(torch.cat(parts, -1))))
        return parts[-1]


class TwoTowers(nn.Module):
    """Two towers of different widths over one input, compared at every level, one after the other."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.a = nn.ModuleList(nn.Linear(width if i == 0 else 256, 256) for i in range(3))
        self.b = nn.ModuleList(nn.Linear(width if i == 0 else 512, 512) for i in range(3))
        self.across = nn.ModuleList(nn.Linear(512, 256) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        first, second = [x], [x]
        for layer in self.a:
            first.append(torch.sigmoid(layer(first[-1])))
        for layer in self.b:
            second.append(torch.sigmoid(layer(second[-1])))
        return torch.stack([(p * t(q)).sum(-1) for p, t, q in zip(first[1:], self.across, second[1:])], -1)


def _mobile(v3: bool) -> tuple[nn.Module, int]:
    layers: list[nn.Module] = [ConvBN(3, 16, 3, 2)]
    plan = [(16, 16, 2, 1), (16, 24, 3, 2), (24, 24, 3, 1), (24, 40, 3, 2), (40, 40, 3, 1)]
    layers += [InvertedResidual(a, b, e, s, 5 if v3 and b == 40 else 3, v3, v3) for a, b, e, s in plan]
    return nn.Sequential(*layers), 40


def _deeplab(layers: tuple[int, ...]) -> nn.Module:
    trunk, width = bottlenecks(layers, 8, dilate=True)
    return DeepLab(trunk, width)


def _resnet18() -> nn.Module:
    plan = [(16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1)]
    return Pooled(nn.Sequential(ConvBN(3, 16, 3, 2), *(Basic(*p) for p in plan)), 64)


NETS: dict[str, Callable[[], Built]] = {
    "aspp_like": lambda: (AsppLike(), image(3, 64)),
    "expand_reduce": lambda: (ExpandReduce(), image(3, 64)),
    "mlp_branches": lambda: (MlpBranches(), lambda batch: (torch.randn(128, 64),)),
    "randwire24": lambda: (RandWire(), image(3, 16)),
    "unet": lambda: (UNet(), image(3, 32)),
    "resnet18": lambda: (_resnet18(), image(3, 32)),
    "resnet50": lambda: (Pooled(*bottlenecks((2, 2, 2, 2))), image(3, 64)),
    "densenet": lambda: (DenseNet(), image(3, 32)),
    "googlenet": lambda: (
        Pooled(nn.Sequential(ConvBN(3, 24, 3, 2), Inception(24), nn.MaxPool2d(2), Inception(56), Inception(56)), 56),
        image(3, 32),
    ),
    "squeezenet": lambda: (
        Pooled(
            nn.Sequential(
                nn.Conv2d(3, 32, 3, 2), nn.ReLU(), nn.MaxPool2d(3, 2, ceil_mode=True), Fire(32, 8, 32), Fire(64, 8, 32),
                nn.MaxPool2d(3, 2, ceil_mode=True), Fire(64, 16, 64), Fire(128, 16, 64),
            ), 128,
        ), image(3, 64),
    ),
    "mobilenet_v2": lambda: (Pooled(*_mobile(False)), image(3, 64)),
    "mobilenet_v3": lambda: (Pooled(*_mobile(True)), image(3, 64)),
    "shufflenet": lambda: (Pooled(nn.Sequential(ConvBN(3, 32, 3, 2), *(ShuffleUnit(32) for _ in range(3))), 32), image(3, 32)),
    "convnext": lambda: (Pooled(nn.Sequential(nn.Conv2d(3, 32, 4, 4), *(ConvNextBlock(32) for _ in range(3))), 32), image(3, 32)),
    "hrnet": lambda: (HrNet(), image(3, 32)),
    "bifpn": lambda: (BiFpn(), image(3, 64)),
    "deeplabv3_resnet50_64": lambda: (_deeplab((3, 4, 6, 3)), image(3, 64)),
    "deeplabv3_resnet50_128": lambda: (_deeplab((3, 4, 6, 3)), image(3, 128)),
    "deeplabv3_resnet50_256": lambda: (_deeplab((3, 4, 6, 3)), image(3, 256)),
    "deeplabv3_resnet101_64": lambda: (_deeplab((3, 4, 23, 3)), image(3, 64)),
    "deeplabv3_resnet101_128": lambda: (_deeplab((3, 4, 23, 3)), image(3, 128)),
    "deeplabv3_mobilenetv3_64": lambda: (DeepLab(*_mobile(True)), image(3, 64)),
    "deeplabv3_mobilenetv3_128": lambda: (DeepLab(*_mobile(True)), image(3, 128)),
    "hf_bert": lambda: (Encoder(pre=False, plain=True), tokens(64)),
    "hf_gpt2": lambda: (Encoder(causal=True), tokens(64)),
    "hf_albert": lambda: (Encoder(layers=3, pre=False, plain=True, shared=True), tokens(64)),
    "hf_t5": lambda: (T5(), tokens(64)),
    "hf_vit": lambda: (ViT(), image(3, 32)),
    "hf_mixtral": lambda: (Mixture(), features(32, 64)),
    "gpt2_dropout": lambda: (Encoder(causal=True, drop=0.1), tokens(32)),
    "mixer": lambda: (Mixer(), image(3, 32)),
    "dropper": lambda: (Dropper(), features(96)),
    "recurrent": lambda: (Recurrent(), features(8, 48)),
    "tree_mlp": lambda: (TreeMlp(), features(32, 64)),
    "dense_mlp": lambda: (DenseMlp(), features(32, 48)),
    "two_towers": lambda: (TwoTowers(), features(32, 64)),
}  # fmt: skip


def build(name: str, *, training: bool, batch: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """One net with fixed weights and its arguments, the same at every call."""
    torch.manual_seed(1)
    module, inputs = NETS[name]()
    module.train(training)
    torch.manual_seed(2)
    return module, inputs(batch)
