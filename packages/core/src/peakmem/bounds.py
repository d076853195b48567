"""Trap bounds: lower bounds on the peak of every order.

A *trap* is a down-set ``T``; its *exits* are the statements outside it whose predecessors are all inside. Every order has
a first statement outside ``T``. It is an exit ``v``, and it runs at a state between ``anc(v)`` and ``T``, so every order's
peak is at least the least ``cut(v | anc(v), T)`` over the exits. The mirror image of a trap (`Problem.reversed`) bounds
from the other end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

from peakmem.cuts import births_of, cheapest_state
from peakmem.problem import Problem, State


class OutOfTime(Exception):
    """A deadline passed; what was proved until then stays proved."""


@dataclass(frozen=True)
class Trap:
    """A trap and what it proves.

    Attributes
    ----------
    level : int
        Every exit costs at least this; so does every order. Bytes.
    members : tuple of int
        The trap ``T``, ascending.
    exits : tuple of int
        All exits of ``T``.
    closed : bool
        False if a statement limit stopped the growth, so that nothing is proved.
    cuts : int
        Minimum cuts computed.
    """

    level: int
    members: tuple[int, ...]
    exits: tuple[int, ...]
    closed: bool = True
    cuts: int = 0


class Between:
    """Cheapest states of statements between a fixed state and a growing trap."""

    def __init__(self, problem: Problem, start: Sequence[int] = (), births: list[tuple[int, ...]] | None = None) -> None:
        self.problem = problem
        self.births = births
        self.state = State(problem)
        self.state.advance(start)
        self.start = len(start)
        self.cuts = 0

    def ancestors(self, v: int) -> list[int]:
        """Strict ancestors of v that are not in the start state, ascending (so in a legal order)."""
        preds, inside = self.problem.preds, self.state.inside
        seen = set()
        stack = [p for p in preds[v] if not inside[p]]
        while stack:
            u = stack.pop()
            if u not in seen:
                seen.add(u)
                stack.extend(p for p in preds[u] if not inside[p] and p not in seen)
        return sorted(seen)

    def price(self, v: int, trap: bytearray | set[int], members: Sequence[int], enough: int) -> tuple[int, list[int]]:
        """``cut(v | anc(v), T)`` and the statements (beyond the start) of a cheapest state, in a legal order.

        Stops as soon as a state of at most ``enough`` bytes is known; the price is then an upper bound.
        ``members`` are T without the start state, ascending.
        """
        state = self.state
        problem = self.problem
        base = self.start
        touched, size = problem.touched, problem.size
        ancestors = self.ancestors(v)
        state.advance(ancestors)
        try:
            best = state.mem(v)
            if best <= enough:
                return best, ancestors
            # Running a statement that does not enlarge what v finds is never dearer: rest is submodular, so what does
            # not cost now will not cost later.
            own = frozenset(touched[v])
            waiting = [u for u in state.ready if u in trap] if isinstance(trap, set) else [u for u in state.ready if trap[u]]
            grew = True
            while grew:
                grew = False
                for u in list(waiting):
                    born, remaining = state.born, state.remaining
                    change = 0
                    for b in touched[u]:
                        if b in own:
                            continue
                        if not born[b]:
                            change += size[b]
                        if remaining[b] == 1:
                            change -= size[b]
                    if change <= 0:
                        before = len(state.ready)
                        state.push(u)
                        waiting.remove(u)
                        grew = True
                        if len(state.ready) >= before:
                            for w in problem.succs[u]:
                                if w in state.ready and (w in trap if isinstance(trap, set) else trap[w]):
                                    waiting.append(w)
            best = self._now(v, own)
            absorbed = state.path[base:]
            if best <= enough:
                return best, absorbed
            inside = state.inside
            undecided = [u for u in members if not inside[u]]
            if not undecided:
                return best, absorbed
            self.cuts += 1
            cut = cheapest_state(problem, state, undecided, v, births=self.births)
            return cut.value, [*absorbed, *cut.chosen]
        finally:
            state.unwind(base)

    def _now(self, v: int, own: frozenset[int]) -> int:
        state = self.state
        total = state.rest + self.problem.workspace[v]
        for b in own:
            if not (state.born[b] and state.remaining[b]):
                total += self.problem.size[b]
        return total


def forward_trap(
    problem: Problem,
    level: int,
    *,
    start: Sequence[int] = (),
    inside: Sequence[int] = (),
    raising: bool = True,
    stop: int | None = None,
    limit: int | None = None,
    births: list[tuple[int, ...]] | None = None,
    deadline: float | None = None,
) -> Trap:
    """Grow a trap from a state; its last level is a lower bound on completing that state.

    Parameters
    ----------
    problem : Problem
    level : int
        Bytes to begin with. Exits that cost at most the level are swallowed; when none is left, the least price is a
        bound, and (with ``raising``) becomes the level.
    start : sequence of int
        The state, as an order.
    inside : sequence of int
        Statements already known to be swallowed at ``level``, in a legal order after ``start``.
    raising : bool
        Go on at the higher level, or stop at the first trap.
    stop : int, optional
        Stop as soon as a trap of at least this level is found.
    limit : int, optional
        Give up (``closed`` False) when the trap has grown beyond the state by this many statements.
    births : list, optional
        `births_of` the problem.
    deadline : float, optional
        A `time.monotonic` value; `OutOfTime` beyond it.

    Returns
    -------
    Trap
        The one that proves the highest level found. With ``closed`` and no exits there is none above the level
        given.

    Notes
    -----
    At most n^2 cuts; about 1.7 a statement on random programs, far fewer on networks. A stale price is an upper bound
    (cuts get cheaper as the trap grows), so it may swallow an exit but never raise the level: before that, every exit
    is priced again at the trap as it is. (A heap that pops the least stale price is wrong.)
    """
    n = len(problem)
    between = Between(problem, start, births)
    top = State(problem)
    top.advance(start)
    top.advance(inside)
    trap = bytearray(top.inside)
    in_start = between.state.inside
    members = sorted(v for v in inside)
    grown = len(members)
    best: Trap | None = None
    stale: dict[int, int] = {}
    fresh: dict[int, int] = {}
    queue: list[int] = list(top.ready)

    def swallow(v: int) -> None:
        nonlocal grown
        top.push(v)
        trap[v] = 1
        grown += 1
        fresh.clear()
        for w in problem.succs[v]:
            if w in top.ready:
                queue.append(w)

    def cheap() -> None:
        # Exits that some known state serves at no more than the level: the trap itself is such a state.
        moved = True
        while moved:
            moved = False
            while queue:
                v = queue.pop()
                if v in top.ready and (top.mem(v) <= level or stale.get(v, level + 1) <= level):
                    swallow(v)
                    moved = True
                    if limit is not None and grown > limit:
                        return
            for v in list(top.ready):
                if top.mem(v) <= level or stale.get(v, level + 1) <= level:
                    swallow(v)
                    moved = True

    while True:
        cheap()
        if not top.ready:
            break
        if limit is not None and grown > limit:
            return Trap(level, (), (), closed=False, cuts=between.cuts)
        if deadline is not None and monotonic() > deadline:
            raise OutOfTime
        members = [v for v in range(n) if trap[v] and not in_start[v]] if grown else []
        progress = False
        for v in sorted(top.ready, key=lambda w: stale.get(w, 0)):
            if v in fresh:
                continue
            value, witness = between.price(v, trap, members, level)
            stale[v] = min(stale.get(v, value), value)
            if value <= level:
                # From the state that serves v, others may be served too, without a cut.
                swallow(v)
                _follow(between, witness, v, level, top, trap, swallow)
                progress = True
                break
            fresh[v] = value
        if progress:
            continue
        price = min(fresh.values())
        best = Trap(price, tuple(v for v in range(n) if trap[v]), tuple(sorted(top.ready)), cuts=between.cuts)
        if not raising or (stop is not None and price >= stop):
            return best
        level = price
        queue.extend(top.ready)
    if best is None:
        return Trap(level, tuple(range(n)), (), cuts=between.cuts)
    return Trap(best.level, best.members, best.exits, cuts=between.cuts)


def _follow(between, witness, v, level, top, trap, swallow) -> None:  # type: ignore[no-untyped-def]
    state = between.state
    base = between.start
    state.advance(witness)
    state.push(v)
    todo = list(state.ready)
    while todo:
        u = todo.pop()
        if trap[u]:
            continue
        if state.mem(u) <= level:
            if u in top.ready:
                swallow(u)
            elif not trap[u]:
                continue
            before = len(state.path)
            _, change = state.step(u)
            if change <= 0:
                state.push(u)
                todo.extend(w for w in between.problem.succs[u] if w in state.ready)
            assert before >= 0
    state.unwind(base)
