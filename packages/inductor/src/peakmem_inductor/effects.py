"""Effects of operators: what they write, whether they draw random numbers, whether they are known at all.

With torch installed they come from the operator's schema; they are recorded in the profile, so that a wrapper can be
studied where torch is not installed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from peakmem_inductor.forms import Access

TRUSTED = frozenset(
    {"aten", "prims", "mkldnn", "mkl", "onednn", "quantized", "_quantized", "inductor", "inductor_prims"}
)
"""Namespaces whose schemas tell the whole effect; any other operator is a full barrier."""


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
        False for a full barrier.
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


def operator_effects(target: str) -> Effects:
    """Effects of ``torch.ops.aten.x.default`` and its short forms, from the schema that torch has for it.

    Anything that cannot be resolved is a full barrier.
    """
    import torch

    path = target.split(".")
    roots: dict[str, Any] = {
        "aten": torch.ops.aten,
        "inductor_ops": torch.ops.inductor,
        "_quantized": torch.ops._quantized,
    }
    if path[:2] == ["torch", "ops"]:
        operator: Any = torch.ops
        rest = path[2:]
        namespace = rest[0] if rest else ""
    else:
        operator = roots.get(path[0])
        rest = path[1:]
        namespace = {"inductor_ops": "inductor"}.get(path[0], path[0])
    if namespace not in TRUSTED or operator is None:
        return BARRIER
    try:
        for part in rest:
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
        random = random or torch.Tag.nondeterministic_seeded in overload.tags or schema.name == "quantized::dropout"
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
