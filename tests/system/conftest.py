from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
EARLIER = "fd35d4aa5c52"


@pytest.fixture(scope="session")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources of the earlier release, out of the history of this repository."""
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", EARLIER, "src"], capture_output=True, check=False
    )
    if archive.returncode:
        pytest.skip(f"the history of this copy does not reach back to {EARLIER}")
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(folder, filter="data")
    return folder / "src"
