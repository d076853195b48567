"""A tiny frontend for peakmem."""
