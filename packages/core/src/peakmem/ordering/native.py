"""The loops of the order search in `peakmem.system.compiled`: the same orders, the same units of work, sooner."""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, chain
from typing import Any

from peakmem.ordering.meter import Meter
from peakmem.ordering.problem import Problem, State
from peakmem.system import compiled

LARGEST = 1 << 62
"""Bytes that a problem may hold in all to be counted in 64 bits."""

SLICE = 200_000
"""Units of work between two looks at the meter (and at Ctrl-C)."""

PAUSED, FOUND, NONE, NO_MEMORY, EXHAUSTED, GAVE_UP, LEAST, TRAP, CUT, PRICED, CLOSED, LARGE, SPENT = range(13)

Solve = Callable[[Any, Any], tuple[int, list[int]]]
"""A maximum flow from ends and capacities of arcs: its value, and the nodes on the source's side of the least cut."""


def kernel() -> Kernel | None:
    """The compiled loops, or None where there are none or they are not wanted."""
    library = compiled.library()
    return None if library is None else _kernel(library)


@cache
def _kernel(library: ctypes.CDLL) -> Kernel:
    return Kernel(library)


class _Rows(ctypes.Structure):
    """``Problem`` of kernel.c."""

    _fields_ = (
        ("n", ctypes.c_int32),
        ("m", ctypes.c_int32),
        *((name, ctypes.c_void_p) for name in ("preds_at", "preds", "succs_at", "succs", "touched_at", "touched")),
        *((name, ctypes.c_void_p) for name in ("touchers_at", "touchers", "size", "entry", "pinned", "workspace")),
        *((name, ctypes.c_void_p) for name in ("gains_at", "gain_of", "gain")),
        ("mirrored", ctypes.c_int32),
        ("entry_bytes", ctypes.c_int64),
    )


class _Image:
    """A problem as the library sees it, and the arrays that hold it."""

    def __init__(self, problem: Problem) -> None:
        self.fits = (
            problem.base + sum(problem.size) + sum(problem.workspace) < LARGEST
            and len(problem) + len(problem.size) + sum(map(len, problem.touched)) < 1 << 30
        )
        if not self.fits:
            return
        arrays = {
            "preds_at": _starts(problem.preds),
            "preds": array("i", chain.from_iterable(problem.preds)),
            "succs_at": _starts(problem.succs),
            "succs": array("i", chain.from_iterable(problem.succs)),
            "touched_at": _starts(problem.touched),
            "touched": array("i", chain.from_iterable(problem.touched)),
            "touchers_at": _starts(problem.touchers),
            "touchers": array("i", chain.from_iterable(problem.touchers)),
            "size": array("q", problem.size),
            "entry": array("B", problem.entry),
            "pinned": array("B", problem.pinned),
            "workspace": array("q", problem.workspace),
            "gains_at": _starts(problem.gains),
            "gain_of": array("i", (a for row in problem.gains for a, _ in row)),
            "gain": array("q", (gain for row in problem.gains for _, gain in row)),
        }
        self.arrays = arrays
        self.births: tuple[object, array[int], array[int]] | None = None
        self.node = array("i", bytes(4 * len(problem)))
        self.arcs = _Arcs(_Arcs.FIRST)
        self.rows = _Rows(
            n=len(problem),
            m=len(problem.size),
            mirrored=problem.mirrored,
            entry_bytes=problem.entry_bytes,
            **{name: row.buffer_info()[0] for name, row in arrays.items()},
        )

    def rows_of(self, births: Sequence[tuple[int, ...]] | None) -> tuple[int | None, int | None]:
        """Where the rows of births lie; they are kept until other births are asked for."""
        if births is None:
            return None, None
        if self.births is None or self.births[0] is not births:
            self.births = births, _starts(births), array("i", chain.from_iterable(births))
        return self.births[1].buffer_info()[0], self.births[2].buffer_info()[0]


