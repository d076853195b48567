"""``python -m peakmem_cli``."""

from peakmem_cli.main import run

run()
