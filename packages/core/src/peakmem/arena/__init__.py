"""Offsets: placing buffers of known lifetimes in one arena.

Given lifetimes this is dynamic storage allocation: rectangles of fixed width (steps) and height (bytes) are slid up and
down until none overlap and the stack is as low as possible. No placement is lower than the liveness peak, so a
placement that reaches it is optimal; `plan` tries greedy rules first and OR-tools CP-SAT only where they miss.
"""

from peakmem.arena.greedy import first_fit, greedy_by_size, greedy_portfolio
from peakmem.arena.items import Item, Placement, check_placement, liveness_peak
from peakmem.arena.lifetimes import lifetimes, may_share
from peakmem.arena.plan import plan
from peakmem.arena.solver import least_offsets

__all__ = [
    "Item", "Placement", "check_placement", "first_fit", "greedy_by_size", "greedy_portfolio", "least_offsets",
    "lifetimes", "liveness_peak", "may_share", "plan",
]  # fmt: skip
