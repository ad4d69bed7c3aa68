"""Options that there are not, of what else an application makes: errors of types, and when it runs.

mypy checks this folder, and refuses a `type: ignore` that is not needed: each is a line that is wrong.
"""

from __future__ import annotations

import pytest

from quorumlog import broker
from quorumlog.broker.dledger.dledger_broker import LocalBrokers
from quorumlog.kv.testing import LocalStores
from quorumlog.pipelines.statistics import statistics
from quorumlog.spark.pipelines import Place
from quorumlog.testing import LocalCluster, SimulatedLog

NOBODY = "127.0.0.1:1"


def test_an_option_that_there_is_not() -> None:
    with pytest.raises(TypeError, match="flsh"):
        LocalCluster(1, flsh="async")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="storag"):
        LocalBrokers(1, storag=None)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="engin"):
        LocalStores(1, engin=None)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="fault"):
        SimulatedLog(1, fault=())  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="timeout"):
        broker.connect(NOBODY, timeout=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="delay"):
        broker.AsyncConsumer(NOBODY, "g", "t", delay=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="topp"):
        statistics(Place(servers=NOBODY), topp=3)  # type: ignore[call-arg]
