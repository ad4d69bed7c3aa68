"""Who leads, and what is committed. Values in, values out: no file, socket, clock or thread.

**The idea.** A group of members keeps one log. One of them leads for a *term*; it alone decides what
comes next, pushes it to the others, and calls an entry *committed* when a majority has it on disk. A
later leader is elected only by a majority, each of which refuses a candidate whose log is behind its
own; two majorities share a member, so every later leader has every committed entry. That is Raft
(Ongaro and Ousterhout, 2014), in the vocabulary of DLedger.

**The seam.** `RaftNode` is told what happened (`advance`, `step`, `propose`, `on_durable`, ...) and says
in a `Ready` what has to be done about it, and in which order. It knows of every entry only the index and
the term, as runs (`TermRuns`). The same inputs give the same outputs.

**One member is a directory.** A `Replica` is (member id, directory id). A wiped member comes back as
another voter, which nobody counts (role OBSERVER), so it cannot help to lose what it has forgotten.

Read in this order:

    messages             what members say to each other
    ready                what the core wants done, and in which order
    membership           who votes, and what makes a quorum of them
    log                  which term wrote which indices; what is durable, what is damaged
    member_state         term, vote, role, leader, committed index; who is connected, what leaves next
    elector              silence, pre-vote, vote, heartbeats, stepping down
    dispatcher           leader: COMPARE -> TRUNCATE -> APPEND <-> COMMIT to one member, or INSTALL
    handler              follower: the answers to these
    replication          the leader's term: dispatchers, acknowledgements, what that commits
    reads                linearizable reads of any member without writing; how fresh it is
    leadership_transfer  handing over, preferred leaders
    membership_change    which members the log names, and which it may name next
    forming              how a group comes to be
    inbox                messages pass the term gate to the part that they are for
    raft_node            the seam that connects them
"""

from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import MemberStatus, Ready, Role

__all__ = ["MemberStatus", "RaftNode", "Ready", "Role"]
