"""The disk of one simulated machine.

Read in this order: `inode` (bytes in the cache and on the platter), `sim_file` (what a process has
open), `sim_disk` (names, space, deaths and damage), `disk_queue` (a thread that works on it).
"""

from quorumlog.testing.disk.disk_queue import DiskQueue
from quorumlog.testing.disk.inode import PAGE_BYTES, SECTOR_BYTES
from quorumlog.testing.disk.sim_disk import Crashed, SimDisk
from quorumlog.testing.disk.sim_file import SimFile

__all__ = ["PAGE_BYTES", "SECTOR_BYTES", "Crashed", "DiskQueue", "SimDisk", "SimFile"]
