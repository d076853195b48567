"""From evidence to a certificate: writes out the proof of a bound.

The bounds and the walk leave *evidence*: which part of the program, seen from which end, after which safe steps, cannot
be completed below a level, and why (a floor, a trap, an exhausted search). This module turns it into proof nodes with
flows, in the ids of the original program; see `peakmem.certificate` for the nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

from peakmem.bounds import Between, OutOfTime, Trap, forward_trap
from peakmem.cuts import cheapest_state
from peakmem.problem import Problem, State

Births = list[tuple[int, ...]] | None


class TooLarge(Exception):
    """A proof by search would need more nodes than allowed."""


@dataclass(frozen=True)
class Evidence:
    """Why no order has a peak below ``level``.

    Attributes
    ----------
    level : int
        Bytes.
    problem : Problem
        The part in question, mirrored if ``mirrored``.
    total : int
        Statements of the program.
    waypoint : tuple of int
        Statements that every order has run before the part begins, as the certificate calls them.
    mirrored : bool
    steps : tuple of tuple of int
        Safe moves and jumps from there, in the problem's ids.
    trap : Trap or None
        A trap from the state after the steps; None if the search from there was exhausted.
    births : list or None
        `peakmem.cuts.births_of` the problem.
    """

    level: int
    problem: Problem
    total: int
    waypoint: tuple[int, ...] = ()
    mirrored: bool = False
    steps: tuple[tuple[int, ...], ...] = ()
    trap: Trap | None = None
    births: Births = None

    @property
    def weight(self) -> tuple[bool, int]:
        """Lighter proofs come first: traps before searches, few steps before many."""
        return self.trap is None, sum(map(len, self.steps))


class Writer:
    """Writes the nodes of one proof."""

    def __init__(self, evidence: Evidence, *, node_limit: int = 60_000, deadline: float | None = None) -> None:
        self.evidence = evidence
        self.problem = evidence.problem
        self.budget = evidence.level - 1
        self.node_limit = node_limit
        self.deadline = deadline
        self.nodes: list[dict[str, Any]] = []
        # The certificate calls statement i of a mirrored program n - 1 - i.
        names = self.problem.names
        self.names = [evidence.total - 1 - v for v in names] if evidence.mirrored else names

    def write(self) -> dict[str, Any]:
        """The entry of ``proofs``.

        Raises
        ------
        TooLarge, OutOfTime
            When a search would need too many nodes or too long.
        """
        evidence = self.evidence
        flat = [v for step in evidence.steps for v in step]
        if evidence.trap is not None:
            # The steps often are not needed: try the same trap from the start.
            root = self._bare_trap(evidence.trap) if flat else None
            if root is None:
                root = self._steps(self._leaf(evidence.trap, flat))
        else:
            root = self._steps(self._search(flat))
        if evidence.waypoint:
            root = self._add({"kind": "waypoint", "state": list(evidence.waypoint), "then": root})
        if evidence.mirrored:
            root = self._add({"kind": "reverse", "then": root})
        return {"lower_bound": evidence.level, "root": root, "nodes": self.nodes}

    # -- nodes

    def _add(self, node: dict[str, Any]) -> int:
        if len(self.nodes) >= self.node_limit:
            raise TooLarge
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _names(self, statements: Sequence[int]) -> list[int]:
        return [self.names[v] for v in statements]

    def _flow(self, flow: list[tuple[Any, Any, int]] | None) -> list[list[Any]]:
        problem = self.problem

        def label(node: Any) -> Any:
            if isinstance(node, str):
                return node
            if isinstance(node, tuple):
                return f"{node[0]}{problem.buffer_names[node[1]]}"
            return self.names[node]

        return [[label(a), label(b), amount] for a, b, amount in flow or ()]

    def _bare_trap(self, trap: Trap) -> int | None:
        """The trap as a leaf without the steps, if every exit is dear enough even so."""
        between = Between(self.problem, (), self.evidence.births)
        rows = self._exits(between, trap)
        return None if rows is None else self._trap_node(trap, rows)

    def _leaf(self, trap: Trap, start: Sequence[int]) -> int:
        rows = self._exits(Between(self.problem, start, self.evidence.births), trap)
        if rows is None:
            raise ArithmeticError("a trap lost its level between growing and writing")
        return self._trap_node(trap, rows)

    def _trap_node(self, trap: Trap, rows: list[dict[str, Any]]) -> int:
        members = sorted([*self.evidence.waypoint, *self._names(trap.members)])
        return self._add({"kind": "forward", "trap": members, "exits": rows})

    def _exits(self, between: Between, trap: Trap) -> list[dict[str, Any]] | None:
        rows = []
        for v in trap.exits:
            if self.deadline is not None and monotonic() > self.deadline:
                raise OutOfTime
            state = between.state
            state.advance(between.ancestors(v))
            undecided = [u for u in trap.members if not state.inside[u]]
            cut = cheapest_state(self.problem, state, undecided, v, births=between.births, want_flow=True)
            state.unwind(between.start)
            if cut.value < self.evidence.level:
                return None
            rows.append({"statement": self.names[v], "flow": self._flow(cut.flow)})
        return rows

    def _steps(self, then: int) -> int:
        """Moves and jumps, last first, in front of ``then``."""
        state = State(self.problem)
        flows = []
        for step in self.evidence.steps:
            if len(step) == 1 and state.step(step[0])[1] <= 0:
                flows.append(None)
                state.advance(step)
                continue
            cut = cheapest_state(
                self.problem, state, sorted(step), None, births=self.evidence.births, want_flow=True
            )
            state.advance(step)
            if cut.value < state.rest:
                raise ArithmeticError("a jump does not lead to a state of least rest")
            flows.append(self._flow(cut.flow))
        for step, flow in zip(reversed(self.evidence.steps), reversed(flows)):
            if flow is None:
                then = self._add({"kind": "move", "statement": self.names[step[0]], "then": then})
            else:
                then = self._add({"kind": "jump", "path": self._names(step), "flow": flow, "then": then})
        return then

    # -- search

    def _search(self, start: Sequence[int]) -> int:
        """Expand nodes (and traps where they end a branch) that refute the budget from a state."""
        problem, budget = self.problem, self.budget
        state = State(problem)
        state.advance(start)
        done: dict[int, int] = {}
        mask = 0
        # Frames: [depth, mask on opening, moves taken since the parent, children {name: node}, todo]
        frames: list[tuple[int, int, list[int], dict[str, int | None], list[int]]] = []
        result: int | None = None

        while True:
            # Arriving at a state by a child or at the root.
            origin_mask = mask
            moves: list[int] = []
            again = True
            while again:
                again = False
                for v in list(state.ready):
                    mem, change = state.step(v)
                    if mem <= budget and change <= 0:
                        state.push(v)
                        mask |= 1 << v
                        moves.append(v)
                        again = True
            if len(state.path) == len(problem):
                raise ArithmeticError("the search to be written out found an order within the refuted budget")
            result = done.get(mask)
            if result is None:
                trap = self._try_trap(state)
                if trap is not None:
                    result = done[mask] = self._leaf(trap, list(state.path))
            if result is None:
                children: dict[str, int | None] = {}
                todo = []
                for v in sorted(state.ready, reverse=True):
                    if state.mem(v) > budget:
                        children[str(self.names[v])] = None
                    else:
                        todo.append(v)
                frames.append((len(state.path), mask, moves, children, todo))
                moves = []
            else:
                result = self._moves(moves, result)
            # Climb until a frame has something left to do.
            while frames:
                depth, here, before, children, todo = frames[-1]
                state.unwind(depth)
                if result is not None:
                    children[str(self.names[todo.pop()])] = result
                    result = None
                if todo:
                    mask = here | 1 << todo[-1]
                    state.push(todo[-1])
                    break
                frames.pop()
                result = done[here] = self._add({"kind": "expand", "children": children})
                result = self._moves(before, result)
            else:
                assert result is not None
                return result
            del origin_mask

    def _moves(self, moves: Sequence[int], then: int) -> int:
        for v in reversed(moves):
            then = self._add({"kind": "move", "statement": self.names[v], "then": then})
        return then

    def _try_trap(self, state: State) -> Trap | None:
        if self.deadline is not None and monotonic() > self.deadline:
            raise OutOfTime
        trap = forward_trap(
            self.problem,
            self.budget,
            start=list(state.path),
            raising=False,
            births=self.evidence.births,
            limit=300,
            deadline=self.deadline,
        )
        return trap if trap.closed and trap.exits else None


def floor_evidence(problem: Problem, total: int, waypoint: tuple[int, ...], v: int, births: Births) -> Evidence:
    """The statement ``v`` alone: the trap of everything that does not follow it, with v as its only exit."""
    after = {v}
    stack = [v]
    while stack:
        for w in problem.succs[stack.pop()]:
            if w not in after:
                after.add(w)
                stack.append(w)
    members = tuple(u for u in range(len(problem)) if u not in after)
    return Evidence(problem.floor[v], problem, total, waypoint, trap=Trap(problem.floor[v], members, (v,)), births=births)
