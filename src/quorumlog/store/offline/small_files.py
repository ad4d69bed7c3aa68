"""The small files of a directory, as far as the disk can read them."""

from __future__ import annotations

from quorumlog.store.disk import Disk
from quorumlog.store.files.checkpoint_file import CHECKPOINT_NAME
from quorumlog.store.files.durable_file import DURABLE_NAME
from quorumlog.store.files.hard_state_file import CURRTERM_NAME, HARD_STATE_NAME
from quorumlog.store.files.replaced_file import read_readable
from quorumlog.store.files.slot_file import unreadable_slots
from quorumlog.store.files.start_file import START_NAME, unreadable_start_slots
from quorumlog.store.offline.log_extent import Damage


def damage_of_small_files(disk: Disk, path: str) -> list[Damage]:
    """Pages that cannot be read; what they say is judged elsewhere. Raises OSError."""
    damage = []
    for name in (CURRTERM_NAME, CHECKPOINT_NAME):
        _, problem = read_readable(disk, f"{path}/{name}")
        if problem:
            damage.append(Damage(name, 0, -1, f"{problem}; a start goes on without it"))
    slots = {name: unreadable_slots(disk, f"{path}/{name}") for name in (HARD_STATE_NAME, DURABLE_NAME)}
    slots[START_NAME] = unreadable_start_slots(disk, path)
    for name, found in slots.items():
        damage += [Damage(name, position, -1, problem) for position, problem in found]
    return damage
