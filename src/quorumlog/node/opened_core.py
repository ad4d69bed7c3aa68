"""The core of a member as its opened directory has it."""

from __future__ import annotations

import random

from quorumlog.config import GroupConfig
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.entry import Durability, Replica
from quorumlog.store.directory.member_directory import MemberDirectory


def core_on(
    directory: MemberDirectory, config: GroupConfig, rng: random.Random, now_ms: float
) -> RaftNode:
    store, start = directory.store, directory.store.start
    term_runs = store.term_runs()  # which may find damage, so before the ranges are taken
    return RaftNode(
        config.consensus,
        Replica(config.member_id, directory.directory_id),
        [member.member_id for member in config.members],
        formation=directory.formation,
        hard_state=directory.hard_state,
        term_runs=term_runs,
        before_begin=store.begin.entry_id,
        ledger_end_index=store.end.index,
        committed_index=directory.committed_index,
        async_mode=directory.durability is Durability.ASYNC,
        random=rng,
        now_ms=now_ms,
        damaged=[(each.first_index, each.stop_index) for each in store.damaged],
        owed_index=-1 if start is None else start.owed_index,
    )
