"""Many runs of brokers in virtual time: python -m quorumlog.broker.simulated [FIRST STOP]."""

from __future__ import annotations

import sys

from quorumlog.broker.simulated.broker_run import run_brokers
from quorumlog.sim.many_runs import main_of

if __name__ == "__main__":
    sys.exit(main_of(run_brokers, "broker: ", sys.argv[1:]))
