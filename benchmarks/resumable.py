"""Rows that a benchmark appends to a file while it runs, so that it goes on where it stopped."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def add_rows(parser: argparse.ArgumentParser) -> None:
    """``--rows`` and ``--no-run``."""
    parser.add_argument("--rows", type=Path, metavar="FILE", help="append each row there, and go on from those that stand there")
    parser.add_argument("--no-run", action="store_true", help="make the table of the rows that stand there")


def last_line(command: Sequence[str], environment: Mapping[str, str], timeout: float) -> Any:
    """Run a child process and read the JSON document in the last line that it prints."""
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def collect(keys: Iterable[str], find: Callable[[str], Any] | None, kept: Path | None) -> tuple[list[tuple[str, Any]], list[str]]:
    """What ``find`` gives for every key, in their order, and the keys for which it failed.

    With ``kept``, rows that stand there are not found again, and each new one is appended at once; failures are tried
    again by the next run. Without ``find`` nothing runs: the rows are those that stand in ``kept``.
    """
    known: dict[str, Any] = {}
    if kept is not None and kept.exists():
        known = {row["key"]: row["found"] for row in map(json.loads, kept.read_text().splitlines())}
    rows, failed = [], []
    for key in keys:
        if key not in known and find is None:
            continue
        if key not in known:
            assert find is not None
            try:
                known[key] = find(key)
            except (subprocess.SubprocessError, ValueError, IndexError) as error:
                last = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
                print(f"{key}: {type(error).__name__} {' '.join(last)}", file=sys.stderr, flush=True)
                failed.append(key)
                continue
            print(key, json.dumps(known[key])[:300], file=sys.stderr, flush=True)
            if kept is not None:
                with kept.open("a") as file:
                    file.write(json.dumps({"key": key, "found": known[key]}) + "\n")
        rows.append((key, known[key]))
    return rows, failed
