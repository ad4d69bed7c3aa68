"""A member tells where its log begins and how long its segments are, and which groups it has."""

from __future__ import annotations

import asyncio
from pathlib import Path

from quorumlog import LocalCluster, StoreConfig, connect
from quorumlog.client.async_client import AsyncLedgerClient
from tests.dropping import drop_before_newest_boundary

STORAGE = StoreConfig(segment_bytes=4096, index_segment_bytes=320)


def test_a_log_tells_where_it_begins_also_once_its_first_entries_are_gone(tmp_path: Path) -> None:
    with LocalCluster(members=1, storage=STORAGE, directory=tmp_path) as cluster:
        with connect(cluster.servers) as log:
            log.append_batch([bytes(500)] * 20)
            layout = log.layout()
            assert (layout.member_id, layout.cluster_id) == ("n0", log.status()[0].cluster_id)
            assert (layout.segment_bytes, layout.index_segment_bytes) == (4096, 320)
            assert (layout.begin_index, layout.begin_term, layout.begin_chain) == (-1, -1, 0)
            assert (layout.begin_position, layout.begin_record) == (0, b"")
            assert log.layout("n0").begin_index == -1
        cluster.stop("n0")
        start = drop_before_newest_boundary(cluster.data_dir("n0"), STORAGE)
        cluster.restart("n0")
        with connect(cluster.servers) as log:
            layout, point = log.layout(), start.point
            assert (layout.begin_index, layout.begin_term) == (point.index, point.term)
            assert (layout.begin_chain, layout.begin_position) == (point.chain, point.position)
            assert layout.begin_record == start.record


def test_a_server_tells_its_groups_to_a_client_of_any_group() -> None:
    with LocalCluster(members=1) as cluster:
        with connect(cluster.servers, group="not-there") as log:
            assert log.groups() == ["default", "default.staging"]

        async def ask() -> list[str]:
            async with AsyncLedgerClient(cluster.servers) as log:
                return await log.groups()

        assert asyncio.run(ask()) == ["default", "default.staging"]
