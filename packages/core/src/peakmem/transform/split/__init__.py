"""Splitting: run the wide part of a model in bands, with the runtime's own operators and every bit equal."""
