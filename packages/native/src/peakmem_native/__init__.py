"""Where the compiled inner loops of peakmem's searches lie; core finds and calls them by itself."""

from __future__ import annotations

from pathlib import Path

LIBRARY = Path(__file__).with_name("kernel.so")
"""The shared library; under the same name on every system. Absent in a source tree that was not built."""
