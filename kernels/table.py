"""`Kernels`: every operation with its shapes, checked arguments and one chosen form.

Arrays are C-contiguous; floats are float32. Letters: M tokens (B sequences of T), K and N widths,
H heads of D channels, V vocabulary. Wrong shapes raise ShapeError, NaN or infinity where it
matters NonFiniteInputError; both leave every argument as it was.

May import: constants, errors, spot, types.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from . import constants as c
from .errors import AccumulatorBoundError, NonFiniteInputError, ShapeError
from .spot import OPERATIONS, SpotChecks
from .types import (
    F32,
    I8,
    I32,
    INT8_LIMIT,
    INT12_LIMIT,
    AdamScalars,
    AttentionSaved,
    Quantised,
)


def _check(name: str, a: Any, dtype: type, *shape: int | None) -> Any:
    """The array itself if it is C-contiguous with this dtype and shape (None: any length >= 1).

    A read-only array is copied: compiled forms exist for writable ones only.
    """
    ok = isinstance(a, np.ndarray) and a.dtype == dtype and a.ndim == len(shape)
    ok = ok and a.size > 0 and a.flags.c_contiguous
    if not ok or any(want not in (None, have) for want, have in zip(shape, a.shape, strict=True)):
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        got = f"{a.dtype} {a.shape}" if isinstance(a, np.ndarray) else type(a).__name__
        raise ShapeError(
            f"{name} must be a C-contiguous {np.dtype(dtype)} array of shape ({wanted}); "
            f"it is {got}."
        )
    return a if a.flags.writeable else a.copy()


def _f32(name: str, a: Any, *shape: int | None) -> F32:
    checked: F32 = _check(name, a, np.float32, *shape)
    return checked


def _shape(x: F32 | Quantised) -> tuple[int, ...]:
    return x.q.shape if isinstance(x, Quantised) else x.shape


def _ids(name: str, a: Any, length: int, vocab: int) -> I32:
    ids: I32 = _check(name, a, np.int32, length)
    if int(np.min(ids)) < 0 or int(np.max(ids)) >= vocab:
        raise ShapeError(f"{name} must lie in 0..{vocab - 1}.")
    return ids


class Kernels:
    """The operations, each in its compiled or its reference form.

    backend: "numba" or "reference". demoted: {operation: reason} for those that run in their
    reference form although the backend is numba. reason: why nothing is compiled, for the
    reference backend, else "". counts: calls per operation, plus
    "flushed_scales" (rows or columns below 2^-100), "float_mode_repairs" and "spot_cells" (numbers
    of products and attention that were checked).
    """

    def __init__(
        self,
        backend: str,
        forms: Mapping[str, Callable[..., Any]],
        pin: Callable[[], bool],
        demoted: Mapping[str, str] | None = None,
        reason: str = "",
        spots: SpotChecks | None = None,
    ) -> None:
        """forms: every operation by name. pin: makes the calling thread's floating-point mode
        right, tells whether that took a repair, raises FloatModeError if it cannot. spots: looks
        at what was computed."""
        self.backend = backend
        self.demoted: Mapping[str, str] = dict(demoted or {})
        self.reason = reason
        self.counts: Counter[str] = Counter()
        self._pin = pin
        self._spots = spots
        self._forms = dict(forms)
        self._lock = threading.Lock()

    def _run(self, name: str, *args: Any) -> Any:
        repaired = self._pin()
        with self._lock:
            self.counts[name] += 1
            if repaired:
                self.counts["float_mode_repairs"] += 1
        with np.errstate(all="ignore"):
            result = self._forms[name](*args)
            if self._spots is not None and name in OPERATIONS:
                cells = self._spots.look(name, args, result)
                if cells:
                    with self._lock:
                        self.counts["spot_cells"] += cells
        return result

    def observed(self, watch: Callable[[str, tuple[Any, ...], Any], None]) -> Kernels:
        """The same operations; after each one `watch` gets its name, arguments and result (None
        for those that write to their arguments)."""

        def watched(name: str, form: Callable[..., Any]) -> Callable[..., Any]:
            def run(*args: Any) -> Any:
                result = form(*args)
                watch(name, args, result)
                return result

            return run

        forms = {name: watched(name, form) for name, form in self._forms.items()}
        return Kernels(self.backend, forms, self._pin, self.demoted, self.reason)

    # Elementary functions

    def exp(self, x: F32) -> F32:
        """e^x of x[n], within 1 ulp; +0 below -87.33654, exp(88.37626) above 88.37626."""
        return self._run("exp", _f32("x", x, None))

    def log(self, x: F32) -> F32:
        """Natural logarithm of x[n]; the domain is positive normal numbers."""
        return self._run("log", _f32("x", x, None))

    # Quantisation and products

    def quantise_rows(self, x: F32, limit: int = INT8_LIMIT) -> Quantised:
        """x[M, K] -> int8 (limit 127) or int16 (2,047) with one scale per row."""
        return self._quantise("quantise_rows", x, limit)

    def quantise_cols(self, x: F32, limit: int = INT12_LIMIT) -> Quantised:
        """x[K, N] -> int8 (limit 127) or int16 (2,047) with one scale per column."""
        return self._quantise("quantise_cols", x, limit)

    def _quantise(self, name: str, x: F32, limit: int) -> Quantised:
        if limit not in (INT8_LIMIT, INT12_LIMIT):
            raise ShapeError(f"the quantisation limit is {limit}; it must be 127 or 2047.")
        result: Quantised = self._run(name, _f32("x", x, None, None), limit)
        flushed = int(np.count_nonzero(result.scale == c.ZERO))
        if flushed:
            with self._lock:
                self.counts["flushed_scales"] += flushed
        return result

    def _right(self, name: str, x: F32 | Quantised, limit: int, by_rows: bool) -> Quantised:
        if not isinstance(x, Quantised):
            return (self.quantise_rows if by_rows else self.quantise_cols)(x, limit)
        if x.limit != limit or x.by_rows != by_rows:
            raise ShapeError(
                f"{name} must be quantised to {limit} by {'rows' if by_rows else 'columns'}."
            )
        return x

    def _left(self, name: str, x: F32 | Quantised, limit: int, by_rows: bool) -> F32 | Quantised:
        """A float operand stays as it is: the product quantises it chunk by chunk."""
        if not isinstance(x, Quantised):
            return _f32(name, x, None, None)
        return self._right(name, x, limit, by_rows)

    def _product(
        self, op: str, a: F32 | Quantised, b: Quantised, inner: tuple[int, int], *out: F32 | None
    ) -> F32:
        """Run a product after checking that the inner lengths agree and cannot overflow."""
        bound = c.INT8_MAX_INNER if b.limit == INT8_LIMIT else c.INT12_MAX_INNER
        if inner[0] != inner[1]:
            raise ShapeError(f"{op}: inner lengths {inner[0]} and {inner[1]} differ.")
        if inner[0] > bound:
            raise AccumulatorBoundError(
                f"{op}: {inner[0]} products cannot be summed exactly; at most {bound} can."
            )
        result: F32 = self._run(op, a, b, *out)
        return result

    def linear(self, x: F32 | Quantised, w: F32 | Quantised) -> F32:
        """x[M, K], w[N, K] -> y[M, N] = x @ w.T; int8, scales per row of each.

        Operands shared by several products (x of q, k, v; w over a step's slots) are prepared
        once with `quantise_rows(., 127)`. AccumulatorBoundError beyond K = 131,071.
        """
        a = self._left("x", x, INT8_LIMIT, True)
        b = self._right("w", w, INT8_LIMIT, True)
        return self._product("linear", a, b, (_shape(a)[1], b.q.shape[1]))

    def linear_dx(self, dy: F32 | Quantised, w: F32 | Quantised) -> F32:
        """dy[M, N], w[N, K] -> dx[M, K] = dy @ w; 12-bit, per row of dy and column of w.

        Prepared forms: `quantise_rows(dy, 2047)`, `quantise_cols(w, 2047)`.
        """
        a = self._left("dy", dy, INT12_LIMIT, True)
        b = self._right("w", w, INT12_LIMIT, False)
        return self._product("linear_dx", a, b, (_shape(a)[1], b.q.shape[0]))

    def linear_dw(self, dy: F32 | Quantised, x: F32 | Quantised, out: F32 | None = None) -> F32:
        """dy[M, N], x[M, K] -> dw[N, K] = dy.T @ x; 12-bit, per column of dy and column of x.

        Prepared forms: `quantise_cols(dy, 2047)`, `quantise_cols(x, 2047)`. out: where dw goes,
        if not to a new array.
        """
        a = self._left("dy", dy, INT12_LIMIT, False)
        b = self._right("x", x, INT12_LIMIT, False)
        if out is not None and _f32("out", out, _shape(a)[1], b.q.shape[1]) is not out:
            raise ShapeError("out is read-only; the gradient is written to it.")
        return self._product("linear_dw", a, b, (_shape(a)[0], b.q.shape[0]), out)

    # Layers

    def rmsnorm(self, x: F32, gain: F32, eps: float) -> tuple[F32, F32]:
        """x[M, K], gain[K] -> y[M, K] = x * inv * gain, inv[M] = 1 / sqrt(mean(x^2) + eps)."""
        x = _f32("x", x, None, None)
        return self._run("rmsnorm", x, _f32("gain", gain, x.shape[1]), np.float32(eps))

    def rmsnorm_backward(self, dy: F32, x: F32, gain: F32, inv: F32) -> tuple[F32, F32]:
        """dy[M, K] and the forward's x, gain, inv -> dx[M, K], dgain[K]."""
        x = _f32("x", x, None, None)
        return self._run(
            "rmsnorm_backward",
            _f32("dy", dy, *x.shape),
            x,
            _f32("gain", gain, x.shape[1]),
            _f32("inv", inv, x.shape[0]),
        )

    def rope(self, x: F32, cos: F32, sin: F32) -> F32:
        """Rotate the pairs (i, i + D/2) of every head of x[M, H*D] by its position's angle.

        cos, sin [T, D/2]: row m of x has position m mod T. For one token at position p pass the
        rows cos[p:p+1], sin[p:p+1].
        """
        return self._run("rope", *self._rope_arguments("x", x, cos, sin))

    def rope_backward(self, dy: F32, cos: F32, sin: F32) -> F32:
        """dy[M, H*D] -> dx[M, H*D], the rotation undone."""
        return self._run("rope_backward", *self._rope_arguments("dy", dy, cos, sin))

    @staticmethod
    def _rope_arguments(name: str, x: F32, cos: F32, sin: F32) -> tuple[F32, F32, F32]:
        x, cos = _f32(name, x, None, None), _f32("cos", cos, None, None)
        sin = _f32("sin", sin, *cos.shape)
        if x.shape[0] % cos.shape[0] or x.shape[1] % (2 * cos.shape[1]):
            raise ShapeError(
                f"{name} of shape {x.shape} is not whole sequences and heads of the tables' "
                f"{cos.shape[0]} positions and {2 * cos.shape[1]} channels."
            )
        return x, cos, sin

    def swiglu(self, gate: F32, up: F32) -> F32:
        """gate[M, F], up[M, F] -> silu(gate) * up."""
        gate = _f32("gate", gate, None, None)
        return self._run("swiglu", gate, _f32("up", up, *gate.shape))

    def swiglu_backward(self, dh: F32, gate: F32, up: F32) -> tuple[F32, F32]:
        """dh[M, F] and the forward's gate, up -> dgate, dup."""
        gate = _f32("gate", gate, None, None)
        dh, up = _f32("dh", dh, *gate.shape), _f32("up", up, *gate.shape)
        return self._run("swiglu_backward", dh, gate, up)

    def add(self, a: F32, b: F32) -> F32:
        """a[M, K] + b[M, K]."""
        a = _f32("a", a, None, None)
        return self._run("add", a, _f32("b", b, *a.shape))

    def embed(self, table: F32, ids: I32) -> F32:
        """table[V, K], ids int32 [M] in 0..V-1 -> rows [M, K]."""
        table = _f32("table", table, None, None)
        return self._run("embed", table, _ids("ids", ids, np.size(ids), table.shape[0]))

    def embed_backward(self, dy: F32, ids: I32, dtable: F32) -> None:
        """Add row m of dy[M, K] to row ids[m] of dtable[V, K] in place, m ascending."""
        dy = _f32("dy", dy, None, None)
        if not dtable.flags.writeable:
            raise ShapeError("dtable is read-only; it is changed in place.")
        dtable = _f32("dtable", dtable, None, dy.shape[1])
        self._run("embed_backward", dy, _ids("ids", ids, dy.shape[0], dtable.shape[0]), dtable)

    # Attention

    def attention(
        self, q: F32, k: F32, v: F32, batch: int, heads: int
    ) -> tuple[F32, AttentionSaved]:
        """Causal attention of q, k, v [B*T, H*D] -> o[B*T, H*D], and what its backward needs.

        The saved value refers to q, k and v: leave them unchanged until the backward form ran.
        """
        q = _f32("q", q, None, None)
        if batch < 1 or heads < 1 or q.shape[0] % batch or q.shape[1] % heads:
            raise ShapeError(f"q of shape {q.shape} is not {batch} sequences of {heads} heads.")
        k, v = _f32("k", k, *q.shape), _f32("v", v, *q.shape)
        self._attention_bound(q.shape[0] // batch, q.shape[1] // heads)
        return self._run("attention", q, k, v, batch, heads)

    def attention_backward(self, do: F32, saved: AttentionSaved) -> tuple[F32, F32, F32]:
        """do[B*T, H*D] -> dq, dk, dv. Recomputes the probabilities; 12-bit products."""
        return self._run("attention_backward", _f32("do", do, *saved.q.shape), saved)

    def quantise_heads(self, x: F32, heads: int) -> tuple[I8, F32]:
        """x[M, H*D] -> int8 (M, H, D) and scales (M, H), as attention quantises k and v.

        What a cache of keys and values holds.
        """
        x = _f32("x", x, None, None)
        if heads < 1 or x.shape[1] % heads:
            raise ShapeError(f"x of shape {x.shape} is not made of {heads} heads.")
        rows = self.quantise_rows(x.reshape(x.shape[0] * heads, -1), INT8_LIMIT)
        return rows.q.reshape(x.shape[0], heads, -1), rows.scale.reshape(-1, heads)

    def attention_step(self, q: F32, k8: I8, sk: F32, v8: I8, sv: F32) -> F32:
        """One query q[1, H*D] over n cached positions, its own last -> o[1, H*D].

        k8, v8 int8 (n, H, D) and sk, sv (n, H) come from `quantise_heads`. The answer has the
        bits of row n-1 of `attention` over the same tokens.
        """
        k8 = _check("k8", k8, np.int8, None, None, None)
        n, heads, dim = k8.shape
        self._attention_bound(n, dim)
        return self._run(
            "attention_step",
            _f32("q", q, 1, heads * dim),
            k8,
            _f32("sk", sk, n, heads),
            _check("v8", v8, np.int8, n, heads, dim),
            _f32("sv", sv, n, heads),
        )

    @staticmethod
    def _attention_bound(seq_len: int, dim: int) -> None:
        if max(seq_len, dim) > c.INT8_MAX_INNER:
            raise AccumulatorBoundError(
                f"attention over {seq_len} positions of {dim} channels cannot be summed exactly; "
                f"at most {c.INT8_MAX_INNER} can."
            )

    # Loss

    def cross_entropy(self, logits: F32, targets: I32, in_place: bool = False) -> tuple[int, F32]:
        """logits[M, V], targets int32 [M] -> (loss, dlogits[M, V]).

        loss: summed over the M tokens, an integer in units of 2^-24. dlogits: of the mean loss
        over the M tokens; with `in_place` in the memory of logits, which are without meaning
        after a refusal.
        """
        logits = _f32("logits", logits, None, None)
        targets = _ids("targets", targets, *logits.shape)
        return self._run("cross_entropy", logits, targets, *([logits] if in_place else []))

    # Gradient grid and optimizer, on flat vectors

    def grid(self, g: F32, exponent: int, limit: int) -> tuple[I32, int, int]:
        """g[n] -> (q int32 [n] = rint(g * 2^-exponent) clamped to +-limit, clamps, largest |q|)."""
        if not (-100 <= exponent <= 20 and 1 <= limit <= 2**31 - 1):
            raise ShapeError(f"grid exponent {exponent} or limit {limit} is out of range.")
        return self._run("grid", _f32("g", g, None), exponent, limit)

    def grid_add(self, acc: I32, q: I32) -> None:
        """acc[n] += q[n], int32 in place, or AccumulatorBoundError with acc unchanged."""
        if not acc.flags.writeable:
            raise ShapeError("acc is read-only; it is changed in place.")
        acc = _check("acc", acc, np.int32, None)
        self._run("grid_add", acc, _check("q", q, np.int32, acc.shape[0]))

    def dequantise(self, total: I32, exponent: int, slots: int) -> F32:
        """Sum of `slots` gridded gradients [n] -> mean, f32(total) * 2^exponent / f32(slots)."""
        if not (-100 <= exponent <= 20 and 1 <= slots <= 1024):
            raise ShapeError(f"grid exponent {exponent} or slot count {slots} is out of range.")
        return self._run("dequantise", _check("total", total, np.int32, None), exponent, slots)

    def norm(self, g: F32) -> float:
        """Euclidean norm of g[n], rounded to binary32."""
        result = float(self._run("norm", _f32("g", g, None)))
        if not result < float("inf"):
            raise NonFiniteInputError("the norm of the gradient is NaN or infinite.")
        return result

    def adam(
        self,
        w: F32,
        m: F32,
        v: F32,
        g: F32,
        scalars: AdamScalars,
        segments: Sequence[tuple[int, int, bool]],
        out: tuple[F32, F32, F32] | None = None,
    ) -> tuple[F32, F32, F32]:
        """One Adam step of flat w, m, v, g [n] -> new (w, m, v); the old ones stay as they are.

        segments: (start, stop, decays) covering 0..n in order; weight decay applies where
        `decays`. out: three arrays of n to write to, none of them an input. NonFiniteInputError
        names what is not finite, and where; `out` is then without meaning.
        """
        n = np.size(w)
        arrays = [_f32(s, a, n) for s, a in zip("wmvg", (w, m, v, g), strict=True)]
        result = out or (np.empty(n, np.float32), np.empty(n, np.float32), np.empty(n, np.float32))
        for new in result:
            if _f32("out", new, n) is not new or any(np.shares_memory(new, a) for a in arrays):
                raise ShapeError("an output of adam is read-only or one of its inputs.")
        expected = 0
        for start, stop, _ in segments:
            if start != expected or stop <= start:
                raise ShapeError("the segments of adam must cover the vector in order.")
            expected = stop
        if expected != n:
            raise ShapeError(f"the segments of adam cover {expected} of {n} values.")
        for start, stop, decays in segments:
            part = slice(start, stop)
            try:
                self._run(
                    "adam",
                    *(a[part] for a in arrays),
                    scalars,
                    decays,
                    tuple(a[part] for a in result),
                )
            except NonFiniteInputError as error:
                raise NonFiniteInputError(f"in values {start}..{stop - 1}: {error}") from None
        return result
