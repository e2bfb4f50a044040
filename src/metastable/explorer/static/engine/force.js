// The right-hand side: whom each token looks at, and where that moves it. States are packed rows of `width` numbers, the direction
// and, for norms that have one, a radius (`metastable.kernels.reference` says the same in NumPy).

import { Series } from "./series.js";
import { SLACK, Sight } from "./sight.js";

// exp from a table of exp(-j/512) and four terms: three times as fast as Math.exp, to 1e-13.
const LOWEST = -708, STEPS = 512, ONE = 1 / STEPS, TWO = ONE ** 2 / 2, THREE = ONE ** 3 / 6;
// Lists reach further than they must, and tokens may move before they are made again: the table goes on beyond the lowest.
const TABLE = Float64Array.from({ length: 1 + STEPS * (1 + 2 * SLACK - LOWEST) }, (_, j) => Math.exp(-j / STEPS));
export function exponential(v) {
  if (v < LOWEST) return 0;
  if (v > 0) return Math.exp(v);
  const u = 0.5 - STEPS * v, i = u | 0, r = i - u + 0.5;
  return TABLE[i] * (1 + r * (ONE + r * (TWO + r * THREE)));
}

const UNFELT = 1e-10;

// The logit, below one's own, from which on a token is left out: all that are left out move nobody by more than `UNFELT` in the whole run.
export const horizonOfSight = (tokens, until) => Math.max(LOWEST, Math.log(UNFELT / (tokens * Math.max(until, 1))));

// Rows of x (unit, n x d) mapped by a matrix: out_k = M x_k, or M^T x_k.
function mapRows(matrix, x, dim, out, transposed) {
  for (let at = 0; at < x.length; at += dim) {
    for (let i = 0; i < dim; i++) {
      let sum = 0;
      for (let j = 0; j < dim; j++) sum += (transposed ? matrix[j * dim + i] : matrix[i * dim + j]) * x[at + j];
      out[at + i] = sum;
    }
  }
}

export class Force {
  // `least`: see `horizonOfSight`.
  constructor(model, tokens, least = LOWEST) {
    this.model = model;
    this.least = least;
    this.tokens = tokens;
    const { dim, frozen, heads, law } = model, anchors = frozen?.places ?? new Float64Array(0);
    this.x = new Float64Array(tokens * dim);
    this.sum = new Float64Array(tokens * dim);
    this.queries = new Float64Array(tokens * dim);
    this.values = new Float64Array(tokens * dim);
    this.logits = new Float64Array(tokens);
    this.fixedLogits = new Float64Array(frozen?.count ?? 0);
    this.fixedValues = heads.map(({ value }) => {
      if (!value) return anchors;
      const mapped = new Float64Array(anchors.length);
      mapRows(value, anchors, dim, mapped, false);
      return mapped;
    });
    const [head] = heads, seesSelf = model.ranges.every((range, k) => range.some((_, i) => i % 2 === 0 && range[i] <= k && k < range[i + 1]));
    // Q = K = V = I, softmax, everybody sees itself: no weight is larger than one's own.
    this.plain = heads.length === 1 && !head.form && !head.value && head.beta >= 0 && seesSelf && law.score === "exponential" && law.total === "weights";
    this.sight = this.plain ? new Sight(tokens, dim, model.ranges, head.beta, least) : null;
    this.overflow = 0;
  }

  // The series that says how fast tokens turn on the circle, where it is cheaper than pairs; else null.
  get series() {
    if (!this.plain) return null;
    if (this.cheaper === undefined) { this.sight.look(this.x); this.cheaper = Series.where(this.model, this.tokens, this.sight.first[this.tokens]); }
    return this.cheaper;
  }

  // Where tokens with directions x are drawn: A_k into `sum`, for plain models less x_k itself, which the projection removes.
  attend() {
    if (this.plain) {
      this.sight.look(this.x);
      if (this.model.dim === 2) this.attendCircle(); else if (this.model.dim === 3) this.attendSphere(); else this.attendPlain();
      return;
    }
    this.sum.fill(0);
    this.model.heads.forEach((head, number) => this.attendHead(head, number));
  }

