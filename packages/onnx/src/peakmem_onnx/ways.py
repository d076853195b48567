"""How a file is run: whose order, which memory, and therefore which quantity its bytes are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from peakmem_onnx.graph import Graph
from peakmem_onnx.orders import default_order, file_order, priority_order


@dataclass(frozen=True, eq=False)
class Way:
    """One way to run a file.

    Attributes
    ----------
    name : str
        For messages.
    quantity : str
        Name of the realized quantity.
    order : callable
        The executed order of a graph whose nodes stand in the given order.
    session : dict
        What `peakmem_onnx.child` is told.
    reuse : bool
        Whether dead storages are kept for later tensors of the same shape.
    sharing : bool
        Whether views and operators that work in place share their input's storage.
    numbered : bool
        Whether sessions run the default order, so that the numbers of the nodes must lead to the wanted one.
    planned : bool
        Whether the session has an arena whose first region is planned.
    bounded : bool
        Whether no order takes fewer bytes than the bound on the live peak says. Nothing is known about default sessions.
    """

    name: str
    quantity: str
    order: Callable[[Graph, Sequence[int] | None], tuple[int, ...]]
    session: dict[str, Any]
    reuse: bool = False
    sharing: bool = True
    numbered: bool = False
    planned: bool = False
    bounded: bool = True


RECIPE = Way("a session with the recipe's options", "activation_bytes", priority_order, {"priority": True})
PORTABLE = Way(
    "a default session without arena and patterns",
    "default_session_bytes",
    default_order,
    {"priority": False, "reuse": True},
    reuse=True,
    numbered=True,
    bounded=False,
)
REPLAY = Way(
    "a session of the C interface whose requests get planned places",
    "replay_bytes",
    default_order,
    {"capi": True},
    reuse=True,
    numbered=True,
    bounded=False,
)
ARENA = Way("a session in a planned arena", "arena_bytes", priority_order, {"priority": True, "arena": True}, planned=True)
NATIVE = Way(
    "a session of the C interface in a planned arena",
    "arena_bytes",
    default_order,
    {"priority": False, "reuse": True, "arena": True},
    reuse=True,
    numbered=True,
    planned=True,
    bounded=False,
)
NODES = Way("node by node", "node_by_node_bytes", file_order, {"nodes": True}, sharing=False)


def way_of(deploy: str, executor: str = "ort", language: str = "auto") -> Way:
    """The way that the options ``--deploy``, ``--executor`` and ``--snippet-language`` name."""
    if executor == "nodes":
        return NODES
    if deploy == "arena" and language == "c":
        return NATIVE
    return {"portable": PORTABLE, "arena": ARENA, "replay": REPLAY}.get(deploy, RECIPE)
