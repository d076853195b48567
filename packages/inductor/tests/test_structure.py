"""Is one dumped wrapper the other one permuted? Told from the texts, without torch; random ones in `test_random_texts`."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from peakmem_inductor.building import build_graph
from peakmem_inductor.emitting import emit
from peakmem_inductor.statictext import profile_from_text
from peakmem_inductor.structure import compare_graphs
from peakmem_inductor.wrapper import parse_wrapper
from random_orders import random_order
from texts import wrapper_of

BODY = """
buf0 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_read(arg0_1, buf0)
buf1 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_read(saved, buf1)
buf2 = empty_strided_cpu((4, 4), (4, 1), torch.float32)
k_two(buf0, buf1, buf2)
del buf0
del buf1
return (buf2, )
"""


def graph_of(text: str):
    wrapper = parse_wrapper(text)
    return build_graph(wrapper, profile_from_text(wrapper))


def test_permuted_texts_are_recognised() -> None:
    graph = graph_of(wrapper_of(BODY))
    rng = random.Random(1)
    moved = 0
    for _ in range(10):
        found = compare_graphs(graph, graph_of(emit(graph, random_order(graph.program, rng)).source))
        assert not found.difference
        moved += found.relation == "the same 4 statements, constants and attributes, 1 at other places"
    assert 0 < moved < 10


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.replace("k_two(buf0, buf1,", "k_two(buf1, buf0,"), "reads the operands of .* in another sequence"),
        (lambda t: t.replace("k_read(saved, buf1)", "k_read(arg0_1, buf1)"), "more often|another value|is missing"),
        (lambda t: t.replace("float* out_ptr0)\n{ }", "float* out_ptr0)\n{ *out_ptr0 = 1; }", 1), "kernels, or other text outside"),
        (lambda t: t.replace("arg0_1, saved = args", "saved, arg0_1 = args"), "their arguments differ"),
        (lambda t: t.replace("return (buf2, )", "return (buf2, buf2, )"), "return of the second"),
    ],
)
def test_another_program_is_told_apart(change: Callable[[str], str], says: str) -> None:
    text = wrapper_of(BODY)
    assert change(text) != text
    found = compare_graphs(graph_of(text), graph_of(change(text)))
    import re

    assert re.search(says, found.difference), found.difference
