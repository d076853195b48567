"""The solver's view of a program: plain arrays, and a state that moves step by step.

`Problem` is what bounds and search work on: a program, a part of it between two states that every order passes, or
either of them reversed. `State` is one down-set with its bookkeeping; a step costs the buffers that its statement
touches and its direct successors, nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from peakmem.model import Program


@dataclass(frozen=True, eq=False)
class Problem:
    """Statements 0..n-1 in a topological order, and the buffers they touch.

    Attributes
    ----------
    preds, succs : list of tuple of int
        Direct dependences, both ways.
    touched : list of tuple of int
        Buffers of each statement.
    touchers : list of tuple of int
        Statements of each buffer, ascending.
    size : list of int
        Bytes of each buffer.
    entry, pinned : list of bool
        Resident from the start; resident to the end.
    workspace : list of int
    base : int
        Bytes that are resident whatever happens here (outside ``size``).
    names : list of int
        Statement of the program that each statement here stands for.
    buffer_names : list of int
        Buffer of the program that each buffer here stands for.
    gains : list of tuple of (int, int)
        Of each statement the inputs of its overlay, with the bytes saved where that input dies with it.
    mirrored : bool
        Whether time runs backwards here. Then the input is born with the statement where it died with it: saved is what no
        other toucher has run for. A buffer that a part pins never dies there, and in a mirrored part one at entry is never
        born, so it saves nothing.
    """

    preds: list[tuple[int, ...]]
    succs: list[tuple[int, ...]]
    touched: list[tuple[int, ...]]
    touchers: list[tuple[int, ...]]
    size: list[int]
    entry: list[bool]
    pinned: list[bool]
    workspace: list[int]
    base: int
    names: list[int]
    buffer_names: list[int]
    gains: list[tuple[tuple[int, int], ...]]
    mirrored: bool = False

    def __len__(self) -> int:
        return len(self.preds)

    @cached_property
    def floor(self) -> list[int]:
        """Of each statement: workspace, what it touches, and ``base``, less the most that its overlay may save.

        A bound on any order that needs no cut.
        """
        size = self.size
        never = self.entry if self.mirrored else self.pinned
        return [
            self.base + w + sum(size[b] for b in touched) - max((g for a, g in gains if not never[a]), default=0)
            for w, touched, gains in zip(self.workspace, self.touched, self.gains)
        ]

    @cached_property
    def entry_bytes(self) -> int:
        """rest of the empty state."""
        return self.base + sum(
            s for s, e, p, t in zip(self.size, self.entry, self.pinned, self.touchers) if e and (p or t)
        )

    @cached_property
    def exit_bytes(self) -> int:
        """rest of the full state: what is pinned."""
        return self.base + sum(
            s for s, e, p, t in zip(self.size, self.entry, self.pinned, self.touchers) if p and (e or t)
        )

    def reversed(self) -> Problem:
        """The mirror image: arcs turned round, entry and pinned swapped, overlays looking back. Statement i becomes n - 1 - i.

        An order and its reversal have the same memory at every step.
        """
        top = len(self) - 1

        def flip(rows: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
            return [tuple(top - v for v in reversed(row)) for row in reversed(rows)]

        # An untouched buffer is resident when it is at entry and pinned; that is symmetric.
        return Problem(
            preds=flip(self.succs),
            succs=flip(self.preds),
            touched=self.touched[::-1],
            touchers=[tuple(top - v for v in reversed(row)) for row in self.touchers],
            size=self.size,
            entry=self.pinned,
            pinned=self.entry,
            workspace=self.workspace[::-1],
            base=self.base,
            names=self.names[::-1],
            buffer_names=self.buffer_names,
            gains=self.gains[::-1],
            mirrored=not self.mirrored,
        )

    def part(self, start: int, stop: int) -> Problem:
        """The statements ``start..stop-1``, when every order passes the states ``[0..start)`` and ``[0..stop)``.

        A buffer touched here and before (or at entry) is at entry here; one touched here and later (or pinned) is
        pinned here; one that is resident throughout and not touched here counts in ``base``.
        """
        inside = range(start, stop)
        used = sorted({b for v in inside for b in self.touched[v]})
        local = {b: i for i, b in enumerate(used)}
        base = self.base
        for b, touchers in enumerate(self.touchers):
            if b in local:
                continue
            born = self.entry[b] or (touchers and touchers[0] < start)
            dies = not self.pinned[b] and not (touchers and touchers[-1] >= stop)
            if born and not dies:
                base += self.size[b]
        return self._sub(start, stop, used, local, base)

    def _sub(self, start: int, stop: int, used: list[int], local: dict[int, int], base: int) -> Problem:
        inside = range(start, stop)
        touchers = [tuple(t - start for t in self.touchers[b] if start <= t < stop) for b in used]
        return Problem(
            preds=[tuple(u - start for u in self.preds[v] if u >= start) for v in inside],
            succs=[tuple(w - start for w in self.succs[v] if w < stop) for v in inside],
            touched=[tuple(local[b] for b in self.touched[v]) for v in inside],
            touchers=touchers,
            size=[self.size[b] for b in used],
            entry=[self.entry[b] or self.touchers[b][0] < start for b in used],
            pinned=[self.pinned[b] or self.touchers[b][-1] >= stop for b in used],
            workspace=[self.workspace[v] for v in inside],
            base=base,
            names=[self.names[v] for v in inside],
            buffer_names=[self.buffer_names[b] for b in used],
            gains=[tuple((local[a], gain) for a, gain in self.gains[v]) for v in inside],
            mirrored=self.mirrored,
        )

    def parts(self, cuts: Sequence[int]) -> list[Problem]:
        """`part` between each two neighbours of ``cuts`` (ascending, from 0 to n). O(program)."""
        bounds = list(cuts)
        constant = [0] * (len(bounds) + 1)  # differences: what is resident through each part untouched
        index = [0] * (len(self) + 1)
        for k in range(len(bounds) - 1):
            for v in range(bounds[k], bounds[k + 1]):
                index[v] = k
        used: list[list[int]] = [[] for _ in range(len(bounds) - 1)]
        last_part = len(bounds) - 2
        for b, touchers in enumerate(self.touchers):
            where = sorted({index[t] for t in touchers})
            for k in where:
                used[k].append(b)
            if not touchers and not (self.entry[b] and self.pinned[b]):
                continue
            low = 0 if self.entry[b] else where[0]
            high = last_part if self.pinned[b] else where[-1]
            constant[low] += self.size[b]
            constant[high + 1] -= self.size[b]
            for k in where:
                constant[k] -= self.size[b]
                constant[k + 1] += self.size[b]
        result = []
        base = self.base
        for k in range(len(bounds) - 1):
            base += constant[k]
            local = {b: i for i, b in enumerate(used[k])}
            result.append(self._sub(bounds[k], bounds[k + 1], used[k], local, base))
        return result

    def among(self, members: Sequence[int], buffers: Sequence[int], base: int) -> Problem:
        """Some statements with some buffers, ascending, and ``base`` beside them; their ids here are the names there.

        No dependence joins the members to other statements, and a buffer of theirs that is left out is in ``base`` or counted
        elsewhere, so it is resident throughout (then no overlay saves it). O(members and what they touch).
        """
        local = {v: i for i, v in enumerate(members)}
        index = {b: i for i, b in enumerate(buffers)}
        return Problem(
            preds=[tuple(local[u] for u in self.preds[v]) for v in members],
            succs=[tuple(local[w] for w in self.succs[v]) for v in members],
            touched=[tuple(index[b] for b in self.touched[v] if b in index) for v in members],
            touchers=[tuple(local[t] for t in self.touchers[b] if t in local) for b in buffers],
            size=[self.size[b] for b in buffers],
            entry=[self.entry[b] for b in buffers],
            pinned=[self.pinned[b] for b in buffers],
            workspace=[self.workspace[v] for v in members],
            base=base,
            names=list(members),
            buffer_names=list(buffers),
            gains=[tuple((index[a], gain) for a, gain in self.gains[v] if a in index) for v in members],
            mirrored=self.mirrored,
        )

    def order_peak(self, order: Sequence[int]) -> int:
        """Peak of an order, in bytes. O(n + touches)."""
        state = State(self)
        peak = state.rest
        for v in order:
            peak = max(peak, state.mem(v))
            state.push(v)
        return peak


def problem_of(program: Program, workspaces: Sequence[int] | None = None) -> Problem:
    """The whole program as a `Problem`; constants are left out of ``touched`` and count nowhere."""
    n = len(program.buffers)
    return Problem(
        preds=list(program.predecessors),
        succs=list(program.successors),
        touched=list(program.touched),
        touchers=list(program.touchers),
        size=[0 if b.kind == "constant" else b.size for b in program.buffers],
        entry=[b.kind == "input" for b in program.buffers],
        pinned=[b.pinned and b.kind != "constant" for b in program.buffers],
        workspace=list(program.workspaces if workspaces is None else workspaces),
        base=0,
        names=list(range(len(program.statements))),
        buffer_names=list(range(n)),
        gains=list(program.gains),
    )


class State:
    """A down-set and its ``rest``, moved by `push` and `pop`.

    Attributes
    ----------
    rest : int
        Bytes resident between statements.
    ready : dict of int to None
        Statements whose predecessors have all run, in the order in which they became ready.
    inside : bytearray
        1 for executed statements.
    """

    __slots__ = ("born", "inside", "missing", "path", "problem", "ready", "remaining", "rest")

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.inside = bytearray(len(problem))
        self.missing = [len(p) for p in problem.preds]
        # Touchers still to run; one more for a pinned buffer, which therefore never comes to zero.
        self.remaining = [len(t) + p for t, p in zip(problem.touchers, problem.pinned)]
        # Touchers that have run; one more at entry.
        self.born = [int(e) for e in problem.entry]
        self.rest = problem.entry_bytes
        self.ready = dict.fromkeys(v for v, m in enumerate(self.missing) if m == 0)
        self.path: list[int] = []

    def mem(self, v: int) -> int:
        """Bytes while ready statement ``v`` runs here."""
        problem, born = self.problem, self.born
        total = self.rest + problem.workspace[v]
        size = problem.size
        for b in problem.touched[v]:
            if not born[b]:
                total += size[b]
        return total - self.saved(v) if problem.gains[v] else total

    def saved(self, v: int) -> int:
        """Bytes that the overlay of ready ``v`` saves here."""
        # Forwards, v is the last toucher of what dies with it; in the mirror image the first of what is born with it.
        count, alone = (self.born, 0) if self.problem.mirrored else (self.remaining, 1)
        return max((gain for a, gain in self.problem.gains[v] if count[a] == alone), default=0)

    def step(self, v: int) -> tuple[int, int]:
        """``mem`` of ready ``v`` and the change of ``rest`` it makes."""
        problem, born, remaining = self.problem, self.born, self.remaining
        size = problem.size
        new = gone = 0
        for b in problem.touched[v]:
            if not born[b]:
                new += size[b]
            if remaining[b] == 1:
                gone += size[b]
        mem = self.rest + problem.workspace[v] + new
        return mem - self.saved(v) if problem.gains[v] else mem, new - gone

    def push(self, v: int) -> None:
        """Run ready ``v``."""
        problem, born, remaining, missing = self.problem, self.born, self.remaining, self.missing
        size = problem.size
        rest = self.rest
        for b in problem.touched[v]:
            if not born[b]:
                rest += size[b]
            born[b] += 1
            remaining[b] -= 1
            if not remaining[b]:
                rest -= size[b]
        self.rest = rest
        self.inside[v] = 1
        ready = self.ready
        del ready[v]
        for w in problem.succs[v]:
            missing[w] -= 1
            if not missing[w]:
                ready[w] = None
        self.path.append(v)

    def settle(self) -> None:
        """Put ``ready`` in ascending order, whatever happened before."""
        self.ready = dict.fromkeys(sorted(self.ready))

    def advance(self, statements: Iterable[int]) -> None:
        """`push` each; they must come in an order that honours the dependences."""
        push = self.push
        for v in statements:
            push(v)

    def pop(self) -> int:
        """Undo the last `push` and return its statement. (``ready`` keeps its members, not their order.)"""
        v = self.path[-1]
        self.unwind(len(self.path) - 1)
        return v

    def unwind(self, depth: int) -> None:
        """`pop` until ``depth`` statements have run. One loop with everything at hand: searches spend much of their time here."""
        problem, born, remaining, missing = self.problem, self.born, self.remaining, self.missing
        size, touched, succs, ready, inside = problem.size, problem.touched, problem.succs, self.ready, self.inside
        rest = self.rest
        undone = self.path[depth:]
        del self.path[depth:]
        for v in reversed(undone):
            for w in succs[v]:
                if not missing[w]:
                    del ready[w]
                missing[w] += 1
            ready[v] = None
            inside[v] = 0
            for b in touched[v]:
                if not remaining[b]:
                    rest += size[b]
                remaining[b] += 1
                born[b] -= 1
                if not born[b]:
                    rest -= size[b]
        self.rest = rest


def waypoints(problem: Problem) -> list[int]:
    """Sizes k such that every order passes the state ``[0..k)``, from 0 to n.

    The first k statements all precede all others exactly when each statement of the prefix without a successor in it is
    a direct predecessor of each statement of the suffix without a predecessor in it (a path between two such statements
    has no room for a third). O(n + arcs + the sizes of the fronts compared).
    """
    n = len(problem)
    preds, succs = problem.preds, problem.succs
    # Sources of the suffix [k..n): those whose last predecessor is before k.
    last_pred = [max(p, default=-1) for p in preds]
    becomes_source: list[list[int]] = [[] for _ in range(n + 1)]
    for v in range(n):
        becomes_source[last_pred[v] + 1].append(v)
    sinks: dict[int, None] = {}
    sources: dict[int, None] = dict.fromkeys(becomes_source[0])
    result = [0]
    for k in range(1, n):
        v = k - 1
        sources.pop(v, None)
        for w in becomes_source[k]:
            if w >= k:
                sources[w] = None
        for u in preds[v]:
            sinks.pop(u, None)
        sinks[v] = None
        if len(sources) > len(succs[v]):
            continue
        if all(len(sources) <= len(succs[a]) for a in sinks) and all(
            sources.keys() <= set(succs[a]) for a in sinks
        ):
            result.append(k)
    result.append(n)
    return result if n else [0]
