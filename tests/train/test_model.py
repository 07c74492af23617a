"""The exact model against a float64 one, and what causality promises about bits."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from p2pnode.config import PRESETS
from p2pnode.train import model
from p2pnode.train.arithmetic import kernels
from p2pnode.train.decoder import Decoder
from p2pnode.train.layout import layout_of
from p2pnode.train.update import initial_state
from p2pnode.train.weights import Weights
from tests.train import oracle
from tests.train.helpers import MICRO, VOCAB, cosine, micro_config, tokens, trained_like

NANO = PRESETS["nano"].model


@pytest.fixture(scope="module")
def ops() -> kernels.Kernels:
    return kernels.load(reference=True)


def bits(x):
    return np.ascontiguousarray(x).view(np.int32)


def test_oracle_gradient_is_the_slope_of_its_loss():
    flat = trained_like(MICRO).astype(np.float64)
    inputs, targets = tokens(MICRO)
    _, gradient = oracle.loss_and_gradient(MICRO, flat, inputs, targets)
    rng = np.random.default_rng(3)
    for t in layout_of(MICRO).tensors:
        direction = np.zeros_like(flat)
        direction[t.start : t.stop] = rng.standard_normal(t.stop - t.start)
        h = 1e-6
        up, _ = oracle.loss_and_gradient(MICRO, flat + h * direction, inputs, targets)
        down, _ = oracle.loss_and_gradient(MICRO, flat - h * direction, inputs, targets)
        assert (up - down) / (2 * h) == pytest.approx(gradient @ direction, rel=1e-5), t.name


@pytest.mark.parametrize("shape", [MICRO, NANO], ids=["micro", "nano"])
def test_gradient_points_where_the_float_models_does(ops, shape):
    flat = trained_like(shape, scale=0.1)
    inputs, targets = tokens(shape)
    loss, gradient = model.loss_and_gradient(Weights(ops, shape, flat), inputs, targets)
    true_loss, truth = oracle.loss_and_gradient(shape, flat.astype(np.float64), inputs, targets)
    assert loss / 2**24 / inputs.size == pytest.approx(true_loss, rel=5e-3)
    assert cosine(gradient, truth) > 0.995
    for t in layout_of(shape).tensors:
        part = slice(t.start, t.stop)
        assert cosine(gradient[part], truth[part]) > 0.97, t.name
        ratio = np.linalg.norm(gradient[part]) / np.linalg.norm(truth[part])
        assert ratio == pytest.approx(1, abs=0.1), t.name


def test_gradient_at_the_initial_weights(ops):
    config = micro_config()
    flat = initial_state(config).weights
    inputs, targets = tokens(MICRO)
    loss, gradient = model.loss_and_gradient(Weights(ops, MICRO, flat), inputs, targets)
    _, truth = oracle.loss_and_gradient(MICRO, flat.astype(np.float64), inputs, targets)
    assert loss / 2**24 / inputs.size == pytest.approx(np.log(VOCAB), abs=0.05)
    assert cosine(gradient, truth) > 0.99


def test_loss_alone_equals_the_loss_with_gradient(ops):
    w = Weights(ops, MICRO, trained_like(MICRO))
    inputs, targets = tokens(MICRO)
    assert model.loss(w, inputs, targets) == model.loss_and_gradient(w, inputs, targets)[0]


def test_a_token_changes_no_earlier_logits_and_no_other_sequence(ops):
    w = Weights(ops, NANO, trained_like(NANO))
    inputs, _ = tokens(NANO)
    before = bits(model.logits(w, inputs)).reshape(2, NANO.seq_len, -1)
    for at in (1, 17, NANO.seq_len - 1):
        changed = inputs.copy()
        changed[0, at] = (changed[0, at] + 91) % VOCAB
        after = bits(model.logits(w, changed)).reshape(before.shape)
        assert np.array_equal(after[0, :at], before[0, :at])
        assert np.array_equal(after[1], before[1])
        assert not np.array_equal(after[0, at:], before[0, at:])


def test_a_shorter_text_has_the_same_logits(ops):
    w = Weights(ops, MICRO, trained_like(MICRO))
    inputs, _ = tokens(MICRO, batch=1)
    whole = bits(model.logits(w, inputs))
    assert np.array_equal(bits(model.logits(w, inputs[:, :5].copy())), whole[:5])


def test_cached_decoding_has_the_bits_of_the_full_forward(ops):
    w = Weights(ops, NANO, trained_like(NANO))
    inputs, _ = tokens(NANO, batch=1)
    decoder = Decoder(w)
    cached = np.stack([decoder.feed(int(token)) for token in inputs[0]])
    assert np.array_equal(bits(cached), bits(model.logits(w, inputs)))


@pytest.mark.parametrize("preset", PRESETS)
def test_cached_decoding_has_the_bits_of_the_compiled_forward(preset):
    """Every preset, with the kernels that people use; beyond the lanes of sums and tiles."""
    shape = msgspec.structs.replace(PRESETS[preset].model, seq_len=50)
    w = Weights(kernels.load(), shape, trained_like(shape, scale=0.05))
    inputs, _ = tokens(shape, batch=1)
    decoder = Decoder(w)
    cached = np.stack([decoder.feed(int(token)) for token in inputs[0]])
    assert np.array_equal(bits(cached), bits(model.logits(w, inputs)))


def test_a_full_cache_goes_on_with_the_last_half(ops):
    w = Weights(ops, MICRO, trained_like(MICRO))
    text = list(range(30, 30 + MICRO.seq_len + 1))
    decoder = Decoder(w)
    for token in text:
        logits = decoder.feed(token)
    recent = np.array([text[-1 - MICRO.seq_len // 2 :]], np.int32)
    assert np.array_equal(bits(logits), bits(model.logits(w, recent))[-1])


def test_batches_are_independent(ops):
    w = Weights(ops, MICRO, trained_like(MICRO))
    inputs, _ = tokens(MICRO, batch=3)
    whole = bits(model.logits(w, inputs)).reshape(3, MICRO.seq_len, -1)
    for i in range(3):
        alone = bits(model.logits(w, inputs[i : i + 1].copy()))
        assert np.array_equal(alone, whole[i])


def test_the_tied_gradient_has_both_parts(ops):
    """A byte that is read but never a target, and one that is a target but never read."""
    w = Weights(ops, MICRO, trained_like(MICRO))
    inputs = np.full((1, MICRO.seq_len), 3, np.int32)
    targets = np.full((1, MICRO.seq_len), 5, np.int32)
    _, gradient = model.loss_and_gradient(w, inputs, targets)
    _, truth = oracle.loss_and_gradient(
        MICRO, trained_like(MICRO).astype(np.float64), inputs, targets
    )
    table = layout_of(MICRO).views(gradient)["embed"]
    true_table = layout_of(MICRO).views(truth)["embed"]
    for row in (3, 5, 77):
        assert cosine(table[row], true_table[row]) > 0.98


def test_non_finite_weights_are_refused(ops):
    inputs, targets = tokens(MICRO)
    for t in layout_of(MICRO).tensors:
        flat = trained_like(MICRO)
        flat[t.start] = np.nan
        if t.name == "embed":
            inputs[0, 0] = 0  # the poisoned row is read
        with pytest.raises(kernels.NonFiniteInputError):
            model.loss_and_gradient(Weights(ops, MICRO, flat), inputs, targets)


def test_layout_covers_the_vector_in_order():
    layout = layout_of(NANO)
    assert layout.tensors[0].start == 0
    for a, b in zip(layout.tensors, layout.tensors[1:], strict=False):
        assert a.stop == b.start
    assert layout.names[0] == "embed"
    assert layout.names[1] == "layers.0.attn_norm"
    decaying = {t.name.rsplit(".", 1)[-1] for t in layout.tensors if t.decays}
    assert decaying == {"q", "k", "v", "o", "gate", "up", "down"}
