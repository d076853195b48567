"""What the process takes, which is what a user runs out of: the session's bytes are one part of it.

Every figure comes from a process of its own in which nothing runs but one session; those of different settings alternate, so
that a machine that slows down slows all of them. Taken is the resident memory above what imports and inputs need.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from peakmem.frontends import Progress
from peakmem.model import RuntimeFailed, UsageError
from peakmem.system.sizes import short

from peakmem_onnx.artifact import Artifact
from peakmem_onnx.feeds import shape_texts, write_feeds
from peakmem_onnx.held import account
from peakmem_onnx.held import sentences as sentences_of
from peakmem_onnx.planned import LARGEST_REGION
from peakmem_onnx.rules import LEVELS
from peakmem_onnx.runtime import ask, counting_library, scratch
from peakmem_onnx.ways import ARENA, NODES, RECIPE

RUNS = 4
"""Runs in one process; the first ones make room that later ones reuse. A slow model runs less often, but twice."""

LIMIT = 60.0
"""Seconds after which no more processes are begun, but for the first of each kind."""

_SWITCHES = {"enable_mem_reuse": "reuse", "enable_mem_pattern": "pattern", "enable_cpu_mem_arena": "arena"}
_NUMBERS = {"intra_op_num_threads": "threads", "inter_op_num_threads": "inter_threads"}
WITHOUT = "without memory patterns"
NEW, PLANNED = "the new file", "the new file in a planned arena"
DEFAULTS = {"level": "all", "reuse": True, "pattern": True, "arena": True}


@dataclass(frozen=True)
class Configuration:
    """A file and the settings of a session that opens it.

    Attributes
    ----------
    name, settings : str
        For people.
    path : Path
    job : dict
        See `peakmem_onnx.child.options_for`.
    """

    name: str
    settings: str
    path: Path
    job: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Taken:
    """What processes of one configuration take: medians over the repeats, in bytes above imports and inputs.

    Attributes
    ----------
    name, settings : str
    peak : int
        From loading to the last run.
    load : int
        Peak while the session is made.
    growth : int
        Peak during the runs above what was there before the first.
    held : int or None
        By the session's arena after two runs, by its own account; None without arena.
    predicted : int or None
        The same as predicted; None where that was not asked for, or nothing was counted.
    told : tuple of str
        Sentences about what the arena holds.
    asked : int or None
        Peak of what the same session asks for where no arena stands between: tensors and workspace.
    seconds : float
        CPU time of the fastest run.
    repeats : int
        Processes that were run.
    loaded : int
        When the session was made, before the first run.
    """

    name: str
    settings: str
    peak: int
    load: int
    growth: int
    held: int | None
    asked: int | None
    seconds: float
    repeats: int = 1
    loaded: int = 0
    predicted: int | None = None
    told: tuple[str, ...] = ()


def parse_session(items: Sequence[str]) -> dict[str, Any]:
    """``NAME=VALUE`` pairs as the child takes them: options of SessionOptions, and entries of its configuration (with a dot).

    Raises
    ------
    UsageError
        On anything else.
    """
    job: dict[str, Any] = dict(DEFAULTS)
    for item in items:
        name, equals, text = item.partition("=")
        value = text.strip().lower()
        if not equals or not name:
            raise UsageError(f"--session {item}: must look like NAME=VALUE, such as enable_mem_pattern=0")
        if "." in name:
            job["config"] = {**job.get("config", {}), name: text}
        elif name in _SWITCHES and value in ("0", "1", "false", "true"):
            job[_SWITCHES[name]] = value in ("1", "true")
        elif name in _NUMBERS and value.isdigit():
            job[_NUMBERS[name]] = int(value)
        elif name == "graph_optimization_level" and value in LEVELS:
            job["level"] = value
        else:
            known = ", ".join((*_SWITCHES, *_NUMBERS, "graph_optimization_level"))
            raise UsageError(f"--session {item}: is not known; give one of {known} or an entry of the configuration, such as session.x=1")
    return job


def configurations(model: Artifact, other: Artifact | None, folder: Path) -> list[Configuration]:
    """The user's own settings, the same without memory patterns, and the new file with its settings."""
    if model.path is not None:
        path = model.path.absolute()  # a child has a folder of its own
    else:
        path = folder / "given.onnx"
        path.write_bytes(model.serialized())
    origin = model.origin
    shared = {"threads": origin.threads, "external": origin.external}
    own = {**shared, **parse_session(origin.session)}
    said = ", ".join(origin.session)
    found = [Configuration("your settings" if said else "ONNX Runtime as it comes", said or "all options at their defaults", path, own)]
    if own["pattern"]:
        words = "the same with enable_mem_pattern=0"
        found.append(Configuration(WITHOUT, words, path, {**own, "pattern": False}))
    if other is not None:
        new = folder / "new.onnx"
        new.write_bytes(other.serialized())
        found.append(deployed(other, NEW, new))
        if size := _region(other):
            job = {**shared, "level": "none", **ARENA.session, "chunk": size}
            found.append(Configuration(PLANNED, f"{ARENA.name}, its first region {size} bytes", new, job))
    return found


