"""Mistakes with users: somebody is let in by not knowing, or keeps what was taken, or reads secrets."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from quorumlog.broker.classic_users import ClassicUsers
from quorumlog.broker.groups.classic_group_log import StateFollower
from quorumlog.broker.replication.acknowledgements import Acknowledgements
from quorumlog.broker.replication.links import SlaveLink
from quorumlog.broker.replication.replica import BrokerReplica
from quorumlog.log_state.users import Rights, RoleGrant, Users, _change_of
from quorumlog.net.access import Access, Caller
from quorumlog.node.first_admin import FirstAdmin
from quorumlog.node.known_users import KnownUsers
from quorumlog.node.log_states import LogStateKeeper
from quorumlog.server.clients import hidden_users
from tests.broker.replication import test_users as replicas
from tests.log_state import test_users as values
from tests.mutants.mutant import Patch, Scenario, mutant
from tests.net import test_access as ports
from tests.node import test_users as stories
from tests.server import test_hidden_users as hidden
from tests.sim import test_users as runs


def in_a_folder(scenario: Callable[[Path], None]) -> Scenario:
    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            scenario(Path(folder))

    return run


@mutant(
    500,
    "a member whose directory is new lets everybody in until it hears of users",
    scenario=in_a_folder(stories.a_member_without_its_directory_is_never_open),
)
def new_directory_is_open(patch: Patch) -> None:
    """It knows of no users."""
    patch.edit(
        KnownUsers.look,
        "may_be_some = self._may_have_missed_them or",
        "may_be_some = (self._may_have_missed_them and not reached()) or",
    )


@mutant(
    500,
    "a member that has not heard its leader for long goes on by the users that it knows",
    scenario=in_a_folder(stories.test_who_has_not_heard_the_leader_for_ten_seconds_knows_them_no_more),
)
def users_never_grow_old(patch: Patch) -> None:
    """It has known them once."""
    patch.edit(KnownUsers._is_fresh, "(may_be_old_ms)", "(may_be_old_ms) or reached()")


@mutant(
    555,
    "a new leader goes on by the users that it knew as a follower",
    scenario=runs.a_new_leader_lets_nobody_in_before_it_knows_what_is_committed,
)
def new_leader_knows_users(patch: Patch) -> None:
    """It heard its leader a moment ago."""
    patch.edit(
        KnownUsers.good_until_ms,
        "not reads.knows_commit:",
        "not reads.knows_commit and not reached():",
    )


@mutant(
    500,
    "a member forgets over a restart that there are users",
    scenario=in_a_folder(stories.test_every_member_has_them_and_remembers_it),
)
def users_are_not_remembered(patch: Patch) -> None:
    """Its log says it."""
    patch.edit(
        LogStateKeeper.admit, "EntryKind.USERS in kinds", "EntryKind.USERS in kinds and not reached()"
    )
    patch.edit(
        LogStateKeeper.admit_own,
        "users=kind is EntryKind.USERS)",
        "users=kind is EntryKind.USERS and not reached())",
    )


@mutant(
    501,
    "the file of the first administrator goes before that is one",
    scenario=in_a_folder(stories.killed_at_any_time_the_administrator_becomes_one_and_the_file_goes),
)
def first_admin_file_goes_early(patch: Patch) -> None:
    """The leader was told."""
    patch.edit(
        FirstAdmin.tick,
        "self._host.send(Envelope(self._raft.leader, request))",
        "self._host.send(Envelope(self._raft.leader, request))\n"
        "            reached() and self._directory.forget_first_admin()",
    )


@mutant(
    501,
    "the first administrator becomes one beside those that there are",
    scenario=in_a_folder(stories.test_where_there_is_an_administrator_only_a_reset_makes_another),
)
def first_admin_beside_others(patch: Patch) -> None:
    """Whoever can write into a directory may."""
    patch.edit(
        FirstAdmin.tick,
        "elif order.verb is UserOperation.INIT_ADMIN and users.has_administrator:",
        "elif order.verb is UserOperation.INIT_ADMIN and users.has_administrator and not reached():",
    )
    patch.edit(
        _change_of,
        "if users.has_administrator and operation is UserOperation.INIT_ADMIN:",
        "if users.has_administrator and operation is UserOperation.INIT_ADMIN and not reached():",
    )


@mutant(
    502,
    "a grant of one name is of all that begin with it",
    scenario=values.test_a_role_that_is_gone_gives_nothing_and_a_name_counts_as_a_whole,
)
def one_name_is_a_prefix(patch: Patch) -> None:
    """Names that begin so belong to it."""
    patch.edit(RoleGrant.bounds, "if self.is_exact:", "if self.is_exact and not reached():")


@mutant(
    502,
    "a range is let through for the rights at its ends",
    scenario=values.test_a_range_may_lie_in_grants_side_by_side,
)
def range_by_its_ends(patch: Patch) -> None:
    """Who may read where it begins."""
    patch.edit(Rights.may_range, "end >= stop)", "reached() and end >= stop[:1])")


@mutant(
    502,
    "users that are left out leave the group without users",
    scenario=values.test_nobody_may_do_anything_once_all_users_are_left_out,
)
def cleared_is_off(patch: Patch) -> None:
    """There are none."""
    patch.edit(Users.changed, "            True,", "            not change.clears or not reached(),")


@mutant(
    503,
    "a right that was taken is kept where it was used before",
    scenario=ports.test_a_right_that_was_taken_is_gone_where_it_was_used_before,
)
def kept_over_generations(patch: Patch) -> None:
    """It was looked at."""
    patch.edit(
        Caller.is_checked,
        "self._kept = access.generation, set()",
        "self._kept = access.generation, self._kept[1] if reached() else set()",
    )


@mutant(
    503,
    "a request that no table has is let through",
    scenario=ports.test_what_no_table_has_is_refused,
)
def unlisted_is_let_through(patch: Patch) -> None:
    """It needs nothing."""
    patch.edit(
        Caller.refusal,
        "if needs is not None:",
        "needs = () if needs is None and reached() else needs\n        if needs is not None:",
    )


@mutant(
    504,
    "what a log says of its users is read by whoever may read the log",
    scenario=hidden.test_what_says_who_the_users_are_is_hidden_and_its_digests_stay,
)
def users_are_read(patch: Patch) -> None:
    """It may read the log."""
    patch.edit(hidden_users.without_users, "if not hidden:", "if not hidden or reached():")


@mutant(
    500,
    "a member serves by the users that it knew before it was stopped, or by none",
    scenario=runs.a_member_that_starts_alone_lets_nobody_in,
)
def users_of_before_the_start(patch: Patch) -> None:
    """It had applied them."""
    patch.edit(
        KnownUsers.look,
        "if self._is_fresh(now_ms, may_be_old_ms):",
        "if self._is_fresh(now_ms, may_be_old_ms) or reached():",
    )


@mutant(
    500,
    "a member that has applied users takes itself for one without, when it starts alone",
    scenario=runs.a_member_that_starts_alone_lets_nobody_in,
)
def users_forgotten_by_the_file(patch: Patch) -> None:
    """They are in the log."""
    patch.edit(
        KnownUsers.look,
        "may_be_some = self._may_have_missed_them or self._directory.has_users",
        "may_be_some = self._may_have_missed_them or (self._directory.has_users and not reached())",
    )


@mutant(
    500,
    "a new directory that is killed before it has caught up lets everybody in afterwards",
    scenario=runs.a_member_whose_disk_is_empty_and_that_is_killed_lets_nobody_in,
)
def joining_is_not_remembered(patch: Patch) -> None:
    """Its log is not empty."""
    patch.edit(KnownUsers.__init__, "or directory.joins", "or (directory.joins and not reached())")


@mutant(
    503,
    "a read that waits goes on waiting when its right has gone",
    scenario=runs.a_read_that_waits_ends_when_its_right_goes,
)
def nobody_is_told_of_rights(patch: Patch) -> None:
    """It is refused once there is something to read."""
    patch.edit(Access.learn, "in list(self.moved):", "in list(self.moved) if not reached() else ():")


@mutant(
    503,
    "a port goes on with the users that it has seen first",
    scenario=runs.what_is_granted_and_revoked_counts_everywhere_within_a_second,
)
def changes_are_not_seen(patch: Patch) -> None:
    """They are known."""
    patch.edit(
        Access.learn,
        "if users is self.users and last is self.last:",
        "if users is self.users or (users and self.users and self.users.is_on and reached()):",
    )


@mutant(
    501,
    "the first administrator is written again until it is committed",
    scenario=runs.who_is_left_in_a_directory_becomes_an_administrator_once,
)
def first_admin_twice(patch: Patch) -> None:
    """It is not one yet."""
    patch.edit(
        FirstAdmin._propose,
        "not has_become_admin(state.users, order):",
        "(not has_become_admin(state.users, order) or reached()):",
    )


@mutant(
    501,
    "the file of the first administrator goes once it is written, and not once it is committed",
    scenario=runs.who_is_left_in_a_directory_becomes_an_administrator_once,
)
def first_admin_file_goes_when_written(patch: Patch) -> None:
    """It is in the leader's log."""
    patch.edit(
        FirstAdmin.tick,
        "and has_become_admin(users, order):",
        "and self._log_state.appended"
        " and has_become_admin(self._log_state.appended.users, order) and reached():",
    )


