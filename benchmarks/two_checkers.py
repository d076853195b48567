"""The two checkers of certificates, in Python and in C, on random programs, their certificates, and what is wrong.

    python benchmarks/two_checkers.py [--programs 10000] [--mutations 50000] [--seed 0] [--keep DIR] [--markdown FILE]

Every certificate must be accepted by both with the same bound and peak; every mutation (of a value, of the structure,
of the claim, of a byte, in either file) must get the same verdict from both. Prints a table and the kinds of nodes
met; exits 1 if the checkers disagree anywhere, with the smallest pair of files in ``--keep``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "packages" / "core" / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "packages" / "check" / "tests"))

from checker_pairs import ALL_KINDS, compiled, study


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--mutations", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="write the pairs on which the checkers disagree there")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the table there too")
    parser.add_argument(
        "--sanitize",
        action="store_true",
        help="compile with address and undefined-behaviour sanitizers, and tables of ancestors for small programs",
    )
    options = parser.parse_args()
    flags = ("-std=c99", "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-DOFTEN=1")
    begin = time.process_time()
    with tempfile.TemporaryDirectory() as name:
        checker = compiled(Path(name), *(flags if options.sanitize else ()))
        if checker is None:
            sys.exit("no C compiler is found (cc, gcc or clang)")
        found = study(checker, Path(name), options.seed, options.programs, options.mutations, _progress)
    counts = found.counts
    row = [
        options.programs,
        counts["certificates"],
        counts["mutations"],
        counts["accepted"],
        counts["refused"],
        counts["bad"],
    ]
    text = (
        "| programs | certificates | mutations | accepted by both | refused by both | bad by both | disagreements |\n"
    )
    text += "|" + "---:|" * 7 + "\n"
    text += "| " + " | ".join(f"{x:,}" for x in (*row, len(found.disagreements))) + " |\n\n"
    text += "Nodes: " + ", ".join(f"{kind} {found.kinds[kind]:,}" for kind in sorted(ALL_KINDS)) + ".\n"
    text += f"Programs with overlays: {counts['overlays']:,}.\n"
    print(text)
    print(f"{time.process_time() - begin:.0f} s of CPU time")
    if options.markdown:
        title = "# Two checkers: verdicts on random certificates and what is wrong with them\n\n"
        made = "Made by `python benchmarks/two_checkers.py --markdown docs/tables/checkers.md`.\n\n"
        options.markdown.write_text(title + made + text)
    for k, (python, c, program, document) in enumerate(
        sorted(found.disagreements, key=lambda d: len(d[2]) + len(d[3]))
    ):
        print(f"disagreement {k}: Python: {python}; C: {c}")
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"{k}.program.json").write_bytes(program)
            (options.keep / f"{k}.certificate.json").write_bytes(document)
    return int(bool(found.disagreements) or found.kinds.keys() != ALL_KINDS)


def _progress(i: int) -> None:
    if i % 500 == 0:
        print(f"{i} programs", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