  attendCircle() {
    const { x, sum, tokens, model, sight: { who, first } } = this, { frozen } = model, beta = model.heads[0].beta, scale = -STEPS * beta;
    for (let k = 0; k < tokens; k++) {
      const c = x[2 * k], s = x[2 * k + 1];
      let z = 1, force = 0, along = 0;
      for (let p = first[k], stop = first[k + 1]; p < stop; p++) {
        const j = 2 * who[p], cj = x[j], sj = x[j + 1], cosine = c * cj + s * sj - 1;
        const u = scale * cosine + 0.5, i = u | 0, r = i - u + 0.5, w = TABLE[i] * (1 + r * (ONE + r * (TWO + r * THREE)));
        z += w;
        force += w * (c * sj - s * cj);
        along += w * cosine;
      }
      if (frozen) for (let j = 0; j < frozen.count; j++) {
        const cj = frozen.places[2 * j], sj = frozen.places[2 * j + 1], cosine = c * cj + s * sj - 1;
        const w = frozen.weights[j] * exponential(beta * cosine);
        z += w;
        force += w * (c * sj - s * cj);
        along += w * cosine;
      }
      force /= z; along /= z;
      sum[2 * k] = along * c - force * s;
      sum[2 * k + 1] = along * s + force * c;
    }
  }

  attendSphere() {
    const { x, sum, tokens, model, sight: { who, first } } = this, { frozen } = model, beta = model.heads[0].beta, scale = -STEPS * beta;
    for (let k = 0; k < tokens; k++) {
      const a = x[3 * k], b = x[3 * k + 1], c = x[3 * k + 2];
      let z = 1, sa = 0, sb = 0, sc = 0;
      for (let p = first[k], stop = first[k + 1]; p < stop; p++) {
        const j = 3 * who[p], aj = x[j], bj = x[j + 1], cj = x[j + 2];
        const u = scale * (a * aj + b * bj + c * cj - 1) + 0.5, i = u | 0, r = i - u + 0.5, w = TABLE[i] * (1 + r * (ONE + r * (TWO + r * THREE)));
        z += w;
        sa += w * (aj - a); sb += w * (bj - b); sc += w * (cj - c);
      }
      if (frozen) for (let j = 0; j < frozen.count; j++) {
        const aj = frozen.places[3 * j], bj = frozen.places[3 * j + 1], cj = frozen.places[3 * j + 2];
        const w = frozen.weights[j] * exponential(beta * (a * aj + b * bj + c * cj - 1));
        z += w;
        sa += w * (aj - a); sb += w * (bj - b); sc += w * (cj - c);
      }
      sum[3 * k] = sa / z; sum[3 * k + 1] = sb / z; sum[3 * k + 2] = sc / z;
    }
  }

  attendPlain() {
    const { x, sum, tokens, model, sight: { who, first } } = this, { frozen, dim } = model, beta = model.heads[0].beta;
    sum.fill(0);
    const draw = (places, j, mass, at) => {
      let dot = -1;
      for (let a = 0; a < dim; a++) dot += x[at + a] * places[j + a];
      const w = mass * exponential(beta * dot);
      for (let a = 0; a < dim; a++) sum[at + a] += w * (places[j + a] - x[at + a]);
      return w;
    };
    for (let k = 0; k < tokens; k++) {
      const at = k * dim;
      let z = 1;
      for (let p = first[k]; p < first[k + 1]; p++) z += draw(x, who[p] * dim, 1, at);
      if (frozen) for (let j = 0; j < frozen.count; j++) z += draw(frozen.places, j * dim, frozen.weights[j], at);
      for (let a = 0; a < dim; a++) sum[at + a] /= z;
    }
  }

  // Any head: logits of a row, their largest, then weights by the law that the model declares.
  attendHead({ beta, form, value }, number) {
    const { x, sum, tokens, model, queries, values } = this, { dim } = model;
    if (form) mapRows(form, x, dim, queries, true); else queries.set(x);
    if (value) mapRows(value, x, dim, values, false);
    const shown = value ? values : x, fixed = this.fixedValues[number];
    for (let k = 0; k < tokens; k++) {
      const factor = this.weigh(k, beta), range = model.ranges[k], at = k * dim;
      if (factor === 0) continue;
      for (let q = 0; q < range.length; q += 2) for (let j = range[q]; j < range[q + 1]; j++) {
        const w = factor * this.logits[j];
        if (w !== 0) for (let a = 0; a < dim; a++) sum[at + a] += w * shown[j * dim + a];
      }
      for (let j = 0; j < this.fixedLogits.length; j++) {
        const w = factor * this.fixedLogits[j];
        if (w !== 0) for (let a = 0; a < dim; a++) sum[at + a] += w * fixed[j * dim + a];
      }
    }
  }

