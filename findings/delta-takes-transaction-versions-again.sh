#!/usr/bin/env bash
# deltalake 1.6.6: an append whose application transaction has the version that the table has already, or a lower one,
# is committed without a word, and the lower version then stands for the newest. The protocol gives the version to
# writers so that a repeated commit can be told; the comparison is left to whoever calls.
# Seen: versions 5, 5, 3 make three rows, and transaction_version("writer") is 3.
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
for version in (5, 5, 3):
    once = CommitProperties(app_transactions=[Transaction("writer", version)])
    write_deltalake("table", row, mode="append", commit_properties=once)
    table = DeltaTable("table")
    print("wrote version", version, "rows", table.to_pyarrow_table().num_rows, "now", table.transaction_version("writer"))
table = DeltaTable("table")
assert table.to_pyarrow_table().num_rows == 3, "a version that the table has already is refused or skipped by now"
assert table.transaction_version("writer") == 3, "a version no longer goes back"
PYTHON
