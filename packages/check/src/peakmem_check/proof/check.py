"""The checker of certificates: knows the program model and nothing else of peakmem.

`check` verifies a document ``peakmem.certificate/1`` or ``/2`` (the format is defined in ``docs/reference/format.md``) against a
`Program`. It never solves anything: flows are added up, traps are walked, states are stepped through. What it accepts
is a theorem about the program; ``docs/theory.md`` has the proofs that the node kinds are sound.

How it works
------------
Nodes refer to smaller indices only, so one pass from the root downwards meets every node after all contexts in which it
must hold. A *context* is a side (the program or its mirror image, or a part of one of them, and the bound to prove for it), a DAG
(its dependences and precedences added by the nodes above) and a state (a bit mask of executed statements). Nothing recurses, and
the number of contexts is bounded by the size of the document, so a hostile certificate costs polynomial time and no stack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from peakmem_check.model.program import Program
from peakmem_check.proof.certificate import SCHEMA, SCHEMAS
from peakmem_check.proof.graph import (
    Candidates,
    Dag,
    Network,
    Overlaid,
    bits_of,
    mask_of,
    mirror,
    name_of,
    read_natural,
    read_object,
    read_sequence,
    read_statements,
    refuse,
    restricted,
    show,
)

CONTEXTS_PER_NODE = 16
"""A proof may use its nodes in so many contexts each on average (plus 1024): sharing must not blow up the work."""

KINDS = frozenset(
    ("entry", "forward", "backward", "precedence", "cycle", "branch", "reverse", "components", "waypoint", "expand", "move", "jump")
)
"""Kinds of proof nodes; `Side` has a method for each."""


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
    schema = top.get("schema")
    if schema not in SCHEMAS:
        refuse(f"'schema' must be {' or '.join(map(repr, SCHEMAS))}, not {show(schema)}")
    if schema == SCHEMA and program.has_overlays:
        refuse(f"'schema' must be {SCHEMAS[-1]!r} for a program with overlays")
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
            proof = Proof(part, workspaces_with(part, prefix, bounds), proofs[path], f"proofs[{path!r}]", schema != SCHEMA)
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
        s.workspace + max(inner[f"{prefix}{v}/{k}"] for k in range(len(s.bodies))) if s.bodies else s.workspace
        for v, s in enumerate(program.statements)
    ]


class Context:
    """What a node is proved for: a side, a DAG and a state, with ``rest`` and the ready statements where they are known.

    What is large is made when first asked for: many contexts may wait.
    """

    __slots__ = ("_dag", "arcs", "ready", "rest", "side", "state")

    def __init__(
        self, side: Side, arcs: frozenset[tuple[int, int]] = frozenset(), state: int = 0, rest: int | None = None,
        dag: Dag | None = None,
    ) -> None:  # fmt: skip
        self.side, self.arcs, self.state, self.rest, self._dag = side, arcs, state, rest, dag
        self.ready: tuple[int, ...] | None = None

    @property
    def dag(self) -> Dag:
        if self._dag is None:
            self._dag = Dag(self.side.program, self.arcs, self.side.members)
        return self._dag

    @property
    def key(self) -> object:
        return self.side.key, self.arcs, self.state


# -- proofs -----------------------------------------------------------------------------------------------------------


class Proof:
    """One entry of ``proofs``: verifies that every order of its program has a peak of at least ``lower_bound``.

    ``parts``: whether `components` nodes are known.
    """

    def __init__(
        self, program: Program, workspaces: Sequence[int], value: object, where: str, parts: bool = True
    ) -> None:
        document = read_object(value, where)
        self.program, self.workspaces, self.where, self.parts = program, workspaces, where, parts
        self.n = len(program)
        self.lower_bound = read_natural(document.get("lower_bound"), f"{where}: 'lower_bound'")
        self.nodes = read_sequence(document.get("nodes"), f"{where}: 'nodes'")
        self.root = document.get("root")
        self.verified = 0
        self.flows = 0
        self._sides: WeakValueDictionary[SideKey, Side] = WeakValueDictionary()  # those that contexts still refer to
        self.whole = self.side(False, (1 << self.n) - 1, self.lower_bound)

    @cached_property
    def mirrored(self) -> Program:
        """The mirror image of the program."""
        return mirror(self.program)

    def side(self, mirrored: bool, members: int, lower_bound: int) -> Side:
        """The program or its mirror image, or the part of it that ``members`` are, where so much is to be proved."""
        key = mirrored, members, lower_bound
        found = self._sides.get(key)
        if found is None:
            found = self._sides[key] = Side(self, *key)
        return found

    def verify(self, trace: Callable[[str], None] | None = None) -> None:
        allowed = CONTEXTS_PER_NODE * len(self.nodes) + 1024
        root = self.reference(self.root, len(self.nodes), f"{self.where}: 'root'")
        start = Context(self.whole)
        pending: dict[int, dict[object, Context]] = {root: {start.key: start}}
        met = 1
        for k in range(root, -1, -1):
            waiting = pending.pop(k, {})
            while waiting:
                _, context = waiting.popitem()  # and with it what was computed for it
                self.verified += 1
                node = read_object(self.nodes[k], f"{self.where}: node {k}")
                kind = node.get("kind")
                side = context.side
                if not isinstance(kind, str) or kind not in KINDS:
                    refuse(f"{self.where}: node {k} is of an unknown kind, {show(kind)}")
                where = f"{self.where}: node {k} ({kind})"
                if kind == "components" and not self.parts:
                    refuse(f"{where} needs a certificate of 'schema' {SCHEMAS[-1]!r}")
                if kind != "cycle" and not context.dag.acyclic:
                    refuse(f"{where} stands where the precedences are cyclic; only a cycle may")
                flows = self.flows
                children = side.verify(kind, node, context, where)
                if trace is not None:
                    trace(
                        f"{where}: {context.state.bit_count()} statements run, {len(context.arcs)} precedences added, "
                        f"{self.flows - flows} flows{side.words}"
                    )
                for value, place, then in children:
                    child = self.reference(value, k, f"{where}: {place}")
                    contexts = pending.setdefault(child, {})
                    if then.key not in contexts:
                        contexts[then.key] = then
                        met += 1
                        if met > allowed:
                            refuse(f"{self.where}: the nodes are shared in more contexts than the {allowed} allowed")

    def reference(self, value: object, limit: int, where: str) -> int:
        if type(value) is not int or not 0 <= value < limit:
            refuse(f"{where} must be the index of an earlier node, not {show(value)}")
        return value


class Side:
    """What nodes are verified on: the program or its mirror image, or a part of one of them.

    Attributes
    ----------
    members : int
        Mask of its statements.
    lower_bound : int
        What is to be proved for it, in bytes.
    gains : sequence of sequence of (int, int)
        For each statement the inputs of its overlay, with the bytes that may be saved.
    """

    def __init__(self, proof: Proof, mirrored: bool, members: int, lower_bound: int) -> None:
        self.proof, self.mirrored, self.members, self.lower_bound = proof, mirrored, members, lower_bound
        self.n = proof.n
        self.whole = members == (1 << self.n) - 1
        self.gains, self.workspaces = proof.program.gains, proof.workspaces
        if mirrored:
            self.gains, self.workspaces = self.gains[::-1], self.workspaces[::-1]
        self._toucher_masks: dict[int, int] = {}

    @property
    def key(self) -> SideKey:
        return self.mirrored, self.members, self.lower_bound

    @property
    def words(self) -> str:
        """What it is, to end a line of the trace with."""
        part = "" if self.whole else f", a part of {self.members.bit_count()} statements within {self.lower_bound}"
        return (", mirror image" if self.mirrored else "") + part

    @cached_property
    def program(self) -> Program:
        source = self.proof.mirrored if self.mirrored else self.proof.program
        if self.whole:
            return source
        bits = bits_of(self.members, self.n)
        own = {b for b, row in enumerate(source.touchers) if row and all(bits[t] == "1" for t in row)}
        return restricted(source, self.members, own)

    def verify(self, kind: str, node: Mapping[str, Any], context: Context, where: str) -> Children:
        """Refuse the node if it does not prove its context; what it refers to must be proved too."""
        handler: Callable[[Mapping[str, Any], Context, str], Children] = getattr(self, "_" + kind)
        return handler(node, context, where)

    def _statement(self, value: object, where: str) -> int:
        if type(value) is not int or not 0 <= value < self.n or not (self.whole or (self.members >> value) & 1):
            refuse(f"{where} must be a statement of the {'program' if self.whole else 'part'}, not {show(value)}")
        return value

    def _statements(self, value: object, where: str) -> list[int]:
        found = read_statements(value, self.n, where)
        if not self.whole:
            for v in found:
                self._statement(v, where)
        return found

    def _set(self, value: object, where: str) -> int:
        return mask_of(self._statements(value, where), self.n)

    # leaves

    def _entry(self, node: Mapping[str, Any], context: Context, where: str) -> Children:
        rest = self.rest(context)
        if rest < self.lower_bound:
            refuse(f"{where}: only {rest} bytes are resident at the state, not {self.lower_bound}")
        return ()

    def _forward(self, node: Mapping[str, Any], context: Context, where: str) -> Children:
        dag, state = context.dag, context.state
        trap = self._set(node.get("trap"), f"{where}: 'trap'")
        if state & ~trap:
            refuse(f"{where}: the trap misses {self._first(state & ~trap)}, which the state has executed")
        self._down_set(dag, trap, f"{where}: the trap")
        exits = self._next(dag, trap)
        if not exits:
            refuse(f"{where}: the trap is the whole program, which has no exits")
        self._listed(node.get("exits"), exits, where, "exit", self.exit_networks(context, trap))
        return ()

    def _backward(self, node: Mapping[str, Any], context: Context, where: str) -> Children:
        dag, state = context.dag, context.state
        trap = self._set(node.get("trap"), f"{where}: 'trap'")
        remaining = dag.everything & ~trap
        if state & trap:
            refuse(f"{where}: the trap holds {self._first(state & trap)}, which the state has executed")
        self._down_set(dag, remaining, f"{where}: the complement of the trap")
        remains = bits_of(remaining, self.n).__getitem__
        entries = [v for v in self._outside(trap | state) if "1" not in map(remains, dag.successors[v])]
        if not entries:
            refuse(f"{where}: the trap leaves nothing to run before it")
        self._listed(node.get("entries"), entries, where, "entry", self.entry_networks(context, trap))
        return ()

    def _listed(
        self, value: object, expected: Sequence[int], where: str, word: str, networks: Callable[[int], list[Network]]
    ) -> None:
        plural = "exits" if word == "exit" else "entries"
        rows: dict[int, Mapping[str, Any]] = {}
        for i, item in enumerate(read_sequence(value, f"{where}: '{plural}'")):
            row = read_object(item, f"{where}: {plural}[{i}]")
            v = self._statement(row.get("statement"), f"{where}: {plural}[{i}]: 'statement'")
            if v in rows:
                refuse(f"{where}: {plural} lists {name_of(self.program, v)} twice")
            rows[v] = row
        for v in expected:
            if v not in rows:
                refuse(f"{where}: {name_of(self.program, v)} is an {word} of the trap and is missing from '{plural}'")
        if len(rows) > len(expected):
            extra = next(v for v in rows if v not in set(expected))
            refuse(f"{where}: {name_of(self.program, extra)} is no {word} of the trap")
        for v, row in rows.items():
            self._shows(networks(v), row, f"{where}: {word} {name_of(self.program, v)}")

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
            self._shows(self.networks(dag, at, inside, outside, live[at == v, at]), row, place)
            arcs.add((u, v))
        return ((node.get("then"), "'then'", Context(self, context.arcs | arcs)),)

    def _branch(self, node: Mapping[str, Any], context: Context, where: str) -> Children:
        if context.state:
            refuse(f"{where} stands at a state that is not the empty one")
        pair = read_sequence(node.get("pair"), f"{where}: 'pair'")
        if len(pair) != 2:
            refuse(f"{where}: 'pair' must name two statements")
        u, v = self._pair(context.dag, pair[0], pair[1], where)
        return tuple(
            (node.get(key), f"'{key}'", Context(self, context.arcs | {arc}))
            for key, arc in (("first", (u, v)), ("second", (v, u)))
        )

    def _reverse(self, node: Mapping[str, Any], context: Context, where: str) -> Children:
        if context.state or context.arcs:
            refuse(f"{where} stands at a state that is not the empty one, or below an added precedence")
        members = int(bits_of(self.members, self.n) or "0", 2)  # the bits the other way round
        return ((node.get("then"), "'then'", Context(self.proof.side(not self.mirrored, members, self.lower_bound))),)

    def _components(self, node: Mapping[str, Any], context: Context, where: str) -> Children:
        dag, program = context.dag, self.program
        members = self._statements(node.get("statements"), f"{where}: 'statements'")
        part = mask_of(members, self.n)
        others = self.members & ~part
        if not part or not others:
            refuse(f"{where}: 'statements' must be some statements and not all")
        inside = set(members)
        for v in members:
            for u in (*dag.predecessors[v], *dag.successors[v]):
                if u not in inside:
                    refuse(f"{where}: a dependence joins {name_of(program, v)} to {name_of(program, u)}, which is no part of it")
        touched = {b for v in members for b in program.touched[v]}
        own = {b for b in touched if inside.issuperset(program.touchers[b])}
        for b in touched - own:
            buffer = program.buffers[b]
            if not (buffer.pinned and buffer.kind == "input"):
                refuse(f"{where}: buffer {show(buffer.name)} joins the part to other statements")
        rest = Candidates(b for b, row in enumerate(program.buffers) if b not in own and row.kind != "constant")
        network = Network(dag, None, 0, context.state & others, part, rest, foreign=own)
        self.proof.flows += 1
        least = network.value(node.get("flow"), where)
        if least >= self.lower_bound:
            refuse(f"{where}: the flow shows {least} bytes, the bound itself, and leaves nothing to prove for the part")
        side = self.proof.side(self.mirrored, part, self.lower_bound - least)
        arcs = frozenset(arc for arc in context.arcs if (part >> arc[0]) & 1)
        return ((node.get("then"), "'then'", Context(side, arcs, context.state & part)),)

    def _waypoint(self, node: Mapping[str, Any], context: Context, where: str) -> Children:
        dag = context.dag
        members = self._statements(node.get("state"), f"{where}: 'state'")
        state = mask_of(members, self.n)
        if context.state & ~state:
            refuse(f"{where}: the state misses {self._first(context.state & ~state)}, which has been executed")
        self._down_set(dag, state, f"{where}: the state")
        # Everybody in W precedes everybody outside iff every last member directly precedes every first non-member.
        is_in = bits_of(state, self.n).__getitem__
        last = {u for u in members if "1" not in map(is_in, dag.successors[u])}
        for v in self._next(dag, state):
            before = dag.predecessors[v]
            if not last.issubset(before):
                u = next(u for u in last if u not in before)
                refuse(f"{where}: {name_of(self.program, u)} does not precede {name_of(self.program, v)}")
        return ((node.get("then"), "'then'", Context(self, context.arcs, state, dag=dag)),)

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
        path = self._statements(node.get("path"), f"{where}: 'path'")
        end = self._walk(context, path, where)
        network = self.networks(
            context.dag, None, context.state, context.dag.everything & ~end.state, self.live(end.state)
        )[0]
        self.proof.flows += 1
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
        has_run = bits_of(state, self.n).__getitem__
        return Candidates(
            b
            for b, (buffer, touchers) in enumerate(zip(self.program.buffers, self.program.touchers))
            if buffer.kind != "constant"
            and (buffer.kind == "input" or "1" in map(has_run, touchers))
            and (buffer.pinned or "0" in map(has_run, touchers))
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
            context.ready = tuple(self._next(context.dag, context.state))
        return context.ready

    def newborn(self, context: Context, v: int) -> int:
        """Bytes of the buffers that v bears if it runs at the state."""
        return sum(
            self.program.buffers[b].size
            for b in self.program.touched[v]
            if self.program.buffers[b].kind != "input" and not self.toucher_mask(b) & context.state
        )

    def saved(self, context: Context, v: int) -> int:
        """What the overlay of v saves at the state."""
        present = context.state if self.mirrored else ~context.state
        return max((gain for a, gain in self.gains[v] if not self.toucher_mask(a) & present & ~(1 << v)), default=0)

    def price(self, context: Context, v: int) -> int:
        """mem(S, v)."""
        return self.workspaces[v] + self.rest(context) + self.newborn(context, v) - self.saved(context, v)

    def step(self, context: Context, v: int) -> Context:
        state = context.state | 1 << v
        rest = self.rest(context) + self.newborn(context, v)
        for b in self.program.touched[v]:
            if not self.program.buffers[b].pinned and not self.toucher_mask(b) & ~state:
                rest -= self.program.buffers[b].size
        then = Context(self, context.arcs, state, rest, context.dag)
        if context.ready is not None:
            opened = [w for w in context.dag.successors[v] if self.is_ready(then, w)]
            then.ready = (*(w for w in context.ready if w != v), *opened)
        return then

    def toucher_mask(self, b: int) -> int:
        mask = self._toucher_masks.get(b)
        if mask is None:
            mask = mask_of(self.program.touchers[b], self.n)
            if len(self._toucher_masks) * self.n > 2**31:  # keep the store under about 256 MB
                self._toucher_masks.clear()
            self._toucher_masks[b] = mask
        return mask

    # networks

    def exit_networks(self, context: Context, trap: int) -> Callable[[int], list[Network]]:
        """The networks of each exit of a forward trap."""
        dag, candidates, outside = context.dag, self.live(trap), context.dag.everything & ~trap
        return lambda v: self.networks(dag, v, dag.ancestors(v) | context.state, outside, candidates)

    def entry_networks(self, context: Context, trap: int) -> Callable[[int], list[Network]]:
        """The networks of each entry of a backward trap."""
        dag, remaining = context.dag, context.dag.everything & ~trap
        candidates = self.live(remaining)
        return lambda v: self.networks(dag, v, remaining & ~(1 << v), 1 << v | dag.descendants(v), candidates)

    def networks(self, dag: Dag, v: int | None, inside: int, outside: int, candidates: Candidates) -> list[Network]:
        """The network of a cut, one for each way to overlay v."""
        if v is None:
            return [Network(dag, None, 0, inside, outside, candidates)]
        ways: list[Overlaid | None] = [
            Overlaid(a, gain, self.toucher_mask(a) & ~(1 << v), self.mirrored) for a, gain in self.gains[v]
        ]
        return [
            Network(dag, v, self.workspaces[v], inside, outside, candidates, way)
            for way in ways or [None]
        ]

    # helpers

    def _shows(self, networks: Sequence[Network], row: Mapping[str, Any], where: str) -> None:
        """Whether the flows of a row show the bound, one for each network."""
        for i, (network, flow) in enumerate(zip(networks, self.flows_of(networks, row, where), strict=True)):
            self.proof.flows += 1
            place = where if network.overlaid is None else f"{where}: flows[{i}]"
            value = network.value(flow, place)
            if value < self.lower_bound:
                refuse(f"{place}: the flow shows {value} bytes, not {self.lower_bound}")

    def flows_of(self, networks: Sequence[Network], row: Mapping[str, Any], where: str) -> Sequence[object]:
        """The flows that a row gives: one, or as many as its statement has ways to overlay it."""
        several = networks[0].overlaid is not None
        given, other = ("flows", "flow") if several else ("flow", "flows")
        if other in row:
            word = "an" if several else "no"
            refuse(f"{where}: has '{other}', but its statement has {word} overlay, which asks for '{given}'")
        if not several:
            return [row.get("flow")]
        flows = read_sequence(row.get("flows"), f"{where}: 'flows'")
        if len(flows) != len(networks):
            refuse(f"{where}: 'flows' has {len(flows)} entries, the overlay {len(networks)} inputs")
        return flows

    def _pair(self, dag: Dag, first: object, second: object, where: str) -> tuple[int, int]:
        u, v = self._statement(first, where), self._statement(second, where)
        if u == v or (dag.ancestors(u) >> v) & 1 or (dag.ancestors(v) >> u) & 1:
            refuse(f"{where}: {name_of(self.program, u)} and {name_of(self.program, v)} are ordered already")
        return u, v

    def _outside(self, mask: int) -> list[int]:
        bits = bits_of(~self.members & (1 << self.n) - 1 | mask, self.n)
        return [v for v in range(self.n) if bits[v] == "0"]

    def _next(self, dag: Dag, mask: int) -> list[int]:
        """Statements outside a set whose predecessors are all in it."""
        is_in = bits_of(mask, self.n).__getitem__
        return [v for v in self._outside(mask) if "0" not in map(is_in, dag.predecessors[v])]

    def _down_set(self, dag: Dag, mask: int, where: str) -> None:
        bits = bits_of(mask, self.n)
        for v, taken in enumerate(bits):
            if taken == "1" and "0" in map(bits.__getitem__, dag.predecessors[v]):
                u = next(u for u in dag.predecessors[v] if bits[u] == "0")
                refuse(f"{where} is not a down-set: it holds {name_of(self.program, v)} without {name_of(self.program, u)}")

    def _first(self, mask: int) -> str:
        return name_of(self.program, (mask & -mask).bit_length() - 1)


Children = Iterable[tuple[object, str, Context]]
"""What an inner node refers to: the reference, where it stands, and the context it must be proved for."""

SideKey = tuple[bool, int, int]
"""Mirrored or not, the mask of the statements, the bound to prove."""

