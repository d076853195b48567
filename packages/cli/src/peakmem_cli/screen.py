"""What goes to the screen: the answer first, tables for people, one document for machines, progress on a terminal."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from peakmem.report.words import LONGEST_NAME as LONGEST_NAME
from peakmem.report.words import clean, clip
from peakmem.report.words import shorten as shorten

if TYPE_CHECKING:
    from peakmem.frontends import Progress
    from peakmem.model import PeakmemError
    from rich.console import Console

WIDTH_OF_FILES = 120
"""Columns of a table that is not shown on a terminal."""

LEAST_WIDTH = 60
"""Columns below which figures would not fit; a narrower terminal wraps the lines itself."""

LEAST_NAME, GAP = 12, 3
"""Characters that names in a table always get; spaces between its columns."""

LONGEST_SENTENCE = 1000
"""Characters of an error; a hostile file may have put anything into it."""


class Screen:
    """One command's output.

    Parameters
    ----------
    as_json : bool
        Print only what `document` is given.
    quiet : bool
        Print only what `answer` is given.
    """

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet

    @property
    def talks(self) -> bool:
        """Whether lines and tables are shown."""
        return not (self.as_json or self.quiet)

    @staticmethod
    def result_is_there() -> None:
        """Call it before a result is written and shown: the first Ctrl-C is now too late to lose it, and is ignored."""

        def too_late(number: int, frame: object) -> None:
            signal.signal(signal.SIGINT, signal.default_int_handler)

        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # and so this is the main thread
            signal.signal(signal.SIGINT, too_late)

    def answer(self, line: str) -> None:
        """The first line."""
        if not self.as_json:
            print(clean(line))

    def line(self, line: str = "") -> None:
        """Any further line."""
        if self.talks:
            print(clean(line))

    def lines(self, lines: Sequence[str], *, indent: str = "") -> None:
        for line in lines:
            self.line(indent + line)

    def source_text(self, text: str) -> None:
        """Text for another tool, shown by quiet too: behind an empty line under a report, alone if quiet."""
        self.line()
        if not self.as_json:
            for line in text.splitlines():
                print("\t".join(clean(part) for part in line.split("\t")))

    def document(self, document: Mapping[str, Any]) -> None:
        """The JSON document, printed only if JSON was asked for."""
        if self.as_json:
            print_json(document)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """A table under a title; columns whose name starts with ``>`` are right-aligned."""
        if not self.talks or not rows:
            return
        from rich.box import SIMPLE_HEAD
        from rich.table import Table
        from rich.text import Text

        self.line(title)
        sys.stdout.flush()
        console = _console()
        cells = [[shorten(clean(cell)) for cell in row] for row in rows]
        names = LONGEST_NAME
        if not columns[0].startswith(">"):  # names give way to figures: they are known by both ends
            widths = [max(map(len, (name.removeprefix(">"), *(row[k] for row in cells)))) for k, name in enumerate(columns)]
            names = max(LEAST_NAME, min(names, console.width - sum(widths[1:]) - GAP * (len(columns) - 1) - 2))
            names = telling({row[0] for row in cells}, names)
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for k, name in enumerate(columns):
            right = name.startswith(">")
            side: Literal["left", "right"] = "right" if right else "left"
            table.add_column(name.removeprefix(">"), justify=side, no_wrap=right or not k, overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell if k else shorten(cell, names)) for k, cell in enumerate(row)))
        console.print(table)

    def verdict(self, error: PeakmemError) -> int:
        """A sentence on standard error under an answer that was given, and the exit code it asks for."""
        print_error(str(error))
        return error.exit_code

    @contextmanager
    def progress(self, limit: float | None = None) -> Iterator[Progress | None]:
        """Tell on standard error what is going on and since when, from the second second on, if that is a terminal.

        Parameters
        ----------
        limit : float, optional
            Seconds after which searching stops; shown beside those that have passed.
        """
        if not sys.stderr.isatty():
            yield None
            return
        from rich.text import Text

        started, said = time.monotonic(), "working"

        class Line:
            """Drawn anew several times a second, so the seconds pass while nothing is said."""

            def __rich__(self) -> Text:
                # The time first: what is said may be longer than the line.
                return Text(f"{pace(time.monotonic() - started, limit)}: {said}", no_wrap=True, overflow="ellipsis")

        def tell(sentence: str) -> None:
            nonlocal said
            said = clean(sentence)

        status = _console(stderr=True).status(Line())
        timer = threading.Timer(1.0, status.start)
        timer.daemon = True
        timer.start()
        try:
            yield tell
        finally:
            timer.cancel()
            timer.join()
            status.stop()


def print_json(document: Mapping[str, Any]) -> None:
    """One JSON document on standard output."""
    print(json.dumps(document, indent=1, allow_nan=False))


def print_error(sentence: str) -> str:
    """One sentence on standard error; returns it as it was printed."""
    sentence = clip(clean(" ".join(sentence.split("\n"))), LONGEST_SENTENCE)
    sys.stdout.flush()
    print(f"peakmem: {sentence}", file=sys.stderr)
    return sentence


def pace(passed: float, limit: float | None) -> str:
    """``12 s of 60 s``: searching ends by then, measuring may go on."""
    return f"{passed:.0f} s" + (f" of {limit:g} s" if limit is not None and passed <= limit else "")


def telling(names: set[str], width: int) -> int:
    """The least width from ``width`` on at which shortened names still differ; ``width`` where none up to the longest does."""
    for longer in range(width, LONGEST_NAME + 1):
        if len({shorten(name, longer) for name in names}) == len(names):
            return longer
    return width


def _console(*, stderr: bool = False) -> Console:
    from rich.console import Console

    # rich takes NO_COLOR for no colour but bold; whoever sets it wants no escapes around words.
    colours: Literal["auto"] | None = None if os.environ.get("NO_COLOR") else "auto"
    if stderr:
        return Console(stderr=True, color_system=colours)
    if not sys.stdout.isatty():
        return Console(highlight=False, width=WIDTH_OF_FILES, color_system=colours)
    console = Console(highlight=False, color_system=colours)
    return console if console.width >= LEAST_WIDTH else Console(highlight=False, width=LEAST_WIDTH, color_system=colours)
