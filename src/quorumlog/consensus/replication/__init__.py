"""How the leader's log comes to the others, and what is committed by it.

Read in this order:

    dispatcher_automaton COMPARE -> TRUNCATE -> APPEND <-> COMMIT; COMPARE <-> INSTALL
    push_window          what is on its way to one member, and how long an answer may take
    match_search         where the last common entry can be
    teller               what is said without entries
    entry_dispatcher     leader: the questions and pushes, one dispatcher per member
    entry_handler        follower: the answers to these
    quorum_ack_checker   acknowledgements in, committed index out
    catch_up             who could become a voter
    data_progress        do the entries of a leader arrive anywhere?
    log_bytes            how far behind a member is, in bytes
    replication          the leader's term: dispatchers and marks together
"""
