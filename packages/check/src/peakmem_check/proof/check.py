"""The checker of certificates: knows the program model and nothing else of peakmem.

`check` verifies a document ``peakmem.certificate/1`` (the format is defined in ``docs/reference/format.md``) against a
`Program`. It never solves anything: flows are added up, traps are walked, states are stepped through. What it accepts
is a theorem about the program; ``docs/theory.md`` has the proofs that the node kinds are sound.

How it works
------------
Nodes refer to smaller indices only, so one pass from the root downwards meets every node after all contexts in which it
must hold. A *context* is a DAG (the program's dependences and precedences added by the nodes above) and a state (a
bit mask of executed statements). Nothing recurses, and the number of contexts is bounded by the size of the document,
so a hostile certificate costs polynomial time and no stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from peakmem_check.model.program import Program
from peakmem_check.proof.certificate import SCHEMA
from peakmem_check.proof.graph import (
    Candidates,
    Dag,
    Network,
    bits_of,
    mask_of,
    mirror,
    name_of,
    read_natural,
    read_object,
    read_sequence,
    read_statements,
    refuse,
    show,
)

CONTEXTS_PER_NODE = 16
"""A proof may use its nodes in so many contexts each on average (plus 1024): sharing must not blow up the work."""


class CheckReport(NamedTuple):
    """What an accepted certificate proves.

    Attributes
    ----------
    lower_bound : int
        Every order of the program has a peak of at least this, in bytes.
    peak : int
        Peak of the certificate's orders, recomputed, in bytes.
    optimal : bool
        The two are equal: no order is better.
    nodes, flows : int
        Proof nodes and flows verified (a node counts once for each context in which it was used).
    """

    lower_bound: int
    peak: int
    optimal: bool
    nodes: int
    flows: int


def check(program: Program, document: object, trace: Callable[[str], None] | None = None) -> CheckReport:
    """Verify a certificate against the program it speaks about.

    Parameters
    ----------
    program : Program
    document : object
        Parsed JSON; anything at all is answered, nothing is trusted.
    trace : callable, optional
        Takes a line for each node in each context, once it is verified: its place and kind, how many statements the
        state has run, how many precedences the nodes above have added, how many flows it has.

    Raises
    ------
    Refused
        With one sentence naming the place, if anything in the document is not as it must be.

    Notes
    -----
    O(program) for each leaf, plus its traps and flows; a bitmask closure for each strengthened DAG.
    """
    top = read_object(document, "the document")
    if top.get("schema") != SCHEMA:
        refuse(f"'schema' must be {SCHEMA!r}, not {show(top.get('schema'))}")
    if program.has_overlays:
        refuse("the program has overlays, which are not proved yet")
    stated = read_object(top.get("program"), "'program'").get("digest")
    if stated != program.digest:
        whole = repr(stated) if isinstance(stated, str) and len(stated) <= len(program.digest) else show(stated)
        refuse(
            f"speaks about another program: its digest is {whole}, this program's is {program.digest!r} "
            "(check it against the program that certify --program-out wrote)"
        )
    artifact = top.get("artifact")
    if artifact is not None:
        for key in ("digest", "frontend", "version"):
            if not isinstance(read_object(artifact, "'artifact'").get(key), str):
                refuse(f"'artifact' must give '{key}' as a text")
    lower_bound = read_natural(top.get("lower_bound"), "'lower_bound'")
    peak = read_natural(top.get("peak"), "'peak'")

    programs = [*program.bodies(), ("", program)]  # innermost first
    orders = read_object(top.get("orders"), "'orders'")
    proofs = read_object(top.get("proofs"), "'proofs'")
    paths = {path for path, _ in programs}
    for name, entries in (("orders", orders), ("proofs", proofs)):
        for path in entries:
            if path not in paths:
                refuse(f"'{name}' names {show(path)}, which is no body of the program")
    peaks: dict[str, int] = {}
    bounds: dict[str, int] = {}
    nodes = flows = 0
    for path, part in programs:
        prefix = path + "/" if path else ""
        where = f"orders[{path!r}]"
        if path not in orders:
            refuse(f"{where} is missing")
        order = _legal_order(part, orders[path], where)
        peaks[path] = part.live_bytes(order, workspaces_with(part, prefix, peaks))[0]
        bounds[path] = 0
        if path in proofs:
            proof = ProofChecker(part, workspaces_with(part, prefix, bounds), proofs[path], f"proofs[{path!r}]")
            proof.verify(trace)
            bounds[path] = proof.lower_bound
            nodes += proof.verified
            flows += proof.flows
        if bounds[path] > peaks[path]:  # would contradict a verified proof: a fault of this module
            refuse(f"proofs[{path!r}] proves {bounds[path]} bytes, but the order has a peak of {peaks[path]}")
    if peak != peaks[""]:
        refuse(f"'peak' is given as {show(peak)}, but the orders have a peak of {peaks['']} bytes")
    if lower_bound != bounds[""]:
        refuse(f"'lower_bound' is given as {show(lower_bound)}, but proofs[''] proves {bounds['']} bytes")
    return CheckReport(lower_bound, peak, lower_bound == peak, nodes, flows)


# -- the certificate's orders --------------------------------------------------------------------------------------


def _legal_order(program: Program, value: object, where: str) -> list[int]:
    n = len(program)
    order = read_statements(value, n, where)
    if len(order) != n:
        refuse(f"{where} has {len(order)} statements, the program has {n}")
    position = [0] * n
    for i, v in enumerate(order):
        position[v] = i
    for v, before in enumerate(program.predecessors):
        for u in before:
            if position[u] > position[v]:
                refuse(f"{where} runs {name_of(program, v)} before {name_of(program, u)}, on which it depends")
    return order


def workspaces_with(program: Program, prefix: str, inner: Mapping[str, int]) -> list[int]:
    """Workspace of each statement when the body at each path is charged ``inner[path]`` bytes."""
    return [
        s.workspace + max((inner[f"{prefix}{v}/{k}"] for k in range(len(s.bodies))), default=0)
        for v, s in enumerate(program.statements)
    ]


class Context:
    """What a node is proved for: a DAG and a state, with ``rest`` and the ready statements where they are known."""

    __slots__ = ("dag", "ready", "rest", "state")

    def __init__(self, dag: Dag, state: int, rest: int | None = None) -> None:
        self.dag, self.state, self.rest = dag, state, rest
        self.ready: tuple[int, ...] | None = None

    @property
    def key(self) -> tuple[int, frozenset[tuple[int, int]], int]:
        return id(self.dag.program), self.dag.arcs, self.state  # the program itself or its one mirror image


# -- proofs -----------------------------------------------------------------------------------------------------------


class ProofChecker:
    """One entry of ``proofs``: verifies that every order of its program has a peak of at least ``lower_bound``."""

    def __init__(self, program: Program, workspaces: Sequence[int], value: object, where: str) -> None:
        document = read_object(value, where)
        self.document = document
        self.program = program
        self.workspaces = workspaces
        self.where = where
        self.lower_bound = read_natural(document.get("lower_bound"), f"{where}: 'lower_bound'")
        self.nodes = read_sequence(document.get("nodes"), f"{where}: 'nodes'")
        self.root = document.get("root")
        self.verified = 0
        self.flows = 0
        self.n = len(program)
        self._toucher_masks: dict[int, int] = {}

        self.handlers: dict[str, Handler] = {
            "entry": self._entry, "forward": self._forward, "backward": self._backward, "precedence": self._precedence,
            "cycle": self._cycle, "branch": self._branch, "reverse": self._reverse, "waypoint": self._waypoint,
            "expand": self._expand, "move": self._move, "jump": self._jump,
        }  # fmt: skip
        self._twin: ProofChecker | None = None

    def verify(self, trace: Callable[[str], None] | None = None) -> None:
        allowed = CONTEXTS_PER_NODE * len(self.nodes) + 1024
        root = self._reference(self.root, len(self.nodes), f"{self.where}: 'root'")
        start = Context(Dag(self.program), 0)
        pending: dict[int, dict[object, Context]] = {root: {start.key: start}}
        met = 1
        for k in range(root, -1, -1):
            waiting = pending.pop(k, {})
            while waiting:
                _, context = waiting.popitem()  # and with it what was computed for it
                self.verified += 1
                node = read_object(self.nodes[k], f"{self.where}: node {k}")
                kind = node.get("kind")
                if not isinstance(kind, str) or kind not in self.handlers:
                    refuse(f"{self.where}: node {k} is of an unknown kind, {show(kind)}")
                where = f"{self.where}: node {k} ({kind})"
                if kind != "cycle" and not context.dag.acyclic:
                    refuse(f"{where} stands where the precedences are cyclic; only a cycle may")
                side = self if context.dag.program is self.program else self.twin
                flows = side.flows
                children = side.handlers[kind](node, context, where)
                if trace is not None:
                    trace(
                        f"{where}: {context.state.bit_count()} statements run, {len(context.dag.arcs)} precedences added, "
                        f"{side.flows - flows} flows" + ("" if side is self else ", mirror image")
                    )
                for value, place, then in children:
                    child = self._reference(value, k, f"{where}: {place}")
                    contexts = pending.setdefault(child, {})
                    if then.key not in contexts:
                        contexts[then.key] = then
                        met += 1
                        if met > allowed:
                            refuse(f"{self.where}: the nodes are shared in more contexts than the {allowed} allowed")
        if self._twin is not None:
            self.flows += self._twin.flows

    @property
    def twin(self) -> ProofChecker:
        """The same proof as seen from the mirror image of the program."""
        if self._twin is None:
            self._twin = ProofChecker(mirror(self.program), self.workspaces[::-1], self.document, self.where)
            self._twin._twin = self
        return self._twin

    def _reference(self, value: object, limit: int, where: str) -> int:
        if type(value) is not int or not 0 <= value < limit:
            refuse(f"{where} must be the index of an earlier node, not {show(value)}")
        return value

    def _statement(self, value: object, where: str) -> int:
        if type(value) is not int or not 0 <= value < self.n:
            refuse(f"{where} must be a statement of the program, not {show(value)}")
        return value

    # leaves

    def _entry(self, node: Mapping[str, Any], context: Context, where: str) -> Children:
        rest = self.rest(context)
        if rest < self.lower_bound:
            refuse(f"{where}: only {rest} bytes are resident at the state, not {self.lower_bound}")
        return ()

    def _forward(self, node: Mapping[str, Any], context: Context, where: str) -> Children:
        dag, state = context.dag, context.state
        trap = mask_of(read_statements(node.get("trap"), self.n, f"{where}: 'trap'"), self.n)
        if state & ~trap:
            refuse(f"{where}: the trap misses {self._first(state & ~trap)}, which the state has executed")
        self._down_set(dag, trap, f"{where}: the trap")
        exits = [v for v in self._outside(trap) if all((trap >> u) & 1 for u in dag.predecessors[v])]
        if not exits:
            refuse(f"{where}: the trap is the whole program, which has no exits")
        self._listed(node.get("exits"), exits, where, "exit", self.exit_networks(context, trap))
        return ()

    def _backward(self, node: Mapping[str, Any], context: Context, where: str) -> Children:
        dag, state = context.dag, context.state
        trap = mask_of(read_statements(node.get("trap"), self.n, f"{where}: 'trap'"), self.n)
        remaining = dag.everything & ~trap
        if state & trap:
            refuse(f"{where}: the trap holds {self._first(state & trap)}, which the state has executed")
        self._down_set(dag, remaining, f"{where}: the complement of the trap")
        entries = [v for v in self._outside(trap | state) if not any((remaining >> w) & 1 for w in dag.successors[v])]
        if not entries:
            refuse(f"{where}: the trap leaves nothing to run before it")
        self._listed(node.get("entries"), entries, where, "entry", self.entry_networks(context, trap))
        return ()

    def _listed(
        self, value: object, expected: Sequence[int], where: str, word: str, network: Callable[[int], Network]
    ) -> None:
        plural = "exits" if word == "exit" else "entries"
        rows: dict[int, object] = {}
        for i, item in enumerate(read_sequence(value, f"{where}: '{plural}'")):
            row = read_object(item, f"{where}: {plural}[{i}]")
            v = self._statement(row.get("statement"), f"{where}: {plural}[{i}]: 'statement'")
            if v in rows:
                refuse(f"{where}: {plural} lists {name_of(self.program, v)} twice")
            rows[v] = row.get("flow")
        for v in expected:
            if v not in rows:
                refuse(f"{where}: {name_of(self.program, v)} is an {word} of the trap and is missing from '{plural}'")
        if len(rows) > len(expected):
            extra = next(v for v in rows if v not in set(expected))
            refuse(f"{where}: {name_of(self.program, extra)} is no {word} of the trap")
        for v, flow in rows.items():
            self._shows(network(v), flow, f"{where}: {word} {name_of(self.program, v)}")

    def _cycle(self, node: Mapping[str, Any], context: Context, where: str) -> Children:
        walk = [
            self._statement(v, f"{where}: 'statements'")
            for v in read_sequence(node.get("statements"), f"{where}: 'statements'")
        ]
        if not walk:
            refuse(f"{where}: the cycle is empty")
        for u, v in zip(walk, [*walk[1:], walk[0]]):
            if u not in context.dag.predecessors[v]:
                refuse(f"{where}: {name_of(self.program, u)} does not directly precede {name_of(self.program, v)}")
        return ()

    # inner nodes

    def _precedence(self, node: Mapping[str, Any], context: Context, where: str) -> Children:
        dag = context.dag
        if context.state:
            refuse(f"{where} stands at a state that is not the empty one")
        live: dict[tuple[bool, int], Candidates] = {}
        arcs = set()
        for i, item in enumerate(read_sequence(node.get("arcs"), f"{where}: 'arcs'")):
            place = f"{where}: arcs[{i}]"
            row = read_object(item, place)
            u, v = self._pair(dag, row.get("before"), row.get("after"), place)
            at = self._statement(row.get("at"), f"{place}: 'at'")
            if at not in (u, v):
                refuse(f"{place}: 'at' must be one of the pair")
            bu, bv = 1 << u, 1 << v
            if at == v:
                inside = dag.ancestors(v)
                outside = bv | dag.descendants(v) | bu | dag.descendants(u)
                reference = inside
            else:
                inside = dag.ancestors(u) | bv | dag.ancestors(v)
                outside = bu | dag.descendants(u)
                reference = dag.everything & ~outside
            # The constant's buffers are resident at both ends of [L, U]; take the end that only `at` decides.
            if (at == v, at) not in live:
                live[at == v, at] = self.live(reference)
            self._shows(self.network(dag, at, inside, outside, live[at == v, at]), row.get("flow"), place)
            arcs.add((u, v))
        return ((node.get("then"), "'then'", Context(Dag(self.program, dag.arcs | arcs), 0)),)

    def _branch(self, node: Mapping[str, Any], context: Context, where: str) -> Children:
        if context.state:
            refuse(f"{where} stands at a state that is not the empty one")
        pair = read_sequence(node.get("pair"), f"{where}: 'pair'")
        if len(pair) != 2:
            refuse(f"{where}: 'pair' must name two statements")
        u, v = self._pair(context.dag, pair[0], pair[1], where)
        return tuple(
            (node.get(key), f"'{key}'", Context(Dag(self.program, context.dag.arcs | {arc}), 0))
            for key, arc in (("first", (u, v)), ("second", (v, u)))
        )

    def _reverse(self, node: Mapping[str, Any], context: Context, where: str) -> Children:
        if context.state or context.dag.arcs:
            refuse(f"{where} stands at a state that is not the empty one, or below an added precedence")
        return ((node.get("then"), "'then'", Context(Dag(self.twin.program), 0)),)

    def _waypoint(self, node: Mapping[str, Any], context: Context, where: str) -> Children:
        dag = context.dag
        members = read_statements(node.get("state"), self.n, f"{where}: 'state'")
        state = mask_of(members, self.n)
        if context.state & ~state:
            refuse(f"{where}: the state misses {self._first(context.state & ~state)}, which has been executed")
        self._down_set(dag, state, f"{where}: the state")
        # Everybody in W precedes everybody outside iff every last member directly precedes every first non-member.
        last = {u for u in members if not any((state >> w) & 1 for w in dag.successors[u])}
        for v in self._outside(state):
            before = dag.predecessors[v]
            if all((state >> u) & 1 for u in before) and not last.issubset(before):
                u = next(u for u in last if u not in before)
                refuse(f"{where}: {name_of(self.program, u)} does not precede {name_of(self.program, v)}")
        return ((node.get("then"), "'then'", Context(dag, state)),)

    def _expand(self, node: Mapping[str, Any], context: Context, where: str) -> Children:
        children = read_object(node.get("children"), f"{where}: 'children'")
        ready = self.ready(context)
        if not ready:
            refuse(f"{where}: nothing is left to run")
        if len(children) > len(ready):
            refuse(f"{where}: 'children' has {len(children)} entries, {len(ready)} statements are ready")
        result = []
        for v in ready:
            if str(v) not in children:
                refuse(f"{where}: {name_of(self.program, v)} is ready and is missing from 'children'")
            child = children[str(v)]
            if child is not None:
                result.append((child, f"children['{v}']", self.step(context, v)))
            elif self.price(context, v) < self.lower_bound:
                refuse(f"{where}: {name_of(self.program, v)} runs in {self.price(context, v)} bytes and needs a child")
        return result

    def _move(self, node: Mapping[str, Any], context: Context, where: str) -> Children:
        v = self._statement(node.get("statement"), f"{where}: 'statement'")
        end = self._walk(context, [v], where)
        if self.rest(end) > self.rest(context):
            refuse(
                f"{where}: {name_of(self.program, v)} leaves {self.rest(end) - self.rest(context)} bytes more than before"
            )
        return ((node.get("then"), "'then'", end),)

    def _jump(self, node: Mapping[str, Any], context: Context, where: str) -> Children:
        path = read_statements(node.get("path"), self.n, f"{where}: 'path'")
        end = self._walk(context, path, where)
        network = self.network(
            context.dag, None, context.state, context.dag.everything & ~end.state, self.live(end.state)
        )
        self.flows += 1
        if network.value(node.get("flow"), where) < self.rest(end):
            refuse(f"{where}: the flow does not show that no state on the way holds less than the last")
        return ((node.get("then"), "'then'", end),)

    def _walk(self, context: Context, path: Sequence[int], where: str) -> Context:
        end = context
        for v in path:
            name = name_of(self.program, v)
            if not self.is_ready(end, v):
                refuse(f"{where}: {name} is not ready at the state")
            if self.price(end, v) >= self.lower_bound:
                refuse(f"{where}: {name} takes {self.price(end, v)} bytes, which is not within the budget")
            end = self.step(end, v)
        return end

    # states

    def live(self, state: int) -> Candidates:
        """Buffers resident after ``state``: born in it or at entry, and pinned or with a toucher outside."""
        bits = bits_of(state, self.n)
        return Candidates(
            b
            for b, (buffer, touchers) in enumerate(zip(self.program.buffers, self.program.touchers))
            if buffer.kind != "constant"
            and (buffer.kind == "input" or any(bits[t] == "1" for t in touchers))
            and (buffer.pinned or any(bits[t] == "0" for t in touchers))
        )

    def rest(self, context: Context) -> int:
        if context.rest is None:
            context.rest = sum(self.program.buffers[b].size for b in self.live(context.state))
        return context.rest

    def is_ready(self, context: Context, v: int) -> bool:
        state = context.state
        return not (state >> v) & 1 and all((state >> u) & 1 for u in context.dag.predecessors[v])

    def ready(self, context: Context) -> tuple[int, ...]:
        if context.ready is None:
            context.ready = tuple(v for v in self._outside(context.state) if self.is_ready(context, v))
        return context.ready

    def newborn(self, context: Context, v: int) -> int:
        """Bytes of the buffers that v bears if it runs at the state."""
        return sum(
            self.program.buffers[b].size
            for b in self.program.touched[v]
            if self.program.buffers[b].kind != "input" and not self.toucher_mask(b) & context.state
        )

    def price(self, context: Context, v: int) -> int:
        """mem(S, v)."""
        return self.workspaces[v] + self.rest(context) + self.newborn(context, v)

    def step(self, context: Context, v: int) -> Context:
        state = context.state | 1 << v
        rest = self.rest(context) + self.newborn(context, v)
        for b in self.program.touched[v]:
            if not self.program.buffers[b].pinned and not self.toucher_mask(b) & ~state:
                rest -= self.program.buffers[b].size
        then = Context(context.dag, state, rest)
        if context.ready is not None:
            opened = [w for w in context.dag.successors[v] if self.is_ready(then, w)]
            then.ready = (*(w for w in context.ready if w != v), *opened)
        return then

    def toucher_mask(self, b: int) -> int:
        if b not in self._toucher_masks:
            self._toucher_masks[b] = mask_of(self.program.touchers[b], self.n)
        return self._toucher_masks[b]

    # networks

    def exit_networks(self, context: Context, trap: int) -> Callable[[int], Network]:
        """The network of each exit of a forward trap."""
        dag, candidates, outside = context.dag, self.live(trap), context.dag.everything & ~trap
        return lambda v: self.network(dag, v, dag.ancestors(v) | context.state, outside, candidates)

    def entry_networks(self, context: Context, trap: int) -> Callable[[int], Network]:
        """The network of each entry of a backward trap."""
        dag, remaining = context.dag, context.dag.everything & ~trap
        candidates = self.live(remaining)
        return lambda v: self.network(dag, v, remaining & ~(1 << v), 1 << v | dag.descendants(v), candidates)

    def network(self, dag: Dag, v: int | None, inside: int, outside: int, candidates: Candidates) -> Network:
        workspace = 0 if v is None else self.workspaces[v]
        return Network(dag, self.toucher_mask, v, workspace, inside, outside, candidates)

    # helpers

    def _shows(self, network: Network, flow: object, where: str) -> None:
        self.flows += 1
        value = network.value(flow, where)
        if value < self.lower_bound:
            refuse(f"{where}: the flow shows {value} bytes, not {self.lower_bound}")

    def _pair(self, dag: Dag, first: object, second: object, where: str) -> tuple[int, int]:
        u, v = self._statement(first, where), self._statement(second, where)
        if u == v or (dag.ancestors(u) >> v) & 1 or (dag.ancestors(v) >> u) & 1:
            refuse(f"{where}: {name_of(self.program, u)} and {name_of(self.program, v)} are ordered already")
        return u, v

    def _outside(self, mask: int) -> list[int]:
        bits = bits_of(mask, self.n)
        return [v for v in range(self.n) if bits[v] == "0"]

    def _down_set(self, dag: Dag, mask: int, where: str) -> None:
        bits = bits_of(mask, self.n)
        for v in range(self.n):
            if bits[v] == "1":
                for u in dag.predecessors[v]:
                    if bits[u] == "0":
                        refuse(
                            f"{where} is not a down-set: it holds {name_of(self.program, v)} "
                            f"without {name_of(self.program, u)}"
                        )

    def _first(self, mask: int) -> str:
        return name_of(self.program, (mask & -mask).bit_length() - 1)


Children = Iterable[tuple[object, str, Context]]
"""What an inner node refers to: the reference, where it stands, and the context it must be proved for."""

Handler = Callable[[Mapping[str, Any], Context, str], Children]
