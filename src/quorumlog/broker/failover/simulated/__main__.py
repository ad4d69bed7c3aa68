"""Many runs: python -m quorumlog.broker.failover.simulated [FIRST STOP]."""

from __future__ import annotations

import sys

from quorumlog.broker.failover.simulated.failover_run import run_failover
from quorumlog.sim.many_runs import main_of

if __name__ == "__main__":
    sys.exit(main_of(run_failover, "", sys.argv[1:]))
