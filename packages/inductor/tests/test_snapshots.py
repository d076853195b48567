"""Memory snapshots of PyTorch: read safely, replayed, told. The recorded ones come from PyTorch's own allocator."""

from __future__ import annotations

import contextlib
import json
import lzma
import pickle
import random
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from peakmem.frontends import discover
from peakmem.model import InputError, PeakmemError, UsageError
from peakmem_inductor.cuda.conf import Settings
from peakmem_inductor.cuda.frontend import frontend
from peakmem_inductor.cuda.history import UNKNOWN, study, under
from peakmem_inductor.cuda.pickles import read_pickle
from peakmem_inductor.cuda.snapshots import at_the_beginning, read_snapshot

RECORDED = Path(__file__).parent / "cuda" / "recorded"
PEAKS = json.loads((RECORDED / "snapshots.json").read_text())
KINDS = sorted(PEAKS)


@pytest.fixture
def snapshot(tmp_path: Path) -> Callable[[str], Path]:
    def unpack(kind: str) -> Path:
        path = tmp_path / f"{kind}.pickle"
        data = lzma.decompress((RECORDED / f"snapshot-{'cut' if kind == 'bare' else kind}.pickle.xz").read_bytes())
        if kind == "bare":  # as it is where no history was recorded
            data = pickle.dumps(read_pickle(data, kind) | {"device_traces": [[]]})
        path.write_bytes(data)
        return path

    return unpack


# ------------------------------------------------------------------ plain data alone

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**200), 2**200) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner) | st.tuples(inner, inner) | st.lists(inner).map(tuple),
    max_leaves=30,
)


@settings(max_examples=60, deadline=None)
@given(PLAIN, st.sampled_from((2, 3, 4, 5)))
def test_plain_data_is_read_as_pickle_reads_it(value: Any, protocol: int) -> None:
    assert read_pickle(pickle.dumps(value, protocol), "f") == value
    shared = {"one": [value], "two": None}
    shared["two"] = shared["one"]
    read = read_pickle(pickle.dumps(shared, protocol), "f")
    assert read == shared and read["one"] is read["two"]


class Hostile:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return exec, ("raise SystemExit('this ran')",)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (pickle.dumps(Hostile()), "could run code"),
        (pickle.dumps(Hostile(), 2), "could run code"),
        (pickle.dumps({"segments": Hostile()}), "could run code"),
        (pickle.dumps(print), "could run code"),
        (pickle.dumps(Path("x")), "could run code"),
        (b"\x80\x02c__builtin__\neval\n.", "the instruction GLOBAL"),
        (b"\x80\x02P1\n.", "the instruction PERSID"),
        (b"\x80\x04\x82\x01.", "the instruction EXT1"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f", "the instruction BINBYTES8"),
        (b"\x80\x04" + b"(" * 1000, "nested more than 64 deep"),
        (b"\x80\x04\x8b\xff\xff\xff\x7f", "whole number of 2147483647 bytes"),
        (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f", "damaged"),
        (b"\x80\x04Nr\xff\xff\xff\xffh\x07.", "damaged"),
        (b"\x80\x04}" + b"N" + b"\x85" * 100_000 + b"Ns.", "damaged"),
        (b"\x80\x04]NNs.", "damaged"),
        (b"\x80\x04NN.", "damaged"),
        (b"\x80\x04.", "damaged"),
        (b"", "damaged"),
        (b"\x00\x01", "is no pickle"),
    ],
)
def test_hostile_pickles_are_refused_in_a_sentence(data: bytes, says: str) -> None:
    with pytest.raises(InputError, match=says) as error:
        read_pickle(data, "f")
    assert str(error.value).startswith("f: ") and "\n" not in str(error.value)


def test_damaged_snapshots_are_refused_or_read(snapshot: Callable[[str], Path]) -> None:
    path = snapshot("cut")
    whole = path.read_bytes()
    numbers = random.Random(5)
    refused = 0
    for _ in range(20):
        data = bytearray(whole)
        for _ in range(numbers.randrange(1, 4)):
            data[numbers.randrange(len(data))] = numbers.randrange(256)
        path.write_bytes(data[: numbers.choice((len(data), numbers.randrange(len(data))))])
        try:
            frontend.inspect(path, {"allocator_setting": ()})
        except PeakmemError as error:
            refused += 1
            assert len(str(error)) < 600 and "\n" not in str(error)
    assert refused > 4


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([], "the top is no dictionary"),
        ({"device_traces": []}, "segments is no list"),
        ({"segments": []}, "holds no memory of any device"),
        ({"segments": [{"device": 0, "address": -1, "blocks": []}]}, r"segments\[0\].address"),
        ({"segments": [{"address": 0, "total_size": 5, "blocks": []}]}, "is not the sum of its blocks"),
        ({"segments": [{"address": 0, "total_size": 5, "blocks": [{"size": 5, "state": "odd"}]}]}, "state is not known"),
        ({"segments": [], "device_traces": [[{"action": "alloc", "addr": 512, "size": 5}]]}, "allocates what is not there afterwards"),
        ({"segments": [], "device_traces": [[{"action": "segment_map", "addr": 512, "size": 5}]]}, "maps what is not there afterwards"),
        ({"segments": [], "device_traces": [[{"action": 3}]]}, "action is no text"),
        ({"segments": [], "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}}, "cannot be replayed"),
    ],
)
def test_what_is_no_snapshot_is_refused(value: Any, says: str, tmp_path: Path) -> None:
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(value))
    with pytest.raises(InputError, match=says):
        frontend.inspect(path, {"allocator_setting": ()})


# ------------------------------------------------------------------ as recorded


