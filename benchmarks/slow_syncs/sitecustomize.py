"""On the path of a member's process: while there is a file beside its configuration whose name ends in
`.slow`, each of its syncs takes as many seconds more as the file says."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any


def _slow(sync: Callable[[Any], None], sign: str) -> Any:
    def slowed(descriptor: Any) -> None:
        with suppress(OSError), open(sign) as file:
            time.sleep(float(file.read()))
        sync(descriptor)

    return slowed


if "--config" in sys.orig_argv:
    _sign = sys.orig_argv[sys.orig_argv.index("--config") + 1].removesuffix(".toml") + ".slow"
    os.fsync = _slow(os.fsync, _sign)
    os.fdatasync = _slow(os.fdatasync, _sign)
