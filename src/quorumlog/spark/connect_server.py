"""A Spark Connect server: whether it answers, and how long its client waits for one that is gone.

PySpark asks a server that does not answer again for more than ten minutes, silently, also before the
first answer.
"""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any

from quorumlog.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEME = "sc://"
ANSWER_S = 10.0
_MAX_WAIT_MS = 5_000
_RETRIES = 7
"""Together some 20 s."""


def is_connect(master: str) -> bool:
    return master.startswith(_SCHEME)


def shown(master: str) -> str:
    """Without what may follow, a token."""
    return _SCHEME + re.split("[/;]", master[len(_SCHEME) :])[0] if is_connect(master) else master


def check_answers(master: str) -> None:
    """Raises ConfigError, ImportError."""
    import grpc
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.client import DefaultChannelBuilder

    try:
        channel = DefaultChannelBuilder(master).toChannel()
    except (PySparkException, ValueError):  # which repeat all of it
        raise ConfigError(
            f"{shown(master)} names no Connect server; write sc://HOST or sc://HOST:PORT, and behind it"
            " /; and parameters"
        ) from None
    try:
        grpc.channel_ready_future(channel).result(timeout=ANSWER_S)
    except grpc.FutureTimeoutError:
        raise ConfigError(
            f"no Connect server answers at {shown(master)} within {ANSWER_S:g} s; start it, or name"
            " another"
        ) from None
    finally:
        channel.close()


def bound_retries(spark: SparkSession, retries: int = _RETRIES) -> None:
    """Of a session with a Connect server, if one is lost in the middle."""
    from pyspark.sql.connect.client.retries import DefaultPolicy

    # It is told as an error.
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")
    client: Any = spark.client  # type: ignore[operator, unused-ignore]
    client.set_retry_policies([DefaultPolicy(max_retries=retries, max_backoff=_MAX_WAIT_MS)])
