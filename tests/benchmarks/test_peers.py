"""`make bench-peers` without the peers: how it reads figures, compares them and says what is missing."""

from __future__ import annotations

import io
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
import typer
from matplotlib.figure import Figure
from rich.console import Console

from benchmarks.peers import chart
from benchmarks.peers.__main__ import PEERS, chosen_peers, chosen_workloads
from benchmarks.peers.cache import (
    Cache,
    Unavailable,
    last_lines,
    pinned_go_version,
    pinned_maven_version,
)
from benchmarks.peers.chart import draw
from benchmarks.peers.load_client import LoadLine, figures_of, run_load
from benchmarks.peers.rabbitmq import moved
from benchmarks.peers.results import Failure, Results, medians
from benchmarks.peers.run import WARM_UP_WORKLOAD, measure_all, set_up
from benchmarks.peers.servers import ServerCommand, Servers, with_descendants
from benchmarks.peers.system import SINGLES, WORKLOADS, Figures, MeasuringFailed, Shape, System
from benchmarks.peers.table import notes_of, table_of
from tests.tools import run_tool
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]


class Fixed(System):
    """A system whose every load comes to the same; it writes down what is asked of it."""

    durability = "page cache"
    synced = False
    shapes: Mapping[str, Shape] = {**SINGLES, "bulk": Shape(1, 8, 256, "batches")}

    def __init__(self, name: str, rate: float = 1000.0, asked: list[str] | None = None) -> None:
        self.name = self.family = name
        self._rate = rate
        self._asked = asked if asked is not None else []

    @property
    def title(self) -> str:
        return f"{self.name} 1.0"

    def set_up(self, cache: Cache) -> None:
        if self.name == "impossible":
            cache.run(["no-such-program-anywhere"])

    @contextmanager
    def running(self, folder: Path) -> Iterator[Fixed]:
        if self.name == "broken":
            raise MeasuringFailed("no port was free")
        assert list(folder.iterdir()) == []
        (folder / "data").write_text("left behind")
        self._asked.append(f"{self.name} starts")
        yield self
        self._asked.append(f"{self.name} ends")

    def measure(self, workload: str, seconds: float) -> Figures:
        self._asked.append(workload)
        return figures(self._rate)


def figures(rate: float, cpu_us: float = 10.0) -> Figures:
    return Figures(rate, rate, p50_ms=1.0, p99_ms=2.0, cpu_us_per_record=cpu_us)


# ---------------------------------------------------------------- comparing


def test_medians_are_taken_figure_by_figure() -> None:
    found = [figures(100, 30.0), figures(300, 10.0), figures(200, 20.0)]
    assert medians(found) == figures(200, 20.0)


def test_a_ratio_is_quorumlogs_rate_over_the_systems() -> None:
    ours, theirs = Fixed("quorumlog-sync"), Fixed("slow")
    results = Results([ours, theirs])
    for rate in (900, 1000, 1100):
        results.add("quorumlog-sync", "64-writers", figures(rate))
        results.add("slow", "64-writers", figures(rate / 4))
    (own, other) = results.lines()
    assert own.ratios["quorumlog-sync"] == 1.0
    assert other.ratios["quorumlog-sync"] == 4.0
    assert math.isnan(other.ratios["quorumlog-async"]), "async was not measured"
    assert other.repetitions == 3


def test_a_batch_call_stands_against_quorumlogs_bulk() -> None:
    results = Results([Fixed("quorumlog-async"), Fixed("batching")])
    results.add("quorumlog-async", "bulk", figures(3000))
    results.add("batching", "batch-call", figures(1000))
    line = next(line for line in results.lines() if line.workload == "batch-call")
    assert line.ratios["quorumlog-async"] == 3.0


