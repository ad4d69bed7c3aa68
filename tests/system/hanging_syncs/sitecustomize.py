"""On the path of a member's process: none of its syncs returns while there is a file beside its
configuration whose name ends in `.hangs`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable


def _hanging(sync: Callable[[int], None], sign: str) -> Callable[[int], None]:
    def hang(descriptor: int) -> None:
        while os.path.exists(sign):
            time.sleep(0.02)
        sync(descriptor)

    return hang


if "--config" in sys.orig_argv:
    _sign = sys.orig_argv[sys.orig_argv.index("--config") + 1].removesuffix(".toml") + ".hangs"
    os.fsync = _hanging(os.fsync, _sign)
    os.fdatasync = _hanging(os.fdatasync, _sign)
