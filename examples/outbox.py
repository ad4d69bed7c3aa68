"""An outbox: what a database has committed reaches the log, once and in order, though both may fail.

The application writes its order and the message about it in one transaction. A relay, the only writer of
its group, appends what is in the outbox and notes where. `expected_last` makes that safe to repeat: if
the outcome of an append is unknown, or the relay died before it noted it, the same append is made again,
and either succeeds or is refused for the very entry that it has written.

python examples/outbox.py
"""

from __future__ import annotations

import sqlite3

from quorumlog import LedgerClient, LocalCluster, OutcomeUnknown, WrongLastIndex, connect

SCHEMA = """
CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT);
CREATE TABLE outbox (id INTEGER PRIMARY KEY, body BLOB, log_index INTEGER);
"""


def order(database: sqlite3.Connection, item: str) -> None:
    with database:
        (number,) = database.execute(
            "INSERT INTO orders (item) VALUES (?) RETURNING id", (item,)
        ).fetchone()
        body = f"{number} {item}".encode()  # names its order: no other message is the same
        database.execute("INSERT INTO outbox (body) VALUES (?)", (body,))


def relay(database: sqlite3.Connection, log: LedgerClient) -> int:
    """Append all that waits; returns how much that was."""
    waiting = database.execute(
        "SELECT id, body FROM outbox WHERE log_index IS NULL ORDER BY id"
    ).fetchall()
    (last_index,) = database.execute("SELECT max(log_index) FROM outbox").fetchone()
    last_index = -1 if last_index is None else last_index
    for number, body in waiting:
        last_index = append_once(log, body, last_index)
        with database:
            database.execute("UPDATE outbox SET log_index = ? WHERE id = ?", (last_index, number))
    return len(waiting)


def append_once(log: LedgerClient, body: bytes, last_index: int) -> int:
    """The index of `body`, which follows the message at `last_index`."""
    while True:
        try:
            return log.append(body, expected_last=last_index).first_index
        except OutcomeUnknown:
            continue
        except WrongLastIndex as error:
            if error.actual > last_index and log.get(error.actual).body == body:
                return error.actual  # an earlier try of ours
            raise  # another client writes to this group


def main() -> None:
    database = sqlite3.connect(":memory:")
    database.executescript(SCHEMA)
    with LocalCluster(members=3) as cluster, connect(cluster.servers) as log:
        for item in ("apples", "pears"):
            order(database, item)
        print(f"relayed {relay(database, log)}")
        order(database, "plums")
        log.append(b"3 plums")  # as if the relay had died before it could note this
        cluster.kill(cluster.leader())
        order(database, "figs")
        print(f"relayed {relay(database, log)}")
        print(", ".join(entry.body.decode() for entry in log.read(0)))


if __name__ == "__main__":
    main()
