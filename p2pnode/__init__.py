"""A peer-to-peer node that trains one language model together with others.

Import rules (held by tests/test_imports.py): cli -> node -> ui, net -> protocol, train -> config,
limits, errors. Nothing imports upward; only `net` imports aiortc; only `train.arithmetic` imports
`kernels`.
"""

__version__ = "0.1.0"

PROTOCOL_VERSION = 1
"""Version of everything two nodes say to each other; nodes with different ones refuse politely."""
