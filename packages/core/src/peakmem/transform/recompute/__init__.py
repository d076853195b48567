"""Selective recomputation: run cheap statements twice to need less memory.

The base order is fixed; a plan says which statements rerun, and where. See ``docs/recompute.md`` for the statements
and proofs behind it.

>>> from peakmem.model import Buffer, Program, Statement
>>> from peakmem.transform.recompute import RerunProblem, solve
>>> program = Program(
...     (Buffer("x", 1, "input", True), Buffer("a", 9), Buffer("b", 2), Buffer("c", 9), Buffer("d", 1),
...      Buffer("y", 1, "output", True)),
...     (Statement("stem", "Conv", (0,), (1,), (), cost=5), Statement("s", "Pool", (1,), (2,), (0,)),
...      Statement("wide", "Up", (2,), (3,), (1,)), Statement("t", "Pool", (3,), (4,), (2,)),
...      Statement("join", "Add", (1, 4), (5,), (0, 3))),
... )
>>> outcome = solve(RerunProblem(program, tuple(range(5))), 13)
>>> outcome.status, outcome.plan.peak, outcome.plan.extra_macs
('exact', 12, 5)
"""

from peakmem.transform.recompute.document import Enlarged, Recomputation, result_document
from peakmem.transform.recompute.expand import body_orders, expand, order_expansion
from peakmem.transform.recompute.floors import Floor, floor
from peakmem.transform.recompute.pareto import Front, Point, base_orders, front, least_peak, reach
from peakmem.transform.recompute.plan import Plan, Rerun, Trace, cost_of, make_plan, prune, trace
from peakmem.transform.recompute.reruns import RerunProblem, Unit, parse_extra_macs
from peakmem.transform.recompute.run import describe, enlarge, recompute
from peakmem.transform.recompute.solver import Outcome, solve

__all__ = [
    "Enlarged", "Floor", "Front", "Outcome", "Plan", "Point", "Recomputation", "Rerun", "RerunProblem", "Trace", "Unit",
    "base_orders", "body_orders", "cost_of", "describe", "enlarge", "expand", "floor", "front",
    "least_peak", "make_plan", "order_expansion", "parse_extra_macs", "prune", "reach", "recompute",
    "result_document", "solve", "trace",
]  # fmt: skip
