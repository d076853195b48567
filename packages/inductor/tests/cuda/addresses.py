"""Where the device without hardware puts segments, as ``device.cpp`` does it."""

from __future__ import annotations

from collections import defaultdict

GRAIN = 2 << 20
TIB = 1 << 40
SPREAD, LOWEST, HIGHEST = 16 * TIB, 48 * TIB, 80 * TIB
WINDOWS = 1024
WINDOW = (LOWEST - SPREAD) // WINDOWS


class Addresses:
    """``how`` is "up", "down" or "spread"."""

    def __init__(self, how: str) -> None:
        self.how = how
        self.low, self.high, self.count = LOWEST, HIGHEST, 0
        self.filled: dict[int, int] = defaultdict(int)

    def __call__(self, size: int) -> int:
        room = -(-size // GRAIN) * GRAIN
        if self.how == "down":
            self.high -= room
            return self.high
        if self.how == "spread" and room <= WINDOW // 4:
            window = int(f"{self.count % WINDOWS:010b}"[::-1], 2)
            self.count += 1
            address = SPREAD + window * WINDOW + self.filled[window]
            self.filled[window] += room
            return address
        address = self.low
        self.low += room
        return address
