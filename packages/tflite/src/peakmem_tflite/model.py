"""A TFLite file as a peakmem `Model`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from peakmem.frontends import Model, Progress, Structure, Verification
from peakmem.model import Expansion, InputError, Orders, Program, Schedule
from peakmem.ordering.others import other_orders
from peakmem.system.files import write_atomically
from peakmem.system.sizes import in_bytes

from peakmem_tflite import planning
from peakmem_tflite.arena import allocations, head, simulate
from peakmem_tflite.build import Mapped, buffer_names, build, main_entry_bytes
from peakmem_tflite.enlarge import enlarge
from peakmem_tflite.graph import Graph
from peakmem_tflite.reader import read
from peakmem_tflite.rewrite import permute, unplannable, with_plan
from peakmem_tflite.settings import Settings
from peakmem_tflite.static import check_enlarged, check_rewrite

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
    """

    graph: Graph
    settings: Settings = field(default_factory=Settings)
    file: Path | None = None
    remarks: tuple[str, ...] = ()

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
    def mapped(self) -> Mapped:
        """The program and which subgraph each body is."""
        return build(self.graph, self.settings.target, self.path.name if self.path else "")

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
        return tuple(result)

    @cached_property
    def predicted_bytes(self) -> int:
        return head(self.graph, self.settings.target, None, self.graph.plan)

    def arena(self) -> list[tuple[Literal["buffer", "workspace"], str, int, int]]:
        """Where the interpreter puts the main subgraph's tensors and scratch buffers; see `peakmem.frontends.Model`."""
        buffers = allocations(self.graph, self.settings.target)
        _, offsets = simulate(buffers, self.graph.plan)
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
        return self._planned(ordering.orders, ordering.lower_bound, deadline)

    def _planned(self, orders: Orders, bound: int, deadline: float | None = None) -> Schedule:
        """The best schedule at or near ``orders``; no order has a lower live peak than ``bound`` bytes."""
        if self._shared:
            return Schedule(self.given)
        wanted = {path: tuple(order) for path, order in orders.items()}
        args = (self.graph, self.mapped, self.settings.target, self.given, wanted)
        reason = "" if self.settings.no_plan else unplannable(self.graph)
        notes = (f"no plan was made: {reason}",) if reason else ()
        if self.settings.no_plan or reason:
            floor = max(bound, main_entry_bytes(self.graph))
            outcome = planning.without_plan(*args, floor, deadline)
        else:
            outcome = planning.with_plan(*args, other_orders(self.program, wanted), deadline)
        if outcome.head >= self.predicted_bytes:
            return Schedule(self.given, notes=notes)
        return self.named(outcome, notes)

    def named(self, outcome: planning.Outcome, notes: tuple[str, ...] = ()) -> Schedule:
        """An outcome of planning as a schedule, which knows buffers by their names."""
        if outcome.offsets is None:
            return Schedule(outcome.orders, notes=notes)
        offsets = {
            name: outcome.offsets[base + t]
            for k, base in enumerate(self.graph.bases)
            for t, name in enumerate(buffer_names(self.graph, k))
            if outcome.offsets[base + t] >= 0
        }
        if len(self.graph.subgraphs) > 1:
            notes += ("early releases of TFLite Micro misread plans of several subgraphs; measure on the device",)
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
                planned = enlarged._planned({**enlarged.given, **schedule.orders}, 0)
                return replace(enlarged.apply(planned), remarks=planned.notes)
            return enlarged.apply(replace(schedule, expansion=None))
        for path, order in schedule.orders.items():
            (self.program if not path else dict(self.program.bodies())[path]).validate_order(order)
        orders = planning.by_subgraph(self.mapped, schedule.orders)
        moved = any(tuple(order) != tuple(range(len(order))) for order in orders.values())
        if not moved and schedule.offsets is None:
            return replace(self)
        data = permute(self.graph, orders)
        # A plan that was in the file was made for another order: it is replaced or dropped.
        data = with_plan(replace(self.graph, data=data), self._offsets(schedule.offsets))
        graph = check_rewrite(self.graph, data, orders, self.settings.target)
        return TfliteModel(graph, self.settings, None)

    def enlarged(self, expansion: Expansion) -> TfliteModel:
        """The file with the copies of an expansion, its operators in the order of the enlarged program, no plan."""
        if self._shared:
            raise InputError("a subgraph runs from several places; nothing can be recomputed in such a model")
        data = enlarge(self.graph, self.program, expansion)
        result = TfliteModel(check_enlarged(self.graph, data, expansion.statement_of), self.settings, None)
        wanted, made = expansion.program, result.program
        for which in (lambda p: [(b.size, b.kind, b.pinned) for b in p.buffers],
                      lambda p: [(s.op, s.reads, s.writes, s.workspace) for s in p.statements]):  # fmt: skip
            if which(wanted) != which(made):
                raise InputError("the enlarged model is not the enlarged program (nothing was written; please report it)")
        return result

    def _offsets(self, named: Mapping[str, int] | None) -> list[int] | None:
        if named is None:
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
        from peakmem_tflite.structure import compare_graphs

        return compare_graphs(self.graph, self.same_kind(other).graph)

    def verify(self, other: Model, *, progress: Progress | None = None) -> Verification:
        """Run both on the chosen interpreter, in child processes; see `peakmem_tflite.measure`."""
        from peakmem_tflite.measure import Subject, verify

        subjects = [
            Subject(str(model.path or name), model.graph, model.predicted_bytes)
            for model, name in ((self, "the given model"), (self.same_kind(other), "the rewritten model"))
        ]
        return verify(subjects[0], subjects[1], self.settings, progress=progress)

    def extras(self, other: Model, verification: Verification | None) -> dict[str, Any]:
        """Which operators moved, and the measured arenas."""
        from peakmem_tflite.describe import moved

        other = self.same_kind(other)
        return {
            "target": self.settings.target,
            "planned": other.graph.plan is not None,
            "moved": moved(self.graph, other.graph),
            **(verification.details if verification is not None else {}),
        }

    def snippet(self) -> str:
        """C++ for a device: the arena's size and the operators the resolver must hold."""
        from peakmem_tflite.describe import snippet

        return snippet(self.graph, self.path.stem if self.path else "model", self.predicted_bytes)
