"""Reads pickles that hold plain data, and nothing that a pickle can do beside holding it.

A pickle is a little program; Python's own reader lets it import and call. This one knows the instructions that build dictionaries
by text, lists, tuples, texts, numbers, booleans and None, and refuses every other. The memory it takes is bound by the size of the file.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from struct import Struct
from struct import error as StructError
from typing import Any

from peakmem.model import InputError

DEEPEST = 64
"""Containers that may lie in one another while they are built."""

LONGEST_NUMBER = 64
"""Bytes of a whole number."""

_NAMES = {opcode.code.encode("latin-1")[0]: opcode.name for opcode in pickletools.opcodes}
_FLOAT, _INT, _U16, _U32, _U64 = Struct(">d"), Struct("<i"), Struct("<H"), Struct("<I"), Struct("<Q")


class _Bad(Exception):
    """What is wrong, without the file's name."""


def read_pickle(data: bytes, where: str) -> Any:
    """The value that a pickle holds.

    Raises
    ------
    InputError
        Where it is damaged, or is more than plain data: ``where`` and what it holds.
    """
    try:
        return _read(data)
    except _Bad as error:
        raise InputError(f"{where}: {error}") from None
    except (IndexError, KeyError, StructError, ValueError, OverflowError):
        raise InputError(f"{where}: is a damaged pickle (it ends early or refers to what it does not hold)") from None
    except TypeError:
        raise InputError(f"{where}: is a damaged pickle (it puts a value where none can be)") from None


def _read(data: bytes) -> Any:
    end = len(data)
    stack: list[Any] = []
    marks: list[list[Any]] = []
    memo: dict[int, Any] = {}
    at = 0

    def take(count: int) -> bytes:
        nonlocal at
        if at + count > end:
            raise IndexError
        at += count
        return data[at - count : at]

    def length(number: Struct) -> int:
        return int(number.unpack(take(number.size))[0])

    def text(number: Struct | None) -> None:
        count = take(1)[0] if number is None else length(number)
        stack.append(take(count).decode("utf-8", "surrogatepass"))

    def whole(count: int) -> None:
        if count > LONGEST_NUMBER:
            raise _Bad(f"holds a whole number of {count} bytes, which no memory snapshot does")
        stack.append(int.from_bytes(take(count), "little", signed=True))

    def gather(make: Callable[[list[Any]], Any]) -> None:
        made = make(since_mark())  # before the stack below is looked at
        stack.append(made)

    def since_mark() -> list[Any]:
        nonlocal stack
        items, stack = stack, marks.pop()
        return items

    def mark() -> None:
        nonlocal stack
        if len(marks) >= DEEPEST:
            raise _Bad(f"holds containers nested more than {DEEPEST} deep, which no memory snapshot does")
        marks.append(stack)
        stack = []

    def pack(count: int) -> None:
        if len(stack) < count:
            raise IndexError
        parts = tuple(stack[-count:])
        del stack[-count:]
        stack.append(parts)

    def put(index: int) -> None:
        memo[index] = stack[-1]

    def extend() -> None:
        items = since_mark()
        target = stack[-1]
        if type(target) is not list:
            raise TypeError
        target.extend(items)

    def append() -> None:
        item = stack.pop()
        if type(stack[-1]) is not list:
            raise TypeError
        stack[-1].append(item)

    def fill(target: Any, items: list[Any]) -> None:
        if type(target) is not dict or len(items) % 2:
            raise TypeError
        for k in range(0, len(items), 2):
            if type(items[k]) is not str:  # another key could be anything, nested as deep as hashing breaks
                raise TypeError
            target[items[k]] = items[k + 1]

    def set_items() -> None:
        items = since_mark()
        fill(stack[-1], items)

    def set_item() -> None:
        items = [stack.pop(), stack.pop()][::-1]
        fill(stack[-1], items)

    def dictionary(items: list[Any]) -> dict[Any, Any]:
        made: dict[Any, Any] = {}
        fill(made, items)
        return made

    does: dict[int, Callable[[], Any]] = {
        0x80: lambda: take(1), 0x95: lambda: take(8),  # PROTO, FRAME
        ord("("): mark, ord("}"): lambda: stack.append({}), ord("]"): lambda: stack.append([]), ord(")"): lambda: stack.append(()),
        ord("d"): lambda: gather(dictionary), ord("l"): lambda: gather(list), ord("t"): lambda: gather(tuple),
        0x85: lambda: pack(1), 0x86: lambda: pack(2), 0x87: lambda: pack(3),
        ord("a"): append, ord("e"): extend, ord("s"): set_item, ord("u"): set_items,
        ord("N"): lambda: stack.append(None), 0x88: lambda: stack.append(True), 0x89: lambda: stack.append(False),
        ord("J"): lambda: stack.append(length(_INT)), ord("M"): lambda: stack.append(length(_U16)),
        0x8A: lambda: whole(take(1)[0]), 0x8B: lambda: whole(length(_U32)), ord("G"): lambda: stack.append(_FLOAT.unpack(take(8))[0]),
        0x8C: lambda: text(None), ord("X"): lambda: text(_U32), 0x8D: lambda: text(_U64),
        ord("q"): lambda: put(take(1)[0]), ord("r"): lambda: put(length(_U32)),
    }  # fmt: skip
    while True:
        code = data[at]
        at += 1
        if code == 0x94:  # these four are most of a snapshot, and stand here for time alone
            memo[len(memo)] = stack[-1]
            continue
        if code == 0x68:
            stack.append(memo[data[at]])
            at += 1
            continue
        if code == 0x6A:
            stack.append(memo[_U32.unpack_from(data, at)[0]])
            at += 4
            continue
        if code == 0x4B:
            stack.append(data[at])
            at += 1
            continue
        if code == 0x2E:  # STOP
            break
        action = does.get(code)
        if action is None:
            name = _NAMES.get(code)
            if name is None:
                raise _Bad("is no pickle")
            raise _Bad(f"holds the instruction {name}, which builds more than plain data and could run code; a memory snapshot of PyTorch does not")
        action()
    if marks or len(stack) != 1:
        raise IndexError
    return stack[0]
