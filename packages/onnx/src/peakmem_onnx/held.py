"""What a session's own arena holds: predicted from the requests of a session that has none, and why it grows.

Requests are recorded, phase by phase (opening the session, run after run), with memory patterns and reuse as they are set; then the
arena is replayed. What a session takes of the C library beside its arena is told apart by a second session, all of whose arena is
one large region. So nothing is assumed of operators, bodies or patterns, and the prediction is as good as the replay of the arena.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from peakmem.model import RuntimeFailed
from peakmem.system.sizes import short

from peakmem_onnx.arena import Arena, Event
from peakmem_onnx.runtime import ask, counting_library, uncounted

UNUSUAL = (1536 << 20) + 7 * 256
"""Bytes of a region that nothing else has. What is not touched costs nothing."""

TURNS = 2
"""Runs of each set of inputs: with memory patterns the second one asks otherwise than the first."""


Phase = tuple[tuple[int, int], ...]
"""Of opening a session, or of a run: the regions that the arena takes from the system, and the requests that it takes them for."""


def requests(step: Mapping[str, Any], folder: Path) -> list[list[Event]]:
    """What a session asks of its arena in each phase. Two processes.

    Parameters
    ----------
    step : mapping
        Of a session with its arena, as for `peakmem_onnx.child.requests`.
    folder : Path

    Raises
    ------
    RuntimeFailed
        Where it cannot be run or counted.
    """
    library = counting_library()
    if library is None:
        raise RuntimeFailed(f"allocations cannot be counted: {uncounted()}")
    plain, served = (
        ask(folder, [{**step, "do": "requests", **more}], preload=library)[0]["phases"] for more in ({"arena": False}, {"chunk": UNUSUAL})
    )
    phases: list[list[Event]] = []
    beside: set[int] = set()
    number = -1
    for here, direct in zip(plain, served, strict=True):
        left = Counter(size for size in direct if size >= 0 and size != UNUSUAL)
        events: list[Event] = []
        for entry in here:
            if entry < 0:
                if -1 - entry not in beside:
                    events.append((-1 - entry, -1))
                continue
            number += 1
            if left[entry]:
                left[entry] -= 1
                beside.add(number)
            else:
                events.append((number, entry))
        phases.append(events)
    return phases


def replayed(phases: Sequence[Sequence[Event]], arena: Arena | None = None) -> list[Phase]:
    """What an arena (ONNX Runtime's as it comes) takes in each phase."""
    own = arena or Arena()
    told = []
    for events in phases:
        taken = []
        for event in events:
            before = len(own.regions)
            own.run([event])
            taken += [(region, event[1]) for region in own.regions[before:]]
        told.append(tuple(taken))
    return told


@dataclass(frozen=True)
class Account:
    """What an arena takes from the system: opening the session, then `TURNS` runs of every set of inputs.

    Attributes
    ----------
    told : tuple of tuple of int
        Regions by its own account.
    predicted : tuple of Phase
        The same of the replay; empty where requests cannot be counted.
    reserved : int
        Bytes beside the regions, for constants.
    """

    told: tuple[tuple[int, ...], ...]
    predicted: tuple[Phase, ...]
    reserved: int = 0

    @property
    def held(self) -> int:
        """Bytes of all regions after the runs of the first set."""
        return sum(map(sum, self.told[: 1 + TURNS]))

    @property
    def held_predicted(self) -> int | None:
        """The same of the replay."""
        return sum(region for phase in self.predicted[: 1 + TURNS] for region, _ in phase) if self.predicted else None

    @property
    def equal(self) -> bool:
        """Whether every region of every phase was predicted."""
        return self.told == tuple(tuple(region for region, _ in phase) for phase in self.predicted)


def account(step: Mapping[str, Any], folder: Path, *, predict: bool = True) -> Account:
    """Run a session with its arena; to ``predict``, two others. Three processes, or one.

    Parameters
    ----------
    step : mapping
        As for `peakmem_onnx.child.held`; the outputs of a run go before the next one begins.
    folder : Path
    predict : bool

    Raises
    ------
    RuntimeFailed
        Where it cannot be run.
    """
    step = {"turns": TURNS, "drop": True, **step}
    answer = ask(folder, [{**step, "do": "held", "log": str(folder / "arena.log")}])[0]["phases"]
    regions = answer[-1]["regions"]
    ends = [0, *(len(one["regions"]) for one in answer)]
    told = tuple(tuple(regions[begin:end]) for begin, end in pairwise(ends))
    predicted = replayed(requests(step, folder)) if predict and counting_library() is not None else []
    return Account(told, tuple(predicted), answer[-1]["reserved"])


def sentences(name: str, one: Account, sets: Sequence[str] = ()) -> list[str]:
    """What the arena takes, when and for which requests; ``sets`` says what the sets of inputs after the first are."""
    kinds = ["loading", "the first run", "the second run", *(f"{which} with {other}" for other in sets for which in ("a run", "another run"))]
    parts = []
    for index, (kind, regions) in enumerate(zip(kinds, one.told, strict=True)):
        causes = [request for _, request in one.predicted[index]] if one.equal else []
        if regions:
            told = " + ".join(map(short, regions))
            parts.append(f"{kind} takes {told}" + (f" (for a request of {' and one of '.join(map(short, causes))})" if causes else ""))
        elif index > TURNS and index % TURNS:
            parts.append(f"{kind} takes nothing more")
    as_told = "" if not one.predicted else ", as predicted" if one.equal else f"; {short(one.held_predicted or 0)} were predicted"
    return [f"the arena of {name} holds {short(one.held)} after two runs{as_told}: {'; '.join(parts) or 'nothing was taken'}"]
