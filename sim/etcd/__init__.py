"""Clients of etcd in virtual time: members that fail, clients that speak gRPC and note what they saw.

Read in this order: `loops` (asyncio in virtual time: one loop a process, connections between them),
`sim_members` (the ports of a simulated member), `grpc_client`, `truth` (what each revision changed, and
what etcd answers from that), `sim_clients`, `promises` (the checkers), `etcd_run` (one run).
"""
