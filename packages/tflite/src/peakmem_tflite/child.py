"""Runs interpreters in a process of their own: ``python -m peakmem_tflite.child < job.json``.

An interpreter given a damaged model or too small an arena may end the process, so each piece of work runs in a fork of
this process, which imported the interpreter once. The answer is one JSON document on the standard output; whatever
the interpreters print goes into it as ``log``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

Work = Callable[[], Any]


def isolated(work: Work, limit: float) -> dict[str, Any]:
    """Run ``work`` in a fork.

    Returns
    -------
    dict
        ``result`` (absent if it failed), ``log`` (what was printed), ``error`` (a sentence, absent if it went well), ``late``
        (present where it was ended at its limit).
    """
    with tempfile.TemporaryFile() as log, tempfile.TemporaryFile() as answer:
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                result = work()
                # What C++ wrote is in the log by now, for its streams to descriptor 2 are not buffered.
                answer.write(json.dumps(result).encode())
                answer.flush()
                code = 0
            except BaseException as error:
                try:
                    answer.write(f"{type(error).__name__}: {error}".encode())
                    answer.flush()
                except OSError:
                    pass
            finally:
                os._exit(code)
        status = _wait(pid, limit)
        log.seek(0)
        answer.seek(0)
        outcome: dict[str, Any] = {"log": log.read().decode("utf-8", "replace")}
        text = answer.read()
        if status is None:
            outcome["late"] = True
            outcome["error"] = f"a run did not end within {limit:.0f} s" if limit >= 0.5 else "no time was left for a run"
        elif os.WIFSIGNALED(status):
            outcome["error"] = f"the interpreter crashed ({signal.Signals(os.WTERMSIG(status)).name})"
        elif os.WEXITSTATUS(status):
            outcome["error"] = text.decode("utf-8", "replace") or "the interpreter ended the process"
        else:
            outcome["result"] = json.loads(text)
        return outcome


class Clock:
    """How much of the time for a job is left.

    Parameters
    ----------
    seconds : float
        For the whole job.
    most : float
        For one piece of work, whatever is left.
    """

    def __init__(self, seconds: float, most: float) -> None:
        self.end, self.most = time.monotonic() + seconds, most

    def share(self, part: float = 1.0) -> float:
        """Seconds for one piece of work that may take a part of what is left."""
        return min(self.most, max(0.0, self.end - time.monotonic()) * part)

    def within(self, part: float) -> Clock:
        """A clock for a part of what is left."""
        return Clock(max(0.0, self.end - time.monotonic()) * part, self.most)

    @property
    def up(self) -> bool:
        return time.monotonic() >= self.end


PARENT = os.getppid()
"""Who wants the answer."""


def _wait(pid: int, limit: float) -> int | None:
    """Status of a process, or None after it had to be ended. Ends this process too when nobody wants the answer."""
    end = time.monotonic() + limit
    pause = 0.0005
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        orphaned = os.getppid() != PARENT  # killed, so it could not end us
        if orphaned or time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            if orphaned:
                os._exit(1)
            return None
        time.sleep(pause)
        pause = min(0.05, pause * 1.5)


def digest(array: Any) -> str:
    """Eight bytes of a hash over type, shape and bits."""
    import numpy as np

    array = np.ascontiguousarray(array)
    return hashlib.blake2b(f"{array.dtype}{array.shape}".encode() + array.tobytes(), digest_size=8).hexdigest()


def random_inputs(details: list[dict[str, Any]], step: int) -> list[Any]:
    """Inputs of one step, the same for both models: any bits for small integers, small indices for large ones."""
    import numpy as np

    rng = np.random.default_rng([20, step])
    result = []
    for detail in details:
        shape, dtype = tuple(int(n) for n in detail["shape"]), np.dtype(detail["dtype"])
        if dtype.kind == "f":
            value = rng.standard_normal(shape).astype(dtype)
        elif dtype.kind == "c":
            value = (rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(dtype)
        elif dtype.kind == "b":
            value = rng.integers(0, 2, shape).astype(dtype)
        elif dtype.itemsize <= 2:
            info = np.iinfo(dtype)
            value = rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)
        else:
            value = rng.integers(0, 2, shape).astype(dtype)
        result.append(value)
    return result


class Tflm:
    """The TFLite Micro interpreter."""

    def __init__(self) -> None:
        from tflite_micro import runtime

        self.runtime = runtime

    def interpreter(self, data: bytes, arena: int, keep: bool = False) -> Any:
        config = self.runtime.InterpreterConfig
        return self.runtime.Interpreter.from_bytes(
            data,
            arena_size=arena,
            intrepreter_config=config.kPreserveAllTensors if keep else config.kAllocationRecording,
        )

    def details(self, interpreter: Any, model: dict[str, Any]) -> list[dict[str, Any]]:
        return [interpreter.get_input_details(i) for i in range(model["inputs"])]

    def probe(self, data: bytes, arena: int, model: dict[str, Any], end: str) -> int:
        """Plan and run once; an error or a crash if the arena is too small. ``end`` is how it ends in a large one."""
        interpreter = self.interpreter(data, arena)
        for i, value in enumerate(random_inputs(self.details(interpreter, model), 0)):
            interpreter.set_input(value, i)
        try:
            interpreter.invoke()
        except RuntimeError as error:
            if str(error) != end:
                raise
        return arena

    def run(self, data: bytes, model: dict[str, Any], steps: int, keep: bool, seconds: float) -> list[list[str]]:
        """By step: how the invocation ended, then digests, of the tensors listed where all are kept, else of the outputs.

        No step begins after so many ``seconds``, the first excepted.

        A tensor of a branch that was never taken holds what happened to lie there; its digest is "". An interpreter
        that shares the arena also prints its allocations.
        """
        interpreter = self.interpreter(data, model["arena"], keep)
        if not keep:
            interpreter.print_allocations()
        details = self.details(interpreter, model)
        reached = {0}
        rows: list[list[str]] = []
        end = time.monotonic() + seconds
        for step in range(steps):
            if step and time.monotonic() > end:
                break
            for i, value in enumerate(random_inputs(details, step)):
                interpreter.set_input(value, i)
            row = [""]
            try:
                interpreter.invoke()
            except RuntimeError as error:
                # Some operators end an invocation early on purpose; both models must then do so at the same step.
                row[0] = str(error)
            if keep:
                self._follow(interpreter, model["calls"], reached)
                row += [self._read(interpreter, k, t) if k in reached else "" for k, t in model["tensors"]]
            else:
                row += [digest(interpreter.get_output(i)) for i in range(model["outputs"])]
            rows.append(row)
        if rows and all(row[0] for row in rows):
            raise RuntimeError(rows[0][0])
        return rows

    @staticmethod
    def _read(interpreter: Any, k: int, t: int) -> str:
        return digest(interpreter.GetTensor(t, k)["tensor_data"])

    def _follow(self, interpreter: Any, calls: list[dict[str, Any]], reached: set[int]) -> None:
        """Add the subgraphs that this invocation certainly ran. Callers are listed before what they call."""
        for call in calls:
            k, callees = call["subgraph"], call["callees"]
            if k not in reached:
                continue
            if call["op"] == "IF":
                taken = bool(interpreter.GetTensor(call["inputs"][0], k)["tensor_data"].ravel()[0])
                reached.add(callees[0] if taken else callees[1])
            elif call["op"] == "WHILE":
                reached.add(callees[0])
                # The body's outputs are copied to the operator's after each round; without one they are its inputs.
                before, after = ([self._read(interpreter, k, t) for t in call[side]] for side in ("inputs", "outputs"))
                body = [self._read(interpreter, callees[1], t) for t in call["body_outputs"]]
                if after == body and after != before:
                    reached.add(callees[1])
            else:
                reached.update(callees)


class Lite:
    """LiteRT and tflite-runtime: the same interface under two names."""

    def __init__(self, name: str) -> None:
        if name == "litert":
            from ai_edge_litert import interpreter as module
        else:
            from tflite_runtime import interpreter as module
        self.module = module

    def interpreter(self, data: bytes, keep: bool) -> Any:
        # Without delegates: inside one the order of the file is not what runs.
        interpreter = self.module.Interpreter(
            model_content=data,
            experimental_op_resolver_type=self.module.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES,
            experimental_preserve_all_tensors=keep,
            num_threads=1,
        )
        interpreter.allocate_tensors()
        return interpreter

    def span(self, data: bytes, tensors: list[int]) -> int | None:
        """Bytes between the lowest and the highest address of the tensors in the arena; None without tensors."""
        if not tensors:
            return None
        interpreter = self.interpreter(data, False)
        low, high = None, 0
        for t in tensors:
            array = interpreter.tensor(t)()
            begin = array.__array_interface__["data"][0]
            low = begin if low is None else min(low, begin)
            high = max(high, begin + array.nbytes)
        return high - (low or 0)

    def run(self, data: bytes, model: dict[str, Any], steps: int, keep: bool, seconds: float) -> list[list[str | None]]:
        """As `Tflm.run`, all of the main subgraph. None for a tensor that another one was written over in place, as
        tflite-runtime does even where it is to keep them all.
        """
        interpreter = self.interpreter(data, keep)
        details = interpreter.get_input_details()
        chosen = [t for _, t in model["tensors"]] if keep else [d["index"] for d in interpreter.get_output_details()]
        place: dict[int, set[int]] = {}
        for t in model["span"] if keep else ():
            place.setdefault(interpreter.tensor(t)().__array_interface__["data"][0], set()).add(t)
        shared = {t for here in place.values() if len(here) > 1 for t in here}
        rows: list[list[str | None]] = []
        end = time.monotonic() + seconds
        for step in range(steps):
            if step and time.monotonic() > end:
                break
            for detail, value in zip(details, random_inputs(details, step)):
                interpreter.set_tensor(detail["index"], value)
            interpreter.invoke()
            rows.append(["", *(None if t in shared else digest(interpreter.get_tensor(t)) for t in chosen)])
        return rows


def smallest_arena(
    tflm: Tflm, data: bytes, model: dict[str, Any], total: int, end: str, guesses: list[int], clock: Clock
) -> dict[str, Any]:
    """Least multiple of 16 bytes in which the interpreter plans and runs; ``end`` is how its first invocation ends.

    It must hold head and tail (``total``), and the tail beside what the planner needs. Most often the first is
    it; else the second is close: ``guesses`` are tried and what they leave open is bisected. An arena too small crashes
    now and then, so every try is a process. The error ``late`` where the time does not suffice.
    """
    probes = 0

    def works(size: int) -> bool:
        nonlocal probes
        probes += 1
        outcome = isolated(partial(tflm.probe, data, size, model, end), clock.share(0.5))
        if clock.up or "late" in outcome:
            raise TimeoutError
        return "result" in outcome

    try:
        return {"result": _least(works, total, model["arena"], guesses), "probes": probes}
    except TimeoutError:
        return {"error": "there was no time to look for the smallest arena", "late": True}


def _least(works: Callable[[int], bool], total: int, most: int, guesses: list[int]) -> int:
    low, high = 0, -(-total // 16) * 16
    if not works(high):
        low, high = high, most
        for guess in guesses:
            size = -(-guess // 16) * 16
            for tried in (size, size - 16):
                if low < tried < high:
                    low, high = (low, tried) if works(tried) else (tried, high)
        while high - low > 16:
            middle = (low + high) // 32 * 16
            low, high = (low, middle) if works(middle) else (middle, high)
    return high


def _bytes(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def tflm_job(job: dict[str, Any]) -> dict[str, Any]:
    """The outputs of all models first, then what says more. A later model runs no more steps than an earlier one had time for."""
    tflm, clock, steps = Tflm(), Clock(job["seconds"], job["limit"]), job["steps"]
    answer: dict[str, Any] = {"models": [{} for _ in job["models"]]}
    rows = list(zip(job["models"], answer["models"]))
    left = len(rows)
    for model, found in rows:
        # Half of the time is for these runs; one that never ends takes a share of it.
        hard, left = clock.share(1 / (left + 1)), left - 1
        found["outputs"] = isolated(partial(tflm.run, _bytes(model["path"]), model, steps, False, hard / 2), hard)
        steps = len(found["outputs"].get("result", ()))
        sizes = dict(re.findall(r"Arena allocation (total|head|tail) (\d+) bytes", found["outputs"]["log"]))
        if len(sizes) < 3:
            found["outputs"].setdefault("error", "it reported no allocations")
        else:
            found.update({name: int(size) for name, size in sizes.items()})
    if not steps:
        return answer
    for left, (model, found) in zip(range(len(rows), 0, -1), rows):
        # What is allocated behind planning differs a little between models, yet hardly ever between these two.
        beside = [row["smallest"].get("result", 0) - row["tail"] for row in answer["models"] if "result" in row.get("smallest", {})]
        beside += [model["planner_temp"] - after for after in model["after_planning"]]
        guesses = [found["tail"] + size for size in beside]
        end = found["outputs"]["result"][0][0]
        found["smallest"] = smallest_arena(tflm, _bytes(model["path"]), model, found["total"], end, guesses, clock.within(0.5 / left))
    for left, (model, found) in zip(range(len(rows), 0, -1), rows):
        # An interpreter that keeps all tensors refuses a plan, so it is given the same file without one.
        hard = clock.share(1 / left)
        found["tensors"] = isolated(partial(tflm.run, _bytes(model["bare"]), model, steps, True, hard / 2), hard)
    return answer


def lite_job(job: dict[str, Any]) -> dict[str, Any]:
    lite, clock, steps = Lite(job["runtime"]), Clock(job["seconds"], job["limit"]), job["steps"]
    answer: dict[str, Any] = {"models": [{} for _ in job["models"]]}
    for model, found in zip(job["models"], answer["models"]):
        found["span"] = isolated(partial(lite.span, _bytes(model["path"]), model["span"]), clock.share())
    left = 2 * len(answer["models"])
    for keep, name in ((False, "outputs"), (True, "tensors")) if steps else ():
        for model, found in zip(job["models"], answer["models"]):
            hard, left = clock.share(1 / left), left - 1
            found[name] = isolated(partial(lite.run, _bytes(model["path"]), model, steps, keep, hard / 2), hard)
            steps = min(steps, len(found[name].get("result", ()))) or steps
    return answer


def main() -> None:
    job = json.load(sys.stdin)
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        json.dump(tflm_job(job) if job["runtime"] == "tflm" else lite_job(job), out)


if __name__ == "__main__":
    main()
