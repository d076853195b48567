"""Offsets: placing buffers of known lifetimes in one arena.

Given lifetimes this is dynamic storage allocation: rectangles of fixed width (steps) and height (bytes) are slid up and
down until none overlap and the stack is as low as possible. No placement is lower than the liveness peak, so a
placement that reaches it is optimal; `plan` tries greedy rules first, then a search over canonical placements
(`peakmem.arena.canonical`) and OR-tools CP-SAT, each only where what came before misses. Pairs of items may be permitted
to share their first byte, groups can be kept contiguous, and `spread` serves several memories.
"""

from peakmem.arena.greedy import first_fit, greedy_by_size, greedy_portfolio
from peakmem.arena.items import Item, Placement, check_placement, least_extent, liveness_peak, sharing
from peakmem.arena.lifetimes import lifetimes, may_share
from peakmem.arena.memories import Spread, spread
from peakmem.arena.plan import plan
from peakmem.arena.solver import least_offsets
from peakmem.arena.table import Table, read_table, write_table

__all__ = [
    "Item", "Placement", "Spread", "Table", "check_placement", "first_fit", "greedy_by_size", "greedy_portfolio",
    "least_extent", "least_offsets", "lifetimes", "liveness_peak", "may_share", "plan", "read_table", "sharing", "spread",
    "write_table",
]  # fmt: skip
