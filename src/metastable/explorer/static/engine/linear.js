// Small dense linear algebra: complex Schur form, singular values, and what `metastable.analysis.spectrum` makes of them. Complex matrices
// are { n, m, re, im } with rows behind one another.

const EPSILON = 2 ** -52;

export function complex(n, m, real = null) { return { n, m, re: real ? Float64Array.from(real) : new Float64Array(n * m), im: new Float64Array(n * m) }; }
function identity(n) { const made = complex(n, n); for (let i = 0; i < n; i++) made.re[i * n + i] = 1; return made; }
const size = (a, i) => Math.hypot(a.re[i], a.im[i]);

// Rows p, q of a, columns `from` on: (c p + s q, -conj(s) p + c q).
function turnRows(a, p, q, c, sr, si, from = 0) {
  for (let j = from; j < a.m; j++) {
    const x = p * a.m + j, y = q * a.m + j, xr = a.re[x], xi = a.im[x], yr = a.re[y], yi = a.im[y];
    a.re[x] = c * xr + sr * yr - si * yi; a.im[x] = c * xi + sr * yi + si * yr;
    a.re[y] = c * yr - sr * xr - si * xi; a.im[y] = c * yi - sr * xi + si * xr;
  }
}
// Columns p, q, rows up to `to`: times the conjugate transpose of the same rotation.
function turnColumns(a, p, q, c, sr, si, to = a.n) {
  for (let i = 0; i < to; i++) {
    const x = i * a.m + p, y = i * a.m + q, xr = a.re[x], xi = a.im[x], yr = a.re[y], yi = a.im[y];
    a.re[x] = c * xr + sr * yr + si * yi; a.im[x] = c * xi + sr * yi - si * yr;
    a.re[y] = c * yr - sr * xr + si * xi; a.im[y] = c * yi - sr * xi - si * xr;
  }
}
// The rotation that takes (x, y) to (r, 0).
function rotation(xr, xi, yr, yi) {
  const x = Math.hypot(xr, xi), y = Math.hypot(yr, yi), r = Math.hypot(x, y);
  if (y === 0) return [1, 0, 0];
  if (x === 0) return [0, yr / y, -yi / y];
  return [x / r, (xr * yr + xi * yi) / (x * r), (xi * yr - xr * yi) / (x * r)];
}

// V = unitary upper unitary^H for a real matrix (n x n, flat): shifted QR by rotations, with an odd shift now and then against standstill.
export function schur(matrix, n) {
  const t = complex(n, n, matrix), u = identity(n);
  for (let k = 0; k < n - 2; k++) for (let i = n - 1; i > k + 1; i--) {
    const x = (i - 1) * n + k, y = i * n + k, [c, sr, si] = rotation(t.re[x], t.im[x], t.re[y], t.im[y]);
    if (!sr && !si) continue;
    turnRows(t, i - 1, i, c, sr, si); turnColumns(t, i - 1, i, c, sr, si); turnColumns(u, i - 1, i, c, sr, si);
    t.re[y] = t.im[y] = 0;
  }
  let norm = 0;
  for (let i = 0; i < n * n; i++) norm = Math.max(norm, size(t, i));
  for (let high = n - 1, tries = 0; high > 0; ) {
    let low = high;
    while (low > 0) {
      const near = size(t, (low - 1) * n + low - 1) + size(t, low * n + low) || norm;
      if (size(t, low * n + low - 1) <= EPSILON * near) { t.re[low * n + low - 1] = t.im[low * n + low - 1] = 0; break; }
      low--;
    }
    if (low === high) { high--; tries = 0; continue; }
    if (++tries > 60) throw new Error("the eigenvalues of V could not be found");
    sweep(t, u, low, high, tries % 10 === 0 ? [t.re[high * n + high] + 0.75 * size(t, high * n + high - 1), t.im[high * n + high] + 0.4375 * norm] : shiftOf(t, high));
  }
  return { upper: t, unitary: u };
}
// The eigenvalue of the last 2 x 2 block that is nearer to its corner.
function shiftOf(t, high) {
  const n = t.n, at = (i, j) => [t.re[i * n + j], t.im[i * n + j]];
  const [ar, ai] = at(high - 1, high - 1), [br, bi] = at(high - 1, high), [cr, ci] = at(high, high - 1), [dr, di] = at(high, high);
  const hr = (ar - dr) / 2, hi = (ai - di) / 2, pr = br * cr - bi * ci, pi = br * ci + bi * cr;
  let [rr, ri] = root(hr * hr - hi * hi + pr, 2 * hr * hi + pi);
  if (hr * rr + hi * ri > 0) { rr = -rr; ri = -ri; }
  return [dr + hr + rr, di + hi + ri];
}
function root(re, im) {
  const r = Math.hypot(re, im), x = Math.sqrt((r + Math.abs(re)) / 2);
  if (x === 0) return [0, 0];
  return re >= 0 ? [x, im / (2 * x)] : [Math.abs(im) / (2 * x), im < 0 ? -x : x];
}
function sweep(t, u, low, high, [sr, si]) {
  const n = t.n, turns = [];
  for (let i = low; i <= high; i++) { t.re[i * n + i] -= sr; t.im[i * n + i] -= si; }
  for (let k = low; k < high; k++) {
    const x = k * n + k, y = (k + 1) * n + k, turn = rotation(t.re[x], t.im[x], t.re[y], t.im[y]);
    turnRows(t, k, k + 1, ...turn, k);
    t.re[y] = t.im[y] = 0;
    turns.push(turn);
  }
  turns.forEach((turn, i) => { const k = low + i; turnColumns(t, k, k + 1, ...turn, Math.min(k + 2, high + 1)); turnColumns(u, k, k + 1, ...turn); });
  for (let i = low; i <= high; i++) { t.re[i * n + i] += sr; t.im[i * n + i] += si; }
}

