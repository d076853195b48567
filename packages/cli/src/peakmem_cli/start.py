"""Where the script ``peakmem`` begins: Ctrl-C while the modules are imported ends it without a traceback."""

from __future__ import annotations

import signal


def run() -> None:
    """Import the command line and run it; exits with its code."""
    heeds = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if heeds:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from peakmem_cli.main import run as run_main

    if heeds:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run_main()
