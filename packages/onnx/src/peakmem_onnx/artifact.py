"""What is known of one ONNX file that ONNX Runtime has optimized, and how it is run; nothing here rewrites or runs it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from peakmem.frontends.structure import Part, value_numbers
from peakmem.model import InputError, Program

from peakmem_onnx import protos
from peakmem_onnx.build import Ordered, Whole, build_program, replay
from peakmem_onnx.capi import library_of_the_wheel
from peakmem_onnx.facts import Facts, element_type
from peakmem_onnx.feeds import by_shape
from peakmem_onnx.graph import Graph, read_graph
from peakmem_onnx.orders import file_order
from peakmem_onnx.parts import part_of
from peakmem_onnx.planned import planned_regions, recorded_regions
from peakmem_onnx.replaying import Places, job, recorded
from peakmem_onnx.rewrite import permute
from peakmem_onnx.runtime import counting_library
from peakmem_onnx.ways import ARENA, NATIVE, PORTABLE, RECIPE, REPLAY, Way


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
    contrast : dict or None
        One more, for comparing values: other than the first in every input whose value is not fixed; None where all are.
    session : tuple of str
        The user's own settings, as given; see `peakmem_onnx.process.parse_session`.
    all_levels : bool
        Whether totals of all levels are told.
    inexact : bool
        Whether bytes other than predicted are a note and no failure.
    limit : int
        Seconds that a run may take.
    repeats : int
        How often the memory of processes is measured.
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
    contrast: dict[str, Any] | None = None
    session: tuple[str, ...] = ()
    all_levels: bool = False
    inexact: bool = False
    limit: int = 0
    repeats: int = 0


@dataclass(frozen=True, eq=False)
class Artifact:
    """One file with its facts.

    Attributes
    ----------
    proto : ModelProto
        Optimized, its nodes in the order of the Program: the file's, or the executed one where there is a ``numbering``.
    facts : Facts
    origin : Origin
    sha256 : str
        Of the file given, or of the bytes that `save` writes.
    remarks : tuple of str
        Notes.
    way : Way
        How the file is run: it decides which order is executed and which quantity is realized.
    given : bool
        Whether the nodes still stand in the order in which ONNX Runtime ran the source, not in one made by peakmem.
    numbering : tuple of int
        The file order of the top level, which makes a default session run the nodes as they stand here.
    written : list of Path
        Where it was saved.
    regions : list of int
        Bytes of the first region of the planned arena in which it was measured to make the smaller process; none or one.
    levelled : dict of str to Artifact
        The same source at other levels, as far as they were asked for.
    """

    proto: Any
    facts: Facts
    origin: Origin
    sha256: str
    remarks: tuple[str, ...] = ()
    way: Way = RECIPE
    given: bool = False
    numbering: tuple[int, ...] = ()
    written: list[Path] = field(default_factory=list, repr=False)
    regions: list[int] = field(default_factory=list, repr=False)
    levelled: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def path(self) -> Path | None:
        return self.origin.path

    @cached_property
    def graph(self) -> Graph:
        """The nodes as they stand in ``proto``."""
        return read_graph(self.proto.graph)

    @cached_property
    def part(self) -> Part:
        """What the file holds, to be compared with another one."""
        return part_of(self.declared, self.origin.external)

    @cached_property
    def declared(self) -> Any:
        """``proto`` with the shapes of inputs that it leaves open and its recipe has."""
        return protos.with_shapes(self.proto, self.origin.recipe.get("shapes", {}))

    @cached_property
    def value_numbers(self) -> dict[str, str]:
        """See `peakmem.frontends.structure.value_numbers`."""
        return value_numbers(self.part)

    @property
    def element_types(self) -> dict[str, tuple[int, list[int] | None]]:
        """ONNX element type of every value of the top level, and its shape where that never changes."""
        return {
            name: (element_type(value.element), _constant(value.planned)) for name, value in self.facts.values[()].items()
        }

    @cached_property
    def whole(self) -> Whole:
        return build_program(self.graph, self.facts, sharing=self.way.sharing, first=self.way in (RECIPE, ARENA))

    @property
    def session(self) -> dict[str, Any]:
        """What the child is told to run this file in its way."""
        more: dict[str, Any] = {}
        if self.way.planned:
            more["chunk"] = self.layout[0]
        if self.way is NATIVE:  # Python's sessions take the same, where there is nothing else
            more["capi"] = library_of_the_wheel() is not None
        elif self.way is REPLAY:
            more["replay"] = job(self.places, [group[0] for group in by_shape(self.origin.feeds)])
        return {**self.way.session, **more}

    @property
    def runs_source(self) -> bool:
        """Whether its order is run by a session that optimizes the source itself, as sessions do today."""
        return self.way is PORTABLE and self.given and bool(self.origin.source)

    @cached_property
    def places(self) -> tuple[Places, ...]:
        """Where the requests of a run of this file go, for every shape; recorded in a run with the first set of inputs of it."""
        session = {"level": "none", "threads": self.origin.threads, "external": self.origin.external}
        return recorded(self.serialized(), self.one_of_each, session)

    @property
    def one_of_each(self) -> list[dict[str, Any]]:
        """The first set of inputs of every shape."""
        return [self.origin.feeds[group[0]] for group in by_shape(self.origin.feeds)]

    @property
    def program(self) -> Program:
        return self.whole.program

    def executed(self, graph: Graph) -> tuple[int, ...]:
        """The order in which a level is run."""
        # Where the source is run, all levels stand as that was seen to run.
        if self.runs_source or (self.numbering and graph is self.graph):
            return file_order(graph)
        return self.way.order(graph, None)

    def intended(self, graph: Graph) -> tuple[int, ...]:
        """The order that a run is held to: `executed`, but with the recipe the one written, whatever a session prefers."""
        return file_order(graph) if self.way in (RECIPE, ARENA) else self.executed(graph)

    @cached_property
    def predicted_bytes(self) -> int:
        """Peak of the quantity over all shapes, replayed for the order executed."""
        if self.way.planned:
            return sum(self.layout)
        if self.way is REPLAY:
            return max(one.bytes for one in self.places) + max(one.outputs for one in self.places)
        return self.bytes_under(self.way, self.executed)

    @property
    def predicted_by_shape(self) -> list[int]:
        """`predicted_bytes` of runs of each shape alone; of an arena, the regions that would do for it, and where bodies are, do."""
        if self.way is REPLAY:
            return [one.total for one in self.places]
        if self.way.planned and self.has_bodies:
            return [self.predicted_bytes for _ in self.facts.shapes]
        if self.way.planned:
            order = self.executed(self.graph)
            each = [planned_regions(self.graph, replace(one, others=()), order, reuse=self.way.reuse) for one in self.facts.shapes]
            # What does for all shapes does for one; it is recorded, and a rule for one shape may find more.
            return [min(sum(regions), self.predicted_bytes) for regions in each]
        return [self.bytes_under(self.way, self.executed, one) for one in self.facts.shapes]

    @property
    def has_bodies(self) -> bool:
        """Whether there are nodes like If, Loop and Scan."""
        return any(node.bodies for node in self.graph.nodes)

    @cached_property
    def layout(self) -> tuple[int, ...]:
        """Regions of the planned arena that this file is written for."""
        return self.planned_regions()

    def planned_regions(self) -> tuple[int, ...]:
        """Bytes of the regions of a planned arena in which runs of this file need no others; mostly there is one.

        From the requests of runs that were recorded: which kernel asks for its workspace before its output no rule says. Replayed from
        facts where nothing can be counted.
        """
        if self.has_bodies or counting_library() is not None:
            session = {"threads": self.origin.threads, "external": self.origin.external, "limit": self.origin.limit, "arena": True}
            return recorded_regions(self._serialized(self._numbered_proto()), self.origin.feeds, {**session, **self.way.session})
        return planned_regions(self.graph, self.facts, self.executed(self.graph), reuse=self.way.reuse)

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of all constants in the file."""
        return protos.weight_bytes(self.proto)

    def bytes_under(self, way: Way, ordered: Ordered | None = None, facts: Facts | None = None) -> int:
        """Peak when this file is run in some way (or the levels in the orders that ``ordered`` gives), over all shapes or with certain
        facts."""
        order = ordered or (lambda graph: way.order(graph, None))
        shapes = self.facts.shapes if facts is None else (facts,)
        return max(max(replay(self.graph, one, order, reuse=way.reuse, sharing=way.sharing), default=0) for one in shapes)

    def serialized(self) -> bytes:
        """The file's bytes."""
        proto = self._numbered_proto()
        if self.way.planned:  # who opens the file must know how large the region is
            proto = _copy(proto)
            more = {"language": "c"} if self.way is NATIVE else {}
            protos.write_marker(proto, {**self.origin.recipe, "deploy": "arena", **more, "chunk": self.layout[0]})
        return self._serialized(proto)

    def _numbered_proto(self) -> Any:
        """The nodes in the order of the file."""
        if not self.numbering:
            return self.proto
        proto = _copy(self.proto)
        permute(proto.graph, {"": self.numbering})
        return proto

    def _serialized(self, proto: Any) -> bytes:
        try:
            data: bytes = proto.SerializeToString()
        except Exception:
            raise InputError(
                f"{self.path}: the optimized model exceeds the 2 GiB of one protobuf; keep its weights external and "
                "use --ort-level none"
            ) from None
        return data


def _copy(proto: Any) -> Any:
    other = type(proto)()
    other.CopyFrom(proto)
    return other


def _constant(shape: tuple[int | str, ...] | None) -> list[int] | None:
    numbers = [d for d in shape or () if isinstance(d, int)]
    return numbers if shape is not None and len(numbers) == len(shape) else None
