"""Convolutions that allocate their results and compute nothing, for a CUDA that owns no hardware.

`install` replaces the CUDA kernels of ``aten::convolution`` and ``aten::convolution_backward``, which would ask cuDNN. Results have
the layout that torch expects of cuDNN, as it does while it compiles; workspaces of cuDNN, which its heuristics choose, are none.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch

_library: Any = None


def _layout(x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, extra: Any, groups: int) -> Any:
    choice = torch._C._select_conv_backend(x, weight, None, stride, padding, dilation, transposed, extra, groups, bias)
    return torch._C._conv_determine_backend_memory_format(x, weight, choice)


def _forward(x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, extra: Any, groups: int) -> Any:
    kept = _layout(x, weight, None if bias is None else list(bias.shape), stride, padding, dilation, transposed, extra, groups)
    x, weight = x.contiguous(memory_format=kept), weight.contiguous(memory_format=kept)
    axes = range(x.dim() - 2)
    s, p, d, e = ([v[i if len(v) > 1 else 0] for i in axes] for v in (stride, padding, dilation, extra or [0]))
    spans = [d[i] * (weight.shape[i + 2] - 1) + 1 for i in axes]
    if transposed:
        channels = weight.shape[1] * groups
        size = [(x.shape[i + 2] - 1) * s[i] - 2 * p[i] + spans[i] + e[i] for i in axes]
    else:
        channels = weight.shape[0]
        size = [(x.shape[i + 2] + 2 * p[i] - spans[i]) // s[i] + 1 for i in axes]
    return torch.empty([x.shape[0], channels, *size], dtype=x.dtype, device=x.device, memory_format=kept)


def _backward(
    gradient: Any, x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, extra: Any, groups: int, wanted: Any
) -> Any:
    kept = _layout(x, weight, bias, stride, padding, dilation, transposed, extra, groups)
    gradient, x, weight = (t.contiguous(memory_format=kept) for t in (gradient, x, weight))
    made = [torch.empty(t.shape, dtype=t.dtype, device=t.device, memory_format=kept) if w else None for t, w in zip((x, weight), wanted)]
    return (*made, gradient.sum([i for i in range(gradient.dim()) if i != 1]) if wanted[2] else None)


def install() -> None:
    """Replace the kernels, once in a process."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _library.impl("convolution", _forward, "CUDA", allow_override=True)
        _library.impl("convolution_backward", _backward, "CUDA", allow_override=True)
