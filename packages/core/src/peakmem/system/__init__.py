"""What touches the machine: files, sizes, child processes, native helpers, progress."""
