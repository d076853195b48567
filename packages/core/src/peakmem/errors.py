"""What can go wrong, named by who must act.

Every message is one sentence that names the thing, the place in it and the remedy; the command line prints it and
exits with ``exit_code``.
"""

from __future__ import annotations


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
