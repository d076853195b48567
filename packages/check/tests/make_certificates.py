"""Writes the folder ``packages/check/certificates``: true certificates, and false ones that differ from them by one byte.

``python make_certificates.py [FOLDER]``; the same files every time. The proofs come from `tinyprover`, programs and optima
from `oracles`, so the folder owes nothing to the solver. `peakmem_check` is asked only which changes of a byte it refuses
in what words; that a refused file does differ from an accepted one, by one byte, is what the tests look at.
"""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from oracles import build, optimum, programs, random_order, scheduled_peak, with_overlays
from peakmem_check.jsonfile import parse_json
from peakmem_check.model import InputError, Program, Refused
from peakmem_check.proof import check, graph
from tinyprover import Prover, certificate

checker = sys.modules["peakmem_check.proof.check"]  # the module; its name in the package is that of the function
FOLDER = Path(__file__).resolve().parents[1] / "certificates"
WITH = {  # the kinds that the prover may use beside entry and expand
    "entry": ("entry",),
    "forward": ("forward",),
    "backward": ("backward",),
    "precedence": ("precedence", "forward"),
    "cycle": ("precedence",),
    "branch": ("branch", "forward"),
    "reverse": ("reverse", "forward"),
    "waypoint": ("waypoint", "backward"),
    "expand": ("expand",),
    "move": ("move",),
    "jump": ("jump",),
    "components": ("components", "forward"),
}
OVERLAID = {"forward": ("forward",), "backward": ("backward",), "precedence": ("precedence", "forward")}
"""The kinds with flows that an overlay gives a node "g", and what the prover may use."""
LARGEST = 3000  # bytes of a file
FALSE_EACH = 4

Json = Any


@dataclass
class Found:
    """A true certificate and what the index says of it."""

    name: str
    program: str
    of: Program
    document: Json
    what: str
    kind: str
    false: list[tuple[bytes, str]] = field(default_factory=list)

    @property
    def data(self) -> bytes:
        return written(self.document)


def written(document: Json) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode() + b"\n"


# -- true ones -----------------------------------------------------------------------------------------------------


def has_bodies(program: Program) -> bool:
    return any(len(body) for _, body in program.bodies())


def has_births(program: Program) -> bool:
    return any(len(births) > 1 for births in program.births)


def is_pinned(program: Program) -> bool:
    return any(b.pinned and b.kind == "input" and b.size for b in program.buffers) and len(program) > 2


FEATURES: dict[str, Callable[[Program], bool]] = {"bodies": has_bodies, "births": has_births, "pinned": is_pinned}


def apart(program: Program) -> bool:
    """Several statements side by side, not all alike."""
    prover = Prover(program, [s.workspace for s in program.statements], 0, random.Random(0))
    groups = prover.components(tuple(frozenset(p) for p in prover.model.before))
    return len(groups) > 1 and max(map(len, groups)) > 1


def nodes_of(document: Json) -> Iterator[Json]:
    for proof in document["proofs"].values():
        yield from proof["nodes"]


def telling(document: Json, kind: str) -> bool:
    """The kind occurs, and has something to show where it has flows."""
    nodes = [node for node in nodes_of(document) if node["kind"] == kind]
    text = written(nodes)
    shown = kind not in ("forward", "backward", "precedence", "jump", "components") or b'"flow":[[' in text
    return bool(nodes) and shown and (kind != "jump" or any(len(node["path"]) > 1 for node in nodes))


def search(kind: str, feature: str, taken: set[str], bound_below: int = 0) -> Found:
    """The first small certificate whose proof has the kind, of a random program that has the feature."""
    for seed, tangled in ((1, False), (2, True)):
        for i, program in programs(seed, 400, range(3, 7), bodies=feature == "bodies", tangled=tangled):
            name = f"{feature}-{'tangled' if tangled else 'mixed'}-{i}"
            best = optimum(program)
            if name in taken or not FEATURES[feature](program) or best <= bound_below:
                continue
            if kind == "components" and not any(map(apart, (program, *(body for _, body in program.bodies())))):
                continue
            rng = random.Random(f"{kind}/{name}")
            orders = {path: random_order(rng, part) for path, part in [("", program), *program.bodies()]}
            peak = scheduled_peak(program, orders)
            document = certificate(program, orders, peak, rng, WITH[kind], best - bound_below if bound_below else None)
            if document is not None and telling(document, kind) and len(written(document)) < LARGEST:
                taken.add(name)
                what = "optimal" if document["lower_bound"] == peak else "a bound; the order is no optimum"
                if bound_below:
                    what = f"a bound {bound_below} B below the optimum"
                return Found(f"{kind}-{feature}", name, program, document, what, kind)
    raise AssertionError(f"no certificate with {kind} and {feature}")


