"""The runtime of tapes: computes real bytes, frees each value after its last use, and counts what is held."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from peakmem_tape.frontend import Tape

VERSION = "1"


def run(tape: Tape, *, keep_inputs: bool) -> tuple[int, dict[str, bytes]]:
    """Execute a tape.

    Returns
    -------
    int
        The most bytes held at once.
    dict of str to bytes
        The outputs.
    """
    last = {name: step for step, (_, _, operands) in enumerate(tape.lines) for name in operands}
    held = {
        name: hashlib.shake_128(name.encode()).digest(size)
        for name, size in tape.inputs.items()
        if keep_inputs or name in last
    }
    most = sum(map(len, held.values()))
    for step, (name, size, operands) in enumerate(tape.lines):
        state = hashlib.shake_128(name.encode())
        for operand in operands:
            state.update(held[operand])
        held[name] = state.digest(size)
        most = max(most, sum(map(len, held.values())))
        for value in (*operands, name):
            wanted = value in tape.outputs or (keep_inputs and value in tape.inputs)
            if last.get(value, -1) <= step and not wanted:
                held.pop(value, None)
    return most, {name: held[name] for name in tape.outputs}
