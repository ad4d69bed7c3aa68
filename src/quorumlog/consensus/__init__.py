"""Leader election and commitment. Values in, values out: no file, socket, clock or thread.

**The idea.** A group of members keeps one log. One of them leads for a *term*; it alone orders new
entries, pushes it to the others, and calls an entry *committed* when a majority has it on disk. A later
leader is elected only by a majority, each of which refuses a candidate whose log is less up to date; two
majorities share a member, so every later leader has every committed entry. That is Raft (Ongaro and
Ousterhout, 2014), in the vocabulary of DLedger.

**The seam.** `RaftNode` takes inputs (`advance`, `step`, `propose`, `on_durable`, ...) and returns in a
`Ready` the effects to carry out, in order. Of every entry it knows only the index and the term, as runs
(`TermRuns`). The same inputs give the same outputs.

**One member is a directory.** A `Replica` is (member id, directory id). A wiped member returns as
another replica that counts for no quorum (role OBSERVER), so lost state cannot be voted for.

Read in this order:

    messages             the messages between members
    ready                the effects to carry out, and their order
    membership           voters and quorums
    log                  which term wrote which indices; what is durable, what is damaged
    member_state         term, vote, role, leader, committed index; connected peers, outgoing messages
    elector              silence, pre-vote, vote, heartbeats, stepping down
    dispatcher           leader: COMPARE -> TRUNCATE -> APPEND <-> COMMIT to one member, or INSTALL
    handler              follower: the answers to these
    replication          the leader's term: dispatchers, acknowledgements, commitment
    reads                linearizable reads of any member without writing; how fresh it is
    leadership_transfer  handing over, preferred leaders
    membership_change    the memberships in the log, and checks of the next one
    forming              how a group comes to be
    inbox                messages pass the term gate to the part that they are for
    raft_node            the seam that connects them
"""

from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import MemberStatus, Ready, Role

__all__ = ["MemberStatus", "RaftNode", "Ready", "Role"]