def overlaid(kind: str, mirrored: bool, which: int, taken: set[str]) -> Found:
    """The first small certificate in which something leaves or enters "g" in a flow of the kind, in its mirror image if asked for."""
    for i, plain in programs(3, 2000, range(3, 7), tangled=which == 2):
        rng = random.Random(f"overlay/{kind}/{mirrored}/{i}")
        program = with_overlays(rng, plain)
        name = f"overlay-{i}{'-tangled' if which == 2 else ''}"
        if name in taken or not program.has_overlays:
            continue
        orders = {"": random_order(rng, program)}
        peak = scheduled_peak(program, orders)
        kinds = (*OVERLAID[kind], *(("reverse",) if mirrored else ()))
        document = certificate(program, orders, peak, rng, kinds)
        if document is None or len(written(document)) >= LARGEST or not document["proofs"]:
            continue
        nodes = document["proofs"][""]["nodes"]
        if (nodes[-1]["kind"] == "reverse") != mirrored:
            continue
        if not any(node["kind"] == kind and b'"g"' in written(node) for node in nodes):
            continue
        taken.add(name)
        what = "optimal" if document["lower_bound"] == peak else "a bound; the order is no optimum"
        title = f"overlay-{'mirrored-' if mirrored else ''}{kind}-{which}"
        return Found(title, name, program, document, what, kind)
    raise AssertionError(f"no certificate with a flow of an overlay in {kind}")


def stated(name: str, program: Program, bound: int, nodes: list[Json], **changes: str) -> Found:
    """A proof written by hand, whose root is the last node; ``changes`` are the false ones: ``old -> new``."""
    order = list(range(len(program)))
    peak = scheduled_peak(program, {"": order})
    document = {
        "schema": "peakmem.certificate/1",
        "program": {"digest": program.digest},
        "artifact": None,
        "lower_bound": bound,
        "orders": {"": order},
        "peak": peak,
        "proofs": {"": {"lower_bound": bound, "root": len(nodes) - 1, "nodes": nodes}},
    }
    found = Found(name, name, program, document, "by hand" + (", optimal" if bound == peak else ""), "")
    for says, change in changes.items():
        old, new = (part.encode() for part in change.split(" -> "))
        assert found.data.count(old) == 1, f"{name}: {change}"
        other = found.data.replace(old, new)
        try:
            check(program, parse_json(other, name))
        except Refused as error:
            found.false.append((other, str(error).removeprefix("certificate: ")))
            assert says.replace("_", " ") in str(error).replace("-", " "), f"{name}: {error}"
            assert alone(program, parse_json(other, name)), f"{name}: {change} fails several conditions"
        else:
            raise AssertionError(f"{name}: {change} is accepted")
    return found


def expands(**children: int | None) -> Json:
    return {"kind": "expand", "children": {name[1:]: child for name, child in children.items()}}


def exits(trap: list[int], *statements: int) -> Json:
    return {"kind": "forward", "trap": trap, "exits": [{"statement": v, "flow": []} for v in statements]}


