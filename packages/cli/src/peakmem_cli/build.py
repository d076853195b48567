"""Commands made to measure: the options of one frontend are added to a command before its line is parsed.

The command line imports no adapter's runtime. It looks at the raw arguments for ``--frontend`` or for a file that a
frontend recognises, loads that frontend's declaration, and builds the command with the declared options as its own.
So unknown options stay errors and ``--help`` shows what there is.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_type_hints

import typer
from peakmem.model import PeakmemError, UsageError, did_you_mean
from typer.core import TyperCommand, TyperGroup
from typer.models import OptionInfo

from peakmem_cli.common import size
from peakmem_cli.files import STDIN, on_disk

if TYPE_CHECKING:
    from peakmem.frontends import Frontend, Option

Command = Callable[..., int]

FILLED = "options"
"""The parameter of a command that receives the options of the frontend; typer never sees it."""


class OneCommand(TyperCommand):
    """A command whose help shows flags without a value; typer would show ``<bool>``, though none can be given."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _bare_flags(super().get_params(ctx))


class AllCommands(TyperGroup):
    """The same for ``peakmem`` itself."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _bare_flags(super().get_params(ctx))


def _bare_flags(parameters: list[Any]) -> list[Any]:
    for parameter in parameters:
        if getattr(parameter, "is_flag", False) and parameter.metavar is None:
            parameter.metavar = ""
    return parameters


def takes_frontend(command: Command) -> bool:
    """Whether the command wants the options of a frontend."""
    return FILLED in inspect.signature(command).parameters


def find_frontend(command: Command, arguments: Sequence[str]) -> tuple[Frontend | None, PeakmemError | None]:
    """The frontend that a command line speaks of, before the line is parsed.

    Returns
    -------
    frontend : Frontend or None
        The one named by ``--frontend``, else the one that recognises the first argument that is a file.
    reason : PeakmemError or None
        Why there is none, where a file was given.

    Raises
    ------
    UsageError
        When ``--frontend`` names one that is not installed.
    """
    from peakmem.frontends import get_frontend, recognise

    valued = {name for names, flag in _declared(command) if not flag for name in names}
    files: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == "--":
            files.extend(rest)
        elif argument == "--frontend":
            name = next(rest, None)
            if name is not None:
                return get_frontend(name), None
        elif argument.startswith("--frontend="):
            return get_frontend(argument.partition("=")[2]), None
        elif argument in valued:
            next(rest, None)
        elif argument == STDIN or not argument.startswith("-"):
            files.append(argument)
    reason: PeakmemError | None = None
    # A value of an unknown option may stand among the files, so the first that exists and is recognised decides.
    for file in sorted(files, key=lambda f: not os.path.isfile(f)):
        try:
            return recognise(on_disk(Path(file))), None
        except PeakmemError as error:
            reason = reason or error
    return None, reason


def with_options(command: Command, frontend: Frontend | None) -> Command:
    """The command as typer shall see it: the options of ``frontend`` in the place of its ``options`` parameter."""
    hints = get_type_hints(command, include_extras=True)
    parameters = [
        p.replace(annotation=hints[p.name])
        for p in inspect.signature(command).parameters.values()
        if p.name != FILLED
    ]
    fills = takes_frontend(command)
    declared: tuple[Option, ...] = frontend.options if frontend is not None and fills else ()
    taken = {name for names, _ in _declared(command) for name in names}
    for option in declared:
        if f"--{option.name}" in taken or option.key in hints:
            raise UsageError(
                f"frontend {frontend.name if frontend else ''!r} declares --{option.name}, "
                "which is an option of peakmem itself; report this to its author"
            )
        parameters.append(
            inspect.Parameter(
                option.key,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=_annotation(option, frontend.name if frontend else ""),
            )
        )

    def call(**values: Any) -> int:
        given = {}
        for option in declared:
            value = values.pop(option.key)
            if value is not None and value != []:
                given[option.key] = tuple(value) if option.multiple else value
        if fills:
            values[FILLED] = given
            if frontend is not None:
                values["frontend"] = frontend.name
        return command(**values)

    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    call.__name__ = command.__name__
    call.__doc__ = command.__doc__
    return call


def _annotation(option: Option, frontend: str) -> Any:
    kinds: dict[str, type] = {"text": str, "flag": bool, "int": int, "size": int, "choice": str}
    kind: Any = kinds[option.kind]
    help_text = option.help
    if option.default not in (None, False, ()):
        help_text += f" (default: {option.default})"
    settings: dict[str, Any] = {
        "help": help_text.replace("[", r"\["),
        "rich_help_panel": f"Options of frontend {frontend}",
        "show_default": False,
    }
    if option.metavar:
        settings["metavar"] = option.metavar
    if option.kind == "int":
        settings.setdefault("metavar", "N")
    if option.kind == "text":
        settings.setdefault("metavar", "TEXT")
    if option.kind == "size":
        settings["parser"] = size
        settings.setdefault("metavar", "SIZE")
    if option.kind == "choice":
        settings["parser"] = _chooser(option)
        settings.setdefault("metavar", "|".join(option.choices))
    if option.multiple:
        kind = list[kind]
    return Annotated[kind | None, typer.Option(f"--{option.name}", **settings)]


def _chooser(option: Option) -> Callable[[str], str]:
    def choose(text: str) -> str:
        if text not in option.choices:
            close = did_you_mean(text, option.choices)
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(option.choices)}{close}")
        return text

    return choose


def _declared(command: Command) -> list[tuple[tuple[str, ...], bool]]:
    """The options a command declares itself: their spellings, and whether they are flags."""
    found = []
    for hint in get_type_hints(command, include_extras=True).values():
        for info in get_args(hint)[1:]:
            if isinstance(info, OptionInfo):
                spellings = (info.default, *(info.param_decls or ()))
                found.append((tuple(map(str, spellings)), get_args(hint)[0] is bool))
    return found
