from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.earlier import COMMIT, unpack


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the earlier release."""
    try:
        return unpack(tmp_path_factory.mktemp("earlier")) / "src"
    except subprocess.CalledProcessError:
        pytest.skip(f"the history of this copy does not reach back to {COMMIT}")
