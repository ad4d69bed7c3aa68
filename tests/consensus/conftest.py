"""`pytest tests/consensus --rewrite` writes what the scripts print now into the scripts.

Read the difference before it is committed: a script is a claim, not a recording.
"""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="rewrite the outputs in consensus/scripts")