// The Schur form with the chosen eigenvalues in front; returns how many there are.
export function reorder({ upper: t, unitary: u }, chosen) {
  const n = t.n;
  let count = 0;
  for (let i = 0; i < n; i++) {
    if (!chosen(t.re[i * n + i], t.im[i * n + i])) continue;
    for (let k = i - 1; k >= count; k--) {
      const a = k * n + k, d = a + n + 1, turn = rotation(t.re[a + 1], t.im[a + 1], t.re[d] - t.re[a], t.im[d] - t.im[a]);
      turnRows(t, k, k + 1, ...turn); turnColumns(t, k, k + 1, ...turn); turnColumns(u, k, k + 1, ...turn);
      t.re[a + n] = t.im[a + n] = 0;
    }
    count++;
  }
  return count;
}

// Singular values (falling) with right vectors (columns of `right`) and the images (columns of `left`, not normalised): one-sided Jacobi.
export function singular(matrix) {
  const { n, m } = matrix, left = { n, m, re: matrix.re.slice(), im: matrix.im.slice() }, right = identity(m);
  const dot = (p, q) => { let re = 0, im = 0; for (let i = 0; i < n; i++) { const x = i * m + p, y = i * m + q; re += left.re[x] * left.re[y] + left.im[x] * left.im[y]; im += left.re[x] * left.im[y] - left.im[x] * left.re[y]; } return [re, im]; };
  for (let round = 0; round < 60; round++) {
    let rotated = false;
    for (let p = 0; p < m - 1; p++) for (let q = p + 1; q < m; q++) {
      const [a] = dot(p, p), [b] = dot(q, q), [gr, gi] = dot(p, q), g = Math.hypot(gr, gi);
      if (g <= EPSILON * Math.sqrt(a * b) || g < 1e-300) continue;
      rotated = true;
      const z = (b - a) / (2 * g), t = (z >= 0 ? 1 : -1) / (Math.abs(z) + Math.sqrt(1 + z * z)), c = 1 / Math.sqrt(1 + t * t), s = c * t;
      for (const side of [left, right]) for (let i = 0; i < side.n; i++) {
        const x = i * m + p, y = i * m + q, xr = side.re[x], xi = side.im[x];
        const yr = (side.re[y] * gr + side.im[y] * gi) / g, yi = (side.im[y] * gr - side.re[y] * gi) / g; // turned so that the product is real
        side.re[x] = c * xr - s * yr; side.im[x] = c * xi - s * yi;
        side.re[y] = s * xr + c * yr; side.im[y] = s * xi + c * yi;
      }
    }
    if (!rotated) break;
  }
  const sizes = Array.from({ length: m }, (_, p) => Math.sqrt(dot(p, p)[0])), order = sizes.map((_, i) => i).sort((i, j) => sizes[j] - sizes[i]);
  const pick = (side) => { const made = complex(side.n, m); order.forEach((from, to) => { for (let i = 0; i < side.n; i++) { made.re[i * m + to] = side.re[i * m + from]; made.im[i * m + to] = side.im[i * m + from]; } }); return made; };
  return { sizes: order.map((i) => sizes[i]), left: pick(left), right: pick(right) };
}

