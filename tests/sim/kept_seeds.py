"""Seeds whose runs once failed, each with what it found; run again with the tests.

A change of the profiles makes another run of a seed. A line stays only as long as its run still fails
with the mistake put back, as its mutant (tests/mutants/) does, where it has one. What is no longer tied
to a seed has a directed test beside the code that was wrong.
"""

from __future__ import annotations

from typing import NamedTuple


class KeptSeed(NamedTuple):
    seed: int
    lossy_disks: bool
    mutant: str
    """What puts the mistake back; empty where a checker was wrong and not the product."""
    found: str
    member_changes: bool = False


KEPT_SEEDS = (
    KeptSeed(
        415,
        False,
        "",
        "a directory that had replaced a lost one was lost too, and did not count until the next start:"
        " another was wiped, and of three voters one was left",
    ),
    KeptSeed(1119, False, "", "the term of the log's last entry was asked of a damaged index unit"),
    KeptSeed(1174, False, "", "what was damaged had to be on the platter: a false alarm"),
    KeptSeed(
        2016,
        False,
        "cut_leaves_machines",
        "async: a machine was back with more than was known to be committed, and the log was cut below",
        True,
    ),
    KeptSeed(2801, False, "", "a disk that was slow became slow again when faults had stopped"),
    KeptSeed(
        3762, False, "", "a zeroed page held bytes above the durable point: damage that no disk does"
    ),
    KeptSeed(5089, False, "", "a leader with a damaged entry alone knew of a commit: no loss"),
    KeptSeed(7134, False, "", "a founding list that a full disk refused was taken for founded"),
)
"""Each run with the default of 15 virtual seconds with faults."""
