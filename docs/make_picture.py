"""Draw one figure of a report: memory over the steps of a model before and after, or its arena, or its lifetimes.

    python docs/make_picture.py MODEL OUT.svg [--frontend NAME] [--figure memory]

Every number is computed here: the model is optimized, and what comes out is drawn as it is.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import peakmem


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--frontend")
    parser.add_argument("--figure", choices=[kind for kind in peakmem.report.FIGURES if kind != "front"], default="memory")
    given = parser.parse_args()
    result = peakmem.optimize(peakmem.load(given.model, frontend=given.frontend), measure=False)
    given.out.write_bytes(peakmem.report.figure(result, given.figure))


if __name__ == "__main__":
    main()
