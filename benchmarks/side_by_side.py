"""Other ways to order the same graphs, in one run: peak, bound, seconds.

    python benchmarks/side_by_side.py [--limit 10] [--tflite-tools DIR] [--markdown docs/tables/side_by_side.md] [NAME ...]

LPMF, BFS, DFS
    The functions of ``torch._inductor.memory`` themselves (needs torch; tried with 2.13.0), on stand-ins for scheduler
    nodes that carry what these functions read: dependences, sizes, readers, outputs. They know no workspace. A buffer
    that several statements may bear has no single allocating node, so such graphs cannot be driven and say so.
Inductor's choice
    ``reorder_for_peak_memory`` of the same module, the best of the given order and these three by its own estimate: what
    ``torch.compile`` takes. Told in the remark is where its estimate misses the best of the four.
tflite-tools
    ``TFLiteModel.compute_best_peak_memory_usage`` of a clone of github.com/oxmlsys/tflite-tools (``--tflite-tools``; needs
    prettytable and flatbuffers, no TensorFlow), on stand-ins for its tensors and operators, in a child process. It knows one
    output an operator, no workspace and no order without data, and other graphs cannot be driven. A graph input is counted
    once more with every operator that reads it while a later one does; what it claims then is no bound, and is only told.
dynamic program
    Exact, over down-sets, level by level, as tflite-tools (Liberis and Lane 2019) and SERENITY (Ahn et al. 2020) do; states
    dearer than the given order are dropped. It ends without an answer beyond ``--states`` states or the limit.
MILP, HiGHS; MILP with start, SCIP; MILP with start, CP-SAT
    One 0-1 program in the manner of OLLA (Steiner et al. 2022): done[v, t], live[b, t], with the spans that ancestors and
    descendants leave, given to three solvers. HiGHS (this way of calling it takes no start) and SCIP prove within
    floating-point tolerances, CP-SAT in integers. Not tried beyond ``--largest`` statements, where the model has over a
    hundred thousand variables.
intervals with start, CP-SAT
    A step for each statement, all different; an interval for each buffer; one cumulative resource whose capacity is least.
peakmem
    Order, bound and a certificate that the independent checker accepts.

The start is the best of the given order, LPMF, BFS and DFS. Every solver has one thread and the same seconds of CPU time, which
load does not stretch. HiGHS knows wall time only; it gets what so many CPU seconds took in the dynamic program just before. All peaks are worked out again by the one simulator of this program from the order that each method
gives; the ratio is that peak to peakmem's.
"""

from __future__ import annotations

import _thread
import argparse
import contextlib
import datetime
import importlib
import math
import multiprocessing
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import ceil, gcd, inf, isfinite
from pathlib import Path
from typing import Any
from unittest import mock

from common import Clock, Graph, Load, load_graphs, markdown, parser, seconds, warm_up, write
from peakmem.model import Program, scheduled_timeline
from peakmem.ordering.cuts import births_of
from peakmem.ordering.problem import Problem, problem_of

GRAPHS = (
    "unet_like",
    "nasnet_normal_cell_48x28",
    "fx_timm_hrnet_w18_small",
    "randwire_cell_ws16_4_p75_s0",
    "randwire_cell_ws20_4_p75_s1",
    "randwire_cell_ws32_4_p75_s3",
    "randwire_cell_ws64_4_p75_s1",
    "darts_imagenet_4x12",
    "nasnet_imagenet_4x11",
    "amoebanet_imagenet_4x12",
    "train_unet_like",
    "train_randwire_cell_ws16_4_p75_s0",
    "inductor/hf_t5",
    "inductor/squeezenet1_1",
)


LIMIT = 10.0


@dataclass
class Answer:
    """What a method says; ``note`` stands where there is no order, ``cpu`` where another process worked."""

    order: list[int] | None = None
    bound: int | None = None
    note: str = ""
    cpu: float = 0.0


