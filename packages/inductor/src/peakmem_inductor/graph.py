"""A wrapper as a program that can be permuted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from peakmem.model import Program, peak_of

from peakmem_inductor.forms import Access, Wrapper
from peakmem_inductor.profile import Profile
from peakmem_inductor.regions import Region


@dataclass
class Step:
    """One statement of the program: a call and everything that must stay with it.

    Attributes
    ----------
    repeatable : bool
        False for what must not run twice although it is no barrier and draws nothing: its price is not known, it binds
        names that are no tensors, or what it reads may change unseen.
    """

    name: str
    op: str
    parts: list[tuple[str, tuple[str, ...]]]
    accesses: list[tuple[str, Access, Region | None]] = field(default_factory=list)
    uses: list[str] = field(default_factory=list)
    defines: list[str] = field(default_factory=list)
    scratch: list[str] = field(default_factory=list)
    barrier: bool = False
    random: bool = False
    workspace: int = 0
    cost: int = 0
    repeatable: bool = True


@dataclass(frozen=True)
class Definition:
    """A name that is bound when first needed: an allocation, a view, another name."""

    text: str
    needs: tuple[str, ...]


@dataclass(frozen=True)
class Graph:
    """A wrapper as a program that can be permuted.

    Attributes
    ----------
    program : Program
        Statement i is ``steps[i]``.
    data_dependent : bool
        Some size depends on data: bytes are those of the recorded run.
    """

    wrapper: Wrapper
    profile: Profile
    steps: tuple[Step, ...]
    definitions: dict[str, Definition]
    buffer_of: dict[str, int]
    names_of: tuple[tuple[str, ...], ...]
    prologue: tuple[str, ...]
    program: Program
    data_dependent: bool

    def predicted(self, order: Sequence[int] | None = None) -> int:
        """Bytes above entry of the emitted program in an order (the given one if None)."""
        return peak_of(self.program, order) - self.program.entry_bytes

    def returned(self, b: int) -> bool:
        """Whether a result of ``call`` lives in a buffer."""
        return any(self.buffer_of.get(n) == b for n in self.wrapper.outputs)


def dying(program: Program, order: Sequence[int], stays: Callable[[int], bool]) -> list[list[int]]:
    """For each position of an order the buffers that go right after it, ascending, but for outputs and those that stay."""
    last = {b: position for position, v in enumerate(order) for b in program.touched[v]}
    result: list[list[int]] = [[] for _ in order]
    for b in sorted(last):
        if program.buffers[b].kind != "output" and not stays(b):
            result[last[b]].append(b)
    return result
