"""The contract between core and an adapter, and how adapters are found.

A frontend turns an artifact into a `Model`; a `Model` carries a `Program` and can realize a `Schedule`. Frontends
are found by entry points of the group ``peakmem.frontends``, each naming one object that satisfies `Frontend`. The
module that holds it must import nothing heavy: listing frontends imports no runtime.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from peakmem.errors import InputError, Refused, RuntimeMissing, UsageError, did_you_mean

if TYPE_CHECKING:
    from peakmem.ordering import Ordering
    from peakmem.program import Program
    from peakmem.schedule import Schedule

GROUP = "peakmem.frontends"

OURS = ("inductor", "onnx", "tflite")
"""Frontends of this project by name; each is in a distribution ``peakmem-NAME``."""

_SUFFIXES = {".tflite": "tflite", ".onnx": "onnx", ".py": "inductor"}

Progress = Callable[[str], None]
"""Called with a short present-tense sentence when a stage starts or a bound moves."""


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

    @property
    def measured(self) -> bool:
        return self.optimized_bytes is not None and self.baseline_bytes is not None

    @property
    def exact(self) -> bool:
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


@runtime_checkable
class Model(Protocol):
    """An artifact and its program."""

    @property
    def frontend(self) -> str:
        """Name of the frontend."""

    @property
    def path(self) -> Path | None:
        """Where it was read from; None for a model made in memory."""

    @property
    def program(self) -> Program:
        """The program in the artifact's own order."""

    @property
    def digest(self) -> str:
        """``sha256:...`` of the artifact's bytes."""

    @property
    def quantity(self) -> str:
        """Name of the realized quantity."""

    @property
    def input_rule(self) -> str:
        """One sentence: which inputs are freed after their last use and which belong to the caller."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences about the artifact a reader must know; may be empty."""

    @property
    def predicted_bytes(self) -> int:
        """Bytes of the realized quantity that the runtime's model predicts for this artifact as it is."""

    # A model may also offer, and the command line looks for:
    #   realized_offset: int -- bytes that the live peak of every order holds and the realized quantity leaves out
    #       (such as what is resident at entry), default 0; a bound on the live peak less it bounds the quantity.
    #   bounded: bool -- False where a bound on the live peak says nothing about the quantity (the runtime orders by
    #       itself), default True; nothing is then called optimal.
    #   arena() -> sequence of (str, str, int, int) -- where the runtime puts things while it runs this file, for the report:
    #       "buffer" or "workspace", the name of a buffer of the program or of the statement that asks for the workspace,
    #       offset and size in bytes.
    #   snippet() -> str -- source text for the device, such as C with the arena size and the operators used.

    def schedule(self, ordering: Ordering, *, deadline: float | None = None) -> Schedule:
        """Turn an ordering into what this runtime realizes best: normalise the order, plan offsets.

        ``deadline`` is a `time.monotonic` value; the best found by then is returned.
        """

    def apply(self, schedule: Schedule) -> Model:
        """The artifact rewritten; checked statically before it is returned. ``self`` does not change."""

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the artifact atomically; `UsageError` if it exists (without ``force``) or is the input."""

    def verify(self, other: Model, *, progress: Progress | None = None) -> Verification:
        """Run this artifact and ``other`` on the real runtime, measure both, compare bits.

        Raises
        ------
        RuntimeMissing
            With the pip line, when no runtime is installed.
        RuntimeFailed
            When the runtime cannot execute the artifact.
        """

    def extras(self, other: Model, verification: Verification | None) -> dict[str, Any]:
        """What the frontend adds to the result under its own name, JSON-ready; may be empty."""


@runtime_checkable
class Frontend(Protocol):
    """Reads one kind of artifact."""

    name: str
    description: str
    options: tuple[Option, ...]

    def sniff(self, path: Path, head: bytes) -> bool:
        """Whether the file looks like ours, by its first 4096 bytes (and its name where that must decide)."""

    def load(self, path: Path, options: Mapping[str, Any]) -> Model:
        """Read the artifact; `InputError` if it is not a good one. Missing options have their defaults."""

    def runtimes(self) -> tuple[RuntimeStatus, ...]:
        """Its runtimes, found without importing them."""


def discover() -> dict[str, EntryPoint]:
    """Entry points of all installed frontends by name, sorted; nothing is imported.

    Raises
    ------
    UsageError
        When two distributions offer a frontend of the same name; the message names both.
    """
    found: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=GROUP), key=lambda p: (p.name, p.value)):
        other = found.get(point.name)
        if other is None:
            found[point.name] = point
        elif other.value != point.value or _distribution(other) != _distribution(point):
            raise UsageError(
                f"two distributions offer a frontend called {point.name!r}: {_distribution(other)} and "
                f"{_distribution(point)}; uninstall one"
            )
    return found


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.value


def frontend_version(name: str) -> str | None:
    """Version of the distribution that offers a frontend; None if it is not installed as one."""
    point = discover().get(name)
    return point.dist.version if point is not None and point.dist is not None else None


def get_frontend(name: str) -> Frontend:
    """Load one frontend by name; `UsageError` names the known ones."""
    points = discover()
    if name not in points:
        if name in OURS:
            raise UsageError(f"frontend {name!r} is not installed; try: pip install peakmem-{name}")
        raise UsageError(
            f"no frontend is called {name!r} (installed are {', '.join(points) or 'none'})"
            + did_you_mean(name, {*points, *OURS})
        )
    try:
        frontend = points[name].load()
    except Exception as error:
        raise UsageError(f"frontend {name!r} of {_distribution(points[name])} cannot be loaded: {error}") from error
    if not isinstance(frontend, Frontend):
        raise UsageError(f"frontend {name!r} of {_distribution(points[name])} does not honour the Frontend protocol")
    return frontend


def recognise(path: Path) -> Frontend:
    """The one frontend whose `sniff` accepts the file.

    Raises
    ------
    InputError
        When the file cannot be read or no frontend knows it.
    UsageError
        When several do.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise InputError(f"{path}: is a device, pipe or socket; a model is read more than once, so give a file")
        with path.open("rb") as file:
            head = file.read(4096)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError as error:  # a NUL in the name
        raise InputError(f"{path}: cannot be read ({error})") from None
    if not head:
        raise InputError(f"{path}: is empty; give a file that holds a model")
    matches: list[Frontend] = []
    broken: list[UsageError] = []
    for name in discover():
        try:
            candidate = get_frontend(name)
        except UsageError as error:  # one broken plugin must not hide the others
            broken.append(error)
            continue
        if candidate.sniff(path, head):
            matches.append(candidate)
    if not matches:
        if broken:
            raise broken[0]
        missing = _SUFFIXES.get(path.suffix.lower())
        advice = "name one with --frontend" if missing in (None, *discover()) else f"try: pip install peakmem-{missing}"
        raise InputError(
            f"{path}: no installed frontend recognises this file; installed are {', '.join(discover())} ({advice})"
        )
    if len(matches) > 1:
        raise UsageError(
            f"{path}: several frontends recognise this file ({', '.join(f.name for f in matches)}); "
            "name one with --frontend"
        )
    return matches[0]


def complete_options(frontend: Frontend, given: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in defaults; `UsageError` on an unknown option."""
    known = {option.key: option for option in frontend.options}
    for key in given:
        if key not in known:
            raise UsageError(
                f"frontend {frontend.name!r} has no option {key!r} (it has {', '.join(sorted(known)) or 'none'})"
                + did_you_mean(key, known)
            )
    return {key: given.get(key, option.default) for key, option in known.items()}


def asks_for_runtime(frontend: Frontend, given: Mapping[str, Any]) -> bool:
    """Whether the options given name a runtime (see `Option.names_runtime`); ask before a model is measured.

    Raises
    ------
    RuntimeMissing
        When they do and it is not installed; with the pip line that brings it.
    """
    named = [option for option in frontend.options if option.names_runtime and option.key in given]
    for option in named:
        for status in frontend.runtimes():
            if status.name == given[option.key] and status.version is None:
                raise RuntimeMissing(f"--{option.name}: {status.name} is not installed; try: {status.pip}")
    return bool(named)
