"""One small module a command; each offers ``command``, which `peakmem_cli.main` builds on demand."""
