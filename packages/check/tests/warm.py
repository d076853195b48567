"""Children of tests that begin where their imports end.

A child that runs a small model is busy importing for nine tenths of its time. So one process a module imports beforehand and
waits, and each child is a fork of it: a process of its own as before, with its own crash, its own allocations and its own end.
Tests of how children are started, limited and ended do without (`peakmem.system.process` in core's tests, and ``test_process``
of each adapter).
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


class Nursery:
    """Starts children of ``python -m MODULE`` as `run_child` does, which it is given for all others.

    Parameters
    ----------
    run_child
        `peakmem.system.process.run_child`.
    module : str
        What its children run.
    imports : tuple of str
        Modules that they would import; those that are not installed are passed over.
    still : mapping, optional
        Variables that say to a child that its addresses are not randomized; then they are not.
    """

    def __init__(self, run_child: Callable[..., Any], module: str, imports: tuple[str, ...], still: Mapping[str, str] | None = None) -> None:
        self.real, self.module, self.imports, self.still = run_child, module, imports, still
        self.command = [sys.executable, "-m", module]
        self.waiting: dict[str, tuple[Any, tempfile.TemporaryDirectory[str]]] = {}
        self.lock = threading.Lock()

    def __call__(
        self, command: Any, *, what: str, limit: float | None, given: bytes = b"", environment: Mapping[str, str] | None = None,
        folder: Path | None = None, **more: Any,
    ) -> Any:
        if list(command[:3]) != self.command or more or sys.platform != "linux":
            return self.real(command, what=what, limit=limit, given=given, environment=environment, folder=folder, **more)
        return self._child({"arguments": list(map(str, command[3:])), "folder": str(folder or Path.cwd())}, what, limit, given, environment)

    def run(self, code: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Any:
        """A child of ``python -c CODE ARGUMENT...``; its end is that of an interpreter, functions registered for it included."""
        return self._child({"code": code, "arguments": arguments, "folder": str(Path.cwd())}, "the code", None, b"", environment)

    def _child(
        self, request: dict[str, Any], what: str, limit: float | None, given: bytes, environment: Mapping[str, str] | None
    ) -> Any:
        from peakmem.model import RuntimeFailed
        from peakmem.system.process import Finished

        variables = dict(os.environ if environment is None else environment) | dict(self.still or {})
        with self.lock:
            process, place = self._mother(variables)
            here = Path(place.name)
            (here / "in").write_bytes(given)
            (here / "request.json").write_text(json.dumps({**request, "environment": variables}))
            process.stdin.write(b"!")
            if not select.select([process.stdout], [], [], limit)[0] or not (line := process.stdout.readline()):
                self._send_away(variables.get("LD_PRELOAD", ""))
                raise RuntimeFailed(f"{what} did not end within {limit} s; nothing was measured")
            return Finished(os.waitstatus_to_exitcode(int(line)), (here / "out").read_bytes(), (here / "err").read_bytes())

    def _mother(self, variables: Mapping[str, str]) -> tuple[Any, tempfile.TemporaryDirectory[str]]:
        preload = variables.get("LD_PRELOAD", "")
        if preload not in self.waiting:
            place = tempfile.TemporaryDirectory(prefix="peakmem-nursery-")
            environment = dict(variables) | ({"PYTHONHASHSEED": "0"} if self.still else {})
            command = [sys.executable, __file__, place.name, self.module, ",".join(self.imports), "still" if self.still else ""]
            pipe = subprocess.PIPE
            self.waiting[preload] = (subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, env=environment, process_group=0), place)
        return self.waiting[preload]

    def _send_away(self, preload: str) -> None:
        process, place = self.waiting.pop(preload)
        os.killpg(process.pid, 9)
        with process:
            pass
        place.cleanup()

    def close(self) -> None:
        for preload in list(self.waiting):
            self._send_away(preload)


def wait(place: str, module: str, imports: str, still: str) -> None:
    """A byte on standard input, a child, its status on standard output; and again."""
    import contextlib
    import ctypes
    import importlib
    import signal

    if still and not os.environ.pop("PEAKMEM_NURSERY", ""):
        ctypes.CDLL(None).personality(ctypes.c_ulong(0x0040000))
        os.environ["PEAKMEM_NURSERY"] = "still"
        os.execv(sys.executable, [sys.executable, *sys.argv])
    sys.path[0] = ""
    for name in imports.split(","):
        with contextlib.suppress(Exception):  # not installed, or not beside this numpy: a child says so
            importlib.import_module(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever sent a byte has it ended
    while os.read(0, 1):
        if not (child := os.fork()):
            _be(Path(place), module)
        os.write(1, b"%d\n" % os.waitpid(child, 0)[1])


def _be(place: Path, module: str) -> None:
    """Be a child: never returns."""
    import atexit
    import runpy
    import signal
    import traceback

    code: Any = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        request = json.loads((place / "request.json").read_text())
        for number, name, flags in ((0, "in", os.O_RDONLY), (1, "out", os.O_RDWR), (2, "err", os.O_RDWR)):
            file = os.open(place / name, flags | (os.O_CREAT | os.O_TRUNC if number else 0))
            os.dup2(file, number)
            os.close(file)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = [module, *request["arguments"]]
        if "code" in request:
            exec(compile(request["code"], "<string>", "exec"), {"__name__": "__main__"})
            atexit._run_exitfuncs()
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = 0 if end.code is None else end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    wait(*sys.argv[1:])
