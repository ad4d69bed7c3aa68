"""A log with users: the first one is an administrator, and another one may read, and no more.

python examples/users.py
"""

from __future__ import annotations

import time

from quorumlog import Entry, LedgerClient, LedgerError, LocalCluster, connect
from quorumlog.log_state.users import Kind, Right, RoleGrant, UserOperation, UserOrder
from quorumlog.net.credentials import ClientUser, verifier_for

ALICE, BOB = ClientUser("alice", "sesame"), ClientUser("bob", "tahini")  # a program names a file
READS = RoleGrant(Right.READ, Kind.LOG, b"default", is_exact=True)


def first_read(log: LedgerClient) -> list[Entry]:
    """Every member learns of a change within a second."""
    while True:
        try:
            return list(log.read(0))
        except LedgerError:
            time.sleep(0.05)


def main() -> None:
    with LocalCluster(members=3, store="memory") as cluster:
        with connect(cluster.servers) as log:
            first = UserOrder(UserOperation.ADD_USER, "alice", ("admin",), (), verifier_for("sesame"))
            log.change_users(first)
        with connect(cluster.servers, user=ALICE) as log:
            log.change_users(UserOrder(UserOperation.ADD_ROLE, "readers", (), (READS,)))
            log.change_users(
                UserOrder(UserOperation.ADD_USER, "bob", ("readers",), (), verifier_for("tahini"))
            )
            log.append(b"for bob")
        with connect(cluster.servers, user=BOB) as log:
            print([entry.body for entry in first_read(log)])
            try:
                log.append(b"from bob")
            except LedgerError as refused:
                print(refused)


if __name__ == "__main__":
    main()
