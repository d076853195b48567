"""Checks certificates of least peak memory, knowing the program model and nothing else. Standard library only."""
