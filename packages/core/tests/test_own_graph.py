"""`peakmem.order`: graphs of networkx, dicts of reads and writes, and what is refused."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import peakmem
import pytest
from oracles import bottleneck
from peakmem.model import Buffer, InputError
from peakmem.proof import check

PAGE = Path(__file__).parents[3] / "docs" / "howto" / "own_graph.md"
DIAMOND = [("load", "left"), ("load", "right"), ("left", "join"), ("right", "shrink"), ("shrink", "join")]
SIZES = {"load": 4, "left": 10, "right": 8, "shrink": 1, "join": 2}


def random_dag(rng: random.Random, n: int) -> nx.DiGraph:
    graph = nx.DiGraph()
    names = [(i, chr(97 + i)) for i in range(n)]
    rng.shuffle(names)
    graph.add_nodes_from(names)
    for i, v in enumerate(names):
        graph.add_edges_from((u, v) for u in names[:i] if rng.random() < 0.3)
    return graph


@pytest.mark.skipif(not PAGE.is_file(), reason="needs the documentation beside the packages")
def test_the_page_says_what_is_true(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    assert len(blocks[0].splitlines()) == 5
    for block in blocks:
        exec(block, {})
    out = capsys.readouterr().out
    assert out.startswith("('load', 'right', 'shrink', 'left', 'join') 15 True\n")
    assert len(out.splitlines()) > 2


class TestNetworkx:
    def test_names_come_back_and_the_order_is_legal_and_optimal(self) -> None:
        for seed in range(150):
            rng = random.Random(seed)
            graph = random_dag(rng, rng.randint(1, 9))
            sizes = {v: np.int64(rng.randint(0, 50)) for v in graph}
            found = peakmem.order(graph, sizes)
            assert sorted(found.order) == sorted(graph)
            position = {v: i for i, v in enumerate(found.order)}
            assert all(position[u] < position[v] for u, v in graph.edges)
            assert found.optimal
            assert found.peak == found.lower_bound == bottleneck(found.program) == peak(graph, sizes, found.order)
            assert found.certificate is not None
            assert check(found.program, found.certificate.to_json()).optimal
            assert found.explain()

    def test_sizes_from_an_attribute(self) -> None:
        graph = nx.DiGraph(DIAMOND)
        nx.set_node_attributes(graph, SIZES, "bytes")
        assert peakmem.order(graph, "bytes").peak == peakmem.order(graph, SIZES).peak == 15

    def test_an_effort_of_nothing_still_gives_a_bound_with_its_proof(self) -> None:
        found = peakmem.order(nx.DiGraph(DIAMOND), SIZES, effort=0, time_limit=None)
        assert found.certificate is not None
        assert found.lower_bound <= 15 <= found.peak

    def test_names_that_look_alike(self) -> None:
        graph = nx.DiGraph([(1, "1")])
        assert peakmem.order(graph, {1: 2, "1": 3}).order == (1, "1")

    def test_an_empty_graph(self) -> None:
        found = peakmem.order(nx.DiGraph(), {})
        assert (found.order, found.peak, found.optimal) == ((), 0, True)


def peak(graph: nx.DiGraph, sizes: dict[Any, Any], order: tuple[Any, ...]) -> int:
    """By the definition: a value lives from its statement to its last reader, one that nobody reads to the end."""
    most = 0
    for i, v in enumerate(order):
        done = order[: i + 1]
        live = [u for u in done if u == v or not graph.succ[u] or any(w not in order[:i] for w in graph.succ[u])]
        most = max(most, sum(int(sizes[u]) for u in live))
    return most


class TestDict:
    def test_a_reader_waits_for_the_writer_wherever_it_is_listed(self) -> None:
        found = peakmem.order({"use": (["x"], ["y"]), "make": ([], ["x"])}, {"x": 1, "y": 1})
        assert found.order == ("make", "use")

    def test_what_is_written_again_keeps_the_order_of_the_dict(self) -> None:
        rows = {"a": ([], ["x"]), "r": (["x"], ["u"]), "b": ([], ["x"]), "s": (["x"], ["w"]), "t": (["x"], ["z"])}
        program = peakmem.order(rows, dict.fromkeys("xuwz", 1)).program
        assert {s.name: {program.statements[u].name for u in s.dependences} for s in program.statements} == {
            "a": set(), "r": {"a"}, "b": {"a", "r"}, "s": {"b"}, "t": {"b"},
        }  # fmt: skip

    def test_an_input_updated_in_place_is_there_from_the_beginning(self) -> None:
        program = peakmem.order({"relu": (["x"], ["x"]), "sum": (["x"], ["y"])}, {"x": 8, "y": 1}).program
        assert [(b.name, b.kind, b.pinned) for b in program.buffers] == [("x", "input", False), ("y", "output", True)]
        assert program.statements[1].dependences == (0,)

    def test_outputs_and_pinned_inputs(self) -> None:
        rows = {"f": (["x"], ["h"]), "g": (["h"], ["y"])}
        sizes = {"x": 5, "h": 3, "y": 1}
        assert peakmem.order(rows, sizes).peak == 8
        assert peakmem.order(rows, sizes, pinned=["x"]).peak == 9
        assert peakmem.order({**rows, "k": (["y"], [])}, sizes, outputs=["h"]).program.buffers[1].pinned
        assert peakmem.order(rows, sizes, workspace={"g": 7}).peak == 11
        assert peakmem.order({**rows, "g": {"reads": ["h"], "writes": ["y"], "workspace": 7}}, sizes).peak == 11

    def test_one_rule_for_outputs_from_python_and_from_json(self) -> None:
        assert Buffer("y", 1, "output").pinned is True
        assert Buffer("y", 1, "output", False).pinned is False
        assert Buffer("x", 1, "input").pinned is False


@pytest.mark.parametrize(
    ("graph", "sizes", "sentence"),
    [
        ({"f": ([], ["x"])}, {"x": float("nan")}, "size of 'x' must be a whole number of bytes, not nan"),
        ({"f": ([], ["x"])}, {"x": 1.0}, "size of 'x' must be a whole number of bytes, not 1.0"),
        ({"f": ([], ["x"])}, {"x": np.float32(2)}, "size of 'x' must be a whole number of bytes"),
        ({"f": ([], ["x"])}, {"x": True}, "size of 'x' must be a whole number of bytes, not True"),
        ({"f": ([], ["x"])}, {"x": np.bool_(True)}, "size of 'x' must be a whole number of bytes"),
        ({"f": ([], ["x"])}, {"x": "8"}, "size of 'x' must be a whole number of bytes, not '8'"),
        ({"f": ([], ["x"])}, {"x": -1}, "size of 'x' must not be negative, and is -1"),
        ({"f": ([], ["x"])}, {}, "sizes: 'x' is missing"),
        ({"f": ([], ["image"])}, {"image": 1, "imgae": 2}, "sizes: 'imgae' is no name of the graph; did you mean 'image'?"),
        ({"f": ([], ["x"])}, [1], "sizes must be a dict from names to bytes, not [1]"),
        ({"f": ("x", ["y"])}, {}, "statement 'f': reads must be a list of names, not 'x'"),
        ({"f": ["x"]}, {}, "statement 'f': must be a pair of lists (reads, writes)"),
        ({"f": {"read": ["x"]}}, {}, "statement 'f': 'read' is unknown"),
        ({"f": ([["x"]], [])}, {}, "statement 'f': reads must be names that a dict could have"),
        ({"f": {"writes": ["x"], "workspace": 0.5}}, {"x": 1}, "workspace of 'f' must be a whole number of bytes, not 0.5"),
        ({"f": (["y"], ["x"]), "g": (["x"], ["y"])}, {"x": 1, "y": 1}, "wait for each other in a circle: 'f' -> 'g' -> 'f'"),
        ({"f": ([], ["x"])}, {"x": 2**62}, "more than the 2^62 - 1"),
        (nx.DiGraph([("a", "b"), ("b", "a")]), {"a": 1, "b": 1}, "wait for each other in a circle: 'a' -> 'b' -> 'a'"),
        (nx.DiGraph([("a", "a")]), {"a": 1}, "wait for each other in a circle: 'a' -> 'a'"),
        (nx.DiGraph([("a", "b")]), "bytes", "node 'a' has no attribute 'bytes'"),
        (nx.Graph([("a", "b")]), {"a": 1, "b": 1}, "the graph has no direction"),
        ([("a", "b")], {}, "order() takes a networkx.DiGraph or a dict of reads and writes, not [('a', 'b')]"),
    ],
)  # fmt: skip
def test_refused_with_a_sentence(graph: Any, sizes: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        peakmem.order(graph, sizes)


@pytest.mark.parametrize("word", ["outputs", "pinned", "workspace"])
def test_unknown_names_are_refused(word: str) -> None:
    with pytest.raises(InputError, match=f"{word}: 'q' is no name of the graph"):
        peakmem.order({"f": ([], ["x"])}, {"x": 1}, **{word: {"q": 1}})


def test_networkx_is_never_imported() -> None:
    code = "import sys, peakmem; peakmem.order({'f': ([], ['x'])}, {'x': 1}); print('networkx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize("word", ["workspace", "overlays"])
@pytest.mark.parametrize("given", ["x", 5, [("a", 1)]])
def test_what_is_no_dict_by_statement_is_refused(word: str, given: Any) -> None:
    with pytest.raises(InputError, match=f"{word} must be a dict by statement"):
        peakmem.order({"a": ((), ("x",))}, {"x": 1}, **{word: given})


def test_sets_give_the_same_program_on_any_hash_seed() -> None:
    """The bytes of the certificate, which name the program by its digest, from three processes."""
    source = (
        "import peakmem\n"
        "graph = {'a': ((), {'x', 'y', 'z'}), 'b': ({'x', 'y', 'z'}, ('o',))}\n"
        "found = peakmem.order(graph, dict(x=3, y=5, z=7, o=2), overlays={'b': ('o', {'x', 'y', 'z'})})\n"
        "print(found.certificate.to_bytes().decode())\n"
    )
    runs = {
        subprocess.run([sys.executable, "-c", source], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in "012"
    }
    assert len(runs) == 1 and runs.pop().strip()
