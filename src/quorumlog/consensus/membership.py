"""Membership: the voters, the learners, and their quorums.

A membership has two halves. They differ only during a change from the old voters to the new ones (joint
consensus): then every decision needs a majority of each half. Nothing else counts voters. Learners
receive the log and count for no quorum.

Raft paper, section 6; Ongaro's thesis, 4.3.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from quorumlog.entry import Replica


class Membership(NamedTuple):
    """A value. Both halves are empty before the group has formed: there is no quorum then."""

    old: tuple[Replica, ...] = ()
    new: tuple[Replica, ...] = ()
    learners: tuple[Replica, ...] = ()
    addresses: tuple[tuple[str, str], ...] = ()
    """(member id, `host:port`) of those above, by id; for others the options apply."""

    @classmethod
    def of(
        cls,
        voters: tuple[Replica, ...],
        learners: tuple[Replica, ...] = (),
        addresses: tuple[tuple[str, str], ...] = (),
    ) -> Membership:
        """No change of voters is under way: both halves are `voters`."""
        return cls(voters, voters, learners, addresses)

    @property
    def is_joint(self) -> bool:
        """A change is under way: it ends with `final`."""
        return self.old != self.new

    def final(self) -> Membership:
        """The membership that ends the joint one."""
        final = Membership.of(self.new, self.learners)
        ids = {replica.member_id for replica in final.members()}
        return final._replace(addresses=tuple(pair for pair in self.addresses if pair[0] in ids))

    def members(self) -> tuple[Replica, ...]:
        """Voters and learners, each once."""
        return tuple(dict.fromkeys((*self.voters(), *self.learners)))

    def voters(self) -> tuple[Replica, ...]:
        """All voters of one half or of both, each once."""
        return self.old if self.old == self.new else tuple(dict.fromkeys((*self.old, *self.new)))

    def is_voter(self, replica: Replica) -> bool:
        return replica in self.old or replica in self.new

    def others(self, replica: Replica) -> tuple[Replica, ...]:
        return tuple(voter for voter in self.voters() if voter != replica)

    @property
    def quorum_size(self) -> int:
        """Fewer voters are never a quorum; so many always are while both halves are equal."""
        return max(_majority_of(self.old), _majority_of(self.new))

    def has_quorum(self, replicas: Collection[Replica]) -> bool:
        """Are a majority of each half among `replicas`? Non-voters do not count."""
        return _has_majority(self.old, replicas) and (
            self.old == self.new or _has_majority(self.new, replicas)
        )

    def quorum_value(self, values: Mapping[Replica, float], missing: float = -math.inf) -> float:
        """The largest value that a quorum has reached; `missing` is that of a voter without one."""
        value = _majority_value(self.old, values, missing)
        return value if self.old == self.new else min(value, _majority_value(self.new, values, missing))


def _majority_of(half: tuple[Replica, ...]) -> int:
    return len(half) // 2 + 1


def _has_majority(half: tuple[Replica, ...], replicas: Collection[Replica]) -> bool:
    return sum(voter in replicas for voter in half) >= _majority_of(half)


def _majority_value(half: tuple[Replica, ...], values: Mapping[Replica, float], missing: float) -> float:
    """The highest value that a majority has reached."""
    assert half, values
    reached = sorted(map(values.get, half, (missing,) * len(half)))
    return reached[-(len(half) // 2 + 1)]
