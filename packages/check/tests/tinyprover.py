"""A slow little prover that writes certificates of every node kind, so that the checker has something to check.

Written from the description of the format alone, on Python sets and networkx; shares nothing with the solver nor with
the checker.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from typing import Any

import networkx as nx
from oracles import Model, least_workspaces, optimum
from peakmem_check.model import Program

Dag = tuple[frozenset[int], ...]  # direct predecessors of each statement
KINDS = (
    "entry", "forward", "backward", "precedence", "branch", "reverse", "waypoint", "expand", "move", "jump", "components"
)  # fmt: skip


class View(Model):
    """The model of a program, of its mirror image, or of a part of either; statements and buffers keep their ids."""

    def __init__(self, program: Program, workspaces: Sequence[int] | None = None) -> None:
        super().__init__(program, workspaces)
        self.mirrored = False
        self.members = frozenset(range(self.n))

    def overlaid(self, state: set[int] | frozenset[int], v: int) -> list[tuple[int, int]]:
        overlay = self.overlay[v]
        if not self.mirrored or overlay is None:
            return super().overlaid(state, v)
        return [(a, overlay.output) for a in overlay.inputs if not (self.touchers[a] - {v}) & state]

    def dag(self) -> Dag:
        return tuple(frozenset(p) for p in self.before)

    def mirror(self) -> View:
        n, new = self.n, copy.copy(self)
        new.mirrored = not self.mirrored
        new.entry, new.pinned = self.pinned, self.entry
        new.workspace, new.overlay, new.touches = self.workspace[::-1], self.overlay[::-1], self.touches[::-1]
        new.touchers = [{n - 1 - v for v in touchers} for touchers in self.touchers]
        new.before = [{n - 1 - w for w in range(n) if v in self.before[w]} for v in reversed(range(n))]
        new.members = frozenset(n - 1 - v for v in self.members)
        return new

    def own(self, members: frozenset[int]) -> set[int]:
        """Buffers that the members touch and no other statement does."""
        return {b for b, touchers in enumerate(self.touchers) if touchers and touchers <= members}

    def part(self, members: frozenset[int], buffers: set[int]) -> View:
        new = copy.copy(self)
        new.members = members
        new.counted = [c and b in buffers for b, c in enumerate(self.counted)]
        new.touches = [t & buffers if v in members else set() for v, t in enumerate(self.touches)]
        new.touchers = [t & members if b in buffers else set() for b, t in enumerate(self.touchers)]
        new.before = [p & members if v in members else set() for v, p in enumerate(self.before)]
        return new

    def groups(self, dag: Dag) -> list[frozenset[int]]:
        """Statements that precedences or buffers join, but for buffers that are there from entry to the end."""
        graph = nx.Graph()
        graph.add_nodes_from(self.members)
        graph.add_edges_from((u, v) for v in self.members for u in dag[v])
        for b, touchers in enumerate(self.touchers):
            if not (self.entry[b] and self.pinned[b]):
                nx.add_path(graph, sorted(touchers))
        return [frozenset(group) for group in nx.connected_components(graph)]


class Prover:
    """Proves that no order stays within ``bound - 1``; nodes accumulate in ``nodes``."""

    def __init__(
        self, program: Program | View, workspaces: Sequence[int] | None, bound: int, rng: random.Random
    ) -> None:
        self.model = program if isinstance(program, View) else View(program, workspaces)
        self.n = self.model.n
        self.all = self.model.members
        self.bound = bound
        self.rng = rng
        self.nodes: list[dict[str, Any]] = []
        self.known: dict[tuple[Dag, frozenset[int]], int | None] = {}
        self.parts: dict[tuple[frozenset[int], int], Prover] = {}

    def beside(self, model: View, bound: int) -> Prover:
        """A prover of another model, with the same list of nodes."""
        other = Prover(model, None, bound, self.rng)
        other.nodes = self.nodes
        return other

    # graphs

    def ancestors(self, dag: Dag, v: int) -> frozenset[int]:
        found: set[int] = set()
        stack = [v]
        while stack:
            for u in dag[stack.pop()] - found:
                found.add(u)
                stack.append(u)
        return frozenset(found)

    def descendants(self, dag: Dag, v: int) -> frozenset[int]:
        return frozenset(w for w in self.all if v in self.ancestors(dag, w))

    def births(self, dag: Dag, b: int) -> set[int]:
        touchers = self.model.touchers[b]
        return {t for t in touchers if not self.ancestors(dag, t) & touchers}

    # cuts

    def network(
        self, dag: Dag, v: int | None, low: frozenset[int], high: frozenset[int], a: int | None = None
    ) -> tuple[nx.DiGraph, int]:
        """Network and constant of cut(v | low, high), of the flow for input ``a`` of v's overlay."""
        model = self.model
        undecided = high - low
        graph = nx.DiGraph()
        graph.add_nodes_from(("s", "t"))
        constant = 0 if v is None else model.workspace[v] + sum(model.size[b] for b in model.touches[v])
        for u in undecided:
            for p in dag[u] & undecided:
                graph.add_edge(u, p)
        for b, size in enumerate(model.size):
            if not model.counted[b] or (v is not None and b in model.touches[v]):
                continue
            births = self.births(dag, b)
            early = model.entry[b] or bool(births & low)
            late = model.pinned[b] or bool(model.touchers[b] - high)
            if early and late:
                constant += size
                continue
            name = f"b{b}"
            if early:
                graph.add_edge("s", name, capacity=size)
            elif births & undecided:
                if len(births) == 1:
                    graph.add_edge(next(iter(births)), name, capacity=size)
                else:
                    graph.add_edge(f"j{b}", name, capacity=size)
                    for p in births & undecided:
                        graph.add_edge(p, f"j{b}")
            else:
                continue
            for u in model.touchers[b] & undecided:
                graph.add_edge(name, u)
            if late:
                graph.add_edge(name, "t")
        if a is not None and v is not None:
            overlay = model.overlay[v]
            assert overlay is not None
            others = model.touchers[a] - {v}
            g = min(model.size[a], model.size[overlay.output])
            if not model.mirrored:
                constant -= g
                graph.add_edge("s", "g", capacity=g)
                graph.add_edges_from(("g", u) for u in others & undecided)
                if others - high:
                    graph.add_edge("g", "t")
            elif not others & low:
                constant -= g
                graph.add_edge("g", "t", capacity=g)
                graph.add_edges_from((u, "g") for u in others & undecided)
        return graph, constant

    def shown(self, dag: Dag, v: int, low: frozenset[int], high: frozenset[int]) -> tuple[int, dict[str, Any]]:
        """The bound for cut(v | low, high), and its flow or flows."""
        overlay = self.model.overlay[v]
        if overlay is None:
            value, flow, _ = self.cut(dag, v, low, high)
            return value, {"flow": flow}
        found = [self.cut(dag, v, low, high, a) for a in overlay.inputs]
        return min(value for value, _, _ in found), {"flows": [flow for _, flow, _ in found]}

    def cut(
        self, dag: Dag, v: int | None, low: frozenset[int], high: frozenset[int], a: int | None = None
    ) -> tuple[int, list[list[Any]], frozenset[int]]:
        """Value, flow and cheapest state of cut(v | low, high)."""
        graph, constant = self.network(dag, v, low, high, a)
        value, flow = nx.maximum_flow(graph, "s", "t")
        triples = [[a, b, x] for a, row in flow.items() for b, x in row.items() if x]
        self.rng.shuffle(triples)
        _, (source_side, _) = nx.minimum_cut(graph, "s", "t")
        return constant + value, triples, low | (frozenset(source_side) & (high - low))

    # proofs

    def used(self, root: int) -> dict[str, Any]:
        """Root and nodes of the proof without the nodes of failed attempts."""
        keys = ("then", "first", "second")
        reached = {root}
        for k in range(root, -1, -1):
            if k in reached:
                node = self.nodes[k]
                reached.update(node[key] for key in keys if key in node)
                reached.update(c for c in node.get("children", {}).values() if c is not None)
        place = {k: i for i, k in enumerate(sorted(reached))}
        nodes = []
        for k in sorted(reached):
            node = {key: place[x] if key in keys else x for key, x in self.nodes[k].items()}
            if "children" in node:
                node["children"] = {v: None if c is None else place[c] for v, c in node["children"].items()}
            nodes.append(node)
        return {"root": place[root], "nodes": nodes}

    def add(self, **node: Any) -> int:
        self.nodes.append(node)
        return len(self.nodes) - 1

    def refute(self, dag: Dag, state: frozenset[int], kinds: Sequence[str] = KINDS) -> int | None:
        """Index of a node that proves the context, None if it is not so (then there is a completion)."""
        key = (dag, state)
        if key not in self.known:
            order = list(kinds)
            self.rng.shuffle(order)
            order += [kind for kind in ("entry", "expand") if kind not in order]  # these two prove everything
            self.known[key] = None
            for kind in order:
                found: int | None = getattr(self, "try_" + kind)(dag, state, kinds)
                if found is not None:
                    self.known[key] = found
                    break
        return self.known[key]

    def start(self, kinds: Sequence[str] = KINDS) -> int | None:
        return self.refute(self.model.dag(), frozenset(), kinds)

    def ready(self, dag: Dag, state: frozenset[int]) -> list[int]:
        return [v for v in sorted(self.all - state) if dag[v] <= state]

    def try_entry(self, dag: Dag, state: frozenset[int], kinds: Sequence[str]) -> int | None:
        return self.add(kind="entry") if self.model.rest(state) >= self.bound else None

    def try_forward(self, dag: Dag, state: frozenset[int], kinds: Sequence[str]) -> int | None:
        trap = state
        while trap != self.all:
            exits = []
            for v in self.ready(dag, trap):
                value, shown = self.shown(dag, v, self.ancestors(dag, v) | state, trap)
                if value < self.bound:
                    trap |= {v}
                    break
                exits.append({"statement": v, **shown})
            else:
                return self.add(kind="forward", trap=sorted(trap), exits=exits)
        return None

    def try_backward(self, dag: Dag, state: frozenset[int], kinds: Sequence[str]) -> int | None:
        trap: frozenset[int] = frozenset()
        while trap | state != self.all:
            left = self.all - trap
            entries = []
            for v in sorted(left - state):
                if self.descendants(dag, v) & left:
                    continue
                value, shown = self.shown(dag, v, left - {v}, self.all - {v} - self.descendants(dag, v))
                if value < self.bound:
                    trap |= {v}
                    break
                entries.append({"statement": v, **shown})
            else:
                return self.add(kind="backward", trap=sorted(trap), entries=entries)
        return None

    def incomparable(self, dag: Dag) -> list[tuple[int, int]]:
        return [
            (u, v)
            for u in sorted(self.all)
            for v in sorted(self.all)
            if u != v and u not in self.ancestors(dag, v) and v not in self.ancestors(dag, u)
        ]

    def try_precedence(self, dag: Dag, state: frozenset[int], kinds: Sequence[str]) -> int | None:
        if state:
            return None
        arcs = []
        for u, v in self.incomparable(dag):
            anc_u, anc_v = self.ancestors(dag, u), self.ancestors(dag, v)
            free_u, free_v = self.all - {u} - self.descendants(dag, u), self.all - {v} - self.descendants(dag, v)
            for at, low, high in ((v, anc_v, free_v & free_u), (u, anc_u | anc_v | {v}, free_u)):
                value, shown = self.shown(dag, at, low, high)
                if value >= self.bound:
                    arcs.append({"before": u, "after": v, "at": at, **shown})
        if not arcs:
            return None
        stronger = tuple(frozenset(p | {a["before"] for a in arcs if a["after"] == v}) for v, p in enumerate(dag))
        graph = nx.DiGraph((u, v) for v, p in enumerate(stronger) for u in p)
        if nx.is_directed_acyclic_graph(graph):
            then = self.refute(stronger, state, kinds)
        else:
            then = self.add(kind="cycle", statements=[u for u, _ in nx.find_cycle(graph)])
        return None if then is None else self.add(kind="precedence", arcs=arcs, then=then)

    def try_branch(self, dag: Dag, state: frozenset[int], kinds: Sequence[str]) -> int | None:
        pairs = [] if state else self.incomparable(dag)
        if not pairs:
            return None
        u, v = self.rng.choice(pairs)
        kinds = [k for k in kinds if k != "branch"] if self.rng.random() < 0.7 else kinds
        first = self.refute(tuple(p | {u} if w == v else p for w, p in enumerate(dag)), state, kinds)
        if first is None:
            return None
        second = self.refute(tuple(p | {v} if w == u else p for w, p in enumerate(dag)), state, kinds)
        return None if second is None else self.add(kind="branch", pair=[u, v], first=first, second=second)

    def try_reverse(self, dag: Dag, state: frozenset[int], kinds: Sequence[str]) -> int | None:
        if state or dag != self.model.dag():
            return None
        kinds = [kind for kind in kinds if kind != "reverse"]
        then = self.beside(self.model.mirror(), self.bound).start(kinds)
        return None if then is None else self.add(kind="reverse", then=then)

    def try_components(self, dag: Dag, state: frozenset[int], kinds: Sequence[str]) -> int | None:
        groups = self.model.groups(dag)
        if len(groups) < 2:
            return None
        members = frozenset[int]().union(*self.rng.sample(groups, self.rng.randint(1, len(groups) - 1)))
        own, others = self.model.own(members), self.all - members
        rest = self.beside(self.model.part(others, set(range(len(self.model.size))) - own), 0)
        least, flow, _ = rest.cut(self.within(dag, others), None, state - members, others)
        if least >= self.bound:
            return None
        key = members, self.bound - least
        if key not in self.parts:
            self.parts[key] = self.beside(self.model.part(members, own), self.bound - least)
        then = self.parts[key].refute(self.within(dag, members), state & members, kinds)
        return (
            None if then is None else self.add(kind="components", statements=sorted(members), flow=flow, then=then)
        )

    def within(self, dag: Dag, members: frozenset[int]) -> Dag:
        return tuple(p & members if v in members else frozenset() for v, p in enumerate(dag))

    def try_waypoint(self, dag: Dag, state: frozenset[int], kinds: Sequence[str]) -> int | None:
        for v in sorted(self.all):
            for way in (self.ancestors(dag, v), self.ancestors(dag, v) | {v}):
                if state < way and all(way <= self.ancestors(dag, w) for w in self.all - way):
                    then = self.refute(dag, way, kinds)
                    if then is not None:
                        return self.add(kind="waypoint", state=sorted(way), then=then)
        return None

    def try_expand(self, dag: Dag, state: frozenset[int], kinds: Sequence[str]) -> int | None:
        children: dict[str, int | None] = {}
        for v in self.ready(dag, state):
            if self.model.mem(state, v) >= self.bound and self.rng.random() < 0.9:
                children[str(v)] = None
                continue
            child = self.refute(dag, state | {v}, kinds)
            if child is None and self.model.mem(state, v) < self.bound:
                return None
            children[str(v)] = child
        return self.add(kind="expand", children=children) if children else None

    def try_move(self, dag: Dag, state: frozenset[int], kinds: Sequence[str]) -> int | None:
        for v in self.ready(dag, state):
            then_state = state | {v}
            if self.model.mem(state, v) < self.bound and self.model.rest(then_state) <= self.model.rest(state):
                then = self.refute(dag, then_state, kinds)
                return None if then is None else self.add(kind="move", statement=v, then=then)
        return None

    def try_jump(self, dag: Dag, state: frozenset[int], kinds: Sequence[str]) -> int | None:
        path: list[int] = []
        here = state
        while len(path) < 4:
            options = [v for v in self.ready(dag, here) if self.model.mem(here, v) < self.bound]
            if not options:
                return None
            path.append(self.rng.choice(options))
            here |= {path[-1]}
            value, flow, _ = self.cut(dag, None, state, here)
            if value == self.model.rest(here):
                then = self.refute(dag, here, kinds)
                return None if then is None else self.add(kind="jump", path=path, flow=flow, then=then)
        return None


