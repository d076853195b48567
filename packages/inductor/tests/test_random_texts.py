"""Random wrappers, every order and every set of copies, run element by element without torch: same numbers, and the
bytes that are modelled. What is hard in a wrapper is here on purpose: storages written in parts, taken over in place,
seen through views, numbers that depend on data, arguments that are changed, operators that nobody may pass."""

from __future__ import annotations

import os
import random
import re
from typing import Any

from fake_runtime import EFFECTS, profile_of, run
from peakmem.model import peak_of
from peakmem_inductor.building import build_graph
from peakmem_inductor.emitting import emit
from peakmem_inductor.simulation import simulate
from peakmem_inductor.structure import compare_graphs
from peakmem_inductor.wrapper import UnknownForm, parse_wrapper
from random_orders import random_expansion, random_order
from texts import wrapper_of

KERNELS = '''
k_scatter = async_compile.cpp_pybinding([], r"""
extern "C"  void  kernel(const float* in_ptr0,
                       float* out_ptr0)
{ }
""")

k_number = async_compile.cpp_pybinding([], r"""
extern "C"  void  kernel(const float* in_ptr0,
                       float* out_ptr0,
                       const int64_t ks0)
{ }
""")

async_compile.wait'''
SQUARE = "(4, 4), (4, 1)"


