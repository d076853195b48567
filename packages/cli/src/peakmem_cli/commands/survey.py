"""``peakmem survey``: every model of a folder, each in a process of its own, one table."""

from __future__ import annotations

import json as json_module
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from peakmem_cli.common import Budget, Force, Json, NoMeasure, Quiet, RequireOptimal, TimeLimit, limit

if TYPE_CHECKING:
    from peakmem_cli.screen import Screen

SCHEMA = "peakmem.survey/1"
NOT_RUN = "not run"
COLUMNS = ("model", "quantity", ">before", ">after", ">change", "known", "run on")


@dataclass(frozen=True)
class Model:
    """A file, the name it has in the folder where it was found, and the frontend that takes it."""

    path: Path
    name: str
    frontend: str


@dataclass(frozen=True)
class Row:
    """One model and what `peakmem optimize` said about it.

    Attributes
    ----------
    model : Model
    code : int
        Exit code of `peakmem optimize`.
    result : dict or None
        Document ``peakmem.result/1``.
    error : str
        A sentence where the exit code is not 0.
    """

    model: Model
    code: int
    result: dict[str, Any] | None
    error: str = ""

    @property
    def runtime(self) -> dict[str, Any]:
        return self.result["runtime"] if self.result is not None else {}

    @property
    def before(self) -> int:
        """Bytes of the realized quantity: measured if that was possible, else predicted."""
        measured = self.runtime["baseline_bytes"]
        return int(self.runtime["baseline_predicted"] if measured is None else measured)

    @property
    def after(self) -> int:
        measured = self.runtime["optimized_bytes"]
        return int(self.runtime["predicted_bytes"] if measured is None else measured)

    @property
    def optimal(self) -> bool:
        """Certified, and reached by the realized quantity."""
        return self.result is not None and self.result["realized_optimal"] and self.after == self.result["realized_bound"]

    @property
    def known(self) -> str:
        from peakmem.report.words import optimal, percent

        if self.result is None:
            return ""
        if self.optimal:
            return optimal(self.result.get("overlays", False))
        bound = self.result["realized_bound"]
        if bound is None or bound > self.after:
            return "best found"
        return f"best found, gap {percent(self.after - bound, self.after)}"

    @property
    def run(self) -> str:
        if self.result is None or not self.runtime["measured"]:
            return NOT_RUN
        same = {True: ", same bits", False: ", OTHER BITS", None: ""}[self.runtime["bitwise_identical"]]
        return f"{self.runtime['name']}{same}"

    def cells(self) -> list[str]:
        from peakmem.report.words import change

        if self.result is None:
            return [self.model.name, "", "", "", "", self.error, ""]
        known = f"{self.known}; {self.error}" if self.error else self.known
        difference = change(self.before, self.after).strip("()")
        return [self.model.name, self.runtime["quantity"], f"{self.before:,}", f"{self.after:,}", difference, known, self.run]


