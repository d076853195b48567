"""``peakmem arena``: tables in, offsets out."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import pytest
from peakmem.arena import Item, check_placement, read_table, write_table

TABLE = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "plan.csv"
    path.write_text(TABLE)
    return path


def offsets(path: Path, column: str = "offset") -> list[int]:
    with open(path, newline="") as file:
        return [int(row[column]) for row in csv.DictReader(file)]


ITEMS = [Item("b1", 4, 0, 2), Item("b2", 4, 3, 8), Item("b3", 4, 0, 8), Item("b4", 4, 9, 20), Item("b5", 4, 0, 20)]


def test_offsets_are_written(peakmem, table, tmp_path):
    out = tmp_path / "out.csv"
    done = peakmem("arena", table, "-o", out)
    assert done.code == 0
    assert done.out.splitlines()[0] == "arena 12 B, exact: no placement is smaller"
    assert check_placement(ITEMS, offsets(out)) == 12
    again = tmp_path / "again.csv"
    assert peakmem("arena", out, "-o", again, "-q").code == 0
    assert again.read_bytes() == out.read_bytes()  # an offset that is there is replaced
    assert table.read_text() == TABLE
    document = peakmem("arena", table, "--json").document
    assert document["schema"] == "peakmem.arena/1"
    assert (document["arena"], document["lower_bound"], document["exact"], document["live_peak"]) == (12, 12, True, 12)
    assert list(document["offsets"].values()) == offsets(out)


def test_capacity_is_a_gate(peakmem, table):
    assert peakmem("arena", table, "--capacity", 12).code == 0
    done = peakmem("arena", table, "--capacity", 11)
    assert done.code == 1
    assert "over capacity: arena 12 B is more than 11 B, and no placement fits" in done.err
    assert done.out.startswith("arena 12 B")
    assert peakmem("arena", table, "--capacity", 11, "--json").document["capacity"] == {"bytes": 11, "met": False}


def test_alignment_rounds_up(peakmem, table, tmp_path):
    out = tmp_path / "out.csv"
    assert peakmem("arena", table, "--alignment", 16, "-o", out).out.startswith("arena 48 B, exact")
    assert {offset % 16 for offset in offsets(out)} == {0}


def test_effort_ends_the_search(peakmem, tmp_path):
    """Items cut out of a rectangle of 100,000 bytes, which the greedy rules do not put together again."""
    rng, pieces = random.Random(1), [(0, 12, 0, 100_000)]
    while len(pieces) < 100:
        begin, end, low, high = pieces.pop(rng.randrange(len(pieces)))
        if end - begin > 1 and rng.random() < 0.5:
            cut = rng.randrange(begin + 1, end)
            pieces += [(begin, cut, low, high), (cut, end, low, high)]
        elif high - low > 1:
            cut = rng.randrange(low + 1, high)
            pieces += [(begin, end, low, cut), (begin, end, cut, high)]
        else:
            pieces.append((begin, end, low, high))
    rng.shuffle(pieces)
    path = tmp_path / "plan.csv"
    path.write_text("id,lower,upper,size\n" + "".join(f"{k},{a},{b},{d - c}\n" for k, (a, b, c, d) in enumerate(pieces)))
    none, some = (peakmem("arena", path, "--json", "--effort", effort, "--time-limit", "inf").document for effort in (0, 0.1))
    assert none["arena"] > some["arena"] == 100_000
    done = peakmem("arena", path, "--effort", "nan")
    assert done.code == 2 and "Invalid value for '--effort'" in done.err
    done = peakmem("arena", "a.tflite", "b.tflite", "--effort", 1)
    assert done.code == 2 and "--effort: is for a table" in done.err


def test_several_memories(peakmem, tmp_path):
    path, out = tmp_path / "plan.csv", tmp_path / "out.csv"
    path.write_text("id,lower,upper,size,heat\ncold,0,4,8,0.5\nwarm,0,4,8,2\nlate,4,6,8,1\nhot,1,2,8,1e3\n")
    assert peakmem("arena", path, "--capacity", 16, "--capacity", 8, "-o", out).code == 0
    assert offsets(out, "memory") == [1, 0, 0, 0]
    done = peakmem("arena", path, "--capacity", 16, "--capacity", 7)
    assert done.code == 1
    assert "'cold'" in done.err
    path.write_text("id,lower,upper,size,heat\ncold,0,4,8,hot\n")
    done = peakmem("arena", path, "--capacity", 16, "--capacity", 8)
    assert done.code == 2
    assert "heat 'hot'" in done.err


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "does not name the column 'id'"),
        ("id,lower,size\n", "does not name the column 'upper'"),
        ("id,id,lower,upper,size\n", "names a column twice"),
        ("id,lower,upper,size\na,0,1\n", "line 2: has 3 cells for 4 columns"),
        ("id,lower,upper,size\na,0,1,4\n\na,0,1,4\n", "line 4: the id 'a' was there before"),
        ("id,lower,upper,size\na,1,1,4\n", "line 2: upper 1 is not greater than lower 1"),
        ("id,lower,upper,size\na,0,1,-4\n", "line 2: the size -4 is negative"),
        ("id,lower,upper,size\na,0,1,4.0\n", "line 2: size '4.0' is not a whole number"),
        ("id,lower,upper,size\na,0,1,nan\n", "not a whole number"),
        ("id,lower,upper,size\na,0,1,--4\n", "not a whole number"),
        ("id,lower,upper,size\na,0,1,²\n", "not a whole number"),
        (f"id,lower,upper,size\na,0,1,{10**18}\n", "not a whole number"),
        (f"id,lower,upper,size\na,0,1,{'9' * 5000}\n", "not a whole number"),
        ('id,lower,upper,size\n"a,0,1,4\n', "line 2"),
        (f"id,lower,upper,size\n{'a' * 200_000},0,1,4\n", "field larger"),
        (b"id,lower,upper,size\n\xff,0,1,4\n", "not text in UTF-8"),
    ],
)
def test_what_is_no_table(peakmem, tmp_path, text, what):
    path, out = tmp_path / "plan.csv", tmp_path / "out.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    done = peakmem("arena", path, "-o", out)
    assert done.code == 2
    assert what in done.err and str(path) in done.err
    assert len(done.err.splitlines()) == 1
    assert not done.out and not out.exists()


def test_what_cannot_be_written(peakmem, table, tmp_path):
    assert "is the input file" in peakmem("arena", table, "-o", table, "--force").err
    out = tmp_path / "there.csv"
    out.write_text("mine")
    assert peakmem("arena", table, "-o", out).code == 2
    assert out.read_text() == "mine"
    assert peakmem("arena", tmp_path / "nowhere.csv").code == 2


def test_other_columns_are_kept():
    data = b'\xef\xbb\xbfid,what,size,lower,upper\r\na,"x, ""y""",4,0,1\r\n'
    table = read_table(data, "t")
    assert table.items == (Item("a", 4, 0, 0),)
    assert write_table(table, {"offset": [0]}) == b'id,what,size,lower,upper,offset\na,"x, ""y""",4,0,1,0\n'


