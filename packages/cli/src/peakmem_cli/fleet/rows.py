"""A row: what became of one model; read from and written to JSON Lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peakmem_cli.fleet.models import Model, readable

SCHEMA = "peakmem.row/1"
NOT_RUN = "not run"


@dataclass(frozen=True)
class Row:
    """One model and what `peakmem optimize` said about it.

    Attributes
    ----------
    model : Model
    code : int
        Exit code of `peakmem optimize`; 2 as well where it was ended.
    result : dict or None
        Document ``peakmem.result/1``.
    error : str
        A sentence where the exit code is not 0.
    key : str
        What the row is an answer to: the file's bytes, the options and the versions (see `key_of`).
    report : str or None
        The page about this model: a file of the folder of pages.
    """

    model: Model
    code: int
    result: dict[str, Any] | None
    error: str = ""
    key: str = ""
    report: str | None = None

    @property
    def runtime(self) -> dict[str, Any]:
        return self.result["runtime"] if self.result is not None else {}

    @property
    def quantity(self) -> str:
        return str(self.runtime.get("quantity", ""))

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
        same = {True: "bits identical", False: "bits DIFFER", None: "bits not compared"}[self.runtime["bitwise_identical"]]
        return f"{self.runtime['name']} {self.runtime['version']}".rstrip() + f", {same}"

    def cells(self) -> list[str]:
        """One line of the table."""
        from peakmem.report.words import change

        if self.result is None:
            return [self.model.name, "", "", "", "", f"failed: {self.error}", ""]
        figures = [f"{self.before:,}", f"{self.after:,}", change(self.before, self.after).strip("()")]
        return [self.model.name, self.quantity, *figures, self.known, self.run]

    def to_json(self) -> dict[str, Any]:
        """The document ``peakmem.row/1``."""
        return {
            "schema": SCHEMA,
            "key": self.key,
            "name": self.model.name,
            "model": readable(self.model.path),
            "frontend": self.model.frontend,
            "digest": self.model.digest,
            "exit_code": self.code,
            "error": self.error or None,
            "report": self.report,
            "result": self.result,
        }

    def to_line(self) -> str:
        """The document in one line, with its end."""
        return json.dumps(self.to_json(), allow_nan=False, separators=(",", ":")) + "\n"


def key_of(model: Model, options: Sequence[str]) -> str:
    """What a row is an answer to: the digest of the file's digest, the frontend, the options and the versions that answer."""
    import hashlib
    from importlib.metadata import version

    from peakmem.frontends import frontend_version

    parts = [model.digest, model.frontend, frontend_version(model.frontend), version("peakmem-core"), *options]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def row_of(model: Model, code: int, out: str, err: str, *, key: str = "", report: str | None = None) -> Row:
    """What one process said, whatever it said."""
    last = next((line for line in reversed(err.splitlines()) if line.strip()), "")
    sentence = last.removeprefix("peakmem: ").removeprefix(f"{model.path}: ").removeprefix(f"{readable(model.path)}: ")
    try:
        found = json.loads(out)
    except ValueError:
        found = None
    if isinstance(found, dict) and found.get("schema") == "peakmem.result/1":
        if code < 0:  # it had said all; the page about it may be half written
            return Row(model, 2, found | {"input": readable(model.path)}, f"ended by signal {-code} after its answer", key)
        return Row(model, code, found | {"input": readable(model.path)}, sentence if code else "", key, report)
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return Row(model, 2 if code <= 0 else code, None, sentence or f"ended without an answer ({how})", key)


def read_rows(path: Path) -> list[Row]:
    """Rows of a file of JSON Lines, ``-`` being standard input. A last line without its end, which a machine that failed leaves behind, is passed over.

    Raises
    ------
    InputError
        When the file cannot be read or a line is no row.
    """
    from peakmem.model import InputError
    from peakmem_check.jsonfile import parse_json, read_bytes

    from peakmem_cli.streams import standard_input

    lines = (standard_input() if str(path) == "-" else read_bytes(path)).split(b"\n")
    found = []
    for number, line in enumerate(lines[:-1], 1):
        where = f"{path}: line {number}"
        if line.strip():
            document = parse_json(line, where)
            if not isinstance(document, dict) or document.get("schema") != SCHEMA:
                raise InputError(f"{where}: is no row of a survey ({SCHEMA})")
            try:
                found.append(_from_json(document))
            except (KeyError, TypeError, ValueError) as error:
                raise InputError(f"{where}: is a damaged row ({type(error).__name__}: {error})") from None
    return found


def _from_json(document: Mapping[str, Any]) -> Row:
    texts = ("name", "model", "frontend", "digest", "key")
    if not all(isinstance(document[name], str) for name in texts) or type(document["exit_code"]) is not int:
        raise TypeError("a field has another type")
    model = Model(Path(document["model"]), document["name"], document["frontend"], document["digest"])
    row = Row(model, document["exit_code"], document["result"], document["error"] or "", document["key"], document["report"])
    row.cells()  # all that tables read is there
    return row


class RowFile:
    """A file of rows that grows while they are found: a row is in it, whole, as soon as it is known.

    Parameters
    ----------
    path : Path
    resume : bool
        Keep what an earlier run left; else the file begins empty.
    """

    def __init__(self, path: Path, *, resume: bool) -> None:
        from peakmem.model import UsageError

        self.path = path
        self.known: list[Row] = read_rows(path) if resume and path.exists() else []
        flags = os.O_RDWR | os.O_CREAT | (0 if resume else os.O_TRUNC)
        try:
            self._file = os.fdopen(os.open(path, flags, 0o666), "r+b", buffering=0)
        except OSError as error:
            raise UsageError(f"{path}: cannot be written ({error.strerror})") from None
        if resume:  # what was cut off in the middle of a line goes
            whole = self._file.read()
            self._file.truncate(whole.rfind(b"\n") + 1)
            self._file.seek(0, os.SEEK_END)

    def add(self, row: Row) -> None:
        from peakmem.model import UsageError

        line = row.to_line().encode()
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise UsageError(f"{self.path}: cannot be written ({error.strerror})") from None

    def close(self) -> None:
        self._file.close()


def merge(files: Iterable[Sequence[Row]]) -> list[Row]:
    """Rows of several files by name; of rows with one name and one key the last stands."""
    found: dict[tuple[str, str], Row] = {}
    for rows in files:
        for row in rows:
            found[row.model.name, row.key] = row
    return [found[place] for place in sorted(found)]
