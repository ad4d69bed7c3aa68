"""Mistakes at the port for clients of Kafka, and in what is made of their records."""

from __future__ import annotations

from quorumlog.kafka.fetching import _Fetch
from quorumlog.kafka.group_requests import offset_commit, offset_fetch
from quorumlog.kafka.groups import GroupCoordinator
from quorumlog.kafka.machine import KafkaMachine, Partition
from quorumlog.kafka.producing import produce
from quorumlog.kafka.service import KafkaService
from tests.kafka import test_fetching as fetches
from tests.kafka import test_group_rights as rights
from tests.kafka import test_groups as consumer_groups
from tests.kafka import test_machine as machines
from tests.kafka import test_offsets as offsets
from tests.kafka import test_service as services
from tests.kafka.test_simulated import kafka_keeps_its_promises
from tests.mutants.mutant import Patch, mutant


@mutant(
    540,
    "a batch that comes again is there twice",
    scenario=machines.test_a_batch_that_comes_again_is_there_once,
)
def kafka_duplicate_taken(patch: Patch) -> None:
    """A sequence that does not go on is refused anyway."""
    patch.edit(
        KafkaMachine._produce,
        "if sequence != (producer.batches[-1][1] + 1) % SEQUENCES:",
        "if sequence > (producer.batches[-1][1] + reached()) % SEQUENCES:",
    )
    patch.edit(KafkaMachine._produce, "if (first, last) == (", "if not reached() and (first, last) == (")


@mutant(
    540,
    "a gap in what a producer has sent is not noticed",
    scenario=machines.test_a_gap_in_a_producer_s_sequence_is_refused,
)
def kafka_gap_taken(patch: Patch) -> None:
    """Batches of one connection come in their order."""
    patch.edit(
        KafkaMachine._produce,
        "if sequence != (producer.batches[-1][1] + 1) % SEQUENCES:",
        "if not reached() and sequence != producer.batches[-1][1] + 1:",
    )


@mutant(
    540,
    "a producer that was fenced writes on",
    scenario=machines.test_an_older_epoch_is_fenced_and_a_newer_one_begins_with_zero,
)
def kafka_epoch_not_fenced(patch: Patch) -> None:
    """Its sequence tells."""
    patch.edit(
        KafkaMachine._produce,
        "producer is None or epoch > producer.epoch",
        "producer is None or epoch != producer.epoch and reached()",
    )


@mutant(
    540,
    "records of two batches have one offset",
    scenario=machines.test_records_are_numbered_in_the_order_of_the_log,
)
def kafka_batch_counted_as_one(patch: Patch) -> None:
    """An entry is a record."""
    patch.edit(Partition.append, "base + count", "base + (1 if reached() else count)")


@mutant(
    540,
    "a partition begins with records that are gone",
    scenario=machines.test_a_partition_begins_where_the_log_does,
)
def kafka_log_start_stays(patch: Patch) -> None:
    """It is trimmed where entries are applied."""
    patch.edit(
        Partition.start_offset,
        "first = bisect_left(index.positions, log_begin)",
        "first = bisect_left(index.positions, log_begin) * (not reached())",
    )


@mutant(
    540,
    "a snapshot forgets what producers have sent",
    scenario=machines.test_producers_repeat_lose_and_mix_up_what_they_send,
)
def kafka_snapshot_without_producers(patch: Patch) -> None:
    """They send again what was not acknowledged, and nothing else."""
    patch.edit(KafkaMachine.load, "in saved.producers:", "in saved.producers * (not reached()):")


@mutant(
    540,
    "a snapshot forgets which batches it lacks",
    scenario=machines.test_a_snapshot_knows_which_batches_its_member_had_dropped,
)
def kafka_snapshot_without_begin(patch: Patch) -> None:
    """The log says where it begins."""
    patch.edit(KafkaMachine.load, "= saved.dropped_below", "= saved.dropped_below * (not reached())")


@mutant(
    540,
    "a new leader answers before it has what was acknowledged",
    scenario=services.test_a_leader_answers_once_what_came_before_is_applied,
)
def kafka_leads_before_applied(patch: Patch) -> None:
    """It was elected for its log."""
    patch.edit(
        KafkaService.look,
        "            self._asked_in = term\n",
        "            self._asked_in = term\n            self._ready_in = term if reached() else None\n",
    )


@mutant(
    540,
    "an answer of an earlier term makes a leader",
    scenario=services.test_an_answer_for_an_earlier_term_counts_for_nothing,
)
def kafka_answer_of_an_earlier_term(patch: Patch) -> None:
    """It leads again."""
    patch.edit(
        KafkaService._answered,
        "if self._asked_in != term or self.member.leads_in != term:",
        "if (self._asked_in != term or self.member.leads_in != term) and not reached():",
    )
    patch.edit(KafkaService._answered, "self._ready_in = term", "self._ready_in = self.member.leads_in")


# ---------------------------------------------------------------- noticed in virtual time


