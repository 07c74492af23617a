"""Tiled integer products, equal to `reference.products`.

A left operand that comes as floats is quantised chunk by chunk into scratch memory and multiplied
from there, so it is never written whole. Right operands are laid out once and kept.
May import: constants, errors, types, workspace, jit siblings.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ..errors import NonFiniteInputError
from ..types import F32, F64, I32, INT8_LIMIT, Ints, Quantised
from ..workspace import empty
from .compile import helper, kernel, routine
from .pack import (
    bytes_of,
    column_tops,
    left_cols,
    pair_word,
    quantise_cols_into,
    quantise_rows_into,
    right_cols,
    right_rows,
    row_top,
    row_words,
    scale_of,
    widened,
)
from .scalar import INFINITY_BITS, round_small
from .sums import MAGNITUDES, block_of, long_block
from .target import QUADS
from .threads import LEAST_VALUES, spread
from .tile import NONE, TILE_COLS, TILE_ROWS, TILE_SIZE, tile_add, tile_quads, tile_scaled

_SMALL_ROW = 1 << 20
"""Values of a row from which on the sum of their magnitudes could itself overflow."""
_CHUNK_WORDS = 1 << 16
"""256 KiB of left operand at a time: half of a second-level cache of this age."""
_WIDE_SUMS = 1 << 15
"""256 KiB of binary64 sums at a time."""
_CHUNK_COLS = 16 * TILE_ROWS
_LEAST_TILES, _LEAST_TILES_WIDE = 8, 32
"""Of a chunk, however long its rows: every chunk reads the whole right operand, which does not stay
in the cache where it is summed in blocks."""


def _integers(x: F32, limit: int) -> Ints:
    return empty(x.shape, np.int8 if limit == INT8_LIMIT else np.int16)


def _refuse() -> NonFiniteInputError:
    return NonFiniteInputError(
        "a value to be quantised is NaN or infinite; the operand was refused."
    )


def quantise_rows(x: F32, limit: int) -> Quantised:
    """x[M, K] -> integers with one scale per row."""
    q, scale = _integers(x, limit), empty(x.shape[0], np.float32)

    def part(start: int, stop: int) -> bool:
        m = slice(start, stop)
        return bool(quantise_rows_into(x[m], np.float32(limit), q[m], scale[m]))

    if not spread(x.shape[0], 1, part, least=max(1, LEAST_VALUES // x.shape[1])):
        raise _refuse()
    return Quantised(q, scale, limit, by_rows=True)


def quantise_each(x: F32, batch: int, limit: int) -> tuple[Ints, F32]:
    """x[B * K, N] -> integers, and scales [B, N] per column of each of B parts."""
    rows, width = x.shape
    q, scale = _integers(x, limit), empty((batch, width), np.float32)

    def part(begin: int, end: int) -> bool:
        scratch = (empty(end - begin, kind) for kind in (np.int32, np.float32, np.float32))
        return bool(
            quantise_cols_into(x, begin, end, rows // batch, np.float32(limit), *scratch, q, scale)
        )

    if not spread(width, 16, part, least=max(16, LEAST_VALUES // rows)):
        raise _refuse()
    return q, scale


def quantise_cols(x: F32, limit: int) -> Quantised:
    """x[K, N] -> integers with one scale per column."""
    q, scale = quantise_each(x, 1, limit)
    return Quantised(q, scale.reshape(-1), limit, by_rows=False)


@dataclasses.dataclass(frozen=True, slots=True)
class Panels:
    """A right operand [panel][word][TILE_COLS] of `count` words per column.

    block: words that int32 can sum whatever is on the left. start: what the sums of int8 quads
    begin with; scale: of every column, zeros behind.
    """

    words: I32
    count: int
    block: int
    scale: F32
    start: I32
    quads: bool


def _padded(values: Ints, dtype: type) -> Ints:
    out: Ints = np.zeros(-(-values.size // TILE_COLS) * TILE_COLS, dtype)
    out[: values.size] = values
    return out


def _panels(b: Quantised, by_rows: bool) -> Panels:
    """The right operand of a product, laid out once and kept with it."""
    name = "right rows" if by_rows else "right cols"
    kept: Panels | None = b.tiles.get(name)
    if kept is None:
        scale = _padded(b.scale, np.float32)
        start = np.zeros(0, np.int32)
        quads = by_rows and b.q.dtype == np.int8 and QUADS is not None
        if not by_rows:
            words, count = right_cols(b.q[None, :, None]), -(-b.q.shape[0] // 2)
        else:
            rows = bytes_of(b.q, False, 0) if quads else widened(b.q, 0)
            words, count = right_rows(rows[None, :, None]), rows.shape[1]
        if quads and QUADS is not None and QUADS.unsigned_left:
            # 128 was added to every left value: 128 times the column's sum comes off again.
            start = _padded(-128 * b.q.astype(np.int32).sum(1, dtype=np.int32), np.int32)
        elif quads:
            start = np.zeros(scale.size, np.int32)
        block = count if b.limit == INT8_LIMIT else block_of(b.q)
        kept = b.tiles[name] = Panels(words, count, block, scale, start, quads)
    return kept


def _sweep(tile: Any) -> Any:
    @routine
    def sweep(
        left, row_step, step, rows, right, count, start, row_scale, col_scale, edge, out, cols
    ):
        """A chunk's product where int32 holds every sum: panel by panel, strip by strip."""
        for n0 in range(0, cols, TILE_COLS):
            for r0 in range(0, rows, TILE_ROWS):
                last = min(rows - r0, TILE_ROWS) - 1
                place = r0 * cols + n0
                if last == TILE_ROWS - 1 and cols - n0 >= TILE_COLS:
                    tile(
                        left, r0 * row_step, row_step, step, last, right, n0 * count, count,
                        start, n0, row_scale, r0, col_scale, n0, out, place, cols,
                    )  # fmt: skip
                else:
                    tile(
                        left, r0 * row_step, row_step, step, last, right, n0 * count, count,
                        start, n0, row_scale, r0, col_scale, n0, edge, 0, TILE_COLS,
                    )  # fmt: skip
                    for r in range(last + 1):
                        for j in range(min(cols - n0, TILE_COLS)):
                            out[place + r * cols + j] = edge[r * TILE_COLS + j]

    return sweep