  // Weights of token k into `logits` (of whom it sees) and `fixedLogits`, to be multiplied by what is returned.
  weigh(k, beta) {
    const { x, model, queries, logits, fixedLogits } = this, { dim, frozen, law, ranges } = model, range = ranges[k], at = k * dim;
    const logit = (places, j) => { let dot = 0; for (let a = 0; a < dim; a++) dot += queries[at + a] * places[j + a]; return beta * dot; };
    let top = -Infinity, visible = 0, total = 0;
    for (let q = 0; q < range.length; q += 2) for (let j = range[q]; j < range[q + 1]; j++) { const value = (logits[j] = logit(x, j * dim)); if (value > top) top = value; visible++; }
    for (let j = 0; j < fixedLogits.length; j++) {
      const mass = frozen.weights[j], value = (fixedLogits[j] = logit(frozen.places, j * dim));
      if (mass > 0 && value > top) top = value;
      visible += mass;
    }
    if (top === -Infinity) return 0;
    const least = top - model.tie * Math.max(1, Math.abs(top)), score = law.score === "largest" ? (value) => (value >= least ? 1 : 0) : (value) => exponential(value - top);
    for (let q = 0; q < range.length; q += 2) for (let j = range[q]; j < range[q + 1]; j++) total += logits[j] = score(logits[j]);
    for (let j = 0; j < fixedLogits.length; j++) total += fixedLogits[j] = frozen.weights[j] * score(fixedLogits[j]);
    if (law.total === "weights") return 1 / (total || 1);
    if (top > 709) this.overflow = top;
    return Math.exp(top) / (visible || 1);
  }

  // Velocity of the packed state y at time t into `out`. Directions are normalised first.
  velocity(t, y, out) {
    const { model, tokens, x, sum, plain } = this, { dim, width, norm } = model;
    for (let k = 0; k < tokens; k++) {
      let square = 0;
      for (let a = 0; a < dim; a++) { const v = y[k * width + a]; square += v * v; }
      const inverse = 1 / Math.sqrt(square);
      for (let a = 0; a < dim; a++) x[k * dim + a] = y[k * width + a] * inverse;
    }
    this.attend();
    const law = norm.laws[norm.laws.length > 1 && t >= norm.jump ? 1 : 0], { lengthPower, radiusPower } = law, { hasRadius } = norm;
    const pace = law.amplitude / (law.decay ? (t + 1) ** law.decay : 1);
    for (let k = 0; k < tokens; k++) {
      const from = k * dim, to = k * width;
      let along = 0;
      for (let a = 0; a < dim; a++) along += x[from + a] * sum[from + a];
      let speed = pace;
      if (lengthPower) {
        let square = 0;
        for (let a = 0; a < dim; a++) square += (sum[from + a] + (plain ? x[from + a] : 0)) ** 2;
        speed /= (Math.sqrt(square) || 1) ** lengthPower;
      }
      const turn = radiusPower ? speed / y[to + dim] ** radiusPower : speed;
      for (let a = 0; a < dim; a++) out[to + a] = turn * (sum[from + a] - along * x[from + a]);
      if (hasRadius) out[to + dim] = law.radial * speed * (along + (plain ? 1 : 0));
    }
  }

  // Angular velocities on the circle, at angles.
  spin(t, angles, out) {
    const { model, tokens, x, sum, plain } = this, law = model.norm.laws[0];
    for (let k = 0; k < tokens; k++) { x[2 * k] = Math.cos(angles[k]); x[2 * k + 1] = Math.sin(angles[k]); }
    const pace = law.amplitude / (law.decay ? (t + 1) ** law.decay : 1);
    if (!law.lengthPower && this.series) {
      this.series.turns(x, out);
      for (let k = 0; k < tokens; k++) out[k] *= pace;
      return;
    }
    this.attend();
    for (let k = 0; k < tokens; k++) {
      const c = x[2 * k], s = x[2 * k + 1];
      let speed = pace;
      if (law.lengthPower) speed /= Math.hypot(sum[2 * k] + (plain ? c : 0), sum[2 * k + 1] + (plain ? s : 0)) || 1;
      out[k] = speed * (c * sum[2 * k + 1] - s * sum[2 * k]);
    }
  }

  // The attention matrix of a state of directions (n x d): weights of the tokens on each other, averaged over heads.
  matrix(state) {
    const { model, tokens, x, queries } = this, result = new Float64Array(tokens * tokens);
    x.set(state);
    for (const { beta, form } of model.heads) {
      if (form) mapRows(form, x, model.dim, queries, true); else queries.set(x);
      for (let k = 0; k < tokens; k++) {
        const factor = this.weigh(k, beta) / model.heads.length, range = model.ranges[k];
        for (let q = 0; q < range.length; q += 2) for (let j = range[q]; j < range[q + 1]; j++) result[k * tokens + j] += factor * this.logits[j];
      }
    }
    return result;
  }
}
