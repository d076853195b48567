"""The contract between core and an adapter.

A frontend turns an artifact into a `Model`; a `Model` carries a `Program` and can realize a `Schedule`. Both are abstract
bases: what an adapter must say is abstract, what it may say has a default.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from peakmem.frontends.splitting import Split, Splittable
from peakmem.model import Program, Refused, Schedule, UsageError
from peakmem.ordering import Ordering
from peakmem.system.progress import Progress


@dataclass(frozen=True)
class Option:
    """An option of one frontend, declared so that the command line can offer it without importing a runtime.

    Attributes
    ----------
    name : str
        With dashes, without the leading ones: ``"ort-level"`` is given as ``--ort-level`` and reaches
        `Frontend.load` as ``options["ort_level"]``.
    kind : {"text", "flag", "int", "size", "choice"}
        A ``size`` accepts ``256KB`` and ``24 MiB`` and arrives as bytes. A ``flag`` has a ``--no-`` form only by name.
    help : str
        One sentence.
    default : object
        Value when not given (an empty tuple for ``multiple``).
    choices : tuple of str
        For ``choice``.
    multiple : bool
        May be given several times; arrives as a tuple.
    metavar : str
        Shown in the help, such as ``NAME=SIZE``.
    names_runtime : bool
        Its value is the name of one of `Frontend.runtimes`. Who gives it asks for that one: measuring is then no longer
        left out where it is not installed, but an error; see `asks_for_runtime`.
    """

    name: str
    kind: Literal["text", "flag", "int", "size", "choice"]
    help: str
    default: Any = None
    choices: tuple[str, ...] = ()
    multiple: bool = False
    metavar: str = ""
    names_runtime: bool = False

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")


@dataclass(frozen=True)
class RuntimeStatus:
    """One runtime of a frontend: installed version or None, and the pip line that brings it."""

    name: str
    version: str | None
    pip: str


@dataclass(frozen=True)
class Verification:
    """Two artifacts run on the real runtime.

    Attributes
    ----------
    runtime, version : str
        What ran.
    quantity : str
        The realized quantity: ``arena_head``, ``activation_bytes``, ``bytes_above_entry``.
    baseline_bytes, optimized_bytes : int or None
        Measured, in bytes; None where the runtime could not measure.
    baseline_predicted, predicted_bytes : int or None
        Modelled for the same two artifacts.
    bitwise_identical : bool or None
        Whether every compared output had the same bits; None where nothing could be compared.
    compared : str
        What was compared: "all 73 tensors over 100 steps".
    failures : tuple of str
        Sentences: what differs. Empty means everything agrees.
    notes : tuple of str
        Sentences a reader must know (checks that could not run, settings used).
    details : dict
        Further figures, JSON-ready, under names of the frontend.
    structure : str
        What the second file is to the first, as told from the files; empty where this was not asked.
    varied : bool or None
        Whether any compared value had different bits for different inputs; where none had, equal bits show nothing. None
        where this was not looked at.
    headline : str
        What its user asks first, such as the memory of the process; stands before the quantity in the first line of an answer.
    """

    runtime: str
    version: str
    quantity: str
    baseline_bytes: int | None
    optimized_bytes: int | None
    baseline_predicted: int | None
    predicted_bytes: int | None
    bitwise_identical: bool | None
    compared: str = ""
    failures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)
    structure: str = ""
    varied: bool | None = None
    headline: str = ""

    @property
    def measured(self) -> bool:
        return self.optimized_bytes is not None and self.baseline_bytes is not None

    @property
    def identical(self) -> bool:
        """Bits were compared, are equal, and could have differed."""
        return bool(self.bitwise_identical) and self.varied is not False

    @property
    def as_predicted(self) -> bool:
        """Measured, and both measurements equal their predictions to the byte."""
        return (
            self.measured
            and self.baseline_bytes == self.baseline_predicted
            and self.optimized_bytes == self.predicted_bytes
        )

    def raise_for_difference(self) -> None:
        """Raise `Refused` with the first failure, if there is one."""
        if self.failures:
            raise Refused(self.failures[0])


@dataclass(frozen=True)
class Structure:
    """What the second of two artifacts is to the first, told from the files alone.

    Attributes
    ----------
    relation : str
        What they share: "the same 61 operators, constants and attributes, 7 of them at other places".
    difference : str
        The first thing in which they are different programs; empty where the second is the first with statements permuted,
        and perhaps marked copies added.
    """

    relation: str = ""
    difference: str = ""


@dataclass(frozen=True)
class SharedArena:
    """Several artifacts on one arena; see `Model.share`.

    Attributes
    ----------
    answer : str
        The first line, for people.
    lines, notes : tuple of str
        Sentences under it.
    document : dict
        All figures, JSON-ready.
    source : str
        Source text that shares the arena.
    failures : tuple of str
        Sentences: where a measurement is not what was predicted.
    """

    answer: str
    lines: tuple[str, ...]
    notes: tuple[str, ...]
    document: dict[str, Any]
    source: str
    failures: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inspection:
    """What ``inspect`` says of a file that holds no program: a record of what ran; see `Frontend.inspect`.

    Attributes
    ----------
    answer : str
        The first line, for people.
    lines, notes : tuple of str
        Sentences under it.
    tables : tuple
        Title, columns (right-aligned where the name starts with ``>``) and rows of text.
    digest : str
        ``sha256:...`` of the file's bytes.
    document : dict
        All figures, JSON-ready, under the name of the frontend.
    """

    answer: str
    lines: tuple[str, ...]
    tables: tuple[tuple[str, Sequence[str], Sequence[Sequence[str]]], ...]
    notes: tuple[str, ...]
    digest: str
    document: dict[str, Any]


class Model(ABC):
    """An artifact and its program."""

    @property
    @abstractmethod
    def frontend(self) -> str:
        """Name of the frontend."""

    @property
    @abstractmethod
    def path(self) -> Path | None:
        """Where it was read from; None for a model made in memory."""

    @property
    def files(self) -> tuple[Path, ...]:
        """What it was read from and still needs, which no output may replace: ``path``, and files with weights beside it."""
        return () if self.path is None else (self.path,)

    @property
    @abstractmethod
    def program(self) -> Program:
        """The program in the artifact's own order."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """``sha256:...`` of the artifact's bytes."""

    @property
    @abstractmethod
    def quantity(self) -> str:
        """Name of the realized quantity."""

    @property
    @abstractmethod
    def input_rule(self) -> str:
        """One sentence: which inputs are freed after their last use and which belong to the caller."""

    @property
    @abstractmethod
    def predicted_bytes(self) -> int:
        """Bytes of the realized quantity that the runtime's model predicts for this artifact as it is."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the artifact a reader must know."""
        return ()

    @property
    def advice(self) -> tuple[str, ...]:
        """Sentences that stand right under the answer, before any other: what a person copies from it."""
        return ()

    @property
    def realized_offset(self) -> int:
        """Bytes that the live peak of every order holds and the realized quantity leaves out (such as what is resident at
        entry); a bound on the live peak less it bounds the quantity."""
        return 0

    @property
    def bounded(self) -> bool:
        """False where a bound on the live peak says nothing about the quantity (the runtime orders by itself); nothing is
        then called optimal."""
        return True

    def schedule(self, ordering: Ordering, *, deadline: float | None = None) -> Schedule:
        """Turn an ordering into what this runtime realizes best: normalise the order, plan offsets.

        ``deadline`` is a moment of `peakmem.system.clock`; the best found by then is returned.
        """
        return Schedule(orders=ordering.orders)

    @abstractmethod
    def apply(self, schedule: Schedule) -> Self:
        """The artifact rewritten; checked statically before it is returned. ``self`` does not change."""

    @abstractmethod
    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the artifact atomically; `UsageError` if it exists (without ``force``) or is the input."""

    def same_kind(self, other: Model) -> Self:
        """``other``, if it is a model of this very frontend.

        Raises
        ------
        UsageError
            Otherwise: the two cannot be compared.
        """
        if not isinstance(other, type(self)) or other.frontend != self.frontend:
            raise UsageError(
                f"{other.path or 'the second model'} is read by the frontend {other.frontend!r}, {self.path or 'the first'} by "
                f"{self.frontend!r}; only two files of one frontend can be compared"
            )
        return other

    @abstractmethod
    def structure(self, other: Model) -> Structure:
        """Whether ``other`` is this artifact with statements permuted and perhaps marked copies added; nothing runs.

        `peakmem.frontends.structure.compare` does it for who can list what the file holds.

        Raises
        ------
        UsageError
            From `same_kind`.
        """

    @abstractmethod
    def verify(self, other: Model, *, progress: Progress | None = None) -> Verification:
        """Run this artifact and ``other`` on the real runtime, measure both, compare bits.

        Raises
        ------
        UsageError
            From `same_kind`.
        RuntimeMissing
            With the pip line, when no runtime is installed.
        RuntimeFailed
            When the runtime cannot execute the artifact.
        """

    def verify_within(self, other: Model, seconds: float | None, *, progress: Progress | None = None) -> Verification:
        """`verify` in about so many seconds (None: however long it takes), for a frontend that can end a run.

        It compares less where the time runs out, and says so. Not overridden, it takes what it takes.
        """
        del seconds
        return self.verify(other, progress=progress)

    def observe(self, *, progress: Progress | None = None) -> tuple[str, dict[str, Any], tuple[str, ...]]:
        """Run this artifact as it is run today, for ``inspect``.

        Returns
        -------
        headline : str
            Stands before the first line of the answer; see `Verification.headline`.
        document : dict
            Figures under the name of the frontend, JSON-ready.
        notes : tuple of str
            Sentences; where nothing could be run, why.
        """
        return "", {}, ()

    def splittable(self) -> Splittable:
        """What splitting must know of this artifact.

        Raises
        ------
        Refused
            Where the frontend has no maps of rows, or this very artifact cannot be split.
        """
        raise Refused(f"the frontend {self.frontend!r} cannot split its artifacts into bands yet; see peakmem recompute")

    def apply_split(self, split: Split) -> Self:
        """The artifact split, in the given order of ``split.program``; checked statically before it is returned."""
        raise Refused(f"the frontend {self.frontend!r} cannot split its artifacts into bands yet")

    def extras(self, other: Model, verification: Verification | None) -> dict[str, Any]:
        """What the frontend adds to the result under its own name, JSON-ready."""
        return {}

    def arena(self) -> Sequence[tuple[Literal["buffer", "workspace"], str, int, int]]:
        """Where the runtime puts things while it runs this file, for the report; empty where it has no arena.

        Each row: "buffer" or "workspace", the name of a buffer of the program or of the statement that asks for the
        workspace, offset and size in bytes.
        """
        return ()

    def snippet(self) -> str:
        """Source text for the device or the program that loads the artifact; empty unless a frontend has such a text."""
        return ""


    def share(self, others: Sequence[Model], *, measure: bool = True, progress: Progress | None = None) -> SharedArena:
        """One arena for this artifact and ``others``, which run one at a time.

        Raises
        ------
        UsageError
            From `same_kind`, and where the frontend's runtime shares no arena.
        """
        del others, measure, progress
        raise UsageError(f"frontend {self.frontend!r} knows no arena that several models share")

    def c_array(self, name: str, *, language: Literal["c", "c++"] = "c++") -> str:
        """Source text that holds the artifact's bytes as an aligned array and their number; empty unless a frontend has it.

        ``name`` is any text; the array has it as far as the language allows.
        """
        return ""


class Frontend(ABC):
    """Reads one kind of artifact.

    Attributes
    ----------
    name, description : str
        What ``--frontend`` is given, and one line for people.
    options : tuple of Option
    """

    name: str
    description: str
    options: tuple[Option, ...] = ()

    @abstractmethod
    def sniff(self, path: Path, head: bytes) -> bool:
        """Whether the file looks like ours, by its first 4096 bytes (and its name where that must decide)."""

    @abstractmethod
    def load(self, path: Path, options: Mapping[str, Any]) -> Model:
        """Read the artifact; `InputError` if it is not a good one. Missing options have their defaults."""

    def inspect(self, path: Path, options: Mapping[str, Any]) -> Inspection | None:
        """What a file says that is a record of what ran and no program, so that `load` refuses it; None where `load` reads it."""
        return None

    def runtimes(self) -> tuple[RuntimeStatus, ...]:
        """Its runtimes, found without importing them."""
        return ()
