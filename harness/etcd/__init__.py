"""etcd's API, asked of real etcds of several versions and of our own members by one script.

Read in this order: `builds` (etcd from the Go module proxy), `servers` (either as processes), `session`
(requests, and answers that can be compared), `scenarios` (the script over gRPC), `json_scenarios` (over
the JSON gateway), `answers` (what was recorded, and how versions differ), `definitions` (of messages,
compared), `clients` (programs that use published clients). `python -m harness.etcd` records anew.
"""
