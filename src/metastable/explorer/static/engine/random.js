// Random numbers as NumPy draws them, bit for bit: `numpy.random.default_rng(seed).standard_normal` (SeedSequence, PCG64, ziggurat) for
// starts and Gaussian matrices, and the Philox stream of the noise, which can be entered at any step.
//
// M. O'Neill, *PCG* (2014), XSL-RR 128/64; J. Salmon et al., *Parallel random numbers: as easy as 1, 2, 3* (2011), Philox 4x64-10.

import { WIDTHS } from "./ziggurat.js";

const TWO_52 = 2 ** 52, TWO_32 = 2 ** 32;
const TAIL = 3.6541528853610087963519472518, INVERSE_TAIL = 0.27366123732975827203338247596; // where the last layer ends
const HEIGHTS = new Float64Array(256); // the density at the edges of the layers
const INSIDE = new Float64Array(256); // below this the point is under the density whatever the other coordinate
for (let i = 0; i < 256; i++) {
  const edge = i ? WIDTHS[i] * TWO_52 : 0;
  HEIGHTS[i] = Math.exp(-0.5 * edge * edge);
  INSIDE[i] = i === 1 ? 0 : Math.floor(((i ? WIDTHS[i - 1] : WIDTHS[255]) / WIDTHS[i]) * TWO_52);
}

// ------------------------------------------------------------------------------------------------------------- seeds

// The words that numpy.random.SeedSequence(seed).generate_state(count) gives.
export function seedWords(seed, count) {
  let multiplier = 0x43b0d7e5;
  const hash = (value) => {
    value ^= multiplier;
    multiplier = Math.imul(multiplier, 0x931e8875);
    value = Math.imul(value, multiplier);
    return (value ^ (value >>> 16)) >>> 0;
  };
  const mix = (x, y) => {
    const result = (Math.imul(0xca01f9dd, x) - Math.imul(0x4973f715, y)) | 0;
    return (result ^ (result >>> 16)) >>> 0;
  };
  const entropy = [seed >>> 0];
  if (seed >= TWO_32) entropy.push(Math.floor(seed / TWO_32) >>> 0);
  const pool = Array.from({ length: 4 }, (_, i) => hash(i < entropy.length ? entropy[i] : 0));
  for (let from = 0; from < 4; from++) for (let to = 0; to < 4; to++) if (from !== to) pool[to] = mix(pool[to], hash(pool[from]));
  let other = 0x8b51f9dd;
  return Uint32Array.from({ length: count }, (_, i) => {
    let value = pool[i % 4] ^ other;
    other = Math.imul(other, 0x58f38ded);
    value = Math.imul(value, other);
    return (value ^ (value >>> 16)) >>> 0;
  });
}

// ---------------------------------------------------------------------------------------------------------- streams

// A stream has `next()`, which puts the next 64 bits into `high` and `low`.
export class Pcg64 {
  constructor(seed) {
    const words = seedWords(seed, 8), word = (i) => (BigInt(words[2 * i + 1]) << 32n) | BigInt(words[2 * i]);
    this.increment = BigInt.asUintN(128, (((word(2) << 64n) | word(3)) << 1n) | 1n);
    this.state = 0n;
    this.spare = null;
    this.step();
    this.state += (word(0) << 64n) | word(1);
    this.step();
  }
  step() { this.state = BigInt.asUintN(128, this.state * 0x2360ed051fc65da44385df649fccf645n + this.increment); }
  next() {
    this.step();
    const mixed = BigInt.asUintN(64, (this.state >> 64n) ^ this.state), turn = this.state >> 122n;
    const value = BigInt.asUintN(64, (mixed >> turn) | (mixed << (64n - turn)));
    this.high = Number(value >> 32n);
    this.low = Number(value & 0xffffffffn);
  }
  // 32 bits; the upper half of a draw is kept for the next time.
  half() {
    if (this.spare !== null) { const kept = this.spare; this.spare = null; return kept; }
    this.next();
    this.spare = this.high;
    return this.low;
  }
}

// Philox 4x64 with ten rounds in words of 32 bits: there are too many draws for large integers.
class Philox {
  constructor(seed) {
    this.key = seedWords(seed, 4);
    this.counter = new Uint32Array(8);
    this.block = new Uint32Array(8);
    this.at = 8;
  }
  // The draws of step number `number`: the last of the four words of the counter.
  enter(number) {
    this.counter.fill(0);
    this.counter[6] = number >>> 0;
    this.counter[7] = Math.floor(number / TWO_32);
    this.at = 8;
  }
  next() {
    if (this.at === 8) this.refill();
    this.low = this.block[this.at];
    this.high = this.block[this.at + 1];
    this.at += 2;
  }
  refill() {
    const { counter, block } = this;
    for (let i = 0; i < 8 && (counter[i] = (counter[i] + 1) >>> 0) === 0; i++); // counts, then draws
    block.set(counter);
    let k0 = this.key[0], k1 = this.key[1], k2 = this.key[2], k3 = this.key[3];
    for (let round = 0; round < 10; round++) {
      if (round) {
        const low0 = k0 + 0x7f4a7c15, low1 = k2 + 0x84caa73b;
        k1 = (k1 + 0x9e3779b9 + (low0 >= TWO_32 ? 1 : 0)) >>> 0; k0 = low0 >>> 0;
        k3 = (k3 + 0xbb67ae85 + (low1 >= TWO_32 ? 1 : 0)) >>> 0; k2 = low1 >>> 0;
      }
      multiply(block[0], block[1], 0xe14c6c93, 0xd2e7470e, first);
      multiply(block[4], block[5], 0x95121157, 0xca5a8263, second);
      const c2 = block[2], c3 = block[3], c6 = block[6], c7 = block[7];
      block[0] = second[2] ^ c2 ^ k0; block[1] = second[3] ^ c3 ^ k1;
      block[2] = second[0]; block[3] = second[1];
      block[4] = first[2] ^ c6 ^ k2; block[5] = first[3] ^ c7 ^ k3;
      block[6] = first[0]; block[7] = first[1];
    }
    this.at = 0;
  }
}
const first = new Uint32Array(4), second = new Uint32Array(4);

