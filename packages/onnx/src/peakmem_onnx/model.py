"""`OnnxModel`: a model that ONNX Runtime has optimized, whose nodes peakmem permutes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from peakmem.frontends import Model, Progress, Structure, Verification
from peakmem.frontends.splitting import Split, Splittable, Unequal
from peakmem.model import InputError, Refused, RuntimeFailed, RuntimeMissing, Schedule, UsageError, cost_report, peak_of
from peakmem.ordering import Ordering
from peakmem.system.files import write_atomically

from peakmem_onnx import protos
from peakmem_onnx.artifact import Artifact
from peakmem_onnx.facts import Facts, collect_shapes
from peakmem_onnx.feeds import shape_texts
from peakmem_onnx.graph import Graph, read_graph
from peakmem_onnx.orders import default_order, file_order
from peakmem_onnx.planned import best_order, planned_regions
from peakmem_onnx.planner import plan
from peakmem_onnx.portable import Numbered, best_numbering, numbering_of
from peakmem_onnx.rewrite import expand, permute
from peakmem_onnx.runtime import scratch
from peakmem_onnx.untied import untie
from peakmem_onnx.ways import ARENA, NATIVE, PORTABLE, RECIPE, REPLAY


@dataclass(frozen=True, eq=False)
class OnnxModel(Artifact, Model):
    """See `peakmem.frontends.Model`; its attributes are those of `peakmem_onnx.artifact.Artifact`."""

    frontend = "onnx"
    input_rule = "graph inputs belong to the caller and are not counted; graph outputs live to the end"

    @property
    def digest(self) -> str:
        return self.sha256

    @property
    def notes(self) -> tuple[str, ...]:
        return self.remarks

    @property
    def quantity(self) -> str:
        return self.way.quantity

    @property
    def bounded(self) -> bool:
        """See `peakmem.frontends.Model`."""
        return self.way.bounded

    def schedule(self, ordering: Ordering, *, deadline: float | None = None) -> Schedule:
        """Make every order one that the model's way runs.

        With the recipe an order becomes a fixed point of the priority-based order (Shape and Size run first). For a
        default session a numbering is sought, from the given order and the best one; see `peakmem_onnx.portable`.
        """
        if self.way.numbered:
            return self._numbered(ordering)
        orders = {}
        levels = {"": self.graph, **dict(_bodies(self.graph))}
        changed = []
        for path, order in ordering.orders.items():
            graph = levels.get(path)
            if graph is None or len(graph.nodes) != len(order):  # a body that is not charged keeps its order
                continue
            orders[path] = self.way.order(graph, order)
            if orders[path] != tuple(order):
                changed.append(path or "the graph")
        notes = []
        if changed:
            notes.append("Shape and Size operators were moved up in " + ", ".join(changed) + ", as ONNX Runtime does")
        if self.way is ARENA and self.has_bodies:
            notes.append("the order is that of the least live peak; the arena is as large as recorded runs of all sets of inputs need")
        elif self.way is ARENA and len(ordering.orders.get("", ())) == len(self.graph.nodes):
            orders[""], size = best_order(self.graph, self.facts, [orders[""], file_order(self.graph)])
            notes.append(
                f"{size:,} bytes are the smallest arena found in which a run after the first takes nothing from the system, by a local "
                "search over orders; the live peak is a bound for it, not its size"
            )
        elif self.way is RECIPE and self.origin.recipe.get("deploy") == "auto" and len(ordering.orders.get("", ())) == len(self.graph.nodes):
            orders[""] = self._smallest_region(orders[""])
        undecided = self.whole.undecided
        if undecided:
            notes.append(
                f"{len(undecided)} operators run in place only when they are the last reader ({', '.join(undecided[:3])}"
                f"{', ...' if len(undecided) > 3 else ''}); the model charges them as if they never did, so peaks and "
                "bounds speak of that charge, and the realized bytes may be lower"
            )
        charged = peak_of(self.program)
        if self.way is not ARENA and charged > self.predicted_bytes:
            notes.append(
                f"for the given order the model charges {charged} bytes and the runtime takes {self.predicted_bytes} "
                "(operators that run in place, or outputs of bodies that come late); peaks and bounds speak of the charge"
            )
        return Schedule(orders=orders, notes=tuple(notes))

    def _smallest_region(self, order: tuple[int, ...]) -> tuple[int, ...]:
        """Of the orders with the same peaks, the one found for which a planned arena is smallest; the file may run in one."""
        if self.has_bodies:
            return order

        def peaks(one: Sequence[int]) -> tuple[int, int]:
            return peak_of(self.program, one), self.bytes_under(self.way, lambda graph: one)

        least = peaks(order)
        effort = min(60, 6000 // max(1, len(order)))
        return best_order(self.graph, self.facts, [order], effort, allowed=lambda one: all(a <= b for a, b in zip(peaks(one), least, strict=True)))[0]

    def _numbered(self, ordering: Ordering) -> Schedule:
        starts = [ordering.orders.get("", ())]
        sized = self.way.planned and not self.has_bodies

        def best(*, reuse: bool) -> tuple[tuple[int, ...], int]:
            found = best_numbering(self.graph, self.facts, starts, reuse=reuse)
            if not sized:
                return found
            given = self.numbering or numbering_of(self.graph, file_order(self.graph))
            return best_order(self.graph, self.facts, [found[0], given], numbered=True, reuse=reuse)

        numbering, found = best(reuse=True)
        untied: Facts | None = None
        freely, least = best(reuse=False)
        kept = ""
        # Of values in bodies the sessions do not tell all shapes, so what their storage shares is not known.
        if least < found and not any(node.bodies for node in self.graph.nodes):
            order = default_order(self.graph, freely)
            loose = self._untied(order)
            taken = (
                sum(planned_regions(loose.graph, loose.facts, file_order(loose.graph), reuse=True))
                if sized
                else loose.bytes_under(PORTABLE, lambda graph: file_order(graph) if graph is loose.graph else default_order(graph))
            )
            if taken < found:
                kept = (
                    f"; declared shapes are named by storage, so that default sessions keep no dead storage for another tensor (with the "
                    f"shapes as they were: {found:,})"
                )
                numbering, found, untied = freely, taken, loose.facts
        charged = {path: len(program) for path, program in self.program.bodies()}
        orders = {path: default_order(b) for path, b in _bodies(self.graph) if charged.get(path) == len(b.nodes)}
        placed = "; the requests of a run are then placed in a block" if self.way is REPLAY else ""
        if self.way.planned and self.has_bodies:
            placed = "; the arena is as large as recorded runs of all sets of inputs need"
        what = "the smallest arena found in which a run after the first takes nothing from the system," if sized else "the best found for default sessions"
        note = (
            f"{found:,} bytes are {what} by a local search over node numberings; no bound is "
            f"known for them, and what is proved of the live peak says nothing about them{placed}{kept}"
        )
        return Numbered({"": default_order(self.graph, numbering), **orders}, notes=(note,), numbering=numbering, untied=untied)

    def _untied(self, order: Sequence[int], facts: Facts | None = None) -> OnnxModel:
        """The file with its nodes in ``order`` and declared shapes as in `peakmem_onnx.untied`; its facts are asked for unless given."""
        proto = type(self.proto)()
        proto.CopyFrom(self.proto)
        permute(proto.graph, {"": order})
        graph, values = read_graph(proto.graph), self.facts.values[()]
        untie(proto, graph, values, plan(graph, values, file_order(graph), [0] * len(graph.nodes)).root)
        shapes = {name: list(array.shape) for name, array in self.origin.feeds[0].items()}
        origin = replace(self.origin, recipe={**self.origin.recipe, "shapes": shapes})
        protos.write_marker(proto, origin.recipe)
        if facts is None:
            session = {"threads": origin.threads, "external": origin.external, "limit": origin.limit}
            with scratch() as folder:
                facts = collect_shapes(
                    proto, graph, origin.feeds, session=session, folder=folder, path=self.path or folder, arena=self.way.planned
                )
        return replace(self, origin=origin)._with(proto, facts)

    def apply(self, schedule: Schedule) -> OnnxModel:
        """Permute the nodes (after inserting the copies of an expansion); the result is modelled from scratch.

        Raises
        ------
        Refused
            When an expansion cannot be expressed (see `peakmem_onnx.rewrite.expand`), or when no numbering is known
            with which a default session runs the order.
        """
        if self.way.numbered:
            if schedule.expansion is not None:
                raise Refused("--deploy portable: recomputed copies need a session that runs the file's order; use python")
            return self._renumbered(schedule)
        proto = type(self.proto)()
        proto.CopyFrom(self.proto)
        facts = self.facts
        if schedule.expansion is None:
            permute(proto.graph, schedule.orders)
        else:
            permute(proto.graph, schedule.expansion.body_orders_before(schedule.orders))
            enlarged = range(len(schedule.expansion.program))
            repeats = expand(
                proto, self.program, self.whole.root, schedule.expansion, schedule.orders.get("", tuple(enlarged))
            )
            if self.origin.blank:
                protos.blank_unread(proto)
            facts = facts.repeated(repeats)
        graph = read_graph(proto.graph)
        orders = {path: self.way.order(level, None) for path, level in (("", graph), *_bodies(graph))}
        if any(order != tuple(range(len(order))) for order in orders.values()):
            if schedule.expansion is None:
                path = next(path for path, order in orders.items() if order != tuple(range(len(order))))
                raise InputError(f"the order of {path or 'the graph'} is not one that ONNX Runtime runs as written")
            permute(proto.graph, orders)  # all at once: moving a statement changes the paths of its bodies
        return self._with(proto, facts)

    def _renumbered(self, schedule: Schedule) -> OnnxModel:
        order = schedule.orders.get("", file_order(self.graph))
        numbering = schedule.numbering if isinstance(schedule, Numbered) else numbering_of(self.graph, order)
        if default_order(self.graph, numbering) != tuple(order):
            raise Refused("no numbering of the nodes is known with which a default session runs that order")
        place = {v: i for i, v in enumerate(order)}
        numbers = tuple(place[v] for v in numbering)
        if isinstance(schedule, Numbered) and schedule.untied is not None:
            loose = self._untied(order, schedule.untied)
            return loose._with(loose.proto, loose.facts, numbers)
        proto = type(self.proto)()
        proto.CopyFrom(self.proto)
        permute(proto.graph, {"": order})
        return self._with(proto, self.facts, numbers)

    def _with(self, proto: Any, facts: Facts, numbering: tuple[int, ...] = ()) -> OnnxModel:
        new = replace(self, proto=proto, facts=facts, given=False, numbering=numbering, written=[], regions=[], levelled={})
        return replace(new, sha256="sha256:" + hashlib.sha256(new.serialized()).hexdigest())

    @property
    def weights(self) -> tuple[Path, ...]:
        """Files with external data of the model that the user gave.

        A split has its weights inside, but those of the file it was made from are the user's all the same.
        """
        if not self.origin.external:
            return ()
        given = protos.import_onnx().load_model_from_string(self.origin.source) if self.origin.source else self.proto
        return tuple(Path(self.origin.external, name) for name in protos.external_files(given))

    @property
    def files(self) -> tuple[Path, ...]:
        return (*super().files, *self.weights)

    def save(self, path: str | Path, *, force: bool = False) -> None:
        """Write the model; one with external data only into the folder where that data lies.

        The external data is neither read nor copied, and ONNX Runtime refuses locations outside the model's folder.
        """
        path = Path(path)
        files = protos.external_files(self.proto)
        for weights in self.weights:
            if path.resolve() == weights.resolve() or (path.exists() and weights.exists() and path.samefile(weights)):
                raise UsageError(f"{path}: holds weights of the input, which peakmem never changes; name another output")
        if files and path.parent.resolve() != Path(self.origin.external):
            raise UsageError(
                f"{path}: the weights stay in {files[0]} and must lie beside the model; write it into {self.origin.external}"
            )
        write_atomically(path, self.serialized(), source=self.path, force=force)
        self.written.append(path)

    def structure(self, other: Model) -> Structure:
        """See `peakmem_onnx.structure.structure`."""
        from peakmem_onnx.structure import structure

        return structure(self, self.same_kind(other))

    def verify(self, other: Model, *, progress: Progress | None = None) -> Verification:
        """Run both in the model's way; see `peakmem_onnx.measure.verify`."""
        from peakmem_onnx.latency import told
        from peakmem_onnx.measure import verify
        from peakmem_onnx.splitcheck import in_bands

        other = self.same_kind(other)
        found = verify(self, other, progress=progress)
        return told(self, other, found, progress=progress) if in_bands(self, other) else found

    def observe(self, *, progress: Progress | None = None) -> tuple[str, dict[str, Any], tuple[str, ...]]:
        """The memory of processes that run this file with the user's own settings; see `peakmem_onnx.process`."""
        from peakmem_onnx import process, totals

        told: dict[str, Any] = {}
        notes: list[str] = []
        rows: list[process.Taken] = []
        try:
            if self.origin.all_levels:
                found, refused = totals.totals(self, progress=progress)
                told["levels"] = totals.document(found)
                notes += [*refused, *totals.sentences(found)]
            rows = process.measure_process(self, None, progress=progress)
        except (RuntimeFailed, RuntimeMissing) as error:
            notes.append(f"the memory of the process was not measured: {error}")
        if rows:
            told["process"] = process.document(rows)
        return process.headline(rows, new=False), told, (*notes, *process.sentences(rows))

    def extras(self, other: Model, verification: Verification | None) -> dict[str, Any]:
        """Scenarios, MACs, the settings."""
        from peakmem_onnx.scenarios import scenarios

        other = self.same_kind(other)
        report = cost_report(other.program)
        return {
            "ort_level": self.origin.level,
            "threads": self.origin.threads,
            "onnxruntime": self.origin.version,
            "inputs": {name: list(array.shape) for name, array in self.origin.feeds[0].items()},
            "blanked_outputs": list(self.origin.blanked),
            "weight_bytes": [self.weight_bytes, other.weight_bytes],
            "macs": report.macs,
            "uncounted": report.uncounted,
            "in_place_undecided": list(self.whole.undecided),
            "scenarios": scenarios(self, other, verification),
            "process": verification.details.get("process", []) if verification is not None else [],
            "levels": verification.details.get("levels", []) if verification is not None else [],
            "snippet": other.snippet(),
        }

    def splittable(self) -> Splittable:
        """The top level of the graph; see `peakmem_onnx.splitbands`.

        Raises
        ------
        Refused
            Where no session runs the order of the file.
        """
        from peakmem_onnx.splitwrite import bands_of

        if self.way is not RECIPE:
            raise Refused(f"{self.way.name} is not split yet; a session with the recipe's options is (--deploy python, --executor ort)")
        if self.facts.others:
            raise Refused("a file for several shapes is not split; give one set of inputs")
        return bands_of(self)

    def apply_split(self, split: Split) -> OnnxModel:
        """The file split, and judged by a run; see `peakmem_onnx.splitwrite`."""
        from peakmem_onnx.splitwrite import apply, culprits, judge

        proto, facts, joined = apply(self, split)
        made = self._with(proto, facts)
        try:
            judge(self, made, joined)
        except Refused as error:
            raise Unequal(str(error), culprits(self, made, split)) from None
        return made

    def snippet(self, path: str | None = None) -> str:
        """Source text that opens a session which reaches the predicted bytes, with the settings it needs.

        Python lines, or C++, C and JavaScript ones for a file made for default sessions; one text for C and C++ where places are
        planned, and for a planned arena with ``--snippet-language c``.
        """
        from peakmem_onnx.snippets import native_snippet, snippet

        if path is None:
            own = self.written[-1:] or ([self.path] if self.path and not self.origin.source else [])
            path = str(own[0]) if own else "model.opt.onnx"
        if self.way is REPLAY:
            return native_snippet(path, threads=self.origin.threads, deployed=self.places, shapes=shape_texts(self.one_of_each))
        if self.way is NATIVE:
            return native_snippet(path, threads=self.origin.threads, deployed=self.layout[0])
        way, size = (ARENA, self.regions[-1]) if self.regions else (self.way, self.layout[0] if self.way.planned else 0)
        return snippet(path, threads=self.origin.threads, way=way, chunk=size)


def _bodies(graph: Graph, prefix: str = "") -> list[tuple[str, Graph]]:
    found = []
    for v, node in enumerate(graph.nodes):
        for k, (_, body) in enumerate(node.bodies):
            path = f"{prefix}{v}/{k}"
            found.extend(_bodies(body, path + "/"))
            found.append((path, body))
    return found


