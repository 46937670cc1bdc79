"""Signals as a person's shell hands them down, whatever started the tests.

A runner in the background starts its children with SIGINT ignored, one under nohup with SIGHUP ignored, and what is
ignored is inherited: the commands under test would be deaf to Ctrl-C and to a closed terminal.
"""

from __future__ import annotations

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
