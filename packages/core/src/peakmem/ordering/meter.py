"""What a search may still spend: time, work, or both.

Time is what people have; work is the same on any machine and under any load. A unit of work is about one statement run at one
state: the search counts those it tries, a minimum cut counts as many as it decides about.
"""

from __future__ import annotations

from time import monotonic

ENDLESS = 1 << 62


class OutOfTime(Exception):
    """Time or effort is spent; what was proved until then stays proved."""


class Meter:
    """Counts work and knows when to stop.

    Parameters
    ----------
    deadline : float, optional
        A `time.monotonic` value.
    effort : int, optional
        Units of work.
    above : Meter, optional
        Whose share this is: what is spent here is spent there, and when that one is out, so is this.

    Attributes
    ----------
    spent : int
        Units of work so far.
    """

    __slots__ = ("above", "deadline", "effort", "spent")

    def __init__(self, deadline: float | None = None, effort: int | None = None, above: Meter | None = None) -> None:
        self.deadline = deadline
        self.effort = effort
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
            or (self.deadline is not None and monotonic() > self.deadline)
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
