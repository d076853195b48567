"""Random traces of requests, the same for a seed on every Python: real figures are committed for seeds alone."""

from __future__ import annotations

from collections.abc import Iterator

from peakmem_inductor.cuda.caching import Event

MIB = 1 << 20
EDGES = (512, 1024, MIB // 2, MIB, 2 * MIB, 9 * MIB, 10 * MIB, 19 * MIB, 20 * MIB, 21 * MIB, 40 * MIB, 64 * MIB)
"""Sizes at which the allocator begins to do something else; tried with a little less and a little more."""


class Numbers:
    """splitmix64: a few lines that no library changes."""

    def __init__(self, seed: int) -> None:
        self.state = seed * 0x9E3779B97F4A7C15 % 2**64

    def below(self, bound: int) -> int:
        self.state = (self.state + 0x9E3779B97F4A7C15) % 2**64
        z = self.state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return (z ^ (z >> 31)) % bound


def random_size(numbers: Numbers, usual: tuple[int, ...]) -> int:
    kind = numbers.below(10)
    if kind < 3:
        return usual[numbers.below(len(usual))]  # the same sizes again: equal blocks, exact fits
    if kind < 5:
        return EDGES[numbers.below(len(EDGES))] + (0, 0, -1, 1, -512, 512, 4096)[numbers.below(7)]
    if kind < 7:
        return 1 + numbers.below(MIB)
    if kind < 9:
        return 1 + numbers.below(24 * MIB)
    return 1 + numbers.below(160 * MIB)


def random_trace(seed: int) -> Iterator[Event]:
    """Between 30 and 110 events; a quarter of the traces with several streams, some with a cache emptied on the way."""
    numbers = Numbers(seed)
    streams = 1 + (numbers.below(4) == 0) * (1 + numbers.below(2))
    usual = tuple(1 + numbers.below((2000, MIB, 12 * MIB, 30 * MIB)[numbers.below(4)]) for _ in range(4))
    crowded = 3 + numbers.below(20)  # about so many are alive
    alive: list[int] = []
    for number in range(30 + numbers.below(80)):
        what = numbers.below(100)
        if streams > 1 and what < 2:
            yield Event("hold")
        elif streams > 1 and what < 4:
            yield Event("settle")
        elif streams > 1 and what < 16 and alive:
            yield Event("record", alive[numbers.below(len(alive))], stream=numbers.below(streams))
        elif what == 16:
            yield Event("empty")
        elif alive and numbers.below(2 * crowded) < len(alive):
            last = numbers.below(3) == 0
            yield Event("free", alive.pop(-1 if last else numbers.below(len(alive))))
        else:
            alive.append(number)
            yield Event("alloc", number, random_size(numbers, usual), numbers.below(streams))
