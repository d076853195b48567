"""``peakmem survey``: every model of a folder, each in a process of its own, a row for each as soon as it is known."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peakmem_cli.common import (
    Budget,
    Effort,
    Force,
    Json,
    NoMeasure,
    Quiet,
    RequireOptimal,
    TimeLimit,
    limit,
    seconds,
    size,
)

if TYPE_CHECKING:
    from peakmem_cli.fleet.models import Model
    from peakmem_cli.fleet.rows import Row
    from peakmem_cli.fleet.run import Task
    from peakmem_cli.screen import Screen

Outputs = Annotated[
    list[Path] | None,
    typer.Option(
        "--output", "-o", metavar="FILE", help="Write the rows as .jsonl (while they are found), .md, .csv, .html or .parquet; repeatable."
    ),
]
Against = Annotated[
    Path | None, typer.Option("--against", metavar="FILE.jsonl", help="Say what got worse since the survey that wrote this.")
]
Gate = Annotated[bool, typer.Option("--gate", help="Exit 1 if anything got worse; goes with --against.")]
Reports = Annotated[
    Path | None,
    typer.Option("--reports", metavar="FOLDER", help="A page for each model goes here; a table as .html leads to them."),
]


def shard(text: str | None) -> tuple[int, int]:
    """``2/5``: the second of five; all where nothing is given."""
    from peakmem.model import UsageError

    one, slash, whole = (text or "1/1").partition("/")
    if slash and one.isdecimal() and whole.isdecimal() and 1 <= int(one) <= int(whole):
        return int(one), int(whole)
    raise UsageError(f"--shard: {text!r} is no share of a survey; give I/N with I from 1 to N")


def command(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Models, or folders to search for models.")],
    output: Outputs = None,
    reports: Reports = None,
    frontend: Annotated[str | None, typer.Option("--frontend", metavar="NAME", help="Only models of this frontend.")] = None,
    include: Annotated[
        list[str] | None, typer.Option("--include", metavar="PATTERN", help="Only files in folders that fit, as '*.onnx'; repeatable.")
    ] = None,
    exclude: Annotated[
        list[str] | None, typer.Option("--exclude", metavar="PATTERN", help="No files in folders that fit, as 'old/*'; repeatable.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="FRONTEND:NAME[=VALUE]", help="An option for the models of one frontend, as 'onnx:try-dims'; repeatable."),
    ] = None,
    share: Annotated[str | None, typer.Option("--shard", metavar="I/N", help="Of the models, those of machine I of N.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Keep the rows of the .jsonl that answer for the same bytes and options.")] = False,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", metavar="N", min=1, help="Models at a time (default: processors).")
    ] = None,
    backend: Annotated[
        str | None,
        typer.Option(
            "--backend", metavar="NAME[,KEY=VALUE]", help="Spread the models with joblib: loky, or 'dask,scheduler_host=tcp://HOST:PORT'."
        ),
    ] = None,
    model_limit: Annotated[
        float | None,
        typer.Option(
            "--model-limit", metavar="SECONDS", parser=seconds,
            help="End a model that takes longer in all, running it included (default: twice the time limit, or 10 more).",
        ),
    ] = None,
    memory: Annotated[
        int | None, typer.Option("--memory", metavar="SIZE", parser=size, help="Address space that each process of a model may take (Linux).")
    ] = None,
    against: Against = None,
    gate: Gate = False,
    budget: Budget = None,
    time_limit: TimeLimit = 60.0,
    effort: Effort = None,
    require_optimal: RequireOptimal = False,
    no_measure: NoMeasure = False,
    force: Force = False,
    json: Json = False,
    json_lines: Annotated[bool, typer.Option("--json-lines", help="Print each row as one line of JSON when it is known, nothing else.")] = False,
    quiet: Quiet = False,
) -> int:
    """Optimize every model in the folders given, in memory: bytes before and after, and what is proved.

    Each model has a process of its own, so one that crashes its runtime or never ends is one row. No model is changed.
    """
    from peakmem.model import InputError, UsageError

    from peakmem_cli.fleet import rows as rowfiles
    from peakmem_cli.fleet.models import Choice, find
    from peakmem_cli.fleet.run import run_all
    from peakmem_cli.screen import Screen

    if json and json_lines:
        raise UsageError("--json and --json-lines: give one of them")
    if gate and against is None:
        raise UsageError("--gate: goes with --against FILE.jsonl")
    given = options_by_frontend(option or ())
    outputs = check_outputs(output, force=force, resume=resume)
    earlier = rowfiles.read_rows(against) if against is not None else None
    screen = Screen(as_json=json or json_lines, quiet=quiet)
    models = list(find(paths, Choice(frontend, include or (), exclude or (), shard(share))))
    if not models and share is None:
        raise InputError(f"{', '.join(map(str, paths))}: no model here that an installed frontend recognises")
    hard = model_limit if model_limit is not None else max(2 * time_limit, time_limit + 10)
    tasks = [_task(model, given.get(model.frontend, []), time_limit, effort, no_measure, reports, limit(hard), memory) for model in models]
    if reports is not None:
        _make(reports)
    growing = next((rowfiles.RowFile(path, resume=resume) for path in outputs if path.suffix.lower() == ".jsonl"), None)
    kept = _kept(growing.known if growing is not None else [], tasks, reports)
    rows = dict(kept)

    def take(row: Row) -> None:
        rows[row.key, row.model.name] = row
        if growing is not None:
            growing.add(row)
        if json_lines:
            sys.stdout.write(row.to_line())
            sys.stdout.flush()

    for row in kept.values():
        if json_lines:
            sys.stdout.write(row.to_line())
    left = [task for task in tasks if (task.key, task.model.name) not in kept]
    with screen.progress() as progress:
        interrupt = run_all(left, jobs or os.cpu_count() or 1, backend, take, progress)
    screen.result_is_there()
    if growing is not None:
        growing.close()
    found = [rows[place] for task in tasks if (place := (task.key, task.model.name)) in rows]
    return finish(
        found, len(models), outputs, screen, reports=reports, earlier=earlier, gate=gate, budget=budget, require_optimal=require_optimal,
        interrupt=interrupt, document=json, kept=len(kept),
    )  # fmt: skip


def check_outputs(output: Sequence[Path] | None, *, force: bool, resume: bool = False) -> list[Path]:
    """Refuse tables that may not be written, before any work is done."""
    from peakmem.model import UsageError
    from peakmem.system.files import check_output

    from peakmem_cli.fleet.tables import check_kind

    outputs = list(output or ())
    growing = [path for path in outputs if path.suffix.lower() == ".jsonl"]
    if len(growing) > 1 or len({path.resolve() for path in outputs}) < len(outputs):
        raise UsageError(f"{outputs[-1]}: one file of a kind; name other files")
    if resume and not growing:
        raise UsageError("--resume: goes with -o FILE.jsonl, from which it goes on")
    for path in outputs:
        check_kind(path)
        check_output(path, source=None, force=force or resume)
    return outputs


def options_by_frontend(texts: Sequence[str]) -> dict[str, list[str]]:
    """``onnx:dim=batch=1`` as an option of the command that each model of that frontend is given."""
    from peakmem.frontends import get_frontend
    from peakmem.model import UsageError
    from peakmem.system.sizes import parse_size

    found: dict[str, list[str]] = {}
    for text in texts:
        name, colon, rest = text.partition(":")
        key, equals, value = rest.partition("=")
        if not colon or not key:
            raise UsageError(f"--option: {text!r} is not FRONTEND:NAME or FRONTEND:NAME=VALUE")
        known = {option.name: option for option in get_frontend(name).options}
        option = known.get(key)
        if option is None:
            raise UsageError(f"--option: the frontend {name} has no option {key!r}; it has {', '.join(sorted(known)) or 'none'}")
        if (option.kind == "flag") == bool(equals):
            raise UsageError(f"--option: {name}:{key} {'takes no value' if equals else 'needs a value, as ' + text + '=VALUE'}")
        if option.kind == "int" and not re.fullmatch(r"[+-]?[0-9]{1,18}", value):
            raise UsageError(f"--option: {name}:{key}: {value!r} is no whole number")
        if option.kind == "size":
            try:
                parse_size(value)
            except UsageError as error:
                raise UsageError(f"--option: {name}:{key}: {error}") from None
        if not option.multiple and any(one.partition("=")[0] == f"--{key}" for one in found.get(name, ())):
            raise UsageError(f"--option: {name}:{key} is given twice")
        if option.choices and value not in option.choices:
            raise UsageError(f"--option: {name}:{key}: {value!r} is none of {', '.join(option.choices)}")
        found.setdefault(name, []).append(f"--{key}={value}" if equals else f"--{key}")
    return found


def _task(
    model: Model, given: Sequence[str], time_limit: float, effort: int | None, no_measure: bool, reports: Path | None, hard: float | None,
    memory: int | None,
) -> Task:  # fmt: skip
    from peakmem_cli.fleet.rows import key_of
    from peakmem_cli.fleet.run import Task

    options = ["--time-limit", "inf" if limit(time_limit) is None else str(time_limit), *(["--no-measure"] if no_measure else [])]
    options += ["--effort", str(effort)] if effort is not None else []
    options += given
    key = key_of(model, [*options, *_contents(given), f"limit {hard}", f"memory {memory}", *(["report"] if reports is not None else [])])
    page = None
    if reports is not None:
        page = hashlib.sha256(f"{key} {model.name}".encode()).hexdigest()[:24] + ".html"
        options += ["--report", str(reports / page), "--force"]
    return Task(model, tuple(options), key, hard, memory, page)


def _contents(given: Sequence[str]) -> list[str]:
    """What the files hold that options name; a row answers for these bytes, not for the name."""
    found = []
    for text in given:
        file = Path(text.partition("=")[2])
        try:
            if file.is_file():
                with file.open("rb") as stream:
                    found.append(f"{text}: {hashlib.file_digest(stream, 'sha256').hexdigest()}")
        except (OSError, ValueError):  # no name of a file, or none that can be read: then each model says so
            continue
    return found


def _make(folder: Path) -> None:
    from peakmem.model import UsageError

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--reports: {folder}: cannot be a folder ({error.strerror})") from None


def _kept(known: Sequence[Row], tasks: Sequence[Task], reports: Path | None) -> dict[tuple[str, str], Row]:
    """Rows of an earlier run that answer for a task, by key and name: the same bytes may have another name now."""
    from dataclasses import replace

    by_key = {row.key: row for row in known}
    kept = {}
    for task in tasks:
        row = by_key.get(task.key)
        if row is not None and (reports is None or row.report is None or (reports / row.report).is_file()):
            kept[task.key, task.model.name] = replace(row, model=task.model)
    return kept


def finish(
    rows: Sequence[Row],
    models: int,
    outputs: Sequence[Path],
    screen: Screen,
    *,
    reports: Path | None = None,
    earlier: Sequence[Row] | None = None,
    gate: bool = False,
    budget: int | None = None,
    require_optimal: bool = False,
    interrupt: BaseException | None = None,
    document: bool = False,
    kept: int = 0,
    growing: bool = True,
) -> int:
    """Say what the rows say, write the tables, and give the exit code.

    ``growing``: the .jsonl among ``outputs`` is written already.
    """
    from peakmem.model import InputError, NotProved, Refused
    from peakmem.system.files import write_atomically
    from peakmem.system.sizes import human

    from peakmem_cli.fleet import tables
    from peakmem_cli.fleet.against import compare
    from peakmem_cli.interrupts import INTERRUPTED, Terminated

    line = tables.summary(rows, models)
    against = compare(rows, earlier, complete=interrupt is None) if earlier is not None else None
    if document:
        screen.document(tables.document(rows, models) | ({"against": against.to_json()} if against is not None else {}))
    screen.answer(line)
    if kept:
        screen.line(f"{kept} of them known from an earlier run")
    screen.table(*tables.table(rows))
    if against is not None:
        screen.line(against.line)
        screen.lines(against.worse, indent="  worse: ")
        screen.lines(against.better, indent="  better: ")
    for path in outputs:
        kind = path.suffix.lower()
        if kind != ".jsonl" or not growing:
            folder = os.path.relpath(reports, path.parent or ".") if reports is not None else ""
            write_atomically(path, tables.WRITERS[kind](rows, line, folder), source=None, force=True)
        screen.line(f"wrote {path}")
    if interrupt is not None:
        return interrupt.exit_code if isinstance(interrupt, Terminated) else INTERRUPTED
    wrong = [row for row in rows if row.code == 1]
    if wrong:
        return screen.verdict(Refused("; ".join(f"{row.model.path}: {row.error}" for row in wrong)))
    if gate and against is not None and against.worse:
        return screen.verdict(Refused(f"worse than the earlier survey: {'; '.join(against.worse)}"))
    if budget is not None and (over := [row for row in rows if row.result is not None and row.after > budget]):
        names = ", ".join(row.model.name for row in over)
        count = f"{len(over)} of {len(rows)} models need{'s' if len(over) == 1 else ''}"
        return screen.verdict(Refused(f"over budget: {count} more than {human(budget)}: {names}"))
    if failed := [row for row in rows if row.code not in (0, 1)]:
        return screen.verdict(InputError("; ".join(f"{row.model.path}: {row.error}" for row in failed)))
    if require_optimal and (open_ones := [row for row in rows if not row.optimal]):
        names = ", ".join(row.model.name for row in open_ones)
        return screen.verdict(NotProved(f"not certified optimal within the time limit: {names}"))
    return 0
