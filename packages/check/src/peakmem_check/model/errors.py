"""What can go wrong, named by who must act.

Every message is one sentence that names the thing, the place in it and the remedy; the command line prints it and
exits with ``exit_code``.
"""

from __future__ import annotations

from collections.abc import Iterable


class PeakmemError(Exception):
    """Base of all errors peakmem raises on purpose."""

    exit_code = 2


class InputError(PeakmemError):
    """The file or program given is not what it should be; the user must give another one."""


class UsageError(PeakmemError):
    """The call is wrong: an unknown option, a bad value, an output that may not be written."""


class RuntimeMissing(PeakmemError):
    """An optional runtime is not installed; the message names the pip line that brings it."""


class RuntimeFailed(PeakmemError):
    """The runtime could not execute the artifact (operator lacking, crash, time out); nothing was measured."""


class Refused(PeakmemError):
    """The answer is no: over budget, outputs differ, certificate invalid."""

    exit_code = 1


class NotProved(PeakmemError):
    """A proof was required and not found within the time limit."""

    exit_code = 3


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a mistyped one is closest to, whatever the case; None if none is close. O(known x length^2)."""
    import difflib

    spelled = {other.lower(): other for other in sorted(known)}
    close = difflib.get_close_matches(name.lower()[:100], spelled, n=1)
    return spelled[close[0]] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'tflite'?"`` to end a sentence with, or nothing where no known name is close.

    >>> did_you_mean("tflit", ["onnx", "tflite"])
    "; did you mean 'tflite'?"
    """
    close = nearest(name, known)
    return f"; did you mean {close!r}?" if close is not None else ""
