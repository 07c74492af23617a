// One token at a time through the decoder, with a cache of keys and values: train/decoder.py.

class Decoder {
  // weights: name -> Float32Array, or {q: Int8Array, scales: Float32Array} for a matrix
  constructor(shape, weights) {
    this.shape = shape;
    this.weights = weights;
    this.factor = f32(1 / f32(Math.sqrt(shape.width / shape.heads))); // of scores, 1 / sqrt(D)
    this.tokens = [];
    const positions = shape.layers * shape.seq_len;
    this.keys = new Int8Array(positions * shape.width);
    this.values = new Int8Array(positions * shape.width);
    this.keyScales = new Float32Array(positions * shape.heads);
    this.valueScales = new Float32Array(positions * shape.heads);
  }

  // Append a token; logits [V] of the one after it.
  feed(token) {
    const { shape, weights } = this;
    if (this.tokens.length === shape.seq_len) {
      const recent = this.tokens.slice(-Math.floor(shape.seq_len / 2));
      this.tokens = [];
      for (const old of recent) this.feed(old);
    }
    this.tokens.push(token);
    let x = weights.embed.slice(token * shape.width, (token + 1) * shape.width);
    for (let i = 0; i < shape.layers; i++) {
      x = this.attention(i, x);
      x = this.feedForward(i, x);
    }
    return linear(weights.logits, quantise(rmsnorm(x, weights.norm)));
  }

  attention(i, x) {
    const { shape, weights } = this;
    const at = this.tokens.length - 1;
    const half = shape.width / shape.heads / 2;
    const cos = weights.cos.subarray(at * half, (at + 1) * half);
    const sin = weights.sin.subarray(at * half, (at + 1) * half);
    const normed = quantise(rmsnorm(x, weights[`layers.${i}.attn_norm`]));
    const [q, k, v] = ["q", "k", "v"].map((name) => linear(weights[`layers.${i}.${name}`], normed));
    this.keep(this.keys, this.keyScales, i, rope(k, shape.heads, cos, sin));
    this.keep(this.values, this.valueScales, i, v);
    const mixed = this.mix(i, rope(q, shape.heads, cos, sin));
    return add(x, linear(weights[`layers.${i}.o`], quantise(mixed)));
  }

  // Put the newest position's keys or values into the cache, one scale for each head.
  keep(cache, scales, i, x) {
    const { width, heads, seq_len } = this.shape;
    const dim = width / heads;
    const position = i * seq_len + this.tokens.length - 1;
    for (let head = 0; head < heads; head++) {
      const { q, scale } = quantise(x.subarray(head * dim, (head + 1) * dim));
      cache.set(q, position * width + head * dim);
      scales[position * heads + head] = scale;
    }
  }

  // The newest position's query against all cached ones.
  mix(i, query) {
    const { width, heads, seq_len } = this.shape;
    const dim = width / heads;
    const count = this.tokens.length;
    const out = new Float32Array(width);
    for (let head = 0; head < heads; head++) {
      const { q, scale } = quantise(query.subarray(head * dim, (head + 1) * dim));
      const rowScale = f32(scale * this.factor);
      const scores = new Float32Array(count);
      for (let j = 0; j < count; j++) {
        const position = i * seq_len + j;
        const total = dot(q, this.keys, position * width + head * dim);
        scores[j] = f32(f32(total) * rowScale) * this.keyScales[position * heads + head];
      }
      // The values' scales go into the probabilities before these are quantised.
      const shares = softmax(scores);
      const folded = shares.map((a, j) => a * this.valueScales[(i * seq_len + j) * heads + head]);
      const row = quantise(folded);
      for (let d = 0; d < dim; d++) {
        let total = 0;
        for (let j = 0; j < count; j++) {
          total += row.q[j] * this.values[(i * seq_len + j) * width + head * dim + d];
        }
        out[head * dim + d] = f32(total) * row.scale;
      }
    }
    return out;
  }

  feedForward(i, x) {
    const { weights } = this;
    const normed = quantise(rmsnorm(x, weights[`layers.${i}.ffn_norm`]));
    const gate = linear(weights[`layers.${i}.gate`], normed);
    const up = linear(weights[`layers.${i}.up`], normed);
    return add(x, linear(weights[`layers.${i}.down`], quantise(swiglu(gate, up))));
  }
}

// Name -> array for every tensor of the page. bytes: an ArrayBuffer, little-endian.
function readWeights(tensors, bytes) {
  const weights = {};
  for (const { name, start, count, rows } of tensors) {
    if (rows === undefined) {
      weights[name] = new Float32Array(bytes, start, count);
    } else {
      const scales = new Float32Array(bytes, start, rows);
      weights[name] = { q: new Int8Array(bytes, start + 4 * rows, count), scales };
    }
  }
  return weights;
}

// The embedding as the output matrix: its rows in int8.
function quantiseRows(table, width) {
  const rows = table.length / width;
  const q = new Int8Array(table.length);
  const scales = new Float32Array(rows);
  for (let n = 0; n < rows; n++) {
    const row = quantise(table.subarray(n * width, (n + 1) * width));
    q.set(row.q, n * width);
    scales[n] = row.scale;
  }
  return { q, scales };
}
