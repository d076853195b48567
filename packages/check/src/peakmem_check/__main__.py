"""``python -m peakmem_check``."""

from peakmem_check.main import run

run()
