"""What every test needs of its process."""

from __future__ import annotations

import signal

from quorumlog.version import DESCRIPTION

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts what it puts into the background with Ctrl-C ignored, and every
    # process that a test starts and interrupts would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    return DESCRIPTION
