"""Pairs of files on which the checkers in Python and in C are compared: random programs, certificates, and what is wrong.

Used by ``test_c_checker.py`` and by the benchmark ``two_checkers.py``. Every choice comes from one `random.Random`.
"""

from __future__ import annotations

import copy
import json
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peakmem_check.jsonfile import read_json, read_program
from peakmem_check.model import InputError, Program, Refused
from peakmem_check.proof import SCHEMAS, check
from tinyprover import EVERY_KIND, certificate

try:
    from peakmem.ordering import order_program
except ModuleNotFoundError:  # peakmem-check alone: every proof is the tiny prover's
    order_program = None

SOURCE = Path(__file__).resolve().parents[1] / "c" / "peakmem_check.c"
STRICT = ["-std=c99", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic"]
ALL_KINDS = {*EVERY_KIND, "cycle"}
Json = Any


def compiled(folder: Path, *flags: str) -> Path | None:
    """The checker in C, compiled into ``folder``; None where there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    made = folder / "peakmem_check"
    subprocess.run([compiler, *(flags or STRICT), "-o", str(made), str(SOURCE)], check=True)
    return made


# -- programs ------------------------------------------------------------------------------------------------------

_NAMES = (
    "{}",
    "x{}",
    "{}é",
    'say "{}"',
    "\\{}/",
    "\b\f\n\r\t{}",
    "\x00{}\x1f",
    "{}\x7f\x80",
    "\u2028{}\uffff",
    "\U0001f600{}",
)


def random_program(rng: random.Random, most: int = 8, depth: int = 0) -> Json:
    """A program document with everything in it that the format knows; now and then several side by side."""
    if most > 3 and rng.random() < 0.2:
        return side_by_side(rng, [random_program(rng, 3, depth) for _ in range(rng.choice((2, 2, 3)))])
    overlays = rng.random() < 0.6
    n = rng.randint(0, min(most, 6) if overlays else most)
    tangled = rng.random() < 0.5  # buffers with many touchers, and more of them: flows with something to carry
    scale = rng.choice((1, 1, 1, 1, 2**40, 2**54)) if depth == 0 else 1
    name = rng.choice(_NAMES).format if rng.random() < 0.3 else "b{}".format
    before: list[set[int]] = [{u for u in range(v) if rng.random() < 0.15} for v in range(n)]
    reads: list[list[str]] = [[] for _ in range(n)]
    writes: list[list[str]] = [[] for _ in range(n)]
    buffers = []
    for b in range(rng.randint(0, 2 * n if tangled else n + 3)):
        kind = rng.choices(("input", "constant", "intermediate", "output"), (3, 1, 6, 2))[0]
        buffer: Json = {"id": name(b), "bytes": rng.choice((0, 1, 2, 3, 5, 8, 13, 30)) * scale, "kind": kind}
        buffer["pinned"] = rng.random() < (0.9 if kind == "output" else 0.15)
        buffers.append(buffer)
        touchers = sorted(
            rng.sample(range(n), rng.randint(0, min(n, rng.choice((2, 3, 4, 6) if tangled else (1, 2, 3, 5)))))
        )
        for k, v in enumerate(touchers):
            if kind in ("input", "constant"):
                rng.choice((reads, writes))[v].append(name(b))
            elif k == 0 or rng.random() < 0.3:
                writes[v].append(name(b))
                if rng.random() < 0.1:
                    reads[v].append(name(b))
            else:
                before[v].add(rng.choice([u for u in touchers[:k] if name(b) in writes[u]]))
                reads[v].append(name(b))
    statements: list[Json] = []
    for v in range(n):
        statement: Json = {"id": f"s{v}" if rng.random() < 0.9 else name(v), "reads": reads[v], "writes": writes[v]}
        if statement["id"] in (s["id"] for s in statements):
            statement["id"] += "'"
        statement["dependences"] = [statements[u]["id"] for u in sorted(before[v], key=lambda _: rng.random())]
        if rng.random() < 0.3:
            statement["workspace"] = rng.randint(0, 20) * scale
        for key, values in (
            ("cost", (0, 7)),
            ("op", ("", "a\tdd")),
            ("pure", (True, False)),
            ("effects", ([], ["r", "\x1b"])),
        ):
            if rng.random() < 0.1:
                statement[key] = rng.choice(values)
        if depth < 2 and rng.random() < 0.08:
            statement["bodies"] = [random_program(rng, 3, depth + 1) for _ in range(rng.randint(1, 2))]
        overlay = random_overlay(rng, buffers, reads, writes, before, v) if overlays else None
        if overlay:
            statement["overlay"] = overlay
        statements.append(statement)
    document: Json = {"schema": "peakmem.program/1", "buffers": buffers, "statements": statements}
    if rng.random() < 0.3:
        document["name"] = "näme"
    if rng.random() < 0.1:
        document["quantity"] = rng.choice(("live_peak", "bytes_above_entry"))
    return document


def random_overlay(
    rng: random.Random, buffers: list[Json], reads: list[list[str]], writes: list[list[str]], before: list[set[int]], v: int
) -> Json | None:
    """An overlay that statement v may have, if there is one; the order of its inputs is any."""
    ancestors, stack = set[int](), [v]
    while stack:
        fresh = before[stack.pop()] - ancestors
        ancestors |= fresh
        stack += fresh

    def touchers(name: str) -> set[int]:
        return {u for u in range(len(reads)) if name in (*reads[u], *writes[u])}

    def descends(u: int) -> bool:
        """v is among u's ancestors; statements come after what they depend on."""
        met = {v}
        for w in range(v + 1, u + 1):
            if before[w] & met:
                met.add(w)
        return u in met

    outputs, inputs = [], []
    for buffer in buffers:
        name, kind = buffer["id"], buffer["kind"]
        if name in writes[v] and kind not in ("input", "constant") and all(map(descends, touchers(name))):
            outputs.append(name)
        early = kind == "input" or touchers(name) & ancestors
        if name in reads[v] and name not in writes[v] and kind != "constant" and not buffer["pinned"] and early:
            inputs.append(name)
    if not outputs or not inputs:
        return None
    return {"output": rng.choice(outputs), "inputs": rng.sample(inputs, rng.randint(1, len(inputs)))}


def side_by_side(rng: random.Random, documents: list[Json]) -> Json:
    """The programs as one, their statements mixed, and a pinned input that some of them read."""
    buffers: list[Json] = [{"id": "all", "bytes": rng.randint(0, 9), "kind": "input", "pinned": rng.random() < 0.9}]
    rows: list[list[Json]] = []
    for k, document in enumerate(documents):

        def own(names: list[str], k: int = k) -> list[str]:
            return [f"{k}.{name}" for name in names]

        buffers += [{**buffer, "id": f"{k}.{buffer['id']}"} for buffer in document["buffers"]]
        rows.append([])
        for s in document["statements"]:
            statement = {**s, "id": f"{k}.{s['id']}", **{key: own(s[key]) for key in ("reads", "writes", "dependences")}}
            if "overlay" in s:
                statement["overlay"] = {"output": f"{k}.{s['overlay']['output']}", "inputs": own(s["overlay"]["inputs"])}
            if rng.random() < 0.2:
                statement["reads"].append("all")
            rows[-1].append(statement)
    statements = []
    while any(rows):
        statements.append(rng.choice([row for row in rows if row]).pop(0))
    rng.shuffle(buffers)
    return {"schema": "peakmem.program/1", "buffers": buffers, "statements": statements}


def written(rng: random.Random, document: Json) -> bytes:
    """The document as bytes, in one of many ways that mean the same."""

    def shuffled(value: Json) -> Json:
        if isinstance(value, list):
            return [shuffled(v) for v in value]
        if isinstance(value, dict):
            return {k: shuffled(v) for k, v in sorted(value.items(), key=lambda _: rng.random())}
        return value

    if rng.random() < 0.3:
        document = shuffled(document)
    space = rng.choice(({}, {"indent": 1}, {"separators": (",", ":")}, {"indent": "\t", "separators": (" ,", "\r\n:")}))
    text = json.dumps(document, ensure_ascii=rng.random() < 0.5, **space)
    return (b"\xef\xbb\xbf" if rng.random() < 0.05 else b"") + text.encode()


# -- certificates --------------------------------------------------------------------------------------------------


def parts(program: Program) -> list[tuple[str, Program]]:
    """Bodies before what is around them."""
    return [*program.bodies(), ("", program)]


def random_order(rng: random.Random, program: Program) -> list[int]:
    order: list[int] = []
    while len(order) < len(program):
        ready = [v for v, s in enumerate(program.statements) if v not in order and set(s.dependences) <= set(order)]
        order.append(rng.choice(ready))
    return order


def certified(rng: random.Random, program: Program, share_of_solver: float = 0.5) -> Json:
    """A certificate: the solver's, or of another bound and other orders by a prover that favours some kinds of nodes."""
    found = None if order_program is None else order_program(program).certificate
    if found is None:
        orders = {path: random_order(rng, part) for path, part in parts(program)}
        document = certificate(program, orders, timeline_peak(program, orders), rng)
        assert document is not None
    else:
        document = json.loads(found.to_bytes())
    if rng.random() < share_of_solver or any(len(part) > 6 for _, part in parts(program)):
        return document
    kinds = rng.choice(
        (
            EVERY_KIND,
            (rng.choice(EVERY_KIND), rng.choice(EVERY_KIND)),
            ("precedence", "branch", "waypoint", "move", "jump", "reverse"),
            ("branch", "precedence"),
            ("components", rng.choice(EVERY_KIND)),
        )
    )
    bound = None if rng.random() < 0.7 else rng.randint(0, document["lower_bound"])
    made = certificate(program, document["orders"], document["peak"], rng, kinds, bound)
    if made is None:
        return document
    if rng.random() < 0.5:
        made["orders"] = {path: random_order(rng, part) for path, part in parts(program)}
        made["peak"] = timeline_peak(program, made["orders"])
    return made


def timeline_peak(program: Program, orders: Json) -> int:
    """Peak of orders by the definition."""
    peaks: dict[str, int] = {}
    for path, part in parts(program):
        bodies = Counter[int]()
        for inner, peak in peaks.items():
            outer, _, last = inner.rpartition("/")
            outer, _, at = outer.rpartition("/")
            if outer == path and last:
                bodies[int(at)] = max(bodies[int(at)], peak)
        peaks[path] = _peak(part, orders[path], bodies)
    return peaks[""]


def _peak(program: Program, order: list[int], bodies: Counter[int]) -> int:
    kinds = [b.kind for b in program.buffers]
    touches = [{b for b in (*s.reads, *s.writes) if kinds[b] != "constant"} for s in program.statements]
    peak = 0
    for k in range(max(len(order), 1)):
        v, later = order[k] if order else None, order[k:]
        held = 0
        for b, buffer in enumerate(program.buffers):
            born = kinds[b] == "input" or any(b in touches[u] for u in order[: k + 1])
            kept = buffer.pinned or any(b in touches[u] for u in later)
            held += buffer.size * (born and kept and kinds[b] != "constant")
        if v is not None:
            overlay = program.statements[v].overlay
            dying = [a for a in overlay.inputs if not any(a in touches[u] for u in later[1:])] if overlay else []
            saved = max((min(program.buffers[i].size for i in (a, overlay.output)) for a in dying if overlay), default=0)
            held += program.statements[v].workspace + bodies[v] - saved
        peak = max(peak, held)
    return peak


# -- mutations -----------------------------------------------------------------------------------------------------

_JUNK: tuple[Json, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    1.0,
    "",
    "s",
    "t",
    "g",
    [],
    {},
    2**62,
    2**64,
    10**40,
    [0],
    "b0",
    "j0",
    0.5,
)


def places(value: Json) -> Iterator[tuple[Json, Any]]:
    """Every (container, key) of a document."""
    pending = [value]
    while pending:
        here = pending.pop()
        keys = here.keys() if isinstance(here, dict) else range(len(here))
        for key in list(keys):
            yield here, key
            if isinstance(here[key], (dict, list)):
                pending.append(here[key])


def mutate(rng: random.Random, document: Json) -> None:
    """One change in place, near to what the document was."""
    spots = list(places(document))
    box, key = rng.choice(spots)
    if rng.random() < 0.3:  # the proofs are the most of a certificate, numbers the most of a proof: go there more often
        few = [
            (b, k) for b, k in spots if isinstance(b[k], (list, dict)) or k in ("kind", "then", "lower_bound", "bytes")
        ]
        box, key = rng.choice(few or spots)
    flows = [(b[k], i) for b, k in spots if k == "flow" and isinstance(b[k], list) for i in range(len(b[k]))]
    several = [f for b, k in spots if k == "flows" and isinstance(b[k], list) for f in b[k] if isinstance(f, list)]
    flows += [(flow, i) for flow in several for i in range(len(flow))]
    if flows and rng.random() < 0.3:
        box, key = rng.choice(flows)
        if isinstance(box[key], list) and box[key] and rng.random() < 0.8:
            box, key = box[key], rng.randrange(len(box[key]))
    value = box[key]
    if rng.random() < 0.1:
        box[key] = copy.deepcopy(rng.choice(_JUNK))
    elif rng.random() < 0.1 and isinstance(box, dict):
        if rng.random() < 0.5:
            del box[key]
        else:
            box[rng.choice(("0", "1", "01", " 0", "kind", "flow", "flows", key + "x", "2/0"))] = box.pop(key)
    elif rng.random() < 0.15:
        other, where = rng.choice([(b, k) for b, k in spots if type(b[k]) is type(value)])
        box[key] = copy.deepcopy(other[where])
    elif isinstance(value, bool):
        box[key] = not value
    elif isinstance(value, int):
        box[key] = rng.choice((value + 1, value - 1, value + rng.randint(-3, 3), 2 * value, 0, rng.randint(0, 9)))
    elif isinstance(value, str):
        numbers = [c for c in value if c.isdigit()]
        new = rng.choice((*sorted(ALL_KINDS), value + "0", value[:-1], "s", "t", "g", value.upper()))
        if numbers and rng.random() < 0.7:
            new = value.replace(numbers[0], str(rng.randint(0, 9)), 1)
        box[key] = new
    elif isinstance(value, list) and value:
        i = rng.randrange(len(value))
        rng.choice(
            (
                lambda: value.pop(i),
                lambda: value.append(copy.deepcopy(value[i])),
                lambda: value.insert(0, value.pop(i)),
                lambda: value.reverse(),
                lambda: value.append(copy.deepcopy(rng.choice(_JUNK))),
                lambda: value.clear(),
            )
        )()
    elif isinstance(value, dict) and value:
        name = rng.choice(list(value))
        rng.choice((lambda: value.pop(name), lambda: value.__setitem__(str(rng.randint(0, 9)), value[name])))()
    else:
        box[key] = copy.deepcopy(rng.choice(_JUNK))


def corrupted(rng: random.Random, data: bytes) -> bytes:
    """One change of bytes."""
    i = rng.randrange(len(data) + 1)
    some = bytes(
        [rng.choice(b'{}[],:"\\0123456789-+.eEutfnNaI \n\t\xef\xbb\xbf\xc3\xa9\xed\xa0\x80\xf4\x90\x00\x1f\x7f')]
    )
    way = rng.randrange(6)
    if way == 0:
        return data[:i] + data[i + 1 :]
    if way == 1:
        return data[:i] + some + data[i:]
    if way == 2:
        return data[:i] + some + data[i + 1 :]
    if way == 3:
        return data[:i] + bytes([(data[i : i + 1] or b"\x00")[0] ^ 1 << rng.randrange(8)]) + data[i + 1 :]
    if way == 4:
        k = rng.randint(1, 8)
        return data[: i + k] + data[i:]
    return (
        data[:i]
        + rng.choice((b"\\u00e9", b"\\ud83d\\ude00", b"\\ud83d", b"\\udc00", b"1e5", b"-0", b"00", b"//", b"NaN"))
        + data[i:]
    )


def changed(rng: random.Random, program: Json, document: Json, folder: Path) -> tuple[bytes, bytes]:
    """A pair of files that came from a good pair."""
    way = rng.random()
    if way < 0.15:
        data = [written(rng, program), written(rng, document)]
        k = int(rng.random() < 0.6)
        data[k] = corrupted(rng, data[k])
        return data[0], data[1]
    program, document = copy.deepcopy(program), copy.deepcopy(document)
    if way < 0.35:  # another program, which the certificate then claims to be about
        mutate(rng, program)
        data = [written(rng, program)]
        (folder / "changed.json").write_bytes(data[0])
        try:
            read = read_program(folder / "changed.json")
            document["program"]["digest"] = read.digest
            document["peak"] = timeline_peak(read, document["orders"])
            if read.has_overlays and rng.random() < 0.9:
                document["schema"] = SCHEMAS[1]
        except (InputError, KeyError, IndexError):
            pass
        return data[0], written(rng, document)
    if way < 0.45 and "" in document["proofs"]:  # a bound one byte off
        step = rng.choice((1, -1))
        document["lower_bound"] += step
        document["proofs"][""]["lower_bound"] += step
    else:
        for _ in range(rng.choice((1, 1, 1, 2))):
            mutate(rng, document)
        if (
            rng.random() < 0.2
            and isinstance(document.get("proofs"), dict)
            and isinstance(document["proofs"].get(""), dict)
        ):
            document["lower_bound"] = document["proofs"][""].get("lower_bound")
    return written(rng, program), written(rng, document)


# -- both checkers -------------------------------------------------------------------------------------------------


def python_verdict(program: Path, document: Path) -> str:
    """The verdict of the checker in Python, in the words of ``peakmem_check --batch``."""
    try:
        report = check(read_program(program), read_json(document))
    except InputError:
        return "bad input"
    except Refused:
        return "refused"
    return f"accepted {report.lower_bound} {report.peak}"


def c_verdicts(checker: Path, pairs: list[tuple[Path, Path]]) -> list[str]:
    """The verdicts of the checker in C, all from one process."""
    lines = "".join(f"{a}\t{b}\n" for a, b in pairs)
    done = subprocess.run([str(checker), "--batch"], input=lines, capture_output=True, text=True, check=True)
    answers = done.stdout.splitlines()
    assert len(answers) == len(pairs), f"{len(answers)} answers to {len(pairs)} pairs; {done.stderr[:2000]}"
    return answers


@dataclass
class Study:
    """Pairs met, how many of the programs have overlays, what both said, and where they differ."""

    checker: Path
    folder: Path
    counts: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    disagreements: list[tuple[str, str, bytes, bytes]] = field(default_factory=list)
    waiting: list[tuple[bytes, bytes, str]] = field(default_factory=list)

    def add(self, program: bytes, document: bytes, expected: str = "") -> None:
        """Compare one pair, later; ``expected`` is the verdict that both must give, if known."""
        self.waiting.append((program, document, expected))
        if len(self.waiting) >= 500:
            self.compare()

    def compare(self) -> None:
        pairs = []
        for i, (program, document, _) in enumerate(self.waiting):
            pairs.append((self.folder / f"p{i}.json", self.folder / f"c{i}.json"))
            pairs[-1][0].write_bytes(program)
            pairs[-1][1].write_bytes(document)
        for pair, found, (program, document, expected) in zip(pairs, c_verdicts(self.checker, pairs), self.waiting):
            try:
                wanted = python_verdict(*pair)
            except Exception as error:  # a checker that fails otherwise has no verdict, which is a disagreement
                wanted = f"raises {error!r}"
            if wanted != found or expected not in ("", found):
                self.disagreements.append((wanted, found, program, document))
            else:
                self.counts[found.split()[0]] += 1
        self.waiting.clear()


def study(
    checker: Path,
    folder: Path,
    seed: int,
    programs: int,
    mutations: int,
    progress: Callable[[int], None] = lambda _: None,
) -> Study:
    """Certificates of random programs, and mutations spread evenly over them, judged by both checkers."""
    rng = random.Random(seed)
    result = Study(checker, folder)
    for i in range(programs):
        progress(i)
        document = random_program(rng)
        (folder / "program.json").write_text(json.dumps(document))
        program = read_program(folder / "program.json")
        proof = certified(rng, program)
        for part in proof["proofs"].values():
            result.kinds.update(node["kind"] for node in part["nodes"])
        result.counts["certificates"] += 1
        result.counts["overlays"] += program.has_overlays
        result.add(written(rng, document), written(rng, proof), f"accepted {proof['lower_bound']} {proof['peak']}")
        for _ in range(mutations * (i + 1) // programs - mutations * i // programs):
            result.counts["mutations"] += 1
            result.add(*changed(rng, document, proof, folder))
    result.compare()
    return result
