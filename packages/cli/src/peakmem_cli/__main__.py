"""``python -m peakmem_cli``."""

from peakmem_cli.start import run

run()
