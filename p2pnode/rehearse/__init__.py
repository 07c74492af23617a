"""The step protocol in a seeded simulator: whole groups, whole runs, all kinds of faults.

May import: protocol, config, limits, errors. Never the network, kernels, a clock or the disk:
everything here is a pure function of a seed. `world`, `network` and `machine` are the group, its
links and its nodes, `thread` and `work` what one computes, `toy` the model they train, `defects`
and `tamper` what can be wrong with one, `faults` what can be done to them, `scenario` one seed's
run, `oracle` what must come out, `shrink` which faults matter, `campaign` many seeds.
"""