@contextlib.contextmanager
def cpu_limit(limit: float, stop: Callable[[], object]) -> Iterator[None]:
    """Call ``stop`` once the block has taken ``limit`` seconds of CPU time, or twenty times that by the clock."""
    over = threading.Event()

    def watch() -> None:
        cpu, wall = time.process_time() + limit, time.monotonic() + 20 * limit
        while not over.wait(0.02):
            if time.process_time() > cpu or time.monotonic() > wall:
                stop()
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


# -- Inductor's own ----------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class StandIn:
    """What the functions of ``torch._inductor.memory`` read of a scheduler node."""

    statement: int
    name: str
    outputs: list[Any] = field(default_factory=list)
    unmet_dependencies: list[Any] = field(default_factory=list)
    mpi_node: Any = None

    def get_outputs(self) -> list[Any]:
        return self.outputs

    def get_buffer_names(self) -> list[str]:
        return [b.name for b in self.outputs] or [self.name]

    def get_name(self) -> str:
        return self.name


@dataclass(eq=False)
class BufferStandIn:
    name: str
    mpi_buffer: Any

    def get_name(self) -> str:
        return self.name


@dataclass(frozen=True)
class Dependence:
    name: str


def inductor(problem: Problem, method: str) -> Answer:
    """Drive ``topological_sort_lpmf``, ``_bfs`` or ``_dfs``, or, for "choice", ``reorder_for_peak_memory``."""
    if births_of(problem) is not None:
        return Answer(note="not to be driven: buffers with several births")
    try:
        from torch._inductor import memory
        from torch.utils._ordered_set import OrderedSet
    except ImportError:
        return Answer(note="torch is missing")
    nodes = [StandIn(v, f"op{v}") for v in range(len(problem))]
    buffers: dict[str, BufferStandIn] = {}
    freeable: dict[str, Any] = {}
    outputs: Any = OrderedSet()
    readers: list[Any] = [OrderedSet() for _ in nodes]
    for b, touchers in enumerate(problem.touchers):
        if not touchers:
            continue
        name, size, pinned = f"buf{b}", problem.size[b], problem.pinned[b]
        others = OrderedSet([nodes[t] for t in touchers if problem.entry[b] or t != touchers[0]])
        if problem.entry[b]:
            info = memory.MemoryPlanningInfoForBuffer(0, size, others, others)
            made: Any = memory.FreeableInputBuffer(name, info)
            freeable[name] = made
        else:
            info = memory.MemoryPlanningInfoForBuffer(size, size, others, others)
            made = BufferStandIn(name, info)
            buffers[name] = made
            nodes[touchers[0]].outputs.append(made)
        for node in others:
            readers[node.statement].add(made)
        if pinned:
            outputs.add(name)
    for v, node in enumerate(nodes):
        node.mpi_node = memory.MemoryPlanningInfoForNode(
            index=v,
            size=sum(b.mpi_buffer.size_alloc for b in node.outputs),
            pred_buffers=readers[v],
            pred_nodes=OrderedSet([nodes[u] for u in problem.preds[v]]),
            succ_nodes=OrderedSet([nodes[w] for w in problem.succs[v]]),
        )
        node.unmet_dependencies = [Dependence(nodes[u].get_buffer_names()[0]) for u in problem.preds[v]]
    if method == "choice":
        estimate, _ = memory.estimate_peak_memory(nodes, freeable, outputs)
        with mock.patch.object(memory, "prepare_planning_info", return_value=(estimate, freeable)):
            found = memory.reorder_for_peak_memory(nodes, buffers, {}, OrderedSet(), outputs)
    elif method == "LPMF":
        found = memory.topological_sort_lpmf(nodes, freeable, buffers, outputs)
    else:
        found = getattr(memory, f"topological_sort_{method.lower()}")(nodes)
    return Answer([node.statement for node in found])


# -- dynamic program ---------------------------------------------------------------------------------------------------