def deployed(model: Artifact, name: str, path: Path) -> Configuration:
    """A file of peakmem's that stands at ``path``, run in its way."""
    job = {"threads": model.origin.threads, "external": model.origin.external, "level": "none", **model.session}
    return Configuration(name, model.way.name, path, job)


def _region(other: Artifact) -> int:
    """Bytes of the first region of the arena in which a file whose deployment is not settled may run as well; 0 where it may not."""
    if other.way is not RECIPE or other.origin.recipe.get("deploy") != "auto" or (other.has_bodies and counting_library() is None):
        return 0
    size = other.planned_regions()[0]
    return size if size < LARGEST_REGION else 0


def measure_process(model: Artifact, other: Artifact | None, *, progress: Progress | None = None) -> list[Taken]:
    """Run every configuration ``origin.repeats`` times; nothing with 0 repeats, and where nodes run one by one.

    The last row is the new file as it is to be deployed: where that is not settled, in the way that takes less, which
    `Artifact.regions` of ``other`` remembers.

    Raises
    ------
    RuntimeFailed
        Where a session cannot be opened, or the system does not tell the memory of a process.
    """
    origin = model.origin
    if origin.repeats < 1 or model.way is NODES:
        return []
    if not sys.platform.startswith("linux"):
        raise RuntimeFailed("the peak of a process is read from /proc, which needs Linux")
    with scratch() as folder:
        feeds = write_feeds(model.one_of_each, folder)
        found = configurations(model, other, folder)
        shapes = shape_texts(model.one_of_each)
        rows = run_configurations(found, feeds, origin.repeats, folder, progress, shapes=shapes[1:])
    if other is not None and found[-1].name == PLANNED:
        if rows[-1].peak < rows[-2].peak:
            other.regions.append(found[-1].job["chunk"])
        else:
            rows[-2:] = rows[:-3:-1]  # what is chosen comes last
    return rows


def run_configurations(
    found: Sequence[Configuration],
    feeds: Sequence[str],
    repeats: int,
    folder: Path,
    progress: Progress | None = None,
    *,
    shapes: Sequence[str] = (),
) -> list[Taken]:
    """Run every configuration ``repeats`` times in processes of their own, which alternate; one row each.

    ``feeds`` are sets of inputs, ``shapes`` says what those after the first are.
    """
    runs: dict[str, list[dict[str, Any]]] = {one.name: [] for one in found}
    begin = time.monotonic()
    for repeat in range(repeats):
        if repeat and time.monotonic() - begin > LIMIT:
            break
        if progress is not None:
            progress(f"measuring processes, {repeat + 1} of {repeats}")
        for one in found:
            step = {**one.job, "do": "process", "model": str(one.path), "feeds_files": list(feeds), "runs": RUNS}
            runs[one.name].append(ask(folder, [step])[0])
    asked = _asked(found, feeds, folder)
    rows = []
    for one in found:
        taken = _taken(one, runs[one.name], asked[one.name])
        if one.job.get("arena"):
            step = {**one.job, "model": str(one.path), "feeds_files": list(feeds)}
            told = account(step, folder, predict=one is found[0])
            lines = sentences_of(one.name, told, shapes) if told.predicted else []
            taken = replace(taken, held=told.held, predicted=told.held_predicted, told=tuple(lines))
        rows.append(taken)
    return rows


