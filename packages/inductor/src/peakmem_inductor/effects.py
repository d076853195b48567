"""Effects of calls: what they write, whether they draw random numbers, whether they are known at all.

With torch installed they come from the operator's schema; they are recorded in the profile, so that a wrapper can be
studied where torch is not installed. What is not known to be pure stands still, and never runs more often than the
user's program runs it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from peakmem_inductor.forms import MODULE_NAMES, Access, Form, Wrapper, names_in

TRUSTED = frozenset(
    {"aten", "prims", "mkldnn", "mkl", "onednn", "quantized", "_quantized", "inductor", "inductor_prims", "torchvision"}
)
"""Namespaces whose schemas tell the whole effect, but for `STATEFUL`; any other operator is a full barrier."""

STATEFUL = re.compile(r"from_file|wait|_async_error|(?:initial_)?seed|accumulate_grad_|record_stream|_make_token|_test_\w+")
"""Operators of trusted namespaces that act where no schema tells: on files, gradients, streams. So does whatever returns
nothing and writes nothing (``_print``, ``warn``, ``manual_seed``, ``backward``), unless it only looks: `_LOOKS`."""
_LOOKS = re.compile(r"aten::(?:_assert_|_validate_|_linalg_check_errors|sym_constrain_)")

EXTERNS = re.compile(
    r"mm(?:_dtype)?|(?:bias_)?addmm|_int_mm|bmm(?:_dtype)?|baddbmm|_mm_plus_mm|_(?:scaled_)?(?:grouped_)?mm|"
    r"_sparse_semi_structured_mm|convolution|conv1x1_via_mm|call_aten_d[wx]|_linear_pointwise|qlinear_pointwise|_mkl_linear|"
    r"_weight_int8pack_mm|int4mm_packed_weight_cpu"
)
"""Names in ``extern_kernels`` that Inductor itself puts there; a user's own operator may stand there too, and ``x.run`` is a Triton
kernel that the user wrote."""


@dataclass(frozen=True)
class Effects:
    """Effects of one operator.

    Attributes
    ----------
    accesses : mapping of str to Access
        By position (``"0"``) and keyword; arguments that are not listed are read.
    random : bool
        Draws from a generator: all such operators keep their order.
    known : bool
        False for a full barrier that never runs a second time: it may have effects that no argument shows.
    aliases : tuple of str
        Arguments whose storage the result may share.
    """

    accesses: Mapping[str, Access]
    random: bool = False
    known: bool = True
    aliases: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "accesses": dict(self.accesses),
            "random": self.random,
            "known": self.known,
            "aliases": list(self.aliases),
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Effects:
        accesses = {str(k): cast(Access, v) for k, v in row["accesses"].items() if v in ("r", "w", "rw")}
        return cls(accesses, bool(row["random"]), bool(row["known"]), tuple(map(str, row["aliases"])))


EXTERN = Effects({"out": "w"})
"""``extern_kernels.*``: everything is read but ``out``, which is overwritten."""
BARRIER = Effects({}, known=False)


_STATISTICS = ("running_mean", "running_var")
"""Batch norms update them in training, although their schemas do not say so."""
_PURE_NORM = re.compile(r"backward|functional|no_training|no_stats")
_RACES = re.compile(r"_?(?:unsafe_)?(?:index_put|index_add|index_reduce|scatter|put|_index_put_impl)")


def races(target: str) -> bool:
    """Whether threads of an operator may meet in one element: a second run on several threads may give other bits."""
    return any(_RACES.match(word) for word in target.split("."))


def words_of(target: str) -> list[str]:
    """``["aten", "mm", "default"]`` of ``torch.ops.aten.mm.default`` and of its short forms."""
    path = target.removeprefix("torch.ops.").split(".")
    return ["inductor" if path[0] == "inductor_ops" else path[0], *path[1:]]


def operator_effects(target: str, pure: Collection[str] = ()) -> Effects:
    """Effects of ``torch.ops.aten.x.default`` and its short forms, from the schema that torch has for it.

    Anything that is not known to be pure, cannot be resolved, or runs a kernel that somebody registered in place of
    torch's own, is a full barrier; ``pure`` holds the operators (``ns::name``) that the user vouches for.
    """
    import torch

    words = words_of(target)
    declared = len(words) > 1 and f"{words[0]}::{words[1]}" in pure
    if not declared and (len(words) < 2 or words[0] not in TRUSTED or STATEFUL.fullmatch(words[1]) or _replaced(words)):
        return BARRIER
    operator: Any = torch.ops
    try:
        for part in words:
            operator = getattr(operator, part)
        overloads = (
            [operator]
            if isinstance(operator, torch._ops.OpOverload)
            else [getattr(operator, name) for name in operator.overloads()]
        )
    except (AttributeError, RuntimeError):
        return BARRIER
    if not overloads:
        return BARRIER
    accesses: dict[str, Access] = {}
    aliases: set[str] = set()
    random = False
    for overload in overloads:
        schema = overload._schema
        writes = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
        if not (declared or schema.returns or writes or _LOOKS.match(schema.name)):
            return BARRIER
        draws = torch.Tag.nondeterministic_seeded in overload.tags or any("Generator" in str(a.type) for a in schema.arguments)
        random = random or draws or schema.name == "quantized::dropout"
        returned = {
            a for r in schema.returns if r.alias_info is not None for a in (*r.alias_info.before_set, *r.alias_info.after_set)
        }
        for position, argument in enumerate(schema.arguments):
            info = argument.alias_info
            keys = (str(position), argument.name)
            if info is None:
                if argument.name in _STATISTICS and not _PURE_NORM.search(schema.name):
                    accesses.update(dict.fromkeys(keys, "rw"))
                continue
            if info.is_write:
                access: Access = "w" if argument.kwarg_only and argument.is_out else "rw"
                for key in keys:
                    accesses[key] = "rw" if accesses.get(key, access) != access else access
            if returned & {*info.before_set, *info.after_set}:
                aliases.update(keys)
    return Effects(accesses, random, True, tuple(sorted(aliases)))


def _replaced(words: list[str]) -> bool:
    """Whether Python code stands in for the CPU kernel of an operator, or defined it in a namespace of torch."""
    import torch

    name = "/".join(words[:2])
    return any(k.endswith("/CPU") and k.split(".")[0].removesuffix("/CPU") == name for k in getattr(torch.library, "_impls", ()))


def extern_effects(target: str) -> Effects:
    """Effects of ``extern_kernels.x``, and of a Triton kernel of the user's."""
    return EXTERN if EXTERNS.fullmatch(target.split(".")[1]) else BARRIER


