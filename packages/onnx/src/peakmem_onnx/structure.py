"""Whether a file is another one with its nodes permuted, and at which level of ONNX Runtime's optimizer that can be asked."""

from __future__ import annotations

from dataclasses import replace
from itertools import zip_longest
from typing import Any, TypeVar

from peakmem.frontends import Structure
from peakmem.frontends.structure import compare
from peakmem.model import InputError

from peakmem_onnx.artifact import Artifact
from peakmem_onnx.compile import at_level
from peakmem_onnx.parts import part_of, type_of
from peakmem_onnx.protos import import_onnx, real_inputs
from peakmem_onnx.rules import LEVELS
from peakmem_onnx.splitcheck import in_bands, read_split

A = TypeVar("A", bound=Artifact)


def comparable(first: A, second: A) -> tuple[A, A, str]:
    """The two as programs of one level, and a sentence where that is not the level asked for.

    What peakmem writes is a permutation of what ONNX Runtime makes of the source at the level recorded in the file. So a source
    is optimized at the level that the other file records.
    """
    level = {one.origin.level for one in (first, second)}
    if len(level) == 1 or first.given == second.given:
        return first, second, ""
    source, written = (first, second) if first.given else (second, first)
    asked, recorded = source.origin.level, written.origin.level
    if recorded not in LEVELS:
        return first, second, ""
    if recorded not in source.levelled:
        source.levelled[recorded] = at_level(source, recorded)
    again = source.levelled[recorded]
    note = f"{written.path} was made at --ort-level {recorded}; so {source.path} is optimized at that level too (asked: {asked})"
    return (again, second, note) if source is first else (first, again, note)


def structure(first: Artifact, second: Artifact) -> Structure:
    """See `peakmem.frontends.Model.structure`. Two sources are compared as they are, before ONNX Runtime makes anything of them."""
    sources = first.given and second.given and first.origin.source != second.origin.source
    if sources:
        left, right = (_parsed(one.origin.source) for one in (first, second))
        note = ""
    else:
        first, second, note = comparable(first, second)
        left, right = first.declared, second.declared
    difference = _interface(left, right)
    if difference:
        return Structure(difference=difference)
    parts = [part_of(p, one.origin.external) for p, one in ((left, first), (right, second))] if sources else [first.part, second.part]
    found = compare(*parts)
    if not found.difference:
        return found
    if not sources and in_bands(first, second):
        try:
            return Structure(read_split(first, second))
        except InputError as error:
            found = replace(found, difference=str(error))
    releases = [one.origin.recipe.get("onnxruntime") for one in (first, second)]
    if not sources and first.given != second.given and releases[0] != releases[1]:
        note += ("; " if note else "") + (
            f"the two were optimized by onnxruntime {releases[0]} and {releases[1]}, which may make different programs of one source"
        )
    return replace(found, difference=found.difference + (f" ({note})" if note else ""))


def _parsed(data: bytes) -> Any:
    proto = import_onnx().ModelProto()
    proto.ParseFromString(data)
    return proto


def _interface(first: Any, second: Any) -> str:
    """The first difference of what the caller sees by name."""
    inputs = [[(v.name, type_of(v)) for v in real_inputs(proto.graph)] for proto in (first, second)]
    outputs = [[(v.name, "") for v in proto.graph.output] for proto in (first, second)]
    for kind, named in (("input", inputs), ("output", outputs)):
        for k, (a, b) in enumerate(zip_longest(*named)):
            if a is None or b is None:
                which, other, (name, _) = ("second", "first", b) if a is None else ("first", "second", a)
                return f"the {which} has the {kind} {name!r}, the {other} has not"
            if a != b:
                left, right = (f"{name!r} {type_}".rstrip() for name, type_ in (a, b))
                return f"{kind} {k} is {left} in the first and {right} in the second"
    return ""
