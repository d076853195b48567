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
from time import monotonic
from typing import IO

from peakmem.model import RuntimeFailed

GRACE = 5.0
"""Seconds to wait for processes that were killed; far more than the system takes."""

TICK = 0.5
"""Seconds between two looks at how much a child has computed."""

SLOWEST = 8.0
"""A second in which a child computes nothing counts as one in so many: it may be waiting for a processor, or for ever."""


@dataclass(frozen=True)
class Finished:
    """A child that has ended: exit code (negative for a signal), standard output, standard error, and whether it was asked to."""

    code: int
    out: bytes
    err: bytes
    late: bool = False

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
    grace: float | None = None,
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
        Seconds; None for no limit. They are those that it computes, with all that it starts: on a machine that does other things
        beside, it takes longer on the wall, at most `SLOWEST` times. Where the system does not tell them (anything but Linux) they
        are those on the wall.
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
    grace : float, optional
        Where the limit passes, the child is asked to end and has so many seconds to do so; what it printed is returned. If not
        given it is ended at once.

    Raises
    ------
    RuntimeFailed
        When it cannot be started, or does not end within ``limit`` seconds and there is no ``grace``.
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
    late = False
    with process:
        try:
            if memory is not None:
                _limit_memory(process.pid, memory)
            try:
                out, err = _communicate(process, given, limit)
            except subprocess.TimeoutExpired:
                if grace is None:
                    raise RuntimeFailed(f"{what} did not end within {limit:g} s; nothing was measured") from None
                late = True
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.communicate(timeout=grace)
                _kill_group(process)
                out, err = process.communicate()
        finally:
            # Forks hold the pipes, so while one of them lives, the process is not reaped and its number is its own.
            if process.returncode is None:
                _end_group(process)
            if among is not None:
                among.remove(process)
    return Finished(process.returncode, out, err, late)


def _communicate(process: subprocess.Popen[bytes], given: bytes, limit: float | None) -> tuple[bytes, bytes]:
    """Its output; `subprocess.TimeoutExpired` once it has computed for ``limit`` seconds."""
    left, passed, computed = limit, monotonic(), 0.0
    if given:  # `communicate` goes on reading after a timeout, but not writing
        threading.Thread(target=_feed, args=(process.stdin, given), daemon=True).start()
        process.stdin = None
    while left is not None:
        try:
            return process.communicate(timeout=min(left, TICK))
        except subprocess.TimeoutExpired:
            now, spent = monotonic(), seconds_of(process.pid)
            lasted, passed = now - passed, now
            if spent is None:
                left -= lasted
            else:  # several threads at once make it no longer than on the wall
                left -= min(lasted, max(spent - computed, lasted / SLOWEST))
                computed = max(computed, spent)
            if left <= 0:
                raise
    return process.communicate()


def _feed(pipe: IO[bytes], given: bytes) -> None:
    with contextlib.suppress(OSError), pipe:  # it need not read, and may have ended
        pipe.write(given)


def seconds_of(pid: int) -> float | None:
    """Seconds that a process and all that came from it have computed; None where the system does not tell, or it has ended."""
    parents: dict[int, list[int]] = {}
    seconds: dict[int, float] = {}
    ticks = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0
    for entry in Path("/proc").glob("[0-9]*/stat") if ticks > 0 else ():
        try:
            fields = entry.read_bytes().rpartition(b")")[2].split()
        except OSError:  # it has ended
            continue
        one = int(entry.parent.name)
        if one == pid and fields[0] == b"Z":
            return None
        parents.setdefault(int(fields[1]), []).append(one)
        seconds[one] = sum(map(int, fields[11:15])) / ticks  # its own, and those of children that it waited for
    if pid not in seconds:
        return None
    found, family = 0.0, [pid]
    while family:
        one = family.pop()
        found += seconds[one]
        family += parents.get(one, ())
    return found


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
