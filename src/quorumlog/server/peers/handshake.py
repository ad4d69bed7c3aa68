"""Handshake: what this member says of itself in the first frame of a connection."""

from __future__ import annotations

from typing import Any

from quorumlog.config import GroupConfig
from quorumlog.log_state.control_entries import LEVEL
from quorumlog.net.hello import WELCOME, Hello, HelloResponse
from quorumlog.net.peer_hello import member_list_of
from quorumlog.store.member_directory import MemberDirectory


class Handshake:
    def __init__(
        self,
        config: GroupConfig,
        directory: MemberDirectory,
        run_id: str,
        listens_on: str,
        tls_port: int = 0,
    ) -> None:
        """`tls_port`: beside a plain one."""
        self._directory = directory
        self._listens_on = listens_on
        self._same: dict[str, Any] = {
            "member_id": config.member_id,
            "directory_id": directory.directory_id,
            "members": member_list_of(config.members),
            "segment_bytes": config.storage.segment_bytes,
            "durability": directory.durability.value,
            "run_id": run_id,
            "level": LEVEL,
            "tls_port": tls_port,
        }
        """Said by both sides; it stays as long as the member runs."""

    @property
    def cluster_id(self) -> str:
        """Empty until the cluster has formed."""
        return self._directory.formation.cluster_id

    def hello(self, role: str, to_member_id: str) -> Hello:
        return Hello(
            role=role,
            to_member_id=to_member_id,
            cluster_id=self.cluster_id,
            listens_on=self._listens_on,
            **self._same,
        )

    def response(self, code: int = WELCOME, message: str = "", connection_id: str = "") -> HelloResponse:
        return HelloResponse(
            code=code,
            message=message,
            cluster_id=self.cluster_id,
            connection_id=connection_id,
            **self._same,
        )
