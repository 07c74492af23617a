"""Gradient grid, exact sums, average, norm and Adam; a refusal leaves everything as it was."""

from __future__ import annotations

import numpy as np
import pytest

import kernels
from kernels.reference.optimizer import float_limit, power_of_two

from .helpers import assert_same_bits, normal

BOTH = pytest.mark.parametrize("which", ["compiled", "reference"])
LIMIT = kernels.grid_limit(16)


@pytest.fixture
def k(which: str, request: pytest.FixtureRequest) -> kernels.Kernels:
    loaded: kernels.Kernels = request.getfixturevalue(which)
    return loaded


@BOTH
def test_grid_rounds_clamps_and_reports(k: kernels.Kernels) -> None:
    g = np.array([0.5, 1.5, -2.5, 3.0, 7.0, -1e30, 3e38], np.float32)
    q, clamps, largest = k.grid(g, 0, 5)
    assert q.tolist() == [0, 2, -2, 3, 5, -5, 5]
    assert (clamps, largest) == (3, 5)
    q, clamps, largest = k.grid(g[:3], -1, LIMIT)
    assert q.tolist() == [1, 3, -5]
    assert (clamps, largest) == (0, 5)


@BOTH
@pytest.mark.parametrize("slots", [1, 2, 3, 16, 1000, 1024])
def test_clamped_slots_always_fit_together(k: kernels.Kernels, slots: int) -> None:
    """The limit rounded to float32 must not exceed the integer limit."""
    limit = kernels.grid_limit(slots)
    q, _, largest = k.grid(np.array([3e38, -3e38], np.float32), 0, limit)
    assert largest <= limit
    total = np.zeros(2, np.int32)
    for _ in range(slots):
        k.grid_add(total, q)
    assert total.tolist() == [slots * largest, -slots * largest]


def test_float_limit_is_the_largest_float_not_above() -> None:
    for limit in (2**23, 2**24, 2**24 + 1, 2**27 - 1, 2**31 - 1, 715_827_882):
        f = float_limit(limit)
        assert float(f) <= limit < float(np.nextafter(f, np.float32(np.inf)))


@BOTH
def test_a_sum_that_overflows_is_refused_as_a_whole(k: kernels.Kernels) -> None:
    acc = np.array([1, 2**31 - 1, -(2**31) + 1], np.int32)
    kept = acc.copy()
    for q in ([1, 1, 0], [1, 0, -1]):
        with pytest.raises(kernels.AccumulatorBoundError):
            k.grid_add(acc, np.array(q, np.int32))
        assert_same_bits(acc, kept)
    k.grid_add(acc, np.array([1, -1, 1], np.int32))
    assert acc.tolist() == [2, 2**31 - 2, -(2**31) + 2]


@BOTH
def test_non_finite_gradients_are_refused(k: kernels.Kernels) -> None:
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(kernels.NonFiniteInputError, match="gradient"):
            k.grid(np.array([1.0, bad], np.float32), -10, LIMIT)
        with pytest.raises(kernels.NonFiniteInputError, match="gradient"):
            k.norm(np.array([1.0, bad], np.float32))
    with pytest.raises(kernels.NonFiniteInputError, match="gradient"):
        k.norm(np.full(3, 3e38, np.float32))


@BOTH
def test_average_and_norm(k: kernels.Kernels) -> None:
    total = np.array([3, -6, 2**31 - 1], np.int32)
    assert k.dequantise(total, 1, 3).tolist() == [2.0, -4.0, float(np.float32(2**32) / 3)]
    g = normal(1, 10_000)
    assert abs(k.norm(g) / np.linalg.norm(g.astype(np.float64)) - 1) < 1e-6


def test_power_of_two_is_exact_and_bounded() -> None:
    for e in range(-126, 128):
        assert float(power_of_two(e)) == 2.0**e
    for e in (-127, 128):
        with pytest.raises(ValueError, match="exponent"):
            power_of_two(e)


def adam_inputs(n: int) -> tuple[list[np.ndarray], kernels.AdamScalars]:
    w, m, g = (normal(i, n) for i in range(3))
    scalars = kernels.adam_scalars(
        lr=0.01, beta1=0.9, beta2=0.95, beta1_power=0.9**3, beta2_power=0.95**3,
        eps=1e-8, weight_decay=0.1, clip=0.5,
    )  # fmt: skip
    return [w, m, np.abs(m), g], scalars


