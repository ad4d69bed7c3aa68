from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from isal.isal_zlib import crc32

from quorumlog.batch import EntryBatch
from quorumlog.entry import EntryKind
from quorumlog.log_state.control_entries import encode_body
from quorumlog.log_state.users import User, UsersChange, Verifier
from quorumlog.server.clients.hidden_users import bytes_with_crc, without_users


@given(st.integers(4, 200), st.integers(0, 2**32 - 1))
def test_bytes_of_any_crc(count: int, crc: int) -> None:
    found = bytes_with_crc(count, crc)
    assert len(found) == count and crc32(found) == crc


def test_what_says_who_the_users_are_is_hidden_and_its_digests_stay() -> None:
    secret = Verifier(b"a salt of 16 byt", 4096, b"k" * 32, b"l" * 32)
    users = encode_body(UsersChange((User("alice", ("admin",), secret),), secret=b"m" * 32))
    batch = EntryBatch.concatenate(
        [
            EntryBatch.from_bodies([b"one"]),
            EntryBatch.control(EntryKind.USERS, users),
            EntryBatch.from_bodies([b"two"]),
        ]
    )
    positions = [0, 51, 51 + 48 + len(users)]
    batch.stamp(0, 1, positions, 0)
    hidden = without_users(batch)
    hidden.check_bodies()
    hidden.check_sequence(0, 0)
    assert bytes(hidden.headers()) == bytes(batch.headers())
    assert [bytes(body) for body in hidden.bodies()][::2] == [b"one", b"two"]
    assert not any(
        part in bytes(hidden.buffer) for part in (b"alice", b"kkkk", b"llll", b"mmmm", b"salt")
    )
    assert b"alice" in bytes(batch.buffer)
    plain = EntryBatch.from_bodies([b"one", b"two"])
    assert without_users(plain) is plain
