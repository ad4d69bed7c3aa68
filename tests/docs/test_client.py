"""docs/client.md names every operation of both clients, every default that it states, and every
example."""

from __future__ import annotations

import inspect

from quorumlog import AsyncLedgerClient, LedgerClient, errors
from quorumlog.client.protocol import appending, read_plan
from tests.docs.markdown import DOCS, ROOT, section, tables

TEXT = (DOCS / "client.md").read_text()


def operations_of(client: type) -> set[str]:
    return {
        name for name, _ in inspect.getmembers(client, inspect.isfunction) if not name.startswith("_")
    }


def test_every_operation_has_its_row() -> None:
    (rows,) = tables(section(TEXT, "Operations"))
    assert [row["operation"] for row in rows] == sorted(
        operations_of(LedgerClient), key=[row["operation"] for row in rows].index
    )
    assert operations_of(LedgerClient) == operations_of(AsyncLedgerClient)


def test_what_is_raised_at_once_is_no_retriable_refusal() -> None:
    (rows,) = tables(section(TEXT, "Retries"))
    kinds = [getattr(errors, row["raised at once"]) for row in rows]
    assert all(issubclass(kind, errors.Refused) and not kind.retriable for kind in kinds)


def test_the_defaults_are_those_of_the_code() -> None:
    memory = section(TEXT, "Memory")
    assert f"`window` ({appending.DEFAULT_WINDOW})" in memory
    assert f"`batch_records` ({appending.DEFAULT_BATCH_RECORDS})" in memory
    assert f"`prefetch` ({read_plan.DEFAULT_PREFETCH})" in memory
    assert appending.DEFAULT_BATCH_BYTES == read_plan.READ_BATCH_BYTES == 1 << 20
    assert "about `batch_bytes` (1 MiB)" in memory


def test_the_examples_of_everyday_use_are_named() -> None:
    names = {"producer", "consumer", "outbox", "embedded_server", "pytest_fixture"}
    for name in names:
        assert f"(../examples/{name}.py)" in TEXT
        assert (ROOT / "examples" / f"{name}.py").is_file()
