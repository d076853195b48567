"""Arenas as tables of comma-separated values: a row for each item, and its offset once it is placed."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from peakmem.arena.items import Item
from peakmem.model import InputError

NEEDED = ("id", "lower", "upper", "size")

_LARGEST = 2**53


@dataclass(frozen=True)
class Table:
    """Items and the table that they came from.

    Attributes
    ----------
    columns : tuple of str
    rows : tuple of dict
        What each row says under each column.
    items : tuple of Item
        In the order of the rows.
    name : str
        Of the file, for messages.
    """

    columns: tuple[str, ...]
    rows: tuple[dict[str, str], ...]
    items: tuple[Item, ...]
    name: str

    def heat(self) -> list[float] | None:
        """What the column ``heat`` says of each item; None without one."""
        if "heat" not in self.columns:
            return None
        result = []
        for row in self.rows:
            try:
                value = float(row["heat"])
            except ValueError:
                value = math.nan
            if not math.isfinite(value):
                raise InputError(f"{self.name}: the heat {row['heat'][:80]!r} of {row['id'][:80]!r} is not a finite number")
            result.append(value)
        return result


def read_table(data: bytes, name: str) -> Table:
    """Read a table with the columns ``id``, ``lower``, ``upper`` and ``size``; others are kept.

    An item is resident from step ``lower`` up to, not including, step ``upper``; ``size`` counts bytes. This is the format
    of *MiniMalloc* and of the problems published with it.

    Parameters
    ----------
    data : bytes
        UTF-8.
    name : str
        Of the file, for messages.

    Raises
    ------
    InputError
        When a column is missing, a cell is not what it should be, or an id occurs twice; the message names the line.
    """
    try:
        text = data.decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), strict=True)
        columns = [cell.strip() for cell in next(reader, [])]
        missing = [column for column in NEEDED if column not in columns]
        if missing:
            raise InputError(f"{name}: the first line does not name the column {missing[0]!r} (needed: {','.join(NEEDED)})")
        if len(set(columns)) < len(columns):
            raise InputError(f"{name}: the first line names a column twice")
        rows, items, seen = [], [], set()
        for cells in reader:
            if not cells:
                continue
            where = f"{name}: line {reader.line_num}"
            if len(cells) != len(columns):
                raise InputError(f"{where}: has {len(cells)} cells for {len(columns)} columns")
            row = dict(zip(columns, cells))
            lower, upper, size = (_number(row[column], column, where) for column in NEEDED[1:])
            if row["id"] in seen:
                raise InputError(f"{where}: the id {row['id'][:80]!r} was there before")
            if lower >= upper:
                raise InputError(f"{where}: upper {upper} is not greater than lower {lower}")
            if size < 0:
                raise InputError(f"{where}: the size {size} is negative")
            seen.add(row["id"])
            rows.append(row)
            items.append(Item(row["id"], size, lower, upper - 1))
    except UnicodeDecodeError:
        raise InputError(f"{name}: is not text in UTF-8") from None
    except csv.Error as error:
        raise InputError(f"{name}: line {reader.line_num}: {error}") from None
    return Table(tuple(columns), tuple(rows), tuple(items), name)


def _number(cell: str, column: str, where: str) -> int:
    text = cell.strip()
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) < 20 and abs(int(text)) <= _LARGEST):
        raise InputError(f"{where}: {column} {cell[:80]!r} is not a whole number of at most {_LARGEST}")
    return int(text)


def write_table(table: Table, added: Mapping[str, Sequence[object]]) -> bytes:
    """The table with columns added behind its own; one of the same name is replaced where it is."""
    out = io.StringIO(newline="")
    columns = [*table.columns, *(column for column in added if column not in table.columns)]
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    for k, row in enumerate(table.rows):
        writer.writerow({**row, **{column: values[k] for column, values in added.items()}})
    return out.getvalue().encode()
