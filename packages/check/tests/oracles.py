"""Ground truth: the definitions of the model written down naively, exhaustive optima, and random programs.

Nothing here uses peakmem's liveness, bounds or search; only the `Program` record is shared, and of its derived
properties none: touchers, births and states are worked out again from reads, writes and dependences.
"""

from __future__ import annotations

import copy
import heapq
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from peakmem_check.model import Buffer, InputError, Overlay, Program, Statement

# -- the definitions -----------------------------------------------------------------------------------------------


class Model:
    """Section by section the definitions, on Python sets.

    ``workspaces`` overrides the workspace of each statement (for bodies).
    """

    def __init__(self, program: Program, workspaces: Sequence[int] | None = None) -> None:
        self.program = program
        self.n = len(program.statements)
        self.size = [b.size for b in program.buffers]
        self.entry = [b.kind == "input" for b in program.buffers]
        self.pinned = [b.pinned for b in program.buffers]
        self.touches = [
            {b for b in (*s.reads, *s.writes) if program.buffers[b].kind != "constant"} for s in program.statements
        ]
        self.touchers = [{v for v in range(self.n) if b in self.touches[v]} for b in range(len(program.buffers))]
        self.workspace = [s.workspace for s in program.statements] if workspaces is None else list(workspaces)
        self.before = [set(s.dependences) for s in program.statements]
        self.counted = [b.kind != "constant" for b in program.buffers]
        self.overlay = [s.overlay for s in program.statements]
        self.mirrored = False  # whether overlays look back: see `mirror_of`

    def resident(self, state: set[int] | frozenset[int]) -> set[int]:
        """Buffers that rest(S) adds up."""
        return {
            b
            for b in range(len(self.size))
            if self.counted[b]
            and (self.entry[b] or self.touchers[b] & state)
            and (self.pinned[b] or self.touchers[b] - state)
        }

    def rest(self, state: set[int] | frozenset[int]) -> int:
        return sum(self.size[b] for b in self.resident(state))

    def mem(self, state: set[int] | frozenset[int], v: int) -> int:
        others = self.resident(state) - self.touches[v]
        total = self.workspace[v] + sum(self.size[b] for b in self.touches[v]) + sum(self.size[b] for b in others)
        return total - max((min(self.size[a], self.size[o]) for a, o in self.overlaid(state, v)), default=0)

    def overlaid(self, state: set[int] | frozenset[int], v: int) -> list[tuple[int, int]]:
        """The pairs (input, output) that may share bytes when v runs at the state: the input dies with v."""
        overlay = self.overlay[v]
        if overlay is None:
            return []
        in_the_way = state if self.mirrored else set(range(self.n)) - state
        return [(a, overlay.output) for a in overlay.inputs if not (self.touchers[a] - {v}) & in_the_way]

    def peak(self, order: Sequence[int]) -> int:
        state: set[int] = set()
        peak = 0 if order else self.rest(state)
        for v in order:
            assert self.before[v] <= state
            peak = max(peak, self.mem(state, v))
            state.add(v)
        assert len(state) == self.n
        return peak

    def ready(self, state: frozenset[int]) -> list[int]:
        return [v for v in range(self.n) if v not in state and self.before[v] <= state]

    def ancestors(self, v: int) -> set[int]:
        found: set[int] = set()
        stack = [v]
        while stack:
            for u in self.before[stack.pop()]:
                if u not in found:
                    found.add(u)
                    stack.append(u)
        return found

    def births(self, b: int) -> set[int]:
        if self.entry[b] or not self.counted[b]:
            return set()
        return {t for t in self.touchers[b] if not self.ancestors(t) & self.touchers[b]}


def mirror_of(model: Model, program: Program) -> Model:
    """The model of the mirror image of the model's program; ``program`` is the `reversed_program`."""
    result = Model(program, model.workspace[::-1])
    result.overlay = model.overlay[::-1]
    result.mirrored = not model.mirrored
    return result