def accesses_of(form: Form, wrapper: Wrapper, effects: Callable[[str], Effects]) -> Iterator[tuple[ast.expr, Access]]:
    """How a kernel, extern or operator uses each of its arguments; reads and writes all if it is not known."""
    kernel = wrapper.kernels[form.target] if form.kind == "kernel" else ()
    known = extern_effects(form.target) if form.kind == "extern" else effects(form.target) if form.kind == "operator" else None
    for key, expression in form.arguments:
        if known is not None:
            yield expression, known.accesses.get(key, "r") if known.known else "rw"
        else:
            yield expression, (kernel[int(key)] if key.isdigit() and int(key) < len(kernel) else None) or "r"


def hidden_effects(wrapper: Wrapper, effects: Callable[[str], Effects]) -> str:
    """The first call of a program that may have effects which its arguments do not show, or the empty string.

    Only a program without one may run twice: its arguments copied and the generator set back, it does the same again.
    """
    local = {n for f in wrapper.forms for n in f.defines} | set(wrapper.inputs)
    for form in wrapper.forms:
        if form.kind not in ("kernel", "extern", "operator"):
            continue
        if form.kind != "kernel" and not (extern_effects if form.kind == "extern" else effects)(form.target).known:
            return form.target
        for expression, access in accesses_of(form, wrapper, effects):
            names = set(names_in(expression)) - MODULE_NAMES
            if access != "r" and names and not names & local:
                return f"{form.target}, which writes {min(names)} of its module"
    for call in wrapper.inner:
        extern = call.startswith("extern_kernels.")
        if not (extern_effects(call) if extern else effects(call)).known:
            return call
    return ""
