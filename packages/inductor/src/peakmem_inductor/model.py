"""A dumped wrapper as a `peakmem.frontends.Model`; torch is needed only to verify."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peakmem.frontends import Model, Progress, Structure, Verification
from peakmem.model import (
    InputError,
    PeakmemError,
    Program,
    Refused,
    RuntimeFailed,
    RuntimeMissing,
    Schedule,
    UsageError,
)
from peakmem.system.files import check_output, write_atomically
from peakmem.system.process import run_child

from peakmem_inductor.building import build_graph
from peakmem_inductor.effects import BARRIER, hidden_effects
from peakmem_inductor.emitting import realize
from peakmem_inductor.forms import Wrapper
from peakmem_inductor.graph import Graph
from peakmem_inductor.pooling import Pooled, add_pool, has_pool, remove_pool
from peakmem_inductor.profile import Profile, profile_path, read_profile
from peakmem_inductor.simulation import simulate
from peakmem_inductor.statictext import profile_from_text
from peakmem_inductor.structure import compare_graphs
from peakmem_inductor.wrapper import is_ahead_of_time, parse_wrapper

if TYPE_CHECKING:
    from peakmem.ordering import Ordering

    from peakmem_inductor.cuda.reserving import Reserving

PIP = "pip install 'peakmem-inductor[torch]'"
Reserve = Callable[[Graph, Sequence[int], int], "Reserving"]
QUANTITY = "bytes_above_entry"
TIMEOUT = 900


def torch_version() -> str | None:
    """Installed version of torch, found without importing it; None if there is none."""
    try:
        return version("torch") if find_spec("torch") is not None else None
    except (PackageNotFoundError, ValueError):
        return None


class InductorModel(Model):
    """A wrapper and what a run of it recorded.

    Parameters
    ----------
    wrapper : Wrapper
    profile : Profile
    path : Path, optional
    notes : tuple of str
    pool : bool
        `apply` lays the buffers in one allocation.
    reserve : callable, optional
        Chooses among orders of one peak; see `peakmem_inductor.cuda.reserving.reserve_least`.
    """

    frontend = "inductor"
    quantity = QUANTITY

    def __init__(
        self,
        wrapper: Wrapper,
        profile: Profile,
        path: Path | None = None,
        notes: tuple[str, ...] = (),
        pool: bool = False,
        reserve: Reserve | None = None,
    ) -> None:
        self.wrapper = wrapper
        self.profile = profile
        self._path = path
        self._notes = notes
        self._pool = pool
        self._reserve = reserve
        self._reserved: Reserving | None = None

    @cached_property
    def graph(self) -> Graph:
        """The wrapper as a program that can be permuted."""
        return build_graph(self.wrapper, self.profile)

    @property
    def program(self) -> Program:
        return self.graph.program

    @property
    def path(self) -> Path | None:
        return self._path

    @property
    def digest(self) -> str:
        return self.wrapper.digest

    @property
    def input_rule(self) -> str:
        freed = len(self.profile.freed)
        how = "recorded as" if self.profile.recorded else "taken as"
        return (
            f"all arguments are resident from entry; {freed} {how} released by the wrapper are freed after their last "
            "use, the others belong to the caller"
        )

    @property
    def notes(self) -> tuple[str, ...]:
        found = [*self._notes, *self.profile.notes]
        if self.graph.data_dependent:
            found.append("some sizes depend on data: bytes are those of the recorded run")
        if any(d != "cpu" for d in self.wrapper.devices):
            found.append("a GPU wrapper: bytes are those requested of the GPU's allocator; the command line does not run it")
        elif self.profile.recorded:
            found.append(
                "counted is what torch's CPU allocator is asked for; what oneDNN and MKL keep for themselves is not"
            )
        measured = self.profile.measured_peak
        if measured is not None and measured != self.predicted_bytes:
            found.append(
                f"the recorded run took {measured:,} bytes where {self.predicted_bytes:,} are modelled: control flow "
                "releases memory inside a branch"
            )
        return tuple(found)

    @property
    def realized_offset(self) -> int:
        """Bytes of every live peak that the quantity leaves out: what is resident at entry."""
        return self.program.entry_bytes

    @cached_property
    def predicted_bytes(self) -> int:
        return simulate(self.wrapper, self.profile)

    def schedule(self, ordering: Ordering, *, deadline: float | None = None) -> Schedule:
        schedule = Schedule(orders=dict(ordering.orders))
        if self._reserve is not None:
            found = self._reserve(self.graph, ordering.orders[""], ordering.lower_bound - self.program.entry_bytes)
            peak = ordering.peak - self.program.entry_bytes
            if peak > self.predicted_bytes or (peak == self.predicted_bytes and found.growth >= found.untouched):  # see `apply`
                least = found.least and found.growth == found.untouched
                found = replace(found, order=tuple(range(len(self.program))), growth=found.untouched, least=least)
            self._reserved = found
            return replace(schedule, orders={**ordering.orders, "": found.order}, notes=(str(found),))
        return replace(schedule, notes=(str(self._with_pool(*self._realized(schedule))),)) if self._pool else schedule

    def _realized(self, schedule: Schedule) -> tuple[Wrapper, Profile]:
        expansion = schedule.expansion
        program = expansion.program if expansion is not None else self.program
        return realize(self.graph, schedule.orders.get("", tuple(range(len(program)))), expansion)

    def _with_pool(self, wrapper: Wrapper, profile: Profile) -> Pooled:
        try:
            return add_pool(wrapper, profile)
        except PeakmemError as error:
            raise Refused(f"--pool: {error}") from None

    def apply(self, schedule: Schedule) -> InductorModel:
        """The wrapper with its statements permuted, some of them perhaps twice; the original text if that would not
        need less."""
        wrapper, profile = self._realized(schedule)
        if self._pool:
            pooled = self._with_pool(wrapper, profile)
            return InductorModel(pooled.wrapper, pooled.profile, None, self._notes)
        model = InductorModel(wrapper, profile, None, self._notes)
        same = self._reserve is None or schedule.orders[""] == tuple(range(len(self.program)))
        if model.predicted_bytes > self.predicted_bytes or (same and model.predicted_bytes == self.predicted_bytes):
            return InductorModel(self.wrapper, self.profile, None, (*self._notes, "left as it is: no order needs less"))
        return model

    def structure(self, other: Model) -> Structure:
        """Whether ``other`` holds the same kernels and calls, permuted and perhaps some of them once more."""
        try:
            return compare_graphs(self._unpooled().graph, self.same_kind(other)._unpooled().graph)
        except InputError as error:
            return Structure(difference=f"the pool is not sound: {error}")

    def _unpooled(self) -> InductorModel:
        """Without the pool that peakmem gave it, whose offsets are checked meanwhile."""
        return InductorModel(*remove_pool(self.wrapper, self.profile)) if has_pool(self.wrapper) else self

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the wrapper and, beside it, its profile."""
        path = Path(path)
        beside = profile_path(path)
        source = self.path
        check_output(path, source=source, force=force)
        if self.profile.recorded:
            check_output(beside, source=profile_path(source) if source else None, force=force)
            write_atomically(beside, self.profile.to_bytes(), force=force)
        write_atomically(path, self.wrapper.source.encode(), source=source, force=force)

    def verify(self, other: Model, *, progress: Progress | None = None) -> Verification:
        """Run both wrappers in a child process on the same random arguments of the recorded shapes."""
        other = self.same_kind(other)
        installed = torch_version()
        if installed is None:
            raise RuntimeMissing(f"torch is not installed; bring it with: {PIP}")
        if any(d != "cpu" for d in self.wrapper.devices):
            raise RuntimeFailed("a GPU wrapper: peakmem only runs CPU wrappers, nothing was measured")
        if not self.profile.recorded:
            raise RuntimeFailed("no recorded profile: the arguments are not known well enough to run the wrapper")
        opaque = [n for n, x in self.profile.constants.items() if x is None]
        if opaque:
            raise RuntimeFailed(f"the constant {opaque[0]} has an opaque format that a dump cannot hold; nothing was measured")
        hidden = hidden_effects(self.wrapper, lambda name: self.profile.operators.get(name, BARRIER))
        if hidden:
            raise RuntimeFailed(
                f"the program calls {hidden}: it may have effects that no argument shows, so nothing was run; "
                "dump it again with options={'pure': [...]} if it has none"
            )
        if progress is not None:
            progress("compiling and running both wrappers")
        row = _run_child([self, other])
        failures = []
        if row["difference"]:
            if row["reproducible"]:
                failures.append(f"{row['difference']} has other bits in the permuted wrapper")
            else:
                failures.append(f"{row['difference']} differs even between two runs of the original wrapper")
        predicted = (self.predicted_bytes, other.predicted_bytes)
        for what, measured, modelled in zip(("the original", "the permuted"), row["peaks"], predicted):
            if measured != modelled:
                failures.append(f"{what} wrapper took {measured:,} bytes, modelled were {modelled:,}")
        notes = [f"random arguments of the recorded shapes, {_count(row['threads'], 'thread')}"]
        if row["torch"].split("+")[0] != self.profile.torch.split("+")[0]:
            notes.append(f"recorded with torch {self.profile.torch}, run with {row['torch']}")
        return Verification(
            runtime="torch",
            version=row["torch"],
            quantity=QUANTITY,
            baseline_bytes=row["peaks"][0],
            optimized_bytes=row["peaks"][1],
            baseline_predicted=predicted[0],
            predicted_bytes=predicted[1],
            bitwise_identical=not row["difference"],
            compared=f"{_count(row['outputs'], 'output')} and {_count(row['arguments'], 'argument')} of one run",
            failures=tuple(failures),
            notes=tuple(notes),
        )

    def extras(self, other: Model, verification: Verification | None) -> dict[str, Any]:
        reserved = self._reserved
        return {
            "torch": self.profile.torch or None,
            "threads": self.profile.threads or None,
            "recorded_peak": self.profile.measured_peak,
            "data_dependent": self.graph.data_dependent,
            "devices": list(self.wrapper.devices),
            **({"reserved_bytes": reserved.growth, "reserved_before": reserved.untouched, "least_reserved": reserved.least} if reserved else {}),
        }


