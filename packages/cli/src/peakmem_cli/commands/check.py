"""``peakmem check``: verify a certificate without trusting who made it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from peakmem_cli.common import FrontendName, FrontendOptions, Json, ModelFile, Quiet


def command(
    model: ModelFile,
    certificate: Annotated[Path, typer.Argument(metavar="CERT", help="What certify or optimize wrote; - for standard input.")],
    options: FrontendOptions,
    frontend: FrontendName = None,
    json: Json = False,
    quiet: Quiet = False,
) -> int:
    """Verify that CERT proves its lower bound for MODEL; exit 1 if it does not.

    MODEL is the artifact itself or the program written by `certify --program-out`.
    """
    from peakmem.model import UsageError
    from peakmem.proof import check
    from peakmem.system.sizes import human
    from peakmem_check.jsonfile import parse_json, read_json

    from peakmem_cli.files import STDIN, load
    from peakmem_cli.screen import Screen
    from peakmem_cli.streams import standard_input

    screen = Screen(as_json=json, quiet=quiet)
    if str(model) == str(certificate) == STDIN:
        raise UsageError("-: standard input holds one file; name the model or the certificate")
    source = load(model, frontend, options)
    document = parse_json(standard_input(), "standard input") if str(certificate) == STDIN else read_json(certificate)
    check(source.program, document)
    peak, bound = document["peak"], document["lower_bound"]
    artifact = document.get("artifact")
    same_file = isinstance(artifact, dict) and artifact.get("digest") == source.digest
    notes = []
    if isinstance(artifact, dict) and not same_file:
        notes.append("the certificate was made for another file with this very program")
    screen.document(
        {
            "schema": "peakmem.checked/1",
            "input": str(model),
            "certificate": str(certificate),
            "valid": True,
            "program": source.program.digest,
            "peak": peak,
            "lower_bound": bound,
            "optimal": peak == bound,
            "same_artifact": same_file,
            "notes": notes,
        }
    )
    said = f"its orders reach it and are optimal ({human(peak)})" if peak == bound else f"its orders reach {human(peak)}"
    screen.answer(f"valid: no order of this program has a live_peak below {human(bound)}; {said}")
    screen.lines(notes, indent="note: ")
    return 0
