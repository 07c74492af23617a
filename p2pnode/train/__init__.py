"""Model, data, optimizer step, checkpoints and generation: pure, no network, no clock.

May import: kernels (through `train.arithmetic` only), config, limits, errors.
"""
