"""A proof a person can read: what a certificate says, in sentences.

`explain` checks the certificate first and then says only what it proves. The alternatives it lists are read off the
flows: a flow is taken apart into paths, and on each path at least one buffer is live at every state of the trap,
because what frees one (its last reader has run) has brought the next (that reader needs its writer).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

from peakmem_check.model.program import Program
from peakmem_check.proof.check import Context, Proof, Side, check, workspaces_with
from peakmem_check.proof.graph import Network, Node, buffer_of, mask_of

MANY = 8
"""So many names are listed before the rest is summed up."""


def explain(program: Program, document: object, *, show: Callable[[str], str] = str) -> list[str]:
    """Sentences that say why no order can do better than the certificate's bound.

    Parameters
    ----------
    program : Program
    document : object
        A certificate as parsed JSON; it is checked first.
    show : callable, optional
        What to print of the name of a statement or buffer; the whole name if not given.

    Returns
    -------
    list of str
        Lines to print; details are indented.

    Raises
    ------
    Refused
        When the certificate is not valid for the program.
    """
    report = check(program, document)
    lines = [f"Every order of the {len(program)} statements has a peak of at least {report.lower_bound:,} B."]
    if report.optimal:
        lines.append("The order in the certificate has exactly that peak, so it is optimal.")
    else:
        lines.append(
            f"The order in the certificate has a peak of {report.peak:,} B; the {report.peak - report.lower_bound:,} B "
            "between are undecided."
        )
    if program.has_overlays:
        lines.append("In every order a statement with an overlay may write its output on top of an input that dies with it.")
    proofs = cast("Mapping[str, Any]", cast("dict[str, Any]", document)["proofs"])
    if "" not in proofs:
        return [*lines, "The bound is the trivial one and needs no proof."]
    bounds = {path: int(proofs[path]["lower_bound"]) if path in proofs else 0 for path, _ in program.bodies()}
    inner = {path: bound for path, bound in bounds.items() if bound}
    if inner:
        lines.append(
            "Workspaces include the proved bounds of bodies: "
            + ", ".join(f"body {path} at least {bound:,} B" for path, bound in inner.items())
            + "."
        )
    proof = Proof(program, workspaces_with(program, "", bounds), proofs[""], "proofs['']")
    return lines + _Story(proof, show).lines


class _Story:
    """Follows one path through the proof, from the root to a leaf."""

    def __init__(self, proof: Proof, show: Callable[[str], str]) -> None:
        self.lines: list[str] = []
        self.show = show
        self._sized = False  # whether the size of the proof has been told
        self.proof = proof
        context = Context(proof.whole)
        k = cast(int, proof.root)
        for _ in range(len(proof.nodes)):
            node = proof.nodes[k]
            self.side: Side = context.side
            children = list(self.side.verify(node["kind"], node, context, "explain"))
            self.bound = self.side.lower_bound
            self.left = children[0][2].side.lower_bound if children else 0  # for what follows
            getattr(self, "_" + node["kind"])(node, context, len(children))
            if not children:
                break
            k, _, context = cast("tuple[int, str, Context]", children[0])

    def say(self, sentence: str) -> None:
        self.lines.append(sentence)

    # inner nodes

    def _reverse(self, node: Mapping[str, Any], context: Context, children: int) -> None:
        self.say(
            "The proof reads the program backwards in time: an order and its reversal have the same memory at every "
            "step. In what follows, before and after are exchanged."
        )

    def _components(self, node: Mapping[str, Any], context: Context, children: int) -> None:
        count = len(node["statements"])
        self.say(
            f"Nothing that comes or goes joins {self._names(node['statements'])} to the other statements, which hold at least "
            f"{self.bound - self.left:,} B all the time. For {'it' if count == 1 else f'these {count}'} alone the bound is "
            f"{self.left:,} B:"
        )

    def _waypoint(self, node: Mapping[str, Any], context: Context, children: int) -> None:
        count = len(node["state"])
        what = self._names(node["state"]) if count < 4 else f"the same {count} statements"
        self.say(f"Every order first runs {what}, because all others need {'it' if count == 1 else 'them'}.")

    def _move(self, node: Mapping[str, Any], context: Context, children: int) -> None:
        if not (self.lines and self.lines[-1].startswith("Nothing is lost")):
            self.say(
                f"Nothing is lost by running {self._names([node['statement']])} next: it stays below the bound and "
                "leaves no more bytes than before (and so on while that holds)."
            )

    def _jump(self, node: Mapping[str, Any], context: Context, children: int) -> None:
        path = node["path"]
        self.say(
            f"Nothing is lost by running these {len(path)} next: {self._names(path)}; they stay below the bound, and "
            "no state on the way leaves fewer bytes than the last."
        )

    def _precedence(self, node: Mapping[str, Any], context: Context, children: int) -> None:
        arcs = node["arcs"]
        shown = "; ".join(f"{self._names([a['before']])} before {self._names([a['after']])}" for a in arcs[:4])
        more = f"; and {len(arcs) - 4} more" if len(arcs) > 4 else ""
        self.say(
            f"An order below the bound would have to run {shown}{more}: the other way round costs the bound itself."
        )

    def _branch(self, node: Mapping[str, Any], context: Context, children: int) -> None:
        u, v = node["pair"]
        self.say(
            f"Either {self._names([u])} runs before {self._names([v])} or after it; both are refuted. The first case:"
        )

    def _expand(self, node: Mapping[str, Any], context: Context, children: int) -> None:
        ready = sorted(self.side.ready(context))
        stopped = [v for v in ready if node["children"][str(v)] is None]
        self.say(f"Next must run {self._one_of(ready)}.")
        if stopped:
            cheapest = min(stopped, key=lambda v: (self.side.price(context, v), v))
            which = "Each of them" if len(stopped) == len(ready) else f"{len(stopped)} of them"
            self.say(f"{which} would at once need the bound or more. The cheapest is {self._names([cheapest])}:")
            resident = [b for b in self.side.live(context.state) if b not in self.side.program.touched[cheapest]]
            self._charges(cheapest, resident, "resident at that point", self.side.saved(context, cheapest))
            self.say(f"  together {self.side.price(context, cheapest):,} B")
        if children:
            size = "" if self._sized else f"; the whole proof has {self._size()}"
            self._sized = True
            self.say(
                f"{children} of them are followed further{size}. "
                f"One of the cases, as an example: after {self._names([v for v in ready if v not in stopped][:1])}."
            )

    def _size(self) -> str:
        """How many nodes the proof has, of which kinds."""
        kinds = Counter(str(n["kind"]) for n in self.proof.nodes)
        listed = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
        return f"{len(self.proof.nodes)} nodes ({listed})"

    # leaves

    def _entry(self, node: Mapping[str, Any], context: Context, children: int) -> None:
        when = "Before anything runs" if not context.state else "At that point"
        live = self.side.live(context.state)
        self.say(f"{when}, {self.side.rest(context):,} B are resident already: {self._buffers(live)}.")

    def _cycle(self, node: Mapping[str, Any], context: Context, children: int) -> None:
        walk = node["statements"]
        self.say(
            f"These precedences go round in a circle, which no order can: {self._names([*walk, walk[0]], many=20)}."
        )

    def _forward(self, node: Mapping[str, Any], context: Context, children: int) -> None:
        networks = self.side.exit_networks(context, mask_of(node["trap"], self.side.n))
        shown = f"that end with {self._names(node['trap'][-3:])}" if node["trap"] else ""
        self._trap(node["exits"], networks, node, shown, forward=True)

    def _backward(self, node: Mapping[str, Any], context: Context, children: int) -> None:
        networks = self.side.entry_networks(context, mask_of(node["trap"], self.side.n))
        shown = f"that begin with {self._names(node['trap'][:3])}" if node["trap"] else ""
        self._trap(node["entries"], networks, node, shown, forward=False)

    def _trap(
        self, rows: Sequence[Mapping[str, Any]], networks: Callable[[int], list[Network]], node: Mapping[str, Any], shown: str,
        *, forward: bool,
    ) -> None:  # fmt: skip
        cuts = []  # of each exit the way to overlay it that shows least
        for row in rows:
            ways = networks(row["statement"])
            shows = [(n.value(f, "explain"), n, f) for n, f in zip(ways, self.side.flows_of(ways, row, "explain"))]
            cuts.append(min(shows, key=lambda cut: cut[0]))
        if len(cuts) == 1 and self._alone(*cuts[0][1:]):
            return
        end = "beginning" if forward else "end"
        self.say(f"Take the {len(node['trap'])} statements {shown}." if shown else f"Take the very {end}.")
        exits = [row["statement"] for row in rows]
        self.say(f"The {'first' if forward else 'last'} statement outside that set can only be {self._one_of(exits)}.")
        self._cheapest(cuts, f"born {'before it can run' if forward else 'by then'} and still needed afterwards")

    def _alone(self, network: Network, flow: object) -> bool:
        """A single statement that reaches the bound with what it touches."""
        v = cast(int, network.statement)
        if flow or network.held:
            return False
        self.say(f"The statement {self._names([v])} is the floor: whenever it runs, it needs")
        self._charges(v, [], "", network.saved, self._under(network))
        self.say(f"  together {network.constant:,} B")
        return True

    def _cheapest(self, cuts: Sequence[tuple[int, Network, Any]], why: str) -> None:
        value, network, flow = min(cuts, key=lambda cut: cut[0])
        v = cast(int, network.statement)
        word = (
            "It needs"
            if len(cuts) == 1
            else f"Each needs at least {value:,} B. The least is shown for {self._names([v])}:"
        )
        self.say(word)
        self._charges(v, network.held, why, network.saved, self._under(network))
        paths = _paths(flow)
        if paths:
            self.say("  of each line one is live (what frees one has brought the next):")
            for nodes, amount in sorted(paths.items(), key=lambda item: (-item[1], item[0]))[:MANY]:
                self.say(f"    {amount:,} B of {' or '.join(self._live(b, network) for b in nodes)}")
            left = len(paths) - MANY
            if left > 0:
                rest = sum(sorted(paths.values(), reverse=True)[MANY:])
                self.say(f"    {rest:,} B in {left} more lines")
        self.say(f"  together {value:,} B, and the bound is {self.bound:,} B")

    # words

    def _charges(self, v: int, held: Sequence[int], why: str, saved: int, under: str = "a dying input") -> None:
        program = self.side.program
        if self.side.workspaces[v]:
            self.say(f"  {self.side.workspaces[v]:,} B of workspace")
        for buffers, what in ((program.touched[v], "that it touches"), (held, why)):
            total = sum(program.buffers[b].size for b in buffers)
            if total:
                self.say(f"  {total:,} B {what}: {self._buffers(buffers)}")
        if saved:
            self.say(f"  less {saved:,} B that its output shares with {under}")

    def _under(self, network: Network) -> str:
        """What the output of an overlay lies on."""
        return "" if network.overlaid is None else self._buffer(network.overlaid.buffer)

    def _live(self, b: int, network: Network) -> str:
        """A node of a path: a buffer, or the input of an overlay, which then does not die."""
        return self._buffer(b) if b >= 0 else f"{self._under(network)}, if it lives on"

    def _buffer(self, b: int) -> str:
        buffer = self.side.program.buffers[b]
        return f"{self.show(buffer.name)} ({buffer.size:,} B)"

    def _buffers(self, buffers: Iterable[int]) -> str:
        size = {b: self.side.program.buffers[b].size for b in buffers}
        ranked = sorted((b for b in size if size[b]), key=lambda b: (-size[b], b))
        shown = ", ".join(self._buffer(b) for b in ranked[:MANY])
        if len(ranked) > MANY:
            shown += f" and {len(ranked) - MANY} more ({sum(size[b] for b in ranked[MANY:]):,} B)"
        return shown

    def _names(self, statements: Sequence[int], many: int = MANY) -> str:
        program = self.side.program
        shown = ", ".join(repr(self.show(program.statements[v].name)) for v in statements[:many])
        return shown + (f" and {len(statements) - many} more" if len(statements) > many else "")

    def _one_of(self, statements: Sequence[int]) -> str:
        names = self._names(statements)
        return names if len(statements) == 1 else f"one of {len(statements)}: {names}"


def _paths(flow: Sequence[Sequence[Any]]) -> dict[tuple[int, ...], int]:
    """A conserved flow as paths from source to sink: the buffers on each, and the bytes it carries; circles cancelled.

    The node "g" of an overlay is listed as -1.
    """
    left: dict[Node, dict[Node, int]] = {}
    for tail, head, amount in flow:
        left.setdefault(tail, {})[head] = amount
    result: Counter[tuple[int, ...]] = Counter()
    while left.get("s"):
        path: list[Node] = ["s"]
        place: dict[Node, int] = {"s": 0}
        while path[-1] != "t":
            head = next(iter(left[path[-1]]))
            if head in place:  # a circle: cancel it and go on from where it began
                start = place[head]
                _take(left, [*path[start:], head])
                for node in path[start + 1 :]:
                    del place[node]
                del path[start + 1 :]
                if not left.get(path[-1]):
                    break
                continue
            place[head] = len(path)
            path.append(head)
        if path[-1] == "t":
            amount = _take(left, path)
            nodes = (-1 if x == "g" else buffer_of(x) or 0 for x in path if isinstance(x, str) and x[0] in "bg")
            result[tuple(nodes)] += amount
    return dict(result)


def _take(left: dict[Node, dict[Node, int]], walk: Sequence[Node]) -> int:
    """Subtract the most that the walk carries."""
    arcs = list(pairwise(walk))
    amount = min(left[a][b] for a, b in arcs)
    for a, b in arcs:
        left[a][b] -= amount
        if not left[a][b]:
            del left[a][b]
    return amount