// The upper half of a product of two words, by products of 16 bits.
function upper(a, b) {
  const a0 = a & 0xffff, a1 = a >>> 16, b0 = b & 0xffff, b1 = b >>> 16;
  const middle = a1 * b0 + ((a0 * b0) >>> 16), lower = (middle & 0xffff) + a0 * b1; // below 2^32 both
  return a1 * b1 + (middle >>> 16) + Math.floor(lower / 65536);
}

// (a1 2^32 + a0) (b1 2^32 + b0) as four words, the lowest first.
function multiply(a0, a1, b0, b1, out) {
  const p01 = Math.imul(a0, b1) >>> 0, p10 = Math.imul(a1, b0) >>> 0, p11 = Math.imul(a1, b1) >>> 0;
  const second = upper(a0, b0) + p01 + p10;
  const third = upper(a0, b1) + upper(a1, b0) + p11 + Math.floor(second / TWO_32);
  out[0] = Math.imul(a0, b0);
  out[1] = second;
  out[2] = third;
  out[3] = upper(a1, b1) + Math.floor(third / TWO_32);
}

// ---------------------------------------------------------------------------------------------------------- normals

export const uniform = (stream) => { stream.next(); return (stream.high * 2097152 + (stream.low >>> 11)) / 9007199254740992; };

// One standard normal number: 8 bits choose a layer, one the sign, 52 the place in it.
export function normal(stream) {
  for (;;) {
    stream.next();
    const { high, low } = stream, layer = low & 0xff, negative = (low >>> 8) & 1;
    const place = ((high & 0x1fffffff) >>> 0) * 8388608 + (low >>> 9);
    const x = negative ? -place * WIDTHS[layer] : place * WIDTHS[layer];
    if (place < INSIDE[layer]) return x;
    if (layer === 0) {
      for (;;) {
        const beyond = -INVERSE_TAIL * Math.log1p(-uniform(stream)), limit = -Math.log1p(-uniform(stream));
        if (2 * limit > beyond * beyond) return (low >>> 17) & 1 ? -(TAIL + beyond) : TAIL + beyond;
      }
    }
    if ((HEIGHTS[layer - 1] - HEIGHTS[layer]) * uniform(stream) + HEIGHTS[layer] < Math.exp(-0.5 * x * x)) return x;
  }
}

// A gamma number of that shape > 1 (Marsaglia and Tsang, ACM TOMS 26, 2000).
export function gamma(stream, shape) {
  const b = shape - 1 / 3, c = 1 / Math.sqrt(9 * b);
  for (;;) {
    let x, v;
    do { x = normal(stream); v = 1 + c * x; } while (v <= 0);
    v = v * v * v;
    const u = uniform(stream);
    if (u < 1 - 0.0331 * (x * x) * (x * x) || Math.log(u) < 0.5 * x * x + b * (1 - v + Math.log(v))) return b * v;
  }
}

// numpy.random.default_rng(seed).standard_normal(count)
export function normals(seed, count) {
  const stream = new Pcg64(seed), values = new Float64Array(count);
  for (let i = 0; i < count; i++) values[i] = normal(stream);
  return values;
}

// The noise of a run: `noise.fill(number, values)` draws what step `number` is given.
export class Noise {
  constructor(seed) { this.stream = new Philox(seed); }
  fill(number, values) {
    this.stream.enter(number);
    for (let i = 0; i < values.length; i++) values[i] = normal(this.stream);
  }
}

// Sum of squares of `count` numbers from `at` on, added in the order in which NumPy adds along a row (up to 128).
export function squareSum(x, at, count) {
  if (count < 8) {
    let sum = 0;
    for (let i = at; i < at + count; i++) sum += x[i] * x[i];
    return sum;
  }
  const part = new Float64Array(8), whole = at + count - (count % 8);
  for (let i = at; i < whole; i++) part[(i - at) % 8] += x[i] * x[i];
  let sum = part[0] + part[1] + (part[2] + part[3]) + (part[4] + part[5] + (part[6] + part[7]));
  for (let i = whole; i < at + count; i++) sum += x[i] * x[i];
  return sum;
}

// Uniform tokens of a seed, metastable.sphere.uniform(tokens, dim, seed), as one array of tokens * dim numbers.
export function uniformTokens(tokens, dim, seed) {
  const x = normals(seed, tokens * dim);
  for (let k = 0; k < tokens; k++) {
    const length = Math.sqrt(squareSum(x, k * dim, dim));
    for (let a = 0; a < dim; a++) x[k * dim + a] /= length;
  }
  return x;
}
