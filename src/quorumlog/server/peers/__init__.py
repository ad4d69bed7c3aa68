"""Connections between the members of a group.

Read in this order: `dialler` (names, the first frame, with TLS or without), `peer_link` (a connection
that this member dials), `stalled_peers` (members that read nothing), `peer` (the connections with one
other member), `peer_table` (the members, and admission of peers).
"""
