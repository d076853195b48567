"""The clock of limits: it passes with computing and with waiting for others, and stands still without a processor."""

import json
import os
import threading
import time

import pytest
from peakmem.ordering.meter import Meter
from peakmem.system import clock

LINUX = pytest.mark.skipif(
    not os.path.exists("/proc/thread-self/schedstat"), reason="the system does not tell what threads waited for"
)


def spin(seconds: float) -> None:
    """Compute for so long."""
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def passed(seconds: float) -> float:
    begin = clock.now()
    spin(seconds)
    return clock.now() - begin


def pinned(writer: int) -> None:
    """One processor for two threads of work: what both clocks say of half a second of computing, and the pace."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    busy = os.fork()
    if not busy:
        os.close(writer)  # whoever reads shall not wait for this one
        spin(60.0)
        os._exit(0)
    try:
        clock.wall(1.0)
        wall, own = time.monotonic(), passed(0.5)
        os.write(writer, json.dumps([time.monotonic() - wall, own, clock.wall(1.0)]).encode())
    finally:
        os.kill(busy, 9)
        os.waitpid(busy, 0)


@LINUX
def test_waiting_for_a_processor_is_not_counted() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            pinned(writer)
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as told:
        wall, own, stretched = json.loads(told.read())
    os.waitpid(child, 0)
    assert own >= 0.5  # it computed so long
    assert own < wall  # two on one processor: one of them waits
    assert 1.0 < stretched <= clock.LONGEST


def test_sleeping_is_counted() -> None:
    begin = clock.now()
    time.sleep(0.2)
    assert clock.now() - begin >= 0.2 * 0.9


@LINUX
def test_a_thread_and_a_fork_have_waits_of_their_own() -> None:
    found: list[tuple[float, float]] = []
    spin(0.05)
    here = clock._here.look()[0]
    thread = threading.Thread(target=lambda: found.append(clock._here.look()))
    thread.start()
    thread.join()
    assert found[0][0] < here
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, repr(clock._here.look()[0]).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert float(os.read(reader, 64)) < here
    os.close(reader)
    os.close(writer)


def test_it_stands_still_while_modules_are_loaded() -> None:
    before, wall = clock.now(), time.monotonic()
    with clock.loading():
        time.sleep(0.2)
    assert clock.now() - before < time.monotonic() - wall - 0.19


def test_where_the_system_does_not_tell_it_is_the_clock_on_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_here", clock._Here())
    monkeypatch.setattr(os, "open", lambda *_: (_ for _ in ()).throw(FileNotFoundError()))
    before = time.monotonic()
    assert before <= clock.now() <= time.monotonic()
    assert clock.wall(3.0) == 3.0


def test_deadlines() -> None:
    assert clock.after(None) is None and not clock.late(None)
    end = clock.after(1000.0)
    assert end is not None and not clock.late(end) and clock.late(clock.now() - 1)


def test_granted_work_is_done_though_the_deadline_has_passed() -> None:
    meter = Meter(clock.now() - 1, granted=10)
    assert not meter.out
    meter.spend(10)
    assert meter.out
    assert Meter(clock.now() - 1).out
