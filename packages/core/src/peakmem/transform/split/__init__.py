"""Splitting: run the wide part of a model in bands, with the runtime's own operators and every bit equal.

The core knows maps of rows, sizes and prices, which an adapter supplies (`peakmem.frontends.splitting.Splittable`); what
comes out is a longer program that is ordered, bounded, certified, planned and measured like any other. See
``docs/theory/splitting.md``.
"""

from peakmem.frontends.splitting import Region
from peakmem.transform.split.document import Splitting
from peakmem.transform.split.floor import SplitFloor, floor
from peakmem.transform.split.layout import lay_out
from peakmem.transform.split.run import DEFAULT_MACS, Objective, by_hand, describe, split
from peakmem.transform.split.search import Point, Search, Searched, glance

__all__ = [
    "DEFAULT_MACS", "Objective", "Point", "Region", "Search", "Searched", "SplitFloor", "Splitting", "by_hand", "describe", "floor",
    "glance", "lay_out", "split",
]  # fmt: skip