@pytest.mark.parametrize("kind", [*KINDS, "bare"])
def test_the_replay_reserves_what_was_recorded(kind: str, snapshot: Callable[[str], Path]) -> None:
    read = read_snapshot(snapshot(kind))
    (device,) = read.devices
    findings = study(device, read.settings, kind)
    assert findings.recorded.departs is None and not findings.by_address
    assert (findings.entries > 0) == (kind != "bare")
    last = findings.recorded.figures[-1]
    assert last.reserved == sum(segment.size for segment in device.segments)
    assert last.active == sum(block.size for segment in device.segments for block in segment.blocks if block.active)
    if kind not in ("bare", "cut"):  # peaks of the whole history, as memory_stats had them
        figures = findings.recorded.figures
        assert max(row.reserved for row in figures) == PEAKS[kind]["reserved"]
        assert max(row.allocated for row in figures) == PEAKS[kind]["allocated"]
        assert findings.live_peak == PEAKS[kind]["requested"]
    assert sum(share.bytes for share in findings.live) == findings.live_peak


@pytest.mark.parametrize("kind", KINDS)
def test_the_beginning_is_what_the_history_starts_from(kind: str, snapshot: Callable[[str], Path]) -> None:
    read = read_snapshot(snapshot(kind))
    state = at_the_beginning(read.devices[0], read.settings)
    assert bool(state) == (kind not in ("whole", "streams"))


def test_a_departure_is_noticed(snapshot: Callable[[str], Path]) -> None:
    """A recording under one setting is not taken for one under another."""
    read = read_snapshot(snapshot("whole"))
    assert study(read.devices[0], Settings.parse("large_segment_size_mb:12"), "f").recorded.departs is not None


def test_places_are_lines_of_the_program(snapshot: Callable[[str], Path]) -> None:
    read = read_snapshot(snapshot("whole"))
    live = study(read.devices[0], read.settings, "f").live
    assert live[0].place.startswith("programs.py:") and live[0].place.endswith(" forward")
    assert [share.bytes for share in live] == sorted((share.bytes for share in live), reverse=True)
    assert all(share.place == UNKNOWN or ".py:" in share.place for share in live)


def test_other_settings_reserve_other_bytes(snapshot: Callable[[str], Path]) -> None:
    read = read_snapshot(snapshot("late"))
    device = read.devices[0]
    texts = ("expandable_segments:True", "max_split_size_mb:20", "large_segment_size_mb:64")
    reserved = [under(device, read.settings, Settings.parse(text), "f").at_peak.reserved for text in texts]
    assert len(set(reserved)) == len(texts)
    assert all(amount >= study(device, read.settings, "f").live_peak for amount in reserved)
    same = under(read_snapshot(snapshot("whole")).devices[0], Settings(), Settings(), "f")
    assert same.at_peak.reserved == PEAKS["whole"]["reserved"]  # from the first request on: an empty cache is what it had


# ------------------------------------------------------------------ told


def test_only_inspect_reads_a_snapshot(snapshot: Callable[[str], Path]) -> None:
    path = snapshot("bare")
    assert frontend.sniff(path, path.read_bytes()[:4096])
    assert not frontend.sniff(path, pickle.dumps({"other": 1}))
    with pytest.raises(UsageError, match="peakmem inspect reads it"):
        frontend.load(path, {})


def test_inspection(snapshot: Callable[[str], Path]) -> None:
    told = frontend.inspect(snapshot("whole"), {"allocator_setting": ("expandable_segments:True",)})
    document = told.document["devices"][0]
    assert told.answer.startswith("device 0: reserved 112.0 MiB (117,440,512 B) at its peak, ")
    assert "the replay reserves what was recorded after every one of them" in told.lines[0]
    assert "expandable_segments:True would reserve" in told.lines[-1]
    assert document["reserved_peak"] == PEAKS["whole"]["reserved"]
    assert document["live_peak"] == PEAKS["whole"]["requested"]
    assert document["departs_at_entry"] is None
    (table,) = told.tables
    assert sum(int(row[1].replace(",", "")) for row in table[2]) == document["live_peak"]
    assert json.loads(json.dumps(told.document)) == told.document
    bare = frontend.inspect(snapshot("bare"), {"allocator_setting": ()})
    assert "has no history" in bare.notes[0]
    with pytest.raises(UsageError, match="is not known"):
        frontend.inspect(snapshot("bare"), {"allocator_setting": ("nonsense:1",)})


def test_on_the_command_line(snapshot: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    if find_spec("peakmem_cli") is None or "cuda-snapshot" not in discover():
        pytest.skip("the command peakmem or the frontend 'cuda-snapshot' is not installed (pip install peakmem-cli peakmem-inductor)")
    from peakmem_cli.main import main

    def call(*words: object) -> tuple[int, str, str]:
        code = 0
        with contextlib.suppress(SystemExit):
            code = main([*map(str, words)])
        out, err = capsys.readouterr()
        return code, out, err

    path = snapshot("late")
    code, out, err = call("inspect", path, "--allocator-setting", "max_split_size_mb:20")
    assert (code, err) == (0, "")
    assert "max_split_size_mb:20 would reserve" in out and "live at the peak of device 0" in out
    code, out, _ = call("inspect", path, "--json")
    assert code == 0 and json.loads(out)["schema"] == "peakmem.recording/1"
    assert json.loads(out)["cuda-snapshot"]["devices"][0]["reserved_peak"] == PEAKS["late"]["reserved"]
    path.write_bytes(pickle.dumps({"segments": Hostile()}))
    code, out, err = call("inspect", path)
    assert (code, out) == (2, "") and "could run code" in err and "Traceback" not in err
