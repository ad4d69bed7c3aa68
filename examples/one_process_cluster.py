"""A cluster of three in this process: append, lose the leader, append again, read everything back.

python examples/one_process_cluster.py
"""

from __future__ import annotations

from quorumlog import LocalCluster, OutcomeUnknown, connect


def main() -> None:
    with LocalCluster(members=3) as cluster, connect(cluster.servers) as log:
        print(f"{cluster.leader()} leads {', '.join(cluster.running)}")
        receipt = log.append_batch([b"reading %d" % number for number in range(100)])
        print(f"{receipt.count} entries from index {receipt.first_index} on, term {receipt.term}")

        killed = cluster.leader()
        cluster.kill(killed)
        print(f"{killed} is dead, {cluster.leader()} leads")
        try:
            receipt = log.append(b"without it")
            print(f"index {receipt.first_index}, term {receipt.term}")
        except OutcomeUnknown as error:
            # Perhaps written: append it again only if duplicates are recognised.
            print(f"unknown: {error}")

        cluster.restart(killed)
        for row in log.status():
            print(f"{row.id}: {row.role}, committed up to {row.committed_index}")
        print(f"{sum(1 for _ in log.read(0))} entries in the log")


if __name__ == "__main__":
    main()
