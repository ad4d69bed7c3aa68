"""What is between the members of a group.

Read in this order: `dialler` (names, the first frame, with TLS or without), `peer_link` (a connection
that this member dials), `stalled_peers` (who takes nothing), `peer` (the connections with one other
member), `peer_table` (the members that there are, and who may speak as which).
"""
