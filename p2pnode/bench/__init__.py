"""Measurements that a user can repeat: one module for each subcommand of `python -m p2pnode bench`.

May import: train, errors; wire: net. A subcommand that computes runs in a process of its own,
with the environment that `machine` gives it.
"""