def part_of(model: Model, members: frozenset[int], buffers: set[int]) -> Model:
    """What the statements and buffers of a part see; the others keep their numbers and do nothing."""
    result = copy.copy(model)
    result.counted = [counted and b in buffers for b, counted in enumerate(model.counted)]
    result.touches = [touches & buffers if v in members else set() for v, touches in enumerate(model.touches)]
    result.touchers = [row & members if b in buffers else set() for b, row in enumerate(model.touchers)]
    result.before = [before & members if v in members else set() for v, before in enumerate(model.before)]
    return result


# -- optima --------------------------------------------------------------------------------------------------------


def brute_force(program: Program, workspaces: Sequence[int] | None = None) -> int:
    """Least peak over all orders, by walking through them (n <= 9); a prefix no better than the best is left."""
    model = Model(program, workspaces)
    if not model.n:
        return model.rest(set())
    best = model.peak(range(model.n))

    def walk(state: frozenset[int], peak: int) -> None:
        nonlocal best
        if len(state) == model.n:
            best = min(best, peak)
            return
        for v in model.ready(state):
            here = max(peak, model.mem(state, v))
            if here < best:
                walk(state | {v}, here)

    walk(frozenset(), 0)
    return best


def bottleneck(program: Program, workspaces: Sequence[int] | None = None) -> int:
    """Least peak as a bottleneck shortest path over down-sets (n <= 20); states are bit masks."""
    model = Model(program, workspaces)
    n = model.n
    if not n:
        return model.rest(set())
    before = [sum(1 << u for u in model.before[v]) for v in range(n)]
    buffers = [
        (model.size[b], model.entry[b], model.pinned[b], sum(1 << t for t in model.touchers[b]))
        for b in range(len(model.size))
        if model.counted[b] and model.size[b]
    ]
    gains: list[list[tuple[int, int]]] = [[] for _ in range(n)]
    for v, overlay in enumerate(model.overlay):
        for a in overlay.inputs if overlay is not None else ():
            gains[v].append((min(model.size[a], model.size[overlay.output]), sum(1 << t for t in model.touchers[a])))
    everything = (1 << n) - 1
    heap = [(0, 0, 0)]
    best = {0: 0}
    while heap:
        peak, _, state = heapq.heappop(heap)
        if state == everything:
            return peak
        if best[state] < peak:
            continue
        missing = everything & ~state
        resident = [(s, t) for s, e, p, t in buffers if (e or t & state) and (p or t & missing)]
        for v in range(n):
            bit = 1 << v
            if state & bit or before[v] & missing:
                continue
            here = model.workspace[v] + sum(model.size[b] for b in model.touches[v])
            here += sum(s for s, t in resident if not t & bit)
            then = state | bit
            here = max(here - max((g for g, t in gains[v] if not t & ~then), default=0), peak)
            if here < best.get(then, here + 1):
                best[then] = here
                heapq.heappush(heap, (here, -then.bit_count(), then))
    raise AssertionError("the full state was not reached")


def optimum(program: Program) -> int:
    """Least peak, bodies ordered first: an inner optimum enters the statement around it as workspace."""
    return bottleneck(program, least_workspaces(program))


def least_workspaces(program: Program) -> list[int]:
    return [s.workspace + max((optimum(body) for body in s.bodies), default=0) for s in program.statements]


def scheduled_peak(program: Program, orders: Mapping[str, Sequence[int]], prefix: str = "") -> int:
    """Peak of a map body path -> order."""
    workspaces = [
        s.workspace + max((scheduled_peak(b, orders, f"{prefix}{v}/{k}/") for k, b in enumerate(s.bodies)), default=0)
        for v, s in enumerate(program.statements)
    ]
    return Model(program, workspaces).peak(orders[prefix[:-1]])


# -- random programs -----------------------------------------------------------------------------------------------


