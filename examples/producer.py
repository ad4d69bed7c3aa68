"""Append many bodies in order, and know the outcome of each, through any failure.

python examples/producer.py                        # a cluster of its own
python examples/producer.py 127.0.0.1:20911        # a running one
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from quorumlog import LocalCluster, OutcomeUnknown, Refused, connect

MESSAGES = 10_000


def messages() -> Iterator[bytes]:
    """Taken as the stream has room for them: this may be a file or a query. They leave in batches: of a
    queue that runs dry the last ones would wait for the next (docs/client.md, Streams)."""
    for number in range(MESSAGES):
        yield b"message %d" % number


def main(servers: str) -> None:
    with connect(servers) as log, log.append_stream(messages()) as stream:
        try:
            for receipt in stream:  # one a batch; nothing is sent before the first is asked for
                last_index = receipt.last_index
            print(f"all {stream.progress.committed_records} are committed, the last at {last_index}")
        except (Refused, OutcomeUnknown) as error:
            committed, unknown, unwritten = stream.progress
            print(f"{committed} are committed; {unknown} may be, {unwritten} are not: {error}")
            sys.exit(1)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(sys.argv[1])
    else:
        with LocalCluster(members=3) as cluster:
            main(cluster.servers)
