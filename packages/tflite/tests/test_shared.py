"""The real models of the shared data: planned to the live peak of their orders, measured to the byte."""

from __future__ import annotations

import random

import pytest
from peakmem.model import scheduled_timeline
from peakmem.ordering import order_program
from peakmem_tflite.model import TfliteModel
from peakmem_tflite.planning import by_subgraph
from peakmem_tflite.rewrite import permute
from peakmem_tflite.settings import Settings

# Heads with order and plan that are known to be reachable, in bytes.
KNOWN = {
    "mlperf_vww96_int8": 55296,
    "mww2_hey_mycroft": 2688,
    "mww2_okay_nabu": 2944,
    "mww1_okay_nabu": 14208,
    "mp_hand_recrop": 1310720,
    "gen_hrnet_64": 28672,
    "gen_randwire_s1": 73728,
    "gen_swiftnet_cell_96": 202752,
}


def load(path, **settings):
    """For the portable kernels, whatever others make of the result."""
    return TfliteModel.from_bytes(path.read_bytes(), path=path, settings=Settings(named=True, **settings))


def test_the_arena_is_the_live_peak_of_the_order(shared):
    for path in shared:
        model = load(path)
        schedule = model.schedule(order_program(model.program, time_limit=20))
        other = model.apply(schedule)
        assert other.predicted_bytes == scheduled_timeline(model.program, schedule.orders).peak
        assert other.predicted_bytes <= KNOWN.get(path.stem, model.predicted_bytes)


def test_random_orders_measured(shared, orders, tflm):
    from peakmem_tflite.measure import heads

    for path in shared:
        model = load(path)
        rng = random.Random(path.stem)
        models = [model]
        for _ in range(2):
            drawn = by_subgraph(model.mapped, orders(model.program, rng))
            models.append(TfliteModel.from_bytes(permute(model.graph, drawn)))
        assert heads([m.graph for m in models]) == [m.predicted_bytes for m in models], path.name


@pytest.mark.parametrize("steps", [100])
def test_the_wake_words_over_many_steps(shared, tflm, steps):
    """Streaming models, whose state an order could spoil only after a while."""
    for path in shared:
        if not path.stem.startswith(("mww", "gen_ctrl", "tflm_key", "tflm_mnist")):
            continue
        model = load(path, steps=steps)
        found = model.verify(model.apply(model.schedule(order_program(model.program, time_limit=20))))
        assert found.failures == (), path.name
        assert found.as_predicted
        assert f"over {steps} steps" in found.compared
