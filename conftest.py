"""For all tests: Ctrl-C reaches what they start, also where a shell began them in the background, with SIGINT ignored."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
