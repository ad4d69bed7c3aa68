from __future__ import annotations

import os

import pytest


@pytest.fixture
def no_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncs return at once: for tests that kill a process very often and never switch a machine off."""
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
