"""Dimensions for a model that leaves them open: guessed from the names that it gives them, and tried in runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from peakmem.model import PeakmemError, UsageError

from peakmem_onnx.feeds import make_feeds, write_feeds
from peakmem_onnx.protos import real_inputs
from peakmem_onnx.runtime import ask, scratch

_USUAL = (
    (("batch", "bs", "n", "b"), 1), (("channel", "c"), 3), (("height", "width", "h", "w", "size", "image"), 224),
    (("seq", "sequence", "length", "len", "token", "time", "frame", "t", "l", "s"), 128), (("sample", "audio"), 16000),
    (("past", "cache"), 128),
)  # fmt: skip
"""Words in the names of dimensions -> a size to begin with; a single letter must be the whole name."""

SIZES = (224, 128, 64, 48, 32, 256, 320, 512, 576, 640, 1024, 16000, 96, 16, 1)
"""Tried where the usual sizes do not run."""

WIDE = 320
"""Tried for the width of images of every height."""

LARGEST = 1 << 22
"""Elements of all inputs of a guess."""

Guess = dict[Any, int]
"""Sizes of open dimensions, by name; by input and axis where they have none that is a word."""


def usual_size(name: str, axis: int = 0, rank: int = 0) -> int:
    """A size to begin with for a dimension of that name; where the name says nothing, by its place among ``rank`` ones."""
    words = re.split(r"[^a-z]+", name.lower())
    for known, size in _USUAL:
        if name.lower() in known or any(len(one) > 1 and word.startswith(one) for one in known for word in words):
            return size
    return 1 if axis == 0 else 224 if rank == 4 else 128


def guesses(inputs: Sequence[Any]) -> list[Guess]:
    """Sizes for all open dimensions of some inputs, the usual ones first; none where an input is of unknown rank."""
    usual: Guess = {}
    single: Guess = {}
    nameless: Guess = {}
    height: Guess = {}
    for value in inputs:
        if not value.type.tensor_type.HasField("shape"):
            return []
        open_ones = _open(value)
        rank = len(value.type.tensor_type.shape.dim)
        for key, axis, name in open_ones:
            usual.setdefault(key, usual_size(name, axis, rank))
            # What is open alone beside fixed dimensions is mostly the batch of a state.
            if usual[key] == 1 or (len(open_ones) == 1 and isinstance(key, tuple) and rank > 2):
                single[key] = 1
            if rank == 4 and axis == 2:
                height[key] = axis
            if isinstance(key, tuple) and not (rank == 4 and axis > 1):
                nameless[key] = 1
    found = [usual, {**usual, **single}, {**usual, **nameless}]
    for size in SIZES:
        found.append({key: single.get(key, size) for key in usual})
        if height:
            found.append({key: single.get(key, size if key in height else WIDE) for key in usual})
    return [guess for i, guess in enumerate(found) if guess not in found[:i] and sum(map(prod, shapes(inputs, guess).values())) <= LARGEST]


def shapes(inputs: Sequence[Any], guess: Guess) -> dict[str, list[int]]:
    """The shapes of inputs with a guess."""
    found = {}
    for value in inputs:
        sizes = [d.dim_value for d in value.type.tensor_type.shape.dim]
        for key, axis, _ in _open(value):
            sizes[axis] = guess[key]
        found[value.name] = sizes
    return found


@dataclass(frozen=True)
class Suggestion:
    """Sizes for what is open: of the first guess with which the model runs, or of the first one.

    Attributes
    ----------
    shapes : dict of str to list of int
        Of all inputs.
    options : str
        As the command line takes them.
    runs : bool
    """

    shapes: dict[str, list[int]]
    options: str
    runs: bool

    def __str__(self) -> str:
        runs = ", with which it runs (--try-dims takes them)" if self.runs else ", and it ran with none of the sizes tried"
        return f"; to begin with: {self.options}{runs}"


def suggest(proto: Any, fixed: Mapping[str, str], path: Path, session: Mapping[str, Any]) -> Suggestion | None:
    """Try sizes for what is open; None where an input is of unknown rank.

    ``fixed`` are values of inputs (see `peakmem_onnx.feeds.make_feeds`), ``session`` is for the child.
    """
    inputs = real_inputs(proto.graph)
    tried = guesses(inputs)
    if not tried:
        return None
    number = _first(proto, inputs, tried, fixed, path, session)
    guess = tried[max(0, number)]
    wanted = shapes(inputs, guess)
    dims: dict[str, int] = {}
    whole = []
    for value in inputs:
        open_ones = _open(value)
        # Where a dimension has no name, or one that is no word, the whole shape is given.
        if any(isinstance(key, tuple) for key, _, _ in open_ones):
            whole.append(f"{value.name}={','.join(map(str, wanted[value.name]))}")
        else:
            dims.update((key, guess[key]) for key, _, _ in open_ones)
    options = [*(f"--dim {name}={size}" for name, size in dims.items()), *(f"--shape {shlex.quote(text)}" for text in whole)]
    return Suggestion(wanted, " ".join(options), number >= 0)


def _first(
    proto: Any, inputs: Sequence[Any], tried: Sequence[Guess], fixed: Mapping[str, str], path: Path, session: Mapping[str, Any]
) -> int:
    """Number of the first guess with which ONNX Runtime runs the model; negative where it runs with none."""
    with scratch() as folder:
        sets = []
        try:
            for guess in tried:
                bare = type(proto)()
                bare.graph.input.extend(inputs)
                wanted = shapes(inputs, guess)
                for value in bare.graph.input:
                    for d, size in zip(value.type.tensor_type.shape.dim, wanted[value.name], strict=True):
                        d.dim_value = size
                sets.append(make_feeds(bare, fixed, path)[0])
            (folder / "model.onnx").write_bytes(proto.SerializeToString())
            step = {**session, "do": "first", "level": "none", "model": str(folder / "model.onnx"), "feeds_files": write_feeds(sets, folder)}
            return int(ask(folder, [step])[0]["first"])
        except UsageError:  # of values for inputs, which no size mends
            raise
        except (PeakmemError, ValueError):  # nothing runs here, or the model does not with anything
            return -1


def _open(value: Any) -> list[tuple[Any, int, str]]:
    """Open dimensions of an input: what a guess calls them, the axis, and the name."""
    dims = value.type.tensor_type.shape.dim
    return [
        (d.dim_param if re.fullmatch(r"\w+", d.dim_param) else (value.name, axis), axis, d.dim_param)
        for axis, d in enumerate(dims)
        if d.dim_value < 1
    ]