_sweep_words = _sweep(tile_scaled)
_sweep_quads = _sweep(tile_quads) if QUADS is not None else _sweep_words


@routine
def _sweep_wide(
    left, row_step, step, rows, right, count, length, row_scale, col_scale, wide, out, cols
):
    """A chunk's product in blocks of `length` words, added up in binary64.

    wide float64 [tiles of the chunk, TILE_SIZE]: scratch.
    """
    strips = (rows + TILE_ROWS - 1) // TILE_ROWS
    panels = (cols + TILE_COLS - 1) // TILE_COLS
    for i in range(strips * panels * TILE_SIZE):
        wide[i] = 0.0
    for k0 in range(0, count, length):
        words = min(count - k0, length)
        for p in range(panels):
            for s in range(strips):
                last = min(rows - s * TILE_ROWS, TILE_ROWS) - 1
                tile_add(
                    left, s * TILE_ROWS * row_step + k0 * step, row_step, step, last, right,
                    (p * count + k0) * TILE_COLS, words, wide, (p * strips + s) * TILE_SIZE,
                )  # fmt: skip
    for s in range(strips):
        for p in range(panels):
            block = (p * strips + s) * TILE_SIZE
            n0 = p * TILE_COLS
            for r in range(min(rows - s * TILE_ROWS, TILE_ROWS)):
                factor = row_scale[s * TILE_ROWS + r]
                place = (s * TILE_ROWS + r) * cols + n0
                width = min(cols - n0, TILE_COLS)
                totals = wide[block + r * TILE_COLS :]
                scale, target = col_scale[n0:], out[place : place + width]
                if width == TILE_COLS:
                    for j in range(TILE_COLS):
                        target[j] = np.float32(totals[j]) * factor * scale[j]
                else:
                    for j in range(width):
                        target[j] = np.float32(totals[j]) * factor * scale[j]


@kernel
def _product(
    left, row_step, step, rows, row_scale, right, count, quads, block, start, col_scale, wide,
    edge, out, cols,
):  # fmt: skip
    """out[rows, cols] = a chunk of the left operand times the whole right one.

    block: words that int32 can sum.
    """
    if quads:
        _sweep_quads(
            left, row_step, step, rows, right, count, start, row_scale, col_scale, edge, out, cols
        )
    elif count <= block:
        _sweep_words(
            left, row_step, step, rows, right, count, start, row_scale, col_scale, edge, out, cols
        )
    else:
        _sweep_wide(
            left, row_step, step, rows, right, count, block, row_scale, col_scale, wide, out, cols
        )


@helper
def _magnitudes(values):
    """Sum of |values|, int16, which int32 must hold."""
    total = np.int32(0)
    for k in range(values.size):
        q = np.int32(values[k])
        total += np.int32(-q) if q < 0 else q
    return total


_NOT_FINITE, _LARGE, _SUMMABLE = np.int64(0), np.int64(1), np.int64(2)
"""What became of a chunk: refused, or quantised; then whether int32 can hold all its sums."""


