"""The command line of peakmem: no algorithms, only words and tables."""
