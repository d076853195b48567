"""TFLite models in bands: every bit equal on TFLite Micro, heads as predicted, and nothing that is not known to be safe."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import peakmem
import pytest
from peakmem.frontends.splitting import Region
from peakmem.model import InputError, Refused, UsageError
from peakmem.ordering import order_program
from peakmem.report import words
from peakmem.transform.split import Search, floor, lay_out, run
from peakmem_tflite import splitwrite
from peakmem_tflite.flatbuffer import Flat
from peakmem_tflite.model import TfliteModel
from peakmem_tflite.rewrite import with_plan
from peakmem_tflite.settings import Settings
from peakmem_tflite.splitcheck import check_split

sys.path.append(str(Path(__file__).parent))  # for the helpers of this test
from bands import Net, main
from splitnets import image_net, same_outputs
from trees import load as load_tree
from trees import save

FAULTS = Path(__file__).resolve().parents[4] / "shared" / "data" / "faults" / "tflite"


def load(data: bytes, target: str = "reference") -> TfliteModel:
    return TfliteModel.from_bytes(data, settings=Settings(named=True, target=target))


def in_bands(model: TfliteModel, *regions: Region) -> TfliteModel:
    return model.apply_split(lay_out(model.splittable(), range(len(model.program)), regions))


def column(tiny, *steps, height: int = 12, kind: str = "FLOAT32", channels: int = 3, shape: tuple[int, ...] | None = None):
    """A chain of operators on one image: each step gives operator, constants, shape of the result and options."""
    tensors = [tiny.T(shape or (1, height, 4, channels), kind, name="x", scale=0.05)]
    operators = []
    last = 0
    for op, constants, result, options, *first in steps:
        inputs = []
        for c in constants:
            c = np.asarray(c)
            tensors.append(tiny.T(c.shape, "INT32" if c.dtype == np.int32 else "FLOAT32", c))
            inputs.append(len(tensors) - 1)
        tensors.append(tiny.T(result, kind, scale=0.05))
        operators.append(tiny.Op(op, (*inputs, last) if first else (last, *inputs), (len(tensors) - 1,), options))
        last = len(tensors) - 1
    return tiny.File([tiny.Sub(tensors, operators, (0,), (last,))])


@pytest.mark.parametrize("seed", range(24))
def test_random_regions_of_random_nets_keep_every_bit(tiny, tflm, tmp_path, seed):
    rng = random.Random(seed)
    data = tiny.encode(image_net(tiny, seed))
    model = load(data)
    n = len(model.program)
    for _ in range(20):
        first = rng.randrange(n)
        region = Region(first, min(n - 1, first + rng.randint(0, 4)), rng.randint(2, 12), rng.choice(("rows", "rows", "channels")), kept=rng.random() < 0.4)
        try:
            made = in_bands(model, region)
        except Refused:
            continue
        assert same_outputs(data, made.data, tmp_path, count=len(model.graph.subgraphs[0].outputs)) > 0
        return


def test_a_slice_of_everything_in_the_given_model_stays_itself(tiny, tflm, tmp_path):
    """Wake-word models have some: the slice holds all of what it reads, and is no tensor of the bands for that."""
    bounds = [np.array(v, np.int32) for v in ((0, 0, 0, 0), (1, 12, 4, 3), (1, 1, 1, 1))]
    shape = (1, 12, 4, 3)
    steps = [("RELU", (), shape, None), ("STRIDED_SLICE", bounds, shape, None), ("RELU6", (), shape, None), ("RELU", (), shape, None)]
    data = tiny.encode(column(tiny, *steps))
    for place in (0, 2, 3):
        made = in_bands(load(data), Region(place, place, 3))
        assert same_outputs(data, made.data, tmp_path) > 0


def test_most_random_nets_can_be_split(tiny):
    """The test above is not passed by refusing."""
    done = 0
    for seed in range(24):
        model = load(tiny.encode(image_net(tiny, seed)))
        source, n = model.splittable(), len(model.program)
        for first in range(n):
            try:
                lay_out(source, range(n), [Region(first, min(n - 1, first + 1), 2)])
            except Refused:
                continue
            done += 1
            break
    assert done >= 20


def test_a_split_model_is_ordered_planned_and_measured_like_any_other(tiny, tflm):
    model = load(tiny.encode(tiny.convolutions((8, 8, 4, 4))))
    found = peakmem.split(model, max_extra_macs="30%", objective="peak", time_limit=None)
    assert found.model is not None, found.reason
    check = found.verification
    assert check.failures == ()
    assert check.as_predicted and check.identical
    assert check.optimized_bytes < found.ordering.peak
    assert found.result.realized_optimal
    document = found.to_json()
    assert document["split"]["unsplit"]["optimal"]
    assert document["runtime"]["optimized_bytes"] == check.optimized_bytes
    assert document["split"]["extra_macs"] <= 0.3 * document["split"]["macs"]
    again = peakmem.split(model, max_extra_macs="30%", objective="peak", time_limit=None, measure=False)
    assert again.model.data == found.model.data


PERSON = {  # regions, head in bytes, more MACs in per cent
    "tflm_person_detect": ([Region(2, 3, 4)], 36864, 0.66),
    "mlperf_vww96_int8": ([Region(2, 3, 3)], 46080, 0.42),
    "tinyengine_mcunet_vww": ([Region(5, 8, 2)], 96000, 0.47),
}


@pytest.mark.parametrize("name", sorted(PERSON))
def test_known_splits_of_real_models(shared, tflm, name):
    paths = {path.stem: path for path in shared}
    if name not in paths:
        pytest.skip(f"{name}.tflite is not among the shared models")
    regions, head, share = PERSON[name]
    found = peakmem.split(load(paths[name].read_bytes()), regions=regions)
    assert found.verification.as_predicted and found.verification.identical
    assert found.verification.optimized_bytes == head < found.unsplit_bound
    assert found.unsplit_optimal and found.result.realized_optimal
    assert round(100 * found.split.extra_macs / found.macs, 2) == share


SEARCHED = {  # kernels, more MACs, head in bytes or less
    "tflm_person_detect": [("reference", "2%", 36864), ("reference", "15%", 24192), ("esp-nn-1.2.1", "0.1%", 36864)],
    "mlperf_vww96_int8": [("reference", "2%", 46080), ("esp-nn-1.2.1", "10%", 46464)],
    "mlperf_ic_resnet8_int8": [("reference", "23.3%", 32768), ("esp-nn-1.2.1", "16%", 54368)],
    "gen_unet_64": [("reference", "10%", 106496)],
}


@pytest.mark.parametrize(("name", "target", "share", "head"), [(name, *row) for name, rows in sorted(SEARCHED.items()) for row in rows])
def test_the_search_finds_what_is_known_to_be_reachable(shared, name, target, share, head):
    paths = {path.stem: path for path in shared}
    if name not in paths:
        pytest.skip(f"{name}.tflite is not among the shared models")
    model = load(paths[name].read_bytes(), target)
    found = peakmem.split(model, max_extra_macs=share, objective="peak", measure=False, time_limit=None)
    assert found.model.predicted_bytes <= head
    assert found.model.predicted_bytes < found.unsplit_bound


def test_constants_with_rows_are_cut_by_their_place_from_the_right(tflm, tmp_path):
    """Keras' PRELU has an alpha of height, width and channels, which has rows in rank 3."""
    path = FAULTS / "split_prelu_hwc.tflite"
    if not path.is_file():
        pytest.skip(f"{path.name} is not among the shared faults")
    model = load(path.read_bytes())
    made = in_bands(model, Region(0, 2, 3))
    assert same_outputs(model.data, made.data, tmp_path) > 0


