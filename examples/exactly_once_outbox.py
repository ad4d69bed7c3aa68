"""An outbox that is killed wherever you like: each row is in the log once.

The rows of a table go to the log, the number of a row being its sequence. After a start the program asks
which rows are in the log, and notes nothing itself.

python examples/exactly_once_outbox.py
"""

import sqlite3

import quorumlog


def send_rows(table: sqlite3.Connection, servers: str) -> int:
    with quorumlog.connect(servers, producer_id="outbox") as log:
        next_row = log.last_sequence() + 1
        rows = table.execute("SELECT id, body FROM outbox WHERE id >= ? ORDER BY id", (next_row,))
        count = 0
        for number, body in rows:
            log.append(body, sequence=number)
            count += 1
        return count


def main() -> None:
    table = sqlite3.connect(":memory:")
    table.execute("CREATE TABLE outbox (id INTEGER PRIMARY KEY, body BLOB)")
    with quorumlog.LocalCluster(members=3) as cluster:
        table.executemany("INSERT INTO outbox VALUES (?, ?)", [(n, b"row %d" % n) for n in range(5)])
        print("sent", send_rows(table, cluster.servers))
        table.executemany("INSERT INTO outbox VALUES (?, ?)", [(n, b"row %d" % n) for n in range(5, 8)])
        cluster.kill(cluster.leader())
        print("sent", send_rows(table, cluster.servers))
        with quorumlog.connect(cluster.servers) as log:
            print("in the log", [entry.body.decode() for entry in log.read(0)])


if __name__ == "__main__":
    main()
