"""The errors of the arithmetic. May import: nothing of ours."""

from __future__ import annotations


class KernelError(ArithmeticError):
    """Base of every refusal: the inputs were not changed and no result was produced."""


class ShapeError(KernelError):
    """An array has the wrong type, layout, rank or length for the operation."""


class NonFiniteInputError(KernelError):
    """A value that must be finite is NaN or infinite."""


class AccumulatorBoundError(KernelError):
    """A sum could leave the range in which integers are exact."""


class UnsoundError(KernelError):
    """An operation that has run gave other bits than it must: this machine cannot be trusted."""


class FloatModeError(KernelError):
    """The thread rounds or flushes subnormals otherwise than IEEE-754 asks, and stays so."""