def test_nothing_of_the_interface_changes(tiny):
    file = tiny.convolutions()
    file.metadata = {"min_runtime_version": b"1.5.0"}
    file.signatures = [("serving", {"image": 0}, {"scores": len(file.subgraphs[0].tensors) - 1})]
    data = with_plan(load(tiny.encode(file)).graph, [-1] * len(file.subgraphs[0].tensors))
    model = load(data)
    made = in_bands(model, Region(0, 2, 3))
    old, new = model.graph, made.graph
    assert [m.name for m in new.metadata] == ["min_runtime_version"]
    for side in ("inputs", "outputs"):
        mine, theirs = getattr(new.subgraphs[0], side), getattr(old.subgraphs[0], side)
        assert mine == theirs
        assert [new.subgraphs[0].tensors[t] for t in mine] == [old.subgraphs[0].tensors[t] for t in theirs]
    tables = [Flat(g.data, "").root().children(7, "")[0] for g in (old, new)]
    assert [[(m.text(0, ""), m.scalar(1, "I")) for m in t.children(slot, "")] for slot in (0, 1) for t in tables[:1]] == [
        [(m.text(0, ""), m.scalar(1, "I")) for m in t.children(slot, "")] for slot in (0, 1) for t in tables[1:]
    ]
    touched = {t for op in new.subgraphs[0].operators for t in (*op.inputs, *op.outputs)}
    left = [t for i, t in enumerate(new.subgraphs[0].tensors) if i not in touched and not t.constant]
    assert not left  # tensors that nobody touches would take room in the arena


