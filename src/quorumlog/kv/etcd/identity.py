"""Names of a member and its cluster in etcd's answers."""

from __future__ import annotations

from collections.abc import Callable

from quorumlog.kv.etcd import messages_pb2 as pb
from quorumlog.kv.etcd.conversions import number_of


class EtcdIdentity:
    def __init__(
        self, member_id: str, cluster_id: Callable[[], str], term: Callable[[], int] = lambda: 0
    ) -> None:
        """`cluster_id`: empty before it is known."""
        self.member_id = member_id
        self._cluster_id = cluster_id
        self._term = term

    def header(self, revision: int) -> pb.ResponseHeader:
        """The revision is at least 1: an empty store is at revision 1 in etcd, and clients rely on
        that. A cluster id that is not known yet is left out: clients take another one for another
        cluster."""
        cluster_id = self._cluster_id()
        return pb.ResponseHeader(
            cluster_id=number_of(cluster_id) if cluster_id else 0,
            member_id=number_of(self.member_id),
            revision=revision if revision > 1 else 1,
            raft_term=self._term(),
        )
