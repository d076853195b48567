"""The floor of splitting: what no choice of regions and bands goes below, whatever it costs.

A statement without a rule runs whole, however the rest is cut: all that it touches is there. A buffer that is pinned, or that some
reader needs whole, stands whole at some moment, and it came to be so in one of two ways: bands were joined, which holds it twice,
or its statement ran whole, which holds all operands beside it. Like the floor of recomputation this takes milliseconds, and where
it is at the peak, its reason is the reason why no split helps. It tells nothing of joins in place, of which there are none here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from peakmem.frontends.splitting import Axis, Splittable
from peakmem.model import Program


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
        What it writes whole, where that is why; None where the statement itself holds so much.
    why : str
        Of a statement without bands: the adapter's sentence.
    """

    size: int
    statement: int | None
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
        return said + (self.why or f"each band of {name} reads so much")


def floor(source: Splittable, axes: Sequence[Axis] = ("rows", "channels")) -> SplitFloor:
    """The largest of these bounds. O(statements and what they touch), beside the rules."""
    program = source.program
    size = [0 if b.kind == "constant" else b.size for b in program.buffers]
    gain = [max((g for _, g in gains), default=0) for gains in program.gains]
    whole = {b for b, buffer in enumerate(program.buffers) if buffer.pinned}
    best = SplitFloor(program.entry_bytes, None)
    banded: list[bool] = []
    for v, s in enumerate(program.statements):
        rules = [source.rule(v, axis) for axis in axes]
        kept = s.workspace + sum(size[b] for b in program.touched[v]) - gain[v]
        ways = [set(s.reads) - set(rule.banded) for rule in rules if not isinstance(rule, str)]
        banded.append(bool(ways))
        whole |= set.intersection(*ways) if ways else set(s.reads)
        least = min((kept, *(sum(size[b] for b in way) for way in ways)))
        if least > best.size:
            best = SplitFloor(least, v, why="" if ways else next((r for r in rules if isinstance(r, str)), ""))
    for v, s in enumerate(program.statements):
        for y in set(s.writes) & whole if banded[v] else ():
            least = min(2 * size[y], sum(size[b] for b in program.touched[v]) - gain[v])
            if least > best.size:
                best = SplitFloor(least, v, y)
    return best
