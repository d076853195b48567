"""What arenas of sessions hold: predicted from recorded requests, and told by ONNX Runtime's log."""

from __future__ import annotations

import pytest
from onnx import helper
from peakmem_onnx.arena import Arena
from peakmem_onnx.feeds import make_feeds, write_feeds
from peakmem_onnx.held import Account, account, replayed, requests, sentences
from peakmem_onnx.runtime import ask, counting_library, scratch

from .conftest import SHARED, model, needs_runtime, pypi_model, value, weight
from .test_models import with_if

MIB = 1 << 20
needs_counting = pytest.mark.skipif(counting_library() is None, reason="allocations cannot be counted here")


def wide(size="size"):
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Exp", ["a"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("ReduceMean", ["c"], ["y"], keepdims=0),
    ]
    return model(nodes, [value("x", [1, 1, size, size])], [value("y", [])], [weight("w", 8, 1, 1, 1)])


def step_of(proto, folder, sizes=(), **more):
    feeds = [{"x": make_feeds(wide(n), {}, folder)[0]["x"]} for n in sizes] or make_feeds(proto, {}, folder)[:1]
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    return {"level": "none", "reuse": True, "pattern": True, "arena": True, "model": str(folder / "m.onnx"),
            "feeds_files": write_feeds(feeds, folder), **more}


@needs_runtime
@needs_counting
@pytest.mark.parametrize("settings", [{}, {"pattern": False}, {"reuse": False}, {"drop": False}])
def test_the_arena_as_it_comes_is_predicted_shape_after_shape(settings):
    with scratch() as folder:
        found = account(step_of(wide(), folder, (96, 200, 96), **settings), folder)
    assert len(found.told) == 7
    assert found.equal
    assert found.held == found.held_predicted
    assert sum(found.told[3]) > 0  # the second shape takes more
    assert found.told[5:] == ((), ())  # and the first one again does not
    (told,) = sentences("it", found, ("x=200", "x=96"))
    assert ", as predicted: " in told
    assert "a run with x=200 takes " in told
    assert "a run with x=96 takes nothing more" in told


@needs_runtime
@needs_counting
def test_bodies_are_predicted_too():
    with scratch() as folder:
        found = account(step_of(with_if(), folder), folder)
    assert found.equal


@needs_runtime
@needs_counting
@pytest.mark.parametrize("level", ["none", "all"])
@pytest.mark.parametrize("name", ["nas_like.onnx", "redimnet_s_random.onnx"])
def test_shared_models_as_they_come(name, level):
    if not (SHARED / name).exists():
        pytest.skip("the shared data folder is not there")
    import onnx

    proto = onnx.load(SHARED / name)
    with scratch() as folder:
        found = account(step_of(proto, folder, level=level), folder)
    assert found.held > 0
    assert found.held == found.held_predicted
    # 1.21 loads constants through the arena, in an order that hangs on addresses: whether loading or the first run takes a region, too.
    assert found.equal or found.told[0]


@needs_runtime
@needs_counting
def test_what_loading_takes_is_predicted():
    from peakmem_onnx import protos

    path, shapes = pypi_model("rapidocr-onnxruntime det")
    proto = protos.read_model(path)
    protos.fix_dimensions(proto, {}, protos.parse_shapes(shapes), path)
    with scratch() as folder:
        found = account(step_of(proto, folder), folder)
    assert found.equal
    assert found.told[0]  # a region while it is loaded


@needs_runtime
@needs_counting
@pytest.mark.parametrize("exact", [False, True])
def test_regions_given_back_after_a_run(exact):
    """``memory.enable_memory_arena_shrinkage``, with both ways in which regions grow."""
    options = {"arena_extend_strategy": 1 if exact else 0}
    with scratch() as folder:
        step = {**step_of(wide(), folder, (64, 300, 64), pattern=False), "turns": 1, "drop": True}
        phases = requests(step, folder)
        arena, told, back = Arena(MIB, 1, exact), [], 0
        for k, events in enumerate(phases):
            before = arena.regions
            arena.run(events)
            told += arena.regions[len(before):]
            if k:
                holding = arena.held
                arena.shrink()
                back += holding - arena.held
        held = {**step, "do": "held", "chunk": MIB, "arena_options": options, "log": str(folder / "log"),
                "run_config": {"memory.enable_memory_arena_shrinkage": "cpu:0"}}
        (answer,) = ask(folder, [held])
    last = answer["phases"][-1]
    assert last["regions"] == told
    # The last run's outputs are held when regions are given back after it; they go with the run before the next.
    assert sum(last["given_back"]) == back > 0


def test_regions_of_the_size_asked_for():
    arena = Arena(exact=True)
    arena.run([(0, 3 * MIB), (1, 5 * MIB), (0, -1), (2, MIB), (3, 3 * MIB)])
    assert arena.regions == [3 * MIB, 5 * MIB, 3 * MIB]  # the second MiB fits into what the first left
    arena.run([(1, -1), (2, -1), (3, -1)])
    arena.shrink()
    assert arena.held == 0


def test_the_first_region_stays():
    arena = Arena()
    arena.run([(0, MIB), (1, 9 * MIB), (0, -1), (1, -1)])
    assert arena.regions == [MIB, 16 * MIB]
    arena.shrink()
    assert arena.regions == [MIB]
    arena.run([(2, MIB + 1)])
    assert arena.regions == [MIB, 2 * MIB]  # from where it grows again


def test_which_request_took_which_region():
    phases = [[], [(0, 3 * MIB), (0, -1)], [(1, 5 * MIB)]]
    found = replayed(phases)
    assert found == [(), ((4 * MIB, 3 * MIB),), ((8 * MIB, 5 * MIB),)]
    told = Account(((), (4 * MIB,), (8 * MIB,)), tuple(found))
    assert told.equal
    assert (told.held, told.held_predicted) == (12 * MIB, 12 * MIB)
    off = Account(((), (4 * MIB,), ()), tuple(found))
    assert not off.equal
    assert "12.00 MiB were predicted" in sentences("it", off)[0]
    assert Account(((),), ()).held_predicted is None
