"""The checker in C99 against the page of the format and against the checker in Python."""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from checker_pairs import ALL_KINDS, STRICT, c_verdicts, compiled, order_program, python_verdict, study
from make_certificates import FOLDER

FORK: Any = {
    "schema": "peakmem.program/1",
    "buffers": [
        {"id": "in", "bytes": 4, "kind": "input"},
        {"id": "a", "bytes": 10},
        {"id": "b", "bytes": 8},
        {"id": "c", "bytes": 1},
        {"id": "d", "bytes": 7},
        {"id": "out", "bytes": 2, "kind": "output"},
    ],
    "statements": [
        {"id": "A", "reads": ["in"], "writes": ["a"]},
        {"id": "B", "reads": ["in"], "writes": ["b"]},
        {"id": "C", "reads": ["a"], "writes": ["c"], "dependences": ["A"]},
        {"id": "D", "reads": ["b"], "writes": ["d"], "dependences": ["B"]},
        {"id": "E", "reads": ["c", "d"], "writes": ["out"], "dependences": ["C", "D"]},
    ],
}
FLOW = [["s", "b0", 1], ["b0", 0, 1], [0, "b1", 1], ["b1", 2, 1], [2, "b3", 1], ["b3", "t", 1]]


LAID: Any = {  # B reads what A wrote and writes on top of it, unless C is still to read it
    "schema": "peakmem.program/1",
    "buffers": [{"id": "a", "bytes": 5}, {"id": "b", "bytes": 3}, {"id": "c", "bytes": 1, "kind": "output"}],
    "statements": [
        {"id": "A", "writes": ["a"]},
        {"id": "B", "reads": ["a"], "writes": ["b"], "dependences": ["A"], "overlay": {"output": "b", "inputs": ["a"]}},
        {"id": "C", "reads": ["a"], "writes": ["c"], "dependences": ["A"]},
    ],
}


def laid_proof(nodes: list[Any] | None = None, bound: int = 6, version: int = 2) -> Any:
    """A, C and B keep within 6 bytes; B cannot run below: 5 + 3 - 3 and c if C has run, else "g"."""
    flow = [["s", "g", 1], ["g", 2, 1], [2, "b2", 1], ["b2", "t", 1]]
    leaf = {"kind": "forward", "trap": [0, 2], "exits": [{"statement": 1, "flows": [flow]}]}
    document = proof_of(LAID, bound, nodes or [leaf], [0, 2, 1], 6)
    return {**document, "schema": f"peakmem.certificate/{version}"}


