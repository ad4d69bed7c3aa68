"""Many runs of stores in virtual time: python -m quorumlog.kv.simulated [FIRST STOP]."""

from __future__ import annotations

import sys

from quorumlog.kv.simulated.store_run import run_store
from quorumlog.sim.many_runs import main_of

if __name__ == "__main__":
    sys.exit(main_of(run_store, "store: ", sys.argv[1:]))