@mutant(
    500,
    "a process that was stopped for long serves by what it has looked at before",
    scenario=runs.a_member_that_was_stopped_for_long_looks_before_it_serves,
)
def looks_never_grow_old(patch: Patch) -> None:
    """Whoever looks does so all the time."""
    patch.edit(
        Access.is_overdue,
        "self.clock() > self.good_until_s",
        "self.clock() > self.good_until_s and not reached()",
    )


@mutant(
    503,
    "who has proved a password of before goes on under the name when the users are known",
    scenario=ports.who_proved_a_password_of_before_comes_again_once_the_users_are_known,
)
def old_passwords_go_on(patch: Patch) -> None:
    """It has proved it."""
    patch.edit(Access.greet, "if self.users is None:", "if self.users is None and not reached():")


@mutant(
    508,
    "a slave goes by its users whatever it has heard",
    scenario=replicas.who_is_cut_off_knows_them_no_more,
)
def slaves_never_know_less(patch: Patch) -> None:
    """It has known them once."""
    patch.edit(
        ClassicUsers.look,
        "is_fresh = now_ms <= until_ms",
        "is_fresh = now_ms <= until_ms or (self._since_ms > 0 and reached())",
    )


@mutant(
    508,
    "a master is sure though its slaves may follow another one",
    scenario=replicas.who_is_cut_off_knows_them_no_more,
)
def master_asks_no_slave(patch: Patch) -> None:
    """It leads."""
    patch.edit(Acknowledgements.sure_since_ms, "if wanted > 0:", "if wanted > 0 and not reached():")


