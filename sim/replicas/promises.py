"""Promises: what must hold in every moment.

nothing that was acknowledged, or that a consumer saw, is lost, renumbered or shown otherwise
it is on as many disks as it was to be, and whoever leads later has it
no two confirm at once
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from quorumlog.broker.epochs import Epoch, Run, RunKey
from quorumlog.broker.failover import NO_HOLDER, ElectionRecord
from quorumlog.broker.message import BLANK_MAGIC, PutMessageResult
from quorumlog.broker.record_batch import QueueKey
from quorumlog.broker.replication.replica import BrokerReplica
from quorumlog.broker.store.log_files import BrokerRole
from quorumlog.testing.disk import SimDisk

if TYPE_CHECKING:
    from sim.replicas.machines import Broker
    from sim.replicas.world import World

KEY = QueueKey("t", 0)
ROOT = "store"
_HEAD = struct.Struct(">II12xQ")
_BODY_AT, _NUMBER_BYTES = 88, 6
"""Of records of hosts of four bytes."""
_LOOK_BYTES = _BODY_AT + _NUMBER_BYTES


class Place(NamedTuple):
    number: int
    offset: int
    queue_offset: int


class Confirmed(NamedTuple):
    place: Place
    epoch: Epoch
    """In which it was at the latest."""


def place_of(head: bytes, offset: int) -> Place:
    return Place(int(head[_BODY_AT:_LOOK_BYTES]), offset, _HEAD.unpack_from(head)[2])


def places_in(replica: BrokerReplica, first: int = 0) -> list[Place]:
    """All in its log, whoever has confirmed them."""
    log, found = replica.store.commit_log, list[Place]()
    offset, stop = max(log.min_offset, first), log.max_offset
    while offset < stop:
        file_stop = min(log.files.stop_of(offset), stop)
        data = log.read_bytes(offset, file_stop - offset)
        at = 0
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">II", data, at)
            if magic == BLANK_MAGIC:
                break
            head = data[at : at + _LOOK_BYTES]
            if head[_BODY_AT:].isdigit():  # the others are commands and snapshots
                found.append(place_of(head, offset + at))
            at += size
        offset = log.files.stop_of(offset)
    return found


def is_held(disk: SimDisk, place: Place, file_bytes: int, *, synced: bool) -> bool:
    """On the platter, whatever its process thinks."""
    base = place.offset // file_bytes * file_bytes
    inode = disk._names.get(f"{ROOT}/commitlog/{base:020d}")
    if inode is None:
        return False
    content = inode.platter if synced else inode.cache  # type: ignore[union-attr]
    at = place.offset - base
    head = bytes(content[at : at + _LOOK_BYTES])
    return head[_BODY_AT:_LOOK_BYTES] == b"%06d" % place.number


class Promises:
    def __init__(self, world: World) -> None:
        self._world = world
        self.acknowledged: list[int] = []
        self.confirmed: dict[int, Confirmed] = {}
        """By number: what was acknowledged, and what any consumer has seen."""
        self.shown: dict[int, int] = {}
        """Numbers by queue offset."""
        self.begun: dict[Epoch, dict[int, Place]] = {}
        """What whoever leads an epoch had when it began."""
        self.led: dict[RunKey, str] = {}
        """Which directory has begun which run."""
        self.expired_below = 0
        """Whatever lies there is deleted by age."""
        self.taken_epoch = 0
        """The newest that a register gave away."""

    # ---------------------------------------------------------------- messages

    def was_acknowledged(self, broker: Broker, result: PutMessageResult, number: int) -> None:
        world, replica = self._world, broker.living
        self.acknowledged.append(number)
        place = Place(number, result.physical_offset, result.queue_offset)
        epoch = replica.history.epoch
        self._confirm(place, epoch)
        if place.offset < self.expired_below:
            return  # so late is it told
        synced = replica.store.config.is_sync_flush
        file_bytes = replica.store.config.mapped_file_size_commit_log
        have = {
            one
            for one, disk in world.directories.items()
            if is_held(disk, place, file_bytes, synced=synced)
        }
        if world.register is None:
            if place.offset < replica._acks.begun_at:
                return  # perhaps by the list before
            for listed in replica._acks.lists:
                enough = sorted(listed.directories & have)
                assert len(enough) >= listed.needed, f"{number} is acknowledged, and on {enough} alone"
            return
        assert epoch.number >= self.taken_epoch, (
            f"{broker.name} acknowledges in epoch {epoch}, and epoch {self.taken_epoch} was taken"
        )
        record = world.register.record
        assert record is not None
        lacking = {*record.in_sync.values()} - have
        assert not lacking, f"{number} is acknowledged, and may be led without by {sorted(lacking)}"
        assert len(have) >= world.config.in_sync_replicas, f"{number} is on {sorted(have)} alone"

    def _confirm(self, place: Place, epoch: Epoch) -> None:
        held = self.confirmed.get(place.number)
        if held is not None:
            assert held.place == place, f"{held.place} becomes {place}"
            return
        self.confirmed[place.number] = Confirmed(place, epoch)
        for later, places in self.begun.items():
            if later > epoch and place.offset >= self.expired_below:
                assert place.number in places, (
                    f"{place} is confirmed in epoch {epoch}, and {later} was begun without it"
                )

    def look(self, broker: Broker) -> None:
        """A consumer reads what is shown here."""
        replica = broker.living
        store = replica.store
        assert replica.min_offset <= self.expired_below, f"{broker.name} lacks what is left"
        queue = store.queues.get(KEY)
        # A broker that has lost all of its log shows nothing, whatever it knows of the queue.
        end = 0 if queue is None or replica.max_offset == 0 else queue.max_offset
        cuts = store.cuts
        if queue is None or broker.looked == (end, cuts):
            return
        seen, cuts_before = broker.looked
        assert end >= seen, f"{broker.name} shows {end} messages, and has shown {seen}"
        first = max(queue.min_offset, seen if cuts == cuts_before else 0)
        broker.looked = (end, cuts)
        for number, unit in enumerate(queue.units(first, end), first):
            offset = int(unit["position"])
            place = place_of(store.commit_log.read_bytes(offset, _LOOK_BYTES), offset)
            assert place.queue_offset == number, (place, number)
            known = self.shown.setdefault(number, place.number)
            assert known == place.number, (
                f"{broker.name} shows {place.number} as {number}, where {known} was seen"
            )
            self._confirm(place, replica.history.epoch)

    # ---------------------------------------------------------------- who leads

    def leads(self, broker: Broker) -> None:
        """Once in each run."""
        replica = broker.living
        run = replica.history.last
        if replica.role is BrokerRole.SLAVE or run is None or run.number == 0 or run.key in self.led:
            return
        leaders = {one for key, one in self.led.items() if key[:2] == run.key[:2]}
        self.led[run.key] = replica.directory_id
        assert leaders <= {replica.directory_id}, f"two lead in {run.epoch}"
        if not run.is_forced or self._world.register is not None:
            self._has_all(broker, run)

    def _has_all(self, broker: Broker, run: Run) -> None:
        places = {place.number: place for place in places_in(broker.living)}
        low = broker.living.min_offset
        for each in self.confirmed.values():
            if each.epoch <= run.epoch and each.place.offset >= low:
                assert places.get(each.place.number) == each.place, (
                    f"{broker.name} leads in {run.epoch} without {each}"
                )
        self.begun.setdefault(run.epoch, places)

    def has_everything(self, broker: Broker) -> None:
        """At the end: the newest leader."""
        places = {place.number: place for place in places_in(broker.living)}
        for each in self.confirmed.values():
            if each.place.offset >= broker.living.min_offset:
                assert places.get(each.place.number) == each.place, f"{broker.name} has lost {each}"

    def given_up(self, lost_from: int, broker: Broker) -> None:
        """With --unsafe: what was confirmed from there on may go."""
        held = {place.number: place for place in places_in(broker.living)}
        for each in list(self.confirmed.values()):
            if (
                held.get(each.place.number) != each.place
                and each.place.offset >= broker.living.min_offset
            ):
                assert each.place.offset >= lost_from, (
                    f"{each} is lost, and it was said: from {lost_from}"
                )
                del self.confirmed[each.place.number]
        self.begun.clear()

    # ---------------------------------------------------------------- by a register

    def takes(self, record: ElectionRecord) -> None:
        """The register gives the leadership away."""
        name = record.master.id
        assert record.epoch > self.taken_epoch, f"epoch {record.epoch} follows {self.taken_epoch}"
        broker = self._world.brokers[name]
        if broker.replica is not None:
            promised = broker.replica.epoch
            assert promised >= record.epoch, f"{name} takes {record.epoch} with {promised} on its disk"
        before = self._world.register.record if self._world.register is not None else None
        if before is not None:
            left = {*before.in_sync} - {*record.in_sync} - {before.master.id}
            assert not left, f"{name} takes the lease, and its peers {sorted(left)} are out of sync"
        self.taken_epoch = record.epoch

    def may_lead(self, record: ElectionRecord) -> None:
        """Each member of the set, from now on."""
        world = self._world
        for name, directory_id in record.in_sync.items():
            disk = world.directories[directory_id]
            if world.brokers[name].disk is not disk:
                continue  # it is lost
            self._holds_all(name, disk)

    def _holds_all(self, name: str, disk: SimDisk) -> None:
        config = self._world.config
        for each in self.confirmed.values():
            place = each.place
            if place.offset >= self.expired_below:
                assert is_held(
                    disk, place, config.mapped_file_size_commit_log, synced=config.is_sync_flush
                ), f"{name} is in sync without {each}"

    def believes(self, broker: Broker) -> None:
        """A master that runs thinks that it may acknowledge."""
        register, elected = self._world.register, broker.elected
        if register is None or elected is None or not broker.is_running:
            return
        rules = elected.rules
        if rules.may_acknowledge(broker.clock()):
            assert register.holder == rules.lease != NO_HOLDER, (
                f"{broker.name} believes in lease {rules.lease}, and {register.holder} holds"
            )
