"""The `quorumlog` command, also as `python -m quorumlog`."""

import sys

from quorumlog.cli.interrupts import watch_signals
from quorumlog.version import DESCRIPTION


def main() -> None:
    watch_signals()
    if sys.argv[1:] in (["--version"], ["-V"]):
        print(DESCRIPTION)  # the one answer that needs no command line
        return
    from quorumlog.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
