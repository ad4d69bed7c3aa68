"""Commands are run as the tests of the command line run them."""

from __future__ import annotations

from tests.cli.conftest import cli

__all__ = ["cli"]