def test_channels_take_their_own_scales_along(tiny, tflm, tmp_path):
    model = load(tiny.encode(tiny.convolutions()))
    made = in_bands(model, Region(0, 0, 4, "channels"))
    assert same_outputs(model.data, made.data, tmp_path) > 0
    weights = [made.graph.subgraphs[0].tensors[op.inputs[1]] for op in made.graph.subgraphs[0].operators if op.op == "CONV_2D"]
    assert [w.shape[0] for w in weights[:4]] == [6, 6, 6, 6]


def per_channel(op: str) -> bytes:
    """One operator of 8-bit integers with a scale for each channel, and a bias that names dimension 3 as the one of its scales."""
    net = Net(random.Random(3), "int8")
    x = net.tensor([1, 6, 6, 6] if op == "DEPTHWISE_CONV_2D" else [1, 24])
    if op == "DEPTHWISE_CONV_2D":
        w, bias = net.weights([1, 3, 3, 6], 3, x)
        main(net.model).Tensors[bias].Quantization.QuantizedDimension = 3
        y = net.tensor([1, 6, 6, 6])
        net.op(op, [x, w, bias], [y], "DepthwiseConv2DOptions", 3, StrideH=1, StrideW=1, DepthMultiplier=1, DilationHFactor=1, DilationWFactor=1)
    else:
        w, bias = net.weights([6, 24], 0, x)
        y = net.tensor([1, 6])
        net.op(op, [x, w, bias], [y], "FullyConnectedOptions", 4)
    main(net.model).Inputs, main(net.model).Outputs = np.array([x], np.int32), np.array([y], np.int32)
    return save(net.model)


def test_a_bias_is_cut_along_its_only_axis_whatever_number_that_has(tflm, tmp_path):
    """Converters give biases of depthwise convolutions the dimension of their weights, 3."""
    data = per_channel("DEPTHWISE_CONV_2D")
    for bands in (2, 6):
        made = in_bands(load(data), Region(0, 0, bands, "channels"))
        assert same_outputs(data, made.data, tmp_path) > 0
    # Scales of another channel are no part of the bias still.
    tree = load_tree(made.data)
    cut = [t for t in main(tree).Tensors if t.Type == 2 and t.Quantization is not None and len(t.Quantization.Scale) == 1]
    assert len(cut) == 6
    cut[0].Quantization.Scale, cut[1].Quantization.Scale = cut[1].Quantization.Scale, cut[0].Quantization.Scale
    with pytest.raises(InputError, match="scales"):
        check_split(data, save(tree))


def test_a_matrix_with_a_scale_for_each_channel_is_not_cut_into_single_ones(tflm, tmp_path):
    data = per_channel("FULLY_CONNECTED")
    made = in_bands(load(data), Region(0, 0, 3, "channels"))
    assert same_outputs(data, made.data, tmp_path) > 0
    for bands in (4, 6):
        with pytest.raises(Refused, match="no range of channels"):
            in_bands(load(data), Region(0, 0, bands, "channels"))


