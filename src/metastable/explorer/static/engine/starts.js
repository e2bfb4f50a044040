// Where tokens begin: the distributions of `metastable.starts`, drawn with the same numbers in the same order.

import { gamma, normal, Pcg64, squareSum, uniform, uniformTokens } from "./random.js";

// Dot product of rows, added in the order in which NumPy adds along a row.
function dot(x, i, y, j, dim) {
  const products = new Float64Array(dim);
  for (let a = 0; a < dim; a++) products[a] = x[i + a] * y[j + a];
  if (dim < 8) return products.reduce((sum, value) => sum + value, 0);
  const part = new Float64Array(8), whole = dim - (dim % 8);
  for (let a = 0; a < whole; a++) part[a % 8] += products[a];
  let sum = part[0] + part[1] + (part[2] + part[3]) + (part[4] + part[5] + (part[6] + part[7]));
  for (let a = whole; a < dim; a++) sum += products[a];
  return sum;
}

// `sphere.normalize` of the row that begins at `at`: a power of two first, which is exact, then the length.
export function normalizeRow(x, at, dim) {
  let largest = 0;
  for (let a = at; a < at + dim; a++) largest = Math.max(largest, Math.abs(x[a]));
  const scale = 2 ** -(Math.floor(Math.log2(largest)) + 1);
  for (let a = at; a < at + dim; a++) x[a] *= scale;
  const length = Math.sqrt(squareSum(x, at, dim));
  for (let a = at; a < at + dim; a++) x[a] /= length;
}
const normalizeRows = (x, dim) => { for (let at = 0; at < x.length; at += dim) normalizeRow(x, at, dim); return x; };
const draws = (stream, count) => Float64Array.from({ length: count }, () => normal(stream));

// A beta number with both parameters `half`: Johnk's way up to 1, by two gamma numbers beyond.
function beta(stream, half) {
  if (half > 1) { const a = gamma(stream, half), b = gamma(stream, half); return a / (a + b); }
  for (;;) {
    const u = uniform(stream), v = uniform(stream), x = u ** (1 / half), y = v ** (1 / half);
    if (x + y <= 1 && u + v > 0) return x + y > 0 ? x / (x + y) : 0.5;
  }
}

// 1 - w for heights w with density proportional to exp(kappa w) (1 - w^2)^((dim - 3)/2), by rejection (Wood 1994).
function depths(stream, count, dim, kappa) {
  const half = 0.5 * (dim - 1), b = (dim - 1) / (Math.hypot(2 * kappa, dim - 1) + 2 * kappa), top = (1 - b) / (1 + b), rest = (2 * b) / (1 + b), bound = Math.log(4 * b) - 2 * Math.log1p(b);
  const found = new Float64Array(count);
  for (let missing = Array.from({ length: count }, (_, i) => i); missing.length; ) {
    const tried = missing.map(() => { const z = beta(stream, half); return (2 * b * z) / (1 - (1 - b) * z); });
    missing = missing.filter((index, i) => {
      const odds = kappa * (rest - tried[i]) + (dim - 1) * (Math.log(rest + top * tried[i]) - bound);
      if (!(Math.log1p(-uniform(stream)) <= odds)) return true;
      found[index] = tried[i];
      return false;
    });
  }
  return found;
}

// One von Mises-Fisher point around each of the unit rows `centers`.
function around(stream, centers, dim, kappa) {
  const count = centers.length / dim, depth = depths(stream, count, dim, kappa), tangent = draws(stream, count * dim);
  for (let k = 0; k < count; k++) {
    const at = k * dim;
    for (let twice = 0; twice < 2; twice++) {
      const along = dot(tangent, at, centers, at, dim);
      for (let a = at; a < at + dim; a++) tangent[a] -= along * centers[a];
      normalizeRow(tangent, at, dim);
    }
    const across = Math.sqrt(depth[k] * (2 - depth[k]));
    for (let a = at; a < at + dim; a++) tangent[a] = (1 - depth[k]) * centers[a] + across * tangent[a];
  }
  return normalizeRows(tangent, dim);
}

