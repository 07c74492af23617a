// The operations of docs/ARITHMETIC.md that one token needs, with the same bits.
//
// A number here is binary64. One operation on binary32 values followed by Math.fround, or by a store
// to a Float32Array, rounds to what binary32 gives at once: 53 digits are more than 2 * 24 + 1.

const f32 = Math.fround;
const word = new Int32Array(1);
const wordAsFloat = new Float32Array(word.buffer);

const MAGNITUDE = 0x7fffffff;
const INFINITY_BITS = 0x7f800000;
const FLUSH_BITS = (127 - 100) << 23;
const INT8_LIMIT = 127;
const LANES = 16;
const NORM_EPS = f32(1e-5);

const ROUNDING_BIAS = 12582912; // 1.5 * 2^23
const ROUNDING_BIAS_BITS = 0x4b400000;
const LOG2_E = f32(1.44269504088896341);
const LN2_HIGH = f32(0.693359375);
const LN2_LOW = f32(-2.1219444e-4);
const EXP_LOW = f32(-87.33654);
const EXP_HIGH = f32(88.37626);
const EXP_C = [
  1.98756915e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1,
].map(f32);

function floatBits(x) {
  wordAsFloat[0] = x;
  return word[0];
}

function bitsFloat(bits) {
  word[0] = bits;
  return wordAsFloat[0];
}

// The nearest integer, ties to even; |x| < 2^22.
function rint(x) {
  return f32(f32(x + ROUNDING_BIAS) - ROUNDING_BIAS);
}

function exp(x) {
  if (!(x >= EXP_LOW)) return 0;
  let bounded = x < EXP_HIGH ? x : EXP_HIGH;
  bounded = bounded > EXP_LOW ? bounded : EXP_LOW;
  const biased = f32(f32(bounded * LOG2_E) + ROUNDING_BIAS);
  const n = f32(biased - ROUNDING_BIAS);
  let r = f32(bounded - f32(n * LN2_HIGH));
  r = f32(r - f32(n * LN2_LOW));
  let y = EXP_C[0];
  for (let i = 1; i < EXP_C.length; i++) y = f32(f32(y * r) + EXP_C[i]);
  y = f32(f32(f32(y * f32(r * r)) + r) + 1);
  return f32(y * bitsFloat((floatBits(biased) - ROUNDING_BIAS_BITS + 127) << 23));
}

// Lane j adds x[j], x[j + 16], ... from +0, then lane j + w is added to lane j for w = 8, 4, 2, 1.
function laneSum(x) {
  const lanes = new Float32Array(LANES);
  for (let i = 0; i < x.length; i++) lanes[i % LANES] += x[i];
  for (let w = LANES / 2; w >= 1; w /= 2) for (let j = 0; j < w; j++) lanes[j] += lanes[j + w];
  return lanes[0];
}

// int8 integers q and their scale, so that x is about q * scale.
function quantise(x) {
  let top = 0;
  for (let i = 0; i < x.length; i++) top = Math.max(top, floatBits(x[i]) & MAGNITUDE);
  if (top >= INFINITY_BITS) throw new Error("The model cannot be computed: a value is not finite.");
  const q = new Int8Array(x.length);
  if (top < FLUSH_BITS) return { q, scale: 0 };
  const largest = bitsFloat(top);
  const inverse = f32(INT8_LIMIT / largest);
  for (let i = 0; i < x.length; i++) q[i] = rint(f32(x[i] * inverse));
  return { q, scale: f32(largest / INT8_LIMIT) };
}

// Exact sum of products of a[0..n) and b[start..start + n): below 2^31 by the bound on n.
function dot(a, b, start) {
  let total = 0;
  for (let i = 0; i < a.length; i++) total = (total + a[i] * b[start + i]) | 0;
  return total;
}

// matrix {q [N * K], scales [N]} times x {q [K], scale} -> [N]
function linear(matrix, x) {
  const rows = matrix.scales.length;
  const inner = x.q.length;
  const out = new Float32Array(rows);
  for (let n = 0; n < rows; n++) {
    out[n] = f32(f32(dot(x.q, matrix.q, n * inner)) * x.scale) * matrix.scales[n];
  }
  return out;
}

function rmsnorm(x, gain) {
  const squares = x.map((value) => value * value);
  const inverse = f32(1 / f32(Math.sqrt(f32(f32(laneSum(squares) / x.length) + NORM_EPS))));
  return x.map((value, i) => f32(value * inverse) * gain[i]);
}

// Turn the pair (i, i + D / 2) of every head by its position's angles.
function rope(x, heads, cos, sin) {
  const dim = x.length / heads;
  const half = dim / 2;
  const out = new Float32Array(x.length);
  for (let first = 0; first < x.length; first += dim) {
    for (let i = 0; i < half; i++) {
      const a = x[first + i];
      const b = x[first + half + i];
      out[first + i] = f32(a * cos[i]) - f32(b * sin[i]);
      out[first + half + i] = f32(b * cos[i]) + f32(a * sin[i]);
    }
  }
  return out;
}

function swiglu(gate, up) {
  return gate.map((g, i) => f32(g * f32(1 / f32(1 + exp(-g)))) * up[i]);
}

function add(a, b) {
  return a.map((value, i) => value + b[i]);
}

// An integer that orders as floats do, -0 below +0; its own inverse on bit patterns.
function totalOrder(bits) {
  return bits ^ ((bits >> 31) & MAGNITUDE);
}

// Softmax of scores, as probabilities.
function softmax(scores) {
  let top = -0x80000000;
  for (let j = 0; j < scores.length; j++) {
    const bits = floatBits(scores[j]);
    if ((bits & MAGNITUDE) >= INFINITY_BITS) {
      throw new Error("The model cannot be computed: an attention score is not finite.");
    }
    top = Math.max(top, totalOrder(bits));
  }
  const peak = bitsFloat(totalOrder(top));
  const powers = scores.map((s) => exp(f32(s - peak)));
  const inverse = f32(1 / laneSum(powers));
  return powers.map((e) => e * inverse);
}
