"""A TFLite file as a peakmem `Model`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from peakmem.frontends import Model, Progress, SharedArena, Structure, Verification
from peakmem.frontends.splitting import Split, Splittable
from peakmem.model import Expansion, InputError, Orders, Program, Refused, RuntimeFailed, RuntimeMissing, Schedule
from peakmem.ordering import order_program
from peakmem.ordering.others import other_orders
from peakmem.report.words import change
from peakmem.system import clock
from peakmem.system.files import write_atomically
from peakmem.system.sizes import human, in_bytes

from peakmem_tflite import board, devices, joins, levers, overlays, planning
from peakmem_tflite.arena import allocations, head, planned_variables, simulate, untouched
from peakmem_tflite.build import Mapped, buffer_names, build, main_entry_bytes
from peakmem_tflite.enlarge import enlarge
from peakmem_tflite.graph import Graph
from peakmem_tflite.reader import read
from peakmem_tflite.rewrite import permute, unplannable, with_plan, without_untouched
from peakmem_tflite.scratch import rounded
from peakmem_tflite.settings import Settings
from peakmem_tflite.static import check_emptied, check_enlarged, check_rewrite, overlaps
from peakmem_tflite.targets import Target, name_of

if TYPE_CHECKING:
    from peakmem.ordering import Ordering


@dataclass(frozen=True)
class TfliteModel(Model):
    """One file, read.

    Attributes
    ----------
    graph : Graph
    settings : Settings
    file : Path or None
        Where it was read from.
    remarks : tuple of str
        Notes of the schedule, of a model that was planned while it was made.
    inherited : Target or None
        Kernels of the file that this one was made from.
    origin : Graph or None
        The file that this one is split from.
    """

    graph: Graph
    settings: Settings = field(default_factory=Settings)
    file: Path | None = None
    remarks: tuple[str, ...] = ()
    inherited: Target | None = None
    origin: Graph | None = None

    @classmethod
    def from_bytes(cls, data: bytes, *, path: Path | None = None, settings: Settings | None = None) -> TfliteModel:
        """Read a model; `InputError` names what is wrong with it."""
        settings = settings or Settings()
        where = str(path) if path is not None else "model"
        graph = read(data, where)
        if graph.external and settings.runtime == "tflm":
            raise InputError(
                f"{where}: keeps constants outside the flatbuffer, where TFLite Micro does not look for them; "
                "convert it with constants inside, or use --runtime litert"
            )
        return cls(graph, settings, path)

    @property
    def frontend(self) -> str:
        return "tflite"

    @property
    def path(self) -> Path | None:
        return self.file

    @property
    def data(self) -> bytes:
        """The file's bytes."""
        return self.graph.data

    @cached_property
    def kernels(self) -> Target:
        """Whose scratch is charged: that which was listed or named, else that which a device's log shows."""
        if self.inherited is not None:
            return self.inherited
        if self.settings.scratch is not None:
            return self.settings.scratch.listed(self.graph)
        if self.settings.named or not self.settings.logs:
            return self.settings.target
        return self.settings.logs[0].target(self.graph)

    @cached_property
    def judged(self) -> Graph:
        """The file as the runtime that it is for takes it: without its plan, where none is wanted, or none with buffers on top of others."""
        chosen = self.settings
        if self.graph.plan is None or not (chosen.no_plan or (chosen.overlay is False and overlaps(self.graph, self.kernels, None))):
            return self.graph
        return read(with_plan(self.graph, None), str(self.path or "model"))

    @cached_property
    def lean(self) -> Graph:
        """The file to rewrite: without memory for tensors that nothing touches, where they may be dropped."""
        if not self.settings.drop_untouched or not untouched(self.graph):
            return self.graph
        return check_emptied(self.graph, without_untouched(self.graph))

    @cached_property
    def mapped(self) -> Mapped:
        """The program and which subgraph each body is."""
        return build(self.graph, self.kernels, self.path.name if self.path else "", self.permitted, self.joins)

    @property
    def plain(self) -> Program:
        """The program whose buffers are tensors, each by itself, and not parts of them; see `joins`."""
        return build(self.graph, self.kernels, self.path.name if self.path else "").program if self.joins else self.program

    @cached_property
    def joins(self) -> tuple[joins.Family, ...]:
        """Tensors that may lie inside others."""
        if self.permitted is None or not self.permitted.joins:
            return ()
        return joins.families(self.graph, overlays.pairs(self.graph, self.permitted))

    @cached_property
    def permitted(self) -> overlays.Permit | None:
        """Which outputs may lie on dying inputs: none where no plan is to be made that could put them there."""
        chosen = self.settings
        if chosen.overlay is False or chosen.no_plan or self._shared or unplannable(self.graph) or planned_variables(self.judged):
            return None
        found = overlays.permit(self.kernels, named=chosen.named, every=chosen.overlay is True, inputs=chosen.overlay_inputs)
        return replace(found, joins=chosen.join_in_place)

    @property
    def program(self) -> Program:
        return self.mapped.program

    @cached_property
    def digest(self) -> str:
        return "sha256:" + hashlib.sha256(self.data).hexdigest()

    @property
    def quantity(self) -> str:
        return "arena_head"

    @property
    def input_rule(self) -> str:
        return "inputs are resident from entry and freed after their last use; outputs stay to the end"

    @cached_property
    def notes(self) -> tuple[str, ...]:
        result = [*self.remarks]
        if self._shared:
            result.append("a subgraph runs from several places, which TFLite Micro cannot plan; the model is left as it is")
        entry = main_entry_bytes(self.graph)
        if entry > self.program.entry_bytes:
            result.append(f"no order needs less than {in_bytes(entry)}: inputs that nothing reads are resident at the entry")
        result += overlays.notes(self.judged, self.permitted)
        idle = max((rounded(t.size) for _, _, t in untouched(self.graph)), default=0)
        if idle and not self.settings.drop_untouched:
            result.append(f"tensors that no operator touches take {in_bytes(idle)} or more of the arena; --drop-untouched gives them none")
        result += devices.kernel_notes(self.judged, self.kernels, self.settings, self.predicted_bytes)
        return tuple(result)

    @cached_property
    def board(self) -> board.Arena:
        """What the file needs on a 32-bit device."""
        return board.arena(self.judged, self.kernels)

    @property
    def advice(self) -> tuple[str, ...]:
        """How large an arena to set aside, and where its parts go."""
        where = board.memories(self.settings.memories)
        others = board.other_kernels(self.judged, self.board) if self._any_kernels else ()
        return (*board.sentences(self.board), *others, *(board.placing_sentences(self.judged, self.kernels, where) if where else ()))

    @cached_property
    def predicted_bytes(self) -> int:
        return head(self.judged, self.kernels, None, self.judged.plan)

    def arena(self) -> list[tuple[Literal["buffer", "workspace"], str, int, int]]:
        """Where the interpreter puts the main subgraph's tensors and scratch buffers; see `peakmem.frontends.Model`."""
        buffers = allocations(self.graph, self.kernels, None, self.judged.plan)
        _, offsets = simulate(buffers, self.judged.plan)
        names = buffer_names(self.graph, 0)
        return [
            ("buffer", names[b.tensor], at, b.size) if b.tensor >= 0 else ("workspace", self.program.statements[b.operator].name, at, b.size)
            for b, at in zip(buffers, offsets)
            if b.subgraph == 0 and b.first >= 0
        ]

    @property
    def _shared(self) -> bool:
        return any(count > 1 for count in self.graph.callers)

    @cached_property
    def given(self) -> dict[str, tuple[int, ...]]:
        """Orders of the file."""
        orders = {path: tuple(range(len(body))) for path, body in self.program.bodies()}
        orders[""] = tuple(range(len(self.program)))
        return orders

    def schedule(self, ordering: Ordering, *, deadline: float | None = None) -> Schedule:
        """Orders and offsets; see `peakmem_tflite.planning`. Never worse than the file as it is."""
        schedule, size = self._planned(ordering.orders, ordering.lower_bound, deadline, guarded=True)
        if ordering.certificate is None or size != ordering.lower_bound:
            return schedule
        # Neither order nor plan can do better: what else could.
        orders = planning.by_subgraph(self.mapped, schedule.orders)
        whole = self.origin is None and isinstance(self.kernels, str) and not self._shared
        bands = self.splittable() if whole else None
        best = levers.Best(self.program, self.lean, orders, self.kernels, size, self.permitted, bands)
        return replace(schedule, notes=(*schedule.notes, *levers.sentences(best)))

    @property
    def _any_kernels(self) -> bool:
        """Whether nobody said which kernels the board has."""
        return self.kernels == "reference" and not self.settings.named

    def _planned(
        self, orders: Orders, bound: int, deadline: float | None = None, *, guarded: bool = False
    ) -> tuple[Schedule, int]:
        """The best schedule at or near ``orders`` and its head; no order has a lower live peak than ``bound`` bytes.

        ``guarded``: and none that other kernels make larger than this file, where nobody named the board's.
        """
        same = Schedule(self.given, {} if self.judged is not self.graph else None)
        if self._shared:
            return same, self.predicted_bytes
        if self.judged.plan is not None and planned_variables(self.graph):
            said = "the plan in the file places variable tensors, so it is left as it is; --no-plan drops it"
            return Schedule(self.given, notes=(said,)), self.predicted_bytes
        wanted = {path: tuple(order) for path, order in orders.items()}
        reason = "" if self.settings.no_plan else unplannable(self.graph)
        notes: tuple[str, ...] = (f"no plan was made: {reason}",) if reason else ()

        def planned(kernels: Target, near: devices.Near = "best") -> planning.Outcome:
            tried: list[planning.Outcome] = []
            for families in (self.joins, ()) if self.joins else ((),):  # parts must lie side by side, which can cost more than it saves
                mine = kernels == self.kernels and families == self.joins
                mapped = self.mapped if mine else build(self.graph, kernels, permitted=self.permitted, families=families)
                at: dict[str, tuple[int, ...]] = self.given if near == "given" else wanted
                if near == "own" or families != self.joins:
                    at = ordered(mapped.program)
                args = (self.lean, mapped, kernels, self.given, at)
                if self.settings.no_plan or reason:
                    return planning.without_plan(*args, max(bound if mine else 0, main_entry_bytes(self.graph)), deadline)
                tried.append(planning.with_plan(*args, others(mapped.program, at), deadline))
                if tried[-1].head <= bound:
                    break
            return min(tried, key=lambda outcome: outcome.head)

        def ordered(program: Program) -> dict[str, tuple[int, ...]]:
            left = None if deadline is None else max(0.1, deadline - clock.now())
            return {path: tuple(order) for path, order in order_program(program, time_limit=left).orders.items()}

        def others(program: Program, at: Mapping[str, tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
            """Where overlays cannot be placed as well as hoped, the best order without them may do better."""
            if program.has_overlays:
                yield ordered(program.without_overlays())[""]
            yield from other_orders(program, at)

        outcome: planning.Outcome | None
        if guarded and self._any_kernels:
            outcome, warned = devices.never_worse(self.judged, self.mapped, planned, self.predicted_bytes, origin=self.origin)
            notes += warned
        else:
            outcome = planned(self.kernels)
        if outcome is None or outcome.head >= self.predicted_bytes:
            fault = "" if self.judged.plan is None else overlaps(self.judged, self.kernels, self.permitted)
            if fault:
                notes += (f"the plan in the file is kept, with what is not permitted here: {fault}; --no-overlay drops it",)
            return replace(same, notes=notes), self.predicted_bytes
        return self.named(outcome, notes), outcome.head

    def named(self, outcome: planning.Outcome, notes: tuple[str, ...] = ()) -> Schedule:
        """An outcome of planning as a schedule, which knows buffers by their names; no names drop a plan in the file."""
        if outcome.offsets is None:
            return Schedule(outcome.orders, {} if self.graph.plan is not None else None, notes=notes)
        offsets = {
            name: outcome.offsets[base + t]
            for k, base in enumerate(self.graph.bases)
            for t, name in enumerate(buffer_names(self.graph, k))
            if outcome.offsets[base + t] >= 0
        }
        if len(self.graph.subgraphs) > 1:
            notes += ("early releases of TFLite Micro misread plans of several subgraphs; measure on the device",)
        orders = planning.by_subgraph(self.mapped, outcome.orders)
        notes += overlays.sentences(self.lean, self.permitted, orders, outcome.offsets)
        notes += joins.sentences(self.joins, outcome.offsets)
        return Schedule(outcome.orders, offsets, notes=notes)

    def apply(self, schedule: Schedule) -> TfliteModel:
        """The file rewritten and checked by `peakmem_tflite.static`.

        Recomputed copies become operators and tensors of the main subgraph. Such a schedule comes without offsets,
        since `schedule` speaks of the program as it is; then they are planned here, as `schedule` does, at the orders
        given or, where the arena is smaller there, near them.
        """
        if schedule.expansion is not None:
            enlarged = self.enlarged(schedule.expansion)
            if schedule.offsets is None:
                planned, _ = enlarged._planned({**enlarged.given, **schedule.orders}, 0)
                result = enlarged.apply(planned)
                said = devices.warning(self.judged, result.judged) if self._any_kernels else ()
                return replace(result, remarks=(*planned.notes, *said))
            return enlarged.apply(replace(schedule, expansion=None))
        for path, order in schedule.orders.items():
            (self.program if not path else dict(self.program.bodies())[path]).validate_order(order)
        orders = planning.by_subgraph(self.mapped, schedule.orders)
        moved = any(tuple(order) != tuple(range(len(order))) for order in orders.values())
        if not moved and schedule.offsets is None and self.lean is self.graph:
            return replace(self)
        data = permute(self.lean, orders)
        # A plan that was in the file was made for another order: it is replaced or dropped.
        data = with_plan(replace(self.lean, data=data), self._offsets(schedule.offsets))
        made = self._made(check_rewrite(self.lean, data, orders, self.kernels, self.permitted))
        if self.origin is None:
            return made
        warned = devices.warning(self.origin, made.judged) if self._any_kernels else ()
        return replace(made, remarks=(*self.remarks, *warned))

    def _made(self, graph: Graph) -> TfliteModel:
        """What was made from this file."""
        return TfliteModel(graph, self.settings, inherited=self.kernels)

    def enlarged(self, expansion: Expansion) -> TfliteModel:
        """The file with the copies of an expansion, its operators in the order of the enlarged program, no plan."""
        if self._shared:
            raise InputError("a subgraph runs from several places; nothing can be recomputed in such a model")
        if self.joins:
            raise InputError("operators that run twice and tensors that lie inside others are not planned together; leave --join-in-place out")
        data = enlarge(self.graph, self.program, expansion)
        result = self._made(check_enlarged(self.graph, data, expansion.statement_of))
        wanted, made = expansion.program, result.program
        for which in (lambda p: [(b.size, b.kind, b.pinned) for b in p.buffers],
                      lambda p: [(s.op, s.reads, s.writes, s.workspace) for s in p.statements]):  # fmt: skip
            if which(wanted) != which(made):
                raise InputError("the enlarged model is not the enlarged program (nothing was written; please report it)")
        return result

    def _offsets(self, named: Mapping[str, int] | None) -> list[int] | None:
        if not named:
            return None
        unknown = dict(named)
        result = [-1] * self.graph.tensor_count
        for k, base in enumerate(self.graph.bases):
            for t, name in enumerate(buffer_names(self.graph, k)):
                result[base + t] = unknown.pop(name, -1)
        if unknown:
            raise InputError(f"plan: no tensor is called {next(iter(unknown))!r}")
        return result

    def save(self, path: str | Path, *, force: bool = False) -> None:
        write_atomically(path, self.data, source=self.path, force=force)

    def structure(self, other: Model) -> Structure:
        from peakmem_tflite.splitcheck import compare_files

        return compare_files(self.graph, self.same_kind(other).graph)

    def verify(self, other: Model, *, progress: Progress | None = None) -> Verification:
        """`verify_within` without a limit but that for a run that does not end; see `peakmem_tflite.measure`."""
        return self.verify_within(other, None, progress=progress)

    def verify_within(self, other: Model, seconds: float | None, *, progress: Progress | None = None) -> Verification:
        """Run both on the chosen interpreter, in child processes; see `peakmem_tflite.measure`.

        The interpreter has the portable kernels. Where others are charged the head is that of a device: predicted, and
        compared with what a device's log says of either file.
        """
        from peakmem_tflite.measure import Subject, verify

        other = self.same_kind(other)
        found = verify(
            Subject(str(self.path or "the given model"), self.judged),
            Subject(str(other.path or "the rewritten model"), other.judged),
            self.settings,
            seconds=seconds,
            progress=progress,
        )
        kernels = self._shared_kernels(other)
        return devices.on_device(found, (self.judged, other.judged), kernels, self.settings.logs)

    def _shared_kernels(self, other: TfliteModel) -> Target:
        """Kernels that both files are to be judged by: a log may be of either."""
        try:
            return self.kernels
        except InputError:
            try:
                return other.kernels
            except InputError:
                pass
            raise

    def extras(self, other: Model, verification: Verification | None) -> dict[str, Any]:
        """Which operators moved, and the measured arenas."""
        from peakmem_tflite.describe import moved

        other = self.same_kind(other)
        return {
            "target": name_of(self.kernels),
            "devices": devices.table(self.judged, other.judged),
            "board": {"before": self._on_board(), "after": other._on_board()},
            "planned": other.graph.plan is not None,
            "moved": moved(self.graph, other.graph),
            **(verification.details if verification is not None else {}),
        }

    def splittable(self) -> Splittable:
        """Its main subgraph; see `peakmem_tflite.bands`.

        Raises
        ------
        Refused
            Where a subgraph runs from several places, or scratch is known of the operators of this very file alone.
        """
        from peakmem_tflite.bands import TfliteBands

        if self._shared:
            raise Refused("a subgraph runs from several places; such a model is left as it is")
        if not isinstance(self.kernels, str):
            raise Refused(f"scratch is known from {self.kernels.name} for the operators of this file, and a split file has others; name kernels with --target")
        joined = self.permitted is not None and self.permitted.joins
        return TfliteBands(self.graph, self.plain, self.kernels, (lambda split: self.apply_split(split).program) if joined else None, self.permitted)

    def apply_split(self, split: Split) -> TfliteModel:
        """The file split, its operators in the given order of the split program, no plan; see `peakmem_tflite.splitwrite`."""
        from peakmem_tflite.bands import TfliteBands
        from peakmem_tflite.splitwrite import check_program, write

        graph, twice = write(TfliteBands(self.graph, self.plain, self.kernels), split)
        said = f"the file grows from {in_bytes(len(self.data))} to {in_bytes(len(graph.data))}"
        said += f"; {in_bytes(twice)} of it are weights that stand there cut as well as whole" if twice else ""
        made = replace(self._made(graph), origin=self.judged, remarks=(said,))
        check_program(split, made.plain)
        return made

    def snippet(self) -> str:
        """C++ for a device: the arena's size and the operators the resolver must hold."""
        from peakmem_tflite.describe import snippet

        where = board.memories(self.settings.memories)
        best = board.placings(self.judged, self.kernels, where)[0][0] if where else None
        return snippet(self.judged, self.path.stem if self.path else "model", self.board, best, where)

    def c_array(self, name: str, *, language: Literal["c", "c++"] = "c++") -> str:
        """The file's bytes as C source."""
        from peakmem_tflite.carray import c_array

        return c_array(self.data, name, self.digest, language)

    def share(self, others: Sequence[Model], *, measure: bool = True, progress: Progress | None = None) -> SharedArena:
        """One arena for several files, as interpreters on one allocator have it; see `peakmem_tflite.sharing`.

        Heads are measured; the interpreter of the Python package makes an allocator for each model, so the sum is not.
        """
        from peakmem_tflite import sharing

        models = [self, *(self.same_kind(other) for other in others)]
        names = [str(m.path or f"model {i}") for i, m in enumerate(models)]
        identifiers = sharing.identifiers([m.path.stem if m.path else "model" for m in models])
        tenants = [sharing.Tenant(n, c, m.judged, m.kernels) for n, c, m in zip(names, identifiers, models)]
        found = sharing.share(tenants)
        notes, failures = [], []
        measured: list[int] | None = None
        if measure:
            from peakmem_tflite.measure import heads

            (progress or (lambda _: None))("measuring the heads")
            try:
                measured = heads([m.judged for m in models])
            except (RuntimeFailed, RuntimeMissing) as error:
                notes.append(f"heads were not measured: {error}")
        if measured is not None:
            predicted = [head(m.judged, "reference", None, m.judged.plan) for m in models]
            for name, size, own in zip(names, measured, predicted):
                if size != own:
                    failures.append(f"{name}: the measured head is {in_bytes(size)}, predicted were {in_bytes(own)}")
            notes.append(
                f"heads with the portable kernels measured on TFLite Micro: {', '.join(map(in_bytes, measured))}; "
                "its Python package makes an allocator for each model, so the shared arena is not measured"
            )
        separate = f"{len(models)} arenas of {in_bytes(found.apart)}"
        return SharedArena(
            f"one arena of {human(found.size)} instead of {separate} {change(found.apart, found.size)}: "
            f"head {in_bytes(found.head)} + tails {in_bytes(sum(found.tails))}, estimated for a 32-bit device; kTensorArenaSize = {found.size}",
            sharing.sentences(tenants, found), tuple(notes), {**found.to_json(names), "measured_heads": measured},
            sharing.source(tenants, found), tuple(failures),
        )  # fmt: skip

    def _on_board(self) -> dict[str, Any]:
        where = board.memories(self.settings.memories)
        if not where:
            return self.board.to_json()
        rows, counted = board.placings(self.judged, self.kernels, where)
        names = [m.name for m in where]
        told = [
            {"head": names[r.head], "tail": names[r.tail], "bytes": dict(zip(names, r.need)), "fits": r.fits, "slow_traffic": r.slow}
            for r in rows
        ]
        return {**self.board.to_json(), "traffic": {"head": counted.head, "tail": counted.tail}, "memories": told}
