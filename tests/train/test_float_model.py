"""The plain float32 model: it computes what the formulas say, and the exact one stays near it."""

from __future__ import annotations

import numpy as np
import pytest

from p2pnode.config import PRESETS
from p2pnode.train import float_model, model
from p2pnode.train.arithmetic import kernels
from p2pnode.train.weights import Weights
from tests.train import oracle
from tests.train.helpers import MICRO, tokens, trained_like


@pytest.mark.parametrize("shape", [MICRO, PRESETS["nano"].model], ids=["micro", "nano"])
def test_it_is_the_float64_model_to_rounding(shape):
    flat = trained_like(shape)
    inputs, targets = tokens(shape)
    truth, _ = oracle.loss_and_gradient(shape, flat.astype(np.float64), inputs, targets)
    logits = float_model.logits(shape, flat, inputs).astype(np.float64)
    rows = np.arange(inputs.size)
    losses = np.log(np.exp(logits).sum(1)) - logits[rows, targets.reshape(-1)]
    assert losses.mean() == pytest.approx(truth, rel=1e-5)


def test_shorter_texts_have_the_same_logits():
    inputs, _ = tokens(MICRO)
    flat = trained_like(MICRO)
    whole = float_model.logits(MICRO, flat, inputs).reshape(2, MICRO.seq_len, -1)
    part = float_model.logits(MICRO, flat, inputs[:, :5]).reshape(2, 5, -1)
    np.testing.assert_allclose(part, whole[:, :5], atol=1e-5)


@pytest.mark.parametrize("shape", [MICRO, PRESETS["nano"].model], ids=["micro", "nano"])
def test_exact_logits_are_near(shape):
    """The int8 products cost about two per cent of the logits' spread."""
    flat = trained_like(shape, scale=0.1)
    inputs, _ = tokens(shape)
    floats = float_model.logits(shape, flat, inputs)
    exact = model.logits(Weights(kernels.load(reference=True), shape, flat), inputs)
    off = exact - floats
    assert np.sqrt((off * off).mean()) < 0.04 * floats.std()
    assert abs(off).max() < 0.3 * floats.std()
