"""A peer-to-peer node that trains one language model together with others.

Import rules (docs/ARCHITECTURE.md; held by tests/test_imports.py): cli -> node -> ui, net ->
protocol, train -> config, limits, errors. Nothing imports upward; only `net` imports aiortc
(`bench` compares with it); only `train.arithmetic` imports `kernels`.
"""

__version__ = "0.1.0"