def down_sets(problem: Problem, limit: float, states: int) -> Answer:
    """Least peak to reach each down-set, one level of equally large down-sets after the other."""
    deadline = time.process_time() + limit
    n = len(problem)
    ceiling = problem.order_peak(range(n))
    before = [sum(1 << u for u in row) for row in problem.preds]
    touching = [sum(1 << t for t in row) for row in problem.touchers]
    # down-set -> (peak, rest, last statement, the entry before)
    level: dict[int, tuple[int, int, int, Any]] = {0: (problem.entry_bytes, problem.entry_bytes, -1, None)}
    seen = 0
    for _ in range(n):
        following: dict[int, tuple[int, int, int, Any]] = {}
        for done, entry in level.items():
            seen += 1
            if seen > states:
                return Answer(note=f"more than {states:,} states")
            if not seen & 255 and time.process_time() > deadline:
                return Answer(note=f"not done in {limit:g} s ({seen:,} states)")
            peak, rest = entry[:2]
            for v in range(n):
                bit = 1 << v
                if done & bit or before[v] & ~done:
                    continue
                new = gone = 0
                for b in problem.touched[v]:
                    if not problem.entry[b] and not touching[b] & done:
                        new += problem.size[b]
                    if not problem.pinned[b] and not touching[b] & ~(done | bit):
                        gone += problem.size[b]
                here = max(peak, rest + problem.workspace[v] + new)
                old = following.get(done | bit)
                if here <= ceiling and (old is None or here < old[0]):
                    following[done | bit] = (here, rest + new - gone, v, entry)
        level = following
    ((least, *_),) = [entry[:1] for entry in level.values()]
    (entry,) = level.values()
    order = []
    while entry is not None and entry[2] >= 0:
        order.append(entry[2])
        entry = entry[3]
    return Answer(order[::-1], least)


# -- tflite-tools ------------------------------------------------------------------------------------------------------


def tflite_tools(problem: Problem, limit: float, clone: Path | None) -> Answer:
    """Drive its recursion over sets of tensors, in a child with limits of CPU time and memory."""
    if clone is None:
        return Answer(note="not asked for (--tflite-tools)")
    n = len(problem)
    own: list[list[int]] = [[] for _ in range(n)]
    for b, touchers in enumerate(problem.touchers):
        if touchers and not problem.entry[b]:
            own[touchers[0]].append(b)
    born = {b: v for v, row in enumerate(own) for b in row}
    reasons = {
        "buffers with several births": births_of(problem) is not None,
        "overlays": any(problem.gains),
        "workspace": any(problem.workspace),
        "statements without exactly one output": any(len(row) != 1 for row in own),
        "order without data": any(set(problem.preds[v]) - {born.get(b) for b in problem.touched[v]} for v in range(n)),
        "values that nobody reads": any(problem.touchers[b] == (v,) and not problem.pinned[b] for b, v in born.items()),
        "outputs that are read": any(problem.pinned[b] and len(problem.touchers[b]) > 1 for b in born),
        "inputs that stay": any(e and p for e, p in zip(problem.entry, problem.pinned)),
    }
    if any(reasons.values()):
        return Answer(note="not to be driven: " + ", ".join(r for r, found in reasons.items() if found))
    try:
        with mock.patch.object(sys, "path", [str(clone), *sys.path]), mock.patch.dict(sys.modules):
            # Its generated readers call themselves `tflite`, and so does a distribution.
            for name in [m for m in sys.modules if m.partition(".")[0] == "tflite"]:
                del sys.modules[name]
            tools = importlib.import_module("tflite_tools.tflite_model")
    except ImportError as error:
        return Answer(note=f"not to be loaded: {error}")
    ours, theirs = multiprocessing.Pipe(duplex=False)

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (ceil(limit), ceil(limit)))
        resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
        sys.setrecursionlimit(1_000_000)
        threading.stack_size(1 << 30)
        worker = threading.Thread(target=search)
        worker.start()
        worker.join()

    def search() -> None:
        try:
            theirs.send((*_search(tools, problem, born), time.process_time()))
        except MemoryError:
            theirs.send((None, None, time.process_time()))

    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    theirs.close()
    try:
        peak, order, cpu = ours.recv()
    except EOFError:
        peak, order, cpu = None, None, inf
    child.join()
    if order is not None and peak != problem.order_peak(order):
        return Answer(order, note=f"claims {peak:,}: counts an input again for every set of later readers", cpu=cpu)
    if order is None:
        return Answer(note="more than 6 GiB" if isfinite(cpu) else f"not done in {limit:g} s", cpu=min(cpu, limit))
    return Answer(order, peak, cpu=cpu)


