"""The clock that limits go by: it stands still while others have the processor.

What a search finds within 60 s must not hang on what else the machine does. So a deadline is a moment of this clock: seconds as
they pass, less those in which this thread was ready to run and had to wait for a processor, and those in which modules were loaded (`loading`).
Where the system does not tell who waited (anything but Linux) it is the clock on the wall but for the loading. Its readings mean
something in the thread alone that took them.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from time import monotonic

LONGEST = 8.0
"""The most that `wall` stretches seconds: who waits for the answer has a clock on the wall."""

_WINDOW = 0.1
"""Seconds of computing between two looks at how much of the processor this thread gets."""


class _Here(threading.local):
    """Of one thread: the file that tells what it waited for, and what was seen last."""

    def __init__(self) -> None:
        self.file: int | None = None
        self.process = 0
        self.ran, self.waited, self.pace = 0.0, 0.0, 1.0
        self.loading = 0.0

    def look(self) -> tuple[float, float]:
        """Seconds that this thread ran, and that it waited for a processor."""
        if self.process != os.getpid():  # after a fork the file still tells of the parent
            self.process, self.file = os.getpid(), None
            with contextlib.suppress(OSError):
                self.file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        if self.file is None:
            return 0.0, 0.0
        try:
            ran, waited, *_ = os.pread(self.file, 128, 0).split()
            return int(ran) * 1e-9, int(waited) * 1e-9
        except (OSError, ValueError):
            return 0.0, 0.0

    def __del__(self) -> None:
        if self.file is not None and self.process == os.getpid():
            os.close(self.file)


_here = _Here()


def now() -> float:
    """Seconds of this clock."""
    waited = _here.look()[1]  # before the time: a wait between the two shall not count twice
    return monotonic() - waited - _here.loading


def after(seconds: float | None) -> float | None:
    """The deadline so many seconds from now; None for none."""
    return None if seconds is None else now() + seconds


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """The clock stands still inside: what a first call loads, later ones have, and they shall find the same."""
    begin = now()
    try:
        yield
    finally:
        _here.loading += now() - begin


def late(deadline: float | None) -> bool:
    """Whether a deadline has passed; cheap while it has not passed on the wall either."""
    return deadline is not None and monotonic() >= deadline and now() >= deadline


def wall(seconds: float) -> float:
    """About as many seconds of this clock, on the wall: for solvers of others, which know no other one.

    Stretched by what this thread has waited lately for each second that it ran, at most `LONGEST` times.
    """
    ran, waited = _here.look()
    if ran - _here.ran >= _WINDOW:
        _here.pace = min(LONGEST, 1.0 + (waited - _here.waited) / (ran - _here.ran))
        _here.ran, _here.waited = ran, waited
    return seconds * _here.pace
