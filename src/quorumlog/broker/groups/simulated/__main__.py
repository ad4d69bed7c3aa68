"""Many runs of consumer groups: python -m quorumlog.broker.groups.simulated [FIRST STOP]."""

from __future__ import annotations

import sys

from quorumlog.broker.groups.simulated.group_run import run_groups
from quorumlog.sim.many_runs import main_of

if __name__ == "__main__":
    sys.exit(main_of(run_groups, "groups: ", sys.argv[1:]))
