"""Proofs of a bound: documents, the checker, and what a proof says in sentences. Imports the model alone."""

from peakmem_check.proof.acceptance import accept
from peakmem_check.proof.certificate import SCHEMA, SCHEMAS, Certificate, CheckedCertificate, schema_of
from peakmem_check.proof.check import CheckReport, check
from peakmem_check.proof.explain import explain

__all__ = [
    "SCHEMA", "SCHEMAS", "Certificate", "CheckReport", "CheckedCertificate", "accept", "check", "explain", "schema_of",
]  # fmt: skip
