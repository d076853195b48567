"""Running a process together with everything it forks: none of them outlives the call."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence

GRACE = 5.0
"""Seconds to wait for processes that were killed; far more than the system takes."""


def run_group(command: Sequence[str], given: bytes, limit: float) -> tuple[int, bytes, bytes]:
    """Run a process, with what it forks, as a process group of its own.

    Whatever ends this call (an interrupt, a signal that raises, the time limit), the whole group has ended before it
    returns. A terminal's Ctrl-C reaches the caller alone.

    Parameters
    ----------
    command : sequence of str
    given : bytes
        Its standard input.
    limit : float
        Seconds.

    Returns
    -------
    int, bytes, bytes
        Exit code, standard output, standard error.

    Raises
    ------
    subprocess.TimeoutExpired
        After ``limit`` seconds.
    """
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, process_group=0) as process:
        try:
            out, err = process.communicate(given, timeout=limit)
        finally:
            # Forks hold the pipes, so while one of them lives, the process is not reaped and its number is its own.
            if process.returncode is None:
                _end_group(process)
    return process.returncode, out, err


def _end_group(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=GRACE)  # to the end of the pipes: the last of them is gone
