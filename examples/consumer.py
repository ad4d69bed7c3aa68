"""A consumer that remembers its place: each entry counts once, however often the consumer is restarted.

The result of an entry and the position are stored in one transaction. If they were stored separately, a
crash between the two could count an entry twice, or never.

python examples/consumer.py
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory

from quorumlog import LocalCluster, connect


def consume(servers: str, path: Path, limit: int) -> int:
    """Add up to `limit` entries to the totals; returns how many there were."""
    database = sqlite3.connect(path)
    with database:
        database.execute("CREATE TABLE IF NOT EXISTS totals (name TEXT PRIMARY KEY, value INTEGER)")
        database.execute("CREATE TABLE IF NOT EXISTS place (next_index INTEGER)")
    (next_index,) = database.execute("SELECT max(next_index) FROM place").fetchone()
    count = 0
    # A position beyond the end raises: this is another log than the one that it was stored for.
    with connect(servers) as log, log.tail(next_index or 0, timeout_ms=200) as entries:
        for entry in entries:
            name, value = entry.body.decode().split("=")
            with database:
                database.execute(
                    "INSERT INTO totals VALUES (?, ?) ON CONFLICT (name)"
                    " DO UPDATE SET value = value + excluded.value",
                    (name, int(value)),
                )
                database.execute("DELETE FROM place")
                database.execute("INSERT INTO place VALUES (?)", (entry.index + 1,))
            count += 1
            if count == limit:
                break
    totals = database.execute("SELECT name, value FROM totals ORDER BY name").fetchall()
    database.close()
    print(f"{count} entries, then {', '.join(f'{name} {value}' for name, value in totals)}")
    return count


def main() -> None:
    # Beside the log of this example, which ends with it: places in another log mean nothing.
    with TemporaryDirectory() as directory, LocalCluster(members=3) as cluster:
        path = Path(directory) / "totals.sqlite"
        with connect(cluster.servers) as log:
            log.append_batch([b"%s=%d" % (b"ab"[n % 2 :][:1], n) for n in range(100)])
        consume(cluster.servers, path, limit=30)  # stopped in the middle
        consume(cluster.servers, path, limit=1000)  # the rest
        consume(cluster.servers, path, limit=1000)  # nothing is left


if __name__ == "__main__":
    main()