def random_program(rng: random.Random, n: int, *, bodies: bool = False) -> Program:
    """A program of n statements with everything the model knows.

    Buffers with many readers, pinned, freeable and untouched inputs, constants, several outputs a statement, outputs
    nobody reads, in-place updates, writers that commute (several births), workspaces, chains of effects, extra
    dependences, zero sizes; with ``bodies`` now and then a control-flow statement.
    """
    largest = rng.choice((1, 3, 10, 100))
    loose = rng.random()  # how likely reads are: from nearly independent to chain-like

    def size() -> int:
        return 0 if rng.random() < 0.08 else rng.randint(1, largest)

    buffers: list[Buffer] = []
    writers: list[list[int]] = []  # commuting writers since the last read or in-place update
    readers: list[list[int]] = []  # touchers since those writers
    for i in range(rng.randint(0, 3)):
        buffers.append(Buffer(f"in{i}", size(), "input", rng.random() < 0.3))
    if rng.random() < 0.3:
        buffers.append(Buffer("weights", size(), "constant"))
    if rng.random() < 0.15:
        buffers.append(Buffer("unused", size(), "intermediate", rng.random() < 0.5))
    writers = [[] for _ in buffers]
    readers = [[] for _ in buffers]
    readable = [i for i, b in enumerate(buffers) if b.kind in ("input", "constant")]
    shared: list[int] = []
    token: int | None = None
    statements: list[Statement] = []
    for v in range(n):
        reads: set[int] = set()
        writes: set[int] = set()
        needs: set[int] = set()
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            if readable and rng.random() < 0.3 + 0.7 * loose:
                recent = readable[-4:] if rng.random() < 0.6 else readable
                reads.add(rng.choice(recent))
        for b in reads:
            if buffers[b].kind != "constant":
                needs.update(writers[b])
                readers[b].append(v)
        if shared and rng.random() < 0.3:  # a commuting writer of a part
            b = rng.choice(shared)
            if b not in reads and not readers[b]:
                writes.add(b)
                writers[b].append(v)
                if b not in readable and rng.random() < 0.7:
                    readable.append(b)
        updatable = [b for b in reads if buffers[b].kind != "constant"]
        if updatable and rng.random() < 0.1:  # in place
            b = rng.choice(updatable)
            writes.add(b)
            needs.update(writers[b], readers[b])
            needs.discard(v)
            writers[b] = [v]
            readers[b] = []
        for _ in range(rng.choice((0, 1, 1, 1, 1, 2))):
            b = len(buffers)
            pinned = rng.random() < 0.15
            buffers.append(Buffer(f"x{b}", size(), "output" if pinned else "intermediate", pinned))
            writers.append([v])
            readers.append([])
            writes.add(b)
            readable.append(b)
            if rng.random() < 0.25:
                shared.append(b)
        effects: tuple[str, ...] = ()
        if rng.random() < 0.08:
            effects = ("random",)
            if token is not None:
                needs.add(token)
            token = v
        while v and rng.random() < 0.12:
            needs.add(rng.randrange(v))
        inner: tuple[Program, ...] = ()
        if bodies and rng.random() < 0.25:
            inner = tuple(
                random_program(rng, rng.randint(0, 4), bodies=rng.random() < 0.3) for _ in range(rng.choice((1, 2)))
            )
        statements.append(
            Statement(
                name=f"s{v}",
                op=rng.choice(("conv", "add")),
                reads=tuple(sorted(reads)),
                writes=tuple(sorted(writes)),
                dependences=tuple(sorted(needs)),
                workspace=rng.randint(0, largest) if rng.random() < 0.25 else 0,
                pure=not effects,
                effects=effects,
                bodies=inner,
            )
        )
    return Program(tuple(buffers), tuple(statements))


