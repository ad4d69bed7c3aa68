"""What every test needs of its process."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from quorumlog import LocalCluster
from quorumlog.version import DESCRIPTION

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell without job control starts what it puts into the background with Ctrl-C ignored, and every
    # process that a test starts and interrupts would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Most tests count indices, and when a second is over is no business of theirs. Those of time marks ask
# for them; members that run as processes write them.
LocalCluster.__init__.__kwdefaults__["time_marks"] = False

# How long an example takes says something about the machine, and nothing about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

SHARES_THE_MACHINE = (
    "architecture/",
    "broker/store/",
    "client/protocol/",
    "consensus/",
    "mutants/",
    "node/",
    "sim/",
    "store/",
    "wire/",
    "test_batch.py",
    "test_compiled.py",
    "test_config.py",
)
"""In virtual time or without any: whatever runs beside these, they come out the same."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All others have members that time each other, Spark, or both: they come last, in one process."""
    tests = Path(__file__).parent

    def shares(item: pytest.Item) -> bool:
        return item.path.relative_to(tests).as_posix().startswith(SHARES_THE_MACHINE)

    items.sort(key=shares, reverse=True)
    for item in items:
        if not shares(item):
            item.add_marker(pytest.mark.xdist_group("machine"))


def pytest_report_header() -> str:
    return DESCRIPTION