export const spectralNorm = (matrix, n) => singular(complex(n, n, matrix)).sizes[0];

function times(a, b) {
  const out = complex(a.n, b.m);
  for (let i = 0; i < a.n; i++) for (let k = 0; k < a.m; k++) for (let j = 0; j < b.m; j++) {
    const x = i * a.m + k, y = k * b.m + j, o = i * b.m + j;
    out.re[o] += a.re[x] * b.re[y] - a.im[x] * b.im[y]; out.im[o] += a.re[x] * b.im[y] + a.im[x] * b.re[y];
  }
  return out;
}
function adjoint(a) { const out = complex(a.m, a.n); for (let i = 0; i < a.n; i++) for (let j = 0; j < a.m; j++) { out.re[j * a.n + i] = a.re[i * a.m + j]; out.im[j * a.n + i] = -a.im[i * a.m + j]; } return out; }
function columns(a, from, to) { const out = complex(a.n, to - from); for (let i = 0; i < a.n; i++) for (let j = from; j < to; j++) { out.re[i * out.m + j - from] = a.re[i * a.m + j]; out.im[i * out.m + j - from] = a.im[i * a.m + j]; } return out; }
function corner(a, count, sr, si) { const out = complex(count, count); for (let i = 0; i < count; i++) for (let j = 0; j < count; j++) { out.re[i * count + j] = a.re[i * a.m + j] - (i === j ? sr : 0); out.im[i * count + j] = a.im[i * a.m + j] - (i === j ? si : 0); } return out; }

// Orthonormal real vectors that span the complex columns (with their conjugates, for a pair).
function realSpan(a, real) {
  const both = complex(a.n, 2 * a.m);
  for (let i = 0; i < a.n; i++) for (let j = 0; j < a.m; j++) { both.re[i * 2 * a.m + j] = a.re[i * a.m + j]; both.re[i * 2 * a.m + a.m + j] = a.im[i * a.m + j]; }
  const { sizes, left } = singular(both), count = real ? a.m : sizes.filter((value) => value > 1e-8 * sizes[0]).length;
  return Array.from({ length: count }, (_, j) => Float64Array.from({ length: a.n }, (_, i) => left.re[i * left.m + j] / sizes[j]));
}

// Numbers of Jordan blocks of length >= 1, 2, ...; null if the matrix is not nilpotent.
function staircase(nilpotent, small) {
  const found = [];
  for (let rest = nilpotent; rest.n; ) {
    const { sizes, right } = singular(rest), nullity = sizes.filter((value) => value <= small).length;
    if (!nullity || (found.length && nullity > found.at(-1))) return null;
    found.push(nullity);
    const keep = columns(right, 0, rest.n - nullity);
    rest = times(adjoint(keep), times(rest, keep));
  }
  return found;
}

export function eigenvalues(matrix, n) {
  const { upper } = schur(matrix, n), tiny = 64 * n * EPSILON * Math.max(...matrix.map(Math.abs));
  return Array.from({ length: n }, (_, i) => { const im = upper.im[i * n + i]; return [upper.re[i * n + i], Math.abs(im) <= tiny ? 0 : im]; });
}

