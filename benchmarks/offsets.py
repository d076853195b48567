"""Offsets of the published hard cases: how far above the least arena peakmem ends, and after how long.

The tables of google/minimalloc (``benchmarks/challenging``): each has a placement within the capacity that its file name
states. For every table: the largest-first rule, the default effort without being told the capacity, and the default
effort until the capacity is reached. Percentages are above the capacity; CPU seconds are those of this process.

    python benchmarks/offsets.py [--shared DIR] [--markdown FILE] [--effort E]
"""

from __future__ import annotations

import sys

from common import Clock, Load, markdown, parser, seconds, write
from peakmem.arena import check_placement, greedy_by_size, liveness_peak, plan, read_table
from peakmem.system import compiled


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--effort", type=float, default=2.0, metavar="E", help="of peakmem.arena.plan (%(default)s)")
    given = made.parse_args()
    files = sorted((given.shared / "arena").glob("*.*.csv"))
    if not files:
        sys.exit(f"no tables in {given.shared / 'arena'}: this benchmark needs the shared data, name its folder with --shared DIR")
    load = Load()
    rows = []
    for file in files:
        name, capacity = file.name.split(".")[0], int(file.name.split(".")[1])
        items = read_table(file.read_bytes(), file.name).items
        greedy = check_placement(items, greedy_by_size(items))
        cells: list[object] = [name, len(items), f"{capacity:,}", f"{liveness_peak(items):,}", _over(greedy, capacity)]
        for enough in (0, capacity):
            with Clock() as clock:
                placement = plan(items, enough=enough, effort=given.effort)
            size = check_placement(items, placement.offsets)
            cells += [f"{size:,}", _over(size, capacity), "yes" if placement.least else "no", seconds(clock.cpu)]
        rows.append(cells)
    header = (
        "table", "items", "capacity", "live peak", "largest first", "default", "above", "exact", "CPU s",
        "told the capacity", "above", "exact", "CPU s",
    )  # fmt: skip
    how = "in Python" if compiled.library() is None else "in the compiled loops of peakmem-native"
    write(
        given.markdown,
        "Offsets",
        "python benchmarks/offsets.py",
        __doc__.split("\n\n")[1].replace("\n", " "),
        markdown(header, rows),
        f"Searched {how}; the placements are the same either way. Exact: no placement is smaller. Effort {given.effort:g}. {load.note()}",
    )


def _over(size: int, capacity: int) -> str:
    return f"{100 * (size / capacity - 1):+.1f} %"


if __name__ == "__main__":
    main()
