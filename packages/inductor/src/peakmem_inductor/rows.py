"""A graph's row of the report."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from peakmem.model import Program


@dataclass
class GraphReport:
    """One graph at one set of shapes and threads; all bytes are above entry of the call.

    Attributes
    ----------
    name : str
        ``0_forward``, ``0_backward``, ``0_inference``: Inductor's own name.
    state : {"permuted", "recomputed", "pooled", "kept", "planned", "left alone", "restored"}
        ``recomputed``: permuted, and some statements run twice. ``pooled``: permuted, and its
        buffers lie in one allocation. ``kept``: nothing better exists or was found.
        ``planned``: a better order was found, which the next call checks. ``left alone``: not served, not understood or not measurable. ``restored``:
        the verification failed.
    reason : str
        Of the last two.
    candidate : str
        Setting of Inductor whose wrapper runs.
    statements : int
    before : int or None
        Measured peak of the untouched wrapper.
    after : int or None
        Modelled peak of what runs now.
    measured : int or None
        Measured peak of what runs now, where it was verified.
    bound : int or None
        No order of the statements of this wrapper has a lower peak, each run once.
    certified : bool
        The bound is proved by a certificate that the independent checker accepted, and ``after`` reaches it.
    unchecked : str
        Why what runs was not run beside the original first; empty where it was, and where the original runs.
    uncompared : str
        Why the bits of the verifying run were not compared, although its bytes were.
    identical : bool or None
        Outputs and mutated arguments had the same bits in the verifying run.
    macs, extra_macs : int
        Multiply-accumulate operations of the graph, and of what runs again.
    pool, unpooled : str
        What lies in the pool of what was found, or why there is none although one was wanted.
    reruns : int
        Statements that run once more.
    exact : bool or None
        No plan for the same base order reaches the peak of the plan for less MACs; None where nothing runs again.
    data_dependent : bool
        Sizes depend on data: bytes are those of the first call.
    certificate : dict or None
        Document ``peakmem.certificate/1`` of the bound; it speaks of ``program``, whose peaks count arguments too.
    program : Program or None
        The statements as modelled.
    enlarged : Program or None
        ``program`` with copies, where statements run twice.
    order : tuple of int
        Of ``enlarged`` where there is one, else of ``program``.
    seconds : float
        Spent on recording, ordering and verifying.
    """

    name: str
    state: str = "left alone"
    reason: str = ""
    candidate: str = "default"
    statements: int = 0
    threads: int = 0
    before: int | None = None
    after: int | None = None
    measured: int | None = None
    bound: int | None = None
    certified: bool = False
    unchecked: str = ""
    uncompared: str = ""
    identical: bool | None = None
    macs: int = 0
    extra_macs: int = 0
    pool: str = ""
    unpooled: str = ""
    reruns: int = 0
    exact: bool | None = None
    data_dependent: bool = False
    seconds: float = 0.0
    path: str = ""
    certificate: dict[str, Any] | None = field(default=None, repr=False)
    program: Program | None = field(default=None, repr=False)
    enlarged: Program | None = field(default=None, repr=False)
    order: tuple[int, ...] = field(default=(), repr=False)

    def to_json(self) -> dict[str, Any]:
        """Everything but the programs and ``order``, JSON-ready."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("program", "enlarged", "order")}
