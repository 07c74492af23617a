// The next token, drawn from logits by integers: train/sampler.py, kernels/random.py.

const U64 = (1n << 64n) - 1n;
const GOLDEN = 0x9e3779b97f4a7c15n;

function primes(count) {
  const found = [];
  for (let n = 2; found.length < count; n++) if (found.every((p) => n % p)) found.push(n);
  return found;
}

// floor(n^(1/degree) * 2^32) mod 2^32, exactly.
function rootFraction(n, degree) {
  const target = BigInt(n) << BigInt(32 * degree);
  let low = 0n;
  let high = BigInt(n) << 32n;
  while (low < high) {
    const middle = (low + high + 1n) >> 1n;
    if (middle ** BigInt(degree) <= target) low = middle;
    else high = middle - 1n;
  }
  return Number(low & 0xffffffffn);
}

// The constants of SHA-256 are fractions of cube and square roots of primes (FIPS 180-4).
const SHA_K = primes(64).map((p) => rootFraction(p, 3));
const SHA_H = primes(8).map((p) => rootFraction(p, 2));

// SHA-256 of at most 55 ASCII characters, which fit one block; as eight 32-bit words.
function sha256(text) {
  const block = new DataView(new ArrayBuffer(64));
  for (let i = 0; i < text.length; i++) block.setUint8(i, text.charCodeAt(i));
  block.setUint8(text.length, 0x80);
  block.setUint32(60, 8 * text.length);
  const turn = (x, n) => (x >>> n) | (x << (32 - n));
  const w = Array.from({ length: 16 }, (_, i) => block.getUint32(4 * i));
  for (let i = 16; i < 64; i++) {
    const a = turn(w[i - 15], 7) ^ turn(w[i - 15], 18) ^ (w[i - 15] >>> 3);
    const b = turn(w[i - 2], 17) ^ turn(w[i - 2], 19) ^ (w[i - 2] >>> 10);
    w[i] = (w[i - 16] + a + w[i - 7] + b) | 0;
  }
  let [a, b, c, d, e, f, g, h] = SHA_H;
  for (let i = 0; i < 64; i++) {
    const sum1 = turn(e, 6) ^ turn(e, 11) ^ turn(e, 25);
    const t1 = (h + sum1 + ((e & f) ^ (~e & g)) + SHA_K[i] + w[i]) | 0;
    const sum0 = turn(a, 2) ^ turn(a, 13) ^ turn(a, 22);
    const t2 = (sum0 + ((a & b) ^ (a & c) ^ (b & c))) | 0;
    [h, g, f, e, d, c, b, a] = [g, f, e, (d + t1) | 0, c, b, a, (t1 + t2) | 0];
  }
  return [a, b, c, d, e, f, g, h].map((x, i) => (x + SHA_H[i]) >>> 0);
}

function mixed(z) {
  z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & U64;
  z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & U64;
  return z ^ (z >> 31n);
}

class Sampler {
  // options: temperature, topK, topP are numbers, seed a BigInt
  constructor(options) {
    this.temperature = f32(options.temperature);
    this.topK = options.topK;
    this.share = BigInt(Math.trunc(options.topP * 2 ** 32));
    const bytes = new DataView(new ArrayBuffer(8));
    sha256(`${options.seed}:generate`).slice(0, 2).forEach((x, i) => bytes.setUint32(4 * i, x));
    this.state = bytes.getBigUint64(0, true);
  }

  random(position) {
    return mixed(mixed((this.state + (BigInt(position) + 1n) * GOLDEN) & U64));
  }

  // A token for logits; equal ones rank by token number.
  pick(logits, position) {
    let order = Array.from(logits.keys()).sort((a, b) => logits[b] - logits[a] || a - b);
    if (!logits.every(Number.isFinite)) throw new Error("The model's answer is not finite.");
    if (this.topK) order = order.slice(0, this.topK);
    if (this.temperature === 0) return order[0];
    const top = logits[order[0]];
    const weights = order.map((token) => {
      return Math.trunc(exp(f32(f32(logits[token] - top) / this.temperature)) * 2 ** 30);
    });
    const total = BigInt(weights.reduce((sum, weight) => sum + weight, 0));
    const wanted = Number((total * this.share) >> 32n);
    let kept = 0;
    let sum = 0;
    do sum += weights[kept++];
    while (sum < wanted);
    let point = Number((this.random(position) * BigInt(sum)) >> 64n);
    for (let i = 0; ; i++) {
      point -= weights[i];
      if (point < 0) return order[i];
    }
  }
}