def by_hand() -> list[Found]:
    """What no random search would hit: conditions missed by a single byte, and nodes that stand where they may not."""
    entry: Json = {"kind": "entry"}
    kept = build("@!kept=9 a=1 b=1", "A > a", "B > b")
    round_about = [{"before": u, "after": v, "at": v, "flow": []} for u, v in ((0, 1), (1, 0), (1, 2), (2, 0))]
    return [
        stated(
            "move-leaves-one-byte",
            build("a=1 !o=0", "A > a", "B >", "C > o | use 10", "D a > | after A C"),
            10,
            [exits([0, 1], 2), {"kind": "move", "statement": 1, "then": 0}],
            leaves_1_bytes_more='"statement":1, -> "statement":0,',
        ),
        stated(
            "move-within-the-budget",
            build("", "A > | use 10", "B > | use 9", "C > | use 10"),
            10,
            [exits([0, 1], 2), {"kind": "move", "statement": 1, "then": 0}],
            takes_10_bytes='"statement":1, -> "statement":0,',
        ),
        stated(
            "move-twice",
            build("@a=3 @b=3", "A a >", "B b >", "C > | use 10"),
            10,
            [
                exits([0, 1], 2),
                {"kind": "move", "statement": 1, "then": 0},
                {"kind": "move", "statement": 0, "then": 1},
            ],
            is_not_ready='"statement":1, -> "statement":0,',
        ),
        stated(
            "jump-to-the-least",
            build("@in=1 !out=1", "A > out", "B in >", "C > | use 5"),
            5,
            [exits([0, 1], 2), {"kind": "jump", "path": [1], "flow": [], "then": 0}],
            the_flow_does_not_show='"path":[1] -> "path":[0]',
        ),
        stated(
            "forward-trap-of-nothing",
            build("", "A > | use 10", "B > | after A", "C > | after A"),
            10,
            [exits([], 0)],
            is_not_a_down_set='"trap":[] -> "trap":[1]',
        ),
        stated(
            "backward-trap-of-nothing",
            build("", "A >", "B >", "C > | after A B | use 10"),
            10,
            [{"kind": "backward", "trap": [], "entries": [{"statement": 2, "flow": []}]}],
            is_not_a_down_set='"trap":[] -> "trap":[0]',
        ),
        stated(
            "precedence-at-the-other",
            build("", "A >", "B > | use 10"),
            10,
            [
                exits([0], 1),
                {"kind": "precedence", "arcs": [{"before": 0, "after": 1, "at": 1, "flow": []}], "then": 0},
            ],
            the_flow_shows_0_bytes='"at":1 -> "at":0',
        ),
        stated(
            "waypoint-of-nothing",
            build("", "A > | use 3", "B > | use 5"),
            5,
            [exits([0], 1), {"kind": "waypoint", "state": [], "then": 0}],
            does_not_precede='"state":[] -> "state":[0]',
        ),
        stated(
            "reverse-and-back",
            kept,
            9,
            [entry, {"kind": "reverse", "then": 0}, expands(_0=0, _1=0), {"kind": "reverse", "then": 2}],
            not_the_empty_one='"0":0 -> "0":1',
        ),
        stated(
            "reverse-below-a-branch",
            kept,
            9,
            [entry, {"kind": "reverse", "then": 0}, {"kind": "branch", "pair": [0, 1], "first": 0, "second": 0}],
            added_precedence='"first":0 -> "first":1',
        ),
        stated(
            "branch-below-a-state",
            kept,
            9,
            [entry, {"kind": "branch", "pair": [0, 1], "first": 0, "second": 0}, expands(_0=0, _1=0)],
            not_the_empty_one='"0":0 -> "0":1',
        ),
        stated(
            "precedence-below-a-state",
            kept,
            9,
            [entry, {"kind": "precedence", "arcs": [], "then": 0}, expands(_0=0, _1=0)],
            not_the_empty_one='"0":0 -> "0":1',
        ),
        stated(
            "cycle-of-precedences",
            build("@!kept=9 a=1 b=1 c=1", "A > a", "B > b", "C > c"),
            9,
            [entry, {"kind": "cycle", "statements": [1, 2, 0]}, {"kind": "precedence", "arcs": round_about, "then": 1}],
            stands_where_the_precedences_are_cyclic='"then":1 -> "then":0',
            does_not_directly_precede='"statements":[1,2,0] -> "statements":[1,0,0]',
        ),
    ]


# -- false ones ----------------------------------------------------------------------------------------------------


def edits(data: bytes) -> Iterator[bytes]:
    """Files that differ by one byte: digits, and the letters of flow nodes, changed, left out or put in."""
    letters = b"stbjg" if b'"g"' in data else b"stbj"
    for i in range(len(data)):
        here = data[i : i + 1]
        others = b"0123456789" if here.isdigit() else letters if here in letters else b""
        for other in others:
            yield data[:i] + bytes([other]) + data[i + 1 :]
            yield data[:i] + bytes([other]) + data[i:]
        if others:
            yield data[:i] + data[i + 1 :]


def near(sentence: str, bound: int) -> int:
    """How many bytes the refused one is away from what would have been accepted, as far as the sentence says it."""
    numbers = [int(x) for x in re.findall(r"(?<!\[)\b\d+\b", sentence.split("): ", 1)[-1])]
    if "bytes" not in sentence or not numbers:
        return 10**6
    if "more than before" in sentence:
        return numbers[-1]
    return abs(numbers[-1] - (numbers[-2] if len(numbers) > 1 else bound))


def alone(program: Program, document: Json) -> bool:
    """Whether a single condition refuses the document: it would be accepted but for the first sentence."""
    sentences: list[str] = []

    def lenient(sentence: str) -> None:
        sentences.append(sentence)
        if len(sentences) > 1:
            raise Refused(sentence)

    with patch.object(checker, "refuse", lenient), patch.object(graph, "refuse", lenient):
        try:
            check(program, document)
        except Exception:  # whatever comes of going on where the checker never does
            return False
    return True


def as_version_1(found: Found) -> None:
    """The same said in a certificate of version 1, which has neither overlays nor components."""
    old, new = (f"peakmem.certificate/{k}".encode() for k in (2, 1))
    assert found.data.count(old) == 1
    data = found.data.replace(old, new)
    try:
        check(found.of, parse_json(data, found.name))
    except Refused as error:
        found.false = [row for row in found.false if row[0] != data]
        found.false.append((data, str(error).removeprefix("certificate: ")))
    else:
        raise AssertionError(f"{found.name} is accepted as version 1")


