"""From evidence to a certificate: writes out the proof of a bound.

The bounds and the walk leave *evidence*: which part of the program, seen from which end, after which precedences and safe
steps, cannot be completed below a level, and why (a trap, an exhausted search, a cycle). This module turns it into proof
nodes with flows, in the ids of the original program; see `peakmem.certificate` for the nodes. What is claimed is what the
nodes show, which may be more than the evidence was sure of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from peakmem.ordering.bounds import Pricer, Trap, forward_trap
from peakmem.ordering.cuts import Cut, births_of, cheapest_state
from peakmem.ordering.meter import Meter
from peakmem.ordering.precedence import Closure, Refutation, Round
from peakmem.ordering.problem import Problem, State


class TooLarge(Exception):
    """A proof by search would need more nodes than allowed."""


@dataclass(frozen=True)
class Beside:
    """A bound for one component of a problem, to which what the others hold at least is added.

    Attributes
    ----------
    union : Problem
        The whole problem; its components have its ids as their names.
    component : Problem
    evidence : Evidence
        Of the component alone.
    offset : int
        What the rest of the union holds at least, bytes.
    """

    union: Problem
    component: Problem
    evidence: Evidence
    offset: int

    def rest(self) -> tuple[Problem, int]:
        """The union without the component, called by its ids there, and what of `offset` belongs to it. O(union)."""
        union = self.union
        own = frozenset(self.component.names)
        kept, theirs = [], 0
        for b, touchers in enumerate(union.touchers):
            if not touchers or not own.issuperset(touchers):
                kept.append(b)
            elif union.entry[b] and union.pinned[b]:
                theirs += union.size[b]
        return union.among([v for v in range(len(union)) if v not in own], kept, union.base), self.offset - theirs


@dataclass(frozen=True)
class Evidence:
    """Why no order has a peak below ``level``.

    Attributes
    ----------
    level : int
        Bytes.
    problem : Problem
        The part in question, mirrored if ``mirrored``, with the arcs of ``rounds``.
    total : int
        Statements of the program.
    waypoint : tuple of int
        Statements that every order has run before the part begins, as the certificate calls them.
    mirrored : bool
    refutation : Refutation or None
        By precedences, in the part as it is (never mirrored); then the rest is not used.
    rounds : tuple of Round
        Precedences that a budget of ``level - 1`` forces, in the part as it is (not mirrored), before a search.
    steps : tuple of tuple of int
        Safe moves and jumps from the beginning of the part, in the problem's ids.
    trap : Trap or None
        A trap from the state after the steps; None if the search from there was exhausted.
    entry : bool
        What is resident at entry is enough.
    inside : Beside or None
        The evidence of a component of the program (never mirrored); then the rest is not used.
    """

    level: int
    problem: Problem
    total: int
    waypoint: tuple[int, ...] = ()
    mirrored: bool = False
    refutation: Refutation | None = None
    rounds: tuple[Round, ...] = ()
    steps: tuple[tuple[int, ...], ...] = ()
    trap: Trap | None = None
    entry: bool = False
    inside: Beside | None = None

    @property
    def weight(self) -> tuple[int, int]:
        """Lighter proofs come first: traps before searches, few steps and rounds before many."""
        if self.inside is not None:
            return self.inside.evidence.weight
        search = self.trap is None and self.refutation is None and not self.entry
        return 2 * search + (self.refutation is not None or bool(self.rounds)), sum(map(len, self.steps))


@dataclass(frozen=True)
class Ids:
    """What the certificate calls the statements and buffers of a part that stands beside others.

    Attributes
    ----------
    total : int
        Statements of the program.
    members : sequence of int
        Of each statement of the part, in its own order.
    statements, buffers : sequence of int
        Of what the part's problems call so in their names.
    """

    total: int
    members: Sequence[int]
    statements: Sequence[int]
    buffers: Sequence[int]


class Writer:
    """Writes the nodes of one proof; with ``ids`` of the proof of a part."""

    def __init__(
        self, evidence: Evidence, *, node_limit: int = 60_000, meter: Meter | None = None, ids: Ids | None = None
    ) -> None:
        self.evidence = evidence
        self.ids = ids
        self.problem = evidence.problem
        self.waypoint = self._placed(evidence.waypoint)
        self.node_limit = node_limit
        self.meter = meter or Meter()
        self.nodes: list[dict[str, Any]] = []
        self.names = self._called(self.problem)
        self.births = births_of(self.problem)
        self.shown: list[int] = []
        """Bytes that the flows and prices of the nodes show; the least of them is what the proof proves."""

    def write(self) -> dict[str, Any]:
        """The entry of ``proofs``; its bound is the evidence's level, or more where the nodes show more.

        Raises
        ------
        TooLarge, OutOfTime
            When a search would need too many nodes or too long.
        """
        evidence = self.evidence
        if evidence.inside is not None:
            root = self._components(evidence.inside)
        elif evidence.entry:
            root = self._add({"kind": "entry"})
            self.shown.append(evidence.level)
        elif evidence.refutation is not None:
            root = self._refutation(evidence.refutation)
        else:
            root = self._part()
            if self.waypoint:
                root = self._add({"kind": "waypoint", "state": self.waypoint, "then": root})
        root = self._rounds(evidence.rounds, root)
        if evidence.mirrored:
            root = self._add({"kind": "reverse", "then": root})
        return {"lower_bound": max(evidence.level, min(self.shown)), "root": root, "nodes": self.nodes}

    def _part(self) -> int:
        evidence = self.evidence
        done = [v for step in evidence.steps for v in step]
        if evidence.trap is None:
            return self._steps(self._search(done))
        pricer = Pricer(self.problem, self.births)
        if done:
            # Often the steps are not needed: the same trap may be dear enough from the start.
            rows = self._exits(pricer, evidence.trap)
            if rows is not None:
                return self._trap_node(evidence.trap, rows)
        pricer.move_to(done)
        return self._steps(self._leaf(evidence.trap, pricer))

    # -- names

    def _called(self, problem: Problem) -> list[int]:
        """How the certificate calls the statements of a problem: in the mirror image, i is n - 1 - i."""
        ids = self.ids
        names = problem.names if ids is None else [ids.statements[v] for v in problem.names]
        if self.evidence.mirrored:
            total = self.evidence.total if ids is None else ids.total
            return [total - 1 - v for v in names]
        return names

    def _placed(self, places: Sequence[int]) -> list[int]:
        """The same for places among all that the evidence is about, which in the mirror image are counted from its end."""
        ids = self.ids
        if ids is None:
            return list(places)
        if self.evidence.mirrored:
            return sorted(ids.total - 1 - ids.members[-1 - v] for v in places)
        return sorted(ids.members[v] for v in places)

    def _buffer(self, name: int) -> int:
        return name if self.ids is None else self.ids.buffers[name]

    def _row(self, cut: Cut, v: int, problem: Problem, names: Sequence[int]) -> dict[str, Any]:
        """What shows a cut at a statement: one flow, or one for each way to overlay it."""
        flows = self._flows(cut, problem, names)
        return {"flows": flows} if problem.gains[v] else {"flow": flows[0]}

    def _flows(self, cut: Cut, problem: Problem, names: Sequence[int]) -> list[list[list[Any]]]:
        def label(node: Any) -> Any:
            if isinstance(node, str):
                return node
            if isinstance(node, tuple):
                return f"{node[0]}{self._buffer(problem.buffer_names[node[1]])}"
            return names[node]

        return [[[label(a), label(b), amount] for a, b, amount in flow] for flow in cut.flows]

    # -- nodes

    def _add(self, node: dict[str, Any]) -> int:
        if len(self.nodes) >= self.node_limit:
            raise TooLarge
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _leaf(self, trap: Trap, pricer: Pricer) -> int:
        rows = self._exits(pricer, trap)
        if rows is None:
            raise ArithmeticError("a trap lost its level between growing and writing")
        return self._trap_node(trap, rows)

    def _trap_node(self, trap: Trap, rows: list[dict[str, Any]]) -> int:
        members = sorted([*self.waypoint, *(self.names[v] for v in trap.members)])
        return self._add({"kind": "forward", "trap": members, "exits": rows})

    def _exits(self, pricer: Pricer, trap: Trap) -> list[dict[str, Any]] | None:
        """All exits of a trap with their flows; None if one is not dear enough from where the pricer starts."""
        problem, births, state = pricer.problem, pricer.births, pricer.at_start()
        names = self._called(problem)
        rows = []
        shown = []
        for v in trap.exits:
            self.meter.check()
            state.advance(pricer.ancestors(v))
            self.meter.spend(len(trap.members))
            undecided = [u for u in trap.members if not state.inside[u]]
            cut = cheapest_state(problem, state, undecided, v, births=births, want_flow=True)
            state.unwind(pricer.start)
            if cut.value < self.evidence.level:
                return None
            shown.append(cut.value)
            rows.append({"statement": names[v], **self._row(cut, v, problem, names)})
        self.shown += shown
        return rows

    def _entries(self, problem: Problem, trap: Trap) -> dict[str, Any]:
        """A trap of the mirror image as a backward leaf."""
        top = len(problem) - 1
        births = births_of(problem)
        names = self._called(problem)
        members = {top - v for v in trap.members}
        descendants = Closure(problem).descendants
        state = State(problem)
        rows = []
        for v in sorted(top - v for v in trap.exits):
            self.meter.check()
            state.unwind(0)
            state.advance(u for u in range(top + 1) if u not in members and u != v)
            undecided = [u for u in sorted(members) if not descendants[v] >> u & 1]
            cut = cheapest_state(problem, state, undecided, v, births=births, want_flow=True)
            if cut.value < self.evidence.level:
                raise ArithmeticError("a trap lost its level between growing and writing")
            self.meter.spend(len(members))
            self.shown.append(cut.value)
            rows.append({"statement": names[v], **self._row(cut, v, problem, names)})
        total, start = self.evidence.total, len(self.evidence.waypoint) + top + 1
        outside = [*(names[v] for v in members), *self._placed(range(start, total))]
        return {"kind": "backward", "trap": sorted(outside), "entries": rows}

    def _refutation(self, refutation: Refutation) -> int:
        problem = refutation.problem
        names = self._called(problem)
        if refutation.trap is not None and refutation.backward:
            node = self._entries(problem, refutation.trap)
        elif refutation.trap is not None:
            rows = self._exits(Pricer(problem, births_of(problem)), refutation.trap)
            if rows is None:
                raise ArithmeticError("a trap lost its level between growing and writing")
            members = sorted([*self.waypoint, *(names[v] for v in refutation.trap.members)])
            node = {"kind": "forward", "trap": members, "exits": rows}
        elif refutation.pair is not None:
            first, second = (self._refutation(branch) for branch in refutation.branches)
            pair = [names[v] for v in refutation.pair]
            node = {"kind": "branch", "pair": pair, "first": first, "second": second}
        else:
            node = {"kind": "cycle", "statements": [names[v] for v in refutation.cycle]}
        return self._rounds(refutation.rounds, self._add(node))

    def _components(self, inside: Beside) -> int:
        """The proof of a component, and in front of it what the others hold at least."""
        union = inside.union
        called = self._called(union)
        ids = Ids(
            self.evidence.total if self.ids is None else self.ids.total,
            [called[v] for v in inside.component.names],
            called,
            [self._buffer(b) for b in union.buffer_names],
        )
        writer = Writer(inside.evidence, node_limit=self.node_limit, meter=self.meter, ids=ids)
        proof = writer.write()
        self.nodes = writer.nodes
        self.shown.append(proof["lower_bound"] + inside.offset)
        rest, least = inside.rest()
        self.meter.spend(len(union))
        cut = cheapest_state(rest, State(rest), range(len(rest)), None, births=births_of(rest), want_flow=True)
        if cut.value != least:
            raise ArithmeticError("the least rest of the other components is not the sum of theirs")
        flow = writer._flows(cut, rest, [called[v] for v in rest.names])[0]
        return self._add({"kind": "components", "statements": sorted(ids.members), "flow": flow, "then": proof["root"]})

    def _rounds(self, rounds: Sequence[Round], then: int) -> int:
        for found in reversed(rounds):
            then = self._add({"kind": "precedence", "arcs": self._arcs(found), "then": then})
        return then

    def _arcs(self, found: Round) -> list[dict[str, Any]]:
        if self.evidence.mirrored:
            found = found.reversed()
        closure = Closure(found.problem)
        names = self._called(found.problem)
        rows = []
        for arc in found.arcs:
            self.meter.check()
            lower, upper = closure.interval(arc)
            cut = closure.cut(arc.at, lower, upper, want_flow=True)
            if cut.value < self.evidence.level:
                raise ArithmeticError("an arc lost its level between finding and writing")
            self.meter.spend(len(names))
            self.shown.append(cut.value)
            rows.append(
                {
                    "before": names[arc.before],
                    "after": names[arc.after],
                    "at": names[arc.at],
                    **self._row(cut, arc.at, found.problem, names),
                }
            )
        return rows

    def _steps(self, then: int) -> int:
        """Moves and jumps, last first, in front of ``then``."""
        state = State(self.problem)
        flows: list[list[list[Any]] | None] = []
        for step in self.evidence.steps:
            if len(step) == 1 and state.step(step[0])[1] <= 0:
                flows.append(None)
                state.advance(step)
                continue
            cut = cheapest_state(
                self.problem, state, sorted(step), None, births=self.births, want_flow=True
            )
            state.advance(step)
            if cut.value < state.rest:
                raise ArithmeticError("a jump does not lead to a state of least rest")
            flows += self._flows(cut, self.problem, self.names)
        for step, flow in zip(reversed(self.evidence.steps), reversed(flows)):
            path = [self.names[v] for v in step]
            if flow is None:
                then = self._add({"kind": "move", "statement": path[0], "then": then})
            else:
                then = self._add({"kind": "jump", "path": path, "flow": flow, "then": then})
        return then

    # -- search

    def _search(self, start: Sequence[int]) -> int:
        """Refute the budget from a state by trying every statement, with traps where they end a branch."""
        problem, budget = self.problem, self.evidence.level - 1
        state = State(problem)
        state.advance(start)
        pricer = Pricer(problem, self.births)
        done: dict[int, int] = {}
        mask = 0
        # Frames: depth and mask on opening, safe moves taken since the parent, children so far, still to be tried.
        frames: list[tuple[int, int, list[int], dict[str, int | None], list[int]]] = []
        while True:
            moves: list[int] = []
            moved = True
            while moved:
                moved = False
                for v in list(state.ready):
                    mem, change = state.step(v)
                    if mem <= budget and change <= 0:
                        state.push(v)
                        mask |= 1 << v
                        moves.append(v)
                        moved = True
            if len(state.path) == len(problem):
                raise ArithmeticError("the search to be written out found an order within the refuted budget")
            result = done.get(mask)
            if result is None:
                trap = self._try_trap(state, pricer, budget)
                if trap.exits:
                    result = done[mask] = self._leaf(trap, pricer)
            self.meter.spend(1 + len(moves) + len(state.ready))
            self.meter.check()
            if result is None:
                children: dict[str, int | None] = {}
                todo = []
                for v in sorted(state.ready, reverse=True):
                    mem = state.mem(v)
                    if mem > budget:
                        self.shown.append(mem)
                        children[str(self.names[v])] = None
                    else:
                        todo.append(v)
                frames.append((len(state.path), mask, moves, children, todo))
            else:
                result = self._moves(moves, result)
            while frames:
                depth, here, moves, children, todo = frames[-1]
                state.unwind(depth)
                if result is not None:
                    children[str(self.names[todo.pop()])] = result
                    result = None
                if todo:
                    mask = here | 1 << todo[-1]
                    state.push(todo[-1])
                    break
                frames.pop()
                done[here] = self._add({"kind": "expand", "children": children})
                result = self._moves(moves, done[here])
            else:
                assert result is not None
                return result

    def _moves(self, moves: Sequence[int], then: int) -> int:
        for v in reversed(moves):
            then = self._add({"kind": "move", "statement": self.names[v], "then": then})
        return then

    def _try_trap(self, state: State, pricer: Pricer, budget: int) -> Trap:
        return forward_trap(
            self.problem, budget, state=state, pricer=pricer, raising=False, limit=300, meter=self.meter
        )