def command(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Models, and folders to search for models.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE.md", help="Write the table as Markdown.")] = None,
    frontend: Annotated[str | None, typer.Option("--frontend", metavar="NAME", help="Only models of this frontend.")] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", "-j", metavar="N", min=1, help="Models at a time (default: processors).")
    ] = None,
    budget: Budget = None,
    time_limit: TimeLimit = 60.0,
    require_optimal: RequireOptimal = False,
    no_measure: NoMeasure = False,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Optimize every model in the folders given, in memory: bytes before and after, and what is proved.

    Each model has a process of its own, so one that crashes its runtime is one row. No model is changed.
    """
    from peakmem.model import InputError, NotProved, Refused, UsageError
    from peakmem.system.files import check_output, write_atomically
    from peakmem.system.sizes import human

    from peakmem_cli.screen import Screen

    if output is not None:
        if output.suffix.lower() != ".md":
            raise UsageError(f"-o: {output} is not a .md file; for machines there is --json")
        check_output(output, source=None, force=force)
    screen = Screen(as_json=json, quiet=quiet)
    models = list(find(paths, frontend))
    if not models:
        raise InputError(f"{', '.join(map(str, paths))}: no model here that an installed frontend recognises")
    options = ["--time-limit", "inf" if limit(time_limit) is None else str(time_limit), *(["--no-measure"] if no_measure else [])]
    rows, interrupted = optimize_all(models, options, jobs or os.cpu_count() or 1, screen)
    screen.result_is_there()
    line = summary(rows, len(models))
    screen.document(document(rows, len(models)))
    screen.answer(line)
    screen.table(*table(rows))
    if output is not None:
        write_atomically(output, markdown(rows, line).encode(), source=None, force=force)
        screen.line(f"wrote {output}")
    if interrupted:
        return 130
    wrong = [row for row in rows if row.code == 1]
    if wrong:
        return screen.verdict(Refused("; ".join(f"{row.model.path}: {row.error}" for row in wrong)))
    if budget is not None and (over := [row for row in rows if row.result is not None and row.after > budget]):
        names = ", ".join(row.model.name for row in over)
        count = f"{len(over)} of {len(rows)} models need{'s' if len(over) == 1 else ''}"
        return screen.verdict(Refused(f"over budget: {count} more than {human(budget)}: {names}"))
    if failed := [row for row in rows if row.result is None]:
        return screen.verdict(InputError("; ".join(f"{row.model.path}: {row.error}" for row in failed)))
    if require_optimal and (open_ones := [row for row in rows if not row.optimal]):
        names = ", ".join(row.model.name for row in open_ones)
        return screen.verdict(NotProved(f"not certified optimal within the time limit: {names}"))
    return 0


def find(paths: Sequence[Path], frontend: str | None) -> Iterator[Model]:
    """Models: files as they are given, those of a folder by name.

    A file that is given and no frontend takes is an error; in a folder it is passed over.
    """
    from peakmem.frontends import get_frontend, recognise
    from peakmem.model import InputError, PeakmemError

    only = get_frontend(frontend) if frontend is not None else None
    seen = set()
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: does not exist")
        for file in _files(path):
            real = file.resolve()
            if real in seen:
                continue
            seen.add(real)
            label = str(file if file is path else file.relative_to(path))
            if file is path and only is not None:
                yield Model(file, label, only.name)
                continue
            try:
                name = recognise(file).name
            except PeakmemError:
                if file is path:
                    raise
                continue
            if only is None or name == only.name:
                yield Model(file, label, name)


def _files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for folder, folders, files in os.walk(path):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        for name in sorted(files):
            file = Path(folder) / name
            if not name.startswith(".") and file.is_file():
                yield file


def optimize_all(models: Sequence[Model], options: Sequence[str], jobs: int, screen: Screen) -> tuple[list[Row], bool]:
    """Run `peakmem optimize --json` on each; rows in the order of ``models``, and whether Ctrl-C ended it early."""
    from concurrent.futures import Future, ThreadPoolExecutor, wait

    from peakmem.system.process import Children, run_child

    children = Children()

    def one(model: Model) -> Row | None:
        if children.stopped:
            return None
        arguments = [sys.executable, "-m", "peakmem_cli", "optimize", f"--frontend={model.frontend}", "--json"]
        arguments += [*options, "--", str(model.path)]
        done = run_child(arguments, what="the model", limit=None, among=children)
        return None if children.stopped else row_of(model, done.code, done.out.decode(errors="replace"), done.err.decode(errors="replace"))

    found: list[Future[Row | None]] = []
    with ThreadPoolExecutor(jobs) as pool, screen.progress() as progress:
        try:
            found.extend(pool.submit(one, model) for model in models)
            waiting = set(found)
            while waiting:
                done, waiting = wait(waiting, timeout=1.0, return_when="FIRST_COMPLETED")
                if progress is not None and done:
                    progress(f"{len(found) - len(waiting)} of {len(found)} models")
        except BaseException as error:
            for future in found:
                future.cancel()
            children.stop()
            if not isinstance(error, KeyboardInterrupt):
                raise
    rows = [future.result() for future in found if not future.cancelled()]
    return [row for row in rows if row is not None], children.stopped


def row_of(model: Model, code: int, out: str, err: str) -> Row:
    """What one process said, whatever it said."""
    last = next((line for line in reversed(err.splitlines()) if line.strip()), "")
    sentence = last.removeprefix("peakmem: ").removeprefix(f"{model.path}: ")
    try:
        found = json_module.loads(out)
    except ValueError:
        found = None
    if isinstance(found, dict) and found.get("schema") == "peakmem.result/1":
        return Row(model, code, found, sentence if code else "")
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return Row(model, code or 2, None, sentence or f"ended without an answer ({how})")


def summary(rows: Sequence[Row], models: int) -> str:
    """The first line."""
    from peakmem.report.words import change

    answered = [row for row in rows if row.result is not None]
    less = [row for row in answered if row.after < row.before]
    text = f"{models} model{'s' if models != 1 else ''}: {len(less)} need{'s' if len(less) == 1 else ''} less"
    if less:
        best = min(less, key=lambda row: row.after / row.before)
        text += f", {best.model.name} the most {change(best.before, best.after)}"
    measured = [row for row in answered if row.runtime["measured"]]
    same = [row for row in measured if row.runtime["bitwise_identical"]]
    text += f"; {sum(row.optimal for row in rows)} certified optimal; {len(measured)} measured"
    if measured:
        text += f", {'all' if len(same) == len(measured) else len(same)} bitwise identical"
    if len(answered) < len(rows):
        text += f"; {len(rows) - len(answered)} failed"
    if len(rows) < models:
        text += f"; {models - len(rows)} not done, interrupted"
    return text


def table(rows: Sequence[Row]) -> tuple[str, Sequence[str], list[list[str]]]:
    """Title, columns and cells for the screen; what all rows share goes into the title, so that terminals hold the rest."""
    title, columns, cells = "bytes of each model before and after", [*COLUMNS], [row.cells() for row in rows]
    quantities, runs = ({row[COLUMNS.index(name)] for row in cells} for name in ("quantity", "run on"))
    shared = []
    if len(quantities) == 1 and "" not in quantities:
        shared.append("quantity")
        title = f"{quantities.pop()} of each model before and after, in bytes"
    if len(runs) == 1 and "" not in runs:
        shared.append("run on")
        run = runs.pop()
        title += f"; {run if run == NOT_RUN else f'run on {run}'}"
    kept = [k for k, name in enumerate(columns) if name not in shared]
    return f"{title}:", [columns[k] for k in kept], [[row[k] for k in kept] for row in cells]


def document(rows: Sequence[Row], models: int) -> dict[str, Any]:
    """The document ``peakmem.survey/1``."""
    return {
        "schema": SCHEMA,
        "models": models,
        "complete": len(rows) == models,
        "certified_optimal": sum(row.optimal for row in rows),
        "failed": sum(row.result is None for row in rows),
        "rows": [{"model": str(row.model.path), "exit_code": row.code, "error": row.error or None, "result": row.result} for row in rows],
    }


def markdown(rows: Sequence[Row], line: str) -> str:
    """The table as a page."""

    def cell(text: str) -> str:
        return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ").replace("\r", " ")

    head = "| " + " | ".join(name.removeprefix(">") for name in COLUMNS) + " |"
    rule = "|" + "|".join("---:" if name.startswith(">") else "---" for name in COLUMNS) + "|"
    return "\n".join([cell(line), "", head, rule, *("| " + " | ".join(map(cell, row.cells())) + " |" for row in rows)]) + "\n"
