"""What to save, searched on the joint graph: the model, the moves, and all sets of small graphs as the truth. No torch."""

from __future__ import annotations

import random
from itertools import combinations

import pytest
from peakmem_inductor.joint import Estimate, Joint, Value


def chain(rng: random.Random, layers: int) -> Joint:
    """A network as training makes it: each layer a product and a loop, skips now and then, then the same backwards."""
    values = [Value("x", kind="argument")]
    forward: list[tuple[int, int, int]] = []  # what a layer read, its product, its loop
    here = 0
    for i in range(layers):
        wide = rng.choice((64, 256, 1024))
        values.append(Value(f"w{i}", kind="argument"))
        weight = len(values) - 1
        values.append(Value(f"mm{i}", (here, weight), "call", wide, macs=rng.choice((10, 100, 400)), workspace=rng.choice((0, 32))))
        product = len(values) - 1
        skip = (forward[-2][2],) if i > 1 and values[forward[-2][2]].bytes == wide else ()
        values.append(Value(f"act{i}", (*skip, product), "loop", wide, points=wide))
        forward.append((here, product, len(values) - 1))
        here = len(values) - 1
    values.append(Value("loss", (here,), "loop", 4, points=values[here].bytes, sums=True))
    result = len(values) - 1
    values.append(Value("tangent", kind="argument", forward=False, backward=True))
    gradient, gradients = len(values) - 1, []
    for i, (source, product, out) in reversed(list(enumerate(forward))):
        size = values[product].bytes
        values.append(Value(f"d_act{i}", (*sorted({product, out, gradient}),), "loop", size, points=size, forward=False, backward=True))
        d = len(values) - 1
        values.append(Value(f"d_w{i}", (source, d), "call", 128, macs=50, forward=False, backward=True))
        gradients.append(len(values) - 1)
        if i:
            values.append(Value(f"d_x{i}", (d,), "call", values[source].bytes, macs=50, forward=False, backward=True))
            gradient = len(values) - 1
    return Joint(values, [result], gradients)


def savable(joint: Joint) -> list[int]:
    return [i for i, v in enumerate(joint.values) if v.forward and v.kind != "argument" and v.bytes > 4]


def all_sets(joint: Joint) -> dict[frozenset[int], Estimate]:
    """Every set of saved values, modelled."""
    found = {}
    own = savable(joint)
    assert len(own) <= 12
    for count in range(len(own) + 1):
        for chosen in combinations(own, count):
            saved = joint.split(chosen).saved
            estimate = joint.estimate(saved)
            if estimate is not None:
                found[saved] = estimate
    return found


@pytest.mark.parametrize("seed", range(8))
def test_no_set_beats_what_the_search_finds(seed: int) -> None:
    """From what torch would save, all that the backward reads, and from nothing: the better one is the best of all sets."""
    joint = chain(random.Random(seed), 4 if seed == 1 else 3)
    truth = all_sets(joint)
    fresh = Joint(joint.values, joint.results, joint.gradients)
    found = []
    for start in (frozenset(savable(joint)), frozenset[int]()):
        start = fresh.split(start).saved
        end = fresh.descend(start, 500) or start
        found.append(fresh.estimate(end))
    best = min(e.peak for e in truth.values())
    assert min(e.peak for e in found if e is not None) == best
    assert len(fresh.estimates) <= len(truth)
    # The fewest MACs of that peak, from the set that has it.
    end = min(truth, key=lambda s: (truth[s].peak, sorted(s)))
    cheap = truth[fresh.descend(end, 500, ceiling=best) or end]
    assert cheap.peak <= best
    assert cheap.macs <= truth[end].macs


def test_what_is_not_saved_is_computed_again_and_costs_its_macs() -> None:
    joint = chain(random.Random(1), 3)
    everything = joint.split(savable(joint))
    names = {joint.values[i].name for i in everything.saved}
    assert {"mm0", "act0", "mm2", "act2"} <= names
    less = joint.split(everything.saved - {i for i in everything.saved if joint.values[i].name == "mm1"})
    assert [joint.values[i].name for i in less.again if joint.values[i].kind != "argument"] == ["mm1"]
    a, b = joint.estimate(everything.saved), joint.estimate(less.saved)
    assert a is not None and b is not None
    assert b.macs - a.macs == next(v.macs for v in joint.values if v.name == "mm1") > 0


def test_what_must_run_once_is_always_saved() -> None:
    joint = chain(random.Random(1), 3)
    values = [v if v.name != "mm1" else Value(v.name, v.inputs, v.kind, v.bytes, macs=v.macs, barred="it draws random numbers") for v in joint.values]
    joint = Joint(values, joint.results, joint.gradients)
    start = joint.split(savable(joint)).saved
    mm1 = next(i for i, v in enumerate(values) if v.name == "mm1")
    assert joint.barred(start) == ""
    assert joint.barred(start - {mm1}) == "mm1: it draws random numbers"
    assert joint.estimate(start - {mm1}) is None
    assert all(mm1 in s for s, e in all_sets(joint).items() if e is not None)
    assert all(mm1 in s for s in (joint.descend(start, 500),) if s is not None)


def test_an_argument_that_the_step_overwrites_is_not_read_again() -> None:
    joint = chain(random.Random(1), 3)
    values = [v if v.name != "w1" else Value(v.name, kind="argument", barred="the step overwrites it") for v in joint.values]
    joint = Joint(values, joint.results, joint.gradients)
    assert joint.barred(()) == "w1: the step overwrites it"
    assert joint.barred(savable(joint)) == ""


def test_loops_are_fused_and_written_over_what_dies() -> None:
    """Two loops over one product are one kernel; it writes its result over the product, which nobody reads later."""
    values = [
        Value("x", kind="argument"), Value("mm", (0,), "call", 100, macs=5), Value("a", (1,), "loop", 100, points=25),
        Value("b", (1, 2), "loop", 100, points=25), Value("last", (3,), "call", 100),
    ]  # fmt: skip
    joint = Joint(values, [4], [])
    estimate = joint.estimate(frozenset())
    assert estimate is not None
    assert (estimate.peak, estimate.macs) == (200, 5)


def test_a_search_that_may_look_at_nothing_finds_nothing() -> None:
    joint = chain(random.Random(1), 3)
    start = joint.split(savable(joint)).saved
    joint.estimate(start)
    assert joint.descend(start, 0) is None
    assert joint.descend(start, 500, avoid=[joint.split(s).saved for n in range(7) for s in combinations(savable(joint), n)]) is None
