"""The command ``peakmem-check``: is a certificate true of a program? Exit 0 yes, 1 no, 2 bad input, 3 true but not tight."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import NoReturn, TextIO

NAME = "peakmem-check"
NOT_OPTIMAL = 3
INTERRUPTED = 130


def run() -> NoReturn:
    """Judge the files that the command line names and leave with the verdict."""
    gc.disable()  # documents are trees, and to look for circles in them costs as much as to read them
    try:
        code = main(sys.argv[1:])
    except KeyboardInterrupt:
        code = _fail("interrupted before there was a verdict", INTERRUPTED)
    except MemoryError:
        code = _fail("not enough memory for these files", 2)
    sys.exit(code)


def main(arguments: Sequence[str]) -> int:
    """The command with these arguments; returns its exit code.

    Notes
    -----
    Time and memory as `peakmem_check.proof.check`, beside the reading of both files.
    """
    # Imported here so that Ctrl-C finds `run` at work.
    import argparse

    from peakmem_check.jsonfile import read_json, read_program
    from peakmem_check.model.errors import PeakmemError, UsageError
    from peakmem_check.proof.check import check

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise UsageError(f"{message} (see: {NAME} --help)")

    parser = Parser(
        prog=NAME,
        allow_abbrev=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=100),  # asking the terminal costs a tenth of a run
        description="Verify that CERTIFICATE proves its lower bound for PROGRAM, without trusting who made it.",
        epilog="Exit code: 0 valid, 1 refused, 2 bad input, 3 valid, but not optimal as required.",
    )
    parser.add_argument("program", metavar="PROGRAM", help="a file peakmem.program/1")
    parser.add_argument("certificate", metavar="CERTIFICATE", help="a file peakmem.certificate/1 or /2")
    parser.add_argument("--require-optimal", action="store_true", help="exit 3 if its orders do not reach the bound")
    parser.add_argument("--trace", action="store_true", help="print a line for each node that has been verified")
    try:
        given = parser.parse_args(arguments)
        program, document = read_program(given.program), read_json(given.certificate)
        report = check(program, document, (lambda line: _say(sys.stdout, line)) if given.trace else None)
        _say(
            sys.stdout,
            f"valid: no order of this program has a live_peak below {report.lower_bound} B; "
            f"its orders reach {report.peak} B" + (" and are optimal" if report.optimal else ""),
        )
        return NOT_OPTIMAL if given.require_optimal and not report.optimal else 0
    except PeakmemError as error:
        return _fail(str(error), error.exit_code)
    except SystemExit as error:  # --help
        return int(error.code or 0)


def _fail(sentence: str, code: int) -> int:
    # Names of files may hold anything; what a terminal would obey or cannot show is spelled out.
    _say(sys.stderr, f"{NAME}: " + "".join(c if c.isprintable() else ascii(c)[1:-1] for c in sentence))
    return code


def _say(stream: TextIO | None, line: str) -> None:
    """Print a line. The verdict stands although its reader has left; a full disk is an error."""
    if stream is not None:  # closed before we started
        try:
            print(line, file=stream, flush=True)
        except OSError as error:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())  # what the stream still holds goes there too
            os.close(null)
            if stream is sys.stdout and not isinstance(error, BrokenPipeError):
                from peakmem_check.model.errors import UsageError

                raise UsageError(f"the output cannot be written ({error.strerror})") from None
