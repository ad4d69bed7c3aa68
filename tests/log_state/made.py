"""Control entries as Hypothesis makes them."""

from __future__ import annotations

from hypothesis import strategies as st

from quorumlog.entry import EntryKind, Replica
from quorumlog.log_state.control_entries import (
    TOKEN_BYTES,
    ClockReset,
    ControlBody,
    ControlEntry,
    Hold,
    Keep,
    MachineBinding,
    MembershipEntry,
    OpenProducer,
    ProducerBatch,
    ProducerEpoch,
    ReaderPosition,
    ReaderPositions,
    StepOver,
    TimeMark,
    Unreadable,
    kind_of,
)
from quorumlog.log_state.users import Kind, Right, RoleGrant, User, UserRole, UsersChange, Verifier

REPLICAS = st.lists(
    st.builds(Replica, st.sampled_from(["n0", "n1", "n2"]), st.sampled_from(["a", "b"])), max_size=3
).map(tuple)
POSITIONS = st.integers(0, 30)
PRODUCERS = st.sampled_from(["p", "q", "~r"])
NAMES = st.sampled_from(["admin", "alice", "bob"])
PREFIXES = st.lists(st.sampled_from([b"a", b"b", b"\xff"]), max_size=3).map(b"".join)
GRANTS = st.builds(RoleGrant, st.sampled_from(Right), st.sampled_from(Kind), PREFIXES, st.booleans())
ROLES = st.builds(UserRole, NAMES, st.lists(GRANTS, max_size=4).map(tuple))
VERIFIERS = st.just(Verifier(b"0" * 16, 4096, b"1" * 32, b"2" * 32))
USERS = st.builds(User, NAMES, st.lists(NAMES, max_size=2).map(tuple), st.none() | VERIFIERS)
USERS_CHANGES = st.builds(
    UsersChange,
    st.lists(USERS, max_size=2).map(tuple),
    st.lists(ROLES, max_size=2).map(tuple),
    st.lists(NAMES, max_size=1).map(tuple),
    st.lists(NAMES, max_size=1).map(tuple),
    st.just(b"s" * 32),
    st.booleans(),
)
EPOCHS = st.builds(ProducerEpoch, st.integers(0, 6), st.just(0))
BODIES: st.SearchStrategy[ControlBody] = st.one_of(
    st.builds(MembershipEntry, REPLICAS, REPLICAS, REPLICAS, st.just(()), REPLICAS),
    st.builds(TimeMark, st.integers(0, 50)),
    st.builds(
        ReaderPositions,
        st.lists(
            st.builds(
                ReaderPosition,
                st.sampled_from(["x", "y", "z"]),
                POSITIONS,
                st.sampled_from(Hold),
                st.none() | POSITIONS,
                st.booleans(),
                st.none() | st.integers(0, 2**32 - 1),
                st.none() | st.tuples(POSITIONS, POSITIONS),
            ),
            max_size=3,
        ).map(tuple),
    ),
    st.builds(Keep, POSITIONS, st.booleans()),
    st.builds(
        OpenProducer,
        PRODUCERS,
        st.just(bytes(TOKEN_BYTES)),
        st.none() | EPOCHS,
        st.lists(PRODUCERS, max_size=1).map(tuple),
        st.booleans(),
    ),
    st.builds(ProducerBatch, PRODUCERS, EPOCHS, POSITIONS, st.integers(1, 5), st.booleans()),
    st.builds(MachineBinding, st.sampled_from(["a", "b-1", "c"]), st.integers(1, 3), st.integers(1, 3)),
    st.builds(ClockReset, st.integers(0, 50)),
    st.builds(StepOver, st.sampled_from(["a", "b-1"]), POSITIONS, st.just(7)),
    USERS_CHANGES,
)
UNREADABLE = st.builds(Unreadable, st.just("of a later release"))


def entries_at(first_index: int, bodies: list[ControlBody | Unreadable | None]) -> list[ControlEntry]:
    """One entry of the log each; None is data."""
    return [
        ControlEntry(index, EntryKind.TIME if isinstance(body, Unreadable) else kind_of(body), body)
        for index, body in enumerate(bodies, first_index)
        if body is not None
    ]
