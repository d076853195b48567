"""Is the second of two files the first one rewritten? Told from what they hold, before anything runs.

Values are numbered as compilers do (Cocke & Schwartz 1970, *Programming Languages and Their Compilers*): what a step computes
is named by its operator, its attributes, its constants and the numbers of what it reads *at that moment*. Two files compute the
same where their steps have the same numbers as often, their outputs the same numbers, and steps with effects the same sequence; a
step that the second file has once more is a copy. The names of values do not count, nor where a step stands, except where
another value is read there.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from peakmem.frontends.contract import Structure
from peakmem.model import moves


@dataclass(frozen=True)
class Step:
    """One step as its file holds it.

    Attributes
    ----------
    name : str
        For messages.
    what : str
        All that tells it from other steps but what it reads: operator, attributes, types and shapes of its results.
    reads, writes : tuple of str
        Names of values, in the order that the operator gives them; "" for one left out. What it changes in place stands in both.
    effects : tuple of str
        Tokens of effects, such as variables and generators; steps with one in common keep their sequence and never run twice.
    bodies : tuple of Part
        They see the values around them.
    once : bool
        It never runs twice, even where no other step shares its effect.
    """

    name: str
    what: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    effects: tuple[str, ...] = ()
    bodies: tuple[Part, ...] = ()
    once: bool = False


@dataclass(frozen=True)
class Part:
    """A file, or a body in it.

    Attributes
    ----------
    given : mapping of str to str
        What is there at the start: name of a value -> "input 0 ..." with its type and shape, or the digest of a constant.
    steps : sequence of Step
    outputs : tuple of str
    """

    given: Mapping[str, str]
    steps: Sequence[Step]
    outputs: tuple[str, ...]


@dataclass
class _Numbered:
    """Numbers of the steps of a part and of its outputs, and the sequences of steps with effects."""

    steps: list[str] = field(default_factory=list)
    read: list[tuple[str, ...]] = field(default_factory=list)
    outputs: tuple[str, ...] = ()
    effects: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    values: dict[str, str] = field(default_factory=dict)

    def summary(self) -> str:
        """One number for a body: its steps in any order."""
        return _hash("body", *sorted(self.steps), "effects", *sorted(map(repr, self.effects.items())), "outputs", *self.outputs)


def compare(first: Part, second: Part, *, noun: str = "operators") -> Structure:
    """What ``second`` is to ``first``. O(steps + touches), and one digest each.

    Parameters
    ----------
    first, second : Part
    noun : str
        What steps are called in sentences.
    """
    a, b = _number(first, {}), _number(second, {})
    if len(a.outputs) != len(b.outputs):
        return Structure(difference=f"the first gives {len(a.outputs)} outputs, the second {len(b.outputs)}")
    have = Counter(a.steps)
    for i, (number, step) in enumerate(zip(b.steps, second.steps)):
        if number not in have:
            return Structure(difference=_why(first, a, second, step, b.read[i]))
    found = Counter(b.steps)
    for number, step in zip(a.steps, first.steps):
        if found[number] < have[number]:
            return Structure(difference=f"{step.name} of the first is missing from the second")
    copies = found - have
    for number, step in zip(b.steps, second.steps):
        if step.once and number in copies:
            return Structure(difference=f"{step.name} of the second runs more often than in the first, which its effects forbid")
    for token in sorted(a.effects.keys() | b.effects.keys()):
        if a.effects[token] != b.effects[token]:
            return Structure(difference=f"steps that share {token!r} run in another sequence")
    for k, (x, y) in enumerate(zip(a.outputs, b.outputs)):
        if x != y:
            return Structure(difference=f"output {k} is another value")
    moved = len(moves(_permutation(a.steps, b.steps, copies)))
    relation = f"the same {len(a.steps)} {noun}, constants and attributes, {moved} at other places" if moved else (
        f"the same {len(a.steps)} {noun}, constants and attributes in the same order"
    )  # fmt: skip
    again = sum(copies.values())
    return Structure(relation + (f", {again} run once more" if again else ""))


def value_numbers(part: Part) -> dict[str, str]:
    """The number of every value after the last step: equal where two files compute the same. Those of bodies are left out."""
    return _number(part, {}).values


class Numbering:
    """The numbers of a part's values, step by step.

    Attributes
    ----------
    now : dict of str to str
        Name of a value -> its number at the moment.
    """

    def __init__(self, given: Mapping[str, str], around: Mapping[str, str] | None = None) -> None:
        self.now = {**(around or {}), **{name: _hash("given", what) for name, what in given.items()}}

    def value(self, name: str) -> str:
        """The number of a value; of one that nothing gave, its name."""
        return self.now.get(name, f"absent {name}")

    def run(self, step: Step) -> tuple[str, tuple[str, ...]]:
        """The number of the next step, and those of what it reads."""
        read = tuple(map(self.value, step.reads))
        inner = [_number(body, self.now).summary() for body in step.bodies]
        number = _hash(step.what, "reads", *read, "bodies", *inner)
        self.now.update((name, _hash(number, str(k))) for k, name in enumerate(step.writes) if name)
        return number, read


def _number(part: Part, around: Mapping[str, str]) -> _Numbered:
    values = Numbering(part.given, around)
    result = _Numbered(values=values.now)
    for step in part.steps:
        number, read = values.run(step)
        for token in step.effects:
            result.effects[token].append(number)
        result.steps.append(number)
        result.read.append(read)
    result.outputs = tuple(map(values.value, part.outputs))
    return result


def _why(first: Part, a: _Numbered, second: Part, step: Step, read: tuple[str, ...]) -> str:
    """The difference of a step of the second file that the first has not."""
    same = [s for s, r in zip(first.steps, a.read) if r == read]
    kind = step.what.split("\n", 1)[0]
    like = [(s, r) for s, r in zip(first.steps, a.read) if s.what.split("\n", 1)[0] == kind]
    here = f"{step.name} of the second"
    alike = next((s for s in same if s.what.split("\n", 1)[0] == kind), None)
    if alike is not None:
        if alike.what != step.what:
            return f"{here} has other attributes, constants or types than {alike.name} of the first"
        inside = next(filter(None, (compare(p, q).difference for p, q in zip(alike.bodies, step.bodies))), "")
        return f"{here} has another body than {alike.name} of the first" + (f" ({inside})" if inside else "")
    if same:
        return f"{here} reads what {same[0].name} of the first reads and is another operator ({kind})"
    if not like:
        return f"{here} has no counterpart in the first, which has no {kind}"
    # The one it has most in common with.
    have = Counter(read)
    closest, r = max(like, key=lambda row: (sum((have & Counter(row[1])).values()), row[0].what == step.what))
    if len(r) != len(read):
        return f"{here} reads {len(read)} values, {closest.name} of the first {len(r)}"
    if sorted(r) == sorted(read):
        return f"{here} reads the operands of {closest.name} of the first in another sequence"
    k = next(k for k, (x, y) in enumerate(zip(r, read)) if x != y)
    name = step.reads[k]
    what = "value" if second.given.get(name, "input").startswith("input") else "constant"
    return f"{here} reads another {what} ({name or 'none'}, operand {k}) than {closest.name} of the first"


def _permutation(first: Sequence[str], second: Sequence[str], copies: Mapping[str, int]) -> list[int]:
    """Places in the first file of the second's steps, of a copied one the last run only."""
    places: dict[str, list[int]] = defaultdict(list)
    for i, number in enumerate(first):
        places[number].append(i)
    spare = dict(copies)
    order = []
    for number in second:
        if spare.get(number):
            spare[number] -= 1
        else:
            order.append(places[number].pop(0))
    return order


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()
