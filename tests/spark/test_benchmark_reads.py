"""What is measured of Spark is what the figure's name says, in each turn."""

from __future__ import annotations

from typing import Any

from benchmarks.spark.__main__ import frames_of


class Reader:
    """As Spark's: what is set stays set."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def format(self, name: str) -> Reader:
        self.given["format"] = name
        return self

    def option(self, name: str, value: Any) -> Reader:
        self.given[name] = value
        return self

    def options(self, **given: Any) -> Reader:
        self.given |= given
        return self

    def schema(self, _: Any) -> Reader:
        return self

    def load(self, path: str = "") -> Frame:
        return Frame(self.given | ({"path": path} if path else {}))

    def parquet(self, path: str) -> Frame:
        return Frame({"format": "parquet", "path": path})

    def json(self, path: str) -> Frame:
        return Frame({"format": "json", "path": path})


class Frame:
    schema = None

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = dict(given)


class Session:
    @property
    def read(self) -> Reader:
        return Reader()


def test_each_turn_reads_with_the_options_of_its_name_alone() -> None:
    session: Any = Session()
    frames: Any = frames_of(session, "h:1", "/stored", "/parquet", "/lines", 10, 100)
    for _ in range(2):
        found = {name: frame().given for name, frame in frames.items()}
        assert found["path"] == {"format": "quorumlog", "path": "/stored"}
        assert found["path_unchecked"] == found["path"] | {"verifyCrc": "false"}
        members = {"format": "quorumlog", "servers": "h:1", "group": "source"}
        assert (found["servers"], found["count"]) == (members, members | {"columns": "index"})
        assert found["yielder"]["columns"] == "index,term,body"
        assert found["yielder_count"]["columns"] == "index"
