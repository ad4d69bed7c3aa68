"""Who leads, and what is committed. Values in, values out: no file, socket, clock or thread.

**The idea.** A group of members keeps one log. One of them leads for a *term*; it alone decides what
comes next, pushes it to the others, and calls an entry *committed* when a majority has it on disk. A
later leader is elected only by a majority, each of which refuses a candidate whose log is behind its
own; two majorities share a member, so every later leader has every committed entry. That is Raft
(Ongaro and Ousterhout, 2014), in the vocabulary of DLedger.

**The seam.** `RaftNode` is told what happened (`advance`, `step`, `propose`, `on_durable`, ...) and says
in a `Ready` what has to be done about it. It knows of every entry only the index and the term, as runs
(`TermRuns`). Nothing is done here and nothing is asked for, so the same inputs give the same outputs,
and a simulator can run a year in a minute.

**What may be promised when.** Term and vote are synced before any message of the same `Ready` leaves.
Everything that says "I have it" (a positive answer to APPEND, COMPARE or TRUNCATE) waits for the disk;
the leader counts itself only as far as its own disk has come.

**One member is a directory.** A `Replica` is (member id, directory id). A wiped member comes back as
another voter, which nobody counts (role OBSERVER), so it cannot help to lose what it has forgotten.

Read in this order:

    messages             what members say to each other
    ready                what the core wants done, and in which order
    term_runs            which term wrote which indices
    log_changes          what the next Ready does to the log; what is durable
    damaged_indices      entries that the disk cannot show, and what is not said meanwhile
    membership           who votes, and what makes a quorum of them
    member_state         term, vote, role, leader, committed index: all transitions
    outbox               who is connected, what leaves next
    campaign             one round of votes, and its outcome
    leader_elector       silence, pre-vote, vote, heartbeats, stepping down
    dispatcher_automaton COMPARE -> TRUNCATE -> APPEND <-> COMMIT
    push_window          what is on its way to one member, and how long an answer may take
    entry_dispatcher     leader: COMPARE -> TRUNCATE -> APPEND <-> COMMIT, one per member
    entry_handler        follower: the answers to these
    quorum_ack_checker   acknowledgements in, committed index out
    data_progress        do the entries of a leader arrive anywhere?
    log_bytes            how far behind a member is, in bytes
    replication          the leader's term: dispatchers and marks together
    read_index           linearizable reads without writing
    leadership_transfer  handing over, preferred leaders
    forming              how a group comes to be
    raft_node            the seam that connects them
"""

from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import MemberStatus, Ready, Role

__all__ = ["MemberStatus", "RaftNode", "Ready", "Role"]
