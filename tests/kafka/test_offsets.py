"""Committed offsets as a leader tells them, which may not be the newest one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kio.schema.errors import ErrorCode

from quorumlog.entry import AppendReceipt, Durability
from quorumlog.errors import NotLeader
from quorumlog.kafka.codec import OFFSET_COMMIT, OFFSET_FETCH
from quorumlog.kafka.group_requests import offset_commit, offset_fetch
from quorumlog.kafka.machine import CreateKafkaTopic, KafkaMachine, decode_numbers, entry_of
from quorumlog.kafka.service import KafkaCall
from tests.kafka.test_service import a_service

TOPIC = bytes(range(16))
NONE = ErrorCode.none


class Leader:
    """Whose log commits and confirms when a test says so."""

    def __init__(self) -> None:
        self.service, self.member = a_service()
        self.member.lead(3)
        self.service.look()
        self.member.questions.pop()((b"",))
        self.appended: list[Any] = []
        log: Any = self.member
        log.enter = lambda act, client=None: act()
        log.append = lambda batch, name, timeout, done, owner: self.appended.append((batch, done))
        machines = self.service.machines
        self.machine: KafkaMachine = machines()
        self._apply(entry_of(CreateKafkaTopic(TOPIC, "orders", 1)))
        self.answers: list[Any] = []

    def _apply(self, batch: Any) -> tuple[Any, ...]:
        batch.stamp(0, 1, batch.starts.tolist(), 0)
        return tuple(self.machine.apply(batch, 0))

    def commit_next(self) -> None:
        """The oldest entry that was appended."""
        batch, done = self.appended.pop(0)
        (result,) = self._apply(batch)
        assert not any(decode_numbers(result))
        done(AppendReceipt(1, 0, 1, Durability.SYNC, results=(result,)))

    def ask(self, handler: Any, api_key: int, version: int, **fields: Any) -> None:
        client: Any = SimpleNamespace(caller=SimpleNamespace(is_checked=False), is_member=False)
        request: Any = SimpleNamespace(api_key=api_key, version=version, client_id="c")

        def done(values: Any, code: int) -> None:
            self.answers.append(values["topics"][0]["partitions"][0])

        handler(self.service, KafkaCall(request, SimpleNamespace(**fields), client, done))

    def commit(self, offset: int) -> None:
        row = SimpleNamespace(partition_index=0, committed_offset=offset, committed_metadata="")
        self.ask(
            offset_commit,
            OFFSET_COMMIT,
            7,
            group_id="g",
            member_id="",
            generation_id_or_member_epoch=-1,
            topics=[SimpleNamespace(name="orders", partitions=[row])],
        )

    def fetch(self) -> None:
        topics = [SimpleNamespace(name="orders", partition_indexes=[0])]
        self.ask(offset_fetch, OFFSET_FETCH, 5, group_id="g", topics=topics)


def test_a_leader_that_is_cut_off_tells_no_offset() -> None:
    leader = Leader()
    leader.fetch()
    assert leader.answers == [], "a later leader may have newer ones"
    leader.member.questions.pop()(NotLeader("another one leads"))
    assert [each["error_code"] for each in leader.answers] == [ErrorCode.not_coordinator]


def test_an_offset_that_is_being_committed_is_waited_for() -> None:
    """By a member of an earlier generation, perhaps: who goes on from an older one would go back."""
    leader = Leader()
    leader.commit(7)
    leader.fetch()
    assert (len(leader.appended), leader.answers) == (2, []), "an entry after that of the commit"
    leader.commit_next()
    assert [each["error_code"] for each in leader.answers] == [NONE], "the commit is answered"
    leader.commit_next()
    assert leader.answers[1]["committed_offset"] == 7


def test_where_nothing_is_being_committed_no_entry_is_written() -> None:
    leader = Leader()
    leader.commit(7)
    leader.commit_next()
    leader.fetch()
    assert leader.appended == []
    leader.member.questions.pop()((b"", 0))
    assert leader.answers[-1]["committed_offset"] == 7
