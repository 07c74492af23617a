"""The subcommands of `python -m p2pnode`: their options, and what those without a node do.

`train`, `models` and `tools` hold the options, `types` what options are made of; the other modules
carry out one command each.
"""