class Writer:
    """Writes a random wrapper. ``whole``: name -> names of its storage, for 4x4 names that may be read."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.rows: list[str] = []
        self.count = 0
        self.storage: dict[str, int] = {"arg0_1": 0, "arg1_1": 1, "gift": 2}
        self.big: list[str] = []
        self.numbers: list[str] = []
        self.storages = 3
        self.counted = "arg0_1"

    def new(self) -> str:
        self.count += 1
        return f"buf{self.count - 1}"

    def any(self, *, own: bool = False) -> str:
        names = [n for n in self.storage if not own or n.startswith("buf")]
        return self.rng.choice(names[-6:] if names and self.rng.random() < 0.6 else names or ["arg0_1"])

    def seen(self, name: str) -> str:
        """A name, perhaps through a view written in place, perhaps transposed."""
        return self.rng.choice([name, name, f"reinterpret_tensor({name}, (4, 4), (1, 4), 0)", f"reinterpret_tensor({name}, (2, 4), (4, 1), 4)"])

    def whole(self, name: str) -> str:
        return self.rng.choice([name, f"reinterpret_tensor({name}, (4, 4), (1, 4), 0)"])

    def allocate(self, shape: str = SQUARE) -> str:
        name = self.new()
        self.rows.append(f"{name} = empty_strided_cpu({shape}, torch.float32)")
        return name

    def bind(self, name: str, storage: int | None = None) -> None:
        if storage is None:
            storage = self.storages
            self.storages += 1
        self.storage[name] = storage

    # -- statements ------------------------------------------------------------------------------------------

    def read(self) -> None:
        source = self.seen(self.any())
        name = self.allocate()
        self.rows.append(f"k_read({source}, {self.whole(name)})")
        self.bind(name)

    def two(self) -> None:
        a, b = self.seen(self.any()), self.seen(self.any())
        if self.big and self.rng.random() < 0.3:
            b = f"reinterpret_tensor({self.rng.choice(self.big)}, (8, 4), (4, 1), 0)"
        name = self.allocate()
        self.rows.append(f"k_two({a}, {b}, {name})")
        self.bind(name)

    def two_results(self) -> None:
        """One kernel, two buffers."""
        a = self.any()
        x, y = self.allocate(), self.allocate()
        self.rows.append(f"k_both({a}, {x}, {y})")
        self.bind(x)
        self.bind(y)

    def parts(self) -> None:
        """A concatenation, its parts written through views with names and without, perhaps read in between."""
        source = [self.any(), self.any()]
        big = self.allocate("(8, 4), (4, 1)")
        part = self.new()
        first, second = f"reinterpret_tensor({big}, {SQUARE}, 0)", f"reinterpret_tensor({big}, {SQUARE}, 16)"
        self.rows.append(f"{part} = {first}  # alias")
        order = [f"k_read({source[0]}, {part})", f"k_two({source[0]}, {source[1]}, {second})"]
        if self.rng.random() < 0.5:
            order.reverse()
        self.rows.append(order[0])
        if self.rng.random() < 0.5:
            name = self.allocate()
            self.rows.append(f"k_read({part if 'alias' not in order[0] and part in order[0] else second}, {name})")
            self.bind(name)
        self.rows.append(order[1])
        if self.rng.random() < 0.5:
            self.rows.append(f"k_inplace({part}, {second})")
        self.bind(part)
        self.big.append(big)
        other = self.new()
        self.rows.append(f"{other} = {second}  # alias")
        self.bind(other, self.storage[part])

    def inplace(self) -> None:
        name, other = self.any(own=self.rng.random() < 0.8), self.any()
        if self.storage[name] != self.storage[other]:
            self.rows.append(f"k_inplace({self.seen(name)}, {self.seen(other)})")

    def scatter(self) -> None:
        name, other = self.any(own=True), self.any()
        if self.storage[name] != self.storage[other]:
            self.rows.append(f"k_scatter({other}, {self.seen(name)})")

    def reuse(self) -> None:
        name, other = self.any(own=self.rng.random() < 0.8), self.any()
        if name.startswith("arg") or self.storage[name] == self.storage[other] or len(self.storage) < 5:
            return
        if sum(s == self.storage[name] for s in self.storage.values()) > 1:
            return
        new = self.new()
        shape = self.rng.choice([name, f"reinterpret_tensor({name}, {SQUARE}, 0)"])
        self.rows.append(f"{new} = {shape}; del {name}  # reuse")
        self.rows.append(self.rng.choice([f"k_inplace({new}, {other})", f"k_read({other}, {new})", f"k_two({other}, {new}, {new})"]))
        self.bind(new, self.storage.pop(name))

    def topk(self) -> None:
        source, pair = self.any(), self.new()
        self.rows.append(f"{pair} = torch.ops.aten.topk.default({source}, 4)")
        for i in self.rng.choice([(0, 1), (0,), (1,)]):
            name = self.new()
            self.rows.append(f"{name} = {pair}[{i}]")
            self.bind(name)

    def alias(self) -> None:
        source, name = self.any(), self.new()
        self.rows.append(f"{name} = torch.ops.aten.alias.default({source})")
        self.bind(name, self.storage[source])

    def view(self) -> None:
        source, name = self.any(), self.new()
        self.rows.append(f"{name} = " + self.rng.choice([source, f"reinterpret_tensor({source}, (4, 4), (1, 4), 0)"]))
        self.bind(name, self.storage[source])

    def add(self) -> None:
        name, other = self.any(), self.any()
        if self.storage[name] != self.storage[other]:
            self.rows.append(f"torch.ops.aten.add_.default({name}, {other})")

    def rand(self) -> None:
        name = self.new()
        self.rows.append(f"{name} = torch.ops.aten.rand_like.default({self.any()})")
        self.bind(name)

    def change(self) -> None:
        self.rows.append(f"torch.ops.lab.change.default({self.any()})")

    def constant(self) -> None:
        name = self.allocate()
        self.rows.append(f"k_two(constant0, {self.any()}, {name})")
        self.bind(name)

    def measure(self) -> None:
        number = f"u{len(self.numbers)}"
        if self.rng.random() < 0.7:
            found = self.new()
            self.counted = self.any()
            self.rows += [f"{found} = torch.ops.aten.nonzero.default({self.counted})", f"{number} = {found}.size(0)"]
        else:
            self.rows.append(f"{number} = {self.any()}.item()")
        self.numbers.append(number)

    def number(self) -> None:
        if self.numbers:
            source, number = self.rng.choice([self.counted, self.any()]), self.rng.choice(self.numbers)
            if source not in self.storage:  # taken over meanwhile
                return
            inner = self.allocate(f"({number}, 4), (4, 1)")
            self.rows.append(f"k_number({source}, {inner}, {number})")
            name = self.allocate()
            self.rows.append(f"k_two({inner}, {source}, {name})")
            self.bind(name)

    def write(self) -> str:
        kinds = {
            self.read: 5, self.two: 5, self.two_results: 2, self.parts: 2, self.inplace: 3, self.scatter: 2, self.reuse: 4,
            self.topk: 2, self.alias: 1, self.view: 2, self.add: 1, self.rand: 1, self.change: 2, self.constant: 3,
            self.measure: 1, self.number: 3,
        }  # fmt: skip
        if self.rng.random() < 0.5:  # without anything that stands in the way
            for kind in (self.change, self.rand, self.measure):
                kinds[kind] = 0
        for _ in range(self.rng.choice([5, 9, 14, 20])):
            (kind,) = self.rng.choices(list(kinds), list(kinds.values()))
            kind()
        names = [n for n in self.storage if n.startswith("buf")] or ["arg0_1"]
        results = [names[-1], *self.rng.choices([*self.storage], k=self.rng.choice([0, 0, 1, 2]))]
        results += self.rng.choices(self.big, k=1) if self.big and self.rng.random() < 0.5 else []
        self.rows.append(f"return ({', '.join(map(self.whole, results))}, )")
        head = KERNELS.replace("async_compile.wait", "") + HEAD_BOTH + "async_compile.wait"
        return wrapper_of("\n".join(self.rows), inputs="arg0_1, arg1_1, gift").replace("async_compile.wait", head, 1)


HEAD_BOTH = '''
k_both = async_compile.cpp_pybinding([], r"""
extern "C"  void  kernel(const float* in_ptr0,
                       float* out_ptr0,
                       float* out_ptr1)
{ }
""")

'''


def try_one(seed: int, *, times: int = 3) -> dict[str, Any]:
    rng = random.Random(seed)
    source = Writer(rng).write()
    wrapper = parse_wrapper(source)
    donated = {"gift"} if rng.random() < 0.7 or wrapper.donated else set()
    want, profile = profile_of(wrapper, donated)
    assert simulate(wrapper, profile) == profile.measured_peak, source
    graph = build_graph(wrapper, profile, effects=EFFECTS.__getitem__)
    program = graph.program
    copied = 0
    for k in range(times):
        expansion = random_expansion(program, rng) if k else None
        enlarged = expansion.program if expansion is not None else program
        copied += len(enlarged) - len(program)
        for _ in range(times):
            order = random_order(enlarged, rng)
            emitted = emit(graph, order, expansion)
            text = parse_wrapper(emitted.source)
            got, peak = run(text, donated)
            assert got == want, emitted.source
            modelled = peak_of(enlarged, order) - program.entry_bytes
            assert modelled == simulate(text, emitted.profile) == peak, emitted.source
            again = build_graph(text, emitted.profile, effects=EFFECTS.__getitem__)
            assert not compare_graphs(graph, again).difference, emitted.source
    return {"statements": len(program), "copied": copied}


def changed(source: str, rng: random.Random) -> str:
    """The text with two of its calls in each other's place, or one name in a call replaced by another."""
    rows = source.splitlines()
    calls = [i for i, row in enumerate(rows) if re.match(r" +(k_\w+\(|buf\d+ = torch)", row)]
    if not calls:
        return source
    i = rng.choice(calls)
    if rng.random() < 0.5:
        j = rng.choice(calls)
        rows[i], rows[j] = rows[j], rows[i]
    else:
        names = sorted(set(re.findall(r"\b(?:buf\d+|arg\d_1|gift)\b", source)))
        old = rng.choice(re.findall(r"\b(?:buf\d+|arg\d_1|gift)\b", rows[i]) or ["gift"])
        rows[i] = re.sub(rf"\b{old}\b", rng.choice(names), rows[i])
    return "\n".join(rows) + "\n"


