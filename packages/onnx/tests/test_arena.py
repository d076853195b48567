"""ONNX Runtime's arena replayed, and files for an arena whose one region is planned."""

from __future__ import annotations

import random
import subprocess
import sys
from itertools import pairwise

import numpy as np
import peakmem
import pytest
from peakmem.api import load, optimize
from peakmem.model import Schedule, UsageError
from peakmem_onnx.arena import UNIT, Arena
from peakmem_onnx.feeds import write_feeds
from peakmem_onnx.planned import best_order, events_of, least_region, least_regions, planned_regions
from peakmem_onnx.runtime import ask, counting_library, scratch

from .conftest import SHARED, branches, needs_runtime, pypi_model, random_orders, random_topological
from .test_models import recurrent, with_if
from .test_orders import random_dag
from .test_ways import confirm

pytestmark = needs_runtime
needs_counting = pytest.mark.skipif(counting_library() is None, reason="allocations cannot be counted here")


# -- the arena alone -------------------------------------------------------------------------------------------------


def test_regions_grow_by_powers_of_two():
    arena = Arena()
    arena.run([(0, 1)])
    assert arena.regions == [1 << 20]
    arena.run([(1, 5 << 20)])  # what is grown for a request is not grown for the next one
    assert arena.regions == [1 << 20, 8 << 20]
    arena.run([(2, 8 << 20)])
    assert arena.regions == [1 << 20, 8 << 20, 8 << 20]
    arena.run([(3, 9 << 20)])
    assert arena.held == (1 + 8 + 8 + 16) << 20


def test_chunks_are_split_taken_by_size_and_joined():
    arena = Arena(10 * UNIT, 1)
    arena.run([(k, UNIT) for k in range(10)])
    assert len(arena.regions) == 1
    arena.run([(1, -1), (3, -1), (4, -1), (7, -1), (8, -1), (9, -1)])  # holes of one, two and three
    arena.run([(10, 2 * UNIT), (11, UNIT), (12, 3 * UNIT)])  # each in its own
    assert len(arena.regions) == 1
    arena.run([(k, -1) for k in (0, 2, 5, 6, 10, 11, 12)])
    arena.run([(20, 10 * UNIT)])  # all joined again
    assert len(arena.regions) == 1


def test_a_chunk_of_less_than_twice_the_request_goes_whole():
    arena = Arena(3 * UNIT)
    arena.run([(0, 2 * UNIT), (1, UNIT)])
    assert len(arena.regions) == 2


@pytest.mark.parametrize("seed", range(5))
def test_what_is_in_use_never_overlaps(seed):
    source = random.Random(seed)
    arena = Arena(64 * UNIT, source.choice((1, 16 * UNIT)))
    live: dict[int, int] = {}
    for number in range(400):
        if live and source.random() < 0.45:
            gone = source.choice(list(live))
            arena.run([(gone, -1)])
            del live[gone]
        else:
            live[number] = source.randrange(1, 12 * UNIT)
            arena.run([(number, live[number])])
        spans = sorted((arena._at[k], arena._at[k] + size) for k, size in live.items())
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    arena.run([(k, -1) for k in live])
    assert sorted(size for size, _ in arena._free) == sorted(arena.regions)


def test_a_second_region_where_one_would_be_broken_up():
    """A small request takes the tail in which the large one had its place, so one region must be larger by nearly that much."""
    big, small = 100 * UNIT, UNIT
    run = [(0, big), (1, 3 * UNIT), (0, -1), (2, small), (1, -1), (2, -1)]
    events = [(number + 3 * turn, size) for turn in range(4) for number, size in run]
    assert least_regions(events) == (least_region(events),)  # nothing stays, nothing is broken up
    held = [(100, 2 * UNIT), *events]  # what loading keeps
    regions = least_regions(held, 1)
    assert sum(regions) <= least_region(held)
    arena = Arena(regions[0], 1)
    assert arena.run(held)
    assert tuple(arena.regions) == regions
    assert not Arena(regions[0], 1).run(held, sum(regions) - 1)