def _search(tools: Any, problem: Problem, born: dict[int, int]) -> tuple[int, list[int]]:
    class Tensor(tools.TFLiteTensor):  # type: ignore[misc]
        size = 0

    tensors = {b: Tensor(id=b) for b, touchers in enumerate(problem.touchers) if touchers}
    operators = []
    for b, tensor in tensors.items():
        tensor.size = problem.size[b]
    maker = {v: b for b, v in born.items()}
    for v in range(len(problem)):
        inputs = [tensors[b] for b in problem.touched[v] if b != maker[v]]
        operator = tools.TFLiteOperator(id=v, output=tensors[maker[v]], inputs=inputs)
        operator.output.producer = operator
        before = set(inputs)
        for i in inputs:
            i.consumers.append(operator)
            before |= i.predecessors or set()
        operator.output.predecessors = before
        operators.append(operator)
    for tensor in tensors.values():
        if tensor.producer is None:
            tensor.predecessors = set()
    outputs = [tensors[b] for b in born if problem.pinned[b]]
    model = tools.TFLiteModel.__new__(tools.TFLiteModel)
    model.peak_usage = None
    model.model_graph = tools.TFLiteGraph(list(tensors.values()), operators, [], outputs)
    peak, order = model.compute_best_peak_memory_usage()
    return int(peak), [operator.id for operator in order]


# -- solvers -----------------------------------------------------------------------------------------------------------


@dataclass
class Spans:
    """What every model of a solver uses: buffers that matter, who bears and who ends them, when a statement may run."""

    problem: Problem
    used: list[int]
    births: list[tuple[int, ...]]
    unit: int
    outside: int
    first: list[int]
    last: list[int]

    @classmethod
    def of(cls, problem: Problem) -> Spans:
        n = len(problem)
        births = births_of(problem) or [() if e else t[:1] for e, t in zip(problem.entry, problem.touchers)]
        used = [b for b, t in enumerate(problem.touchers) if t and problem.size[b]]
        outside = problem.base + sum(
            s for s, e, p, t in zip(problem.size, problem.entry, problem.pinned, problem.touchers) if e and p and not t
        )
        return cls(
            problem,
            used,
            [tuple(row) for row in births],
            gcd(*[problem.size[b] for b in used], *problem.workspace) or 1,
            outside,
            [a.bit_count() for a in _reach(problem.preds, range(n))],
            [n - 1 - d.bit_count() for d in _reach(problem.succs, range(n - 1, -1, -1))],
        )

    def bytes(self, units: float) -> int:
        """A solver's bound: its tolerance is let go, and nothing between two multiples of the unit is a peak."""
        return ceil(units - 1e-6) * self.unit + self.outside


