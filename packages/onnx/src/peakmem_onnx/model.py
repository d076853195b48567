"""`OnnxModel`: a model that ONNX Runtime has optimized, whose nodes peakmem permutes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from peakmem.cost import cost_report
from peakmem.errors import InputError, UsageError
from peakmem.files import write_atomically
from peakmem.frontend import Progress, Verification
from peakmem.liveness import peak_of
from peakmem.program import Program
from peakmem.schedule import Schedule

from peakmem_onnx import protos
from peakmem_onnx.build import Whole, build_program, replay
from peakmem_onnx.facts import Facts
from peakmem_onnx.graph import Graph, read_graph
from peakmem_onnx.orders import default_order, priority_order
from peakmem_onnx.rewrite import expand, permute

if TYPE_CHECKING:
    from peakmem.ordering import Ordering

QUANTITY = "activation_bytes"


@dataclass(frozen=True)
class Origin:
    """Where a model comes from and how it is run.

    Attributes
    ----------
    path : Path or None
    source : bytes
        The file as given with its dimensions fixed, for the direct session; empty for a file that peakmem wrote.
    level : str
        Level at which ONNX Runtime optimized it.
    threads : int
    external : str
        Folder of the external data, empty without any.
    feeds : tuple
        Input sets for running.
    recipe : dict
        What the metadata entry says.
    blank : bool
        Whether the names of unread outputs are removed.
    blanked : tuple of str
        Those that were.
    version : str
        Of ONNX Runtime.
    """

    path: Path | None
    source: bytes
    level: str
    threads: int
    external: str
    feeds: tuple[dict[str, Any], ...]
    recipe: dict[str, Any]
    blank: bool
    blanked: tuple[str, ...]
    version: str


@dataclass(frozen=True, eq=False)
class OnnxModel:
    """See `peakmem.frontend.Model`."""

    proto: Any
    facts: Facts
    origin: Origin
    digest: str
    notes: tuple[str, ...] = ()
    frontend: str = "onnx"
    quantity: str = QUANTITY
    input_rule: str = "graph inputs belong to the caller and are not counted; graph outputs live to the end"

    @property
    def path(self) -> Path | None:
        return self.origin.path

    @cached_property
    def graph(self) -> Graph:
        """The nodes in file order, which the recipe runs as written."""
        return read_graph(self.proto.graph)

    @cached_property
    def whole(self) -> Whole:
        return build_program(self.graph, self.facts)

    @property
    def program(self) -> Program:
        return self.whole.program

    @cached_property
    def predicted_bytes(self) -> int:
        """Peak of the activations under the recipe, replayed for the order written."""
        return max(replay(self.graph, self.facts, priority_order), default=0)

    def default_bytes(self, *, reuse: bool) -> int:
        """Peak when a session with the default execution order runs this file, arena and patterns off."""
        return max(replay(self.graph, self.facts, default_order, reuse=reuse), default=0)

    def best_numbering(self, *others: OnnxModel) -> tuple[tuple[int, ...], int]:
        """Numbering of the nodes for default sessions, starting from this file's and ``others``'; and its bytes."""
        from peakmem_onnx.portable import best_numbering

        index = {node.name: node.index for node in self.graph.nodes}
        starts = [[index[node.name] for node in other.graph.nodes if node.name in index] for other in others]
        return best_numbering(self, [s for s in starts if len(s) == len(index)])

    def portable(self, *others: OnnxModel) -> OnnxModel:
        """The file for sessions that cannot be told to run a file's order (C, C++, JavaScript): best found.

        It takes ``default_bytes(reuse=True)`` in a session with the default order and memory reuse.
        """
        proto = type(self.proto)()
        proto.CopyFrom(self.proto)
        permute(proto.graph, {"": self.best_numbering(*others)[0]})
        return self._with(proto, self.facts)

    def serialized(self) -> bytes:
        """The file's bytes."""
        try:
            data: bytes = self.proto.SerializeToString()
        except Exception:
            raise InputError(
                f"{self.path}: the optimized model exceeds the 2 GiB of one protobuf; keep its weights external and "
                "use --ort-level none"
            ) from None
        return data

    def schedule(self, ordering: Ordering, *, deadline: float | None = None) -> Schedule:
        """Make every order a fixed point of the priority-based order (Shape and Size run first)."""
        orders = {}
        levels = {"": self.graph, **dict(_bodies(self.graph))}
        changed = []
        for path, order in ordering.orders.items():
            graph = levels.get(path)
            if graph is None or len(graph.nodes) != len(order):  # a body that is not charged keeps its order
                continue
            orders[path] = priority_order(graph, order)
            if orders[path] != tuple(order):
                changed.append(path or "the graph")
        notes = []
        if changed:
            notes.append("Shape and Size operators were moved up in " + ", ".join(changed) + ", as ONNX Runtime does")
        undecided = self.whole.undecided
        if undecided:
            notes.append(
                f"{len(undecided)} operators run in place only when they are the last reader ({', '.join(undecided[:3])}"
                f"{', ...' if len(undecided) > 3 else ''}); the model charges them as if they never did, so peaks and "
                "bounds speak of that charge, and the realized bytes may be lower"
            )
        charged = peak_of(self.program)
        if charged > self.predicted_bytes:
            notes.append(
                f"for the given order the model charges {charged} bytes and the runtime takes {self.predicted_bytes} "
                "(operators that run in place, or outputs of bodies that come late); peaks and bounds speak of the charge"
            )
        return Schedule(orders=orders, notes=tuple(notes))

    def apply(self, schedule: Schedule) -> OnnxModel:
        """Permute the nodes (after inserting the copies of an expansion); the result is modelled from scratch.

        Raises
        ------
        Refused
            When an expansion cannot be expressed (see `peakmem_onnx.rewrite.expand`).
        """
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
        for path, level in (("", graph), *_bodies(graph)):
            order = priority_order(level)
            if order != tuple(range(len(level.nodes))):
                if schedule.expansion is None:
                    raise InputError(f"the order of {path or 'the graph'} is not one that ONNX Runtime runs as written")
                permute(proto.graph, {path: order})
        return self._with(proto, facts)

    def _with(self, proto: Any, facts: Facts) -> OnnxModel:
        data = proto.SerializeToString()
        digest = "sha256:" + hashlib.sha256(data).hexdigest()
        return OnnxModel(proto, facts, self.origin, digest=digest, notes=self.notes)

    def save(self, path: Path, *, force: bool = False) -> None:
        """Write the model; one with external data only into the folder where that data lies.

        The external data is neither read nor copied, and ONNX Runtime refuses locations outside the model's folder.
        """
        if self.origin.external and path.parent.resolve() != Path(self.origin.external):
            files = protos.external_files(self.proto)
            raise UsageError(
                f"{path}: the weights stay in {files[0]} and must lie beside the model; write it into {self.origin.external}"
            )
        write_atomically(path, self.serialized(), source=self.path, force=force)

    def verify(self, other: OnnxModel, *, progress: Progress | None = None) -> Verification:
        """Run both under the recipe; see `peakmem_onnx.measure.verify`."""
        from peakmem_onnx.measure import verify

        return verify(self, other, progress=progress)

    def extras(self, other: OnnxModel, verification: Verification | None) -> dict[str, Any]:
        """Scenarios, MACs, the settings."""
        from peakmem_onnx.scenarios import scenarios

        report = cost_report(other.program)
        return {
            "ort_level": self.origin.level,
            "threads": self.origin.threads,
            "onnxruntime": self.origin.version,
            "blanked_outputs": list(self.origin.blanked),
            "macs": report.macs,
            "uncounted": report.uncounted,
            "in_place_undecided": list(self.whole.undecided),
            "scenarios": scenarios(self, other, verification),
            "snippet": other.snippet(),
        }

    def snippet(self, path: str | None = None) -> str:
        """Python lines that open a session which reaches the predicted bytes."""
        from peakmem_onnx.deploy import snippet

        return snippet(path or (str(self.path) if self.path else "model.onnx"), threads=self.origin.threads)


def _bodies(graph: Graph, prefix: str = "") -> list[tuple[str, Graph]]:
    found = []
    for v, node in enumerate(graph.nodes):
        for k, (_, body) in enumerate(node.bodies):
            path = f"{prefix}{v}/{k}"
            found.extend(_bodies(body, path + "/"))
            found.append((path, body))
    return found


