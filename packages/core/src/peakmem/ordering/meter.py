"""What a search may still spend: time, work, or both.

Time is what people have, on a clock that other load does not move (`peakmem.system.clock`); work is the same on any machine. A unit
of work is about one statement run at one state: the search counts those it tries, a minimum cut counts as many as it decides about.
"""

from __future__ import annotations

from peakmem.system import clock

ENDLESS = 1 << 62


class OutOfTime(Exception):
    """Time or effort is spent; what was proved until then stays proved."""


class Meter:
    """Counts work and knows when to stop.

    Parameters
    ----------
    deadline : float, optional
        A moment of `peakmem.system.clock`.
    effort : int, optional
        Units of work.
    granted : int
        Units of work that are done even if the deadline has passed.
    above : Meter, optional
        Whose share this is: what is spent here is spent there, and when that one is out, so is this.

    Attributes
    ----------
    spent : int
        Units of work so far.
    """

    __slots__ = ("above", "deadline", "effort", "granted", "spent")

    def __init__(
        self, deadline: float | None = None, effort: int | None = None, above: Meter | None = None, granted: int = 0
    ) -> None:
        self.deadline = deadline
        self.effort = effort
        self.granted = granted
        self.above = above
        self.spent = 0

    def spend(self, units: int) -> None:
        self.spent += units
        if self.above is not None:
            self.above.spend(units)

    @property
    def out(self) -> bool:
        """Whether time or effort is spent."""
        return (
            (self.effort is not None and self.spent >= self.effort)
            or (self.spent >= self.granted and clock.late(self.deadline))
            or (self.above is not None and self.above.out)
        )

    @property
    def left(self) -> int:
        """Units of work that may still be done; `ENDLESS` where nothing limits them."""
        above = ENDLESS if self.above is None else self.above.left
        return above if self.effort is None else min(above, self.effort - self.spent)

    def check(self) -> None:
        """Raise `OutOfTime` when it is `out`."""
        if self.out:
            raise OutOfTime

    def share(self, effort: int) -> Meter:
        """A part of what is left: at most ``effort`` units."""
        return Meter(effort=effort, above=self)
