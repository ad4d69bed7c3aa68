"""A thin door for clients of etcd: as much of etcd's JSON gateway as Patroni uses. A member's gateway is
a client of all members' stores, so that it answers wherever the leader is.

Read in this order: `from_json` (what is asked), `to_json` (what is answered), `routes` (what is done),
`members` (who else has a gateway), `http_decoder` (HTTP), `gateway`.
"""
