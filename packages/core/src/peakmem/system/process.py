"""Running a child process together with everything it forks: none of them outlives the call."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from peakmem.model import RuntimeFailed

GRACE = 5.0
"""Seconds to wait for processes that were killed; far more than the system takes."""


@dataclass(frozen=True)
class Finished:
    """A child that ended by itself: exit code (negative for a signal), standard output, standard error."""

    code: int
    out: bytes
    err: bytes

    @property
    def last_words(self) -> str:
        """The last line of its standard error, at most 300 characters; how it ended where it said nothing."""
        lines = self.err.decode("utf-8", "replace").splitlines()
        how = f"signal {-self.code}" if self.code < 0 else f"exit code {self.code}"
        return next((line.strip()[:300] for line in reversed(lines) if line.strip()), how)


class Children:
    """Children that run at the moment, so that another thread may end them all."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self.stopped = False

    def stop(self) -> None:
        """Ask all of them to end, and let none begin; they may still print what they have."""
        with self._lock:
            self.stopped = True
            for child in self._running:
                child.terminate()

    def kill(self) -> None:
        """End those that still run, with what they forked, whether they listen or not; let none begin."""
        with self._lock:
            self.stopped = True
            for child in self._running:
                if child.returncode is None:
                    _kill_group(child)

    def add(self, child: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.add(child)
            if self.stopped:
                child.terminate()

    def remove(self, child: subprocess.Popen[bytes]) -> None:
        with self._lock:
            self._running.discard(child)


def run_child(
    command: Sequence[str],
    *,
    what: str,
    limit: float | None,
    given: bytes = b"",
    memory: int | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    among: Children | None = None,
) -> Finished:
    """Run a process, with what it forks, as a process group of its own.

    Whatever ends this call (an interrupt, a signal that raises, the time limit), the whole group has ended before it
    returns. A terminal's Ctrl-C reaches the caller alone.

    Parameters
    ----------
    command : sequence of str
    what : str
        What runs, for the messages.
    limit : float or None
        Seconds; None for no limit.
    given : bytes
        Its standard input.
    memory : int, optional
        Bytes of address space that it may take (where the system can limit it: Linux).
    environment : mapping, optional
        Its whole environment; ours if not given.
    folder : Path, optional
        Where it runs.
    among : Children, optional
        Where it is entered while it runs.

    Raises
    ------
    RuntimeFailed
        When it cannot be started or does not end within ``limit`` seconds.
    """
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, cwd=folder, process_group=0
        )
    except OSError as error:
        reason = error.strerror or "an error of the system"
        raise RuntimeFailed(f"{what} cannot be started ({reason}); nothing was measured") from None
    if among is not None:
        among.add(process)
    with process:
        try:
            if memory is not None:
                _limit_memory(process.pid, memory)
            out, err = process.communicate(given, timeout=limit)
        except subprocess.TimeoutExpired:
            raise RuntimeFailed(f"{what} did not end within {limit:g} s; nothing was measured") from None
        finally:
            # Forks hold the pipes, so while one of them lives, the process is not reaped and its number is its own.
            if process.returncode is None:
                _end_group(process)
            if among is not None:
                among.remove(process)
    return Finished(process.returncode, out, err)


def _limit_memory(pid: int, size: int) -> None:
    if sys.platform == "linux":
        import resource

        with contextlib.suppress(ProcessLookupError, ValueError, PermissionError):
            resource.prlimit(pid, resource.RLIMIT_AS, (size, size))


def _end_group(process: subprocess.Popen[bytes]) -> None:
    _kill_group(process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=GRACE)  # to the end of the pipes: the last of them is gone


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
