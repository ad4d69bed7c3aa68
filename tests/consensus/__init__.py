"""Tests of `quorumlog.consensus`: scripts, claims of the Raft paper, random runs."""
