"""The built-in frontend: both documents, hostile files, rewriting."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from peakmem.frontends.programfile import ProgramModel, frontend, permuted, program_bytes
from peakmem.model import Buffer, InputError, Program, RuntimeMissing, Schedule, Statement, UsageError, peak_of
from peakmem.ordering import Ordering

GRAPHS = Path(__file__).parents[4] / "shared" / "data" / "graphs"
needs_graphs = pytest.mark.skipif(not GRAPHS.is_dir(), reason="needs the shared data (graphs/), which is not here")


def load(path: Path) -> ProgramModel:
    return frontend.load(path, {})


def write(folder: Path, document: object) -> Path:
    path = folder / "it.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def random_program(rng: random.Random, bodies: bool = True) -> Program:
    n = rng.randint(2, 9)
    buffers = [Buffer("x", rng.randint(0, 9), "input", rng.random() < 0.5), Buffer("w", 5, "constant")]
    statements: list[Statement] = []
    for v in range(n):
        buffers.append(Buffer(f"b{v}", rng.randint(0, 99), "output" if v == n - 1 else "intermediate", v == n - 1))
        before = tuple(sorted(rng.sample(range(v), rng.randint(0, min(v, 2)))))
        statements.append(
            Statement(
                f"s{v}", rng.choice(["conv", "é"]), (0, 1, *(u + 2 for u in before)), (v + 2,), before,
                rng.randint(0, 20), rng.randint(0, 5), rng.random() < 0.8, ("rng",) if rng.random() < 0.1 else (),
                (random_program(rng, False),) if bodies and rng.random() < 0.2 else (),
            )
        )  # fmt: skip
    return Program(tuple(buffers), tuple(statements), "random")


def random_order(rng: random.Random, program: Program) -> tuple[int, ...]:
    done: list[int] = []
    while len(done) < len(program):
        ready = [v for v in range(len(program)) if v not in done and set(program.predecessors[v]) <= set(done)]
        done.append(rng.choice(ready))
    return tuple(done)


def ordering(program: Program, orders: dict[str, tuple[int, ...]]) -> Ordering:
    return Ordering(program, orders, 0, 0, 0)


def test_a_written_program_reads_back_as_itself(tmp_path: Path) -> None:
    rng = random.Random(1)
    for i in range(100):
        program = random_program(rng)
        path = tmp_path / f"{i}.json"
        path.write_bytes(program_bytes(program.to_json()))
        read = load(path).program
        assert read == program
        assert read.digest == program.digest
        assert json.loads(path.read_text()) == program.to_json()


def test_apply_lists_the_statements_in_the_scheduled_order(tmp_path: Path) -> None:
    rng = random.Random(2)
    seen_bodies = 0
    for i in range(200):
        program = random_program(rng)
        path = tmp_path / f"{i}.json"
        path.write_bytes(program_bytes(program.to_json()))
        model = load(path)
        orders = {where: random_order(rng, body) for where, body in program.bodies()}
        seen_bodies += len(orders)
        orders[""] = random_order(rng, program)
        made = model.apply(model.schedule(ordering(program, orders)))
        out = tmp_path / f"{i}.out.json"
        made.save(out)
        read = load(out)
        assert read.digest == made.digest
        names = [s.name for s in read.program.statements]
        assert names == [program.statements[v].name for v in orders[""]]
        from peakmem.model import scheduled_timeline

        assert peak_of(read.program) == scheduled_timeline(program, orders).peak == read.predicted_bytes
        # Nothing but the order changed: putting it back gives the program that it was.
        back = {"": tuple(names.index(s.name) for s in program.statements)}
        for where, body in read.program.bodies():
            v, k = where.split("/")
            original = program.statements[orders[""][int(v)]].bodies[int(k)]
            inner = [s.name for s in body.statements]
            back[where] = tuple(inner.index(s.name) for s in original.statements)
        assert permuted(read.program, back).digest == program.digest
    assert seen_bodies > 50


def test_an_order_that_breaks_a_dependence_is_refused(tmp_path: Path) -> None:
    program = Program((Buffer("b", 1),), (Statement("a", writes=(0,)), Statement("c", reads=(0,), dependences=(0,))))
    path = write(tmp_path, program.to_json())
    with pytest.raises(UsageError, match="'c' runs before 'a'"):
        load(path).apply(Schedule({"": (1, 0)}))


def test_a_bare_program_cannot_be_run(tmp_path: Path) -> None:
    model = load(write(tmp_path, random_program(random.Random(3)).to_json()))
    with pytest.raises(RuntimeMissing, match="a bare program has no runtime"):
        model.verify(model)


def test_quantity_is_kept_through_a_rewrite(tmp_path: Path) -> None:
    graph = {
        "statements": [
            {"id": 7, "deps": [], "relaxed_deps": [], "reads": [0, 1], "writes": [2], "transient": 3, "text": "f"},
        ],
        "buffers": [
            {"id": 0, "bytes": 10, "kind": "input", "really_freed": True, "name": "arg0"},
            {"id": 1, "bytes": 100, "kind": "input", "really_freed": False, "name": "arg1"},
            {"id": 2, "bytes": 20, "kind": "output", "name": "arg0"},
        ],
        "original_order": [7],
    }
    model = load(write(tmp_path, graph))
    assert model.quantity == "bytes_above_entry"
    assert model.realized_offset == 10
    assert peak_of(model.program) == 33
    assert model.predicted_bytes == 23
    assert [(b.name, b.kind, b.pinned) for b in model.program.buffers] == [
        ("arg0", "input", False), ("arg1", "constant", False), ("arg0#2", "output", True),
    ]  # fmt: skip
    assert model.extras(model, None) == {"entry_bytes": 10, "subtracted_bytes": 10}
    out = tmp_path / "out.json"
    model.apply(Schedule({"": (0,)})).save(out)
    again = load(out)
    assert (again.quantity, again.predicted_bytes) == ("bytes_above_entry", 23)


def test_original_order_is_the_given_order(tmp_path: Path) -> None:
    graph = {
        "statements": [{"id": i, "deps": [], "reads": [], "writes": [i]} for i in range(3)],
        "buffers": [{"id": i, "bytes": i, "kind": "intermediate"} for i in range(3)],
        "original_order": [2, 0, 1],
    }
    assert [s.name for s in load(write(tmp_path, graph)).program.statements] == ["s2", "s0", "s1"]


@needs_graphs
def test_every_shared_graph_has_its_known_peak() -> None:
    known = json.loads((GRAPHS / "KNOWN.json").read_text())
    plain = [p for p in sorted(GRAPHS.glob("*.json")) if p.name != "KNOWN.json"]
    assert {p.stem for p in plain} == set(known)
    for path in plain:
        model = load(path)
        assert model.quantity == "live_peak"
        assert model.predicted_bytes == peak_of(model.program) == known[path.stem]["original"], path.stem
        assert len(model.program) == known[path.stem]["statements"]


@needs_graphs
def test_every_recorded_graph_has_its_known_bytes_above_entry() -> None:
    recorded = sorted((GRAPHS / "inductor").glob("*.json"))
    assert recorded
    freed = 0
    for path in recorded:
        model = load(path)
        document = json.loads(path.read_text())
        assert model.quantity == "bytes_above_entry"
        assert peak_of(model.program) - model.realized_offset == document["original_peak_real"], path.stem
        entry = sum(
            b["bytes"]
            for b in document["buffers"]
            if b["kind"] == "input" and b["really_freed"] and any(
                b["id"] in s["reads"] or b["id"] in s["writes"] for s in document["statements"]
            )
        )
        assert model.realized_offset == entry
        freed += entry > 0
    assert freed


def minimal(**changes: Any) -> dict[str, Any]:
    return {"schema": "peakmem.program/1", "buffers": [], "statements": []} | changes


def nested(depth: int) -> dict[str, Any]:
    document = minimal()
    for _ in range(depth):
        document = minimal(statements=[{"id": "a", "bodies": [document]}])
    return document


HOSTILE = {
    "nan": ('{"schema":"peakmem.program/1","buffers":[{"id":"a","bytes":NaN}],"statements":[]}', "NaN"),
    "infinity": ('{"schema":"peakmem.program/1","buffers":[{"id":"a","bytes":-Infinity}],"statements":[]}', "Infinity"),
    "overflowing float": ('{"schema":"peakmem.program/1","buffers":[{"id":"a","bytes":1e999}],"statements":[]}', "inf"),
    "fraction": (minimal(buffers=[{"id": "a", "bytes": 1.5}]), "buffers[0]"),
    "true as a number": (minimal(buffers=[{"id": "a", "bytes": True}]), "buffers[0]"),
    "negative": (minimal(buffers=[{"id": "a", "bytes": -1}]), "buffers[0]"),
    "2^62": (minimal(buffers=[{"id": "a", "bytes": 2**62}]), "buffers[0]"),
    "thousand digits": (minimal(buffers=[{"id": "a", "bytes": 10**1000}]), "buffers[0]"),
    "ten thousand digits": ('{"schema":"peakmem.program/1","buffers":[' + "9" * 10000 + "]}", "digits"),
    "sum too large": (minimal(buffers=[{"id": c, "bytes": 2**61} for c in "abc"]), "sum"),
    "deep lists": ('{"statements":' + "[" * 200_000 + "]" * 200_000 + "}", "nested"),
    "deep objects": ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested"),
    "deep bodies": (nested(60), "nested more than 32 deep"),
    "fault in a body": (
        minimal(statements=[{"id": "a"}, {"id": "b", "bodies": [minimal(), minimal(buffers=[{"id": 1}])]}]),
        "it.json: body 1/1: buffers[0]: 'id' must be a text",
    ),
    "program name": (minimal(name=3), "it.json: top: 'name' must be a text"),
    "name twice": ('{"schema":"peakmem.program/1","buffers":[],"buffers":[],"statements":[]}', "'buffers' stands twice"),
    "buffer twice": (minimal(buffers=[{"id": "a", "bytes": 1}] * 2), "stands twice"),
    "statement twice": (minimal(statements=[{"id": "a"}] * 2), "stands twice"),
    "unknown buffer": (minimal(statements=[{"id": "a", "reads": ["z"]}]), "statements[0]"),
    "unknown statement": (minimal(statements=[{"id": "a", "dependences": ["z"]}]), "statements[0]"),
    "cycle": (
        minimal(statements=[{"id": "a", "dependences": ["b"]}, {"id": "b", "dependences": ["a"]}]), "a cycle has none",
    ),
    "itself": (minimal(statements=[{"id": "a", "dependences": ["a"]}]), "statements[0]"),
    "read before birth": (minimal(buffers=[{"id": "b", "bytes": 1}], statements=[{"id": "a", "reads": ["b"]}]), "'b'"),
    "half a surrogate": ('{"schema":"peakmem.program/1","name":"\\ud800"}', "surrogate"),
    "no schema": ({"buffers": []}, "schema"),
    "future schema": (minimal(schema="peakmem.program/2"), "peakmem.program/2"),
    "certificate": (minimal(schema="peakmem.certificate/1"), "is a peakmem.certificate/1 document"),
    "odd quantity": (minimal(quantity="bananas"), "quantity"),
    "list": ([1, 2], "object"),
    "cut": ('{"schema":"peakmem.program/1","buf', "line 1, column"),
    "empty": ("", "not JSON"),
    "graph: text as id": ({"statements": [{"id": "a"}], "buffers": []}, "statements[0]"),
    "graph: id twice": ({"statements": [{"id": 1}, {"id": 1}], "buffers": []}, "stands twice"),
    "graph: cycle": (
        {"statements": [{"id": 0, "deps": [1]}, {"id": 1, "deps": [0]}], "buffers": []}, "original_order",
    ),
    "graph: unknown id": ({"statements": [{"id": 0, "reads": [9]}], "buffers": []}, "'reads'"),
    "graph: huge": ({"statements": [], "buffers": [{"id": 0, "kind": "input", "bytes": 2**70}]}, "buffers[0]"),
    "graph: kind": ({"statements": [], "buffers": [{"id": 0, "kind": "x", "bytes": 1}]}, "'kind'"),
    "graph: order": ({"statements": [{"id": 0}], "buffers": [], "original_order": [0, 0]}, "original_order"),
    "graph: rows": ({"statements": 3, "buffers": []}, "'statements'"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_get_one_sentence(tmp_path: Path, name: str) -> None:
    document, says = HOSTILE[name]
    path = write(tmp_path, document)
    with pytest.raises(InputError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert says in message
    assert "\n" not in message
    assert len(message) < 500 + len(str(path))


@pytest.mark.parametrize("data", [b'{"schema": "\xff"}', b"\xff\xfe{\x00", b"\x00" * 100, b'{"a": "\xc3'])
def test_bytes_that_are_no_text(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "bytes.json"
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"not UTF-8|not JSON"):
        load(path)


def test_a_byte_order_mark_is_harmless(tmp_path: Path) -> None:
    path = tmp_path / "mark.json"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(minimal()).encode())
    assert frontend.sniff(path, path.read_bytes())
    assert len(load(path).program) == 0


def test_random_damage_is_never_a_crash(tmp_path: Path) -> None:
    rng = random.Random(4)
    good = program_bytes(random_program(rng).to_json())
    path = tmp_path / "damaged.json"
    refused = 0
    for _ in range(1500):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(data))
            match rng.randrange(3):
                case 0:
                    data[at] = rng.randrange(256)
                case 1:
                    del data[at : at + rng.randint(1, 30)]
                case 2:
                    data[at:at] = data[rng.randrange(len(data)) :][: rng.randint(1, 30)]
        path.write_bytes(bytes(data))
        try:
            load(path)
        except InputError as error:
            assert "\n" not in str(error)
            refused += 1
    assert refused > 1000


def test_a_hundred_thousand_statements(tmp_path: Path) -> None:
    n = 100_000
    document = minimal(
        buffers=[{"id": f"b{i}", "bytes": 1 + i % 7} for i in range(n)],
        statements=[
            {"id": f"s{i}", "reads": [f"b{i - 1}"] if i else [], "writes": [f"b{i}"],
             "dependences": [f"s{i - 1}"] if i else []}
            for i in range(n)
        ],
    )  # fmt: skip
    model = load(write(tmp_path, document))
    assert len(model.program) == n
    assert model.predicted_bytes == 13


def test_sniffing_goes_by_content(tmp_path: Path) -> None:
    assert frontend.sniff(Path("x"), b'  {"buffers": [')
    assert frontend.sniff(Path("x.json"), b'{"name": "a", ')
    assert not frontend.sniff(Path("x.json"), b"[1, 2]")
    assert not frontend.sniff(Path("x"), b"import torch")
    assert not frontend.sniff(Path("x.json"), b"")
