"""The solver against ground truth on one program; used by ``test_truth.py`` and by the benchmark of the same name."""

from __future__ import annotations

import json
import random
from collections import Counter

from oracles import (
    Model,
    in_series,
    least_workspaces,
    optimum,
    relabelled,
    render,
    reversed_program,
    scheduled_peak,
    shrunk,
    split_buffers,
)
from peakmem.model import PeakmemError, Program
from peakmem.ordering import order_program
from peakmem.proof import check


def disagreement(program: Program, best: int, counts: Counter[str] | None = None) -> str:
    """What is wrong with the solver's answer, empty if nothing is; ``best`` is the true least peak."""
    try:
        ordering = order_program(program)
    except PeakmemError as error:
        return f"raises {error!r}"
    given = scheduled_peak(program, {path: range(len(part)) for path, part in [("", program), *program.bodies()]})
    if ordering.peak != scheduled_peak(program, ordering.orders):
        return f"claims a peak of {ordering.peak}, its orders have {scheduled_peak(program, ordering.orders)}"
    if ordering.peak_before != given:
        return f"claims {ordering.peak_before} for the given order, which has {given}"
    if ordering.peak != best:
        return f"finds {ordering.peak}, the least peak is {best}"
    if ordering.lower_bound != best:
        return f"proves {ordering.lower_bound}, the least peak is {best}"
    if given == best and any(tuple(order) != tuple(range(len(order))) for order in ordering.orders.values()):
        return f"changes a given order that is optimal: {ordering.orders}"
    if ordering.certificate is None:
        return "gives no certificate"
    try:
        report = check(program, json.loads(ordering.certificate.to_bytes()))
    except PeakmemError as error:
        return f"gives a certificate that is refused: {error}"
    if (report.lower_bound, report.peak, report.optimal) != (best, best, True):
        return f"gives a certificate of {report.lower_bound} and {report.peak}, the least peak is {best}"
    if counts is not None:
        counts["programs"] += 1
        counts["certificates"] += 1
        counts["improved"] += ordering.peak < given
        counts["flows"] += report.flows
        for proof in ordering.certificate.to_json()["proofs"].values():
            counts.update(f"{node['kind']} nodes" for node in proof["nodes"])
    return ""


def examine(program: Program, counts: Counter[str] | None = None) -> None:
    """Raise AssertionError with the smallest program found that shows the disagreement."""
    wrong = disagreement(program, optimum(program), counts)
    if wrong:
        small = shrunk(program, lambda p: bool(disagreement(p, optimum(p))))
        wrong = disagreement(small, optimum(small)) or wrong
        raise AssertionError(f"{wrong}\n{render(small)}\n{json.dumps(small.to_json())}")


def examine_invariance(rng: random.Random, program: Program) -> None:
    """Relabelling changes nothing, nor do reversal and splitting where there are no overlays."""
    least = order_program(program).lower_bound
    variants = {"relabelled": relabelled(rng, program)}
    if not program.has_overlays:
        variants["split"] = split_buffers(rng, program)
    if not program.has_overlays and not any(s.bodies for s in program.statements):
        variants["reversed"] = reversed_program(program)
    for word, variant in variants.items():
        found = order_program(variant)
        assert found.lower_bound == found.peak == least, f"{word}: {found.peak}, {least}\n{render(program)}"


def examine_series(first: Program, second: Program) -> None:
    """The least peak of two programs in series from those of the parts."""
    a, b = Model(first, least_workspaces(first)), Model(second, least_workspaces(second))
    everything = a.rest(frozenset(range(a.n)))
    waiting = second.entry_bytes
    expected = everything + waiting
    if a.n:
        expected = max(expected, order_program(first).peak + waiting)
    if b.n:
        expected = max(expected, order_program(second).peak + everything)
    found = order_program(in_series(first, second))
    assert found.lower_bound == found.peak == expected, f"{found.peak}, {expected}\n{render(first)}\n{render(second)}"