def test_an_empty_table_needs_nothing(peakmem, tmp_path):
    path = tmp_path / "plan.csv"
    path.write_text("id,lower,upper,size\n")
    assert peakmem("arena", path).out.startswith("arena 0 B, exact")


def test_ctrl_c_keeps_the_best_so_far(peakmem, tmp_path, monkeypatch):
    from peakmem.arena.lowering import Lowering

    def interrupted(self: Lowering, nodes: int) -> None:
        raise KeyboardInterrupt

    spans = [(0, 1, 4), (0, 3, 1), (1, 2, 3), (1, 4, 1), (2, 5, 2), (2, 3, 1), (3, 4, 2), (4, 5, 3)]
    path, out = tmp_path / "plan.csv", tmp_path / "out.csv"
    path.write_text("id,lower,upper,size\n" + "".join(f"{k},{a},{b},{size}\n" for k, (a, b, size) in enumerate(spans)))
    assert peakmem("arena", path).out.startswith("arena 6 B, exact")  # of live peak 5
    monkeypatch.setattr(Lowering, "run", interrupted)
    done = peakmem("arena", path, "-o", out)
    assert done.code == 0
    assert "best found; no placement is smaller than 5 B" in done.out and "this is the best so far" in done.out
    assert check_placement([Item(str(k), size, a, b - 1) for k, (a, b, size) in enumerate(spans)], offsets(out)) >= 6


@pytest.mark.parametrize("arguments", [
    ("--capacity", "nan"),
    ("--capacity", "1e9"),
    ("--alignment", "0"),
    ("--time-limit", "nan"),
    ("--capcity", "3"),
])  # fmt: skip
def test_what_is_wrong_with_an_option_is_said_of_the_option(peakmem, table, arguments):
    done = peakmem("arena", table, *arguments)
    assert done.code == 2
    assert arguments[0] in done.err
    assert "frontend" not in done.err


def test_options_of_the_other_kind_are_not_passed_over(peakmem, table, tmp_path):
    out = tmp_path / "out"
    done = peakmem("arena", table, "--snippet-out", out)
    assert (done.code, done.out) == (2, "")
    assert "--snippet-out: is for models" in done.err
    assert "--frontend: is for models" in peakmem("arena", table, "--frontend", "program").err
    models = [tmp_path / "a", tmp_path / "b"]
    for model in models:
        model.write_bytes(b"")
    for name, value in (("--output", out), ("--capacity", 5), ("--alignment", 4)):
        done = peakmem("arena", *models, name, value)
        assert (done.code, done.out) == (2, "")
        assert f"{name}: is for a table" in done.err
    assert not out.exists()
