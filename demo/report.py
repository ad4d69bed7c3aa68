"""What the demo says at the end, and whether that is good."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from demo.producing import ProducerKill
from demo.spark_comparison import LogContents
from harness.directories import Comparison
from harness.faults import Failover
from quorumlog import MemberStatusRow


@dataclass(slots=True)
class Report:
    rows: int
    batch_records: int
    members: list[MemberStatusRow] = field(default_factory=list)
    """Status of every member when all was written."""
    starts: dict[str, int] = field(default_factory=dict)
    seconds_producing: float = 0.0
    failovers: list[Failover] = field(default_factory=list)
    producer_kill: ProducerKill | None = None
    contents: LogContents | None = None
    """None: Spark was left out."""
    directories: Comparison | None = None
    story: list[str] = field(default_factory=list)
    """What the chart shows, in words."""

    def comparisons(self) -> list[Comparison]:
        found = list(self.contents.comparisons) if self.contents else []
        if self.contents:
            found.append(
                Comparison(
                    "no row is repeated",
                    self.contents.repeated_rows == 0,
                    f"{self.contents.repeated_rows:,} repeated",
                )
            )
        if self.directories:
            found.append(self.directories)
        return found

    @property
    def succeeded(self) -> bool:
        nothing_lost = self.contents is None or self.contents.lost_rows == 0
        return (
            nothing_lost and self.directories is not None and all(c.agrees for c in self.comparisons())
        )

    def print(self, console: Console) -> None:
        console.print(self._members_table())
        console.print(self._figures_table())
        console.print(self._comparisons_table())

    def _members_table(self) -> Table:
        table = Table(title="Members, when all was written")
        for heading in ("id", "address", "role", "starts"):
            table.add_column(heading)
        for heading in ("term", "log end", "committed index"):
            table.add_column(heading, justify="right")
        for row in sorted(self.members, key=lambda row: row.id):
            table.add_row(
                row.id,
                row.address,
                row.role,
                str(self.starts.get(row.id, 0)),
                str(row.term),
                f"{row.ledger_end_index:,}",
                f"{row.committed_index:,}",
            )
        return table

    def _figures_table(self) -> Table:
        table = Table(title="The run", show_header=False)
        table.add_column()
        table.add_column(justify="right")
        rate = self.rows / self.seconds_producing if self.seconds_producing else 0.0
        table.add_row("rows of the source", f"{self.rows:,}")
        table.add_row(
            "records per second, failovers included",
            f"{rate:,.0f} (batches of {self.batch_records}, {self.seconds_producing:.1f} s)",
        )
        for failover in self.failovers:
            what = (
                "killed and restarted" if failover.signal_name == "SIGKILL" else "stopped and continued"
            )
            table.add_row(
                f"{failover.signal_name}: {failover.leader_id} {what}, term {failover.term} ->"
                f" {failover.next_term}, without a leader for",
                f"{failover.seconds_without_leader:.3f} s",
            )
            table.add_row(
                f"   {failover.leader_id} has caught up after", f"{failover.seconds_to_catch_up:.3f} s"
            )
        if self.producer_kill is not None:
            killed = self.producer_kill
            between = killed.resumed_at_row - killed.acknowledged_rows
            table.add_row(
                f"SIGKILL of the producer after {killed.acknowledged_rows:,} rows; the next"
                f" resumed at row {killed.resumed_at_row:,} ({between:,} more were written), after",
                f"{killed.seconds_to_resume:.3f} s",
            )
        if self.contents is not None:
            table.add_row("records in the log", f"{self.contents.records:,}")
            table.add_row(
                "rows lost", _good(f"{self.contents.lost_rows:,}", self.contents.lost_rows == 0)
            )
            table.add_row(
                "rows repeated",
                _good(f"{self.contents.repeated_rows:,}", self.contents.repeated_rows == 0),
            )
            table.add_row("Spark, from start to last answer", f"{self.contents.seconds:.1f} s")
            for step, seconds in self.contents.steps:
                table.add_row(f"   {step}", f"{seconds:.1f} s")
        return table

    def _comparisons_table(self) -> Table:
        table = Table(title="Comparisons")
        table.add_column("what")
        table.add_column("result")
        table.add_column("detail")
        for comparison in self.comparisons():
            result = "agrees" if comparison.agrees else "DIFFERS"
            table.add_row(comparison.name, _good(result, comparison.agrees), comparison.detail)
        return table


def _good(text: str, good: bool) -> str:
    return f"[{'green' if good else 'bold red'}]{text}[/]"
