"""What is made of rows: sentences, a table for people, documents, and files for other tools."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

from peakmem_cli.fleet.rows import NOT_RUN, Row

SCHEMA = "peakmem.survey/1"
COLUMNS = ("model", "quantity", ">before", ">after", ">change", "known", "run on")

FLAT = (
    "model", "frontend", "digest", "quantity", "before_bytes", "after_bytes", "bound_bytes", "certified_optimal", "measured",
    "bitwise_identical", "runtime", "runtime_version", "statements", "exit_code", "error", "report",
)  # fmt: skip
"""Columns of tables for other tools; empty (null) where nothing is known."""


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
        "rows": [row.to_json() for row in rows],
    }


def jsonl(rows: Sequence[Row], line: str, folder: str) -> bytes:
    return "".join(row.to_line() for row in rows).encode()


def markdown(rows: Sequence[Row], line: str, folder: str) -> bytes:
    """The table as a page."""

    def cell(text: str) -> str:
        return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ").replace("\r", " ")

    head = "| " + " | ".join(name.removeprefix(">") for name in COLUMNS) + " |"
    rule = "|" + "|".join("---:" if name.startswith(">") else "---" for name in COLUMNS) + "|"
    lines = [cell(line), "", head, rule, *("| " + " | ".join(map(cell, row.cells())) + " |" for row in rows)]
    return ("\n".join(lines) + "\n").encode()


def flat(row: Row) -> dict[str, Any]:
    """A row in the columns `FLAT`."""
    known: dict[str, Any] = dict.fromkeys(FLAT)
    known |= {
        "model": row.model.name, "frontend": row.model.frontend, "digest": row.model.digest, "exit_code": row.code,
        "error": row.error or None, "report": row.report,
    }  # fmt: skip
    if row.result is not None:
        known |= {
            "quantity": row.quantity, "before_bytes": row.before, "after_bytes": row.after, "bound_bytes": row.result["realized_bound"],
            "certified_optimal": row.optimal, "measured": row.runtime["measured"],
            "bitwise_identical": row.runtime["bitwise_identical"], "runtime": row.runtime["name"],
            "runtime_version": row.runtime["version"], "statements": row.result["statements"],
        }  # fmt: skip
    return known


def comma_separated(rows: Sequence[Row], line: str, folder: str) -> bytes:
    """CSV with the columns `FLAT`; a text that a spreadsheet would take for a formula gets an apostrophe in front."""

    def cell(value: object) -> object:
        if isinstance(value, bool):
            return str(value).lower()
        return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(FLAT)
    writer.writerows([cell(value) for value in flat(row).values()] for row in rows)
    return text.getvalue().encode()


def parquet(rows: Sequence[Row], line: str, folder: str) -> bytes:
    """Parquet with the columns `FLAT`, typed also where all rows leave one empty."""
    import pyarrow
    from pyarrow import parquet as format_

    kinds = {"certified_optimal": pyarrow.bool_(), "measured": pyarrow.bool_(), "bitwise_identical": pyarrow.bool_()}
    kinds |= dict.fromkeys(("before_bytes", "after_bytes", "bound_bytes", "statements", "exit_code"), pyarrow.int64())
    schema = pyarrow.schema([(name, kinds.get(name, pyarrow.string())) for name in FLAT])
    into = pyarrow.BufferOutputStream()
    format_.write_table(pyarrow.Table.from_pylist([flat(row) for row in rows], schema=schema), into)
    return bytes(into.getvalue())


_STYLE = """
:root { color-scheme: light dark; --ink: #1f2328; --soft: #57606a; --line: #dfe4e8; --good: #1a7f4b; --bad: #b42318; --bg: #fff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --soft: #a3adb6; --line: #30363c; --good: #5cc98d; --bad: #ff8a7a;
  --bg: #15181b; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--bg); max-width: 1200px; margin: 0 auto;
  padding: 24px 16px; overflow-wrap: anywhere; }
h1 { font-size: 1.3rem; }
div { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { text-align: left; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); }
.number { text-align: right; white-space: nowrap; }
.good { color: var(--good); } .bad { color: var(--bad); }
a { color: inherit; }
"""


def html(rows: Sequence[Row], line: str, folder: str) -> bytes:
    """One page without scripts that loads nothing; names lead to the pages of ``folder``, relative to this one."""
    from peakmem.report.words import clean

    def cell(row: Row, name: str, text: str) -> str:
        kind, shown = "number" if name.startswith(">") else "", escape(clean(text))
        if name == "model" and row.report is not None:
            target = f"{folder}/{row.report}" if folder else row.report
            shown = f'<a href="{escape(quote(target), quote=True)}">{shown}</a>'
        if name == "known":
            kind = "good" if row.optimal else "bad" if row.result is None else ""
        return f'<td class="{kind}">{shown}</td>' if kind else f"<td>{shown}</td>"

    head = "".join(f'<th class="{"number" if n.startswith(">") else ""}">{n.removeprefix(">")}</th>' for n in COLUMNS)
    body = "\n".join("<tr>" + "".join(map(cell, [row] * len(COLUMNS), COLUMNS, row.cells())) + "</tr>" for row in rows)
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>peakmem survey</title>
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>{_STYLE}</style></head><body>
<h1>{escape(clean(line))}</h1>
<div><table><thead><tr>{head}</tr></thead><tbody>
{body}
</tbody></table></div>
</body></html>
""".encode()


WRITERS: dict[str, Callable[[Sequence[Row], str, str], bytes]] = {
    ".jsonl": jsonl, ".md": markdown, ".csv": comma_separated, ".html": html, ".parquet": parquet,
}  # fmt: skip
"""By the end of a file's name; each is given rows, the first line, and the folder of pages relative to the file."""


def check_kind(path: Path) -> None:
    """Refuse a file whose kind nobody writes, before any work.

    Raises
    ------
    UsageError
        Also when what writes its kind is not installed.
    """
    from importlib.util import find_spec

    from peakmem.model import UsageError

    kind = path.suffix.lower()
    if kind not in WRITERS:
        raise UsageError(f"-o: {path} is none of {', '.join(WRITERS)}")
    if kind == ".parquet" and find_spec("pyarrow") is None:
        raise UsageError(f"-o: {path}: pyarrow is not installed; try: pip install 'peakmem-cli[parquet]'")