@pytest.mark.parametrize("seed", range(16))
def test_no_split_goes_below_the_floor(tiny, seed):
    """Of those that a search finds, and of random ones; bands and rows, overlays included."""
    rng = random.Random(seed)
    model = load(tiny.encode(image_net(tiny, seed, length=rng.randint(2, 7))))
    source, n = model.splittable(), len(model.program)
    least, peak = floor(source).size, order_program(model.program).peak
    assert model.program.entry_bytes <= least <= peak
    tries = [(p.order, p.regions) for p in Search(source, [tuple(range(n))], peak, 10**12).run(20).points]
    for _ in range(8):
        first = rng.randrange(n)
        tries.append((tuple(range(n)), (Region(first, min(n - 1, first + rng.randint(0, 5)), rng.randint(2, 9), rng.choice(("rows", "channels")), kept=rng.random() < 0.4),)))
    for order, regions in tries:
        try:
            made = model.apply_split(lay_out(source, order, regions))
        except Refused:
            continue
        assert order_program(made.program).peak >= least


def test_where_bands_may_lie_in_their_join_the_floor_is_that_of_the_inputs(tiny):
    """Joins in place hold nothing twice, so a split may need less than the floor of splits without them."""
    file = tiny.encode(column(tiny, ("RELU", [], (1, 12, 4, 3), {}), ("TANH", [], (1, 12, 4, 3), {})))
    apart = load(file)
    together = TfliteModel.from_bytes(file, settings=Settings(named=True, join_in_place=True))
    assert floor(apart.splittable()).size > floor(together.splittable()).size == apart.program.entry_bytes


def test_bands_that_lie_in_their_join_go_below_the_floor_without(shared, tflm):
    """The join of densenet's last block is what nothing else makes smaller."""
    paths = {path.stem: path for path in shared}
    if "gen_densenet_32" not in paths:
        pytest.skip("gen_densenet_32.tflite is not among the shared models")
    model = TfliteModel.from_bytes(paths["gen_densenet_32"].read_bytes(), settings=Settings(named=True, join_in_place=True))
    found = peakmem.split(model, max_extra_macs="10%", time_limit=None)
    assert found.verification.as_predicted and found.verification.identical
    assert found.verification.optimized_bytes == 114688 < floor(load(model.data).splittable()).size


AT_FLOOR = {  # what the floor says of models that gain nothing
    "gen_densenet_32": "131,072 bytes, in any order: the result of 18:CONCATENATION must be whole",
    "mlperf_kws_dscnn_int8": "16,000 bytes, in any order: the result of 8:CONV_2D must be whole",
    "tflm_micro_speech_int8": "5,968 bytes, in any order: the result of 1:DEPTHWISE_CONV_2D must be whole",
    "tflm_keyword_scrambled": "672 bytes, in any order: operator 1 (SVDF) has no known map of rows",
}


@pytest.mark.parametrize("name", sorted(AT_FLOOR))
def test_a_model_at_its_floor_says_so(shared, name):
    paths = {path.stem: path for path in shared}
    if name not in paths:
        pytest.skip(f"{name}.tflite is not among the shared models")
    found = peakmem.split(load(paths[name].read_bytes()), measure=False, time_limit=None)
    assert found.model is None and AT_FLOOR[name] in found.reason
    assert found.search is None  # nothing was searched for


CONV = [np.ones((3, 3, 1, 3)), np.ones(3)]


