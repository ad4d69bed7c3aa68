"""The network between simulated members.

Read in this order: `sim_link` (the connections of a pair), `pipe` (a poor way for data), `sim_network`.
"""
