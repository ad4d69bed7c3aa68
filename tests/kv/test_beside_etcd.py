"""The same random requests to a real etcd and to our store: answers are equal field by field, where the
revisions of one are those of the other, in the same order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from quorumlog.kv.errors import KeyValueError
from quorumlog.kv.requests import (
    FROM_KEY,
    Compact,
    Compare,
    DeleteRange,
    Grant,
    GrantAnswer,
    History,
    KeyValue,
    Operation,
    Put,
    Range,
    Relation,
    Revoke,
    RevokeAnswer,
    Target,
    Txn,
    check,
    encode,
)
from tests.kv.applied import AppliedStore
from tests.kv.etcd import EXAMPLES, Etcd, running_etcd

LEASES = (71, 72)
BACK = 6
"""So many of the newest revisions are asked for."""

keys = st.sampled_from([b"a", b"a\0", b"ab", b"b", b"c"])
ends = st.sampled_from([b"", b"", FROM_KEY, b"ab", b"b", b"d"])
values = st.sampled_from([b"", b"1", b"2"])
leases = st.sampled_from([0, 0, *LEASES])
# A revision is told as how far back it lies; -1 is one that is not there yet.
backs = st.integers(-1, BACK)
flags = st.booleans()
puts = (
    st.builds(Put, keys, values, leases, flags)
    | st.builds(lambda key, lease, prev: Put(key, b"", lease, prev, True), keys, leases, flags)
    | st.builds(lambda key, value, prev: Put(key, value, 0, prev, False, True), keys, values, flags)
)
deletes = st.builds(DeleteRange, keys, ends, flags)
ranges = st.builds(
    Range,
    keys,
    ends,
    st.integers(0, 3),
    st.just(0) | backs.map(lambda back: back + 2),
    st.sampled_from([Target.KEY, Target.VERSION, Target.CREATE, Target.MOD, Target.VALUE]),
    flags,
    flags,
    st.sampled_from([False, False, True]),
)
compares = st.builds(
    Compare,
    keys,
    st.sampled_from([Target.VERSION]),
    st.sampled_from(list(Relation)),
    st.integers(0, 2),
    ends,
) | st.builds(Compare, keys, st.just(Target.VALUE), st.sampled_from(list(Relation)), values, ends)
# etcd does not see that a deletion of all keys from one on meets a put; we refuse that.
bounded = st.builds(DeleteRange, keys, ends.filter(lambda end: end != FROM_KEY), flags)
operations = puts | bounded | ranges
txns = st.builds(
    Txn,
    st.lists(compares, max_size=2),
    st.lists(operations, max_size=4),
    st.lists(operations, max_size=3),
)
nested = st.builds(
    Txn,
    st.lists(compares, max_size=1),
    st.lists(operations | txns, max_size=3),
    st.lists(operations | txns, max_size=2),
)
requests = (
    puts
    | deletes
    | ranges
    | nested
    | st.builds(Grant, st.just(60_000), st.sampled_from(LEASES))
    | st.builds(Revoke, st.sampled_from(LEASES))
    | st.builds(Compact, backs.map(lambda back: back + 2))
    | st.builds(
        History,
        backs.filter(lambda back: back >= 0).map(lambda back: back + 2),
        st.just(b"\0"),
        st.just(FROM_KEY),
    )
)
Asked = Operation | Grant | Revoke | Compact | History


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with running_etcd() as running:
        yield running


class Pair:
    """Revisions of both, side by side."""

    def __init__(self, etcd: Etcd) -> None:
        self._etcd = etcd
        self._store = AppliedStore()
        self._store.index = 1000
        self.revisions: list[tuple[int, int]] = []
        """(etcd's, ours), ascending."""
        self._compacted = 0
        """Ours."""
        # What lies in etcd is of examples before.
        etcd.do(DeleteRange(b"\0", FROM_KEY))
        for lease in LEASES:
            with suppress(KeyValueError):
                etcd.do(Revoke(lease))
        for _ in range(2):
            self.both(Put(b"z", b""))
        etcd_revision = self.revisions[0][0]
        self._etcd.do(Compact(etcd_revision))
        self._store.do(Compact(self.revisions[0][1]))

    def both(self, asked: Asked) -> None:
        theirs, ours = self._with_revisions(asked, 0), self._with_revisions(asked, 1)
        if isinstance(ours, History) and ours.first_revision == self._compacted:
            return  # a deletion at that revision goes when etcd comes to it; here it stays
        expected, found = self._of_etcd(theirs), self._of_us(ours)
        if isinstance(expected, tuple) and isinstance(found, tuple):
            known = self.revisions[-1] if self.revisions else (0, 0)
            revisions = expected[0], found[0]
            assert (revisions[0] > known[0]) is (revisions[1] > known[1]), (asked, revisions, known)
            if revisions[1] > known[1]:
                self.revisions.append(revisions)
            expected, found = self._in_ours(expected[1]), found[1]
        elif isinstance(expected, list):
            expected = self._in_ours(expected)
        assert found == expected, asked
        if isinstance(ours, Compact) and not isinstance(found, type):
            self._compacted = ours.revision

    def _of_etcd(self, asked: Any) -> Any:
        try:
            if isinstance(asked, History):
                return self._etcd.history(asked.first_revision, self.revisions[-1][0])
            return self._etcd.do(asked)
        except KeyValueError as refusal:
            return type(refusal)

    def _of_us(self, asked: Any) -> Any:
        try:
            if isinstance(asked, History):
                return self._history(asked)
            if not isinstance(asked, Revoke | Compact):
                check(asked, len(encode(asked)))
            if isinstance(asked, Range):
                return self._store.revision, self._store.ask(asked)
            answer = self._store.do(asked)
        except KeyValueError as refusal:
            return type(refusal)
        if isinstance(answer, GrantAnswer | RevokeAnswer):
            answer = msgspec.structs.replace(answer, **_UNTOLD[type(answer)])
        return self._store.revision, answer

    def _history(self, asked: History) -> Any:
        events = self._store.ask(asked).events
        return [(event.kv, event.prev_kv) for event in events]

    def _with_revisions(self, asked: Any, of: int) -> Any:
        """2 + how far back: the revision that it is."""

        def known(back: int) -> int:
            if back < 2:
                newest = self.revisions[-1][of] if self.revisions else 0
                return newest + 1000
            return self.revisions[max(0, len(self.revisions) - 1 - (back - 2))][of]

        if isinstance(asked, Range) and asked.revision:
            return msgspec.structs.replace(asked, revision=known(asked.revision))
        if isinstance(asked, Compact):
            return Compact(known(asked.revision))
        if isinstance(asked, History):
            return msgspec.structs.replace(asked, first_revision=known(asked.first_revision))
        if isinstance(asked, Txn):
            return Txn(
                asked.compare,
                [self._with_revisions(each, of) for each in asked.success],
                [self._with_revisions(each, of) for each in asked.failure],
            )
        return asked

    def _in_ours(self, answer: Any) -> Any:
        """An answer of etcd with our revisions."""
        ours = dict(self.revisions)
        if isinstance(answer, KeyValue):
            create, mod = (ours.get(r, r) for r in (answer.create_revision, answer.mod_revision))
            return msgspec.structs.replace(answer, create_revision=create, mod_revision=mod)
        if isinstance(answer, list):
            return [self._in_ours(each) for each in answer]
        if isinstance(answer, tuple):
            return tuple(self._in_ours(each) for each in answer)
        if isinstance(answer, msgspec.Struct):
            fields = {name: self._in_ours(getattr(answer, name)) for name in answer.__struct_fields__}
            return type(answer)(**fields)
        return answer


_UNTOLD: dict[type, dict[str, int]] = {GrantAnswer: {"granted_at": 0}, RevokeAnswer: {"deleted": 0}}
"""What etcd does not tell."""


@pytest.mark.processes
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example(  # all puts are judged before any range is
    asked=[Txn([], [Range(b"a", revision=1), Put(b"a", b"", keeps_value=True)])]
)
@example(asked=[Put(b"a", b"", lease=71, keeps_value=True)])  # by itself its lease is looked for first,
@example(asked=[Txn([], [Put(b"a", b"", lease=71, keeps_value=True)])])  # in a transaction its key
@given(asked=st.lists(requests, max_size=25))
def test_answers_are_those_of_etcd(etcd: Etcd, asked: list[Asked]) -> None:
    pair = Pair(etcd)
    for each in asked:
        pair.both(each)
