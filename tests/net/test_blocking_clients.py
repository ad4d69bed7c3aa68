"""The blocking clients are those that are written from the asyncio clients as they are now."""

from __future__ import annotations

import pytest

from harness.blocking_clients import OUTPUTS, SOURCES, Output, Writer


@pytest.mark.parametrize("output", OUTPUTS, ids=lambda output: str(output.target))
def test_every_blocking_client_is_up_to_date(output: Output) -> None:
    text = (SOURCES / output.target).read_text()
    assert text == Writer(output).text(), "run: make blocking"
