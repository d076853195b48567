"""MACs of the calls of a wrapper, from the recorded shapes: convolutions, matrix products, attention, recurrent layers.

Counted as `torch.utils.flop_counter` counts them (a MAC is two of its operations), without importing torch. Generated
kernels and operators that multiply little count as 0; for others that multiply much (quantized and recurrent layers, linear
algebra) there is no count.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence

from peakmem_inductor.effects import TRUSTED, words_of
from peakmem_inductor.forms import Form, dotted
from peakmem_inductor.profile import Profile
from peakmem_inductor.regions import evaluate

Shape = tuple[int, ...]

PRODUCTS = frozenset({"mm", "bmm", "addmm", "baddbmm", "_int_mm", "_linear_pointwise", "_mkl_linear"})
CONVOLUTIONS = frozenset({"convolution", "_convolution_pointwise", "_convolution_pointwise_", "_convolution_transpose_pointwise"})
ATTENTION = frozenset(
    {
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    }
)
COUNTED = PRODUCTS | CONVOLUTIONS | ATTENTION | {f"{a}_backward" for a in (*ATTENTION, "convolution")}
_HEAVY = re.compile(
    r"(?:^|_)(?:q?linear|q?conv(?!ert)\w*|[a-z]*mm|matmul|mv|v?dot|einsum|tensordot|lstm|gru|rnn|attention|attn|cdist|linalg|"
    r"solve|cholesky\w*|lu|qr|svd|eigh?|geqrf|ormqr|orgqr|p?inverse|pdist)(?=_|$)"
)
"""Operators whose MACs are many and not known here, by a word of their names."""


def multiplies(target: str) -> bool:
    """Whether an operator, by its name, does so many MACs that Inductor calls it instead of generating a loop."""
    return any(w in COUNTED or _HEAVY.search(w) for w in words_of(target))


def macs(form: Form, profile: Profile) -> int | None:
    """MACs of one call; None if it has many that cannot be told, because a shape is opaque or the operator is new."""
    words = words_of(form.target)
    if form.kind == "operator" and words[0] not in TRUSTED:
        return None
    operator = next((w for w in words if w in COUNTED), None)
    if operator is None:
        return None if any(map(_HEAVY.search, words)) else 0
    shapes = {key: shape_of(e, profile) for key, e in form.arguments}
    if operator in PRODUCTS:
        return _product(operator, form, shapes)
    if operator in CONVOLUTIONS:
        return _convolution(operator, form, shapes, profile)
    if operator == "convolution_backward":
        return _convolution_backward(form, shapes)
    return _attention(operator, shapes)


def _product(operator: str, form: Form, shapes: dict[str, Shape | None]) -> int | None:
    if operator in ("_linear_pointwise", "_mkl_linear"):  # weights are packed, in either orientation
        plain_at = "2" if operator == "_mkl_linear" or ".binary" in form.target else "1"
        left, weight = shapes.get("0"), shapes.get(plain_at)
        if not left or not weight or not left[-1]:
            return None
        return math.prod(left) * (math.prod(weight) // left[-1])
    positional = [shapes[k] for k in sorted((k for k in shapes if k.isdigit()), key=int)]
    left, right = positional[-2:] if len(positional) >= 2 else (None, None)
    if not left or not right or len(left) != len(right) or left[-1] != right[-2]:
        return None
    return math.prod(left) * right[-1]


def _convolution(operator: str, form: Form, shapes: dict[str, Shape | None], profile: Profile) -> int | None:
    binary = ".binary" in form.target  # its second argument is added
    source, weight = shapes.get("0"), shapes.get("2" if binary else "1")
    transposed = _flag(form, "transposed", 6) if operator == "convolution" else "transpose" in operator
    if source is None or weight is None or transposed is None or len(weight) < 3 or len(source) < 3 or not source[1]:
        return None
    if transposed:  # packed weights come in either orientation
        return math.prod(source) * (math.prod(weight) // source[1])
    if ".binary_" in form.target:
        out = shapes.get("1")
    elif form.defines and form.defines[0] in profile.names:
        out = profile.names[form.defines[0]].shape
    else:
        out = shapes.get("out")
    return None if out is None or len(out) < 3 else math.prod(out) * math.prod(weight[1:])


def _convolution_backward(form: Form, shapes: dict[str, Shape | None]) -> int | None:
    """Each wanted gradient of input and weight costs what the convolution did."""
    grad, source, weight = (shapes.get(str(i)) for i in range(3))
    transposed, wanted = _flag(form, "transposed", 7), _flags(form, "output_mask", 10)
    if grad is None or source is None or weight is None or transposed is None or wanted is None or len(weight) < 3:
        return None
    once = math.prod(source if transposed else grad) * math.prod(weight[1:])
    return once * sum(wanted[:2])


def _attention(operator: str, shapes: dict[str, Shape | None]) -> int | None:
    backward = operator.endswith("_backward")
    query, key, value = (shapes.get(str(i + backward)) for i in range(3))
    if query is None or key is None or value is None or any(len(s) != 4 for s in (query, key, value)):
        return None
    scores = math.prod(query[:3]) * key[2]
    once, again = scores * query[3], scores * value[3]
    # Backward: the scores again, and the gradients of scores, value, query and key.
    return 3 * once + 2 * again if backward else once + again


def shape_of(expression: ast.expr, profile: Profile) -> Shape | None:
    """Shape of an argument; None where it is no tensor, or opaque."""
    if isinstance(expression, ast.Name):
        if expression.id in profile.opaque:
            return profile.opaque[expression.id]
        layout = profile.names.get(expression.id) or profile.constants.get(expression.id)
        return layout.shape if layout is not None else None
    if isinstance(expression, ast.Call) and dotted(expression.func) == "reinterpret_tensor":
        size = evaluate(expression.args[1], profile.symbols)
        return size if isinstance(size, tuple) else None
    return None


def _argument(form: Form, key: str, position: int) -> ast.expr | None:
    return next((e for k, e in form.arguments if k in (key, str(position))), None)


def _flag(form: Form, key: str, position: int) -> bool | None:
    found = _argument(form, key, position)
    return bool(found.value) if isinstance(found, ast.Constant) else None


def _flags(form: Form, key: str, position: int) -> Sequence[bool] | None:
    found = _argument(form, key, position)
    if not isinstance(found, ast.List | ast.Tuple) or not all(isinstance(e, ast.Constant) for e in found.elts):
        return None
    return [bool(e.value) for e in found.elts if isinstance(e, ast.Constant)]
