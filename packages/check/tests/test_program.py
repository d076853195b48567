"""The program model: derived properties against the definitions, JSON, validation, digests."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from oracles import Model, build, programs, random_order, relabelled, render
from peakmem_check.model import LARGEST_TOTAL, Buffer, InputError, Program, Statement


def test_births_and_touchers_are_as_defined() -> None:
    several = 0
    for _, program in programs(200, 600, range(10)):
        model = Model(program)
        for b in range(len(program.buffers)):
            assert set(program.touchers[b]) == (model.touchers[b] if model.counted[b] else set())
            assert set(program.births[b]) == model.births(b)
            several += len(program.births[b]) > 1
        for v in range(len(program)):
            assert set(program.touched[v]) == model.touches[v]
            assert set(program.predecessors[v]) == model.before[v]
            assert set(program.successors[v]) == {w for w in range(model.n) if v in model.before[w]}
        assert program.entry_bytes == model.rest(set())
    assert several > 50


def test_births_where_a_reader_follows_a_writer_through_others() -> None:
    program = build("b=1 c=1", "A > b", "X > c | after A", "B > b | after X", "C > b")
    assert program.births[0] == (0, 3)


class TestJson:
    def test_round_trip(self) -> None:
        for _, program in programs(201, 200, range(8), bodies=True):
            again = Program.from_json(json.loads(json.dumps(program.to_json())))
            assert again == program
            assert again.digest == program.digest

    def test_what_may_be_left_out(self) -> None:
        program = Program.from_json(
            {
                "schema": "peakmem.program/1",
                "buffers": [{"id": "a", "bytes": 3}],
                "statements": [{"id": "A", "writes": ["a"]}],
            }
        )
        assert program.buffers[0] == Buffer("a", 3)
        assert program.statements[0] == Statement("A", writes=(0,))

    def test_outputs_are_pinned_unless_said_otherwise(self) -> None:
        document = {
            "schema": "peakmem.program/1",
            "buffers": [{"id": "a", "bytes": 3, "kind": "output"}],
            "statements": [],
        }
        assert Program.from_json(document).buffers[0].pinned

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (lambda d: d.update(schema="peakmem.program/2"), "'schema'"),
            (lambda d: d.update(buffers=None), "'buffers'"),
            (lambda d: d["buffers"].append({"id": "a", "bytes": 1}), "'a' stands twice"),
            (lambda d: d["buffers"][0].update(bytes=-1), "negative"),
            (lambda d: d["buffers"][0].update(bytes=1.0), "whole number"),
            (lambda d: d["buffers"][0].update(bytes=True), "whole number"),
            (lambda d: d["buffers"][0].update(bytes="1"), "whole number"),
            (lambda d: d["buffers"][0].update(bytes=10**30), "2^62"),
            (lambda d: d["buffers"][0].update(kind="weight"), "'kind'"),
            (lambda d: d["buffers"][0].update(pinned=1), "true or false"),
            (lambda d: d["statements"].append({"id": "A"}), "'A' stands twice"),
            (lambda d: d["statements"][0].update(writes=["z"]), "'z'"),
            (lambda d: d["statements"][1].update(dependences=["Z"]), "'Z'"),
            (lambda d: d["statements"][0].update(dependences=["B"]), "'B'"),
            (lambda d: d["statements"][0].update(dependences=["A"]), "'A'"),
            (lambda d: d["statements"][1].update(dependences=[]), "before anything"),
            (lambda d: d["statements"][1].update(workspace=-4), "negative"),
            (lambda d: d["statements"][1].update(bodies=[1]), "object"),
            (lambda d: d["statements"].append(None), "object"),
            (lambda d: d["statements"].append({}), "'id'"),
        ],
    )
    def test_errors_name_the_place(self, change: Any, says: str) -> None:
        document = build("a=1 b=2", "A > a", "B a > b | after A").to_json()
        Program.from_json(document)
        broken = copy.deepcopy(document)
        change(broken)
        with pytest.raises(InputError) as caught:
            Program.from_json(broken, where="p.json")
        assert says in str(caught.value)
        assert str(caught.value).startswith("p.json")
        assert "\n" not in str(caught.value)

    @pytest.mark.parametrize("document", [None, [], "x", 3, {}])
    def test_no_document(self, document: object) -> None:
        with pytest.raises(InputError):
            Program.from_json(document)

    def test_bodies_nested_too_deep(self) -> None:
        document: dict[str, Any] = {"schema": "peakmem.program/1", "buffers": [], "statements": []}
        for _ in range(40):
            document = {
                "schema": "peakmem.program/1",
                "buffers": [],
                "statements": [{"id": "if", "bodies": [document]}],
            }
        with pytest.raises(InputError, match="deep"):
            Program.from_json(document)


class TestValidation:
    @pytest.mark.parametrize(
        ("buffers", "statements"),
        [
            ((Buffer("a", 1), Buffer("a", 1)), ()),
            ((Buffer("a", -1),), ()),
            ((Buffer("a", LARGEST_TOTAL - 1), Buffer("b", 1)), ()),
            ((), (Statement("A", workspace=LARGEST_TOTAL),)),
            ((), (Statement("A"), Statement("A"))),
            ((), (Statement("A", workspace=-1),)),
            ((), (Statement("A", cost=-1),)),
            ((), (Statement("A", reads=(0,)),)),
            ((), (Statement("A", dependences=(0,)),)),
            ((), (Statement("A", dependences=(1,)), Statement("B"))),
            ((Buffer("a", 1),), (Statement("A", reads=(0,)),)),
        ],
    )
    def test_refused(self, buffers: tuple[Buffer, ...], statements: tuple[Statement, ...]) -> None:
        with pytest.raises(InputError):
            Program(buffers, statements)

    def test_largest_total(self) -> None:
        assert Program((Buffer("a", LARGEST_TOTAL - 1),), (Statement("A", writes=(0,)),)).entry_bytes == 0

    def test_an_input_may_be_read_at_once(self) -> None:
        assert Program((Buffer("a", 1, "input"),), (Statement("A", reads=(0,)),)).entry_bytes == 1

    def test_orders(self) -> None:
        for i, program in programs(202, 100, range(1, 9)):
            rng = random.Random(i)
            order = random_order(rng, program)
            program.validate_order(order)
            for wrong in (order[:-1], [*order, order[0]], [len(program), *order[1:]], [-1, *order[1:]]):
                with pytest.raises(InputError):
                    program.validate_order(wrong)
            for v, before in enumerate(program.predecessors):
                for u in before:
                    swapped = [v if x == u else u if x == v else x for x in order]
                    with pytest.raises(InputError):
                        program.validate_order(swapped)


class TestDigest:
    def test_it_is_that_of_the_document_in_its_one_form(self) -> None:
        for _, other in programs(7, 100, range(6), bodies=True, overlays=True):
            other = replace(other, name="é", buffers=tuple(replace(b, name=f'"{b.name}\u2028\x7f') for b in other.buffers))
            document = other.to_json()
            del document["name"]
            text = json.dumps(document, sort_keys=True, separators=(",", ":"))
            assert other.digest == f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"

    def test_everything_but_the_name_counts(self) -> None:
        program = build("a=1 b=2", "A > a | use 1", "B a > b | after A")
        assert replace(program, name="other").digest == program.digest
        statement = program.statements[1]
        others = [
            replace(program, buffers=(replace(program.buffers[0], size=2), program.buffers[1])),
            replace(program, buffers=(replace(program.buffers[0], pinned=True), program.buffers[1])),
            replace(program, buffers=(replace(program.buffers[0], name="z"), program.buffers[1])),
            *(
                replace(program, statements=(program.statements[0], replace(statement, **{key: value})))
                for key, value in {
                    "name": "C",
                    "op": "x",
                    "writes": (0, 1),
                    "workspace": 9,
                    "cost": 1,
                    "pure": False,
                    "effects": ("io",),
                    "bodies": (program,),
                }.items()
            ),
        ]
        assert len({program.digest, *(other.digest for other in others)}) == len(others) + 1

    def test_stable_across_processes_and_versions(self) -> None:
        """Certificates are bound to digests, so a digest may never change."""
        known = "sha256:ec15ef28e17e0e60464c62f422285b485379e4520d6be1e73e8f119353c59311"
        code = (
            "from peakmem_check.model import *;"
            "p = Program((Buffer('a', 1), Buffer('b', 2)), (Statement('A', writes=(0,), workspace=1),"
            " Statement('B', reads=(0,), writes=(1,), dependences=(0,))));"
            "print(p.digest)"
        )
        for seed in ("0", "1"):
            run = subprocess.run(
                [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
            )
            assert run.stdout.strip() == known

    def test_relabelled_programs_are_other_programs(self) -> None:
        for i, program in programs(203, 20, range(2, 8)):
            assert relabelled(random.Random(i), program).digest != program.digest


def test_bodies_are_listed_innermost_first() -> None:
    leaf = build("a=1", "A > a")
    middle = Program((), (Statement("if", bodies=(leaf, leaf)),))
    top = Program((), (Statement("first"), Statement("while", bodies=(middle,))))
    assert [path for path, _ in top.bodies()] == ["1/0/0/0", "1/0/0/1", "1/0"]
    assert top.workspaces == (0, 1)


def test_text_of_programs_for_tests() -> None:
    for _, program in programs(204, 50, range(6)):
        if any(b.kind == "constant" for b in program.buffers):
            continue  # the text has no word for constants
        text = render(program).splitlines()
        again = build(text[0] if text else "", *text[1:])
        assert len(again) == len(program)
        assert [s.dependences for s in again.statements] == [s.dependences for s in program.statements]
