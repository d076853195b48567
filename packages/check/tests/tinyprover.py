"""A slow little prover that writes certificates of every node kind, so that the checker has something to check.

Written from the description of the format alone, on Python sets and networkx; shares nothing with the solver nor with
the checker.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import networkx as nx
from oracles import Model, least_workspaces, mirror_of, optimum, part_of, reversed_program
from peakmem_check.model import Program

Dag = tuple[frozenset[int], ...]  # direct predecessors of each statement
KINDS = ("entry", "forward", "backward", "precedence", "branch", "reverse", "waypoint", "expand", "move", "jump")
EVERY_KIND = (*KINDS, "components")
"""The last needs version 2 of certificates."""


class Prover:
    """Proves that no order stays within ``bound - 1``; nodes accumulate in ``nodes``."""

    def __init__(self, program: Program, model: Model | Sequence[int], bound: int, rng: random.Random) -> None:
        """``model`` is that of the program, or its workspaces."""
        self.model = model if isinstance(model, Model) else Model(program, model)
        self.n = self.model.n
        self.all = frozenset(range(self.n))
        self.bound = bound
        self.rng = rng
        self.nodes: list[dict[str, Any]] = []
        self.known: dict[tuple[Dag, frozenset[int]], int | None] = {}
        self.program = program

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
        return frozenset(w for w in range(self.n) if v in self.ancestors(dag, w))

    def births(self, dag: Dag, b: int) -> set[int]:
        touchers = self.model.touchers[b]
        return {t for t in touchers if not self.ancestors(dag, t) & touchers}

    # cuts

    def network(
        self, dag: Dag, v: int | None, low: frozenset[int], high: frozenset[int], lies_on: int | None = None
    ) -> tuple[nx.DiGraph, int]:
        """Network and constant of cut(v | low, high), where the output of v's overlay lies on a buffer."""
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
        overlay = None if v is None else model.overlay[v]
        if overlay is not None and lies_on is not None:
            gain = min(model.size[lies_on], model.size[overlay.output])
            others = model.touchers[lies_on] - {v}
            if not model.mirrored:
                constant -= gain
                graph.add_edge("s", "g", capacity=gain)
                graph.add_edges_from(("g", u) for u in others & undecided)
                if others - high:
                    graph.add_edge("g", "t")
            elif not others & low:
                constant -= gain
                graph.add_edge("g", "t", capacity=gain)
                graph.add_edges_from((u, "g") for u in others & undecided)
        return graph, constant

    def shown(self, dag: Dag, v: int, low: frozenset[int], high: frozenset[int]) -> tuple[int, dict[str, Any]]:
        """What cut(v | low, high) is, and the entry of a row that shows it."""
        overlay = self.model.overlay[v]
        if overlay is None:
            value, flow, _ = self.cut(dag, v, low, high)
            return value, {"flow": flow}
        ways = [self.cut(dag, v, low, high, a) for a in overlay.inputs]
        return min(value for value, _, _ in ways), {"flows": [flow for _, flow, _ in ways]}

    def cut(
        self, dag: Dag, v: int | None, low: frozenset[int], high: frozenset[int], lies_on: int | None = None
    ) -> tuple[int, list[list[Any]], frozenset[int]]:
        """Value, flow and cheapest state of cut(v | low, high)."""
        graph, constant = self.network(dag, v, low, high, lies_on)
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
        return self.refute(tuple(frozenset(p) for p in self.model.before), frozenset(), kinds)

    def ready(self, dag: Dag, state: frozenset[int]) -> list[int]:
        return [v for v in sorted(self.all - state) if dag[v] <= state]

    def try_entry(self, dag: Dag, state: frozenset[int], kinds: Sequence[str]) -> int | None:
        return self.add(kind="entry") if self.model.rest(state) >= self.bound else None

    def try_forward(self, dag: Dag, state: frozenset[int], kinds: Sequence[str]) -> int | None:
        trap = state
        while trap != self.all:
            exits = []
            for v in self.ready(dag, trap):
                value, flow = self.shown(dag, v, self.ancestors(dag, v) | state, trap)
                if value < self.bound:
                    trap |= {v}
                    break
                exits.append({"statement": v, **flow})
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
                value, flow = self.shown(dag, v, left - {v}, self.all - {v} - self.descendants(dag, v))
                if value < self.bound:
                    trap |= {v}
                    break
                entries.append({"statement": v, **flow})
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
                value, flow = self.shown(dag, at, low, high)
                if value >= self.bound:
                    arcs.append({"before": u, "after": v, "at": at, **flow})
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
        if state or dag != tuple(frozenset(p) for p in self.model.before):
            return None
        kinds = [kind for kind in kinds if kind != "reverse"]
        program = reversed_program(self.program)
        model = mirror_of(self.model, program)
        members = frozenset(self.n - 1 - v for v in self.all)
        if len(members) < self.n:
            model = part_of(model, members, {b for b, counted in enumerate(self.model.counted) if counted})
        mirrored = Prover(program, model, self.bound, self.rng)
        mirrored.nodes, mirrored.all = self.nodes, members
        then = mirrored.start(kinds)
        return None if then is None else self.add(kind="reverse", then=then)

    def components(self, dag: Dag) -> list[list[int]]:
        """What neither precedences nor buffers join, but for buffers that are there from entry to the end."""
        graph = nx.Graph()
        graph.add_nodes_from(self.all)
        graph.add_edges_from((u, v) for v in self.all for u in dag[v])
        for touchers, entry, pinned in zip(self.model.touchers, self.model.entry, self.model.pinned):
            if not (entry and pinned):
                nx.add_path(graph, sorted(touchers))
        return sorted(map(sorted, nx.connected_components(graph)))

    def try_components(self, dag: Dag, state: frozenset[int], kinds: Sequence[str]) -> int | None:
        model, found = self.model, self.components(dag)
        if len(found) < 2:
            return None
        some = self.rng.sample(found, self.rng.randint(1, len(found) - 1))
        members = frozenset(v for component in some for v in component)
        others = self.all - members
        own = {b for b, touchers in enumerate(model.touchers) if touchers and touchers <= members}
        rest = Prover(self.program, part_of(model, others, set(range(len(model.size))) - own), 0, self.rng)
        least, flow, _ = rest.cut(_within(dag, others), None, state & others, others)
        if least >= self.bound:
            return None
        part = Prover(self.program, part_of(model, members, own), self.bound - least, self.rng)
        part.nodes, part.all = self.nodes, members
        then = part.refute(_within(dag, members), state & members, kinds)
        listed = self.rng.sample(sorted(members), len(members))
        return None if then is None else self.add(kind="components", statements=listed, flow=flow, then=then)

    def try_waypoint(self, dag: Dag, state: frozenset[int], kinds: Sequence[str]) -> int | None:
        for v in range(self.n):
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


def _within(dag: Dag, members: frozenset[int]) -> Dag:
    return tuple(before & members if v in members else frozenset() for v, before in enumerate(dag))


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
    later = program.has_overlays or any(n["kind"] == "components" for proof in proofs.values() for n in proof["nodes"])
    return {
        "schema": f"peakmem.certificate/{2 if later else 1}",
        "program": {"digest": program.digest},
        "artifact": None,
        "lower_bound": proofs[""]["lower_bound"] if "" in proofs else 0,
        "orders": {path: list(order) for path, order in orders.items()},
        "peak": peak,
        "proofs": proofs,
    }
