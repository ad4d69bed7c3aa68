"""What every test needs of its process."""

from __future__ import annotations

import functools
import signal
from pathlib import Path

import pytest
import typer.main
import typer.testing
from hypothesis import HealthCheck, settings

from quorumlog import LocalCluster
from quorumlog.version import DESCRIPTION

# A shell without job control starts what it puts into the background with Ctrl-C ignored, and nohup with
# SIGHUP ignored: every process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# What the options of all commands are takes longer to work out than most tests of one of them.
typer.testing._get_command = functools.cache(typer.main.get_command)

# Most tests count indices, and when a second is over is no business of theirs. Those of time marks ask
# for them; members that run as processes write them.
LocalCluster.__init__.__kwdefaults__["time_marks"] = False

# How long an example takes says something about the machine, and nothing about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

WITHOUT_TIME = (
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
"""In virtual time or without any: each may run anywhere."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What is long and must stay together begins first; what fills any gap comes last."""
    tests = Path(__file__).parent

    def turn(item: pytest.Item) -> int:
        path = item.path.relative_to(tests).as_posix()
        return 0 if shares_spark(item) else 2 if path.startswith(WITHOUT_TIME) else 1

    items.sort(key=turn)
    for item in items:
        if turn(item) < 2:
            group = "spark" if turn(item) == 0 else item.path.relative_to(tests).as_posix()
            item.add_marker(pytest.mark.xdist_group(group))
            # Members with real clocks may lose their leader on a machine that stalls, and a test's next
            # step with it. The closing line counts what was run again, and -ra names it.
            item.add_marker(pytest.mark.flaky(reruns=1))


def shares_spark(item: pytest.Item) -> bool:
    """One Spark serves all of these, which makes them the longest chain: nothing else joins it."""
    return "spark" in getattr(item, "fixturenames", ())


def pytest_report_header() -> str:
    return DESCRIPTION
