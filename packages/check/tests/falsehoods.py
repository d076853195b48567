"""Plausible but false variants of the theory, beside the true ones, computed naively.

Each function says whether the false variant fails on a program; ``test_falsehoods.py`` keeps the smallest programs
that a random search found, and checks that the true variant holds on many.
"""

from __future__ import annotations

import heapq
import random
from dataclasses import replace

from oracles import Model, bottleneck
from peakmem_check.model import Buffer, Program
from tinyprover import Prover

State = frozenset[int]


def prover_of(program: Program) -> tuple[Prover, tuple[frozenset[int], ...]]:
    prover = Prover(program, [s.workspace for s in program.statements], 0, random.Random(0))
    return prover, tuple(frozenset(p) for p in prover.model.before)


# -- the trap bound as a value -------------------------------------------------------------------------------------


def trap_value(program: Program, *, lazy: bool) -> int:
    """Grow the trap by the cheapest exit and return the largest price paid.

    ``lazy``: take the exit with the least *stale* price, refresh it, and keep it if it is still the least: the usual
    lazy heap, which needs stale prices to be lower bounds. Here they are upper bounds.
    """
    prover, dag = prover_of(program)

    def price(v: int, trap: State) -> int:
        return prover.cut(dag, v, prover.ancestors(dag, v), trap)[0]

    trap: State = frozenset()
    paid = 0
    heap = [(price(v, trap), v) for v in prover.ready(dag, trap)]
    heapq.heapify(heap)
    while heap:
        if lazy:
            _, v = heapq.heappop(heap)
            now = price(v, trap)
            if heap and now > heap[0][0]:
                heapq.heappush(heap, (now, v))
                continue
        else:
            heap = sorted((price(v, trap), v) for _, v in heap)
            now, v = heap.pop(0)
        paid = max(paid, now)
        trap |= {v}
        for w in prover.ready(dag, trap):
            if v in dag[w]:
                heapq.heappush(heap, (price(w, trap), w))
    return max(paid, prover.model.rest(frozenset()))


def lazy_heap(program: Program) -> bool:
    """The lazy heap claims more than the optimum."""
    return trap_value(program, lazy=True) > bottleneck(program)


# -- moves and jumps -----------------------------------------------------------------------------------------------


class Completions:
    """For every state the least peak of what follows, by search over states."""

    def __init__(self, program: Program) -> None:
        self.model = Model(program)
        self.all: State = frozenset(range(self.model.n))
        self.known: dict[State, int] = {self.all: 0}

    def least(self, state: State) -> int:
        if state not in self.known:
            self.known[state] = min(
                max(self.model.mem(state, v), self.least(state | {v})) for v in self.model.ready(state)
            )
        return self.known[state]

    def states(self) -> list[State]:
        self.least(frozenset())
        found = {frozenset()}
        stack: list[State] = [frozenset()]
        while stack:
            state = stack.pop()
            for v in self.model.ready(state):
                if state | {v} not in found:
                    found.add(state | {v})
                    stack.append(state | {v})
        return sorted(found, key=lambda s: (len(s), sorted(s)))

    def reached_from(self, state: State, budget: int) -> set[State]:
        """States that a path within the budget leads to."""
        found = {state}
        stack = [state]
        while stack:
            here = stack.pop()
            for v in self.model.ready(here):
                if self.model.mem(here, v) <= budget and here | {v} not in found:
                    found.add(here | {v})
                    stack.append(here | {v})
        return found - {state}


def jump_to_no_more(program: Program) -> bool:
    """Jumping to a state that merely holds no more than the present one loses the only completions."""
    c = Completions(program)
    states = c.states()
    for budget in sorted({c.least(s) for s in states}):
        for s in states:
            if c.least(s) <= budget:
                for t in c.reached_from(s, budget):
                    if c.model.rest(t) <= c.model.rest(s) and c.least(t) > budget:
                        return True
    return False


def jump_to_least(program: Program) -> bool:
    """The true rule fails: a jump to a state of least rest on the way loses the only completions."""
    c = Completions(program)
    states = c.states()
    for budget in sorted({c.least(s) for s in states}):
        for s in states:
            for t in c.reached_from(s, budget):
                between = [x for x in states if s <= x <= t]
                if c.model.rest(t) == min(map(c.model.rest, between)) and (c.least(s) <= budget) != (
                    c.least(t) <= budget
                ):
                    return True
    return False


