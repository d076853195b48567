"""Planning: heads reach the live peak, nothing gets worse, and small cases are as good as they can be."""

from __future__ import annotations

from itertools import permutations

import pytest
from peakmem.model import InputError, peak_of, scheduled_timeline
from peakmem.ordering import order_program
from peakmem_tflite.model import TfliteModel
from peakmem_tflite.planning import greedy_head
from peakmem_tflite.settings import Settings


def optimized(model):
    schedule = model.schedule(order_program(model.program))
    return schedule, model.apply(schedule)


@pytest.mark.parametrize("seed", range(40))
def test_never_worse_and_as_low_as_the_order_allows(tiny, seed):
    data = tiny.encode(tiny.random_file(seed, 14))
    for settings in (Settings(), Settings(no_plan=True)):
        model = TfliteModel.from_bytes(data, settings=settings)
        schedule, other = optimized(model)
        assert other.predicted_bytes <= model.predicted_bytes
        peak = scheduled_timeline(model.program, schedule.orders).peak
        assert other.predicted_bytes >= peak
        if not settings.no_plan:
            assert other.predicted_bytes == peak
        else:
            assert schedule.offsets is None
            assert len(other.data) == len(data)


@pytest.mark.parametrize("seed", range(6))
def test_without_a_plan_small_models_reach_the_best_greedy_arena(tiny, seed):
    """Against every order of a small model."""
    model = TfliteModel.from_bytes(tiny.encode(tiny.random_file(seed, 6)), settings=Settings(no_plan=True))
    best = model.predicted_bytes
    for order in permutations(range(len(model.program))):
        try:
            model.program.validate_order(order)
        except InputError:
            continue
        best = min(best, greedy_head(model.graph, model.mapped, "reference", {"": order}))
    assert optimized(model)[1].predicted_bytes == best


def test_the_diamond_by_hand(tiny):
    """Interleaved, the widest value waits beside the other two; one branch after the other it does not."""
    model = TfliteModel.from_bytes(tiny.encode(tiny.diamond()))
    assert peak_of(model.program) == 32 + 256 + 384 + 320
    schedule, other = optimized(model)
    # The widest branch first: while it ends, its wide value, the input and its thin result.
    assert other.predicted_bytes == scheduled_timeline(model.program, schedule.orders).peak == 432
    assert model.program.statements[0].cost == 8 * 64


def test_a_plan_of_the_file_counts_as_given(tiny):
    """A poor plan in the file is what the optimization must beat, and it does not survive a new order."""
    from peakmem.model import Schedule

    model = TfliteModel.from_bytes(tiny.encode(tiny.diamond()))
    names = [b.name for b in model.program.buffers if b.kind != "constant"]
    poor = model.apply(Schedule(model.given, {name: 4096 * i for i, name in enumerate(names)}))
    assert poor.predicted_bytes > 4096
    best = optimized(poor)[1]
    assert best.predicted_bytes == 432
    bare = optimized(TfliteModel(poor.graph, Settings(no_plan=True)))[1]
    assert bare.predicted_bytes < 1100
    assert bare.graph.plan is None


def test_inputs_that_nothing_reads(tiny):
    file = tiny.diamond()
    file.subgraphs[0].tensors.append(tiny.T((1, 400)))
    file.subgraphs[0].inputs = (0, len(file.subgraphs[0].tensors) - 1)
    model = TfliteModel.from_bytes(tiny.encode(file))
    assert any("1,632 B" in note for note in model.notes)
    assert optimized(model)[1].predicted_bytes == 1632


def test_bodies_are_ordered_too(tiny):
    wide = [tiny.T((1, 8)), tiny.T((1, 8))]
    body = tiny.Sub(
        [*wide, tiny.T((64, 8), data=[[0.1] * 8] * 64), tiny.T((1, 64)), tiny.T((1, 64)), tiny.T((8, 64), data=[[0.1] * 64] * 8),
         tiny.T((1, 8)), tiny.T((1, 8)), tiny.T((1, 8))],
        [
            tiny.Op("FULLY_CONNECTED", (0, 2, -1), (3,)),
            tiny.Op("FULLY_CONNECTED", (1, 2, -1), (4,)),
            tiny.Op("FULLY_CONNECTED", (3, 5, -1), (6,)),
            tiny.Op("FULLY_CONNECTED", (4, 5, -1), (7,)),
            tiny.Op("ADD", (6, 7), (8,)),
        ],
        (0, 1),
        (8,),
        "body",
    )  # fmt: skip
    file = tiny.branching()
    file.subgraphs[1] = body
    model = TfliteModel.from_bytes(tiny.encode(file))
    schedule, other = optimized(model)
    assert schedule.orders["0/0"] != tuple(range(5))
    assert other.predicted_bytes < model.predicted_bytes


def test_hundreds_of_operators_reach_the_live_peak(tiny):
    """A chain of 100 cells: greedy misses the live peak, the solver does not."""
    model = TfliteModel.from_bytes(tiny.encode(tiny.cells(100)))
    schedule, other = optimized(model)
    assert len(model.program) == 600
    assert schedule.offsets is not None
    assert other.predicted_bytes == scheduled_timeline(model.program, schedule.orders).peak < model.predicted_bytes
