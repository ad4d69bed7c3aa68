"""A thin endpoint for clients of etcd: as much of etcd's JSON gateway as Patroni uses. A member's
gateway is a client of all members' stores, so that it answers wherever the leader is.

Read in this order: `etcd_json` (what is asked and answered), `routes` (what is done, and the other
gateways), `logins` (users of clients), `gateway` (HTTP).
"""
