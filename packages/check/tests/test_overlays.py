"""Overlays in the model: what is one, what it saves, and the cases that plausible shortcuts get wrong."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from itertools import count, product
from typing import Any

import pytest
from oracles import Model, bottleneck, brute_force, build, programs, random_order, relabelled
from peakmem_check.model import Buffer, InputError, Overlay, Program, Statement, peak_of, timeline

PAIR = ("@a=10 o=4 z=1", "A a > o | lay o on a", "B o > z | after A")


def laid(program: Program, order: Sequence[int]) -> int:
    """Peak of an order where storage is cells and each statement picks an input to write on; the best way to pick.

    An output takes over the cells of its dying input, as many as both have; all other buffers get cells of their own.
    """
    model = Model(program)
    picks = [[None, *(s.overlay.inputs if s.overlay else ())] for s in (program.statements[v] for v in order)]
    return min(_cells(model, order, pick) for pick in product(*picks))


def _cells(model: Model, order: Sequence[int], picks: Sequence[int | None]) -> int:
    fresh = count()
    state: set[int] = set()
    cells = {b: [next(fresh) for _ in range(model.size[b])] for b in model.resident(state)}
    peak = 0
    for v, a in zip(order, picks):
        after = state | {v}
        overlay = model.overlay[v]
        for b in sorted(model.touches[v] - cells.keys()):
            shared: list[int] = []
            if overlay is not None and a is not None and b == overlay.output and not model.touchers[a] - after:
                shared = cells[a][: model.size[b]]
            cells[b] = shared + [next(fresh) for _ in range(model.size[b] - len(shared))]
        peak = max(peak, len({c for row in cells.values() for c in row}) + model.workspace[v])
        state = after
        cells = {b: row for b, row in cells.items() if b in model.resident(state)}
        assert len({c for row in cells.values() for c in row}) == model.rest(state)
    return peak


def test_every_step_is_mem_of_its_state() -> None:
    saved = 0
    for i, program in programs(900, 400, range(1, 11), overlays=True):
        model = Model(program)
        order = random_order(random.Random(i), program)
        line = timeline(program, order)
        state: set[int] = set()
        for step, v in enumerate(order):
            assert line.bytes_at[step] == model.mem(state, v)
            assert {(a, o) for a, o, _ in line.overlays_at(step)} == set(model.overlaid(state, v))
            live = sum(program.buffers[b].size for b in line.live_at(step))
            assert line.bytes_at[step] + line.saved_at(step) == line.workspaces[v] + live
            saved += line.saved_at(step) > 0
            state.add(v)
        assert line.peak == model.peak(order) == peak_of(program, order)
    assert saved > 200


def test_the_peak_is_that_of_cells_over_all_choices() -> None:
    compared = 0
    for i, program in programs(901, 400, range(1, 7), overlays=True):
        order = random_order(random.Random(i), program)
        if sum(s.overlay is not None for s in program.statements) <= 5 and program.statements:
            assert peak_of(program, order) == laid(program, order)
            compared += program.has_overlays
    assert compared > 150


def test_the_two_exhaustive_searches_agree() -> None:
    for _, program in programs(902, 150, range(7), overlays=True):
        assert brute_force(program) == bottleneck(program)


class TestShortcuts:
    """Formulas that leave the input out instead of sharing bytes are wrong where the sizes differ."""

    def test_a_smaller_output_and_a_workspace(self) -> None:
        assert peak_of(build("@a=10 o=1", "A a > o | use 5 | lay o on a")) == 15

    def test_a_smaller_output_and_a_second_one(self) -> None:
        assert peak_of(build("@a=10 o=1 p=4", "A a > o p | lay o on a")) == 14

    def test_a_larger_output(self) -> None:
        assert peak_of(build("@a=3 o=10", "A a > o | lay o on a")) == 10

    def test_the_best_of_several_inputs_and_no_more(self) -> None:
        assert peak_of(build("@a=3 @b=5 o=10", "A a b > o | lay o on a b")) == 13

    def test_an_input_that_lives_on_cannot_be_used(self) -> None:
        program = build("@a=5 o=5 p=1", "A a > o | lay o on a", "B a > p")
        assert peak_of(program) == 10
        assert peak_of(program, (1, 0)) == 6

    def test_a_kept_output_may_lie_on_an_input(self) -> None:
        assert peak_of(build("@a=5 !o=5", "A a > o | lay o on a")) == 5

    def test_two_statements_compete_for_one_input(self) -> None:
        program = build("@a=4 o=4 p=4", "A a > o | lay o on a", "B a > p | lay p on a")
        assert timeline(program).bytes_at == (8, 4)

    def test_the_cost_is_no_submodular_one(self) -> None:
        """Two dying inputs save no more than one: 3, 2, 2, 2 at the states {}, {X}, {Y}, {X, Y}."""
        program = build("@a=1 @b=1 o=1", "X a >", "Y b >", "V a b > o | lay o on a b")
        model = Model(program)
        assert [model.mem(state, 2) for state in (set(), {0}, {1}, {0, 1})] == [3, 2, 2, 2]


class TestWhatIsOne:
    @pytest.mark.parametrize(
        ("overlay", "says"),
        [
            (Overlay(9, (0,)), "does not exist"),
            (Overlay(1, (9,)), "does not exist"),
            (Overlay(-1, (0,)), "does not exist"),
            (Overlay(1, ()), "names no input"),
            (Overlay(1, (0, 0)), "twice"),
            (Overlay(1, (1,)), "does not just read"),
            (Overlay(0, (0,)), "not born"),
            (Overlay(4, (0,)), "not born"),
            (Overlay(5, (0,)), "not born"),
            (Overlay(6, (0,)), "not born"),
            (Overlay(1, (2,)), "never freed"),
            (Overlay(1, (3,)), "never freed"),
            (Overlay(1, (4,)), "does not just read"),
            (Overlay(1, (5,)), "does not just read"),
        ],
    )
    def test_refused(self, overlay: Overlay, says: str) -> None:
        buffers = (
            Buffer("a", 1, "input"),
            Buffer("o", 1),
            Buffer("kept", 1, "input", True),
            Buffer("weights", 1, "constant"),
            Buffer("updated", 1),
            Buffer("elsewhere", 1),
            Buffer("shared", 1),
        )

        def program(overlay: Overlay | None) -> Program:
            return Program(
                buffers,
                (
                    Statement("first", writes=(4, 5)),
                    Statement("parts", writes=(6,)),
                    Statement("v", reads=(0, 2, 3, 4), writes=(1, 4, 6), dependences=(0,), overlay=overlay),
                ),
            )

        program(None), program(Overlay(1, (0,)))
        with pytest.raises(InputError, match=says) as caught:
            program(overlay)
        assert "'v'" in str(caught.value)

    def test_inputs_of_the_program_and_what_an_ancestor_made(self) -> None:
        program = build("@a=1 b=1 o=1", "A > b", "B >| after A", "C a b > o | after B | lay o on a b")
        assert program.statements[2].overlay == Overlay(2, (0, 1))


class TestJson:
    def test_round_trip(self) -> None:
        for i, program in programs(903, 100, range(1, 8), overlays=True):
            again = Program.from_json(json.loads(json.dumps(program.to_json())))
            assert again == program
            assert again.digest == program.digest
            assert relabelled(random.Random(i), program).has_overlays == program.has_overlays

    def test_the_digest_holds_overlays(self) -> None:
        texts = ("A a b > o", "A a b > o | lay o on a", "A a b > o | lay o on b", "A a b > o | lay o on a b",
                 "A a b > o | lay o on b a")  # fmt: skip
        assert len({build("@a=1 @b=1 o=1", text).digest for text in texts}) == len(texts)

    def test_the_canonical_text(self) -> None:
        row = build(*PAIR).to_json()["statements"]
        assert row[0]["overlay"] == {"output": "o", "inputs": ["a"]}
        assert "overlay" not in row[1]

    def test_other_names_are_ignored(self) -> None:
        document = build(*PAIR).to_json()
        document["statements"][0]["overlay"]["why"] = None
        assert Program.from_json(document) == build(*PAIR)

    @pytest.mark.parametrize(
        ("overlay", "says"),
        [
            (None, "object"),
            ([], "object"),
            ({}, "'output'"),
            ({"output": None, "inputs": ["a"]}, "'output'"),
            ({"output": "q", "inputs": ["a"]}, "'q'"),
            ({"output": "o"}, "names no input"),
            ({"output": "o", "inputs": []}, "names no input"),
            ({"output": "o", "inputs": None}, "'inputs'"),
            ({"output": "o", "inputs": "a"}, "'inputs'"),
            ({"output": "o", "inputs": [0]}, "0"),
            ({"output": "o", "inputs": ["q"]}, "'q'"),
            ({"output": "o", "inputs": ["a", "a"]}, "twice"),
            ({"output": "o", "inputs": ["z"]}, "'z'"),
            ({"output": "z", "inputs": ["a"]}, "'z'"),
        ],
    )
    def test_errors_name_the_place(self, overlay: Any, says: str) -> None:
        document = copy.deepcopy(build(*PAIR).to_json())
        document["statements"][0]["overlay"] = overlay
        with pytest.raises(InputError) as caught:
            Program.from_json(document, where="p.json")
        assert says in str(caught.value)
        assert str(caught.value).startswith("p.json")
        assert "\n" not in str(caught.value)


def test_bodies_may_have_overlays() -> None:
    body = build("@a=4 o=4", "A a > o | lay o on a")
    program = Program((), (Statement("if", bodies=(body,)),))
    assert program.has_overlays and program.workspaces == (4,)
    assert not Program((), (Statement("A"),)).has_overlays
