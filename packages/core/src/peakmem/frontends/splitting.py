"""What an adapter supplies so that a model can run in bands: rows, maps of rows, sizes and prices.

A *band* is a part of a buffer along one axis: rows ``[start, start + count)`` of an image, or some of its channels. An
operator that is given a band of its input computes a band of its output; which of its rows are those that the whole
operator computes, bit for bit, is what its *map* tells.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from peakmem.model import Program, Refused

Axis = Literal["rows", "channels"]


@dataclass(frozen=True, slots=True)
class Rows:
    """A band: it stands for rows ``[start, start + count)`` of a whole, of which those in ``[low, high)`` are right."""

    start: int
    count: int
    low: int
    high: int

    @property
    def end(self) -> int:
        return self.start + self.count

    def holds(self, low: int, high: int) -> bool:
        """Whether rows ``[low, high)`` are there and right."""
        return self.low <= low and high <= self.high


def exactly(low: int, high: int) -> Rows:
    """The band of rows ``[low, high)``, all of them right."""
    return Rows(low, high - low, low, high)


class RowMap(ABC):
    """How the rows of an operator's output hang on those of its banded inputs, which all have the same ones."""

    slack: int = 1
    """Rows by which a band may have to grow at an end so that the output's rows fall on whole ones."""

    @abstractmethod
    def need(self, low: int, high: int) -> tuple[int, int]:
        """Rows of the input that rows ``[low, high)`` of the output are computed from, cut at the input's ends."""

    @abstractmethod
    def output(self, rows: Rows) -> Rows | None:
        """The band that the operator computes from this one; None where no row of it stands for one of the whole."""


@dataclass(frozen=True)
class Rule:
    """How a statement runs in bands.

    Attributes
    ----------
    map : RowMap
    banded : tuple of int
        Buffers it reads in bands, with equal rows; what else it reads it is given whole.
    """

    map: RowMap
    banded: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A new buffer: rows ``[start, start + count)`` of a buffer of the original program."""

    name: str
    buffer: int
    axis: Axis
    start: int
    count: int


@dataclass(frozen=True, slots=True)
class Step:
    """One statement of a split program.

    Attributes
    ----------
    kind : {"keep", "run", "cut", "join"}
        A statement of the original, one of its bands, rows taken out of what is read, or bands put one behind the other.
    statement : int
        Of the original, for the first two; else -1.
    reads, writes : tuple of int
        Buffers of the split program: those of the original have their numbers, parts follow.
    axis : Axis
    """

    kind: Literal["keep", "run", "cut", "join"]
    statement: int
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    axis: Axis = "rows"


@dataclass(frozen=True, order=True)
class Region:
    """Statements that run in bands together: places ``first`` to ``last`` of the base order, in so many bands.

    ``kept``: rows that two bands need, the halo, are kept from one for the other, and not computed in both.
    """

    first: int
    last: int
    bands: int
    axis: Axis = "rows"
    kept: bool = False


@dataclass(frozen=True)
class Split:
    """A program some regions of which run in bands.

    Attributes
    ----------
    program : Program
        The split program; its statements are the steps.
    steps : tuple of Step
    parts : tuple of Part
        Its last buffers.
    regions : tuple of Region
        In the base order.
    order : tuple of int
        The base order of the original statements.
    extra_macs : int
        More than the original's.
    """

    program: Program
    steps: tuple[Step, ...]
    parts: tuple[Part, ...]
    regions: tuple[Region, ...]
    order: tuple[int, ...]
    extra_macs: int


class Splittable(ABC):
    """A model as splitting sees it.

    Attributes
    ----------
    program : Program
    cut, join : str
        Operators that take rows out and put bands together.
    most_joined : int
        Operands that one join takes.
    overhead : int
        Bytes that one more statement costs the runtime beside the realized quantity, about.
    in_place : bool
        Bands may lie inside what they are joined to or cut from, so that a join does not hold them twice.
    """

    program: Program
    cut: str
    join: str
    most_joined: int
    overhead: int
    in_place: bool = False

    @abstractmethod
    def extent(self, buffer: int, axis: Axis) -> int:
        """Rows or channels of a buffer; 0 where it has no such axis."""

    @abstractmethod
    def size(self, buffer: int, axis: Axis, count: int) -> int:
        """Bytes charged for so many rows of a buffer."""

    @abstractmethod
    def rule(self, statement: int, axis: Axis) -> Rule | str:
        """How a statement runs in bands; a sentence where it does not."""

    @abstractmethod
    def price(
        self, statement: int, axis: Axis, reads: Mapping[int, tuple[int, int]], count: int
    ) -> tuple[int, int]:
        """Workspace in bytes and MACs of one band.

        Parameters
        ----------
        statement : int
        axis : Axis
        reads : mapping
            Buffer read in bands -> start and count.
        count : int
            Rows it computes.
        """

    def bar(self, statement: int, axis: Axis, why: str) -> None:
        """From now on this statement has no rule along that axis: it was seen to compute something else in bands.

        Raises
        ------
        Refused
            With ``why``, where an adapter has rules that no run can overturn.
        """
        raise Refused(why)

    def in_memory(self, split: Split) -> Program:
        """The split program as the runtime's memory sees it; another one than its own where bands lie in their join.

        Raises
        ------
        Refused, InputError
            Where it cannot be made.
        """
        return split.program


class Unequal(Refused):
    """A run of a split has other bits.

    Attributes
    ----------
    statements : tuple of (int, Axis)
        Those whose bands, given equal rows, computed others, as far as that is known.
    """

    def __init__(self, message: str, statements: tuple[tuple[int, Axis], ...] = ()) -> None:
        super().__init__(message)
        self.statements = statements
