"""What is between the members of a group.

Read in this order: `handshake` (what a member says of itself), `name_lookup` (the addresses behind a
name), `dialler` (with TLS or without), `peer_link` (a connection that this member dials),
`dropped_messages` (what found no room on one), `peer` (the connections with one other member),
`peer_table` (the members that there are), `peer_session` (a connection that the other has dialled),
`peer_admission` (who may speak as which member), `stalled_peers` (who takes no
entries).
"""
