"""Trained models in the formats of other tools, and back.

May import: train, config, limits, errors.
"""