def with_overlays(rng: random.Random, program: Program, share: float = 0.7) -> Program:
    """The program with overlays wherever the definition allows one, each left out now and then; bodies get none."""
    model = Model(program)
    statements = []
    for v, s in enumerate(program.statements):
        outputs = [o for o in sorted(model.touches[v]) if model.births(o) == {v}]
        inputs = [
            a
            for a in sorted(set(s.reads) - set(s.writes))
            if model.counted[a] and not model.pinned[a] and rng.random() < share
        ]
        if outputs and inputs:
            rng.shuffle(inputs)
            s = replace(s, overlay=Overlay(rng.choice(outputs), tuple(inputs)))
        statements.append(s)
    return Program(program.buffers, tuple(statements), program.name)


def tangled_program(rng: random.Random, n: int) -> Program:
    """n statements, one buffer each, read by several later ones: a randomly wired cell, where orders matter most.

    Some results are kept, some inputs are freeable, some statements need workspace; sizes are spread widely.
    """
    width = rng.randint(2, 6)
    largest = rng.choice((3, 10, 50, 1000))
    inputs = rng.randint(1, 3)
    buffers = [Buffer(f"in{i}", rng.randint(1, largest), "input", rng.random() < 0.2) for i in range(inputs)]
    statements: list[Statement] = []
    for v in range(n):
        window = range(max(0, len(buffers) - width * 2), len(buffers))
        reads = tuple(sorted({rng.choice(window) for _ in range(rng.choice((1, 1, 2, 2, 3)))}))
        kept = rng.random() < 0.08
        buffers.append(Buffer(f"x{v}", rng.randint(1, largest), "output" if kept else "intermediate", kept))
        statements.append(
            Statement(
                f"s{v}",
                reads=reads,
                writes=(inputs + v,),
                dependences=tuple(b - inputs for b in reads if b >= inputs),
                workspace=rng.randint(1, largest) if rng.random() < 0.2 else 0,
            )
        )
    return Program(tuple(buffers), tuple(statements))


def random_order(rng: random.Random, program: Program) -> list[int]:
    """A random legal order (not uniform)."""
    state: set[int] = set()
    order: list[int] = []
    while len(order) < len(program):
        ready = [v for v, s in enumerate(program.statements) if v not in state and state.issuperset(s.dependences)]
        order.append(rng.choice(ready))
        state.add(order[-1])
    return order


# -- transformations that leave the optimum as it is ----------------------------------------------------------------


def reversed_program(program: Program) -> Program:
    """Run it backwards: arcs reversed, entry and pinned swapped. Every order has the peak of its mirror image."""
    n = len(program.statements)
    buffers = tuple(
        b
        if b.kind == "constant"
        else Buffer(b.name, b.size, "input" if b.pinned else "intermediate", b.kind == "input")
        for b in program.buffers
    )
    touched = {t for s in program.statements for t in (*s.reads, *s.writes)}
    # A pinned buffer that nothing touches and that is not at entry is never resident; keep it so.
    buffers = tuple(
        replace(b, kind="intermediate")
        if i not in touched and old.pinned and old.kind not in ("input", "constant")
        else b
        for i, (b, old) in enumerate(zip(buffers, program.buffers))
    )
    after: list[list[int]] = [[] for _ in range(n)]
    for v, s in enumerate(program.statements):
        for u in s.dependences:
            after[u].append(v)
    statements = tuple(
        replace(
            s,
            reads=(),
            writes=tuple(sorted({*s.reads, *s.writes})),
            dependences=tuple(n - 1 - w for w in after[v]),
            overlay=None,  # the mirror image of an overlay is none
        )
        for v, s in reversed(list(enumerate(program.statements)))
    )
    return Program(buffers, statements)


def relabelled(rng: random.Random, program: Program) -> Program:
    """The same program listed in another legal order, its buffers shuffled, everything renamed."""
    order = random_order(rng, program)
    place = {v: i for i, v in enumerate(order)}
    shuffled = list(range(len(program.buffers)))
    rng.shuffle(shuffled)
    at = {b: i for i, b in enumerate(shuffled)}
    return Program(
        tuple(replace(program.buffers[b], name=f"renamed{i}") for i, b in enumerate(shuffled)),
        tuple(
            replace(
                program.statements[v],
                name=f"renamed{i}",
                reads=tuple(at[b] for b in program.statements[v].reads),
                writes=tuple(at[b] for b in program.statements[v].writes),
                dependences=tuple(sorted(place[u] for u in program.statements[v].dependences)),
                overlay=_moved(program.statements[v].overlay, at),
            )
            for i, v in enumerate(order)
        ),
    )


