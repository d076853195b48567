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
    """A level for each width, two convolutions each, transposed convolutions up."""

    def __init__(self, widths: tuple[int, ...] = (16, 32, 64)) -> None:
        super().__init__()
        pairs = list(zip((3, *widths), widths))
        self.down = nn.ModuleList(nn.Sequential(ConvBN(a, b), ConvBN(b, b)) for a, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs[1:]))
        self.after = nn.ModuleList(nn.Sequential(ConvBN(2 * a, a), ConvBN(a, a)) for a, _ in reversed(pairs[1:]))
        self.out = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for level in self.down:
            x = level(F.max_pool2d(x, 2) if kept else x)
            kept.append(x)
        kept.pop()
        for up, after in zip(self.up, self.after):
            x = after(torch.cat([up(x), kept.pop()], 1))
        return self.out(x)


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
    """Widths: of 1x1; of 3x3, reduced and out; of 5x5 (as torchvision's, 3x3), reduced and out; after pooling."""

    def __init__(self, cin: int, one: int = 16, three: tuple[int, int] = (12, 24), five: tuple[int, int] = (4, 8), pool: int = 8) -> None:
        super().__init__()
        self.one = ConvBN(cin, one, 1)
        self.three = nn.Sequential(ConvBN(cin, three[0], 1), ConvBN(*three, 3))
        self.five = nn.Sequential(ConvBN(cin, five[0], 1), ConvBN(*five, 3))
        self.pool = ConvBN(cin, pool, 1)

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

    def __init__(
        self, width: int, *, heads: int = 4, causal: bool = False, pre: bool = True, plain: bool = False, drop: float = 0.0, cross: bool = False
    ) -> None:
        super().__init__()
        self.att = Attention(width, heads, causal=causal, plain=plain)
        self.cross = Attention(width, heads, plain=plain) if cross else None
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

    def __init__(
        self, layers: int = 2, width: int = 64, vocabulary: int = 200, shared: bool = False, length: int = 128, **more: Any
    ) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
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


