"""The examples of the store, and the programs of docs/kv.md."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from quorumlog.kv import KeyValueClient
from quorumlog.kv.testing import LocalStores, key_value_store
from tests.docs.markdown import DOCS

EXAMPLES = Path(__file__).parents[2] / "examples"
__all__ = ["key_value_store"]


def run(name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_configuration_reloads_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("kv_live_configuration.py", capsys) == [
        "started with {'config/workers': 4}",
        "continues with {'config/workers': 8}",
    ]


def test_one_machine_runs_the_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("kv_cron_leader.py", capsys) == [
        "night 1: one leads",
        "night 2: two leads",
        "an old token is refused",
    ]


def test_calls_are_limited(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("kv_rate_limiter.py", capsys) == [
        "in one window: yes yes yes no no",
        "in the next: yes",
    ]


def test_services_are_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("kv_service_discovery.py", capsys) == [
        "up: services/web/one http://one:8080",
        "up: services/web/two http://two:8080",
        "down: services/web/one",
        "left: http://two:8080",
    ]


def test_the_fixture_is_a_store(key_value_store: KeyValueClient) -> None:
    key_value_store["a"] = "1"
    assert key_value_store["a"] == b"1"


def test_the_programs_of_the_page_run() -> None:
    programs = re.findall(r"```python\n(.*?)```", (DOCS / "kv.md").read_text(), re.DOTALL)
    assert programs
    with LocalStores() as stores:
        for program in programs:
            exec(compile(program, "docs/kv.md", "exec"), {"servers": stores.servers})