def load_model(path: Path, options: Mapping[str, Any]) -> InductorModel:
    """Read a dumped wrapper with its profile, or without one from its text alone.

    Raises
    ------
    InputError
        When the text is no wrapper, holds an unknown statement, or the profile is of another wrapper.
    """
    try:
        data = path.read_bytes()
        if is_ahead_of_time(data[:4096]):
            raise InputError(f"{path}: was compiled by AOTInductor, to C++ that peakmem does not permute; give a Python wrapper")
        source = data.decode()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not text; give a wrapper that Inductor wrote") from None
    wrapper = parse_wrapper(source, where=str(path))
    given = options.get("profile")
    beside = Path(given) if given else profile_path(path)
    if given or beside.exists():
        profile = read_profile(beside)
        if profile.digest != wrapper.digest:
            raise InputError(f"{beside}: was recorded for another wrapper than {path}; dump both again")
    else:
        profile = profile_from_text(wrapper)
        if torch_version() is not None and any(f.kind == "operator" for f in wrapper.forms):
            from peakmem_inductor.effects import operator_effects

            profile = replace(profile, operators={k: operator_effects(k) for k in profile.operators})
    pool, reserve = bool(options.get("pool")), _reserve(path, wrapper, options)
    if pool and reserve is not None:
        raise UsageError("--pool and --least-reserved: give one of them; with a pool there is one request whose place matters")
    model = InductorModel(wrapper, profile, path, pool=pool, reserve=reserve)
    try:
        _ = model.graph, model.predicted_bytes
    except RecursionError:
        raise InputError(f"{path}: holds an expression that is nested too deep; give a wrapper that Inductor wrote") from None
    except KeyError as error:
        raise InputError(f"{path}: the size of {error} is not known; dump the wrapper with its profile") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    if profile.requests and (otherwise := simulate(wrapper, replace(profile, requests={}))) != model.predicted_bytes:
        raise InputError(
            f"{beside}: the profile is damaged (by what its calls ask for the peak is {model.predicted_bytes:,} bytes, by the sizes that it gives "
            f"{otherwise:,}); dump the wrapper again"
        )
    return model


