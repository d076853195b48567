"""The solver against exhaustive search on random programs: no disagreement is allowed.

``PEAKMEM_FUZZ`` multiplies the number of programs (default 1; 10 looks harder).
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oracles import bottleneck, brute_force, optimum, programs, random_program
from peakmem.model import Program
from truth import examine, examine_invariance, examine_series

SCALE = float(os.environ.get("PEAKMEM_FUZZ", "1"))


def times(count: int) -> int:
    return max(1, round(count * SCALE))


def test_the_two_oracles_agree() -> None:
    """All orders against shortest paths over states."""
    for _, program in programs(100, times(600), range(10)):
        assert brute_force(program) == bottleneck(program)


@pytest.mark.parametrize(
    ("seed", "count", "sizes", "kind"),
    [
        (101, 2000, range(10), {}),
        (102, 600, range(9), {"bodies": True}),
        (103, 400, range(10, 15), {}),
        (104, 30, range(15, 20), {}),
        (108, 400, range(6, 15), {"tangled": True}),
        (109, 80, range(15, 21), {"tangled": True}),
        (110, 300, range(1, 10), {"overlays": True, "bodies": True}),
        (111, 100, range(4, 15), {"overlays": True, "tangled": True}),
    ],
    ids=[
        "up-to-9", "with-bodies", "10-to-14", "15-to-19", "tangled-to-14", "tangled-to-20", "overlays-to-9",
        "tangled-overlays-to-14",
    ],
)
def test_random_programs(seed: int, count: int, sizes: range, kind: dict[str, bool]) -> None:
    counts: Counter[str] = Counter()
    for _, program in programs(seed, times(count), sizes, **kind):
        examine(program, counts)
    assert counts["certificates"] == counts["programs"] == times(count)
    assert counts["improved"]


def test_invariance() -> None:
    for i, program in programs(105, times(300), range(12)):
        examine_invariance(random.Random(i), program)


def test_programs_in_series() -> None:
    for i, program in programs(106, times(200), range(8)):
        examine_series(program, random_program(random.Random(i), i % 8))


@st.composite
def any_program(draw: st.DrawFn) -> Program:
    """A program by hypothesis: the generator is driven by its choices, so that it can shrink."""
    return random_program(draw(st.randoms(use_true_random=False)), draw(st.integers(0, 8)), bodies=draw(st.booleans()))


@settings(max_examples=times(150), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(any_program())
def test_programs_by_hypothesis(program: Program) -> None:
    examine(program)


def test_generator_makes_everything() -> None:
    """The random programs do hold what the truth suite claims to cover."""
    met: Counter[str] = Counter()
    for _, program in programs(107, 400, range(3, 10), bodies=True):
        for i, b in enumerate(program.buffers):
            touchers = len(program.touchers[i])
            met["pinned input"] += b.kind == "input" and b.pinned
            met["freeable input"] += b.kind == "input" and not b.pinned and touchers > 0
            met["untouched input"] += b.kind == "input" and not touchers
            met["constant"] += b.kind == "constant"
            met["zero size"] += b.size == 0
            met["many readers"] += touchers > 3
            met["several births"] += len(program.births[i]) > 1
            met["pinned output"] += b.kind == "output" and b.pinned
        for s in program.statements:
            met["several outputs"] += len(s.writes) > 1
            met["workspace"] += s.workspace > 0
            met["effects"] += bool(s.effects)
            met["in place"] += bool(set(s.reads) & set(s.writes))
            met["bodies"] += bool(s.bodies)
        met["improvable"] += optimum(program) < program_peak(program)
    assert not [what for what, count in met.items() if count < 10]


def program_peak(program: Program) -> int:
    from peakmem.model import peak_of

    return peak_of(program)