// The eigenvalue of largest real part with multiplicities, Jordan blocks and the space L that tokens approach: the decisions of
// `metastable.analysis.leading_eigenvalue`. `origin`: the norm of what V was computed from.
export function leadingEigenvalue(matrix, n, origin, tolerance = 1e-9) {
  const scale = spectralNorm(matrix, n), rounding = 4 * n * EPSILON;
  const axes = () => Array.from({ length: n }, (_, i) => Float64Array.from({ length: n }, (_, j) => (i === j ? 1 : 0)));
  if (scale <= rounding * Math.max(scale, origin)) return { re: 0, im: 0, multiplicity: n, geometric: n, longest: 1, subspace: axes(), alone: true, sign: 0 };
  const small = Math.max(Math.max(tolerance, rounding) * scale, rounding * origin);
  const spectrum = eigenvalues(matrix, n).sort((a, b) => b[0] - a[0]);
  const spread = (longest) => 2 * scale * (small / scale) ** (1 / longest), context = { matrix, n, spectrum, small, scale };
  const [top, height] = spectrum[0];
  let found = largestCluster(context, top, 0);
  if (!found || found.re < top - spread(found.nullities.length)) found = largestCluster(context, top, Math.abs(height));
  const others = spectrum.filter((_, i) => !found.members.includes(i)).filter(([re, im]) => found.im === 0 || Math.hypot(re - found.re, im + found.im) > spread(found.nullities.length));
  const level = found.re - 2 * small, alone = !others.some(([re]) => re >= level), form = alone ? null : schur(matrix, n);
  const re = Math.abs(found.re) <= rounding * Math.max(scale, origin) ? 0 : found.re;
  return {
    re, im: found.im, multiplicity: found.members.length, geometric: found.nullities[0], longest: found.nullities.length, alone,
    subspace: alone ? found.subspace : realSpan(columns(form.unitary, 0, reorder(form, (x) => x >= level)), true), sign: Math.abs(re) <= small ? 0 : Math.sign(re),
  };
}

const LONGEST_CLUSTER = 32;
function largestCluster({ matrix, n, spectrum, small, scale }, nearRe, nearIm) {
  const away = spectrum.map(([re, im]) => Math.hypot(re - nearRe, im - nearIm)), order = away.map((_, i) => i).sort((i, j) => away[i] - away[j] || i - j), real = nearIm === 0;
  for (let count = Math.min(n, LONGEST_CLUSTER); count > 0; count--) {
    const members = order.slice(0, count);
    if (away[members.at(-1)] > 2 * scale * (small / scale) ** (1 / count)) continue;
    const mean = (part) => members.reduce((sum, i) => sum + spectrum[i][part], 0) / count;
    if (real && Math.abs(mean(1)) > small) continue;
    const re = mean(0), im = real ? 0 : mean(1), shifted = corner(complex(n, n, matrix), n, re, im), { sizes, right } = singular(shifted);
    if (sizes.at(-1) > 10 * small) continue;
    if (count === 1) return { re, im, members, nullities: [1], subspace: realSpan(columns(right, n - 1, n), real) };
    const cluster = examine({ matrix, n, spectrum, small }, re, im, members, real);
    if (cluster) return cluster;
  }
  return null;
}
function examine({ matrix, n, spectrum, small }, re, im, members, real) {
  const gap = ([x, y]) => Math.hypot(x - re, y - im), inside = Math.max(...members.map((i) => gap(spectrum[i])));
  const outside = Math.min(Infinity, ...spectrum.filter((_, i) => !members.includes(i)).map(gap));
  if (outside <= inside) return null;
  const limit = Number.isFinite(outside) ? 0.5 * (inside + outside) : Infinity, form = schur(matrix, n), count = reorder(form, (x, y) => gap([x, y]) <= limit);
  if (count !== members.length) return null;
  const nilpotent = corner(form.upper, count, re, im), nullities = staircase(nilpotent, small);
  if (!nullities) return null;
  let closing = columns(form.unitary, 0, count);
  if (nullities.length > 1) {
    let power = nilpotent;
    for (let k = 2; k < nullities.length; k++) power = times(power, nilpotent);
    const { left, sizes } = singular(power), kept = columns(left, 0, nullities.at(-1));
    for (let i = 0; i < kept.n; i++) for (let j = 0; j < kept.m; j++) { kept.re[i * kept.m + j] /= sizes[j]; kept.im[i * kept.m + j] /= sizes[j]; }
    closing = times(closing, kept);
  }
  return { re, im, members, nullities, subspace: realSpan(closing, real) };
}

// Eigenvectors of a symmetric matrix by falling eigenvalue, as an array of vectors; the largest entry of each is positive.
export function principalAxes(matrix, n, count) {
  const { right } = singular(complex(n, n, matrix));
  return Array.from({ length: count }, (_, j) => {
    const axis = Float64Array.from({ length: n }, (_, i) => right.re[i * n + j]);
    const largest = axis.reduce((best, value) => (Math.abs(value) > Math.abs(best) ? value : best), 0);
    return largest < 0 ? axis.map((value) => -value) : axis;
  });
}
