"""SIGTERM and SIGHUP as an exception, and moments at which no signal may come."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


class Terminated(BaseException):
    """SIGTERM or SIGHUP, the argument being which: temporary files and child processes must go before the process does."""

    @property
    def exit_code(self) -> int:
        return 128 + int(self.args[0])


def _terminate(number: int, frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)  # a second one ends the process at once
    raise Terminated(number)


def heed(name: str) -> None:
    """Raise `Terminated` in the main thread when the signal of that name comes."""
    number = getattr(signal, name, None)  # SIGHUP is POSIX
    if number is not None and signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores it
        signal.signal(number, _terminate)


@contextmanager
def later() -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP wait until the block is done. (A mask of the main thread would hand them to another one.)"""
    names = ("SIGINT", "SIGTERM", "SIGHUP") if threading.current_thread() is threading.main_thread() else ()
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: handler for number in numbers if callable(handler := signal.getsignal(number))}
    came: list[int] = []
    for number in before:
        signal.signal(number, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