def certificate(
    program: Program,
    orders: Mapping[str, Sequence[int]],
    peak: int,
    rng: random.Random,
    kinds: Sequence[str] = KINDS,
    bound: int | None = None,
) -> dict[str, Any] | None:
    """A certificate of ``bound`` (the optimum if None) using the given kinds of nodes; None if it cannot be proved."""
    proofs: dict[str, Any] = {}
    for path, part in [("", program), *program.bodies()]:
        workspaces = least_workspaces(part)
        target = optimum(part) if path or bound is None else bound
        prover = Prover(part, workspaces, target, rng)
        root = prover.start(kinds)
        if root is None:
            if target > 0:
                return None
            continue
        proofs[path] = {"lower_bound": target, **prover.used(root)}
    used = {node["kind"] for proof in proofs.values() for node in proof["nodes"]}
    overlays = any(s.overlay for part in (program, *(body for _, body in program.bodies())) for s in part.statements)
    return {
        "schema": f"peakmem.certificate/{2 if overlays or 'components' in used else 1}",
        "program": {"digest": program.digest},
        "artifact": None,
        "lower_bound": proofs[""]["lower_bound"] if "" in proofs else 0,
        "orders": {path: list(order) for path, order in orders.items()},
        "peak": peak,
        "proofs": proofs,
    }