class _Arcs:
    """Room for the arcs of a network."""

    FIRST = 1024

    def __init__(self, room: int) -> None:
        import numpy as np

        self.room = room
        self.ends = np.empty((2, room), np.int32)
        self.capacities = np.empty(room, np.int64)
        self.places = self.ends[0].ctypes.data, self.ends[1].ctypes.data, self.capacities.ctypes.data


def _starts(rows: Sequence[Sequence[Any]]) -> array[int]:
    return array("i", accumulate(map(len, rows), initial=0))


class Kernel:
    """The library's functions; each is named as the function that it stands for."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._images: weakref.WeakKeyDictionary[Problem, _Image] = weakref.WeakKeyDictionary()
        handle, place, small, large = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
        self._new = _function(library.peakmem_beam_new, handle, place, small, large, place)
        self._run = _function(library.peakmem_beam_run, small, handle, large, place)
        self._order = _function(library.peakmem_beam_order, None, handle, place)
        self._free = _function(library.peakmem_beam_free, None, handle)
        self.search_new = _function(library.peakmem_search_new, handle, place)
        self.search_start = _function(
            library.peakmem_search_start, None, handle, place, small, large, large, large, large, large, small, small
        )
        self.search_run = _function(library.peakmem_search_run, small, handle, large, large, place)
        self.search_steps = _function(library.peakmem_search_steps, small, handle, place)
        self.search_free = _function(library.peakmem_search_free, None, handle)
        self.trap_new = _function(library.peakmem_trap_new, handle, place, place, place)
        self.trap_free = _function(library.peakmem_trap_free, None, handle)
        self.trap_move = _function(library.peakmem_trap_move, None, handle, place, small)
        self.trap_start = _function(library.peakmem_trap_start, None, handle, large, small, small, small, small, small, place, small)
        self.trap_run = _function(library.peakmem_trap_run, small, handle, large, large, large, place, small, place)
        self.trap_price = _function(library.peakmem_trap_price, small, handle, small, place, place, small, large, small, place)
        self.trap_priced = _function(library.peakmem_trap_priced, None, handle, large, place, small, place)
        self.trap_arcs = _function(library.peakmem_trap_arcs, None, handle, large, place, place, place)
        self.trap_witness = _function(library.peakmem_trap_witness, small, handle, place)
        self.trap_best = _function(library.peakmem_trap_best, None, handle, place, place)
        # Called with the lock of Python held, since calls for one problem share `_Image.node`.
        holding = ctypes.PyDLL(library._name)
        self._network = _function(
            holding.peakmem_network, large, place, place, small, place, place, place, small, place, place, place, place, place, place,
            large, place,
        )  # fmt: skip

    def fits(self, problem: Problem) -> bool:
        """Whether the library can hold it."""
        return self._image(problem).fits

    def search(self, problem: Problem) -> Search | None:
        """The searches of a walk through ``problem``; None where the library cannot hold it."""
        image = self._image(problem)
        return Search(self, image) if image.fits else None

    def growth(self, problem: Problem, births: Sequence[tuple[int, ...]] | None) -> Growth | None:
        """Traps of ``problem``; None where the library cannot grow them: it knows of no overlays."""
        if any(problem.gains):
            return None
        image = self._image(problem)
        return Growth(self, image, births) if image.fits else None

    def _image(self, problem: Problem) -> _Image:
        image = self._images.get(problem)
        if image is None:
            image = self._images[problem] = _Image(problem)
        return image

    def beam(self, problem: Problem, width: int, ceiling: int, mark: Sequence[int], meter: Meter) -> list[int]:
        """`peakmem.ordering.beam.beam`."""
        image = self._image(problem)
        width, ceiling = min(width, (1 << 31) - 1), min(ceiling, LARGEST)
        search = self._new(ctypes.byref(image.rows), width, ceiling, (ctypes.c_uint64 * len(mark))(*mark))
        if not search:
            raise MemoryError
        try:
            spent = ctypes.c_int64()
            while not meter.out:
                outcome = self._run(search, min(SLICE, meter.left), ctypes.byref(spent))
                meter.spend(spent.value)
                if outcome == FOUND:
                    order = (ctypes.c_int32 * len(problem))()
                    self._order(search, order)
                    return list(order)
                if outcome == NONE:
                    break
                if outcome == NO_MEMORY:
                    raise MemoryError
            return []
        finally:
            self._free(search)

    def network(
        self, problem: Problem, lower: State, undecided: Sequence[int], buffers: list[int], births: Sequence[tuple[int, ...]] | None
    ) -> tuple[int, int, bool, Any, Any]:
        """The network of a cut without overlays: what adds to its constant, what enters from the source, whether an arc leads to the
        sink, and, where both may flow, ends and capacities of the arcs, which stay valid until the next call.
        """
        image = self._image(problem)
        rows = image.rows_of(births)
        born, remaining = lower.born, lower.remaining
        some = array("i", undecided)
        here = array("i", buffers), array("i", [born[b] for b in buffers]), array("i", [remaining[b] for b in buffers])
        told = (ctypes.c_int64 * 3)()
        while True:
            arcs = image.arcs
            count = self._network(
                ctypes.byref(image.rows), some.buffer_info()[0], len(some), *(row.buffer_info()[0] for row in here), len(buffers), *rows,
                image.node.buffer_info()[0], *arcs.places, arcs.room, told,
            )  # fmt: skip
            if count <= arcs.room:
                return told[0], told[1], bool(told[2]), arcs.ends[:, :count], arcs.capacities[:count]
            image.arcs = _Arcs(2 * count)


class Search:
    """The searches of one walk, each from where the one before it and the walk's own steps led.

    See ``_Pass._search`` of `peakmem.ordering.walk`. A search that an exception ended was the last.
    """

    def __init__(self, kernel: Kernel, image: _Image) -> None:
        self._kernel = kernel
        self._image = image
        self._handle = kernel.search_new(ctypes.byref(image.rows))
        if not self._handle:
            raise MemoryError
        weakref.finalize(self, kernel.search_free, self._handle)
        self._steps = (ctypes.c_int32 * image.rows.n)()
        self._length = 0
        self.nodes = 0
        self.blocked = 0

    def run(
        self, path: Sequence[int], budget: int, rest: int, limit: int, most_work: int, patience: int, safe_moves: bool, memo: bool,
        meter: Meter, least: Callable[[list[int], int], bool], trap: Callable[[list[int]], int],
    ) -> tuple[int, list[int]]:  # fmt: skip
        """FOUND with the steps, EXHAUSTED or GAVE_UP; the search begins after ``path``.

        ``least`` answers whether the state after some steps, whose rest it is given, has the least rest on the way; ``trap`` gives
        the price of the exits of a trap after some steps, or -1. Either may raise `OutOfTime`, as ``meter`` does.
        """
        kernel, count = self._kernel, (ctypes.c_int64 * 5)()
        steps = path[self._length :]
        kernel.search_start(
            self._handle, (ctypes.c_int32 * len(steps))(*steps), len(steps), min(budget, LARGEST), rest, limit, most_work, patience,
            safe_moves, memo,
        )  # fmt: skip
        self._length = len(path)
        told, answer = 0, -1
        try:
            while True:
                outcome = kernel.search_run(self._handle, min(SLICE, meter.left), answer, count)
                meter.spend(count[2] - told)
                told = count[2]
                if outcome == PAUSED:
                    meter.check()
                elif outcome == TRAP:
                    answer = trap(self._taken())
                elif outcome in (FOUND, LEAST):
                    taken = self._taken()
                    if outcome == FOUND or least(taken, count[4]):
                        self._length += len(taken)
                        return FOUND, taken
                elif outcome == NO_MEMORY:
                    raise MemoryError
                else:
                    return outcome, []
        finally:
            meter.spend(count[1] - told)
            self.nodes, self.blocked = count[0], count[3]

    def _taken(self) -> list[int]:
        count = self._kernel.search_steps(self._handle, self._steps)
        return list(self._steps[:count])


def _function(function: Any, result: Any, *arguments: Any) -> Callable[..., Any]:
    function.restype, function.argtypes = result, arguments
    return function  # type: ignore[no-any-return]


class Growth:
    """Prices and traps of one problem without overlays, from one start state after another.

    See `peakmem.ordering.bounds`. What an exception ended is forgotten with the next `move`.
    """

    def __init__(self, kernel: Kernel, image: _Image, births: Sequence[tuple[int, ...]] | None) -> None:
        self._kernel = kernel
        self._image = image
        rows = image.rows_of(births)
        self._births = image.births  # others may be asked for meanwhile
        self._handle = kernel.trap_new(ctypes.byref(image.rows), *rows)
        if not self._handle:
            raise MemoryError
        weakref.finalize(self, kernel.trap_free, self._handle)
        self._told = (ctypes.c_int64 * 8)()
        self._steps = (ctypes.c_int32 * image.rows.n)()
        self._exits = (ctypes.c_int32 * image.rows.n)()

    def move(self, path: Sequence[int]) -> None:
        """Make the state reached by ``path`` the start."""
        self._kernel.trap_move(self._handle, (ctypes.c_int32 * len(path))(*path), len(path))

    def price(
        self, v: int, trap: bytearray, members: Sequence[int], enough: int, absorption: bool, meter: Meter, solve: Solve
    ) -> tuple[int, list[int], int]:
        """`Pricer.price`, and the cuts that it took."""
        told, kernel = self._told, self._kernel
        outcome = kernel.trap_price(
            self._handle, v, (ctypes.c_uint8 * len(trap)).from_buffer(trap), (ctypes.c_int32 * len(members))(*members), len(members),
            enough, absorption, told,
        )  # fmt: skip
        cuts = told[1]
        meter.spend(told[2])
        if outcome == NO_MEMORY:
            raise MemoryError
        if outcome == CUT:
            flow, side = self._solved(solve)
            kernel.trap_priced(self._handle, flow, side.buffer_info()[0], len(side), told)
        value = told[0]
        return value, self._steps[: kernel.trap_witness(self._handle, self._steps)], cuts

    def grow(
        self, level: int, limit: int | None, raising: bool, absorption: bool, stale: bool, followers: bool, order: Sequence[int],
        meter: Meter, solve: Solve,
    ) -> tuple[int, int, int, tuple[int, tuple[int, ...], tuple[int, ...], int] | None]:  # fmt: skip
        """Grow a trap from the start: how it ended (CLOSED, LARGE or SPENT), at which level, after how many cuts, and level, members,
        exits and cuts of the last trap that closed.
        """
        told, kernel = self._told, self._kernel
        kernel.trap_start(
            self._handle, level, -1 if limit is None else limit, raising, absorption, stale, followers,
            (ctypes.c_int32 * len(order))(*order), len(order),
        )  # fmt: skip
        flow, side = 0, array("i")
        while True:
            left = 0 if meter.out else meter.left
            outcome = kernel.trap_run(self._handle, left, SLICE, flow, side.buffer_info()[0], len(side), told)
            meter.spend(told[2])
            if outcome == NO_MEMORY:
                raise MemoryError
            if outcome == CUT:
                flow, side = self._solved(solve)
            elif outcome != PAUSED:
                break
        best = None
        ended, cuts, members, exits, least, within = told[0], told[1], told[4], told[5], told[6], told[7]
        if least >= 0:
            kernel.trap_best(self._handle, self._steps, self._exits)
            best = least, tuple(self._steps[:members]), tuple(self._exits[:exits]), within
        return outcome, ended, cuts, best

    def _solved(self, solve: Solve) -> tuple[int, array[int]]:
        """The answer to the cut that is asked for."""
        import numpy as np

        count = self._told[3]
        ends, capacities = np.empty((2, count), np.int32), np.empty(count, np.int64)
        self._kernel.trap_arcs(self._handle, count, ends[0].ctypes.data, ends[1].ctypes.data, capacities.ctypes.data)
        flow, side = solve(ends, capacities)
        return flow, array("i", side)
