"""Lower bounds on the peak of every order, by minimum cuts.

The *statement bound* is the dearest statement at its cheapest state. A *trap* is a down-set ``T``; its *exits* are the
statements outside it whose predecessors are all inside. Every order has a first statement outside ``T``. It is an exit
``v``, and it runs at a state between ``anc(v)`` and ``T``, so every order's peak is at least the least
``cut(v | anc(v), T)`` over the exits: the *forward trap bound*. The *backward trap bound* is that of the mirror image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from peakmem.ordering import native
from peakmem.ordering.cuts import births_of, cheapest_state, least_cut
from peakmem.ordering.meter import Meter, OutOfTime
from peakmem.ordering.problem import Problem, State
from peakmem.ordering.rules import ALL, Rules

Births = list[tuple[int, ...]] | None
"""Births of each buffer, or None where none has several; see `peakmem.cuts.births_of`."""


@dataclass(frozen=True)
class Trap:
    """A trap and what it proves.

    Attributes
    ----------
    level : int
        Every exit costs at least this, so every order does; bytes.
    members : tuple of int
        The trap, ascending.
    exits : tuple of int
        All its exits, ascending. Empty if the growth met no trap: then nothing above the level given is proved.
    closed : bool
        False if a limit stopped the growth; a larger trap might prove more.
    cuts : int
        Minimum cuts computed.
    """

    level: int
    members: tuple[int, ...]
    exits: tuple[int, ...]
    closed: bool = True
    cuts: int = 0


class Pricer:
    """Prices statements at their cheapest states between a start state and a trap."""

    def __init__(self, problem: Problem, births: Births, rules: Rules = ALL, meter: Meter | None = None) -> None:
        self.problem = problem
        self.births = births
        self.rules = rules
        self.meter = meter or Meter()
        self.cuts = 0
        self.start = 0
        """Statements run at the start state."""
        self._state = State(problem)
        self._path: Sequence[int] = []
        kernel = native.kernel()
        self._compiled = None if kernel is None else kernel.growth(problem, births)

    def move_to(self, path: Sequence[int]) -> None:
        """Make the state reached by ``path`` the start."""
        self.start = len(path)
        self._path = path
        if self._compiled is None:
            self.at_start()

    def at_start(self) -> State:
        """The start state, to be moved and brought back."""
        here, path = self._state.path, self._path
        common = len(here)
        if here != path[:common]:
            common = next(i for i, (a, b) in enumerate(zip([*here, -1], [*path, -2])) if a != b)
        self._state.unwind(common)
        self._state.advance(path[common:])
        return self._state

    def compiled(self, level: int) -> native.Growth | None:
        """The compiled loops, at the start state; None where there are none, or the level does not fit."""
        if self._compiled is None or level >= native.LARGEST:
            return None
        self._compiled.move(self._path)
        return self._compiled

    def ancestors(self, v: int) -> list[int]:
        """Strict ancestors of v beyond the start, where `at_start` has to be, ascending (so in a legal order)."""
        preds, inside = self.problem.preds, self._state.inside
        stack = [p for p in preds[v] if not inside[p]]
        seen = set(stack)
        while stack:
            for p in preds[stack.pop()]:
                if not inside[p] and p not in seen:
                    seen.add(p)
                    stack.append(p)
        return sorted(seen)

    def price(self, v: int, trap: bytearray, members: Sequence[int], enough: int) -> tuple[int, list[int]]:
        """``cut(v | anc(v), T)`` and a cheapest state, as the statements beyond the start in a legal order.

        Stops as soon as some state of at most ``enough`` bytes is known; the price is then an upper bound. ``members``
        are the statements of T beyond the start.
        """
        compiled = self.compiled(enough)
        if compiled is not None:
            value, path, cuts = compiled.price(v, trap, members, enough, self.rules.absorption, self.meter, least_cut)
            self.cuts += cuts
            return value, path
        state = self.at_start()
        ancestors = self.ancestors(v)
        self.meter.spend(1 + len(ancestors))
        state.advance(ancestors)
        try:
            own = frozenset(self.problem.touched[v])
            best = self._here(v, own)
            if best > enough and self.rules.absorption:
                self._absorb(v, own, trap)
                best = self._here(v, own)
            done = state.path[self.start :]
            if best <= enough:
                return best, done
            inside = state.inside
            undecided = sorted(u for u in members if not inside[u])
            if not undecided:
                return best, done
            self.cuts += 1
            self.meter.spend(len(undecided))
            cut = cheapest_state(self.problem, state, undecided, v, births=self.births)
            return cut.value, [*done, *cut.chosen]
        finally:
            state.unwind(self.start)

    def _here(self, v: int, own: frozenset[int]) -> int:
        state, size = self._state, self.problem.size
        total = state.rest + self.problem.workspace[v]
        for b in own:
            if not (state.born[b] and state.remaining[b]):
                total += size[b]
        return total - state.saved(v) if self.problem.gains[v] else total

    def _absorb(self, v: int, own: frozenset[int], trap: bytearray) -> None:
        """Run statements of the trap that do not enlarge what v will find.

        Without the buffers of v, ``rest`` is submodular: what costs nothing now costs nothing at any larger state, so
        some cheapest state contains it. So it is with each way to overlay v: what runs before v brings the death of its input
        nearer; in the mirror image it may be what keeps the input, which then costs what was saved.
        """
        state, size, touched = self._state, self.problem.size, self.problem.touched
        succs = self.problem.succs
        keeps = dict(self.problem.gains[v]) if self.problem.mirrored else {}
        todo = [u for u in state.ready if trap[u]]
        while todo:
            later = []
            moved = False
            for u in todo:
                change = 0
                if keeps:
                    change = max((keeps[b] for b in touched[u] if b in keeps and not state.born[b]), default=0)
                for b in touched[u]:
                    if b not in own:
                        if not state.born[b]:
                            change += size[b]
                        if state.remaining[b] == 1:
                            change -= size[b]
                if change > 0:
                    later.append(u)
                    continue
                state.push(u)
                moved = True
                later.extend(w for w in succs[u] if trap[w] and w in state.ready)
            todo = later if moved else []


def forward_trap(
    problem: Problem,
    level: int,
    *,
    state: State | None = None,
    steps: Sequence[int] = (),
    pricer: Pricer | None = None,
    births: Births = None,
    order: Sequence[int] = (),
    raising: bool = True,
    limit: int | None = None,
    meter: Meter | None = None,
    rules: Rules = ALL,
) -> Trap:
    """Grow a trap from a state; its level is a lower bound on completing that state.

    Parameters
    ----------
    problem : Problem
    level : int
        Bytes to begin with: exits that cost at most the level are swallowed. When none is left, the trap has closed: the
        least price is a lower bound.
    state : State, optional
        Where to begin (default: the empty state). It is moved and brought back, with ``ready`` in ascending order.
    steps : sequence of int, optional
        To be run from there first.
    pricer : Pricer, optional
        To be reused between calls on one problem.
    births : list, optional
        `births_of` the problem; not needed with ``pricer``.
    order : sequence of int, optional
        A good order of the whole, when the start is the empty state. What it runs within the level needs no cut.
    raising : bool
        Go on at the price of the trap, and return the last one that closed. Otherwise return the first, which tests
        whether ``level`` is refuted.
    limit : int, optional
        Give up (``closed`` False) when more statements than this were swallowed.
    meter : Meter, optional
        When it is out, the last trap that closed is returned with ``closed`` False; `OutOfTime` if none has.

    Notes
    -----
    At most n^2 cuts; about 1.7 a statement on random programs, one to a few dozen in all on networks. An old price is an
    upper bound (cuts get cheaper as the trap grows), so it may swallow an exit but never close a trap: before that, every
    exit is priced at the trap as it is. (A heap that pops the least old price is wrong.)
    """
    top = State(problem) if state is None else state
    if pricer is None:
        pricer = Pricer(problem, births, rules)
    pricer.meter = meter = meter or Meter()
    pricer.move_to([*top.path, *steps])
    compiled = pricer.compiled(level)
    if compiled is not None:
        top.settle()
        return _grown(compiled, pricer, level, order, raising, limit, rules)
    given = len(top.path)
    top.advance(steps)
    origin = len(top.path)
    walker = pricer.at_start()
    # What was tried from here before must not show in what is swallowed first.
    top.settle()
    walker.settle()
    before = pricer.cuts
    best: Trap | None = None
    old: dict[int, int] = {}
    fresh: dict[int, int] = {}
    succs, inside = problem.succs, top.inside

    def swallow(v: int) -> None:
        top.push(v)
        fresh.clear()
        old.pop(v, None)

    def swallow_cheap() -> None:
        # The trap itself is a state; so is every state priced before.
        ready = top.ready
        todo = list(ready)
        while todo:
            moved = False
            for v in todo:
                if v in ready and (old.get(v, level + 1) <= level or top.mem(v) <= level):
                    swallow(v)
                    moved = True
                    if limit is not None and len(top.path) - origin > limit:
                        return
            meter.spend(len(todo))
            todo = list(top.ready) if moved else []

    def follow(witness: list[int], v: int) -> None:
        # Walk on from the state that serves v.
        walker.advance(witness)
        walker.push(v)
        todo = [w for w in succs[v] if w in walker.ready]
        while todo:
            u = todo.pop()
            mem, change = walker.step(u)
            if mem <= level:
                if u in top.ready:
                    swallow(u)
                if change <= 0 and inside[u]:
                    walker.push(u)
                    todo.extend(w for w in succs[u] if w in walker.ready)
        walker.unwind(pricer.start)

    try:
        for v in order:  # statements too dear, and what depends on them, are left out
            if v in walker.ready and walker.mem(v) <= level:
                walker.push(v)
                swallow(v)
        walker.unwind(pricer.start)
        meter.spend(len(order))
        while True:
            swallow_cheap()
            if not top.ready:
                break
            if limit is not None and len(top.path) - origin > limit:
                return Trap(level, (), (), closed=False, cuts=pricer.cuts - before)
            members = top.path[origin:]
            served = None
            for v in sorted(top.ready, key=lambda w: (old.get(w, 0), w)):
                if v in fresh:
                    continue
                if meter.out:
                    if best is None:
                        raise OutOfTime
                    return replace(best, closed=False)
                value, witness = pricer.price(v, inside, members, level)
                if rules.stale_prices:
                    old[v] = min(old.get(v, value), value)
                if value <= level:
                    served = v
                    break
                fresh[v] = value
            if served is not None:
                swallow(served)
                if rules.followers:
                    follow(witness, served)
                continue
            price = min(fresh.values())
            best = Trap(price, tuple(sorted(top.path)), tuple(sorted(top.ready)), cuts=pricer.cuts - before)
            if not raising:
                return best
            level = price
            fresh.clear()
    finally:
        top.unwind(given)
        top.settle()
    if best is None:
        return Trap(level, (), (), cuts=pricer.cuts - before)
    return best


def _grown(
    compiled: native.Growth, pricer: Pricer, level: int, order: Sequence[int], raising: bool, limit: int | None, rules: Rules
) -> Trap:
    """`forward_trap` from the start of ``pricer``, in the compiled loops."""
    ended, level, cuts, found = compiled.grow(
        level, limit, raising, pricer.rules.absorption, rules.stale_prices, rules.followers, order, pricer.meter, least_cut
    )
    pricer.cuts += cuts
    best = None if found is None else Trap(*found[:3], cuts=found[3])
    if ended == native.LARGE or (ended == native.CLOSED and best is None):
        return Trap(level, (), (), closed=ended == native.CLOSED, cuts=cuts)
    if best is None:
        raise OutOfTime
    return best if ended == native.CLOSED else replace(best, closed=False)


def statement_trap(problem: Problem, v: int, level: int) -> Trap:
    """The statement ``v`` alone: the trap of everything that does not follow it, with v as its only exit."""
    after = {v}
    stack = [v]
    while stack:
        for w in problem.succs[stack.pop()]:
            if w not in after:
                after.add(w)
                stack.append(w)
    return Trap(level, tuple(u for u in range(len(problem)) if u not in after), (v,))


def forward_trap_bound(problem: Problem) -> int:
    """Forward trap bound as a value, in bytes; O(n^2) cuts at worst."""
    start = max(problem.floor, default=problem.entry_bytes)
    return forward_trap(problem, start, births=births_of(problem)).level


def backward_trap_bound(problem: Problem) -> int:
    """Backward trap bound as a value, in bytes: the forward one of the mirror image."""
    return forward_trap_bound(problem.reversed())


def statement_bound(problem: Problem) -> int:
    """Dearest statement at its cheapest state, in bytes; n cuts."""
    pricer = Pricer(problem, births_of(problem))
    best = max(problem.floor, default=problem.entry_bytes)
    for v in range(len(problem)):
        around = statement_trap(problem, v, best).members
        trap = bytearray(len(problem))
        for u in around:
            trap[u] = 1
        best = max(best, pricer.price(v, trap, around, best)[0])
    return best
