"""Sizes as people write them, and the fewest moves between two orders."""

from __future__ import annotations

import itertools
import random

import pytest
from peakmem.model import UsageError, moves
from peakmem.system.sizes import human, parse_size, short


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("262144", 262144), ("256KB", 256_000), ("24 MiB", 24 * 2**20), ("1.5 MiB", 3 * 2**19), ("0", 0), (" 7 b ", 7),
        ("2k", 2000), ("2Ki", 2048), ("3gb", 3 * 10**9), ("0.0001 KB", 0), ("1GIB", 2**30),
        ("4611686018427387903", 2**62 - 1),
    ],
)  # fmt: skip
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1", "1e3", "1,000", "12 parsecs", "nan", "4611686018427387904", "٣", "1." ])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError):
        parse_size(text)


def test_sizes_are_read_as_they_are_written() -> None:
    rng = random.Random(0)
    for _ in range(2000):
        size = rng.randrange(2 ** rng.randint(1, 61))
        assert abs(parse_size(short(size).replace(",", "")) - size) <= size / 190  # two decimals of at least 0.97
        assert f"{size:,} B" in human(size)


def test_human_sizes() -> None:
    assert human(3840) == "3,840 B"
    assert human(4315136) == "4.12 MiB (4,315,136 B)"
    assert human(100 * 2**20) == "100.0 MiB (104,857,600 B)"


def fewest(order: tuple[int, ...]) -> int:
    """By brute force: the fewest elements to take out so that the rest ascends."""
    for count in range(len(order)):
        for out in itertools.combinations(range(len(order)), count):
            rest = [v for i, v in enumerate(order) if i not in out]
            if rest == sorted(rest):
                return count
    return 0


def test_moves_are_the_fewest() -> None:
    for n in range(6):
        for order in itertools.permutations(range(n)):
            found = moves(order)
            assert len(found) == fewest(order)
            assert all(order[move.step] == move.statement for move in found)
            gone = {move.statement for move in found}
            rest = [v for v in order if v not in gone]
            assert rest == sorted(rest)
