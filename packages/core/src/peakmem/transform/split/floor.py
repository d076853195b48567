"""The floor of splitting: what no choice of regions and bands goes below, whatever it costs.

A statement without a rule runs whole: all that it touches is there. A buffer that must be *whole* at some moment came to be so in
one of two ways: bands were joined, which holds it twice, or its statement ran at once, which holds its operands beside it. A statement
*in bands* along an axis needs whole what it does not read in bands; what it reads in bands is whole, and cut, or was made in bands
along the same axis. With one row (or channel) in all, a band is all of it. Followed through the program, in the order of the
statements, this gives the least that each of them takes, and the largest of these is the floor. Like the floor of recomputation it
takes milliseconds; where it is at the peak, its reason is why no split helps. Where bands may be joined in place only the inputs
count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from peakmem.frontends.splitting import Axis, Splittable
from peakmem.model import Program
from peakmem.transform.recompute.floors import floor as lowest


@dataclass(frozen=True)
class SplitFloor:
    """A lower bound on the live peak of every split of a program, in every order.

    Attributes
    ----------
    size : int
        Bytes.
    statement : int or None
        The statement that sets it; None for the inputs alone.
    buffer : int or None
        What it writes and must be whole, where that is why; None where the statement itself holds so much.
    why : str
        Of a statement without bands: the adapter's sentence.
    """

    size: int
    statement: int | None = None
    buffer: int | None = None
    why: str = ""

    def sentence(self, program: Program, *, show: Callable[[str], str] = str) -> str:
        """Why no split needs less, as a clause for people; ``show`` makes what is printed of a name."""
        said = f"no split of it needs less than {self.size:,} bytes, in any order: "
        if self.statement is None:
            return said + "its inputs are there before anything runs"
        name = show(program.statements[self.statement].name)
        if self.buffer is not None:
            return said + f"the result of {name} must be whole ({program.buffers[self.buffer].size:,} bytes), joined or computed at once"
        return said + (self.why or f"{name} holds so much whole, in bands as well")


def floor(source: Splittable, axes: Sequence[Axis] = ("rows", "channels")) -> SplitFloor:
    """The largest lower bound of any statement. O(statements and what they touch), beside the rules and their maps."""
    program = source.program
    size = [0 if b.kind == "constant" else b.size for b in program.buffers]
    writer: dict[int, int] = {}
    whole = [SplitFloor(0)] * len(size)  # what it takes that a buffer is whole
    banded: list[dict[Axis, SplitFloor]] = []  # what it takes that a statement runs in bands
    best = SplitFloor(program.entry_bytes)
    if source.in_place:
        return best
    for v, s in enumerate(program.statements):
        gain = max((g for _, g in program.gains[v]), default=0)
        touched = sum(size[b] for b in program.touched[v])
        ways: dict[Axis, SplitFloor] = {}
        taken = {b: size[b] for b in s.reads}  # the least of each operand that all of the result is computed from
        why = ""
        for axis in axes:
            rule = source.rule(v, axis)
            if isinstance(rule, str):
                why = why or rule
                continue
            extent = source.extent(s.writes[0], axis)
            low, high = rule.map.need(0, extent)
            held, parts = 0, []
            for b in set(s.reads):
                rows = source.extent(b, axis) if b in rule.banded else 0
                if b in rule.banded and high - low < rows:
                    taken[b] = min(taken[b], source.size(b, axis, high - low))
                if b not in rule.banded or (extent < 2 and high - low >= rows):
                    held += size[b]
                    parts.append(whole[b])
                elif b in writer and axis in banded[writer[b]]:
                    parts.append(_least(whole[b], banded[writer[b]][axis]))
                else:
                    parts.append(whole[b])
            held += size[s.writes[0]] - gain if extent < 2 else 0
            ways[axis] = _most(SplitFloor(held, v), *parts)
        banded.append(ways)
        inside = max((lowest(body).size for body in s.bodies), default=0)
        kept = SplitFloor(s.workspace + inside + touched - gain, v, why="" if ways else why)
        kept = _most(kept, *(whole[b] for b in s.reads))
        for y in s.writes:
            writer[y] = v
            whole[y] = kept
            if ways:
                at_once = SplitFloor(sum(taken.values()) + size[y] - gain, v, y)
                at_once = _most(at_once, *(whole[b] for b in s.reads if taken[b] == size[b]))
                whole[y] = _least(_most(SplitFloor(2 * size[y], v, y), _least(*ways.values())), at_once)
            if program.buffers[y].pinned:
                best = _most(best, whole[y])
        best = _most(best, _least(kept, *ways.values()))
    return best


def _most(*bounds: SplitFloor) -> SplitFloor:
    return max(bounds, key=lambda bound: bound.size)


def _least(*bounds: SplitFloor) -> SplitFloor:
    return min(bounds, key=lambda bound: bound.size)