def test_quorumlog_is_in_every_panel_and_no_figure_leaves_its_frame(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = Fixed("quorumlog-async")
    ours.family = "quorumlog"
    results = Results([ours, Fixed("batching")])
    for workload in (*SINGLES, "bulk"):
        results.add("quorumlog-async", workload, figures(175_586))
    results.add("batching", "batch-call", figures(61_082))
    for lines in results.panels().values():
        assert lines[0].system is ours
    drawn: list[Figure] = []
    monkeypatch.setattr(chart, "save", lambda figure, path: drawn.append(figure))
    draw(tmp_path / "peers.png", results, "a machine")
    (figure,) = drawn
    figure.canvas.draw()
    panels = [axis for axis in figure.axes if axis.axison]
    assert len(panels) == len(results.panels())
    for axis in panels:
        assert axis.texts
        for text in axis.texts:
            assert text.get_window_extent().x1 < axis.get_window_extent().x1, text.get_text()


def test_nothing_acknowledged_is_no_ratio_and_no_number_in_json() -> None:
    results = Results([Fixed("quorumlog-sync"), Fixed("stuck")])
    results.add("quorumlog-sync", "bulk", figures(1000))
    results.add("stuck", "bulk", figures_of(LoadLine(seconds=2.0), cpu_seconds=1.0))
    (row,) = [row for row in results.as_json()["results"] if row["system"] == "stuck"]
    assert row["records_per_second"] == 0
    assert row["p50_ms"] is None
    assert row["ratios"] == {"quorumlog-sync": None, "quorumlog-async": None}
    json.dumps(row, allow_nan=False)


def test_the_table_and_the_chart_have_every_line(tmp_path: Path) -> None:
    results = Results([Fixed("quorumlog-sync"), Fixed("slow"), Fixed("absent")])
    results.add("quorumlog-sync", "one-writer", figures(5000))
    results.add("slow", "one-writer", figures(2000))
    results.add("slow", "bulk", figures(70_000))
    results.missing["absent"] = "go is not installed"
    results.failures.append(Failure("slow", "64-writers", 2, "the leader [n1] ended"))
    console = Console(file=io.StringIO(), width=200)
    console.print(table_of(results, console.width))
    for note in notes_of(results):
        console.print(note)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    (row,) = [line for line in text.splitlines() if "slow 1.0" in line and "2,000" in line]
    assert "2.50" in row
    assert "page cache" in row
    assert "one connection, one in flight" in row
    assert "absent: go is not installed" in text
    assert "slow, 64-writers, repetition 2: the leader [n1] ended" in text
    draw(tmp_path / "peers.png", results, "a machine")
    assert (tmp_path / "peers.png").read_bytes().startswith(b"\x89PNG")


# ---------------------------------------------------------------- the run


def test_each_repetition_takes_the_systems_in_turn_every_second_one_backwards(tmp_path: Path) -> None:
    asked: list[str] = []
    systems = [Fixed("a", asked=asked), Fixed("b", asked=asked)]
    results = Results(systems)
    measure_all(
        systems, ["one-writer", "batch-call"], 2, 1.0, tmp_path, results, lambda text: None, list
    )
    expected = [
        line
        for name in "abba"
        for line in (f"{name} starts", WARM_UP_WORKLOAD, "one-writer", f"{name} ends")
    ]
    assert asked == expected, "batch-call is nothing that these can do"
    assert [line.repetitions for line in results.lines()] == [2, 2]
    assert list(tmp_path.iterdir()) == [], "data is removed"


def test_a_system_that_does_not_start_stops_no_other(tmp_path: Path) -> None:
    systems = [Fixed("broken"), Fixed("whole")]
    results = Results(systems)
    measure_all(systems, ["bulk"], 1, 1.0, tmp_path, results, lambda text: None, list)
    assert results.failures == [Failure("broken", None, 1, "no port was free")]
    assert [line.system.name for line in results.lines()] == ["whole"]


def test_what_cannot_be_installed_is_named_as_missing(tmp_path: Path) -> None:
    systems = [Fixed("impossible"), Fixed("whole")]
    results = Results(systems)
    installed = set_up(systems, Cache(tmp_path), results, lambda text: None)
    assert [system.name for system in installed] == ["whole"]
    assert results.missing == {"impossible": "no-such-program-anywhere is not installed"}
    assert results.as_json()["systems"][0]["missing"] == results.missing["impossible"]


def test_a_set_up_command_that_fails_is_quoted(tmp_path: Path) -> None:
    program = "import sys; print('one\\ntwo\\n\\nthree\\nfour', file=sys.stderr); sys.exit(1)"
    with pytest.raises(Unavailable, match="failed: two / three / four"):
        Cache(tmp_path).run([sys.executable, "-c", program])


# ---------------------------------------------------------------- load clients and servers


def load(program: str, folder: Path, cpu_seconds: Sequence[float] = (1.0, 3.0)) -> Figures:
    readings = iter(cpu_seconds)
    command = [sys.executable, "-c", program]
    return run_load(
        command, "a,b,c", Shape(1, 1, 1, ""), 0.1, lambda: next(readings), folder / "load.log", {}
    )


def test_cpu_time_counts_between_the_two_lines_of_a_client(tmp_path: Path) -> None:
    program = """print('{"event":"began"}')
print('{"seconds":2.0,"operations":10,"records":1000,"p50_ms":0.5,"p99_ms":4.0}')"""
    assert load(program, tmp_path) == Figures(500.0, 5.0, 0.5, 4.0, cpu_us_per_record=2000.0)


def test_a_client_that_fails_is_quoted(tmp_path: Path) -> None:
    program = """import sys
print('{"event":"began"}')
sys.exit('the leader is gone')"""
    with pytest.raises(MeasuringFailed, match="status 1: the leader is gone"):
        load(program, tmp_path)


def test_a_client_without_a_result_is_no_measurement(tmp_path: Path) -> None:
    with pytest.raises(MeasuringFailed, match="it printed nothing"):
        load("", tmp_path)


def test_what_is_no_json_is_quoted(tmp_path: Path) -> None:
    with pytest.raises(MeasuringFailed, match="printed 'panic: out of memory'"):
        load("print('panic: out of memory')", tmp_path)


def test_unknown_fields_of_a_clients_line_do_no_harm() -> None:
    line = msgspec.json.decode(b'{"seconds":1.0,"records":5,"records_per_second":5.0}', type=LoadLine)
    assert (line.seconds, line.records) == (1.0, 5)


def test_descendants_are_counted_with_their_parents() -> None:
    assert with_descendants([10, 20], {10: 1, 11: 10, 12: 11, 20: 1, 30: 1, 1: 0}) == {10, 11, 12, 20}


@pytest.mark.processes
def test_servers_are_stopped_with_their_children(tmp_path: Path) -> None:
    child = "while True: pass"
    parent = f"""import subprocess, sys
with subprocess.Popen([sys.executable, "-c", {child!r}]) as child:
    print(child.pid, flush=True)"""
    log = tmp_path / "n0.log"
    with Servers(tmp_path, [ServerCommand("n0", [sys.executable, "-c", parent])]) as servers:
        eventually(lambda: log.read_text().endswith("\n"), what="the parent has a child")
        child_stat = Path(f"/proc/{int(log.read_text())}/stat")
        eventually(lambda: servers.cpu_seconds() > 0.5, what="the time of the child is counted")
    eventually(lambda: is_dead(child_stat), what="the child is dead")


def is_dead(stat: Path) -> bool:
    """True for one too that nobody has collected yet."""
    try:
        return stat.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_a_server_that_ended_is_named_with_its_last_words(tmp_path: Path) -> None:
    command = ServerCommand("n0", [sys.executable, "-c", "raise SystemExit('no such directory')"])

    def failure() -> str:
        try:
            servers.check_running()
        except MeasuringFailed as error:
            return str(error)
        return ""

    with Servers(tmp_path, [command]) as servers:
        words = eventually(failure, what="it has ended")
    assert words == "n0 ended by itself with status 1: no such directory"


# ---------------------------------------------------------------- versions, words, options


def test_versions_are_read_where_they_are_pinned() -> None:
    go_mod = "require (\n\tgo.example/x/client/v3 v3.6.1 // indirect\n\tgo.example/x v3.7.0-rc.1\n)\n"
    assert pinned_go_version(go_mod, "go.example/x") == "3.7.0-rc.1"
    assert pinned_go_version("require go.example/x v1.2.3\n", "go.example/x") == "1.2.3"
    pom = "<dependency>\n<artifactId>kafka_2.13</artifactId>\n  <version>4.4.0</version>"
    assert pinned_maven_version(pom, "kafka_2.13") == "4.4.0"


def test_every_peer_says_its_version_and_what_an_acknowledgement_is_worth() -> None:
    for peer in PEERS:
        assert peer.title
        assert peer.durability.startswith("log synced" if peer.synced else "page cache")
        assert set(peer.shapes) <= set(WORKLOADS)


def test_erlangs_start_script_is_told_where_it_lies() -> None:
    script = 'if x\nthen\n    ROOTDIR=/usr/lib/erlang\nfi\nBINDIR="$ROOTDIR/bin"\n'
    once = moved(script, Path("/cache/erlang"))
    assert once == script.replace("/usr/lib/erlang", "/cache/erlang")
    assert moved(once, Path("/cache/erlang")) == once


def test_last_lines_are_short() -> None:
    assert last_lines("a\n\n  b \nc\nd\n", 2) == "c / d"
    assert last_lines(" \n") == "it printed nothing"


def test_a_familys_name_chooses_all_its_variants() -> None:
    assert [peer.name for peer in chosen_peers(["kafka", "etcd"])] == ["etcd", "kafka", "kafka-fsync"]
    assert [peer.name for peer in chosen_peers(["nats-always"])] == ["nats-always"]
    assert chosen_peers(None) == list(PEERS)
    with pytest.raises(typer.BadParameter, match="--peer redis is unknown"):
        chosen_peers(["redis"])
    assert chosen_workloads(["bulk", "one-writer"]) == ["one-writer", "bulk"]
    with pytest.raises(typer.BadParameter, match="--workload all is unknown"):
        chosen_workloads(["all"])


def test_help_has_an_example() -> None:
    done = run_tool("benchmarks.peers", "--help")
    assert done.returncode == 0, done.stderr
    assert "python -m benchmarks.peers --peer etcd" in done.stdout