@kernel
def _quantise_rows_chunk(x, limit, halves, bytes_, row_scale, count, quads, flip, look):
    """Words of the rows of x[R, K] with their scales; look: whether to look for small sums.

    The words [>= R, words of a row] are written as int16 in halves, or as int8 in bytes_.
    """
    rows, inner = x.shape
    small = look and inner < _SMALL_ROW
    for r in range(rows):
        top = row_top(x, r)
        if top >= INFINITY_BITS:
            return _NOT_FINITE
        row_scale[r], inverse = scale_of(top, limit)
        if quads:
            for k in range(inner):
                q = round_small(x[r, k] * inverse)
                bytes_[r, k] = np.int8(q ^ flip)
            for k in range(inner, 4 * count):
                bytes_[r, k] = np.int8(0)
        else:
            for k in range(inner):
                halves[r, k] = np.int16(round_small(x[r, k] * inverse))
            if inner % 2:
                halves[r, inner] = np.int16(0)
            if small:
                small = _magnitudes(halves[r, :inner]) <= MAGNITUDES
    return _SUMMABLE if small else _LARGE


@kernel
def _quantise_cols_chunk(x, begin, end, limit, words, top, total, inverse, row_scale, count, look):
    """Words [K / 2, >= end - begin] of pairs down columns begin..end-1 of x[K, M], with scales.

    top int32, total and inverse float32: scratch for each column.
    """
    inner, rows = x.shape[0], end - begin
    column_tops(x, NONE, inner, begin, end, top, total)
    # A rounded value is at most a half more than its magnitude over the scale; the tenth covers
    # what the sum of at most _SMALL_ROW magnitudes lost to rounding (a sixteenth).
    most = np.float32(0.9) * np.float32(MAGNITUDES - inner // 2)
    small = look and inner < _SMALL_ROW
    for j in range(rows):
        if top[j] >= INFINITY_BITS:
            return _NOT_FINITE
        row_scale[j], inverse[j] = scale_of(top[j], limit)
        small &= total[j] * inverse[j] <= most
    for t in range(inner // 2):
        first, second = x[2 * t, begin:end], x[2 * t + 1, begin:end]
        for j in range(rows):
            words[t, j] = pair_word(
                round_small(first[j] * inverse[j]), round_small(second[j] * inverse[j])
            )
    if inner % 2:
        for j in range(rows):
            q = round_small(x[inner - 1, begin + j] * inverse[j])
            words[count - 1, j] = pair_word(q, np.int32(0))
    return _SUMMABLE if small else _LARGE


def _chunk_rows(rows: int, length: int, cols: int, wide: bool) -> int:
    """How many rows of `length` words to multiply at a time."""
    chunk, least = _CHUNK_WORDS // length, _LEAST_TILES
    if wide:
        chunk, least = min(chunk, _WIDE_SUMS // cols), _LEAST_TILES_WIDE
    chunk = max(chunk // TILE_ROWS, least) * TILE_ROWS
    return min(chunk, -(-rows // TILE_ROWS) * TILE_ROWS)


def _scratch(chunk: int, cols: int, wide: bool) -> tuple[F64, F32]:
    """Sums in binary64 and the edge tile of a chunk."""
    tiles = -(-chunk // TILE_ROWS) * -(-cols // TILE_COLS) if wide else 0
    return empty(tiles * TILE_SIZE, np.float64), empty(TILE_SIZE, np.float32)


def _block(panels: Panels, done: int) -> int:
    """Words that int32 can sum, knowing what became of the chunk on the left."""
    return long_block(panels.count) if done == _SUMMABLE else panels.block


def _flip(panels: Panels) -> np.int32:
    """What turns an int8 into what the quads' instruction takes on the left."""
    return np.int32(-128 if panels.quads and QUADS is not None and QUADS.unsigned_left else 0)


def _left_rows(a: Quantised, quads: bool) -> I32:
    """The rows of a left operand as words, laid out once and kept with it: several products of a
    layer share theirs."""
    name = "left quads" if quads else "left rows"
    kept: I32 | None = a.tiles.get(name)
    if kept is None:
        offset = QUADS is not None and QUADS.unsigned_left
        kept = a.tiles[name] = bytes_of(a.q, offset) if quads else widened(a.q)
    return kept


def _left_columns(a: Quantised) -> I32:
    """As `_left_rows`, down the columns: words of pairs, flat."""
    kept: I32 | None = a.tiles.get("left columns")
    if kept is None:
        kept = a.tiles["left columns"] = left_cols(a.q).reshape(-1)
    return kept


def _by_rows(a: F32 | Quantised, b: Quantised, panels: Panels) -> F32:
    """a[M, K] times panels -> [M, N]; a float operand is quantised to b's limit."""
    rows, inner = a.shape if isinstance(a, np.ndarray) else a.q.shape
    cols = b.scale.size
    out: F32 = empty((rows, cols), np.float32)
    wide = panels.count > panels.block
    if isinstance(a, Quantised):
        words = _left_rows(a, panels.quads)
        length = words.shape[1]
        chunk = _chunk_rows(rows, length, cols, wide)

        def laid_out(start: int, stop: int) -> bool:
            scratch = _scratch(chunk, cols, wide)
            for c0 in range(start, stop, chunk):
                end = min(c0 + chunk, stop)
                _product(
                    words[c0:end].reshape(-1), length, 1, end - c0, a.scale[c0:end], panels.words,
                    panels.count, panels.quads, panels.block, panels.start, panels.scale, *scratch,
                    out[c0:end].reshape(-1), cols,
                )  # fmt: skip
            return True

        spread(rows, TILE_ROWS, laid_out)
        return out
    chunk = _chunk_rows(rows, panels.count, cols, wide)
    look = panels.block < long_block(panels.count)

    def quantised(start: int, stop: int) -> bool:
        words = row_words(chunk, inner, 4 if panels.quads else 2)
        forms = words.view(np.int16), words.view(np.int8)
        row_scale, scratch = empty(chunk, np.float32), _scratch(chunk, cols, wide)
        for c0 in range(start, stop, chunk):
            end = min(c0 + chunk, stop)
            done = _quantise_rows_chunk(
                a[c0:end], np.float32(b.limit), *forms, row_scale, panels.count,
                panels.quads, _flip(panels), look,
            )  # fmt: skip
            if done == _NOT_FINITE:
                return False
            _product(
                words.reshape(-1), words.shape[1], 1, end - c0, row_scale, panels.words,
                panels.count, panels.quads, _block(panels, done), panels.start, panels.scale,
                *scratch, out[c0:end].reshape(-1), cols,
            )  # fmt: skip
        return True

    if not spread(rows, TILE_ROWS, quantised):
        raise _refuse()
    return out


def linear(x: F32 | Quantised, w: Quantised) -> F32:
    """x[M, K] @ w[N, K].T -> [M, N]."""
    return _by_rows(x, w, _panels(w, True))


def linear_dx(dy: F32 | Quantised, w: Quantised) -> F32:
    """dy[M, N] @ w[N, K] -> [M, K]."""
    return _by_rows(dy, w, _panels(w, False))


def linear_dw(dy: F32 | Quantised, x: Quantised, out: F32 | None = None) -> F32:
    """dy[M, N].T @ x[M, K] -> [N, K], in `out` if given."""
    panels = _panels(x, False)
    rows = dy.shape[1] if isinstance(dy, np.ndarray) else dy.q.shape[1]
    cols = x.scale.size
    dw: F32 = empty((rows, cols), np.float32) if out is None else out
    wide = panels.count > panels.block
    chunk = min(_CHUNK_COLS, -(-rows // TILE_ROWS) * TILE_ROWS)
    if isinstance(dy, Quantised):
        left, scratch = _left_columns(dy), _scratch(chunk, cols, wide)
        for c0 in range(0, rows, chunk):
            end = min(c0 + chunk, rows)
            _product(
                left[c0:], 1, rows, end - c0, dy.scale[c0:end], panels.words, panels.count,
                panels.quads, panels.block, panels.start, panels.scale, *scratch,
                dw[c0:end].reshape(-1), cols,
            )  # fmt: skip
        return dw

    look = panels.block < long_block(panels.count)

    def quantised(start: int, stop: int) -> bool:
        words, top = empty((panels.count, chunk), np.int32), empty(chunk, np.int32)
        total, inverse, row_scale = (empty(chunk, np.float32) for _ in range(3))
        scratch = _scratch(chunk, cols, wide)
        for c0 in range(start, stop, chunk):
            end = min(c0 + chunk, stop)
            done = _quantise_cols_chunk(
                dy, c0, end, np.float32(x.limit), words, top, total, inverse, row_scale,
                panels.count, look,
            )  # fmt: skip
            if done == _NOT_FINITE:
                return False
            _product(
                words.reshape(-1), 1, chunk, end - c0, row_scale, panels.words, panels.count,
                panels.quads, _block(panels, done), panels.start, panels.scale, *scratch,
                dw[c0:end].reshape(-1), cols,
            )  # fmt: skip
        return True

    if not spread(rows, TILE_ROWS, quantised):
        raise _refuse()
    return dw
