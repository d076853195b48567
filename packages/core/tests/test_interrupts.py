"""An interrupt stays an interrupt, wherever it strikes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from generators import random_program
from peakmem.ordering import cuts, order_program


def test_the_flow_solver_is_given_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """While its binding converts a list, Ctrl-C becomes a TypeError: that struck it in one of fifteen tries."""
    solver, calls = cuts._solver(), []

    class Strict:
        def __init__(self) -> None:
            self.real = solver()

        def add_arcs_with_capacity(self, *arguments: Any) -> Any:
            calls.append([getattr(a, "dtype", None) for a in arguments])
            assert all(isinstance(a, np.ndarray) and a.flags.c_contiguous for a in arguments)
            return self.real.add_arcs_with_capacity(*arguments)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.real, name)

    program = random_program(4, 30)
    whole = order_program(program)
    monkeypatch.setattr(cuts, "_solver", lambda: Strict)
    assert order_program(program).orders == whole.orders
    assert calls
    assert all(types == [np.int32, np.int32, np.int64] for types in calls)


def test_an_interrupt_while_a_proof_is_written_keeps_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    from peakmem.ordering.evidence import Writer
    from peakmem.proof import check

    struck = 0
    for seed in range(30):
        program = random_program(seed, 14)
        whole = order_program(program)
        write, calls = Writer.write, []

        def once(self: Writer, write: Any = write, calls: Any = calls) -> Any:
            calls.append(1)
            if len(calls) == 1:
                raise KeyboardInterrupt
            return write(self)

        with monkeypatch.context() as patch:
            patch.setattr(Writer, "write", once)
            found = order_program(program)
        assert (found.orders, found.peak) == (whole.orders, whole.peak)
        assert found.lower_bound <= whole.lower_bound
        if found.certificate is not None:
            check(program, found.certificate.to_json())
            struck += found.interrupted
        assert any("interrupted" in note for note in found.notes)
    assert struck, "no weaker proof was ever needed"
