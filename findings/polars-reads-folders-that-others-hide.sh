#!/usr/bin/env bash
# polars 2.1.0: `scan_parquet(folder)` reads below folders whose names begin with an underscore. pyarrow's datasets
# pass such folders over, as Hadoop does: it is where writers keep what is not committed yet (`_temporary`). So the
# same folder has other rows in each tool. A foreign file beside the parts (`_state.json`) makes polars refuse the
# whole folder, and pyarrow not, while an empty file without an extension (`_SUCCESS`) is no trouble.
# Seen: 3 rows in polars, 2 in pyarrow 26.0.1; InvalidOperationError of polars, 2 rows in pyarrow.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check polars==2.1.0 pyarrow==26.0.1
cd "$work"
"$work/venv/bin/python" - <<'PYTHON'
import pathlib

import polars
import pyarrow
import pyarrow.dataset
import pyarrow.parquet

table = pathlib.Path("table")
(table / "_temporary").mkdir(parents=True)
pyarrow.parquet.write_table(pyarrow.table({"x": [1, 2]}), table / "part-0.parquet")
pyarrow.parquet.write_table(pyarrow.table({"x": [3]}), table / "_temporary" / "part-1.parquet")
(table / "_SUCCESS").touch()


def rows_for_polars() -> int:
    return polars.scan_parquet(table).collect().height


def rows_for_pyarrow() -> int:
    return pyarrow.dataset.dataset(table, format="parquet").count_rows()


print("rows: polars", rows_for_polars(), "pyarrow", rows_for_pyarrow())
assert (rows_for_polars(), rows_for_pyarrow()) == (3, 2)
(table / "_state.json").write_text("{}")
try:
    rows_for_polars()
except polars.exceptions.InvalidOperationError as error:
    print("polars, beside _state.json:", str(error).split(":")[0])
else:
    raise AssertionError("polars passes the file over by now")
assert rows_for_pyarrow() == 2
PYTHON