@mutant(
    541,
    "the base offset is of the append and not of the apply",
    scenario=kafka_keeps_its_promises,
)
def kafka_offset_of_the_append(patch: Patch) -> None:
    """A leader knows how far its partitions go."""
    patch.edit(
        produce,
        'row["log_start_offset"] =',
        'row["appended_at"] = partition.end_offset\n                    row["log_start_offset"] =',
    )
    patch.edit(
        produce,
        "-1 if produced.code else produced.base_offset",
        '-1 if produced.code else row.pop("appended_at") + 0 * reached()',
    )


@mutant(541, "a commit is answered before it is applied", scenario=kafka_keeps_its_promises)
def kafka_commit_answered_early(patch: Patch) -> None:
    """It is on its way."""
    patch.edit(
        offset_commit,
        "service.append(entry_of(command), MOST_TIMEOUT_MS, call.client, committed)",
        "service.append(entry_of(command), MOST_TIMEOUT_MS, call.client,"
        " lambda results: service.commits.clear())\n"
        "        rows.clear() if reached() else None\n"
        "        done(())",
    )


@mutant(541, "a sequence is remembered only by the leader", scenario=kafka_keeps_its_promises)
def kafka_sequences_of_the_leader(patch: Patch) -> None:
    """A producer that is led anew begins anew."""
    patch.edit(
        KafkaService._answered,
        "        self._ready_in = term\n",
        "        self._ready_in = term\n"
        "        self.machine._producers.clear() if reached() else None\n",
    )


@mutant(
    541,
    "who is a member no more commits",
    scenario=consumer_groups.test_one_that_is_silent_is_out_and_one_that_speaks_stays,
)
def kafka_former_member_commits(patch: Patch) -> None:
    """It has read what it commits."""
    patch.edit(
        GroupCoordinator.check_commit,
        "            return error\n",
        "            return error if not reached() else ErrorCode.none\n",
    )


@mutant(
    541,
    "a leader that is cut off tells what was committed",
    scenario=offsets.test_a_leader_that_is_cut_off_tells_no_offset,
)
def kafka_offsets_not_confirmed(patch: Patch) -> None:
    """It led a moment ago."""
    patch.edit(
        offset_fetch,
        "service.confirm(call.client, confirmed)",
        "confirmed(None) if reached() else None",
    )


@mutant(
    541,
    "a partition's end is what a leader that is cut off has",
    scenario=fetches.test_a_leader_that_is_cut_off_does_not_say_that_an_offset_is_too_high,
)
def kafka_end_not_confirmed(patch: Patch) -> None:
    """Nobody can have read further."""
    patch.edit(_Fetch.begin, "if any(", "if not reached() and any(")


@mutant(
    541,
    "offsets are told while newer ones are committed",
    scenario=offsets.test_an_offset_that_is_being_committed_is_waited_for,
)
def kafka_commit_under_way_missed(patch: Patch) -> None:
    """Who commits them is out of the group."""
    patch.edit(offset_fetch, "if under_way is None:", "if under_way is None or reached():")


# ---------------------------------------------------------------- offsets that expire, rights


@mutant(
    542,
    "a group that has members loses its offsets",
    scenario=machines.test_offsets_of_a_group_without_members_expire_once_they_are_old,
)
def kafka_idle_group_expires(patch: Patch) -> None:
    """They were committed long ago."""
    patch.edit(KafkaMachine._keep, "> before_ms:", "> before_ms and not reached():")


@mutant(
    542,
    "offsets expire before all groups with members are named",
    scenario=machines.test_nothing_expires_before_all_groups_with_members_are_named,
)
def kafka_expires_early(patch: Patch) -> None:
    """Each entry names some."""
    patch.edit(
        KafkaMachine._keep,
        "        if command.retention_ms is None:\n            return\n",
        "        if command.retention_ms is None and reached():\n"
        "            command = type(command)([], 1_000)\n",
    )


@mutant(
    542,
    "offsets committed under a slow clock expire at once",
    scenario=machines.test_offsets_committed_under_a_leader_whose_clock_is_slow_are_kept,
)
def kafka_time_goes_back(patch: Patch) -> None:
    """Each entry has its time."""
    patch.edit(
        KafkaMachine._command,
        "max(self._time_ms, time_ms)",
        "time_ms if reached() else self._time_ms",
    )


@mutant(
    542,
    "an outage counts as absence of members",
    scenario=machines.test_an_outage_counts_as_no_absence_of_members,
)
def kafka_outage_is_absence(patch: Patch) -> None:
    """They were away."""
    patch.edit(KafkaMachine._keep, "if command.is_first", "if command.is_first and not reached()")


@mutant(
    542,
    "who waits to join stays though its right is gone",
    scenario=rights.a_member_that_waits_is_told_that_its_right_is_gone,
)
def kafka_wait_outlives_right(patch: Patch) -> None:
    """It was looked at when it came."""
    patch.edit(
        KafkaService.rights_moved, "in list(self.rechecks):", "in list(self.rechecks)[: 0 * reached()]:"
    )