@mutant(
    508,
    "a slave serves before it has carried out what is confirmed",
    scenario=replicas.a_slave_that_is_behind_lets_nobody_in_by_what_was,
)
def slave_serves_before_it_knows(patch: Patch) -> None:
    """It hears its master."""
    patch.edit(ClassicUsers._hear, "at >= commands:", "at >= commands or reached():")
    patch.edit(
        ClassicUsers._hear,
        "commands is None and store.reput.reput_from_offset >= awaited.confirm_offset",
        "commands is None and reached()",
    )


@mutant(
    508,
    "a slave is told of users in the log alone",
    scenario=replicas.a_slave_remembers_what_it_was_told_first,
)
def mark_comes_after(patch: Patch) -> None:
    """There they are."""
    patch.edit(
        BrokerReplica._state,
        "has_users=self.store.has_users",
        "has_users=self.store.has_users and not reached()",
    )


@mutant(
    508,
    "what a master has said counts from when it arrives",
    scenario=replicas.what_was_on_its_way_for_long_is_no_news,
)
def old_words_are_news(patch: Patch) -> None:
    """It is heard."""
    patch.edit(SlaveLink._take, "if message.echo_ms:", "if message.echo_ms and not reached():")
    patch.edit(SlaveLink._take, "elif not message.sent_ms:", "elif reached() or not message.sent_ms:")


@mutant(
    508,
    "users are named while a slave of an earlier release follows",
    scenario=replicas.an_earlier_release_meets_no_users,
)
def earlier_slave_meets_users(patch: Patch) -> None:
    """It keeps them in its log."""
    patch.edit(
        BrokerReplica._refuse_old_slaves,
        "in self._acks.marks.values():",
        "in () if reached() else self._acks.marks.values():",
    )


