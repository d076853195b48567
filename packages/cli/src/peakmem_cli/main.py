"""The entry of the script ``peakmem``: build the one command that was called, run it, turn errors into a sentence."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import typer
from peakmem.model import PeakmemError, did_you_mean

from peakmem_cli import files
from peakmem_cli.build import AllCommands, OneCommand, find_frontend, takes_frontend, with_options
from peakmem_cli.interrupts import INTERRUPTED, Terminated, heed
from peakmem_cli.screen import print_error, print_json
from peakmem_cli.streams import prepare

COMMANDS = ("inspect", "optimize", "certify", "check", "verify", "recompute", "split", "arena", "report", "survey", "merge", "frontends", "schema")
"""In the order of the help; each is a module of `peakmem_cli.commands` that offers ``command``."""

ERROR_SCHEMA = "peakmem.error/1"
HELP = {"help_option_names": ["-h", "--help"]}


def run() -> None:
    """Run the command line of this process and exit with its code."""
    prepare()
    heed("SIGTERM")
    heed("SIGHUP")
    code = main(sys.argv[1:])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said; only the interpreter is still to be taken down
    try:
        sys.stdout.flush()
    except PeakmemError as error:
        code = _fail(str(error), error.exit_code, as_json=False)
    sys.exit(code)


def main(arguments: Sequence[str]) -> int:
    """Run one command line.

    Returns
    -------
    int
        0 fine; 1 the answer is no; 2 bad usage or bad input; 3 not proved; 130 interrupted; 143 terminated (129 by a
        terminal that was closed).
    """
    as_json = "--json" in arguments
    before = signal.getsignal(signal.SIGINT)
    files.begin()
    try:
        return _run(list(arguments))
    except PeakmemError as error:
        return _fail(str(error), error.exit_code, as_json)
    except KeyboardInterrupt:
        return _fail("interrupted" + ("" if files.written() else " before there was a result"), INTERRUPTED, as_json)
    except Terminated as error:
        return _fail("terminated", error.exit_code, as_json)
    except RecursionError:
        return _fail("the input is nested too deeply", 2, as_json)
    except MemoryError:
        return _fail("not enough memory for this input", 2, as_json)
    except OSError as error:  # of the system, or it would have been met where it arose
        if os.environ.get("PEAKMEM_DEBUG"):
            raise
        where = f"{error.filename}: " if error.filename is not None else "the system says: "
        return _fail(f"{where}{error.strerror or error}", 2, as_json)
    except Exception as error:
        if os.environ.get("PEAKMEM_DEBUG"):
            raise
        what = f"internal error: {type(error).__name__}: {error}"
        return _fail(f"{what}; please report this (PEAKMEM_DEBUG=1 shows where)", 2, as_json)
    finally:
        files.end()
        if signal.getsignal(signal.SIGINT) is not before:
            signal.signal(signal.SIGINT, before)


def _run(arguments: list[str]) -> int:
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:2], "--help"]
    if os.environ.get("NO_COLOR"):
        from typer import rich_utils

        rich_utils.COLOR_SYSTEM = None  # as in `peakmem_cli.screen`
    app = typer.Typer(
        help="Lower the peak memory of a network by permuting its operators, prove the result, measure it.",
        epilog="Options of a frontend: peakmem optimize --frontend NAME --help",
        cls=AllCommands,
        context_settings=HELP,
        pretty_exceptions_enable=False,
        no_args_is_help=False,
    )
    # A file that no frontend takes explains an unknown option better than the option does.
    reason: PeakmemError | None = None
    for name in arguments[:1] if arguments[:1] and arguments[0] in COMMANDS else COMMANDS:
        command: Any = import_module(f"peakmem_cli.commands.{name}").command
        frontend = None
        if arguments[:1] == [name] and takes_frontend(command):
            frontend, reason = find_frontend(command, arguments[1:])
        app.command(name, cls=OneCommand, context_settings=HELP)(with_options(command, frontend))
    app.callback(invoke_without_command=True)(_version)
    try:
        code = app(args=arguments or ["--help"], prog_name="peakmem", standalone_mode=False)
    except typer.Abort:
        raise KeyboardInterrupt from None
    except typer.TyperException as error:
        message = error.format_message() if hasattr(error, "format_message") else str(error)
        called = arguments[0] if arguments and arguments[0] in COMMANDS else ""
        if hasattr(error, "possibilities") and hasattr(error, "option_name"):
            instead = _instead(error.option_name, error.possibilities or (), called, arguments)
            if reason is not None and not (instead and called == "arena"):  # which takes tables, too: no frontend's
                raise reason from None
            message = error.message + instead
        help_line = " ".join(filter(None, ("peakmem", called, "--help")))
        message = " ".join(message.split()).rstrip(".")
        return _fail(f"{message} (see: {help_line})", 2, "--json" in arguments)
    if code == INTERRUPTED:  # typer makes an exit code of Ctrl-C
        raise KeyboardInterrupt
    return code if isinstance(code, int) else 0


def _instead(option: str, known: Sequence[str], called: str, arguments: Sequence[str]) -> str:
    """What to type for an option that does not exist: the nearest one, or the same behind the command."""
    command = next((a for a in arguments if a in COMMANDS), None)
    if not called and command is not None:
        return f"; options stand behind the command: peakmem {command} {option}"
    # Without the dashes, which all of them share.
    return did_you_mean(option.lstrip("-"), [name.lstrip("-") for name in known if name.startswith("--")]).replace("'", "'--", 1)


def _version(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    if version:
        from importlib.metadata import version as installed

        print(f"peakmem {installed('peakmem-cli')} (core {installed('peakmem-core')})")
        raise typer.Exit(0)
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(0)


def _fail(sentence: str, code: int, as_json: bool) -> int:
    there = files.written()
    also = f"; written before that: {', '.join(map(str, there))}" if there else ""
    shown = print_error(files.as_typed(sentence) + also)
    if as_json:
        print_json({"schema": ERROR_SCHEMA, "error": shown, "exit_code": code})
    return code