def canonical(program: Any) -> bytes:
    """The canonical text, as the page has it, of a program without effects, bodies and names."""
    buffers = [{"kind": "intermediate", "pinned": b.get("kind") == "output", **b} for b in program["buffers"]]
    filled = {
        "op": "",
        "reads": [],
        "writes": [],
        "dependences": [],
        "workspace": 0,
        "cost": 0,
        "pure": True,
        "effects": [],
    }
    document = {
        "schema": program["schema"],
        "buffers": buffers,
        "statements": [{**filled, **s} for s in program["statements"]],
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def proof_of(program: Any, bound: int, nodes: list[Any], order: list[int], peak: int) -> Any:
    return {
        "schema": "peakmem.certificate/1",
        "program": {"digest": "sha256:" + hashlib.sha256(canonical(program)).hexdigest()},
        "lower_bound": bound,
        "orders": {"": order},
        "peak": peak,
        "proofs": {"": {"lower_bound": bound, "root": len(nodes) - 1, "nodes": nodes}},
    }


def fork_proof() -> Any:
    """D in any order within 16 bytes: with a flow of one byte along in, a and c."""
    return proof_of(
        FORK,
        16,
        [{"kind": "forward", "trap": [0, 1, 2], "exits": [{"statement": 3, "flow": [list(arc) for arc in FLOW]}]}],
        [0, 2, 1, 3, 4],
        16,
    )


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = compiled(tmp_path_factory.mktemp("c"), *STRICT, "-DOFTEN=1")  # ancestors tabulated from the second search on
    if made is None:
        pytest.skip("no C compiler is found (cc, gcc or clang)")
    return made


@pytest.fixture
def verdict(checker: Path, tmp_path: Path) -> Callable[..., str]:
    """Verdict of the C checker on two documents, or on two texts."""

    def judge(program: Any, document: Any) -> str:
        files = (tmp_path / "p.json", tmp_path / "c.json")
        for file, content in zip(files, (program, document)):
            file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return c_verdicts(checker, [files])[0]

    return judge


@pytest.mark.parametrize("seed", [1, 2])
def test_random_programs_and_what_is_wrong_with_them(checker: Path, tmp_path: Path, seed: int) -> None:
    """``benchmarks/two_checkers.py`` runs more of them."""
    programs = 1500 if order_program is not None else 250  # the tiny prover is slow
    found = study(checker, tmp_path, seed, programs, 1500 if order_program is not None else 750)
    assert not found.disagreements, found.disagreements[0]
    assert found.kinds.keys() == ALL_KINDS
    assert min(found.counts[word] for word in ("accepted", "refused", "bad")) > 100, found.counts
    assert found.counts["overlays"] > programs // 20


def test_the_folder_of_certificates(checker: Path) -> None:
    index = json.loads((FOLDER / "index.json").read_text())
    for truth, expected in (("true", "accepted"), ("false", "refused")):
        pairs = [
            (FOLDER / "programs" / f"{row['program']}.json", FOLDER / truth / f"{name}.json")
            for name, row in index[truth].items()
        ]
        found = c_verdicts(checker, pairs)
        assert [v.split()[0] for v in found] == [expected] * len(pairs)
        assert found == [python_verdict(*pair) for pair in pairs]


class TestThePage:
    """What the page says, on the C checker alone: rules that two checkers could both have forgotten."""

    def test_the_example_of_the_theory(self, verdict: Callable[..., str]) -> None:
        assert verdict(FORK, fork_proof()) == "accepted 16 16"

    @pytest.mark.parametrize(
        "program",
        [
            {k: v for k, v in FORK.items() if k != "schema"},
            {**FORK, "quantity": "bytes"},
            {**FORK, "name": None},
            {**FORK, "statements": [{"id": "A", "effects": [1]}]},
            {**FORK, "statements": [{"id": "A", "bodies": [{**FORK, "quantity": 1}]}]},
            {
                **FORK,
                "buffers": [{"id": "a", "bytes": 2**61}, {"id": "b", "bytes": 2**61, "kind": "constant"}],
                "statements": [],
            },
            {**FORK, "statements": [{"id": "A", "reads": ["a"]}]},
        ],
    )
    def test_no_program(self, verdict: Callable[..., str], program: Any) -> None:
        assert verdict(program, fork_proof()) == "bad input"

    @pytest.mark.parametrize(
        ("ignored", "answer"),
        [
            (b"[" * 254 + b"]" * 254, "accepted"),  # in a member of the document, which is the first level
            (b"[" * 256 + b"]" * 256, "bad"),
            (b"1" * 4300, "accepted"),
            (b"-" + b"1" * 4300, "accepted"),
            (b"1" * 4301, "bad"),
            (b"1" * 4301 + b".5", "accepted"),
            (b"1e999999", "accepted"),
            (b"01", "bad"),
            (b"NaN", "bad"),
            (b'"\\ud83d\\ude00"', "accepted"),
            (b'"\\ud83d"', "bad"),
            (b'"\xed\xa0\x80"', "bad"),
            (b'"\xc0\x80"', "bad"),
            (b'"\x1f"', "bad"),
            (b'{"a": 1, "\\u0061": 2}', "bad"),
            (b"1 \x0c", "bad"),
        ],
    )
    def test_json(self, verdict: Callable[..., str], ignored: bytes, answer: str) -> None:
        document = json.dumps({**fork_proof(), "ignored": "HERE"}).encode().replace(b'"HERE"', ignored)
        assert verdict(FORK, document).split()[0] == answer
        assert verdict(FORK, b"\xef\xbb\xbf" + document).split()[0] == answer

    @pytest.mark.parametrize(
        "overlay",
        [
            None,
            [],
            {},
            {"output": "b"},
            {"output": "b", "inputs": []},
            {"output": "b", "inputs": ["a", "a"]},
            {"output": "b", "inputs": ["b"]},
            {"output": "b", "inputs": "a"},
            {"output": "b", "inputs": [0]},
            {"output": "b", "inputs": ["a", "c"]},
            {"output": "b", "inputs": ["x"]},
            {"output": "a", "inputs": ["a"]},
            {"output": "c", "inputs": ["a"]},
            {"output": 1, "inputs": ["a"]},
        ],
    )
    def test_no_overlay(self, verdict: Callable[..., str], overlay: Any) -> None:
        a, b, c = LAID["statements"]
        assert verdict({**LAID, "statements": [a, {**b, "overlay": overlay}, c]}, laid_proof()) == "bad input"

    @pytest.mark.parametrize(
        ("buffer", "statement"),
        [({"kind": "output"}, {}), ({"kind": "constant"}, {}), ({}, {"writes": ["a", "b"]}), ({}, {"dependences": []})],
    )
    def test_no_input_of_an_overlay(self, verdict: Callable[..., str], buffer: Any, statement: Any) -> None:
        a, b, c = LAID["statements"]
        first, *rest = LAID["buffers"]
        program = {**LAID, "buffers": [{**first, **buffer}, *rest], "statements": [a, {**b, **statement}, c]}
        assert verdict(program, laid_proof()) == "bad input"

    def test_overlays(self, verdict: Callable[..., str]) -> None:
        assert verdict(LAID, laid_proof()) == "accepted 6 6"
        assert verdict(LAID, laid_proof(version=1)) == verdict(LAID, laid_proof(version=3)) == "refused"
        other = {**laid_proof(), "orders": {"": [0, 1, 2]}}
        assert verdict(LAID, other) == "refused"
        assert verdict(LAID, {**other, "peak": 9}) == "refused"
        assert verdict(LAID, {**other, "peak": 8}) == "accepted 6 8"

    def test_what_is_given_beside_flows(self, verdict: Callable[..., str]) -> None:
        """The other name is refused whatever its value, also where version 1 never had it."""
        for name in ("flow", "flows"):
            for value in (None, []):
                document = laid_proof()
                document["proofs"][""]["nodes"][0]["exits"][0][name] = value
                assert verdict(LAID, document) == "refused"
                document = fork_proof()
                document["proofs"][""]["nodes"][0]["exits"][0][name] = value
                assert verdict(FORK, document) == "refused"
        leaf, jump = laid_proof()["proofs"][""]["nodes"][0], {"kind": "jump", "path": [], "flow": [], "flows": 1, "then": 0}
        assert verdict(LAID, laid_proof([leaf, jump])) == "accepted 6 6"

    def test_overlays_in_the_mirror_image(self, verdict: Callable[..., str]) -> None:
        """There 0 is C, 1 is B and 2 is A; b or a is born last, B takes over what C has not made before it."""
        flow = [["s", "b2", 1], ["b2", 0, 1], [0, "g", 1], ["g", "t", 1]]
        leaf = {"kind": "backward", "trap": [2], "entries": [{"statement": v, **shown} for v, shown in (
            (0, {"flow": []}), (1, {"flows": [flow]}))]}  # fmt: skip
        nodes = [leaf, {"kind": "reverse", "then": 0}]
        assert verdict(LAID, laid_proof(nodes)) == "refused"  # all others have run before the last: no node "g"
        leaf["entries"][1]["flows"] = [[]]
        assert verdict(LAID, laid_proof(nodes)) == "accepted 6 6"
        first = {"kind": "forward", "trap": [0], "exits": [{"statement": 1, "flows": [flow]}]}
        assert verdict(LAID, laid_proof([first, nodes[1]])) == "accepted 6 6"
        flow[0][2] = flow[1][2] = flow[2][2] = flow[3][2] = 2
        assert verdict(LAID, laid_proof([first, nodes[1]])) == "refused"
        expand = {"kind": "expand", "children": {"0": 0, "1": None}}
        entry = {"kind": "expand", "children": {"1": None}}
        assert verdict(LAID, laid_proof([entry, expand, {"kind": "reverse", "then": 1}])) == "accepted 6 6"
        assert verdict(LAID, laid_proof([entry, expand, {"kind": "reverse", "then": 1}], 7)) == "refused"

    @pytest.mark.parametrize(("padding", "answer"), [(51, "refused"), (52, "accepted 1 1")])
    def test_parts_that_are_the_same(self, verdict: Callable[..., str], tmp_path: Path, padding: int, answer: str) -> None:
        """Ten branches among the others are no matter to the part: 1,023 + 1,024 + 1 contexts, and 64 nodes allow 2,048."""
        statements: list[Any] = [{"id": str(v)} for v in range(20)]
        program = {
            **FORK,
            "buffers": [{"id": "kept", "bytes": 1, "kind": "input", "pinned": True}],
            "statements": [*statements, {"id": "reader", "reads": ["kept"]}],
        }
        nodes: list[Any] = [{"kind": "entry"}, {"kind": "components", "statements": [20], "flow": [], "then": 0}]
        nodes += [{"kind": "branch", "pair": [2 * k, 2 * k + 1], "first": k + 1, "second": k + 1} for k in range(10)]
        document = proof_of(program, 1, nodes, list(range(21)), 1)
        document["proofs"][""]["nodes"] += [None] * padding
        assert verdict(program, document) == "refused"
        document["schema"] = "peakmem.certificate/2"
        assert verdict(program, document) == answer
        assert python_verdict(tmp_path / "p.json", tmp_path / "c.json") == answer

    def test_sums_above_64_bits(self, verdict: Callable[..., str]) -> None:
        """Bodies nested 32 deep, each with a workspace of almost 2^62."""
        program: Any = {"schema": "peakmem.program/1", "buffers": [], "statements": []}
        for depth in range(33):
            statement = {"id": "s", "workspace": 2**62 - 1, "bodies": [program] if depth else []}
            program = {"schema": "peakmem.program/1", "buffers": [], "statements": [statement]}
        paths = ["/".join(["0/0"] * depth) for depth in range(33)]
        leaf = {"kind": "expand", "children": {"0": None}}
        proofs = {
            path: {"lower_bound": (33 - k) * (2**62 - 1), "root": 0, "nodes": [leaf]} for k, path in enumerate(paths)
        }

        def digested(value: Any, outermost: bool) -> Any:
            filled = {"buffers": [], "schema": value["schema"], **({} if outermost else {"name": ""})}
            statement = {"op": "", "reads": [], "writes": [], "dependences": [], "cost": 0, "pure": True, "effects": []}
            statement |= {k: v for k, v in value["statements"][0].items() if k != "bodies"}
            bodies = [digested(body, False) for body in value["statements"][0]["bodies"]]
            return {**filled, "statements": [statement | ({"bodies": bodies} if bodies else {})]}

        text = json.dumps(digested(program, True), sort_keys=True, separators=(",", ":")).encode()
        total = 33 * (2**62 - 1)
        document = {
            "schema": "peakmem.certificate/1",
            "program": {"digest": "sha256:" + hashlib.sha256(text).hexdigest()},
            "lower_bound": total,
            "orders": {path: [0] for path in paths},
            "peak": total,
            "proofs": proofs,
        }
        assert total >= 2**64
        assert verdict(program, document) == f"accepted {total} {total}"
        for wrong in (total + 1, total + 2**64, total + 2**128, 10**39):
            raised = {**document, "lower_bound": wrong, "proofs": {**proofs, "": {**proofs[""], "lower_bound": wrong}}}
            assert verdict(program, raised) == verdict(program, {**document, "peak": wrong}) == "refused"

    def test_amounts_of_any_size(self, verdict: Callable[..., str]) -> None:
        """No amount wraps round, neither alone nor in a sum."""
        for amount in (2**62, 2**63, 2**64, 2**64 + 1, 2**128 + 1, 10**4299):
            document = fork_proof()
            document["proofs"][""]["nodes"][0]["exits"][0]["flow"] = [
                [a, b, x if b in ("b0", "b1") else amount] for a, b, x in FLOW
            ]
            assert verdict(FORK, document) == "refused"
            document["proofs"][""]["nodes"][0]["exits"][0]["flow"] = [[a, b, amount] for a, b, _ in FLOW]
            assert verdict(FORK, document) == "refused"

    @pytest.mark.parametrize(("padding", "answer"), [(52, "refused"), (53, "accepted 0 0")])
    def test_sharing_has_a_limit(self, verdict: Callable[..., str], tmp_path: Path, padding: int, answer: str) -> None:
        """Ten branches in a row, each used twice: 2,047 contexts; 63 nodes allow 2,032, 64 allow 2,048."""
        program = {**FORK, "buffers": [], "statements": [{"id": str(v)} for v in range(20)]}
        nodes: list[Any] = [{"kind": "entry"}]
        nodes += [{"kind": "branch", "pair": [2 * k, 2 * k + 1], "first": k, "second": k} for k in range(10)]
        document = proof_of(program, 0, nodes, list(range(20)), 0)
        document["proofs"][""]["nodes"] += [None] * padding
        assert verdict(program, document) == answer
        assert python_verdict(tmp_path / "p.json", tmp_path / "c.json") == answer


class TestCommand:
    def run(self, checker: Path, folder: Path, document: Any, *options: str) -> subprocess.CompletedProcess[str]:
        (folder / "p.json").write_text(json.dumps(FORK))
        (folder / "c.json").write_text(json.dumps(document))
        return subprocess.run([str(checker), "p.json", "c.json", *options], cwd=folder, capture_output=True, text=True)

    def test_valid(self, checker: Path, tmp_path: Path) -> None:
        done = self.run(checker, tmp_path, fork_proof(), "--require-optimal", "--trace")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.splitlines() == [
            "proofs['']: node 0 (forward): 0 statements run, 0 precedences added",
            "valid: no order of this program has a live_peak below 16 B; its orders reach 16 B and are optimal",
        ]

    def test_not_optimal(self, checker: Path, tmp_path: Path) -> None:
        document = {**fork_proof(), "lower_bound": 0, "proofs": {}}
        done = self.run(checker, tmp_path, document)
        assert (done.returncode, done.stdout) == (
            0,
            "valid: no order of this program has a live_peak below 0 B; its orders reach 16 B\n",
        )
        assert self.run(checker, tmp_path, document, "--require-optimal").returncode == 3

    def test_refused(self, checker: Path, tmp_path: Path) -> None:
        document = fork_proof()
        document["proofs"][""]["nodes"][0]["exits"][0]["flow"].pop()
        done = self.run(checker, tmp_path, document)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("peakmem_check: certificate: proofs['']: node 0 (forward): ")

    def test_bad_input(self, checker: Path, tmp_path: Path) -> None:
        for command in (["missing", "c.json"], ["p.json"], ["p.json", "c.json", "--other"], ["p.json", "."]):
            self.run(checker, tmp_path, fork_proof())
            done = subprocess.run([str(checker), *command], cwd=tmp_path, capture_output=True, text=True)
            assert (done.returncode, done.stdout) == (2, "") and done.stderr

    def test_traces_are_in_order_of_verification(self, checker: Path, tmp_path: Path) -> None:
        nodes: list[Any] = [
            {"kind": "entry"},
            {"kind": "branch", "pair": [0, 1], "first": 0, "second": 0},
            {"kind": "reverse", "then": 1},
        ]
        done = self.run(checker, tmp_path, proof_of(FORK, 2, nodes, [0, 2, 1, 3, 4], 16), "--trace")
        assert done.returncode == 1  # in the mirror image, 0 is E, which follows D
        nodes[1]["pair"] = [1, 2]
        done = self.run(checker, tmp_path, proof_of(FORK, 2, nodes, [0, 2, 1, 3, 4], 16), "--trace")
        assert done.stdout.splitlines()[:4] == [
            "proofs['']: node 2 (reverse): 0 statements run, 0 precedences added",
            "proofs['']: node 1 (branch): 0 statements run, 0 precedences added, mirror image",
            "proofs['']: node 0 (entry): 0 statements run, 1 precedences added, mirror image",
            "proofs['']: node 0 (entry): 0 statements run, 1 precedences added, mirror image",
        ]


def test_files_are_judged_one_by_one(checker: Path, tmp_path: Path) -> None:
    """A bad line of a batch changes nothing for the next."""
    good, bad, false = (tmp_path / name for name in ("good.json", "bad.json", "false.json"))
    program = tmp_path / "p.json"
    program.write_text(json.dumps(FORK))
    good.write_text(json.dumps(fork_proof()))
    bad.write_text("{")
    false.write_text(json.dumps({**fork_proof(), "peak": 17}))
    wanted = {good: "accepted 16 16", bad: "bad input", false: "refused"}
    files = random.Random(1).choices(list(wanted), k=60)
    assert c_verdicts(checker, [(program, f) for f in files]) == [wanted[f] for f in files]
