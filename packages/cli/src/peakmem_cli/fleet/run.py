"""A process for each model, as many at a time as wanted, here or through joblib."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from peakmem_cli.fleet.models import Model
from peakmem_cli.fleet.rows import Row, row_of

GRACE = 5.0
"""Seconds that a model's process has to end what it began, once it was asked to end."""


@dataclass(frozen=True)
class Task:
    """One model to be optimized.

    Attributes
    ----------
    model : Model
    options : tuple of str
        Of `peakmem optimize`.
    key : str
        As `peakmem_cli.fleet.rows.key_of`.
    limit : float or None
        Seconds of computing after which its process is ended; see `peakmem.system.process.run_child`.
    memory : int or None
        Bytes of address space for each of its processes (Linux).
    report : str or None
        What the page is called, of which ``options`` hold the path.
    """

    model: Model
    options: tuple[str, ...]
    key: str
    limit: float | None = None
    memory: int | None = None
    report: str | None = None


class Stop:
    """Ends the processes of all models that run at the moment, and lets none begin."""

    def __init__(self) -> None:
        self.asked = False
        self._lock = threading.Lock()
        self._running: list[Any] = []

    @contextmanager
    def among(self) -> Iterator[Any]:
        """A place for the processes of one model."""
        from peakmem.system.process import Children

        children = Children()
        with self._lock:
            self._running.append(children)
            if self.asked:
                children.stop()
        try:
            yield children
        finally:
            with self._lock:
                self._running.remove(children)

    def __call__(self) -> None:
        with self._lock:
            self.asked = True
            for children in self._running:
                _end(children)


def _end(children: Any) -> None:
    """Ask them to end, so that they end their own, and then end those that did not listen, as in a long native call."""
    children.stop()
    timer = threading.Timer(GRACE, children.kill)
    timer.daemon = True
    timer.start()


def run_task(task: Task, stop: Stop | None = None) -> Row | None:
    """Run `peakmem optimize --json` on one model; None if all was stopped meanwhile. May run on another machine."""
    from peakmem.model import RuntimeFailed
    from peakmem.system.process import run_child

    stop = stop or Stop()
    model = task.model
    arguments = [sys.executable, "-m", "peakmem_cli", "optimize", f"--frontend={model.frontend}", "--json", *task.options]
    arguments += ["--", str(model.path)]
    with stop.among() as children:
        try:
            done = run_child(arguments, what="the model", limit=task.limit, memory=task.memory, among=children, grace=GRACE)
        except RuntimeFailed as error:
            return Row(model, 2, None, str(error), task.key)
    if stop.asked:
        return None
    row = row_of(model, done.code, done.out.decode(errors="replace"), done.err.decode(errors="replace"), key=task.key, report=task.report)
    if done.late and done.code != 0:  # what it printed before stands
        return replace(row, code=2, error=f"did not end within {task.limit:g} s (--model-limit)", report=None)
    return row


def run_all(
    tasks: Sequence[Task], jobs: int, backend: str | None, take: Callable[[Row], None], tell: Callable[[str], None] | None
) -> BaseException | None:
    """Run all tasks and hand over each row as soon as it is known.

    Parameters
    ----------
    tasks : sequence of Task
    jobs : int
        Models at a time.
    backend : str or None
        None for threads that wait for processes of this machine; else one of joblib's, as ``loky``, or
        ``dask,scheduler_host=tcp://...`` with what `joblib.parallel_config` shall be given.
    take : callable
        Called in this thread.
    tell : callable or None
        Told how many are done.

    Returns
    -------
    BaseException or None
        The interrupt that ended it early: Ctrl-C or SIGTERM.

    Raises
    ------
    UsageError
        When joblib is not installed or knows no such backend.
    """
    from peakmem_cli.interrupts import Terminated, later

    done = 0

    def one(row: Row | None) -> None:
        nonlocal done
        if row is not None:
            with later():  # or a row might be in one place and not in the other
                take(row)
            done += 1
        if tell is not None:
            tell(f"{done} of {len(tasks)} models")

    if tell is not None:
        tell(f"0 of {len(tasks)} models")
    try:
        if backend is None:
            _threads(tasks, jobs, one)
        else:
            _joblib(tasks, jobs, backend, one)
    except (KeyboardInterrupt, Terminated) as interrupt:
        return interrupt
    return None


def _threads(tasks: Sequence[Task], jobs: int, one: Callable[[Row | None], None]) -> None:
    from concurrent.futures import Future, ThreadPoolExecutor, wait

    stop = Stop()
    waiting: set[Future[Row | None]] = set()
    try:
        with ThreadPoolExecutor(jobs) as pool:
            try:
                waiting.update(pool.submit(run_task, task, stop) for task in tasks)
                while waiting:
                    done, _ = wait(waiting, timeout=1.0, return_when="FIRST_COMPLETED")
                    for future in done:
                        waiting.remove(future)
                        one(future.result())
            except BaseException:
                for future in waiting:
                    future.cancel()
                stop()
                raise
    finally:
        for future in waiting:  # found while it was stopped
            if not future.cancelled():
                one(future.result())


def _joblib(tasks: Sequence[Task], jobs: int, backend: str, one: Callable[[Row | None], None]) -> None:
    from peakmem.model import UsageError

    try:
        import joblib
    except ImportError:
        raise UsageError("--backend: joblib is not installed; try: pip install 'peakmem-cli[joblib]'") from None
    name, *settings = backend.split(",")
    given = dict(setting.partition("=")[::2] for setting in settings)
    try:
        context = joblib.parallel_config(backend=name, n_jobs=jobs, **given)
        pool = joblib.Parallel(return_as="generator_unordered", batch_size=1)
    except (ValueError, TypeError, ImportError, OSError) as error:
        raise UsageError(f"--backend {backend}: {str(error).splitlines()[0]}") from None
    with context, closing(pool(joblib.delayed(run_task)(task) for task in tasks)) as found:
        for row in found:
            one(row)
