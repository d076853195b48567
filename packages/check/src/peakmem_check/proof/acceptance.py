"""The one place where a proof becomes a proof that may be shown."""

from __future__ import annotations

from collections.abc import Mapping

from peakmem_check.model.program import Program
from peakmem_check.proof.certificate import Certificate, CheckedCertificate
from peakmem_check.proof.check import check


def accept(program: Program, certificate: Certificate, artifact: Mapping[str, str] | None = None) -> CheckedCertificate:
    """Let the checker judge a certificate.

    Parameters
    ----------
    program : Program
    certificate : Certificate
    artifact : mapping, optional
        ``digest``, ``frontend``, ``version`` of the file that the program was read from; recorded.

    Raises
    ------
    Refused
        With the checker's sentence.

    Notes
    -----
    As `check`.
    """
    document = certificate.document if artifact is None else {**certificate.document, "artifact": dict(artifact)}
    check(program, document)
    return CheckedCertificate(document)
