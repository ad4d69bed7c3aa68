"""Epochs: who may lead, who must acknowledge, and which of two logs is the greater. No I/O.

Read in this order: `epoch_history`, `epoch_rule`.
"""
