"""Who is left in the directory of a stopped member becomes an administrator, once: until the member has
applied that, or that there is one, the file stays; nothing is written that is so already; and once
faults have ended it is gone."""

from __future__ import annotations

from typing import NamedTuple

from quorumlog.consensus.ready import Role
from quorumlog.entry import EntryKind
from quorumlog.log_state.control_entries import decode_body
from quorumlog.log_state.users import NO_USERS, UserOperation, UserOrder, Users, UsersChange
from quorumlog.store.state_files import FIRST_ADMIN_NAME
from quorumlog.testing.promises import CheckedCluster, CheckedMember, Violation
from sim.log.checkers.acknowledged_appends import final_entries, first_index_of_final
from sim.log.checkers.log_checker import LogChecker


class _Left(NamedTuple):
    order: UserOrder
    directory_id: str
    is_done: bool = False
    """Its member has applied that, or that it is refused."""


class FirstAdmins(LogChecker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._left: dict[str, _Left] = {}
        """By place."""

    def admin_left(self, member: CheckedMember, order: UserOrder) -> None:
        self._left[member.place] = _Left(order, member.replica.directory_id)

    def turned(self, member: CheckedMember) -> None:
        state = member.node.log_state.committed
        left = self._left.get(member.place)
        if left is None:
            return
        if member.replica.directory_id != left.directory_id:
            del self._left[member.place]  # and the file with the directory
            return
        if state is not None and _is_done(state.users, left.order):
            # A process that starts may know less again than the one that has deleted the file.
            self._left[member.place] = left = left._replace(is_done=True)
        if not member.disk.exists(f"{member.path}/{FIRST_ADMIN_NAME}"):
            del self._left[member.place]
            if not left.is_done:
                users = None if state is None else state.users
                raise Violation(f"the file of {left.order.name} at {member.replica} is gone: {users}")
            self.cluster.trace.count("users: an administrator that was left in a directory")

    def made_whole(self) -> None:
        for member in self.cluster.members:
            left = self._left.get(member.place)
            if left is None or member.node.raft.role is Role.OBSERVER:
                continue
            if left.directory_id == member.replica.directory_id:
                raise Violation(f"{left.order.name}, left at {member.replica}, is no administrator yet")
        self._look_through()

    def _look_through(self) -> None:
        """If the log is whole, users follow from what is in it."""
        if first_index_of_final(self.cluster) > 0:
            return
        users = NO_USERS
        for entry in final_entries(self.cluster, EntryKind.USERS):
            change = decode_body(EntryKind.USERS, entry.body)
            assert isinstance(change, UsersChange), change
            before, users = users, users.changed(change)
            if users == before:
                raise Violation(f"entry {entry.index} changes no user: {change}")
        self.cluster.trace.count("users: each of their entries was looked at")


def _is_done(users: Users, order: UserOrder) -> bool:
    is_refused = order.verb is UserOperation.INIT_ADMIN and users.has_administrator
    return is_refused or users.rights_of(order.name).is_admin