@pytest.mark.parametrize(("steps", "said"), [
    ([("MEAN", [np.array([1, 2], np.int32)], (1, 1, 1, 3), {"KeepDims": True})], "no known map"),
    ([("RESIZE_BILINEAR", [np.array([36, 4], np.int32)], (1, 36, 4, 3), {"HalfPixelCenters": True})], "no power of two"),
    ([("RESIZE_BILINEAR", [np.array([24, 4], np.int32)], (1, 24, 4, 3), {"AlignCorners": True})], "aligns corners"),
    ([("RESIZE_NEAREST_NEIGHBOR", [np.array([12 * 41, 4], np.int32)], (1, 12 * 41, 4, 3), {})], "steps are rounded"),
    ([("RESIZE_NEAREST_NEIGHBOR", [np.array([18, 4], np.int32)], (1, 18, 4, 3), {})], "no whole factor"),
    ([("MIRROR_PAD", [np.array([[0, 0], [1, 1], [0, 0], [0, 0]], np.int32)], (1, 14, 4, 3), {})], "no known map"),
    ([("SOFTMAX", [], (1, 12, 4, 3), {"Beta": 1.0})] * 2, ""),
])  # fmt: skip
def test_what_is_not_known_to_keep_every_bit_is_refused(tiny, steps, said):
    model = load(tiny.encode(column(tiny, *steps)))
    if not said:
        assert len(in_bands(model, Region(0, 1, 3)).program) > len(model.program)
        return
    with pytest.raises(Refused, match=said):
        in_bands(model, Region(0, 0, 2))


def test_sums_are_never_split(tiny):
    """Softmax over channels and whole convolutions in the middle of a region of channels."""
    model = load(tiny.encode(tiny.convolutions()))
    with pytest.raises(Refused, match="reads the whole"):
        in_bands(model, Region(0, 2, 2, "channels"))
    softmax = load(tiny.encode(column(tiny, ("SOFTMAX", [], (1, 12, 4, 3), {"Beta": 1.0}))))
    with pytest.raises(Refused, match="along its channels"):
        in_bands(softmax, Region(0, 0, 2, "channels"))


def test_padding_at_the_top_stays_that_of_the_original_on_esp_nn(shared):
    paths = {path.stem: path for path in shared}
    if "tflm_person_detect" not in paths:
        pytest.skip("tflm_person_detect.tflite is not among the shared models")
    model = load(paths["tflm_person_detect"].read_bytes(), "esp-nn-1.2.1")
    source = model.splittable()
    for v in range(8):
        rule = source.rule(v, "rows").map
        for start in range(4):
            for count in range(rule.reach, 12):
                band = rule.output(replace_rows(start, count))
                assert band is None or rule.geometry(count)[1] == rule.geometry(rule.extent)[1]


def replace_rows(start: int, count: int):
    from peakmem.frontends.splitting import exactly

    return exactly(start, start + count)


def test_a_file_that_is_no_split_of_the_original_is_never_made(tiny, monkeypatch):
    """The independent checker stands between what was planned and what is written."""
    model = load(tiny.encode(tiny.convolutions()))
    split = lay_out(model.splittable(), range(len(model.program)), [Region(0, 2, 3)])
    good = model.apply_split(split)
    assert check_split(model.data, good.data).bands
    cut = next(k for k, s in enumerate(split.steps) if s.kind == "cut")
    part = split.steps[cut].writes[0] - len(model.program.buffers)
    moved = replace(split.parts[part], start=split.parts[part].start + 1)
    wrong = replace(split, parts=(*split.parts[:part], moved, *split.parts[part + 1 :]))
    with pytest.raises(Refused, match="not recognised"):
        model.apply_split(wrong)
    monkeypatch.setattr(splitwrite, "check", lambda old, new: new)
    larger = replace(split, steps=split.steps[:-1])
    with pytest.raises((InputError, IndexError)):
        model.apply_split(larger)


def test_what_cannot_be_split_says_why(tiny):
    alone = load(tiny.encode(tiny.diamond()))
    found = peakmem.split(alone, measure=False)
    assert found.model is None
    assert found.reason
    document = found.to_json()
    assert document["split"]["reason"] == found.reason
    assert document["split"]["regions"] == []


def test_scratch_that_is_listed_by_operator_knows_nothing_of_bands(tiny):
    from peakmem_tflite.targets import ScratchFile

    text = '{"schema": "peakmem.scratch/1", "operators": []}'
    model = TfliteModel.from_bytes(tiny.encode(tiny.convolutions()), settings=Settings(scratch=ScratchFile.parse(text, "s.json")))
    with pytest.raises(Refused, match="operators of this file"):
        peakmem.split(model, measure=False)


