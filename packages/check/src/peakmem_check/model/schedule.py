"""What an adapter realizes: orders, recomputed copies, offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from peakmem_check.model.program import Program

Orders = Mapping[str, tuple[int, ...]]
"""A map from body path (``""`` is the program itself, see `Program.bodies`) to a permutation of its statements."""


@dataclass(frozen=True)
class Expansion:
    """A program enlarged by recomputed copies.

    Attributes
    ----------
    program : Program
        The enlarged program. A copy is an ordinary statement that writes buffers of its own; statements that read
        a recomputed value read the copy's buffer instead of the original.
    statement_of : tuple of int
        For each statement of ``program`` the original statement that it is or repeats.
    buffer_of : tuple of int
        For each buffer of ``program`` the original buffer that it is or repeats.
    """

    program: Program
    statement_of: tuple[int, ...]
    buffer_of: tuple[int, ...]

    def body_orders_before(self, orders: Orders) -> dict[str, tuple[int, ...]]:
        """Orders of bodies of ``program``, under the paths that the bodies had before it was enlarged.

        For adapters that permute bodies before they insert copies. Statements with bodies never run twice, so each
        body occurs once.
        """
        found = {}
        for path, order in orders.items():
            if path:
                head, _, tail = path.partition("/")
                found[f"{self.statement_of[int(head)]}/{tail}"] = tuple(order)
        return found


@dataclass(frozen=True)
class Schedule:
    """What to realize.

    Attributes
    ----------
    orders : Orders
        Permutation of each body. Where there is an ``expansion``, paths and numbers are those of its program, in the
        bodies' paths too; `Expansion.body_orders_before` turns the latter back.
    offsets : Mapping[str, int] or None
        Planned offset of each buffer by name, in bytes from the start of the arena; None without a plan.
    expansion : Expansion or None
        Present when statements are executed more than once.
    """

    orders: Orders
    offsets: Mapping[str, int] | None = None
    expansion: Expansion | None = None
    notes: tuple[str, ...] = field(default=())