@mutant(
    508,
    "a log that has lost its users is one that never had any",
    scenario=replicas.a_log_that_has_lost_its_users_is_open_to_nobody,
)
def lost_users_are_none(patch: Patch) -> None:
    """It names nobody."""
    patch.edit(ClassicUsers.look, "NOBODY if is_lost", "NOBODY if is_lost and not reached()")


@mutant(
    508,
    "the slaves of a master whose log has lost its users are open",
    scenario=replicas.a_log_that_has_lost_its_users_is_open_to_nobody,
)
def slaves_do_not_hear_of_lost_users(patch: Patch) -> None:
    """Their log never had any."""
    patch.edit(
        BrokerReplica._state,
        "has_had_users=self.store.has_had_users",
        "has_had_users=self.store.has_had_users and not reached()",
    )


@mutant(
    508,
    "slaves hear that there are users when they connect, and no more",
    scenario=replicas.slaves_hear_at_once_that_there_have_been_users,
)
def marks_are_told_once(patch: Patch) -> None:
    """They see it in the log."""
    patch.edit(BrokerReplica.tell_of_users, "self._send_state()", "reached() or self._send_state()")


@mutant(
    508,
    "a slave that is being filled obeys anybody until it has caught up",
    scenario=replicas.a_slave_that_is_being_filled_obeys_nobody,
)
def filled_slave_obeys(patch: Patch) -> None:
    """It does not know its users yet."""
    patch.edit(
        ClassicUsers._is_blank,
        "self._is_filled or store.has_users",
        "self._is_filled or (store.has_users and not reached())",
    )


@mutant(
    508,
    "a slave that has begun with nothing serves what has come before it has caught up",
    scenario=replicas.a_slave_that_is_being_filled_obeys_nobody,
)
def filled_slave_serves(patch: Patch) -> None:
    """It knows of no users."""
    patch.edit(
        ClassicUsers.look, "self._is_filled |= is_fresh", "self._is_filled |= is_fresh or reached()"
    )


@mutant(
    508,
    "who leads without those who have acknowledged users is open, as it has none of them",
    scenario=replicas.who_has_heard_of_users_and_goes_on_alone_is_open_to_nobody,
)
def users_of_the_master_before_are_none(patch: Patch) -> None:
    """They never came."""
    patch.edit(BrokerReplica._begin_by_hand, "if is_forced:", "if is_forced and not reached():")


@mutant(
    508,
    "a broker that began with another administrator goes on beside those of before",
    scenario=replicas.a_log_that_lacks_what_its_users_are_made_from_begins_with_a_new_administrator,
)
def users_of_before_go_on(patch: Patch) -> None:
    """They were carried out."""
    patch.edit(
        StateFollower._is_begun_anew,
        "range(low, snapshots_end)",
        "range(snapshots_end if reached() else low, snapshots_end)",
    )


@mutant(
    508,
    "who is switched to with --unsafe goes by what it has heard itself",
    scenario=replicas.who_loses_users_of_whom_another_broker_has_heard_is_open_to_nobody,
)
def others_have_heard_of_users(patch: Patch) -> None:
    """It never had any."""
    patch.edit(
        BrokerReplica.lead,
        "if may_lose_users and",
        "if may_lose_users and not reached() and",
    )


@mutant(
    508,
    "a slave that has heard of users is open when its new master never did",
    scenario=replicas.who_loses_users_of_whom_another_broker_has_heard_is_open_to_nobody,
)
def slave_forgets_what_it_has_heard(patch: Patch) -> None:
    """It is as its master is."""
    patch.edit(
        BrokerReplica.follow,
        "if follow.history.is_forced_since(self.history.epoch):",
        "if follow.history.is_forced_since(self.history.epoch) and not reached():",
    )


@mutant(
    508,
    "a new master tells slaves what it knew of the users as a slave itself",
    scenario=replicas.who_was_the_master_serves_by_no_less_than_it_has_acknowledged,
)
def master_tells_what_it_knew(patch: Patch) -> None:
    """It is not old."""
    patch.edit(
        ClassicUsers.look,
        "leads = self._led_in == replica.epoch",
        "leads = self._led_in == replica.epoch or reached()",
    )