def test_a_target_that_was_missed_is_what_the_reason_speaks_of(tiny):
    model = load(tiny.encode(tiny.convolutions((8, 8, 4, 4))))
    found = peakmem.split(model, max_extra_macs="30%", target_peak=1, time_limit=None, measure=False)
    assert found.model is None
    assert any(point.peak < found.ordering.peak for point in found.search.points)  # so "none needs less" would be false
    assert "to need 1 B or less" in found.reason


def test_a_target_that_an_order_alone_meets_costs_nothing(tiny, tflm):
    model = load(tiny.encode(tiny.diamond()))
    best = order_program(model.program).peak
    found = peakmem.split(model, target_peak=best)
    assert found.split.regions == () and found.split.extra_macs == 0 and found.search is None
    assert found.model.predicted_bytes + model.realized_offset <= best and found.verification.failures == ()
    assert "for no more MACs" in words.split(found) and "without a split, over all orders" in words.split(found)
    assert peakmem.verify(model, found.model).failures == ()


def test_regions_by_hand_are_not_said_to_have_a_limit(tiny):
    model = load(tiny.encode(tiny.convolutions((8, 8, 4, 4))))
    regions = [Region(0, 1, 2, kept=True)]
    found = peakmem.split(model, regions=regions, measure=False)
    found.split = lay_out(model.splittable(), range(len(model.program)), regions)  # it need not be smaller to be told
    document = found.to_json()["split"]
    assert document["max_extra_macs"] is None and [r["halo"] for r in document["regions"]] == ["kept"]


def test_operators_that_take_more_than_they_save_are_told(tiny):
    """The head is smaller, the arena need not be."""
    model = load(tiny.encode(tiny.convolutions((8, 8, 4, 4))))
    found = peakmem.split(model, max_extra_macs="30%", objective="peak", time_limit=None, measure=False)
    said = [note for note in found.notes if "--objective peak" in note]
    assert bool(said) is (found.added * 224 > model.predicted_bytes - found.model.predicted_bytes)
    assert said
    found.overhead = 0
    assert not any("--objective peak" in note for note in found.notes)
    counted = peakmem.split(model, max_extra_macs="30%", time_limit=None, measure=False)
    assert counted.model is None or counted.model.predicted_bytes + 224 * counted.added < model.predicted_bytes
    assert counted.model is not None or "--objective peak" in counted.reason


def test_candidates_are_priced_with_the_overlays_that_the_file_will_have(tiny):
    """Which statements have one, and what it saves, is what is read off the file that is written."""
    compared = 0
    for seed in range(40):
        model = load(tiny.encode(image_net(tiny, seed)))
        source, n = model.splittable(), len(model.program)
        for first, kept in product(range(n), (False, True)):
            try:
                split = lay_out(source, range(n), [Region(first, min(n - 1, first + 2), 2, kept=kept)])
                made = model.apply_split(split).program
            except Refused:
                continue
            priced = source.in_memory(split)
            assert [sorted(g for _, g in row) for row in priced.gains] == [sorted(g for _, g in row) for row in made.gains]
            compared += made.has_overlays
    assert compared > 20


def test_an_empty_share_is_no_default(tiny):
    with pytest.raises(UsageError, match="neither a whole number nor a percentage"):
        peakmem.split(load(tiny.encode(tiny.convolutions((8, 8, 4, 4)))), max_extra_macs="")


def test_after_ctrl_c_in_the_search_the_rest_is_short(tiny, monkeypatch):
    model = load(tiny.encode(tiny.convolutions((8, 8, 4, 4))))
    search, certify, limits = run.Search.run, run.certify, []

    def stopped(self):
        return replace(search(self), stopped=True)

    def noted(model, *, time_limit, effort=None, progress=None):
        limits.append(time_limit)
        return certify(model, time_limit=time_limit, effort=effort, progress=progress)

    monkeypatch.setattr(run.Search, "run", stopped)
    monkeypatch.setattr(run, "certify", noted)
    found = peakmem.split(model, max_extra_macs="30%", objective="peak", time_limit=1000.0, measure=False)
    assert found.model is not None and found.interrupted
    assert limits[0] == 250.0
    assert limits[1:] and set(limits[1:]) == {1.0}
