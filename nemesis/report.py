"""What a run has shown: a table of faults, a timeline, and whether anything is wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from rich.console import Console
from rich.table import Table

from harness.plot import plt, save
from nemesis.check import Violation
from nemesis.faults import FAULTS
from nemesis.history import LAST_SEQUENCE, Operation
from nemesis.leaders import RoleEvent, Span, elections

HANDFUL = 5
"""So many elections a minute may a fault cost that must not leave the group without a leader."""
SHOWN_VIOLATIONS = 20
_SECOND_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Round:
    """One fault, or several that overlapped. Times of the monotonic clock."""

    names: tuple[str, ...]
    detail: str
    began_ns: int
    ended_ns: int
    """The fault was over."""
    whole_ns: int
    """Every member followed one leader again and had caught up."""

    @property
    def title(self) -> str:
        return " + ".join(self.names)

    @property
    def leader_bound_s(self) -> float | None:
        bounds = [FAULTS[name].leader_bound_s for name in self.names]
        return bounds[0] if len(bounds) == 1 else None


@dataclass(frozen=True, slots=True)
class FaultRow:
    """All rounds of one fault. Counts are of calls; seconds are the worst of one round."""

    title: str
    rounds: int
    appends: int
    acknowledged: int
    refused: int
    unknown: int
    leaderless_s: float
    silent_s: float
    """Longest time without an acknowledgement."""
    elections: int
    most_elections: int
    is_as_promised: bool


@dataclass(slots=True)
class Report:
    members: int
    seed: int
    began_ns: int
    ended_ns: int
    rounds: list[Round] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)
    roles: list[RoleEvent] = field(default_factory=list)
    leaderless: list[Span] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    logs: str = ""
    """What the directories hold, in words."""
    begin_index: int = 0
    """From where on all members still hold the log."""
    installs: int = 0
    """Logs that made way for the leader's, which began above their end."""
    starts: tuple[int, int] = (0, 0)
    """Of members of this release, and of the one before."""

    def rows(self) -> list[FaultRow]:
        titles = dict.fromkeys(one.title for one in self.rounds)
        return [self._row(title, [r for r in self.rounds if r.title == title]) for title in titles]

    def _row(self, title: str, rounds: Sequence[Round]) -> FaultRow:
        appends = self._appends_in(rounds)
        outcomes = [operation.ok for operation in appends]
        leaderless = [self._leaderless_s(one) for one in rounds]
        counts = [self._elections_in(one) for one in rounds]
        bound_s = rounds[0].leader_bound_s
        minutes = math.ceil(max((one.whole_ns - one.began_ns) / (60 * _SECOND_NS) for one in rounds))
        allowed = 0 if bound_s == 0 else HANDFUL * minutes
        return FaultRow(
            title,
            len(rounds),
            len(appends),
            outcomes.count(True),
            outcomes.count(False),
            outcomes.count(None),
            max(leaderless),
            max(self._silent_s(one) for one in rounds),
            sum(counts),
            max(counts),
            bound_s is None or (max(leaderless) <= bound_s and max(counts) <= allowed),
        )

    def _appends_in(self, rounds: Sequence[Round]) -> list[Operation]:
        """Called between the beginning of a round and the group being whole again."""
        spans = [(one.began_ns, one.whole_ns) for one in rounds]
        appends = sorted((op for op in self.operations if op.is_append), key=lambda op: op.call_ns)
        calls = np.array([operation.call_ns for operation in appends])
        found: list[Operation] = []
        for began_ns, whole_ns in spans:
            first, stop = np.searchsorted(calls, [began_ns, whole_ns])
            found += appends[first:stop]
        return found

    def _leaderless_s(self, one: Round) -> float:
        spans = [span.within(one.began_ns, one.whole_ns) for span in self.leaderless]
        return max((span.seconds for span in spans), default=0.0)

    def _elections_in(self, one: Round) -> int:
        return sum(one.began_ns <= won.at_ns < one.whole_ns for won in elections(self.roles))

    def _silent_s(self, one: Round) -> float:
        times = self._ack_times()
        inside = times[(times > one.began_ns) & (times < one.whole_ns)]
        edges = np.concatenate(([one.began_ns], inside, [one.whole_ns]))
        return float(np.diff(edges).max()) / _SECOND_NS

    def _ack_times(self) -> npt.NDArray[np.int64]:
        acknowledged = [op.return_ns for op in self.operations if op.is_append and op.ok]
        return np.sort(np.array(acknowledged, np.int64))

    # ---------------------------------------------------------------- words

    def print(self, console: Console) -> None:
        console.print(self._faults_table())
        reads = [operation for operation in self.operations if operation.is_read]
        appends = [operation for operation in self.operations if operation.is_append]
        outcomes = [operation.ok for operation in appends]
        console.print(
            f"{self.members} members, {(self.ended_ns - self.began_ns) / _SECOND_NS:.0f} s, seed"
            f" {self.seed}: {len(appends):,} appends ({outcomes.count(True):,} acknowledged,"
            f" {outcomes.count(False):,} refused, {outcomes.count(None):,} unknown), {len(reads):,}"
            f" reads ({sum(bool(read.ok) for read in reads):,} answered)",
            highlight=False,
        )
        own = [operation for operation in appends if operation.in_session]
        asked = sum(operation.op == LAST_SEQUENCE for operation in self.operations)
        console.print(
            f"In sessions: {len(own):,} of these appends,"
            f" {sum(operation.ok is None for operation in own):,} unknown at the end,"
            f" {sum(operation.tries > 1 for operation in own):,} asked for more than once,"
            f" {sum(bool(operation.parts) for operation in own):,} cut by a crash;"
            f" {asked:,} programs begun anew",
            highlight=False,
        )
        if self.starts[1]:
            console.print(
                f"Members began {self.starts[0]} times with this release and {self.starts[1]} times with"
                " the one before",
                highlight=False,
            )
        if self.logs:
            console.print(f"Logs: {self.logs}", highlight=False)
        if self.begin_index:
            console.print(
                f"First entry that all still have: {self.begin_index:,}; {self.installs} logs made way"
                " for one that began above their end",
                highlight=False,
            )
        if not self.violations:
            console.print("[green]0 violations[/]")
        else:
            console.print(f"[bold red]{len(self.violations):,} violations[/]")
            for violation in self.violations[:SHOWN_VIOLATIONS]:
                console.print(f"  {violation}", highlight=False, markup=False)

    def _faults_table(self) -> Table:
        table = Table(
            title="Faults",
            caption="The longest times; elections in all, and in one round. Red: more than meant.",
        )
        table.add_column("fault")
        for heading in (
            "rounds",
            "appends",
            "acknowledged",
            "refused",
            "unknown",
            "no leader, s",
            "no ack, s",
            "elections",
        ):
            table.add_column(heading, justify="right")
        for row in self.rows():
            table.add_row(
                row.title,
                str(row.rounds),
                f"{row.appends:,}",
                f"{row.acknowledged:,}",
                f"{row.refused:,}",
                f"{row.unknown:,}",
                f"{row.leaderless_s:.2f}",
                f"{row.silent_s:.2f}",
                f"{row.elections} ({row.most_elections})",
                style=None if row.is_as_promised else "red",
            )
        return table

    # ---------------------------------------------------------------- picture

    def draw(self, path: Path) -> None:
        """Write a PNG: acknowledgements over time, the faults, and who led."""
        duration_s = (self.ended_ns - self.began_ns) / _SECOND_NS
        figure, (acks, lanes) = plt.subplots(
            2, 1, figsize=(14, 6.5), layout="constrained", sharex=True, height_ratios=(2, 1)
        )
        self._draw_acks(acks, duration_s)
        self._draw_lanes(lanes)
        lanes.set_xlim(0, duration_s)
        lanes.set_xlabel("seconds")
        save(figure, path)

    def _seconds(self, at_ns: int) -> float:
        return (at_ns - self.began_ns) / _SECOND_NS

    def _draw_acks(self, axes: Axes, duration_s: float) -> None:
        interval_s = max(0.25, duration_s / 600)
        edges = np.arange(0.0, duration_s + 2 * interval_s, interval_s)
        times = (self._ack_times() - self.began_ns) / _SECOND_NS
        counts, _ = np.histogram(times, bins=edges)
        axes.stairs(counts / interval_s, edges, fill=True, color="tab:blue", alpha=0.6)
        colours = plt.get_cmap("tab20")
        titles = list(dict.fromkeys(one.title for one in self.rounds))
        for number, title in enumerate(titles):
            # A label that begins with an underscore is left out of the legend.
            label = title
            for one in (r for r in self.rounds if r.title == title):
                began_s, ended_s = self._seconds(one.began_ns), self._seconds(one.ended_ns)
                colour = colours(number % colours.N)
                axes.axvspan(began_s, ended_s, color=colour, alpha=0.35, label=label)
                label = f"_{title}"
        axes.set_ylabel("acknowledged appends/s")
        axes.set_title(f"{self.members} members, seed {self.seed}, {len(self.violations)} violations")
        if titles:
            axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))

    def _draw_lanes(self, axes: Axes) -> None:
        """A lane a member, filled while it says that it leads; above them, the time without a leader."""
        member_ids = sorted({event.member_id for event in self.roles})
        for lane, member_id in enumerate(member_ids):
            own = [event for event in self.roles if event.member_id == member_id]
            stops = [event.at_ns for event in own[1:]] + [self.ended_ns]
            bars = [
                (self._seconds(event.at_ns), (stop_ns - event.at_ns) / _SECOND_NS)
                for event, stop_ns in zip(own, stops, strict=True)
                if event.role == "leader"
            ]
            axes.broken_barh(bars, (lane - 0.4, 0.8), color="tab:green")
        gaps = [(self._seconds(span.began_ns), span.seconds) for span in self.leaderless]
        axes.broken_barh(gaps, (len(member_ids) - 0.4, 0.8), color="tab:red")
        axes.set_yticks(
            range(len(member_ids) + 1), [*(f"{m} leads" for m in member_ids), "nobody leads"]
        )