def test_wrappers_that_compute_something_else_are_told_apart() -> None:
    told = 0
    for seed in range(400):
        rng = random.Random(seed)
        source = Writer(rng).write()
        wrapper = parse_wrapper(source)
        try:
            want, profile = profile_of(wrapper, {"gift"})
            graph = build_graph(wrapper, profile, effects=EFFECTS.__getitem__)
            other = parse_wrapper(changed(source, rng))
            got, found = profile_of(other, {"gift"})
            again = build_graph(other, found, effects=EFFECTS.__getitem__)
        except Exception:  # what was changed cannot be run or understood
            continue
        if got != want:
            assert compare_graphs(graph, again).difference, other.source
            told += 1
    assert told > 40


def test_random_wrappers() -> None:
    """``PEAKMEM_FUZZ=20000`` tries more of them.

    Of ten faults put in by hand eight are caught among the first 150. The other two are let through on purpose
    elsewhere: to call a writer of arguments pure (the planner refuses it anyway), and to let a call that binds a number
    run twice (it binds the same one).
    """
    refused = copied = 0
    tries = int(os.environ.get("PEAKMEM_FUZZ", "100"))
    for seed in range(tries):
        try:
            copied += try_one(seed)["copied"]
        except UnknownForm:
            refused += 1
    assert copied > tries
    assert refused < tries / 10
