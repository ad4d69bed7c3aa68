"""EntryBatch: one entry and many take different roads and must say the same."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from quorumlog.batch import EntryBatch
from quorumlog.entry import ENTRY_KINDS, EntryKind
from quorumlog.entry_header import CHAIN_OFFSET, unpack_header
from quorumlog.errors import BadRequest, ProtocolViolation
from quorumlog.header_array import digests_of, is_kind
from quorumlog.node.machine_runner import entries_of

bodies_lists = st.lists(st.binary(max_size=200), min_size=1, max_size=12)


def stamped(
    bodies: list[bytes], first_index: int = 0, term: int = 1, chain: int = 0
) -> tuple[EntryBatch, int]:
    batch = EntryBatch.from_bodies(bodies)
    last = batch.stamp(first_index, term, batch.starts, chain)
    return batch, last


@given(bodies_lists, st.integers(0, 2**40), st.integers(1, 2**40), st.integers(0, 2**32 - 1))
def test_entries_stamped_one_by_one_are_those_of_a_batch(
    bodies: list[bytes], first_index: int, term: int, chain: int
) -> None:
    whole, last = stamped(bodies, first_index, term, chain)
    singles = b""
    position = 0
    for number, body in enumerate(bodies):
        single = EntryBatch.from_bodies([body])
        chain = single.stamp(first_index + number, term, [position], chain)
        position += single.total_bytes
        singles += bytes(single.buffer)
    assert singles == bytes(whole.buffer)
    assert chain == last


@given(bodies_lists, st.integers(0, 2**32 - 1))
def test_a_slice_checks_like_the_whole(bodies: list[bytes], chain: int) -> None:
    batch, _ = stamped(bodies, 5, 3, chain)
    batch.check_encoding(normal_only=True)
    batch.check_sequence(5, chain)
    batch.check_bodies()
    for at in range(batch.count):
        one = batch.slice(at, at + 1)
        one.check_encoding()
        one.check_sequence(5 + at, chain)
        assert one.term_runs() == ((5 + at, 3),)
        chain = unpack_header(one.buffer).chain_crc
    assert [bytes(body) for body in batch.bodies()] == bodies


@given(bodies_lists)
def test_what_is_kept_of_the_first_entry_is_of_the_newest_stamp(bodies: list[bytes]) -> None:
    """A leader looks at it when it comes in, and stamps it then."""
    batch = EntryBatch.from_bodies(bodies)
    for index, term, chain in ((-1, 0, 0), (5, 3, 77), (2, 4, 2**32 - 1)):
        if index >= 0:
            batch.stamp(index, term, np.arange(batch.count) * 1000, chain)
            assert batch.chain_before == chain
            batch.check_sequence(index, chain)
        assert batch.first_header == unpack_header(batch.buffer)
        assert batch.first_header.chain_before == batch.chain_before


@pytest.mark.parametrize("count", [1, 3])
def test_what_was_stamped_is_read_from_the_bytes_again(count: int) -> None:
    """By the assertion in front of the write, at the leader."""
    batch, _ = stamped([b"abcde"] * count, chain=7)
    batch.buffer[CHAIN_OFFSET] ^= 1
    assert batch.chain_before != 7


@given(bodies_lists)
def test_the_digest_of_one_entry_is_that_of_many(bodies: list[bytes]) -> None:
    batch, _ = stamped(bodies)
    one_by_one = [unpack_header(batch.slice(i, i + 1).buffer).digest for i in range(batch.count)]
    assert digests_of(batch.words()).tolist() == one_by_one


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("at", range(48 + 5))
def test_a_changed_byte_does_not_go_unnoticed(count: int, at: int) -> None:
    """Every byte of an entry except `pos`, which the store compares with where the entry lies."""
    made, _ = stamped([b"abcde"] * count)
    damaged = bytearray(made.buffer)
    damaged[at] ^= 0x40
    batch = EntryBatch(damaged, made.sizes)

    def check() -> None:
        batch.check_encoding()
        batch.check_sequence(0, 0)
        batch.check_bodies()

    if 24 <= at < 32:
        check()
        assert int(batch.headers()["pos"][0]) != 0
        return
    with pytest.raises(ProtocolViolation):
        check()


def test_terms_that_fall_within_a_batch_are_refused() -> None:
    first, chain = stamped([b"a"], 0, 5)
    second, _ = stamped([b"b"], 1, 4, chain)
    with pytest.raises(ProtocolViolation, match="terms fall"):
        EntryBatch.concatenate([first, second]).check_sequence(0, 0)


def of_magics(*magics: int) -> EntryBatch:
    batch = EntryBatch.from_bodies([b"abc"] * len(magics))
    for at, magic in enumerate(magics):
        start = int(batch.starts[at])
        batch.buffer[start : start + 4] = magic.to_bytes(4, "big", signed=True)
    return EntryBatch(batch.buffer, batch.sizes)


MAGICS = [*range(-2, max(ENTRY_KINDS) + 3), 2**31 - 1, -(2**31)]


@pytest.mark.parametrize("magic", MAGICS)
@pytest.mark.parametrize("before", [(), (EntryKind.NORMAL,)])
def test_a_kind_is_known_if_the_table_has_it(magic: int, before: tuple[int, ...]) -> None:
    """In a batch of one and of many, and to the look at a whole array."""
    batch = of_magics(*before, magic)
    if magic in ENTRY_KINDS:
        batch.check_encoding()
    else:
        with pytest.raises(ProtocolViolation, match="a kind"):
            batch.check_encoding()
    assert is_kind(np.array([*before, magic], ">i4")).tolist()[-1] is (magic in ENTRY_KINDS)


@pytest.mark.parametrize("kind", EntryKind)
def test_clients_may_append_one_kind_only_and_few_others_use_the_reserve(kind: EntryKind) -> None:
    for batch in (of_magics(kind), of_magics(kind, kind)):
        of_a_full_disk = (EntryKind.NOOP, EntryKind.MEMBERSHIP, EntryKind.KEEP)
        assert batch.may_use_reserve is (kind in of_a_full_disk)
        assert batch.log_state_positions() == [*range(batch.count if kind > EntryKind.NOOP else 0)]
        if kind is not EntryKind.NORMAL:
            with pytest.raises(ProtocolViolation, match="a kind"):
                batch.check_encoding(normal_only=True)
    assert not of_magics(kind, EntryKind.NORMAL).may_use_reserve
    mixed = of_magics(EntryKind.NORMAL, kind, EntryKind.NOOP)
    assert mixed.log_state_positions() == ([1] if kind > EntryKind.NOOP else [])


def test_an_empty_batch_is_legal_and_changes_nothing() -> None:
    batch = EntryBatch.from_bodies([])
    assert batch.stamp(7, 1, [], 99) == 99
    assert batch.term_runs() == ()
    assert list(batch.bodies()) == []


def test_a_noop_is_no_row() -> None:
    noop = EntryBatch.noop()
    chain = noop.stamp(0, 1, [0], 0)
    row, _ = stamped([b"x"], 1, 1, chain)
    both = EntryBatch.concatenate([noop, row])
    assert [entry.index for entry in both.entries()] == [1]
    assert both.headers()["magic"].tolist() == [EntryKind.NOOP, EntryKind.NORMAL]


def test_what_is_no_body_is_named() -> None:
    with pytest.raises(BadRequest, match="bytes"):
        EntryBatch.from_bodies(["text"])  # type: ignore[list-item]


def test_sizes_that_do_not_fill_the_buffer_are_refused() -> None:
    with pytest.raises(ProtocolViolation):
        EntryBatch(bytearray(100), np.array([48, 48]))
    with pytest.raises(ProtocolViolation):
        EntryBatch(bytearray(60), np.array([47, 13]))


@pytest.mark.parametrize("bodies", [[b"a"], [b"a", b"bb", b"c"], [b"a", b"b"]])
def test_a_channel_stays_through_the_stamp_and_is_part_of_the_chain(bodies: list[bytes]) -> None:
    plain, channelled = EntryBatch.from_bodies(bodies), EntryBatch.from_bodies(bodies)
    channelled.set_channel(3)
    chains = []
    for batch in (plain, channelled):
        positions = np.cumsum(batch.sizes) - batch.sizes
        chains.append(batch.stamp(5, 1, positions, 9))
        batch.check_sequence(5, 9)
    assert channelled.headers()["channel"].tolist() == [3] * len(bodies)
    assert plain.headers()["channel"].tolist() == [0] * len(bodies)
    assert chains[0] != chains[1]
    channelled.set_channel(0)
    assert not channelled.headers()["channel"].any()


def test_the_entries_of_a_channel_are_taken_out_whole() -> None:
    parts = [EntryBatch.from_bodies(bodies) for bodies in ([b"a", b"b"], [b"ccc"], [b"d"])]
    parts[0].set_channel(1)
    parts[2].set_channel(1)
    batch = EntryBatch.concatenate([*parts, EntryBatch.noop()])
    batch.stamp(7, 1, np.zeros(5, np.int64), 0)
    taken = entries_of(batch, 1)
    assert [bytes(body) for body in taken.bodies()] == [b"a", b"b", b"d"]
    assert taken.headers()["index"].tolist() == [7, 8, 10]
    assert entries_of(batch, 2).count == 0
    assert [bytes(body) for body in entries_of(batch, 0).bodies()] == [b"ccc"], "a no-op is nobody's"
    assert entries_of(taken, 1) is taken


many_bodies = st.lists(st.binary(max_size=40), min_size=16, max_size=40) | st.builds(
    lambda body, count: [body] * count, st.binary(max_size=9), st.integers(16, 40)
)


@given(many_bodies, st.data())
def test_a_flipped_bit_among_many_bodies_is_found(bodies: list[bytes], data: st.DataObject) -> None:
    """In a body or in a `body_crc`, also where all are checked by one call; and no other batch is
    refused."""
    made, _ = stamped(bodies)
    assert made.bodies_surely_match()
    made.check_bodies()
    at = data.draw(st.integers(0, made.count - 1))
    start, stop = int(made.starts[at]), int(made.starts[at] + made.sizes[at])
    places = [*range(start + 40, start + 44), *range(start + 48, stop)]
    damaged = bytearray(made.buffer)
    damaged[data.draw(st.sampled_from(places))] ^= 1 << data.draw(st.integers(0, 7))
    batch = EntryBatch(damaged, made.sizes)
    assert not batch.bodies_surely_match()
    with pytest.raises(ProtocolViolation, match=f"at index {at}$"):
        batch.check_bodies()


@given(st.lists(st.binary(min_size=1, max_size=20), min_size=16, max_size=30, unique=True), st.data())
def test_bodies_that_changed_places_are_found(bodies: list[bytes], data: st.DataObject) -> None:
    """Each is whole, and is not that of its header."""
    pairs = [
        (one, other)
        for one in range(len(bodies))
        for other in range(one)
        if len(bodies[one]) == len(bodies[other])
    ]
    assume(pairs)
    one, other = data.draw(st.sampled_from(pairs))
    made, _ = stamped(bodies)
    swapped = bytearray(made.buffer)
    for at, body in ((one, bodies[other]), (other, bodies[one])):
        start = int(made.starts[at]) + 48
        swapped[start : start + len(body)] = body
    batch = EntryBatch(swapped, made.sizes)
    assert not batch.bodies_surely_match()
    with pytest.raises(ProtocolViolation, match=f"at index {other}$"):
        batch.check_bodies()


@pytest.mark.parametrize(("count", "size"), [(15, 10), (16, 8145), (1, 5)])
def test_few_or_long_bodies_are_looked_at_one_by_one(count: int, size: int) -> None:
    made, _ = stamped([b"x" * size] * count)
    assert not made.bodies_surely_match()
    made.check_bodies()
    damaged = bytearray(made.buffer)
    damaged[-1] ^= 1
    with pytest.raises(ProtocolViolation, match=f"at index {count - 1}$"):
        EntryBatch(damaged, made.sizes).check_bodies()


@given(bodies_lists, st.integers(0, 2**40), st.integers(0, 2**32 - 1), st.data())
def test_heads_say_what_their_entries_say(
    bodies: list[bytes], first_index: int, chain: int, data: st.DataObject
) -> None:
    batch, last = stamped(bodies, first_index, 3, chain)
    heads = batch.heads()
    assert heads.total_bytes == 48 * batch.count
    assert heads.words().tolist() == batch.words().tolist()
    heads.check_heads()
    heads.check_sequence(first_index, chain)
    assert heads.slice(0, 1).chain_before == chain
    assert int(heads.headers()["chain_crc"][-1]) == last
    at = data.draw(st.integers(0, heads.total_bytes - 1))
    damaged = bytearray(heads.buffer)
    damaged[at] ^= 1 << data.draw(st.integers(0, 7))
    if 24 <= at % 48 < 32:
        return  # where the entry lies, a client does not know

    def check() -> None:
        wrong = EntryBatch(damaged, heads.sizes)
        wrong.check_heads()
        wrong.check_sequence(first_index, chain)

    with pytest.raises(ProtocolViolation):
        check()


def test_entries_are_no_heads() -> None:
    with pytest.raises(ProtocolViolation, match="none of an entry"):
        stamped([b"abc", b""])[0].check_heads()
    EntryBatch.noop().check_heads()


def right_together(batch: EntryBatch) -> int:
    """The CRC of the last body with which all are right together, whatever those in front of it are."""
    text = b""
    crcs = [0xFFFFFFFF, *batch.headers()["body_crc"].tolist()]
    for before, body in zip(crcs, batch.bodies(), strict=False):
        text += (before ^ 0xFFFFFFFF).to_bytes(40, "little")
        text += (0x9226F562 << 32).to_bytes(8, "little") + body
    return zlib.crc32(text, 0xFFFFFFFF)


@given(many_bodies)
def test_a_leader_computes_the_crcs_whatever_a_client_has_put_there(bodies: list[bytes]) -> None:
    """Wrong ones that are right together would make every member find its disk damaged."""
    right, _ = stamped(bodies, 1, 3, 9)
    made, _ = stamped(bodies, 7, 2, 5)
    first, last = (int(made.starts[at]) + CHAIN_OFFSET + 4 for at in (0, -1))
    data = bytearray(made.buffer)
    data[first] ^= 1
    data[last : last + 4] = right_together(EntryBatch(data, made.sizes)).to_bytes(4, "big")
    sent = EntryBatch(data, made.sizes)
    assert sent.bodies_surely_match()
    assert sent.body_crcs().tolist() != sent.headers()["body_crc"].tolist()
    sent.stamp(1, 3, sent.starts, 9)
    assert bytes(sent.buffer) == bytes(right.buffer)


@pytest.mark.parametrize("count", [1, 2, 511, 513, 1024])
@pytest.mark.parametrize("size", [0, 1, 100, 9000])
def test_the_crcs_of_bodies_that_are_equally_long_are_those_of_each(count: int, size: int) -> None:
    bodies = [(number % 251).to_bytes(1, "big") * size for number in range(count)]
    batch = EntryBatch.from_bodies(bodies)
    assert batch.body_crcs().tolist() == [zlib.crc32(body) for body in bodies]