def _moved(overlay: Overlay | None, at: Mapping[int, int]) -> Overlay | None:
    """An overlay between buffers with other numbers; without the buffers that have none."""
    if overlay is None or overlay.output not in at or not any(a in at for a in overlay.inputs):
        return None
    return Overlay(at[overlay.output], tuple(at[a] for a in overlay.inputs if a in at))


def split_buffers(rng: random.Random, program: Program) -> Program:
    """Every buffer in two parallel parts of random sizes, touched by the same statements; overlays are left out."""
    parts = [rng.randint(0, b.size) for b in program.buffers]
    m = len(parts)
    first = tuple(replace(b, name=b.name + ".a", size=p) for b, p in zip(program.buffers, parts))
    second = tuple(replace(b, name=b.name + ".b", size=b.size - p) for b, p in zip(program.buffers, parts))
    statements = tuple(
        replace(
            s,
            reads=(*s.reads, *(b + m for b in s.reads)),
            writes=(*s.writes, *(b + m for b in s.writes)),
            overlay=None,
        )
        for s in program.statements
    )
    return Program(first + second, statements)


def in_series(first: Program, second: Program) -> Program:
    """One program after the other, a gate between them: ``second`` starts only when all of ``first`` has run."""
    m, n = len(first.buffers), len(first.statements)
    gate = Statement("gate", dependences=tuple(range(n)))
    moved = tuple(
        replace(
            s,
            name=f"second.{s.name}",
            reads=tuple(b + m for b in s.reads),
            writes=tuple(b + m for b in s.writes),
            dependences=(n, *(u + n + 1 for u in s.dependences)),
            overlay=_moved(s.overlay, {b: b + m for b in range(len(second.buffers))}),
        )
        for s in second.statements
    )
    buffers = tuple(replace(b, name=f"second.{b.name}") for b in second.buffers)
    return Program(first.buffers + buffers, (*first.statements, gate, *moved))


def programs(
    seed: int,
    count: int,
    sizes: Sequence[int],
    *,
    bodies: bool = False,
    tangled: bool = False,
    overlays: bool = False,
) -> Iterator[tuple[int, Program]]:
    """``count`` numbered random programs; number and seed reproduce each alone."""
    for i in range(count):
        rng = random.Random(f"{seed}/{i}")
        n = rng.choice(list(sizes))
        program = tangled_program(rng, n) if tangled else random_program(rng, n, bodies=bodies)
        yield i, with_overlays(rng, program) if overlays else program


# -- small programs as text ----------------------------------------------------------------------------------------


def build(buffers: str, *statements: str) -> Program:
    """A program from text, for tests a person can read.

    ``buffers``: ``name=bytes`` separated by blanks, with ``@`` before the name for an input and ``!`` before it for a
    pinned buffer. A statement: ``NAME reads > writes | after NAMES | use WORKSPACE | lay OUTPUT on INPUTS``; what follows
    the bars may be left out.
    """
    rows: list[Buffer] = []
    for word in buffers.split():
        name, size = word.lstrip("@!").split("=")
        rows.append(
            Buffer(
                name, int(size), "input" if "@" in word else "output" if "!" in word else "intermediate", "!" in word
            )
        )
    ids = {b.name: i for i, b in enumerate(rows)}
    made: list[Statement] = []
    for text in statements:
        head, *clauses = text.split("|")
        name, _, touched = head.strip().partition(" ")
        reads, _, writes = touched.partition(">")
        given = dict(clause.strip().partition(" ")[::2] for clause in clauses)
        places = {s.name: v for v, s in enumerate(made)}
        top, _, under = given.get("lay", "").partition(" on ")
        made.append(
            Statement(
                name,
                reads=tuple(ids[x] for x in reads.split()),
                writes=tuple(ids[x] for x in writes.split()),
                dependences=tuple(places[x] for x in given.get("after", "").split()),
                workspace=int(given.get("use", "0")),
                overlay=Overlay(ids[top.strip()], tuple(ids[x] for x in under.split())) if top else None,
            )
        )
    return Program(tuple(rows), tuple(made))


