"""What stands in for ``call``: records the first call, orders, verifies, and runs the better program from then on.

The user always gets the results of the untouched wrapper on a first call; the permuted program runs beside it, on
copies, and takes over only if bits and bytes agree. A program that calls what may have effects of its own never runs
twice, so its permuted form takes over without that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from peakmem.model import PeakmemError, RuntimeMissing
from peakmem.proof import Certificate

from peakmem_inductor import reporting as reports
from peakmem_inductor import settings
from peakmem_inductor.building import build_graph
from peakmem_inductor.effects import hidden_effects, operator_effects, races
from peakmem_inductor.emitting import realize
from peakmem_inductor.forms import Wrapper
from peakmem_inductor.graph import Graph
from peakmem_inductor.profile import Profile
from peakmem_inductor.recomputing import Recomputed, recompute_program
from peakmem_inductor.serving import refusal, warn
from peakmem_inductor.wrapper import parse_wrapper

log = logging.getLogger("peakmem_inductor")

Call = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Options:
    """Options of ``torch.compile(..., backend="peakmem", options={...})``; see `peakmem_inductor.backend.peakmem`."""

    candidates: tuple[str, ...] = ("default",)
    verify: bool = True
    time_limit: float = 5.0
    dump: Path | None = None
    shapes: int = 8
    max_extra_macs: str | None = None
    cap: int = 2
    pure: frozenset[str] = frozenset()


@dataclass
class Candidate:
    """A wrapper that computes the graph: its module and, once read, its text."""

    name: str
    module: Any
    path: Path
    call: Call
    wrapper: Wrapper | None = None
    namespace: Mapping[str, Any] = field(default_factory=dict)

    def read(self) -> Wrapper:
        if self.wrapper is None:
            self.wrapper = parse_wrapper(self.path.read_text(), where=self.path.name)
            self.namespace = dict(vars(self.module))
        return self.wrapper


@dataclass
class _Found:
    """The best order of one candidate, or what runs some of its statements twice."""

    candidate: Candidate
    wrapper: Wrapper
    profile: Profile
    graph: Graph
    order: tuple[int, ...]
    after: int
    bound: int
    certified: bool
    certificate: Certificate | None
    recomputed: Recomputed | None = None


_PLAIN = (int, float, str, type(None))
_recording = threading.Lock()


class Dispatcher:
    """Stands in for the ``call`` of one graph.

    Parameters
    ----------
    candidates : list of Candidate
        The first is the untouched wrapper, the reference.
    """

    def __init__(self, candidates: list[Candidate], options: Options) -> None:
        import torch

        self.candidates = candidates
        self.original = candidates[0].call
        self.options = options
        self._threads = torch.get_num_threads
        self._tensor = torch.Tensor
        self._plans: dict[Any, Call] = {}
        self._dead = False
        self._effects = partial(operator_effects, pure=options.pure)

    def __call__(self, args: list[Any]) -> Any:
        if self._dead:
            return self.original(args)
        key = (self._threads(), *(a if isinstance(a, _PLAIN) else type(a) for a in args if not isinstance(a, self._tensor)))
        plan = self._plans.get(key)
        if plan is not None:
            return plan(args)
        if len(self._plans) >= self.options.shapes:
            return self.original(args)
        if not _recording.acquire(blocking=False):
            return self.original(args)
        try:
            plan = self.original if self._dead else self._plans.get(key)  # another thread may have been first
            if plan is None:
                return self._first(key, args)
        finally:
            _recording.release()
        return plan(args)

    def _first(self, key: Any, args: list[Any]) -> Any:
        import torch

        begin = time.monotonic()
        name = graph_name(self.candidates[0].path)
        row = reports.GraphReport(name, threads=self._threads(), path=str(self.candidates[0].path))
        try:
            reason = refusal(self.candidates[0].path.read_text(), args)
            if reason:
                raise PeakmemError(reason)
            wrapper = self.candidates[0].read()
        except (PeakmemError, OSError) as error:
            self._leave(row, error)
            return self.original(args)
        from peakmem_inductor.arguments import Watch, copies, special, written_inputs
        from peakmem_inductor.record import NotRecorded, RecordingFailed, record_profile

        try:
            hidden = hidden_effects(wrapper, self._effects)
            row.unchecked = "verify is off" if not self.options.verify else ""
            if hidden:
                row.unchecked = f"it calls {hidden}, which may have effects that no argument shows, so nothing ran twice"
            written = written_inputs(wrapper, self._effects)
            keep = [isinstance(a, torch.nn.Parameter) and n not in written for n, a in zip(wrapper.inputs, args)]
            again = not hidden and (self.options.verify or len(self.candidates) > 1)
            backup = copies(args, keep) if again else None
            watch = Watch(wrapper.inputs, args)
        except Exception as error:
            self._leave(row, RuntimeError(f"the arguments cannot be copied ({type(error).__name__}: {error})"))
            return self.original(args)
        state = torch.get_rng_state()
        try:
            result, profile = record_profile(wrapper, self.candidates[0].namespace, args, self._effects)
        except (RuntimeMissing, NotRecorded) as error:
            self._leave(row, error)
            return self.original(args)
        except RecordingFailed as error:
            self._leave(row, error)
            return error.result
        after_state = torch.get_rng_state()
        try:
            row.before = profile.measured_peak
            folder = self.options.dump or settings.dump_folder
            if folder is not None:
                from peakmem_inductor.dumping import write_dump

                write_dump(folder, row.name, wrapper, profile)
            odd = next(filter(None, map(special, result)), "")
            if odd:
                raise PeakmemError(f"a result is {odd}, which peakmem can neither copy nor compare")
            found = self._search(wrapper, profile, result, backup, keep, state)
            self._decide(key, row, found, result, watch, backup, keep, state)
        except PeakmemError as error:
            self._leave(row, error)
        except Exception as error:  # our own mistake must never break the user's program
            self._leave(row, RuntimeError(f"{type(error).__name__}: {error}"))
            log.debug("peakmem failed on %s", name, exc_info=True)
        finally:
            torch.set_rng_state(after_state)
            row.seconds = time.monotonic() - begin
            reports.add(row)
        return result

    # -- ordering --------------------------------------------------------------------------------------------

    def _search(
        self, wrapper: Wrapper, profile: Profile, result: Any, backup: list[Any] | None, keep: list[bool], state: Any
    ) -> _Found:
        first = order_candidate(self.candidates[0], wrapper, profile, self.options)
        best = first
        if backup is None:
            return best
        for candidate in self.candidates[1:]:
            try:
                other = self._record(candidate, wrapper, profile, result, backup, keep, state)
            except Exception as error:
                log.info("candidate %s: %s", candidate.name, error)
                continue
            if other is not None and other.after < best.after:
                best = other
        return best

    def _record(
        self,
        candidate: Candidate,
        reference: Wrapper,
        profile: Profile,
        result: Any,
        backup: list[Any],
        keep: list[bool],
        state: Any,
    ) -> _Found | None:
        """Record and order another candidate; None if it is the same wrapper or computes other bits."""
        import torch

        from peakmem_inductor.arguments import copies, first_difference
        from peakmem_inductor.record import record_profile

        wrapper = candidate.read()
        if wrapper.inputs != reference.inputs or wrapper.source == reference.source or hidden_effects(wrapper, self._effects):
            return None
        args = copies(backup, keep)
        mine = owned(reference, profile)
        held = [a for n, a in zip(wrapper.inputs, args) if n not in mine]
        torch.set_rng_state(state)
        other, own = record_profile(wrapper, candidate.namespace, args, self._effects)
        del held
        difference = first_difference(result, other, "output")
        if difference:
            log.info("candidate %s: %s has other bits", candidate.name, difference)
            return None
        return order_candidate(candidate, wrapper, own, self.options)

    # -- deciding --------------------------------------------------------------------------------------------

    def _decide(
        self,
        key: Any,
        row: reports.GraphReport,
        found: _Found,
        result: Any,
        watch: Any,
        backup: list[Any] | None,
        keep: list[bool],
        state: Any,
    ) -> None:
        row.candidate = found.candidate.name
        row.statements = len(found.graph.program)
        row.bound, row.after, row.certified = found.bound, found.after, found.certified
        row.data_dependent = found.graph.data_dependent
        row.certificate = found.certificate.to_json() if found.certificate is not None else None
        row.program = found.graph.program
        row.macs = sum(s.cost for s in found.graph.program.statements)
        if row.before is not None and found.after >= row.before:
            row.state, row.after, row.measured = "kept", row.before, row.before
            row.certified = row.certified and row.before == found.bound
            row.candidate = "default"
            if found.bound > row.before:  # a branch of control flow that frees inside itself, which is not modelled
                row.bound, row.certified, row.certificate = None, False, None
                row.reason = "the wrapper as it stands needs less than its statements as modelled"
            self._plans[key] = self.original
            row.unchecked = ""
            return
        again = found.recomputed
        if again is not None:
            row.reruns, row.extra_macs = again.reruns, again.extra_macs
            row.exact, row.certified = again.exact, False
        permuted, _ = realize(found.graph, found.order, again.expansion if again is not None else None)
        if not row.unchecked:
            assert backup is not None
            problem = self._verify(row, permuted, found, result, watch, backup, keep, state)
            if problem:
                row.state, row.reason = "restored", problem
                row.after, row.certified = row.before, False
                self._dead = True
                warn(f"{row.name}: {problem}; the original program was restored")
                return
        elif self.options.verify:
            warn(
                f"{row.name}: permuted without a check: {row.unchecked}; operators that have none can be named: "
                "options={'pure': ['namespace::name']}",
                row.unchecked,
            )
        row.state = "permuted" if again is None else "recomputed"
        self._plans[key] = compile_call(permuted, found.candidate.namespace, row.name)

    def _verify(
        self,
        row: reports.GraphReport,
        permuted: Wrapper,
        found: _Found,
        result: Any,
        watch: Any,
        backup: list[Any],
        keep: list[bool],
        state: Any,
    ) -> str:
        """Run the permuted program on copies; why it must not be used, or the empty string."""
        import torch

        from peakmem_inductor.arguments import Watch, copies, differing_storage, first_difference, written_inputs
        from peakmem_inductor.record import measure

        mine = owned(permuted, found.profile)
        written = written_inputs(permuted, self._effects) | written_inputs(found.candidate.read(), self._effects)
        # What a run neither writes nor frees needs no second copy.
        keep = [k or not (n in mine or n in written) for n, k in zip(permuted.inputs, keep)]
        args = copies(backup, keep)
        held = [a for n, a in zip(permuted.inputs, args) if n not in mine]
        beside = Watch(permuted.inputs, args)
        torch.set_rng_state(state)
        try:
            other, row.measured = measure(permuted, found.candidate.namespace, args, poison=True)
        except Exception as error:
            return f"the permuted program failed ({type(error).__name__}: {error})"
        problem = first_difference(result, other, "output") or differing_storage(watch.alive(), beside.alive())
        del held
        row.identical = not problem
        if problem:
            if not self._repeats(found.candidate, backup, keep, state, mine):
                forms = found.wrapper.forms
                race = "threads race" in found.wrapper.once.values() or any(races(f.target) for f in forms if f.target)
                one = "; with torch.set_num_threads(1) it may repeat" if race and self._threads() > 1 else ""
                return f"{problem} has other bits even in two runs of the original program, so nothing can be compared{one}"
            return f"{problem} has other bits in the permuted program"
        if row.measured != found.after:
            return f"the permuted program took {row.measured:,} bytes, modelled were {found.after:,}"
        return ""

    def _repeats(self, candidate: Candidate, backup: list[Any], keep: list[bool], state: Any, mine: set[str]) -> bool:
        """Whether the unpermuted program gives the same bits twice."""
        import torch

        from peakmem_inductor.arguments import Watch, copies, differing_storage, first_difference

        seen = []
        for _ in range(2):
            args = copies(backup, keep)
            wrapper = candidate.read()
            held = [a for n, a in zip(wrapper.inputs, args) if n not in mine]
            watch = Watch(wrapper.inputs, args)
            torch.set_rng_state(state)
            seen.append((candidate.call(args), watch.alive()))
            del held
        (a, x), (b, y) = seen
        return not (first_difference(a, b, "output") or differing_storage(x, y))

    def _leave(self, row: reports.GraphReport, error: Exception) -> None:
        row.state, row.reason, row.unchecked = "left alone", str(error), ""
        self._dead = True
        log.info("%s: %s", row.name, error)
        warn(f"{row.name} runs as Inductor wrote it: {error}", str(error))
        if row.before is None:
            reports.add(row)


def order_candidate(candidate: Candidate, wrapper: Wrapper, profile: Profile, options: Options) -> _Found:
    """Order one recorded wrapper with the core, and recompute within the budget, if there is one.

    The certificate, which the checker has accepted, speaks of orders without copies.
    """
    from peakmem.ordering import order_program

    graph = build_graph(wrapper, profile)
    ordering = order_program(graph.program, time_limit=options.time_limit)
    entry = graph.program.entry_bytes
    certified = False
    if ordering.certificate is not None:
        certified = ordering.certificate.lower_bound == ordering.peak
    order, peak, recomputed = ordering.orders[""], ordering.peak, None
    if options.max_extra_macs is not None:
        recomputed = recompute_program(
            graph.program, order, max_extra_macs=options.max_extra_macs, cap=options.cap, time_limit=options.time_limit
        )
        if recomputed is not None:
            order, peak = recomputed.order, recomputed.peak
    return _Found(
        candidate=candidate,
        wrapper=wrapper,
        profile=profile,
        graph=graph,
        order=order,
        after=peak - entry,
        recomputed=recomputed,
        bound=ordering.lower_bound - entry,
        certified=certified,
        certificate=ordering.certificate,
    )


def compile_call(wrapper: Wrapper, namespace: Mapping[str, Any], name: str) -> Call:
    """``call`` of a wrapper's text as a function over the globals of a module that is already loaded."""
    import ast

    space = dict(namespace)
    module = ast.Module([wrapper.call], [])
    exec(compile(module, f"<peakmem {name}>", "exec"), space)
    function: Any = space["call"]
    if wrapper.call.args.args[0].arg == "self":

        def call(args: list[Any]) -> Any:
            return function(None, args)

        return call
    result: Call = function
    return result


def graph_name(path: Path) -> str:
    """Inductor's name of a graph, from the first lines of its wrapper (``0_backward``), else the file's."""
    try:
        with path.open() as file:
            for _, line in zip(range(5), file):
                if line.startswith("# AOT ID:"):
                    return line.split("'")[1]
    except (OSError, IndexError, UnicodeDecodeError):
        pass
    return path.stem


def owned(wrapper: Wrapper, profile: Profile) -> set[str]:
    """Arguments that nobody but the wrapper holds."""
    freed = {*profile.freed, *(profile.names[n].storage for n in wrapper.donated)}
    return {n for n in wrapper.inputs if n in profile.names and profile.names[n].storage in freed}
