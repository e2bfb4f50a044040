// Who is near whom: distances, clusters, centers, merges (`metastable.analysis`). States are flat, tokens behind one another.

const TIE = 1e-14;
export const withinOrAt = (radius) => (radius >= Math.PI ? Infinity : (2 * Math.sin(radius / 2) + TIE) ** 2);
export function closerThan(radius) {
  if (radius > Math.PI) return Infinity;
  const chord = 2 * Math.sin(radius / 2);
  return Math.max(0, chord - Math.min(TIE, 1e-3 * chord)) ** 2;
}

function chord(x, i, y, j, dim) {
  let sum = 0;
  for (let a = 0; a < dim; a++) { const d = x[i + a] - y[j + a]; sum += d * d; }
  return sum;
}

// Geodesic distance of the rows that begin at i and j.
export function distance(x, i, y, j, dim) {
  let far = 0;
  for (let a = 0; a < dim; a++) { const s = x[i + a] + y[j + a]; far += s * s; }
  const near = chord(x, i, y, j, dim), half = 2 * Math.asin(Math.min(0.5 * Math.sqrt(Math.min(near, far)), 1));
  return near <= far ? half : Math.PI - half;
}

// First token of the cluster of each token: tokens linked by chords of at most `bound` (squared) are one.
export class Linker {
  constructor(tokens, dim) {
    this.tokens = tokens;
    this.dim = dim;
    this.root = new Int32Array(tokens);
    this.order = Int32Array.from({ length: tokens }, (_, k) => k);
    this.place = new Float64Array(tokens);
  }
  find(k) { const { root } = this; while (root[k] !== k) { root[k] = root[root[k]]; k = root[k]; } return k; }
  join(a, b) { const p = this.find(a), q = this.find(b); if (p < q) this.root[q] = p; else this.root[p] = q; }
  // Tokens in the order of their places, which is nearly that of the last frame: by insertion, or from the start where it is not.
  sort() {
    const { order, place, tokens } = this;
    for (let i = 1, moves = 8 * tokens; i < tokens; i++) {
      const token = order[i], here = place[token];
      let j = i - 1;
      for (; j >= 0 && place[order[j]] > here; j--) order[j + 1] = order[j];
      order[j + 1] = token;
      moves -= i - 1 - j;
      if (moves < 0) { order.sort((a, b) => place[a] - place[b]); return; }
    }
  }
  leaders(x, bound, out) {
    const { tokens, dim, root, order, place } = this;
    for (let k = 0; k < tokens; k++) { root[k] = k; place[k] = dim === 2 ? Math.atan2(x[2 * k + 1], x[2 * k]) : x[k * dim]; }
    this.sort();
    if (dim === 2) {
      for (let i = 0; i < tokens; i++) { const a = order[i], b = order[(i + 1) % tokens]; if (chord(x, 2 * a, x, 2 * b, 2) <= bound) this.join(a, b); }
    } else {
      const reach = Math.sqrt(bound) * (1 + 1e-12);
      for (let i = 0; i < tokens; i++) for (let j = i + 1; j < tokens && place[order[j]] - place[order[i]] <= reach; j++) {
        const a = order[i], b = order[j];
        if (this.find(a) !== this.find(b) && chord(x, a * dim, x, b * dim, dim) <= bound) this.join(a, b);
      }
    }
    for (let k = 0; k < tokens; k++) out[k] = this.find(k);
  }
}

// Renyi centers of the tokens in order; strong ones keep their distance from every earlier token, not only from earlier centers.
export function centers(x, tokens, dim, delta, strong) {
  const bound = withinOrAt(delta), found = [];
  for (let s = 0; s < tokens; s++) {
    let free = true;
    if (strong) for (let i = 0; i < s && free; i++) free = chord(x, s * dim, x, i * dim, dim) > bound;
    else for (let c = 0; c < found.length && free; c++) free = chord(x, s * dim, x, found[c] * dim, dim) > bound;
    if (free) found.push(s);
  }
  return found;
}

// Fraction of tokens within `radius` of the present place of some center.
export function consumed(x, tokens, dim, chosen, radius) {
  const bound = withinOrAt(radius);
  let taken = 0;
  for (let k = 0; k < tokens; k++) for (const c of chosen) if (chord(x, k * dim, x, c * dim, dim) <= bound) { taken++; break; }
  return taken / tokens;
}

const MERGES = 64;

// Merges between saved moments, the last ones: a pair of clusters has merged when it stays together from then on. `leaders`: frames x tokens.
export function merges(leaders, frames, tokens, times) {
  const row = (frame) => leaders.subarray(frame * tokens, (frame + 1) * tokens);
  let later = Int32Array.from(row(frames - 1));
  const found = [];
  for (let frame = frames - 2; frame >= 0; frame--) {
    const now = row(frame), earlier = new Int32Array(tokens), first = new Map(), sizes = new Map();
    for (let k = 0; k < tokens; k++) { // together then and from then on
      const key = later[k] * tokens + now[k], leader = first.get(key) ?? k;
      if (leader === k) first.set(key, k);
      earlier[k] = leader;
      sizes.set(leader, (sizes.get(leader) ?? 0) + 1);
    }
    const groups = new Map();
    for (const leader of [...sizes.keys()].sort((a, b) => a - b)) { const home = later[leader]; if (!groups.has(home)) groups.set(home, []); groups.get(home).push(leader); }
    const rows = [];
    for (const [parent, ...parts] of groups.values()) {
      let size = sizes.get(parent);
      for (const child of parts) { rows.push({ time: times[frame + 1], child, parent, child_size: sizes.get(child), parent_size: size }); size += sizes.get(child); }
    }
    found.push(...rows.reverse());
    later = earlier;
  }
  return found.slice(0, MERGES).reverse();
}