@pytest.mark.parametrize("seed", range(4))
def test_regions_of_random_requests_hold_no_more_than_one(seed):
    source = random.Random(seed)
    run, live = [], []
    for number in range(60):
        if live and source.random() < 0.5:
            run.append((live.pop(source.randrange(len(live))), -1))
        run.append((number, source.choice((UNIT, 3 * UNIT, 40 * UNIT, 90 * UNIT))))
        live.append(number)
    run += [(number, -1) for number in live]
    events = [(number + 60 * turn, size) for turn in range(3) for number, size in run]
    regions = least_regions(events)
    assert sum(regions) <= least_region(events)
    arena = Arena(regions[0], 1)
    arena.run(events)
    assert tuple(arena.regions) == regions


# -- against the real one --------------------------------------------------------------------------------------------


@needs_counting
@pytest.mark.parametrize("seed", range(3))
def test_what_the_default_arena_holds_is_replayed(store, seed):
    m = load(store(random_dag(seed)), frontend="onnx", ort_level="none")
    m = m.apply(Schedule(random_orders(m.graph, random.Random(seed))))
    events, closing = events_of(m.graph, m.facts, m.executed(m.graph))
    arena = Arena()
    arena.run([*events, *closing])
    with scratch() as folder:
        path = folder / "m.onnx"
        path.write_bytes(m.serialized())
        step = {"do": "measure", "level": "none", "priority": True, "arena": True, "model": str(path),
                "feeds_files": write_feeds(m.origin.feeds[:1], folder)}
        (answer,) = ask(folder, [step], preload=counting_library())
    assert sum(answer["held"]) == arena.held


@needs_counting
@pytest.mark.parametrize("seed", range(4))
def test_a_planned_region_is_taken_and_nothing_else(store, seed):
    m = load(store(random_dag(seed)), frontend="onnx", ort_level="none", deploy="arena")
    assert m.quantity == "arena_bytes"
    check = confirm(m.verify(m.apply(Schedule(random_orders(m.graph, random.Random(seed))))))
    assert check.details["executed_order"] == "exact"


@pytest.mark.parametrize("op", ["GRU", "LSTM"])
def test_workspace_in_pieces(store, op):
    m = load(store(recurrent(op, 5)), frontend="onnx", ort_level="none", feed=("n=8",), deploy="arena")
    confirm(m.verify(m))


@pytest.mark.parametrize("level", ["none", "all"])
def test_a_file_for_a_planned_arena(store, tmp_path, level):
    path = store(branches())
    m = load(path, frontend="onnx", ort_level=level, deploy="arena")
    result = optimize(m, time_limit=600)
    confirm(result.verification)
    assert result.model.predicted_bytes <= m.predicted_bytes
    assert result.model.predicted_bytes >= result.lower_bound
    result.model.save(tmp_path / "out.onnx")
    again = load(tmp_path / "out.onnx", frontend="onnx", deploy="arena")
    assert again.serialized() == (tmp_path / "out.onnx").read_bytes()
    assert again.digest == result.model.digest
    check = peakmem.verify(m, again)
    assert check.failures == ()
    assert check.structure.startswith("the same")
    rows = {row["name"]: row for row in result.to_json()["onnx"]["scenarios"]}
    assert rows["new order, planned arena"]["modelled_bytes"] == result.model.predicted_bytes
    assert rows["new order, memory options off"]["modelled_bytes"] <= result.model.predicted_bytes


@pytest.mark.parametrize("name", ["hrnet_like.onnx", "light_shufflenet.onnx"])
def test_shared_models_in_a_planned_arena(name):
    if not (SHARED / name).exists():
        pytest.skip("the shared data folder is not there")
    m = load(SHARED / name, frontend="onnx", deploy="arena")
    confirm(m.verify(m.apply(Schedule(random_orders(m.graph, random.Random(2))))))


