"""GPUs: what PyTorch's caching allocator does with a program's requests, told without torch."""
