"""peakmem for TensorFlow Lite files.

Reads a ``.tflite`` file, permutes its operators, plans the offsets of its tensors, rewrites it in place and proves on
the real TFLite Micro interpreter that the arena shrank as predicted and that no tensor changed.

    >>> import peakmem
    >>> model = peakmem.load("wake_word.tflite", frontend="tflite")   # doctest: +SKIP
"""

from peakmem_tflite.frontend import TfliteFrontend

__all__ = ["TfliteFrontend"]