@BOTH
def test_adam_is_the_textbook_step(k: kernels.Kernels) -> None:
    (w, m, v, g), scalars = adam_inputs(60)
    new_w, new_m, new_v = k.adam(w, m, v, g, scalars, [(0, 20, True), (20, 60, False)])
    w, m, v, g = (x.astype(np.float64) for x in (w, m, v, g))
    g *= 0.5
    m = 0.9 * m + 0.1 * g
    v = 0.95 * v + 0.05 * g * g
    decay = np.where(np.arange(60) < 20, 0.1, 0)
    step = m / (1 - 0.9**3) / (np.sqrt(v / (1 - 0.95**3)) + 1e-8) + decay * w
    np.testing.assert_allclose(new_m, m, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(new_v, v, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(new_w, w - 0.01 * step, rtol=1e-5, atol=1e-6)


@BOTH
@pytest.mark.parametrize(
    ("index", "name"),
    [(0, "weight"), (1, "first moment"), (2, "second moment"), (3, "gradient")],
)
def test_adam_names_what_is_not_finite(k: kernels.Kernels, index: int, name: str) -> None:
    arrays, scalars = adam_inputs(40)
    arrays[index][33] = np.inf
    kept = [x.copy() for x in arrays]
    with pytest.raises(kernels.NonFiniteInputError, match=rf"in values 30..39: a {name} is"):
        k.adam(*arrays, scalars, [(0, 30, True), (30, 40, False)])
    assert_same_bits(arrays, kept)


@BOTH
def test_adam_refuses_a_step_that_overflows(k: kernels.Kernels) -> None:
    (w, m, v, g), scalars = adam_inputs(4)
    g[:] = 3e38  # its square is infinite
    with pytest.raises(kernels.NonFiniteInputError, match="new second moment"):
        k.adam(w, m, v, g, scalars, [(0, 4, True)])


@BOTH
def test_adam_checks_segments_and_outputs(k: kernels.Kernels) -> None:
    arrays, scalars = adam_inputs(10)
    for segments in ([(0, 9, True)], [(1, 10, True)], [(0, 6, True), (5, 10, True)], []):
        with pytest.raises(kernels.ShapeError, match="segments"):
            k.adam(*arrays, scalars, segments)
    out = (np.empty(10, np.float32), np.empty(10, np.float32), arrays[0])
    with pytest.raises(kernels.ShapeError, match="output"):
        k.adam(*arrays, scalars, [(0, 10, True)], out)


def test_exponent_starts_where_a_gradient_below_one_fits() -> None:
    assert kernels.first_exponent(LIMIT) == -26
    assert kernels.first_exponent(2**31 - 1) == -30


@pytest.mark.parametrize(
    ("bits", "expected"),
    [
        (27, (-26 + 5, 0)),  # clamped: up at once
        (25, (-26 + 3, 0)),
        (24, (-26, 0)),
        (21, (-26, 0)),
        (20, (-26, 4)),  # spare headroom: counted
        (17, (-26, 4)),
        (16, (-26 - 6, 0)),  # far too small: down at once
        (1, (-26 - 21, 0)),
        (0, (-26, 3)),  # no gradient: nothing learnt
    ],
)
def test_exponent_moves(bits: int, expected: tuple[int, int]) -> None:
    largest = (1 << bits) - 1 if bits else 0
    assert kernels.next_exponent(-26, largest, LIMIT, 3) == expected


def test_exponent_falls_after_sixteen_quiet_steps_and_stays_in_range() -> None:
    state = (-26, 0)
    for step in range(16):
        assert state == (-26, step)
        state = kernels.next_exponent(state[0], 1 << 18, LIMIT, state[1])
    assert state == (-27, 0)
    assert kernels.next_exponent(-100, 1, LIMIT, 0) == (-100, 0)
    assert kernels.next_exponent(20, LIMIT, LIMIT, 0) == (20, 0)


def test_numbers_out_of_range_are_refused(compiled: kernels.Kernels) -> None:
    g, q = np.ones(2, np.float32), np.ones(2, np.int32)
    calls = [
        lambda: compiled.grid(g, 21, LIMIT),
        lambda: compiled.grid(g, -101, LIMIT),
        lambda: compiled.grid(g, 0, 2**31),
        lambda: compiled.grid(g, 0, 0),
        lambda: compiled.dequantise(q, 0, 0),
        lambda: compiled.dequantise(q, 0, 1025),
        lambda: compiled.grid_add(q, q[:1]),
    ]
    for call in calls:
        with pytest.raises(kernels.ShapeError):
            call()
    with pytest.raises(ValueError, match="slots"):
        kernels.grid_limit(1025)