def _reserve(path: Path, wrapper: Wrapper, options: Mapping[str, Any]) -> Reserve | None:
    """What ``--least-reserved`` and ``--cache`` ask for."""
    cache = options.get("cache")
    if not options.get("least_reserved"):
        if cache:
            raise UsageError("--cache: is for --least-reserved")
        return None
    if not any(d == "cuda" for d in wrapper.devices):
        raise UsageError(f"{path}: runs on the CPU, whose allocator reserves nothing; --least-reserved is for GPU programs")
    from peakmem_inductor.cuda.conf import Settings
    from peakmem_inductor.cuda.reserving import reserve_least

    state, settings = None, Settings()
    if cache:
        from peakmem_inductor.cuda.snapshots import read_snapshot

        snapshot = read_snapshot(Path(cache))
        devices, settings = snapshot.devices, snapshot.settings
        if len(devices) != 1:
            raise InputError(f"{cache}: holds memory of {len(devices)} devices; give a snapshot of the one that the program runs on")
        if devices[0].grows:
            raise InputError(f"{cache}: holds expandable segments, for which no order is searched")
        state = devices[0].segments
    return lambda graph, order, bound: reserve_least(graph, order, state, bound=bound, settings=settings)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"


def _run_child(models: list[InductorModel]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="peakmem-") as folder:
        files = []
        for i, model in enumerate(models):
            text, profile = Path(folder) / f"wrapper{i}.py", Path(folder) / f"wrapper{i}.json"
            text.write_text(model.wrapper.source)
            profile.write_bytes(replace(model.profile, digest=model.digest).to_bytes())
            files += [str(text), str(profile)]
        result = Path(folder) / "result.json"
        environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        done = run_child(
            [sys.executable, "-m", "peakmem_inductor.child", str(result), *files],
            what="the wrappers", limit=TIMEOUT, environment=environment, folder=Path(folder),
        )  # fmt: skip
        if done.code or not result.exists():
            raise RuntimeFailed(f"the wrapper could not be run: {done.last_words}")
        row = json.loads(result.read_text())
    if "missing" in row:
        raise RuntimeMissing(row["missing"])
    if "error" in row:
        raise RuntimeFailed(f"the wrapper could not be run: {row['error']}")
    found: dict[str, Any] = row
    return found
