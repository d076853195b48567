"""What stands in for ``call``: records the first call, orders, verifies, and runs the better program from then on.

A first call runs the untouched wrapper and records it. Where an order needs less, the permuted program is checked
against it on the same arguments, one after the other, so that no call needs more memory than the untouched wrapper: at
once where no run frees or writes an argument, else at the next call, which sets those arguments aside in a file. Results
are compared by digests, and the caller gets those of the untouched wrapper, bit by bit. A program that calls what may
have effects of its own never runs twice, so its permuted form takes over without that.
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
from peakmem_inductor import settings, steps
from peakmem_inductor.building import build_graph
from peakmem_inductor.devices import computes, misaligned, random_state, set_random_state
from peakmem_inductor.effects import hidden_effects, operator_effects, races
from peakmem_inductor.emitting import realize
from peakmem_inductor.forms import Wrapper
from peakmem_inductor.graph import Graph
from peakmem_inductor.pooling import Pooled, add_pool
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
    target_peak: int | None = None
    least: bool = False
    pool: str = ""


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
    pooled: Pooled | None = None
    unpooled: str = ""

    def changes(self, before: int) -> bool:
        """Whether what was found shall run in place of a program that needs ``before`` bytes."""
        return self.pooled is not None or self.after < before

    def realized(self) -> Wrapper:
        """The text of the program in its order, with its pool."""
        return self.pooled.wrapper if self.pooled is not None else self.ordered()[0]

    def ordered(self) -> tuple[Wrapper, Profile]:
        """The program in its order, and its profile."""
        return realize(self.graph, self.order, self.recomputed.expansion if self.recomputed is not None else None)

    def add_pool(self, limit: int | None) -> None:
        """Give the program a pool, unless it would need more than ``limit`` bytes so."""
        try:
            pooled = add_pool(*self.ordered(), fixed_sizes=True)
        except PeakmemError as error:
            self.unpooled = str(error)
            return
        if limit is not None and pooled.predicted > limit:
            self.unpooled = f"with a pool of {pooled.size:,} bytes it would need {pooled.predicted:,}, more than without"
            return
        self.pooled, self.after = pooled, pooled.predicted
        self.certified = self.certified and self.after == self.bound


@dataclass
class _Pending:
    """A better order that the next call of the same sizes checks."""

    row: reports.GraphReport
    found: _Found
    tries: int = 0


TRIES = 3
"""Calls that may find the caller holding what the recorded call let go, before the original program stays for good."""
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
        self.kind = graph_name(candidates[0].path).partition("_")[2]
        self.options = options
        self._threads = torch.get_num_threads
        self._tensor = torch.Tensor
        self._plans: dict[Any, Call] = {}
        self._pending: dict[Any, _Pending] = {}
        self._dead = False
        self._warm = "empty_strided_cuda(" not in _text(candidates[0].path)
        self._effects = partial(operator_effects, pure=options.pure)

    def __call__(self, args: list[Any]) -> Any:
        if steps.current is None:
            return self._call(args)
        with steps.phase(self.kind):
            return self._call(args)

    def _call(self, args: list[Any]) -> Any:
        if self._dead:
            return self.original(args)
        key = (self._threads(), *(a if isinstance(a, _PLAIN) else type(a) for a in args if not isinstance(a, self._tensor)))
        plan = self._plans.get(key)
        if plan is not None:
            return plan(args)
        if len(self._plans) + len(self._pending) >= self.options.shapes and key not in self._pending:
            return self.original(args)
        if not _recording.acquire(blocking=False):
            return self.original(args)
        try:
            plan = self.original if self._dead else self._plans.get(key)  # another thread may have been first
            if plan is None:
                return self._second(key, args) if key in self._pending else self._first(key, args)
        finally:
            _recording.release()
        return plan(args)

    def _first(self, key: Any, args: list[Any]) -> Any:
        if not self._warm:  # the first call tunes kernels, which takes memory that no later call takes
            self._warm = True
            return self.original(args)
        begin = time.monotonic()
        name = graph_name(self.candidates[0].path)
        row = reports.GraphReport(name, threads=self._threads(), path=str(self.candidates[0].path))
        try:
            reason = refusal(self.candidates[0].path.read_text(), args)
            if reason:
                raise PeakmemError(reason)
            wrapper = self.candidates[0].read()
            for form in wrapper.forms:
                if form.kind == "align" and misaligned(args[wrapper.inputs.index(form.target)]):
                    raise PeakmemError(f"argument {form.target} does not begin at a multiple of 16 bytes, so every call copies it")
        except (PeakmemError, OSError) as error:
            self._leave(row, error)
            return self.original(args)
        from peakmem_inductor.arguments import Again, special, written_inputs
        from peakmem_inductor.record import NotRecorded, RecordingFailed, record_profile

        try:
            hidden = hidden_effects(wrapper, self._effects)
            row.unchecked = "verify is off" if not self.options.verify else ""
            if hidden:
                row.unchecked = f"it calls {hidden}, which may have effects that no argument shows, so nothing ran twice"
            written = written_inputs(wrapper, self._effects)
            again = Again(wrapper.inputs, args)
            storages = steps.argument_storages(args)
            steps.saw_backward(row, wrapper.inputs, args)
        except Exception as error:
            self._leave(row, RuntimeError(f"the arguments cannot be looked at ({type(error).__name__}: {error})"))
            return self.original(args)
        state = random_state()
        try:
            result, profile = record_profile(wrapper, self.candidates[0].namespace, args, self._effects)
        except (RuntimeMissing, NotRecorded) as error:
            self._leave(row, error)
            return self.original(args)
        except RecordingFailed as error:
            self._leave(row, error)
            return error.result
        after_state = random_state()
        seen = None
        try:
            row.before = profile.measured_peak
            steps.saw_forward(row, storages, result)
            folder = self.options.dump or settings.dump_folder
            if folder is not None:
                from peakmem_inductor.dumping import write_dump

                write_dump(folder, row.name, wrapper, profile)
            odd = next(filter(None, map(special, result)), "")
            if odd:
                raise PeakmemError(f"a result is {odd}, which peakmem can neither run again nor compare")
            found = order_candidate(self.candidates[0], wrapper, profile, self.options)
            describe(row, found)
            alone = len(self.candidates) == 1 or bool(hidden)
            if alone and (row.unchecked or not found.changes(profile.measured_peak or 0)):
                self._take(key, row, found)
            elif not written and again.hold():
                seen = again.seen(result)
            else:
                row.state = "planned"
                self._pending[key] = _Pending(row, found)
        except PeakmemError as error:
            self._leave(row, error)
        except Exception as error:  # our own mistake must never break the user's program
            self._leave(row, RuntimeError(f"{type(error).__name__}: {error}"))
            log.debug("peakmem failed on %s", name, exc_info=True)
        try:
            if seen is not None:
                del result  # what runs now must not need more than the wrapper did, and gives the same
                try:
                    result = self._settle(key, row, found, again, state, seen)
                finally:
                    set_random_state(after_state)
            return result
        finally:
            row.seconds = time.monotonic() - begin
            reports.add(row)

    def _second(self, key: Any, args: list[Any]) -> Any:
        """Check what an earlier call planned, with the arguments that runs free or write set aside in a file."""
        from peakmem_inductor.arguments import Again, special, written_inputs

        pending = self._pending[key]
        row, found = pending.row, pending.found
        if any(map(special, args)):
            return self.original(args)
        begin = time.monotonic()
        try:
            wrapper = found.wrapper
            written = set(written_inputs(wrapper, self._effects))
            for candidate in self.candidates[1:]:
                try:
                    written |= written_inputs(candidate.read(), self._effects)
                except PeakmemError as error:
                    log.info("candidate %s: %s", candidate.name, error)
            again = Again(wrapper.inputs, args)
            again.set_aside(args, owned(wrapper, found.profile), written)
        except Exception as error:
            self._leave(row, RuntimeError(f"the arguments cannot be set aside for the check ({type(error).__name__}: {error})"))
            return self.original(args)
        state = random_state()
        result = self.original(again.take())
        after_state = random_state()
        del self._pending[key]
        try:
            seen = again.seen(result)
        except Exception as error:
            self._leave(row, RuntimeError(f"the results cannot be read ({type(error).__name__}: {error})"))
            return result
        del result
        try:
            result = self._settle(key, row, found, again, state, seen, pending.tries)
            if row.state == "planned":
                pending.tries += 1
                self._pending[key] = pending
        finally:
            set_random_state(after_state)
            row.seconds += time.monotonic() - begin
            reports.add(row)
        return result

    # -- deciding --------------------------------------------------------------------------------------------

    def _settle(self, key: Any, row: reports.GraphReport, found: _Found, again: Any, state: Any, reference: Mapping[str, bytes], tries: int = TRIES) -> Any:
        """Choose what runs from now on, and run it or the original on ``again``; returns the results for the caller,
        which have the bits of ``reference``, or are those of the original wrapper."""
        result = None
        try:
            found = self._search(found, again, state, reference)
            if row.unchecked or not found.changes(row.before or 0):
                self._take(key, row, found)
            else:
                result = self._check(key, row, found, again, state, reference, tries)
        except Exception as error:  # our own mistake must never break the user's program
            self._leave(row, error if isinstance(error, PeakmemError) else RuntimeError(f"{type(error).__name__}: {error}"))
            log.debug("peakmem failed on %s", row.name, exc_info=True)
        if result is None:
            set_random_state(state)
            result = self.original(again.take())
        return result

    def _search(self, first: _Found, again: Any, state: Any, reference: Mapping[str, bytes]) -> _Found:
        """The best of all candidates, each recorded on the same arguments."""
        best = first
        for candidate in self.candidates[1:]:
            try:
                other = self._record(candidate, first, again, state, reference)
            except Exception as error:
                log.info("candidate %s: %s", candidate.name, error)
                continue
            if other is not None and other.after < best.after:
                best = other
        return best

    def _record(self, candidate: Candidate, first: _Found, again: Any, state: Any, reference: Mapping[str, bytes]) -> _Found | None:
        """Record and order another candidate; None if it is the same wrapper or computes other bits."""
        from peakmem_inductor.arguments import difference, written_inputs
        from peakmem_inductor.record import record_profile

        wrapper = candidate.read()
        if wrapper.inputs != first.wrapper.inputs or wrapper.source == first.wrapper.source or hidden_effects(wrapper, self._effects):
            return None
        if written_inputs(wrapper, self._effects) - written_inputs(first.wrapper, self._effects) and not again.aside:
            return None  # nothing that it writes could be brought back
        if first.profile.device != "cpu":
            candidate.call(again.take())  # tunes its kernels
        set_random_state(state)
        result, profile = record_profile(wrapper, candidate.namespace, again.take(), self._effects)
        differs = difference(reference, again.seen(result)) if computes(profile.device) else ""
        if differs:
            log.info("candidate %s: %s has other bits", candidate.name, differs)
            return None
        return order_candidate(candidate, wrapper, profile, self.options)

    def _take(self, key: Any, row: reports.GraphReport, found: _Found, permuted: Wrapper | None = None) -> None:
        """From now on, run a program in its new order, or the original where that needs no more."""
        describe(row, found)
        if row.before is not None and not found.changes(row.before):
            row.state, row.reason, row.after, row.measured = "kept", "", row.before, row.before
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
        if row.unchecked and self.options.verify:
            warn(
                f"{row.name}: permuted without a check: {row.unchecked}; operators that have none can be named: "
                "options={'pure': ['namespace::name']}",
                row.unchecked,
            )
        permuted = permuted or found.realized()
        row.state, row.reason = ("recomputed" if again is not None else "pooled" if found.pooled is not None else "permuted"), ""
        self._plans[key] = compile_call(permuted, found.candidate.namespace, row.name)

    def _check(self, key: Any, row: reports.GraphReport, found: _Found, again: Any, state: Any, reference: Mapping[str, bytes], tries: int) -> Any:
        """Run the permuted program on the same arguments, and take it if bits and bytes are right; returns its results, or
        None where they are not those of the original."""
        from peakmem_inductor.arguments import difference
        from peakmem_inductor.record import measure

        permuted = found.realized()
        problem, result = "", None
        set_random_state(state)
        try:
            result, row.measured = measure(permuted, found.candidate.namespace, again.take(), poison=True)
        except Exception as error:
            problem = f"the permuted program failed ({type(error).__name__}: {error})"
        else:
            differs = ""
            if computes(found.profile.device):
                differs = difference(reference, again.seen(result))
                row.identical = not differs
            else:
                row.uncompared = f"{found.profile.device} runs no kernels, so there are no bits"
            if differs:
                result = None
                problem = self._other_bits(differs, found, again, state, reference)
            elif row.measured != found.after:
                if tries < TRIES and owned(permuted, found.profile) & set(again.alive()):
                    row.state, row.measured = "planned", None  # the caller holds more than when it was recorded: later
                    return result
                problem = f"the permuted program took {row.measured:,} bytes, modelled were {found.after:,}"
        if problem:
            describe(row, found)
            row.state, row.reason = "restored", problem
            row.after, row.certified = row.before, False
            self._dead = True
            warn(f"{row.name}: {problem}; the original program was restored")
        else:
            self._take(key, row, found, permuted)
        return result

    def _other_bits(self, differs: str, found: _Found, again: Any, state: Any, reference: Mapping[str, bytes]) -> str:
        """What to say about a run of other bits: whether the unpermuted program gives the same bits twice."""
        from peakmem_inductor.arguments import difference

        set_random_state(state)
        if not difference(reference, again.seen(self.original(again.take()))):
            return f"{differs} has other bits in the permuted program"
        forms = found.wrapper.forms
        race = "threads race" in found.wrapper.once.values() or any(races(f.target) for f in forms if f.target)
        one = "; with torch.set_num_threads(1) it may repeat" if race and self._threads() > 1 else ""
        return f"{differs} has other bits even in two runs of the original program, so nothing can be compared{one}"

    def _leave(self, row: reports.GraphReport, error: Exception) -> None:
        row.state, row.reason, row.unchecked = "left alone", str(error), ""
        self._dead = True
        log.info("%s: %s", row.name, error)
        warn(f"{row.name} runs as Inductor wrote it: {error}", str(error))
        reports.add(row)


def describe(row: reports.GraphReport, found: _Found) -> None:
    """What a report says of an order, whether or not it runs."""
    row.candidate = found.candidate.name
    row.statements = len(found.graph.program)
    row.bound, row.after, row.certified = found.bound, found.after, found.certified
    row.data_dependent = found.graph.data_dependent
    row.pool, row.unpooled = (str(found.pooled) if found.pooled is not None else ""), found.unpooled
    row.certificate = found.certificate.to_json() if found.certificate is not None else None
    row.program, row.order = found.graph.program, found.order
    row.enlarged = found.recomputed.expansion.program if found.recomputed is not None else None
    row.macs = sum(s.cost for s in found.graph.program.statements)


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
    found = _Found(
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
    if options.pool:
        found.add_pool(profile.measured_peak if options.pool == "fits" else None)
    return found


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


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


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