def render(program: Program) -> str:
    """The text that `build` reads."""
    buffers = " ".join(
        f"{'@' if b.kind == 'input' else ''}{'!' if b.pinned else ''}{b.name}={b.size}" for b in program.buffers
    )
    lines = [buffers]
    for s in program.statements:
        line = " ".join(
            (s.name, *(program.buffers[b].name for b in s.reads), ">", *(program.buffers[b].name for b in s.writes))
        )
        if s.dependences:
            line += " | after " + " ".join(program.statements[u].name for u in s.dependences)
        line += f" | use {s.workspace}" if s.workspace else ""
        if s.overlay:
            line += f" | lay {program.buffers[s.overlay.output].name} on "
            line += " ".join(program.buffers[a].name for a in s.overlay.inputs)
        lines.append(line)
    return "\n".join(lines)


Parts = tuple[Sequence[Buffer], Sequence[Statement]]


def shrunk(program: Program, fails: Callable[[Program], bool]) -> Program:
    """A smaller program that still ``fails``: statements and buffers left out, sizes lowered, dependences cut."""
    going = True
    while going:
        going = False
        for buffers, statements in _smaller(program):
            try:
                attempt = Program(tuple(buffers), tuple(statements))
            except InputError:
                continue
            if fails(attempt):
                program, going = attempt, True
                break
    return program


def _smaller(program: Program) -> Iterator[Parts]:
    buffers, statements = program.buffers, program.statements
    for v in reversed(range(len(statements))):
        through = statements[v].dependences  # what depended on v depends on what v depended on
        kept = []
        for s in statements[:v] + statements[v + 1 :]:
            needs = {w for u in s.dependences for w in (through if u == v else (u,))}
            kept.append(replace(s, dependences=tuple(sorted(w - (w > v) for w in needs))))
        yield buffers, kept
    for b in reversed(range(len(buffers))):

        def without(ids: tuple[int, ...], b: int = b) -> tuple[int, ...]:
            return tuple(i - (i > b) for i in ids if i != b)

        at = {i: i - (i > b) for i in range(len(buffers)) if i != b}
        yield (
            buffers[:b] + buffers[b + 1 :],
            [
                replace(s, reads=without(s.reads), writes=without(s.writes), overlay=_moved(s.overlay, at))
                for s in statements
            ],
        )
    for v, s in enumerate(statements):
        changes = [
            replace(s, dependences=s.dependences[:i] + s.dependences[i + 1 :]) for i in range(len(s.dependences))
        ]
        changes += [replace(s, reads=s.reads[:i] + s.reads[i + 1 :]) for i in range(len(s.reads))]
        changes += [replace(s, workspace=w) for w in (0, s.workspace // 2, s.workspace - 1) if 0 <= w < s.workspace]
        changes += [replace(s, bodies=()) for _ in s.bodies[:1]]
        if s.overlay:
            fewer = [tuple(a for a in s.overlay.inputs if a != gone) for gone in s.overlay.inputs]
            changes.append(replace(s, overlay=None))
            changes += [replace(s, overlay=Overlay(s.overlay.output, rest)) for rest in fewer if rest]
        for change in changes:
            yield buffers, [*statements[:v], change, *statements[v + 1 :]]
    for b, buffer in enumerate(buffers):
        for size in (0, 1, buffer.size // 2, buffer.size - 1):
            if 0 <= size < buffer.size:
                yield [*buffers[:b], replace(buffer, size=size), *buffers[b + 1 :]], statements
