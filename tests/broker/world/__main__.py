"""Many schedules: python -m tests.broker.world [FIRST STOP [KIND ...]], as `schedule.KINDS`."""

from __future__ import annotations

import sys
from functools import partial

from quorumlog.sim.many_runs import main_of
from tests.broker.world.schedule import KINDS, run

if __name__ == "__main__":
    kinds = sys.argv[3:] or list(KINDS)
    sys.exit(main_of(partial(run, kinds=kinds), "", sys.argv[1:3]))
