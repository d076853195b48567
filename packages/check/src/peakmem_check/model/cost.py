"""Prices of statements, as adapters fill them in.

A price is the number of multiply-accumulates (MACs) of one execution. Counted are convolutions, transposed
convolutions, matrix products and recurrent layers; everything else costs 0 and is listed by name, so that a reader
sees what the number leaves out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from peakmem_check.model.program import Program


@dataclass(frozen=True)
class CostReport:
    """MACs of a program and the operators that were not counted (operator -> how many statements)."""

    macs: int
    uncounted: dict[str, int]


def cost_report(program: Program) -> CostReport:
    """Sum the MACs of a program, bodies once each, and list what costs 0."""
    uncounted: Counter[str] = Counter()
    total = 0
    programs = [program, *(body for _, body in program.bodies())]
    for part in programs:
        for s in part.statements:
            total += s.cost
            if s.cost == 0:
                uncounted[s.op or s.name] += 1
    return CostReport(total, dict(sorted(uncounted.items())))
