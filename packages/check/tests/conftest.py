"""Makes the helper modules (`checker_pairs`; `oracles`, `tinyprover`) importable from the tests of this folder."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "core" / "tests"))
sys.path.insert(0, str(Path(__file__).parent))
