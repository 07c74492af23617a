"""Properties that right operations have whatever their inputs: no reference is asked.

Permutation, scaling by powers of two, cutting into blocks, transposition, identity, ranges like
those after a ReLU, closed forms. Each takes the operations and fails with AssertionError (or any
error).
May import: kernels, siblings.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import kernels
from kernels.types import Quantised

from .inputs import F32

Ops = kernels.Kernels
Property = Callable[[Ops], None]
PROPERTIES: list[Property] = []


def holds(check: Property) -> Property:
    """Add a property to the list."""
    PROPERTIES.append(check)
    return check


def normal(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def same(a: np.ndarray, b: np.ndarray) -> None:
    """Bit for bit."""
    assert a.shape == b.shape
    assert a.tobytes() == b.tobytes()


def near(a: np.ndarray, b: np.ndarray, tolerance: float) -> None:
    assert np.abs(a - b).max() <= tolerance * max(1e-30, float(np.abs(b).max()))


def refuses(call: Callable[[], object]) -> None:
    try:
        call()
    except kernels.KernelError:
        return
    raise AssertionError("what must be refused was accepted")


def turned(x: F32) -> F32:
    return np.ascontiguousarray(x.T)


Product = Callable[[F32, F32], F32]


def products(ops: Ops) -> list[Product]:
    """x[M, K] @ w[N, K].T by each of the three products."""
    return [
        ops.linear,
        lambda x, w: ops.linear_dx(x, turned(w)),
        lambda x, w: ops.linear_dw(turned(x), turned(w)),
    ]


@holds
def products_permute(ops: Ops) -> None:
    x, w = normal(1, 43, 37), normal(2, 29, 37)
    rows, cols = (np.random.default_rng(3).permutation(n) for n in (43, 29))
    for product in products(ops):
        y = product(x, w)
        same(product(x[rows], w[cols]), y[rows][:, cols])


@holds
def products_scale(ops: Ops) -> None:
    x, w = normal(1, 43, 37), normal(2, 29, 37)
    powers = np.exp2(np.random.default_rng(3).integers(-9, 9, (43, 1))).astype(np.float32)
    for product in products(ops):
        same(product(x * powers, w), product(x, w) * powers)
        same(product(-x, w), -product(x, w))


@holds
def products_cut_into_blocks(ops: Ops) -> None:
    x, w = normal(1, 250, 70), normal(2, 61, 70)
    for product in products(ops):
        y = product(x, w)
        for cut in (1, 6, 97, 249):
            same(np.concatenate([product(x[:cut].copy(), w), product(x[cut:].copy(), w)]), y)
        for cut in (1, 16, 60):
            parts = [product(x, w[:cut].copy()), product(x, w[cut:].copy())]
            same(np.concatenate(parts, 1), y)


@holds
def products_add_over_blocks_of_the_inner_side(ops: Ops) -> None:
    """Of integers whose sums fit into 24 bits; unit scales, by one value of full size."""
    rng = np.random.default_rng(4)
    for product, limit in zip(products(ops), (127, 2047, 2047), strict=True):
        x, w = (rng.integers(-9, 10, (n, 601)).astype(np.float32) for n in (20, 30))
        x[:, 300], w[:, 301] = limit, limit  # in different terms: they meet small values
        x[:, 301] = w[:, 300] = 0
        whole = product(x, w)
        same(whole, (x.astype(np.float64) @ w.T.astype(np.float64)).astype(np.float32) + 0)
        x[:, -1] = 0
        same(product(np.pad(x, ((0, 0), (0, 7))), np.pad(w, ((0, 0), (0, 7)))), product(x, w))


@holds
def products_of_full_values(ops: Ops) -> None:
    """All terms at the limit and of one sign, as after a ReLU: the sum has a closed form."""
    for product, limit in zip(products(ops), (127, 2047, 2047), strict=True):
        for inner in (1, 2, 511, 513, 1500, 2600):
            x, w = (np.full((n, inner), np.float32(limit)) for n in (13, 21))
            expected = np.float32(inner * limit**2)
            same(product(x, w), np.full((13, 21), expected, np.float32))
            same(product(x, -w), np.full((13, 21), -expected, np.float32))


@holds
def products_with_the_identity(ops: Ops) -> None:
    x = normal(1, 30, 33)
    for product, limit in zip(products(ops), (127, 2047, 2047), strict=True):
        y = product(x, np.eye(33, dtype=np.float32) * np.float32(limit))
        near(y / limit, x, 0.51 / limit)


@holds
def products_transpose(ops: Ops) -> None:
    """Exact where the scales are powers of two, whose order cannot matter."""
    rng = np.random.default_rng(5)
    for limit, form in ((127, "linear"), (2047, "linear_dx")):
        a, b = (rng.integers(-limit, limit + 1, (40, 40)).astype(np.int16) for _ in range(2))
        a, b = (q.astype(np.int8) if limit == 127 else q for q in (a, b))
        scale = np.exp2(rng.integers(-5, 5, 40)).astype(np.float32)
        if form == "linear":
            left, right = Quantised(a, scale, limit, True), Quantised(b, scale, limit, True)
            same(ops.linear(left, right), turned(ops.linear(right, left)))
        else:
            rows = Quantised(a, scale, limit, True)
            cols = Quantised(np.ascontiguousarray(a.T), scale, limit, False)
            other = Quantised(b, scale, limit, False)
            same(ops.linear_dx(rows, other), ops.linear_dw(cols, other))


@holds
def quantisers_know_integers(ops: Ops) -> None:
    for limit in (127, 2047):
        x = np.random.default_rng(6).integers(-limit, limit + 1, (25, 41)).astype(np.float32)
        x[:, 7] = limit
        for scale in (1.0, 0.25, 2.0**-60, 2.0**90):
            found = ops.quantise_rows(x * np.float32(scale), limit)
            same(found.q.astype(np.float32), x + 0)
            same(found.scale, np.full(25, np.float32(scale)))
        same(ops.quantise_cols(turned(x), limit).q, np.ascontiguousarray(found.q.T))


@holds
def quantisers_round_ties_to_even(ops: Ops) -> None:
    x = np.array([[127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 63.5, 126.5]], np.float32)
    expected = [127, 0, 2, 2, 0, -2, -2, 64, 126]
    assert ops.quantise_rows(x, 127).q[0].tolist() == expected
    assert ops.quantise_cols(turned(x), 127).q[:, 0].tolist() == expected


@holds
def quantisers_flush_what_is_tiny(ops: Ops) -> None:
    for exponent, live in ((-100, True), (-101, False), (-126, False), (-149, False)):
        found = ops.quantise_rows(np.float32([[2.0**exponent, 0.0]]), 127)
        assert bool(found.scale[0] > 0) is live
        assert found.q[0, 0] == (127 if live else 0)


@holds
def what_is_not_finite_is_refused(ops: Ops) -> None:
    for bad in (np.nan, np.inf, -np.inf):
        for place in (0, 17, 76):
            x = normal(7, 7, 11)
            x.reshape(-1)[place] = bad
            w, flat = normal(8, 5, 11), x.reshape(-1)
            refuses(lambda x=x: ops.quantise_rows(x, 127))  # type: ignore[misc]
            refuses(lambda x=x: ops.quantise_cols(x, 2047))  # type: ignore[misc]
            refuses(lambda x=x, w=w: ops.linear(x, w))  # type: ignore[misc]
            refuses(lambda f=flat: ops.grid(f, -20, 1000))  # type: ignore[misc]
            refuses(lambda f=flat: ops.norm(f))  # type: ignore[misc]
            refuses(lambda x=x: ops.cross_entropy(x, np.zeros(7, np.int32)))  # type: ignore[misc]
            refuses(lambda f=flat: adam(ops, np.abs(f), f))  # type: ignore[misc]


@holds
def exp_is_an_exponential(ops: Ops) -> None:
    x = np.sort(np.concatenate([normal(9, 4000) * 30, np.float32([0, -0.0, 88.3, -87.3])]))
    y = ops.exp(x)
    assert (np.diff(y) >= -np.spacing(y[1:])).all()
    assert (y[x == 0] == 1).all()
    inside = np.abs(x) < 80
    near(y[inside] * ops.exp(-x[inside]), np.ones(int(inside.sum())), 4e-7)
    same(ops.exp(np.float32([-88, -1e30, -np.inf])), np.zeros(3, np.float32))
    assert np.isfinite(ops.exp(np.float32([88.4, 1e30, np.inf]))).all()


@holds
def log_is_its_inverse(ops: Ops) -> None:
    x = normal(10, 4000) * 15
    near(ops.log(ops.exp(x)), x, 2e-7)
    powers = np.arange(-126, 128)
    exact = powers * np.log(2.0)
    assert np.abs(ops.log(np.exp2(powers).astype(np.float32)) - exact).max() < 1e-5
    near_one = np.float32(1) + np.arange(-50, 50, dtype=np.float32) * np.float32(2.0**-20)
    near(ops.log(near_one), np.log(near_one.astype(np.float64)), 1e-6)


@holds
def norms_are_norms(ops: Ops) -> None:
    x, gain = normal(11, 21, 50), normal(12, 50)
    order = np.random.default_rng(3).permutation(21)
    y, inv = ops.rmsnorm(x, gain, 1e-5)
    same(ops.rmsnorm(x[order], gain, 1e-5)[0], y[order])
    same(ops.rmsnorm(x * np.float32(8), gain, 0.0)[0], ops.rmsnorm(x, gain, 0.0)[0])
    near(np.sqrt(np.mean((y / gain).astype(np.float64) ** 2, 1)), np.ones(21), 1e-4)
    zeros = np.zeros((2, 50), np.float32)
    near(ops.rmsnorm(zeros, gain, 1e-5)[1], np.full(2, 1e-5**-0.5), 1e-6)
    dx, dgain = ops.rmsnorm_backward(normal(13, 21, 50), x, gain, inv)
    # The norm does not change along x, so its gradient is at right angles to x.
    assert np.abs((dx * x).sum(1)).max() < 1e-3
    near(dgain, (normal(13, 21, 50) * x * inv[:, None]).sum(0), 1e-5)


@holds
def sums_have_their_order(ops: Ops) -> None:
    """Ones beside a large square: lost if added to it one by one, kept by other lanes."""
    x = np.zeros((1, 32), np.float32)
    x[0, 0], x[0, 1], x[0, 5], x[0, 16] = 4096, 1, 1, 1  # column 16 is in the lane of column 0
    inv = ops.rmsnorm(x, np.ones(32, np.float32), 0.0)[1]
    same(inv, np.float32(1) / np.sqrt(np.float32([(2**24 + 2) / 32])))
    flat = np.zeros(8192, np.float32)
    flat[0], flat[1], flat[2048 + 1], flat[4096] = 4096, 1, 1, 1
    assert ops.norm(flat) == float(np.sqrt(np.float32(2**24 + 2)))
    # A token's gradients are added from the first to the last.
    dy = np.float32([[2.0**24], [1.0], [-(2.0**24)]])
    table = np.zeros((2, 1), np.float32)
    ops.embed_backward(dy, np.zeros(3, np.int32), table)
    assert table[0, 0] == 0.0
    ops.embed_backward(turned(turned(dy[[0, 2, 1]])), np.ones(3, np.int32), table)
    assert table[1, 0] == 1.0


@holds
def rotations_rotate(ops: Ops) -> None:
    cos, sin = (np.array(t) for t in kernels.rope_tables(9, 6))
    x = normal(14, 27, 12)
    y = ops.rope(x, cos, sin)
    same(y[::9], x[::9])  # position 0
    near(ops.rope_backward(y, cos, sin), x, 1e-6)
    order = np.concatenate([np.arange(18, 27), np.arange(9), np.arange(9, 18)])
    same(ops.rope(x[order], cos, sin), y[order])
    pairs = np.sqrt(x[:, :3] ** 2 + x[:, 3:6] ** 2)
    near(np.sqrt(y[:, :3] ** 2 + y[:, 3:6] ** 2), pairs, 1e-6)


@holds
def swiglu_and_its_slope(ops: Ops) -> None:
    gate, up = normal(15, 9, 30) * 3, normal(16, 9, 30)
    same(ops.swiglu(gate, up * np.float32(4)), ops.swiglu(gate, up) * np.float32(4))
    ones = np.ones_like(gate)
    near(ops.swiglu(gate, ones) - ops.swiglu(-gate, ones), gate, 1e-6)
    h = np.float32(2.0**-7)
    slope = (ops.swiglu(gate + h, up) - ops.swiglu(gate - h, up)) / (2 * h)
    dgate, dup = ops.swiglu_backward(ones, gate, up)
    near(dgate, slope, 1e-3)
    same(dup * up, dup * up)
    near(dup * up, ops.swiglu(gate, up), 1e-6)


@holds
def sums_and_lookups(ops: Ops) -> None:
    a, b = normal(17, 5, 31), normal(18, 5, 31)
    same(ops.add(a, b), ops.add(b, a))
    zero = np.zeros((1, 3), np.float32)
    same(ops.add(-zero, -zero), -zero)
    same(ops.add(a, np.zeros_like(a)), a)
    ids = np.random.default_rng(3).integers(0, 7, 100).astype(np.int32)
    table = np.zeros((7, 3), np.float32)
    ops.embed_backward(np.ones((100, 3), np.float32), ids, table)
    same(table, np.repeat(np.bincount(ids, minlength=7)[:, None], 3, 1).astype(np.float32))
    same(ops.embed(table, ids), table[ids])


@holds
def attention_looks_back_only(ops: Ops) -> None:
    q, k, v = (normal(seed, 2 * 13, 2 * 6) for seed in (19, 20, 21))
    o, _ = ops.attention(q, k, v, 2, 2)
    for position in (4, 12):
        q2, k2, v2 = q.copy(), k.copy(), v.copy()
        for x in (q2, k2, v2):
            x[position:13] = 9 * normal(22, 13 - position, 12)
        changed, _ = ops.attention(q2, k2, v2, 2, 2)
        same(changed[:position], o[:position])
        same(changed[13:], o[13:])
        assert (changed[position] != o[position]).any()
    swapped = np.concatenate([np.arange(13, 26), np.arange(13)])
    same(ops.attention(q[swapped], k[swapped], v[swapped], 2, 2)[0], o[swapped])


@holds
def attention_averages(ops: Ops) -> None:
    q, k, v = (normal(seed, 13, 12) for seed in (19, 20, 21))
    ones = np.ones_like(v)
    near(ops.attention(q, k, ones, 1, 2)[0], ones, 0.05)
    # Also after scores that exp alone could not take.
    near(ops.attention(q * 200, np.abs(k) * 200, ones, 1, 2)[0], ones, 0.05)
    same(ops.attention(q, k, v * np.float32(4), 1, 2)[0], ops.attention(q, k, v, 1, 2)[0] * 4)
    flat = ops.attention(np.zeros_like(q), k, v, 1, 2)[0]
    near(flat, np.cumsum(v, 0) / np.arange(1, 14)[:, None], 0.02)
    k8, sk = ops.quantise_heads(k, 2)
    v8, sv = ops.quantise_heads(v, 2)
    o, _ = ops.attention(q, k, v, 1, 2)
    for n in (1, 5, 13):
        step = ops.attention_step(q[n - 1 : n].copy(), k8[:n], sk[:n], v8[:n], sv[:n])
        same(step, o[n - 1 : n])


@holds
def attention_has_its_gradient(ops: Ops) -> None:
    q, k, v, do = (normal(seed, 11, 8) for seed in (23, 24, 25, 26))
    _, saved = ops.attention(q, k, v, 1, 2)
    dq, dk, dv = ops.attention_backward(do, saved)
    for grown, plain in zip(
        ops.attention_backward(do * np.float32(16), saved), (dq, dk, dv), strict=True
    ):
        same(grown, plain * np.float32(16))
    near(dv.sum(0), do.sum(0), 0.01)  # probabilities of a query sum to 1
    near((dq * q).sum(), (dk * k).sum(), 0.02)  # only products q·k matter
    same_keys = np.tile(k[:1], (11, 1))
    _, flat = ops.attention(q, same_keys, v, 1, 2)
    assert np.abs(ops.attention_backward(do, flat)[0]).max() < 0.01 * np.abs(dq).max()


@holds
def losses_are_losses(ops: Ops) -> None:
    logits, targets = normal(27, 19, 40) * 4, np.arange(19, dtype=np.int32)
    loss, dlogits = ops.cross_entropy(logits, targets)
    assert np.abs(dlogits.sum(1)).max() < 1e-6
    others = np.ones_like(logits, bool)
    others[targets, targets] = False
    assert (dlogits[others] >= 0).all()
    assert (dlogits[targets, targets] <= 0).all()
    near(np.abs(dlogits).sum(), np.float64(2 - 2 * _chance(ops, logits, targets)), 1e-4)
    shift = np.random.default_rng(3).permutation(40)
    turned_loss, _ = ops.cross_entropy(
        logits[:, shift].copy(), np.argsort(shift)[targets].astype("int32")
    )
    assert abs(turned_loss - loss) < 2**24 * 1e-4
    even, _ = ops.cross_entropy(np.zeros((19, 40), np.float32), targets)
    assert abs(even / 2**24 - 19 * np.log(40)) < 1e-4
    halves = [ops.cross_entropy(logits[p].copy(), targets[p].copy())[0] for p in (
        slice(0, 9), slice(9, 19)
    )]  # fmt: skip
    assert abs(sum(halves) - loss) <= 2


def _chance(ops: Ops, logits: F32, targets: np.ndarray) -> float:
    """Mean probability of the targets, from the losses token by token."""
    losses = [ops.cross_entropy(logits[i : i + 1], targets[i : i + 1])[0] for i in range(19)]
    return float(np.mean(np.exp(-np.array(losses) / 2**24)))


@holds
def grids_are_grids(ops: Ops) -> None:
    g = normal(28, 999)
    for slots in (1, 16, 1024):
        limit = kernels.grid_limit(slots)
        q, _, top = ops.grid(g, -20, limit)
        assert np.abs(q.astype(np.int64)).max() <= limit
        assert top == np.abs(q.astype(np.int64)).max()
        same(ops.grid(-g, -20, limit)[0], -q)
    same(ops.grid(g * np.float32(2), -19, limit)[0], q)
    q, clamps, _ = ops.grid(np.float32([1e9, -1e9, 3, -3, 0.5, 1.5]), 0, 1000)
    assert q.tolist() == [1000, -1000, 3, -3, 0, 2]
    assert clamps == 2
    q, _, _ = ops.grid(np.float32([3e9, -3e9]), 0, kernels.grid_limit(1))
    assert q.tolist() == [2**31 - 128, -(2**31) + 128]
    near(ops.dequantise(ops.grid(g, -20, 2**27 - 1)[0], -20, 1), g, 2.0**-21)


@holds
def grid_sums(ops: Ops) -> None:
    a, b = (np.random.default_rng(s).integers(-(2**30), 2**30, 99).astype("int32") for s in (1, 2))
    total = a.copy()
    ops.grid_add(total, b)
    same(total, a + b)
    edge = np.int32([2**31 - 1, 5])
    refuses(lambda: ops.grid_add(edge, np.int32([1, 1])))
    assert edge.tolist() == [2**31 - 1, 5]
    same(ops.dequantise(np.int32([48, -3, 7]), 2, 3), np.float32([64, -4, 28 / 3]))


@holds
def norms_of_vectors(ops: Ops) -> None:
    g = normal(29, 5000)
    assert ops.norm(g * np.float32(4)) == 4 * ops.norm(g) == ops.norm(-g * np.float32(4))
    assert ops.norm(np.ones(4096 * 4, np.float32)) == 128
    assert ops.norm(np.ones(1, np.float32)) == 1
    assert abs(ops.norm(g) - float(np.sqrt((g.astype(np.float64) ** 2).sum()))) < 1e-3


def adam(
    ops: Ops, v: F32, g: F32, w: F32 | None = None, m: F32 | None = None, decay: float = 0.1
) -> tuple[F32, F32, F32]:
    """The first step, with lr 0.01; all weights decay."""
    s = kernels.adam_scalars(
        lr=0.01, beta1=0.9, beta2=0.95, beta1_power=0.9, beta2_power=0.95, eps=1e-8,
        weight_decay=decay, clip=1.0,
    )  # fmt: skip
    w, m = (np.zeros_like(g) if x is None else x for x in (w, m))
    return ops.adam(w, m, v, g, s, [(0, g.size, True)])


@holds
def adam_steps(ops: Ops) -> None:
    g, w, zeros = normal(30, 333), normal(31, 333), np.zeros(333, np.float32)
    new, m, v = adam(ops, zeros, g, decay=0.0)
    near(new, -np.sign(g) * np.float32(0.01), 1e-3)  # the first step has the size of lr
    near(m, g * np.float32(0.1), 1e-5)
    near(v, g * g * np.float32(0.05), 1e-5)
    near(adam(ops, zeros, zeros, w=w)[0], w * np.float32(1 - 0.001), 1e-6)
    turned_ = adam(ops, np.abs(w), -g, w=-w, m=-g)
    plain = adam(ops, np.abs(w), g, w=w, m=g)
    same(turned_[0], -plain[0])
    same(turned_[1], -plain[1])
    same(turned_[2], plain[2])
    # A tiny gradient against a tiny variance: what stands beside the root decides.
    tiny = np.full(4, np.float32(1e-8))
    near(adam(ops, np.zeros(4, np.float32), tiny, decay=0.0)[0], np.full(4, -0.005), 1e-2)
    s = kernels.adam_scalars(
        lr=0.01, beta1=0.9, beta2=0.95, beta1_power=0.9, beta2_power=0.95, eps=1e-8,
        weight_decay=0.5, clip=1.0,
    )  # fmt: skip
    still = ops.adam(w, zeros, zeros, zeros, s, [(0, 100, True), (100, 333, False)])[0]
    same(still[100:], w[100:])
    assert (still[:100] != w[:100]).all()
