#!/usr/bin/env bash
# pyiceberg 0.12.0: `add_files` refuses a file that the table holds, but looks at the table as the handle knew it.
# Two handles loaded before either commits both add the same file: the second one meets the concurrent commit,
# retries on top of it without looking again, and the table holds the file twice.
# Seen: a file of two rows, four rows in the table; a fresh handle then refuses the file and names it twice.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check "pyiceberg[sql-sqlite]==0.12.0" pyarrow==26.0.1
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import pathlib

import pyarrow
import pyarrow.parquet
from pyiceberg.catalog.sql import SqlCatalog

here = pathlib.Path.cwd()
(here / "warehouse").mkdir()
catalog = SqlCatalog("local", uri=f"sqlite:///{here}/catalog.db", warehouse=f"file://{here}/warehouse")
catalog.create_namespace("n")
rows = pyarrow.table({"x": pyarrow.array([1, 2], pyarrow.int64())})
catalog.create_table("n.t", schema=rows.schema)
pyarrow.parquet.write_table(rows, here / "part.parquet")
file = f"file://{here}/part.parquet"

first, second = catalog.load_table("n.t"), catalog.load_table("n.t")
first.add_files([file])
second.add_files([file])
found = catalog.load_table("n.t").scan().to_arrow().num_rows
print("rows of a file of two, added through two handles:", found)
assert found == 4, "the retry looks again by now"
try:
    catalog.load_table("n.t").add_files([file])
except ValueError as error:
    print("a fresh handle:", str(error).split(",")[0])
    assert str(error).count("part.parquet") == 2
else:
    raise AssertionError("a fresh handle adds it as well")
PYTHON