class Gpt2Layer(nn.Module):
    """As transformers writes it: one product for queries, keys and values, GELU by tanh."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.o = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.shape
        q, k, v = (y.view(n, t, self.heads, c // self.heads).transpose(1, 2) for y in self.qkv(self.n1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(n, t, c))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """A language model that gives the loss of the next token, the head tied to the embedding."""

    def __init__(self, layers: int = 2, width: int = 64, heads: int = 4, vocabulary: int = 200, length: int = 128) -> None:
        super().__init__()
        self.word, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Gpt2Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.word(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        logits = F.linear(self.norm(x), self.word.weight)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())


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
    def __init__(self, width: int = 64, size: int = 32, patch: int = 8, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))
        self.layers = nn.ModuleList(Block(width, heads=heads) for _ in range(layers))
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


def _deeplab(layers: tuple[int, ...], width: int = 8, mid: int = 32) -> nn.Module:
    trunk, out = bottlenecks(layers, width, dilate=True)
    return DeepLab(trunk, out, mid=mid)


def _resnet18() -> nn.Module:
    plan = [(16, 16, 1), (16, 16, 1), (16, 32, 2), (32, 32, 1), (32, 64, 2), (64, 64, 1)]
    return Pooled(nn.Sequential(ConvBN(3, 16, 3, 2), *(Basic(*p) for p in plan)), 64)


# -- at the widths that people use ---------------------------------------------------------------------------


class DenseLayers(nn.Module):
    """A dense block with bottlenecks, then a transition that halves."""

    def __init__(self, cin: int, count: int, growth: int = 32, last: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.BatchNorm2d(w), nn.ReLU(), nn.Conv2d(w, 4 * growth, 1, bias=False),
                nn.BatchNorm2d(4 * growth), nn.ReLU(), nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
            ) for w in range(cin, cin + count * growth, growth)
        )  # fmt: skip
        out = cin + count * growth
        halve: list[nn.Module] = [] if last else [nn.Conv2d(out, out // 2, 1, bias=False), nn.AvgPool2d(2)]
        self.end = nn.Sequential(nn.BatchNorm2d(out), nn.ReLU(), *halve)

    def forward(self, x: Tensor) -> Tensor:
        parts = [x]
        for layer in self.layers:
            parts.append(layer(torch.cat(parts, 1)))
        return self.end(torch.cat(parts, 1))


class Separable(nn.Module):
    """ReLU, depthwise, pointwise, BatchNorm, once or twice: the convolutions of searched cells."""

    def __init__(self, width: int, s: int, d: int = 1, times: int = 2) -> None:
        super().__init__()
        self.body = nn.Sequential(*(
            nn.Sequential(
                nn.ReLU(), nn.Conv2d(width, width, 3, s if i == 0 else 1, d, d, width, bias=False), nn.Conv2d(width, width, 1, bias=False),
                nn.BatchNorm2d(width),
            ) for i in range(times)
        ))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


class Cell(nn.Module):
    """A cell of DARTS, second order: four nodes of two operators each, concatenated."""

    NORMAL = (("sep", 0), ("sep", 1), ("sep", 0), ("sep", 1), ("sep", 1), ("skip", 0), ("skip", 0), ("dil", 2))
    REDUCE = (("max", 0), ("max", 1), ("skip", 2), ("max", 1), ("max", 0), ("skip", 2), ("skip", 2), ("max", 1))

    def __init__(self, before: int, cin: int, width: int, reduce: bool, reduced: bool) -> None:
        super().__init__()
        self.plan = self.REDUCE if reduce else self.NORMAL
        self.a = nn.Sequential(nn.ReLU(), nn.Conv2d(before, width, 1, 2 if reduced else 1, bias=False), nn.BatchNorm2d(width))
        self.b = nn.Sequential(nn.ReLU(), nn.Conv2d(cin, width, 1, bias=False), nn.BatchNorm2d(width))
        made: list[nn.Module] = []
        for kind, source in self.plan:
            s = 2 if reduce and source < 2 else 1
            if kind == "skip":
                halved = nn.Sequential(nn.ReLU(), nn.Conv2d(width, width, 1, 2, bias=False), nn.BatchNorm2d(width))
                made.append(halved if s == 2 else nn.Identity())
            elif kind == "max":
                made.append(nn.MaxPool2d(3, s, 1))
            else:
                made.append(Separable(width, s) if kind == "sep" else Separable(width, s, 2, 1))
        self.operators = nn.ModuleList(made)

    def forward(self, before: Tensor, x: Tensor) -> Tensor:
        states = [self.a(before), self.b(x)]
        for i in range(0, len(self.plan), 2):
            (_, p), (_, q) = self.plan[i : i + 2]
            states.append(self.operators[i](states[p]) + self.operators[i + 1](states[q]))
        return torch.cat(states[2:], 1)


class Darts(nn.Module):
    """Cells over two inputs, reduced at a third and two thirds of them."""

    def __init__(self, width: int, cells: int, stem: nn.Module, cin: int) -> None:
        super().__init__()
        self.stem, made = stem, []
        before, reduced = cin, False
        for i in range(cells):
            reduce = i in (cells // 3, 2 * cells // 3)
            width *= 2 if reduce else 1
            made.append(Cell(before, cin, width, reduce, reduced))
            before, cin, reduced = cin, 4 * width, reduce
        self.cells, self.fc = nn.ModuleList(made), nn.Linear(cin, 10)

    def forward(self, x: Tensor) -> Tensor:
        before = x = self.stem(x)
        for cell in self.cells:
            before, x = x, cell(before, x)
        return self.fc(x.mean((2, 3)))


def _resnet18_wide() -> nn.Module:
    plan = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2), (512, 512, 1)]
    return Pooled(nn.Sequential(ConvBN(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), *(Basic(*p) for p in plan)), 512)


def _mobile_v2_wide() -> nn.Module:
    layers: list[nn.Module] = [ConvBN(3, 32, 3, 2)]
    cin = 32
    for expand, width, count, s in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)):
        for i in range(count):
            layers.append(InvertedResidual(cin, width, expand, s if i == 0 else 1))
            cin = width
    return Pooled(nn.Sequential(*layers, ConvBN(320, 1280, 1)), 1280)


def _googlenet_wide() -> nn.Module:
    table = (
        (192, 64, (96, 128), (16, 32), 32), (256, 128, (128, 192), (32, 96), 64), None, (480, 192, (96, 208), (16, 48), 64),
        (512, 160, (112, 224), (24, 64), 64), (512, 128, (128, 256), (24, 64), 64), (512, 112, (144, 288), (32, 64), 64),
        (528, 256, (160, 320), (32, 128), 128), None, (832, 256, (160, 320), (32, 128), 128), (832, 384, (192, 384), (48, 128), 128),
    )  # fmt: skip
    stem = [ConvBN(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1), ConvBN(64, 64, 1), ConvBN(64, 192, 3), nn.MaxPool2d(3, 2, 1)]
    return Pooled(nn.Sequential(*stem, *(Inception(*row) if row else nn.MaxPool2d(3, 2, 1) for row in table)), 1024)


def _squeezenet_wide() -> nn.Module:
    pool = nn.MaxPool2d(3, 2, ceil_mode=True)
    fires = [Fire(64, 16, 64), Fire(128, 16, 64), pool, Fire(128, 32, 128), Fire(256, 32, 128), pool]
    fires += [Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256)]
    return nn.Sequential(nn.Conv2d(3, 64, 3, 2), nn.ReLU(), pool, *fires, nn.Conv2d(512, 1000, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1))


def _densenet121() -> nn.Module:
    stem = [ConvBN(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    blocks = [DenseLayers(64, 6), DenseLayers(128, 12), DenseLayers(256, 24), DenseLayers(512, 16, last=True)]
    return Pooled(nn.Sequential(*stem, *blocks), 1024)


def _convnext_t() -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4)]
    for i, (width, count) in enumerate(((96, 3), (192, 3), (384, 9), (768, 3))):
        layers += [nn.Conv2d(width // 2, width, 2, 2)] if i else []
        layers += [ConvNextBlock(width) for _ in range(count)]
    return Pooled(nn.Sequential(*layers), 768)


def _darts(width: int, cells: int, imagenet: bool) -> nn.Module:
    if not imagenet:
        return Darts(width, cells, ConvBN(3, 3 * width, 3, relu=False), 3 * width)
    stem = nn.Sequential(ConvBN(3, width // 2, 3, 2), ConvBN(width // 2, width, 3, 2), ConvBN(width, width, 3, 2, relu=False))
    return Darts(width, cells, stem, width)


class ResConv(nn.Module):
    """A stem and residual blocks that widen in between, without norms: what is saved is what convolutions read."""

    def __init__(self, width: int = 16, blocks: int = 2) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.wide = nn.ModuleList(nn.Conv2d(width, 4 * width, 1) for _ in range(blocks))
        self.back = nn.ModuleList(nn.Conv2d(4 * width, width, 3, padding=1) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for wide, back in zip(self.wide, self.back):
            x = x + back(F.gelu(wide(x)))
        return x.mean((2, 3))


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
    "gpt2_loss": lambda: (Gpt2(), tokens(64)),
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


SHORT, FULL = (1, 1, 1, 2), (3, 4, 6, 3)
WIDE: dict[str, Callable[[], Built]] = {
    "DeepLabV3, ResNet trunk (1,1,1,2), 321": lambda: (_deeplab(SHORT, 64, 256), image(3, 321)),
    "DeepLabV3, ResNet-50, 321": lambda: (_deeplab(FULL, 64, 256), image(3, 321)),
    "DeepLabV3, ResNet-50, 513": lambda: (_deeplab(FULL, 64, 256), image(3, 513)),
    "ResNet-50, 224": lambda: (Pooled(*bottlenecks(FULL, 64)), image(3, 224)),
    "ResNet-18, 224": lambda: (_resnet18_wide(), image(3, 224)),
    "U-Net, 64 to 1024, 256": lambda: (UNet((64, 128, 256, 512, 1024)), image(3, 256)),
    "MobileNetV2, 224": lambda: (_mobile_v2_wide(), image(3, 224)),
    "SqueezeNet 1.1, 224": lambda: (_squeezenet_wide(), image(3, 224)),
    "GoogLeNet, 224": lambda: (_googlenet_wide(), image(3, 224)),
    "DenseNet-121, 224": lambda: (_densenet121(), image(3, 224)),
    "ConvNeXt-T, 224": lambda: (_convnext_t(), image(3, 224)),
    "ViT-B/16, 224": lambda: (ViT(768, 224, 16, 12, 12), image(3, 224)),
    "BERT base, 128 tokens": lambda: (Encoder(12, 768, 30522, pre=False, plain=True, heads=12), tokens(128, 30522)),
    "GPT-2, 512 tokens": lambda: (Encoder(12, 768, 50257, causal=True, heads=12, length=1024), tokens(512, 50257)),
    "GPT-2 as in transformers, 512 tokens": lambda: (Gpt2(12, 768, 12, 50257, 1024), tokens(512, 50257)),
    "DARTS, 14 cells of 48, 224": lambda: (_darts(48, 14, True), image(3, 224)),
    "DARTS, 20 cells of 36, 32": lambda: (_darts(36, 20, False), image(3, 32)),
}
"""Written after the published networks at their widths, without what has no bearing on memory (pretrained weights, dropout of
paths, scales of layers)."""


SMALL: dict[str, Callable[[], Built]] = {
    "res_conv": lambda: (ResConv(), image(3, 32)),
    "attention": lambda: (nn.Sequential(Block(64, plain=True), Block(64, plain=True)), features(64, 64)),
}
"""For searches over what to save, which generate many programs."""


def build(name: str, *, training: bool, batch: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """One net with fixed weights and its arguments, the same at every call."""
    torch.manual_seed(1)
    module, inputs = (NETS.get(name) or WIDE.get(name) or SMALL[name])()
    module.train(training)
    torch.manual_seed(2)
    return module, inputs(batch)