def milp(
    problem: Problem, limit: float, largest: int, solver: str, start: list[int] | None, stretch: float = 1.0
) -> Answer:
    """Minimize the peak: done[v, t] (v has run when step t ends), live[b, t] (b is resident during step t).

    ``stretch``: seconds of wall time that a CPU second takes at the moment, for the solver that knows no other.
    """
    n = len(problem)
    if n > largest:
        return Answer(note=f"not tried: more than {largest} statements")
    if any(problem.gains):
        return Answer(note="not modelled: overlays")
    from ortools.math_opt import model_pb2
    from ortools.math_opt.python import mathopt
    from ortools.math_opt.solvers.gscip import gscip_pb2
    from ortools.util.python.solve_interrupter import SolveInterrupter

    spans = Spans.of(problem)
    row_of = {b: i for i, b in enumerate(spans.used)}
    count = n * n + len(spans.used) * n + 1

    def done(v: int, t: int) -> int:
        return v * n + t

    def live(b: int, t: int) -> int:
        return n * n + row_of[b] * n + t

    proto = model_pb2.ModelProto()
    lower, upper = [0.0] * count, [1.0] * count
    upper[-1] = inf
    for v in range(n):
        for t in range(n):
            if t < spans.first[v]:
                upper[done(v, t)] = 0
            if t >= spans.last[v]:
                lower[done(v, t)] = 1
    proto.variables.ids.extend(range(count))
    proto.variables.lower_bounds.extend(lower)
    proto.variables.upper_bounds.extend(upper)
    proto.variables.integers.extend(c < n * n or c == count - 1 for c in range(count))
    proto.objective.linear_coefficients.ids.append(count - 1)
    proto.objective.linear_coefficients.values.append(1)
    rows, matrix = proto.linear_constraints, proto.linear_constraint_matrix

    def constrain(terms: list[tuple[int, float]], least: float, most: float) -> None:
        matrix.row_ids.extend([len(rows.ids)] * len(terms))
        for column, value in sorted(terms):
            matrix.column_ids.append(column)
            matrix.coefficients.append(value)
        rows.ids.append(len(rows.ids))
        rows.lower_bounds.append(least)
        rows.upper_bounds.append(most)

    for t in range(n):
        constrain([(done(v, t), 1) for v in range(n)], t + 1, t + 1)
        memory: list[tuple[int, float]] = [(live(b, t), problem.size[b] // spans.unit) for b in spans.used]
        for v, w in enumerate(problem.workspace):
            if w:
                memory.append((done(v, t), w // spans.unit))
                if t:
                    memory.append((done(v, t - 1), -(w // spans.unit)))
        constrain([*memory, (count - 1, -1)], -inf, 0)
        for v in range(n):
            if t:
                constrain([(done(v, t), 1), (done(v, t - 1), -1)], 0, 1)
            for u in problem.preds[v]:
                constrain([(done(v, t), 1), *([(done(u, t - 1), -1)] if t else [])], -inf, 0)
        for b in spans.used:
            # live >= [born by the end of t] - [all touchers done before t]
            for born in [None] if problem.entry[b] else spans.births[b]:
                begin = [] if born is None else [(done(born, t), -1.0)]
                for final in [None] if problem.pinned[b] else problem.touchers[b]:
                    end = [] if final is None or not t else [(done(final, t - 1), 1.0)]
                    if begin and end and begin[0][0] == end[0][0]:
                        continue
                    constrain([(live(b, t), 1.0), *begin, *end], 1.0 if born is None else 0.0, inf)
    model = mathopt.Model.from_model_proto(proto)
    given = mathopt.ModelSolveParameters()
    if start is not None:
        at = {v: t for t, v in enumerate(start)}
        values: dict[int, float] = {done(v, t): float(at[v] <= t) for v in range(n) for t in range(n)}
        for b in spans.used:
            begin_at = 0 if problem.entry[b] else min(at[v] for v in spans.births[b])
            end_at = n - 1 if problem.pinned[b] else max(at[v] for v in problem.touchers[b])
            values |= {live(b, t): float(begin_at <= t <= end_at) for t in range(n)}
        values[count - 1] = (problem.order_peak(start) - spans.outside) // spans.unit
        hint = mathopt.SolutionHint(variable_values={model.get_variable(i): x for i, x in values.items()})
        given.solution_hints.append(hint)
    settings = mathopt.SolveParameters()
    interrupter = None
    if solver == "CP_SAT":
        settings.threads = 1
        interrupter = SolveInterrupter()
    else:  # deaf to an interruption in this release
        settings.time_limit = datetime.timedelta(seconds=limit * (stretch if solver == "HIGHS" else 1.0))
    if solver == "GSCIP":
        settings.threads = 1
        settings.gscip = gscip_pb2.GScipParameters(int_params={"timing/clocktype": 1})  # CPU time
    with cpu_limit(limit, interrupter.interrupt if interrupter else lambda: None):
        result = mathopt.solve(
            model, mathopt.SolverType[solver], params=settings, model_params=given, interrupter=interrupter
        )
    least = result.termination.objective_bounds.dual_bound
    bound = spans.bytes(least) if isfinite(least) else None
    if not result.has_primal_feasible_solution():
        return Answer(None, bound, f"no order in {limit:g} s")
    found = result.variable_values()
    when = {v: sum(1 - round(found[model.get_variable(done(v, t))]) for t in range(n)) for v in range(n)}
    return Answer(sorted(range(n), key=when.__getitem__), bound)


def intervals(problem: Problem, limit: float, start: list[int]) -> Answer:
    """Minimize the capacity of a resource that buffers occupy from the step of their birth to that of their last toucher."""
    if any(problem.gains):
        return Answer(note="not modelled: overlays")
    from ortools.sat.python import cp_model

    n = len(problem)
    spans = Spans.of(problem)
    at = {v: t for t, v in enumerate(start)}
    model = cp_model.CpModel()

    def variable(low: int, high: int, name: str, hint: int) -> cp_model.IntVar:
        made = model.new_int_var(low, high, name)
        model.add_hint(made, hint)
        return made

    ceiling = (problem.order_peak(start) - spans.outside) // spans.unit
    peak = variable(0, ceiling, "peak", ceiling)
    step = [variable(spans.first[v], spans.last[v], f"step{v}", at[v]) for v in range(n)]
    model.add_all_different(step)
    for v in range(n):
        for u in problem.preds[v]:
            model.add(step[u] < step[v])
    held: list[cp_model.IntervalVar] = []
    sizes: list[int] = []
    for b in spans.used:
        born, touchers = spans.births[b], problem.touchers[b]
        begin: Any = 0 if problem.entry[b] else step[born[0]] if len(born) == 1 else None
        if begin is None:
            begin = variable(0, n - 1, f"begin{b}", min(at[v] for v in born))
            model.add_min_equality(begin, [step[v] for v in born])
        end: Any = n
        if not problem.pinned[b]:
            end = variable(1, n, f"end{b}", max(at[v] for v in touchers) + 1)
            model.add_max_equality(end, [step[v] + 1 for v in touchers])
        length = model.new_int_var(1, n, f"length{b}")
        held.append(model.new_interval_var(begin, length, end, f"buffer{b}"))
        sizes.append(problem.size[b] // spans.unit)
    for v, w in enumerate(problem.workspace):
        if w:
            held.append(model.new_fixed_size_interval_var(step[v], 1, f"workspace{v}"))
            sizes.append(w // spans.unit)
    model.add_cumulative(held, sizes, peak)
    model.minimize(peak)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    with cpu_limit(limit, solver.stop_search):
        status = solver.solve(model)
    bound = spans.bytes(solver.best_objective_bound)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Answer(None, bound, f"no order in {limit:g} s")
    when = [solver.value(s) for s in step]
    return Answer(sorted(range(n), key=when.__getitem__), bound)


def _reach(rows: list[tuple[int, ...]], order: range) -> list[int]:
    masks = [0] * len(rows)
    for v in order:
        for u in rows[v]:
            masks[v] |= masks[u] | 1 << u
    return masks


# -- ours ----------------------------------------------------------------------------------------------------------------


def ours(program: Program, limit: float) -> Answer:
    from peakmem.ordering import order_program
    from peakmem.proof import check

    with cpu_limit(limit, _thread.interrupt_main):  # which is Ctrl-C: the best so far is kept
        found = order_program(program)
    if found.certificate is not None:
        check(program, found.certificate.to_json())
    return Answer(list(found.orders[""]), found.lower_bound if found.certificate else None)


@dataclass
class Row:
    """One method on one graph; ``peak`` is worked out again from its order."""

    graph: str
    method: str
    statements: int
    answer: Answer
    peak: int | None
    clock: Clock

    @property
    def proved(self) -> bool:
        return self.peak is not None and self.answer.bound == self.peak

    @property
    def remark(self) -> str:
        if self.answer.note or self.answer.bound is None or self.peak is None:
            return self.answer.note
        return "optimal" if self.proved else f"gap {1 - self.answer.bound / self.peak:.2%}"


def run_all(graph: Graph, options: argparse.Namespace) -> Iterator[Row]:
    """Every method on one graph, the cheap ones first: the best of them is the start of those that take one."""
    problem = problem_of(graph.program)
    n, limit, largest = len(problem), options.limit, options.largest

    def row(method: str, run: Callable[[], Answer]) -> Row:
        with Clock() as clock:
            answer = run()
        clock.cpu += answer.cpu
        peak = None
        if answer.order is not None:
            graph.program.validate_order(answer.order)
            peak = scheduled_timeline(graph.program, {"": tuple(answer.order)}).peak
        return Row(graph.name, method, n, answer, peak, clock)

    cheap = [row("as given", lambda: Answer(list(range(n))))]
    cheap += [row(method, lambda m=method: inductor(problem, m)) for method in ("LPMF", "BFS", "DFS")]  # type: ignore[misc]
    yield from cheap
    start = min((r for r in cheap if r.peak is not None), key=lambda r: r.peak or 0)
    taken = row("Inductor's choice", lambda: inductor(problem, "choice"))
    if taken.peak is not None and start.peak is not None and taken.peak > start.peak:
        taken.answer.note = f"its estimate misses {start.method}"
    yield taken
    order = start.answer.order or []
    yield row("tflite-tools", lambda: tflite_tools(problem, limit, options.tflite_tools))
    tabled = row("dynamic program", lambda: down_sets(problem, limit, options.states))
    yield tabled
    stretch = max(1.0, tabled.clock.wall / max(tabled.clock.cpu, 0.01))
    yield row("MILP, HiGHS", lambda: milp(problem, limit, largest, "HIGHS", None, stretch))
    yield row("MILP with start, SCIP", lambda: milp(problem, limit, largest, "GSCIP", order))
    yield row("MILP with start, CP-SAT", lambda: milp(problem, limit, largest, "CP_SAT", order))
    yield row("intervals with start, CP-SAT", lambda: intervals(problem, limit, order))
    yield row("peakmem", lambda: ours(graph.program, limit))


def faults(rows: list[Row]) -> list[str]:
    """Bounds above an order that exists, and graphs where another order is better than ours."""
    found = []
    best = min(r.peak for r in rows if r.peak is not None)
    for r in rows:
        if r.answer.bound is not None and r.answer.bound > best:
            found.append(f"{r.graph}: {r.method} claims {r.answer.bound:,}, but there is an order of {best:,}")
    if rows[-1].peak != best:
        found.append(f"{rows[-1].graph}: there is an order of {best:,}, peakmem has {rows[-1].peak:,}")
    return found


def summary(rows: list[Row]) -> list[list[object]]:
    """A row a method: how often it answered and proved, and its peaks against peakmem's of the same run."""
    ours_of = {r.graph: r.peak for r in rows if r.method == "peakmem"}
    table: list[list[object]] = []
    for method in dict.fromkeys(r.method for r in rows):
        mine = [r for r in rows if r.method == method]
        ratios = [r.peak / (ours_of[r.graph] or 1) for r in mine if r.peak is not None]
        table.append([
            method, f"{len(ratios)} of {len(mine)}", sum(r.proved for r in mine),
            f"{math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}" if ratios else "",
            f"{max(ratios):.3f}" if ratios else "", seconds(sum(r.clock.cpu for r in mine)),
        ])  # fmt: skip
    return table


def main() -> int:
    arguments = parser(__doc__)
    arguments.add_argument("names", nargs="*", metavar="NAME", help=f"graphs (default: {len(GRAPHS)} of them)")
    arguments.add_argument("--limit", type=float, default=LIMIT, help="CPU seconds a graph and method (%(default)s)")
    arguments.add_argument("--states", type=int, default=400_000, help="states of the dynamic program (%(default)s)")
    arguments.add_argument("--largest", type=int, default=200, help="statements of the MILP (%(default)s)")
    arguments.add_argument("--tflite-tools", type=Path, metavar="DIR", help="a clone of github.com/oxmlsys/tflite-tools")
    options = arguments.parse_args()
    graphs = load_graphs(options.shared, options.names or GRAPHS)

    import ortools.math_opt.python.mathopt
    import ortools.sat.python.cp_model  # noqa: F401  (loading libraries is not ordering)

    try:
        from torch import __version__ as torch_version
        from torch._inductor import memory  # noqa: F401

        told = f"torch {torch_version}"
    except ImportError:
        told = "torch is not installed, so Inductor's functions were not run"
    warm_up()
    load = Load()
    rows: list[Row] = []
    wrong: list[str] = []
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell takes from what it starts in the background
    left = [graph.name for graph in graphs]
    try:
        for graph in graphs:
            mine = []
            for row in run_all(graph, options):
                mine.append(row)
                print(*cells(row, None), file=sys.stderr, flush=True)
            rows += mine
            wrong += faults(mine)
            left.remove(graph.name)
    except KeyboardInterrupt:
        print("interrupted; what follows is about the graphs that were done", file=sys.stderr)
    if not rows:
        sys.exit("no graph was done")
    publish(rows, wrong, left, options, told, load)
    return 1 if wrong else 0


def publish(
    rows: list[Row], wrong: list[str], left: list[str], options: argparse.Namespace, told: str, load: Load
) -> None:
    """Print and write the page: a row a method, then a row a graph and method."""
    ours_of = {r.graph: r.peak for r in rows if r.method == "peakmem"}
    limit = "" if options.limit == LIMIT else f" --limit {options.limit:g}"
    write(
        options.markdown,
        "Side by side: other ways to order the same graphs",
        f"python benchmarks/side_by_side.py{limit} --tflite-tools CLONE --markdown docs/tables/side_by_side.md",
        f"Limit {options.limit:g} s of CPU time a graph and method (HiGHS: about that), one thread each; "
        f"{options.states:,} states for the dynamic program. Inductor's functions: {told}. For peakmem the seconds include "
        "writing and checking the certificate; for the solvers, building the model. *With start*: the solver was given the best "
        "of the given order, LPMF, BFS and DFS. Ratios are peaks over peakmem's in this run, and every peak was worked out again "
        "from the order by one simulator. Only peakmem's bounds come with a proof that is checked apart."
        + (f" Interrupted before: {', '.join(left)}." if left else ""),
        markdown(
            ("method", "orders", "proved optimal", "ratio, geometric mean", "greatest ratio", "CPU s, all"), summary(rows)
        ),
        markdown(
            ("graph", "method", "statements", "peak B", "ratio", "bound B", "CPU s", "wall s", "remark"),
            [cells(r, ours_of[r.graph]) for r in rows],
            left=2,
        ),
        "Faults: " + "; ".join(wrong) + "."
        if wrong
        else "No claimed bound exceeds the best order of any method, and no method has a better order than peakmem.",
        load.note(),
    )


def cells(row: Row, reference: int | None) -> list[object]:
    first = row.method == "as given"
    return [
        row.graph if first else "", row.method, row.statements if first else "",
        "" if row.peak is None else f"{row.peak:,}",
        "" if row.peak is None or not reference else f"{row.peak / reference:.3f}",
        "" if row.answer.bound is None else f"{row.answer.bound:,}",
        "" if first else seconds(row.clock.cpu), "" if first else seconds(row.clock.wall), row.remark,
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
