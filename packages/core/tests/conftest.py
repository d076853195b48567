"""Makes the helper modules of this folder importable from its tests, and those that the tests of the checker share."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "check" / "tests")]
