"""The source of the demo: records that can be recognised, and sums to compare with."""

from __future__ import annotations

import json

import pandas as pd

from demo.flights import encode_records, load_flights, summarise


def test_a_record_holds_every_column_with_its_row_number_and_null_for_what_is_missing() -> None:
    flights = load_flights(1000)
    records = [json.loads(record) for record in encode_records(flights)]
    assert [record["row"] for record in records] == list(range(1000))
    assert list(records[0]) == list(flights.columns)
    assert len(flights.columns) == 20
    assert records[0]["carrier"] == "UA"
    assert records[0]["dep_time"] == 517
    cancelled = records[838]
    assert cancelled["arr_delay"] is None
    assert cancelled["sched_dep_time"] == 1630


def test_the_whole_source_has_336776_flights() -> None:
    assert len(load_flights()) == 336_776


def test_a_summary_counts_all_flights_and_averages_the_known_delays() -> None:
    flights = pd.DataFrame(
        {"carrier": ["UA", "AA", "UA", "UA"], "arr_delay": pd.array([10, None, 20, None], "Int64")}
    )
    summary = summarise(flights, "carrier")
    assert summary["carrier"].tolist() == ["AA", "UA"]
    assert summary["flights"].tolist() == [1, 3]
    assert pd.isna(summary["mean_arr_delay"][0])
    assert summary["mean_arr_delay"][1] == 15.0
