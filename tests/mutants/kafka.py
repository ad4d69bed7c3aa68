"""Mistakes at the port for clients of Kafka, and in what is made of their records."""

from __future__ import annotations

from quorumlog.kafka.machine import KafkaMachine, Partition
from tests.kafka import test_machine as machines
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