def falsify(found: Found, used: set[str], kind: str) -> None:
    """Take a change that is refused because of a node of the kind, and up to `FALSE_EACH` if each has a new reason.

    Preferred is what fails one condition alone, and that by few bytes.
    """
    data = found.data
    bests: dict[str, tuple[bool, int, bytes, str]] = {}
    for other in edits(data):
        try:
            document = parse_json(other, "certificate")
            if other != data:
                check(found.of, document)
        except InputError:
            continue
        except Refused as error:
            sentence = str(error).removeprefix("certificate: ")
            if f"({kind})" in sentence if kind else "node" not in sentence and "digest" not in sentence:
                reason = re.sub(r"'[^']*'|\d+", "#", sentence.split(f"({kind})")[-1])
                better = not alone(found.of, document), near(sentence, found.document["lower_bound"])
                if reason not in bests or better < bests[reason][:2]:
                    bests[reason] = *better, other, sentence
    # New reasons first, what is not even of the format last.
    ranked = sorted(bests.items(), key=lambda item: ("must" in item[0], item[0] in used, *item[1][:2], item[0]))
    for i, (reason, (several, _, other, sentence)) in enumerate(ranked):
        if i == 0 or (i < FALSE_EACH and (reason not in used or not several) and "must" not in reason):
            found.false.append((other, sentence))
            used.add(reason)


# -- the folder ----------------------------------------------------------------------------------------------------

HEAD = """# Certificates, true and false

Files to try a checker with. `programs/` holds programs; every file in `true/` is a certificate that must be accepted, with
the lower bound and the peak given here; every file in `false/` differs from its sibling in `true/` by one byte (changed,
left out or put in) and must be refused (exit code 1), though it is still JSON and speaks about the same program. The first
part of a name is the kind of node that the file is about; with `overlay-` before it, the flows of that kind where a statement
writes on top of one of its inputs, with `mirrored-` in the mirror image of the program. `index.json` says the same for programs that read it, and
`tests/make_certificates.py` writes the folder.

    peakmem-check programs/{program}.json true/{name}.json
"""


def collected() -> list[Found]:
    taken: set[str] = set()
    result = [search(kind, feature, taken) for kind in WITH for feature in FEATURES]
    for feature in FEATURES:
        found = search("forward", feature, taken, bound_below=1)
        found.name = f"loose-{feature}"
        result.append(found)
    result += [overlaid(kind, mirrored, k, taken) for kind in OVERLAID for mirrored in (False, True) for k in (1, 2, 3)]
    for found in result:
        found.kind = "forward" if found.name.startswith("loose") else found.kind
    used: dict[str, set[str]] = {}
    for found in result:
        reasons = found.name.rpartition("-")[0] if found.of.has_overlays else found.kind
        falsify(found, used.setdefault(reasons, set()), found.kind)
        if found.document["schema"].endswith("/2"):
            as_version_1(found)
    result += by_hand()
    documents = [found for found in result if found.name.startswith("expand")]
    for found in documents:
        falsify(found, used.setdefault("", set()), "")
    return result


def main(folder: Path) -> None:
    found = collected()
    for name in ("programs", "true", "false"):
        shutil.rmtree(folder / name, ignore_errors=True)
        (folder / name).mkdir(parents=True)
    index: Json = {"true": {}, "false": {}}
    rows = [HEAD.format(program=found[0].program, name=found[0].name)]
    rows += ["## True\n", "| file | program | lower bound | peak | which is |", "|---|---|---|---|---|"]
    for one in found:
        (folder / "programs" / f"{one.program}.json").write_bytes(written(one.of.to_json()))
        (folder / "true" / f"{one.name}.json").write_bytes(one.data)
        bound, peak = one.document["lower_bound"], one.document["peak"]
        index["true"][one.name] = {"program": one.program, "lower_bound": bound, "peak": peak}
        rows.append(f"| {one.name} | {one.program} | {bound} | {peak} | {one.what} |")
    rows += ["\n## False\n", "| file | sibling | refused because |", "|---|---|---|"]
    for one in found:
        for i, (data, sentence) in enumerate(one.false, 1):
            name = f"{one.name}-{i}"
            (folder / "false" / f"{name}.json").write_bytes(data)
            index["false"][name] = {"program": one.program, "true": one.name, "because": sentence}
            rows.append(f"| {name} | {one.name} | {sentence.replace('|', chr(92) + '|')} |")
    (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    (folder / "README.md").write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