def move_keeps_optimum(program: Program) -> bool:
    """Taking a move that is safe for some budget raises the least peak of the completion."""
    c = Completions(program)
    for s in c.states():
        for v in c.model.ready(s):
            then = s | {v}
            if c.model.rest(then) <= c.model.rest(s) and max(c.model.mem(s, v), c.least(then)) > c.least(s):
                return True
    return False


def move_keeps_feasibility(program: Program) -> bool:
    """The true rule fails: a safe move changes whether the budget can be kept."""
    c = Completions(program)
    states = c.states()
    for budget in sorted({c.least(s) for s in states}):
        for s in states:
            for v in c.model.ready(s):
                then = s | {v}
                safe = c.model.mem(s, v) <= budget and c.model.rest(then) <= c.model.rest(s)
                if safe and (c.least(s) <= budget) != (c.least(then) <= budget):
                    return True
    return False


# -- decomposition -------------------------------------------------------------------------------------------------

FORGET = ("shared", "later", "pinned")
"""What a careless decomposition forgets: that what the first part leaves behind stays until its end; that an input
first touched later is there from entry; that what was pinned before stays to the end."""


def middle(program: Program) -> int | None:
    """A statement comparable to all others, with some on both sides."""
    model = Model(program)
    for c in range(1, model.n - 1):
        before = model.ancestors(c)
        after = {v for v in range(model.n) if c in model.ancestors(v)}
        if before and after and len(before) + len(after) == model.n - 1:
            return c
    return None


def decomposed(program: Program, c: int, forget: str = "") -> int:
    """Least peak from the parts before and after ``c``."""
    model = Model(program)
    first = sorted(model.ancestors(c))
    second = [v for v in range(model.n) if v != c and v not in first]
    ends: list[int] = [model.mem(frozenset(first), c)]
    for part, other in ((first, [*second, c]), (second, [*first, c])):
        early = part is first
        extra = 0
        buffers: list[Buffer] = []
        for b, buffer in enumerate(program.buffers):
            inside = model.touchers[b] & set(part)
            outside = model.touchers[b] & set(other)
            kept = buffer.pinned
            entry = model.entry[b]
            if not model.counted[b]:
                pass
            elif early:
                if inside:
                    kept = kept or (bool(outside) and forget != "shared")
                elif entry and (kept or outside) and forget != "later":
                    extra += buffer.size
            elif inside:
                entry = entry or bool(outside)
            elif kept and (entry or outside) and forget != "pinned":
                extra += buffer.size
            kind = buffer.kind if not model.counted[b] else "input" if entry and inside else "intermediate"
            buffers.append(replace(buffer, kind=kind, pinned=kept and bool(inside)))
        place = {v: i for i, v in enumerate(part)}
        statements = tuple(
            replace(
                program.statements[v],
                reads=(),
                writes=tuple(sorted(model.touches[v])),
                dependences=tuple(place[u] for u in program.statements[v].dependences if u in place),
            )
            for v in part
        )
        ends.append(extra + bottleneck(Program(tuple(buffers), statements)))
    return max(ends)


def forgetting(program: Program, forget: str) -> bool:
    c = middle(program)
    return c is not None and decomposed(program, c, forget) != bottleneck(program)


def forget_shared(program: Program) -> bool:
    return forgetting(program, "shared")


def forget_later(program: Program) -> bool:
    return forgetting(program, "later")


def forget_pinned(program: Program) -> bool:
    return forgetting(program, "pinned")


def forget_nothing(program: Program) -> bool:
    return forgetting(program, "")


# -- arenas --------------------------------------------------------------------------------------------------------

Life = tuple[int, int, int]
"""First step, last step, bytes."""


def peak_of_lives(lives: list[Life]) -> int:
    return max(sum(size for first, last, size in lives if first <= t <= last) for t, _, _ in lives)


def fits(lives: list[Life], height: int) -> bool:
    """Whether offsets exist that keep all buffers below ``height``, by trying them all."""
    order = sorted(lives, key=lambda x: -x[2])
    placed: list[tuple[Life, int]] = []

    def place(i: int) -> bool:
        if i == len(order):
            return True
        first, last, size = order[i]
        for offset in range(height - size + 1):
            if all(a > last or z < first or offset + size <= o or o + s <= offset for (a, z, s), o in placed):
                placed.append((order[i], offset))
                if place(i + 1):
                    return True
                placed.pop()
        return False

    return place(0)
