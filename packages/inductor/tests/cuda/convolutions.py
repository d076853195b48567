"""Convolutions that allocate what cuDNN's would and compute nothing, for the CUDA that owns no hardware.

cuDNN cannot be replaced by functions that do nothing: its answers choose shapes and workspaces. `install` registers kernels for
``aten::convolution`` and its backward instead; shapes, strides and types are those that PyTorch expects of cuDNN, by the calls that
decide it while compiling. cuDNN's workspace is a choice of its heuristics: ``workspace`` states it in bytes, default none.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

_installed: list[Any] = []
_workspace: list[Callable[..., int]] = []


def _scratch(kind: str, *operands: Any) -> None:
    """A workspace, allocated after the output and freed before the call returns, as cuDNN's is."""
    size = _workspace[-1](kind, *operands) if _workspace else 0
    if size:
        torch.empty(size, dtype=torch.uint8, device=operands[0].device)


def _format(x: Any, w: Any, bias_sizes: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int) -> Any:
    backend = torch._C._select_conv_backend(x, w, None, stride, padding, dilation, transposed, output_padding, groups, bias_sizes)
    return torch._C._conv_determine_backend_memory_format(x, w, backend)


def _size(x: Any, w: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int) -> list[int]:
    n = x.dim() - 2

    def each(values: Any) -> list[int]:
        return list(values) * n if len(values) == 1 else list(values)

    s, p, d, o = each(stride), each(padding), each(dilation), each(output_padding or [0])
    if transposed:
        sizes = [(x.shape[i + 2] - 1) * s[i] - 2 * p[i] + d[i] * (w.shape[i + 2] - 1) + o[i] + 1 for i in range(n)]
        return [x.shape[0], w.shape[1] * groups, *sizes]
    return [x.shape[0], w.shape[0], *((x.shape[i + 2] + 2 * p[i] - d[i] * (w.shape[i + 2] - 1) - 1) // s[i] + 1 for i in range(n))]


def _forward(x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int) -> Any:
    bias_sizes = None if bias is None else list(bias.shape)
    layout = _format(x, w, bias_sizes, stride, padding, dilation, transposed, output_padding, groups)
    x, w = x.contiguous(memory_format=layout), w.contiguous(memory_format=layout)  # cuDNN copies what has another format
    size = _size(x, w, stride, padding, dilation, transposed, output_padding, groups)
    y = torch.empty(size, dtype=x.dtype, device=x.device, memory_format=layout)
    _scratch("forward", x, w)
    return y


def _backward(
    g: Any, x: Any, w: Any, bias_sizes: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any, groups: int, mask: Any
) -> Any:  # fmt: skip
    layout = _format(x, w, bias_sizes, stride, padding, dilation, transposed, output_padding, groups)
    g, x, w = (t.contiguous(memory_format=layout) for t in (g, x, w))
    grad_x = grad_w = grad_bias = None
    if mask[0]:
        grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device, memory_format=layout)
        _scratch("input", x, w, g)
    if mask[1]:
        grad_w = torch.empty(w.shape, dtype=w.dtype, device=w.device, memory_format=layout)
        _scratch("weight", x, w, g)
    if mask[2]:
        grad_bias = g.sum([d for d in range(g.dim()) if d != 1])
    return grad_x, grad_w, grad_bias


def install(workspace: Callable[..., int] | None = None) -> None:
    """Before the first convolution; ``workspace(kind, x, w[, g])`` gives bytes for "forward", "input" or "weight"."""
    _workspace[:] = [workspace] if workspace else []
    if not _installed:
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library.impl("convolution", _forward, "CUDA", allow_override=True)
            library.impl("convolution_backward", _backward, "CUDA", allow_override=True)
        _installed.append(library)