const KINDS = {
  uniform: ({ tokens, dim, seed }) => uniformTokens(tokens, dim, seed),
  von_mises_fisher({ tokens, dim, seed, concentration }) {
    const centers = new Float64Array(tokens * dim);
    for (let k = 0; k < tokens; k++) centers[k * dim] = 1;
    return around(new Pcg64(seed), centers, dim, concentration);
  },
  mixture({ tokens, dim, seed, centers: count, concentration }) {
    const stream = new Pcg64(seed), places = draws(stream, count * dim), centers = new Float64Array(tokens * dim);
    for (let k = 0; k < count; k++) { const length = Math.sqrt(squareSum(places, k * dim, dim)); for (let a = k * dim; a < (k + 1) * dim; a++) places[a] /= length; }
    const edges = [];
    for (let k = 0, sum = 0; k < count; k++) edges.push((sum += 1 / count));
    for (let k = 0; k < tokens; k++) {
      const u = uniform(stream), chosen = edges.findIndex((edge) => u < edge / edges[count - 1]);
      centers.set(places.subarray(chosen * dim, (chosen + 1) * dim), k * dim);
    }
    return around(stream, centers, dim, concentration);
  },
  correlated({ tokens, dim, seed, correlation: rho }) {
    const stream = new Pcg64(seed), common = draws(stream, dim), x = draws(stream, tokens * dim), shared = Math.sqrt(rho), own = Math.sqrt(1 - rho);
    for (let i = 0; i < x.length; i++) x[i] = shared * common[i % dim] + own * x[i];
    return normalizeRows(x, dim);
  },
  chain({ tokens, dim, seed, correlation: rho }) {
    const x = draws(new Pcg64(seed), tokens * dim), own = Math.sqrt(1 - rho * rho);
    for (let i = dim; i < x.length; i++) x[i] = x[i] * own;
    for (let i = dim; i < x.length; i++) x[i] += rho * x[i - dim];
    return normalizeRows(x, dim);
  },
  equally_spaced({ tokens, dim, seed }) {
    const points = new Float64Array(tokens * dim), stream = new Pcg64(seed);
    for (let k = 0; k < tokens; k++) {
      if (dim === 2) { const angle = (2 * Math.PI * k) / tokens; points.set([Math.cos(angle), Math.sin(angle)], 2 * k); continue; }
      const height = 1 - (2 * k + 1) / tokens, turn = k * Math.PI * (3 - Math.sqrt(5)), across = Math.sqrt((1 - height) * (1 + height));
      points.set([across * Math.cos(turn), across * Math.sin(turn), height], 3 * k);
    }
    const frame = orthonormal(draws(stream, dim * dim), dim), order = shuffled(stream, tokens), x = new Float64Array(tokens * dim);
    for (let k = 0; k < tokens; k++) for (let a = 0; a < dim; a++) for (let b = 0; b < dim; b++) x[k * dim + a] += points[order[k] * dim + b] * frame[a * dim + b];
    return x;
  },
};

// The orthogonal factor of a matrix whose triangular one has a positive diagonal: columns made orthonormal one after the other, twice.
function orthonormal(matrix, dim) {
  for (let b = 0; b < dim; b++) for (let twice = 0; twice < 2; twice++) {
    for (let c = 0; c < b; c++) {
      let along = 0;
      for (let a = 0; a < dim; a++) along += matrix[a * dim + b] * matrix[a * dim + c];
      for (let a = 0; a < dim; a++) matrix[a * dim + b] -= along * matrix[a * dim + c];
    }
    let square = 0;
    for (let a = 0; a < dim; a++) square += matrix[a * dim + b] ** 2;
    for (let a = 0; a < dim; a++) matrix[a * dim + b] /= Math.sqrt(square);
  }
  return matrix;
}

// numpy's permutation of 0..count-1: each place from behind is exchanged with one before it, drawn with as many bits as are needed.
function shuffled(stream, count) {
  const order = Array.from({ length: count }, (_, i) => i);
  for (let i = count - 1; i > 0; i--) {
    let mask = i, j;
    for (const shift of [1, 2, 4, 8, 16]) mask |= mask >>> shift;
    do j = stream.half() & mask; while (j > i);
    [order[i], order[j]] = [order[j], order[i]];
  }
  return order;
}

export const FIELDS = { uniform: [], equally_spaced: [], von_mises_fisher: ["concentration"], mixture: ["centers", "concentration"], correlated: ["correlation"], chain: ["correlation"] };
export const draw = (kind, options) => KINDS[kind](options);
