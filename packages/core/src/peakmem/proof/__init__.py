"""Certificates and their checker, which stand in the distribution ``peakmem-check``."""

from peakmem_check.proof import *  # noqa: F403
from peakmem_check.proof import __all__ as __all__
