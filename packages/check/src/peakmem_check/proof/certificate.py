"""Certificates: proofs of a lower bound on the peak of every order, as JSON ``peakmem.certificate/1`` or ``/2``.

The format is defined in ``docs/reference/format.md``. A certificate speaks about one original `Program`, named by its digest,
and needs no trust in whoever made it: `accept` lets the checker judge it, and what it returns has been checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from peakmem_check.model.program import Program

SCHEMA = "peakmem.certificate/1"
SCHEMAS = (SCHEMA, "peakmem.certificate/2")
"""The second is for programs with overlays and for proofs with `components` nodes; nothing else differs."""


def schema_of(program: Program, proofs: Mapping[str, Any]) -> str:
    """The lowest version that may hold the proofs of a program."""
    parts = any(node["kind"] == "components" for proof in proofs.values() for node in proof["nodes"])
    return SCHEMAS[program.has_overlays or parts]


@dataclass(frozen=True)
class Certificate:
    """A certificate document; see the module's description.

    Attributes
    ----------
    document : dict
        JSON-ready.
    """

    document: dict[str, Any]

    @property
    def lower_bound(self) -> int:
        return int(self.document["lower_bound"])

    @property
    def peak(self) -> int:
        return int(self.document["peak"])

    def to_json(self) -> dict[str, Any]:
        return self.document

    def to_bytes(self) -> bytes:
        """The file's bytes: sorted keys, one trailing newline, the same for the same document."""
        return json.dumps(self.document, sort_keys=True, separators=(",", ":")).encode() + b"\n"


@dataclass(frozen=True)
class CheckedCertificate(Certificate):
    """A certificate that `peakmem_check.proof.accept` let pass; nothing else makes one, and only such are printed."""
