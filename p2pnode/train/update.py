"""From one state to the next: the first state, and one optimizer step. Nothing is changed in place.

May import: arithmetic, layout, state, config, errors.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from p2pnode.config import RunConfig
from p2pnode.errors import ConfigError
from p2pnode.train.arithmetic import kernels
from p2pnode.train.layout import F32, layout_of
from p2pnode.train.state import Position, State


def initial_state(config: RunConfig, first: F32 | None = None) -> State:
    """The state before the first step; a function of the configuration alone.

    first: flat float32 [P], the weights that `config.init` names; whoever has them has checked
    that. Raises ConfigError if they are missing, or if there is no name.
    """
    if bool(config.init) != (first is not None):
        raise ConfigError("the run starts from given weights, and they are not here")
    layout = layout_of(config.model)
    # A copy: the arrays of a state are used again after it.
    weights = _drawn_weights(config) if first is None else first.copy()
    exponent = kernels.first_exponent(kernels.grid_limit(config.slots))
    count = len(layout.tensors)
    position = Position(0, 0, (exponent,) * count, (0,) * count, 1.0, 1.0)
    return State(config, position, weights, np.zeros_like(weights), np.zeros_like(weights))


def _drawn_weights(config: RunConfig) -> F32:
    """Those that the seed makes.

    Matrices are near-normal with standard deviation init_std, those that write to the residual
    stream 1 / sqrt(2 * layers) of it (binary64); norms are 1.
    """
    layout = layout_of(config.model)
    weights = np.empty(layout.size, np.float32)
    residual_std = config.init_std / math.sqrt(2.0 * config.model.layers)
    for t in layout.tensors:
        if t.is_norm:
            weights[t.start : t.stop] = 1.0
        else:
            std = residual_std if t.residual else config.init_std
            weights[t.start : t.stop] = kernels.normal_weights(
                config.seed, f"init {t.name}", t.stop - t.start, std
            )
    return weights


@dataclasses.dataclass(frozen=True)
class Update:
    """A new state and how it came about."""

    state: State
    grad_norm: float
    """Of the averaged gradient, before clipping."""
    lr: float


def apply_update(
    ops: kernels.Kernels,
    state: State,
    total: NDArray[np.int32],
    max_abs: Sequence[int],
    out: tuple[F32, F32, F32] | None = None,
) -> Update:
    """One Adam step from the exact sum of all slots' gradients.

    total: int32 [P]. max_abs: the largest |q| of any slot, per tensor, which moves the grid.
    out: arrays [P] for the new weights and moments, none of them the state's own.
    Raises kernels.NonFiniteInputError; the state is unchanged.
    """
    config, old = state.config, state.position
    tensors = state.layout.tensors
    gradient: F32 = kernels.empty(state.layout.size, np.float32)
    for t, exponent in zip(tensors, old.exponents, strict=True):
        part = slice(t.start, t.stop)
        gradient[part] = ops.dequantise(total[part], exponent, config.slots)
    norm = ops.norm(gradient)
    lr = kernels.schedule(
        old.step,
        lr=config.lr,
        warmup=config.warmup,
        steps=config.steps,
        lr_floor=config.lr_floor,
    )
    beta1_power = old.beta1_power * config.beta1
    beta2_power = old.beta2_power * config.beta2
    scalars = kernels.adam_scalars(
        lr=lr,
        beta1=config.beta1,
        beta2=config.beta2,
        beta1_power=beta1_power,
        beta2_power=beta2_power,
        eps=config.eps,
        weight_decay=config.weight_decay,
        clip=kernels.clip_factor(norm, config.clip),
    )
    segments = [(t.start, t.stop, t.decays) for t in tensors]
    weights, m, v = ops.adam(state.weights, state.m, state.v, gradient, scalars, segments, out)
    limit = kernels.grid_limit(config.slots)
    grid = [
        kernels.next_exponent(exponent, largest, limit, quiet)
        for exponent, largest, quiet in zip(old.exponents, max_abs, old.quiet, strict=True)
    ]
    position = Position(
        step=old.step + 1,
        next_window=old.next_window + config.slots * config.micro_batch,
        exponents=tuple(exponent for exponent, _ in grid),
        quiet=tuple(quiet for _, quiet in grid),
        beta1_power=beta1_power,
        beta2_power=beta2_power,
    )
    return Update(State(config, position, weights, m, v), norm, lr)