def test_what_loading_keeps_is_planned():
    path, shapes = pypi_model("rapidocr-onnxruntime det")
    m = load(path, frontend="onnx", shape=shapes, deploy="arena")
    if counting_library() is not None:
        assert m.facts.loading
    confirm(m.verify(m.apply(Schedule(random_orders(m.graph, random.Random(2))))))


@needs_counting
def test_a_file_with_bodies_has_a_recorded_region(store, tmp_path):
    files = []
    for c in (False, True):
        files.append(str(tmp_path / f"{c}.npz"))
        np.savez(files[-1], c=np.array(c), x=np.ones((1, 8, 20, 20), np.float32))
    options = {"frontend": "onnx", "ort_level": "none", "deploy": "arena"}
    m = load(store(with_if()), inputs=files, **options)
    assert m.predicted_bytes > load(store(with_if()), inputs=files[:1], **options).predicted_bytes  # the other branch takes more
    result = optimize(m, time_limit=600)
    confirm(result.verification)
    assert any("recorded runs" in note for note in result.notes)
    result.model.save(tmp_path / "out.onnx")
    assert load(tmp_path / "out.onnx", inputs=files, **options).predicted_bytes == result.model.predicted_bytes


@needs_counting
def test_a_real_model_with_bodies_in_a_planned_arena():
    path, _ = pypi_model("silero-vad")
    m = load(path, frontend="onnx", ort_level="none", shape=("input=1,512", "state=2,1,128"), feed=("sr=16000",), deploy="arena")
    confirm(m.verify(m))


def test_the_order_is_sought_for_the_region(store):
    m = load(store(branches()), frontend="onnx", ort_level="none", deploy="arena")
    tried = [random_topological(m.graph, random.Random(k)) for k in range(8)]
    start = max(tried, key=lambda order: sum(planned_regions(m.graph, m.facts, order)))
    order, size = best_order(m.graph, m.facts, [start])
    assert size == sum(planned_regions(m.graph, m.facts, order)) < sum(planned_regions(m.graph, m.facts, start))
    assert best_order(m.graph, m.facts, [start]) == (order, size)


# -- deploying -------------------------------------------------------------------------------------------------------

HELPER = """
import sys, numpy as np, peakmem_onnx
from peakmem.model import Refused
session = peakmem_onnx.session(sys.argv[1], check=True)
peakmem_onnx.session(sys.argv[1])
try:
    peakmem_onnx.session(sys.argv[2])
except Refused as error:
    assert "has an arena that begins with" in str(error), error
else:
    raise SystemExit("a second arena was made")
for _ in range(3):
    y = session.run(None, {"x": np.ones((1, 3, 16, 16), np.float32)})
sys.stdout.buffer.write(y[0].tobytes())
"""

SNIPPET = """
import sys, numpy as np
exec(open(sys.argv[1]).read())
sys.stdout.buffer.write(session.run(None, {"x": np.ones((1, 3, 16, 16), np.float32)})[0].tobytes())
"""


def run(code, *arguments):
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


def test_the_helper_and_the_snippet_open_a_planned_arena(store, tmp_path):
    import onnxruntime

    path = store(branches())
    for name, source in (("a", path), ("b", store(branches(6), "wide.onnx"))):
        optimize(load(source, frontend="onnx", ort_level="none", deploy="arena"), measure=False).model.save(tmp_path / f"{name}.onnx")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": np.ones((1, 3, 16, 16), np.float32)})[0]
    given = np.frombuffer(run(HELPER, tmp_path / "a.onnx", tmp_path / "b.onnx"), np.float32)
    assert np.allclose(given, expected.ravel(), rtol=1e-4, atol=1e-4)  # the optimizer at level all may round otherwise
    text = tmp_path / "snippet.py"
    written = load(tmp_path / "a.onnx", frontend="onnx", deploy="arena")
    text.write_text(written.snippet())
    assert str(written.predicted_bytes) in written.snippet()
    assert run(SNIPPET, text) == given.tobytes()


def test_what_is_not_planned_is_refused(store):
    with pytest.raises(UsageError, match="give one of them"):
        load(store(branches()), frontend="onnx", executor="nodes", deploy="arena")
