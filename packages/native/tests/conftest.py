"""Makes the helper modules that the tests of the checker share importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "check" / "tests"))