def _asked(found: Sequence[Configuration], feeds: Sequence[str], folder: Path) -> dict[str, int | None]:
    """Bytes asked for, of each configuration."""
    library = counting_library()
    if library is None:
        return {one.name: None for one in found}
    steps = []
    for one in found:
        job = {key: value for key, value in one.job.items() if key != "chunk"}
        steps.append({**job, "do": "measure", "model": str(one.path), "feeds_files": list(feeds), "arena": False})
    answers = ask(folder, steps, preload=library)
    return {
        one.name: answer.get("taken", max(again for _, again in answer["peaks"])) for one, answer in zip(found, answers, strict=True)
    }


def _taken(one: Configuration, runs: Sequence[Mapping[str, Any]], asked: int | None) -> Taken:
    middle = {key: int(statistics.median(run[key] for run in runs)) for key in ("peak", "load", "growth", "loaded")}
    seconds = statistics.median(run["seconds"] for run in runs)
    return Taken(one.name, one.settings, middle["peak"], middle["load"], middle["growth"], None, asked, seconds, len(runs), middle["loaded"])


def headline(rows: Sequence[Taken], *, new: bool) -> str:
    """``process +96.0 MiB -> +32.0 MiB (-67 %) at 0.99x time``; of the file as it is alone where there is no new one."""
    if not rows:
        return ""
    first, last = rows[0], rows[-1]
    if not new:
        return f"process +{short(first.peak)}"
    return f"process +{short(first.peak)} -> +{short(last.peak)}{_against(first, last)}" + (", so keep what you have" if advice(rows) else "")


def advice(rows: Sequence[Taken]) -> str:
    """What to do where no way in which the new file was run makes a smaller process than the user's own; else nothing."""
    if len(rows) < 2:
        return ""
    own = min((row for row in rows if row is rows[0] or row.name == WITHOUT), key=lambda row: row.peak)
    if own.peak > rows[-1].peak:
        return ""
    with_what = " with enable_mem_pattern=0" if own.name == WITHOUT else ""
    return (
        f"the process is not smaller with the new file than with the one you have in your own session{with_what} "
        f"(+{short(rows[-1].peak)} against +{short(own.peak)}): for the process keep that"
    )


def _against(first: Taken, last: Taken) -> str:
    share = f" ({100 * (last.peak - first.peak) / first.peak:+.0f} %)" if first.peak > 0 else ""
    return share + (f" at {last.seconds / first.seconds:.2f}x time" if first.seconds > 0 else "")


def sentences(rows: Sequence[Taken]) -> list[str]:
    """One line a configuration."""
    lines = []
    for row in rows:
        parts = [f"peak +{short(row.peak)}" + ("" if row is rows[0] else _against(rows[0], row)),
                 f"loading +{short(row.load)}", f"runs +{short(row.growth)}"]
        if row.held is not None:
            parts.append(f"its arena holds {short(row.held)}")
        if row.asked is not None:
            parts.append(f"asked for {short(row.asked)}")
        lines.append(f"process, {row.name}: {', '.join(parts)}")
    lines += [line for row in rows for line in row.told]
    if rows:
        many = rows[0].repeats
        lines.append(
            f"processes: resident memory above imports and inputs, weights included; median of {many} fresh process"
            f"{'es' if many > 1 else ''} each, of up to {RUNS} runs"
        )
    return lines


def document(rows: Sequence[Taken]) -> list[dict[str, Any]]:
    """The entry ``process`` of documents."""
    names = {"peak": "peak_bytes", "load": "load_bytes", "growth": "growth_bytes", "held": "arena_bytes", "asked": "asked_bytes",
             "seconds": "cpu_seconds", "loaded": "loaded_bytes", "predicted": "arena_predicted_bytes"}
    return [{names.get(key, key): value for key, value in asdict(row).items() if key != "told"} for row in rows]
