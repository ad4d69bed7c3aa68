#!/usr/bin/env bash
# deltalake 1.6.6: RESTORE takes rows back, and leaves the version of the application transaction that wrote them.
# A writer that asks `transaction_version(app)` what is already in the table, as an exactly-once sink does, is told
# that rows are there which no reader sees any more: it skips them for ever.
# Seen: rows 2 -> 1 after restore(0), transaction_version("writer") 2 before and after.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check deltalake==1.6.6 pyarrow==26.0.1
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import pyarrow
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

row = pyarrow.table({"x": [1]})
for version in (1, 2):
    once = CommitProperties(app_transactions=[Transaction("writer", version)])
    write_deltalake("table", row, mode="append", commit_properties=once)


def state() -> tuple[int, int | None]:
    table = DeltaTable("table")
    return table.to_pyarrow_table().num_rows, table.transaction_version("writer")


before = state()
DeltaTable("table").restore(0)
after = state()
print("rows and transaction version: before", before, "after restore(0)", after)
assert before == (2, 2)
assert after == (1, 2), "RESTORE takes the transaction's version back by now"
PYTHON
