"""The program model, which stands in the distribution ``peakmem-check``."""

from peakmem_check.model import *  # noqa: F403
from peakmem_check.model import __all__ as __all__
