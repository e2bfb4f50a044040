// Runs: Tsitouras 5(4) with the step control of `metastable.integrate` (the same tableau, the same controller, the same charts: angles on
// the circle), and the splitting of `integrate.sde` for noise. Generators: they hand back control after every step, so that a newer wish
// is heard in time.

import { Force, horizonOfSight } from "./force.js";
import { beyondRange, follow, followable } from "./implicit.js";
import { spectralNorm } from "./linear.js";
import { Noise } from "./random.js";
import { LIMITS } from "./setting.js";

const RTOL = 1e-6, ATOL = 1e-9, TOLERANCE = RTOL + ATOL;
const A = [
  [],
  [0.161],
  [-0.008480655492356989, 0.335480655492357],
  [2.8971530571054935, -6.359448489975075, 4.3622954328695815],
  [5.325864828439257, -11.748883564062828, 7.4955393428898365, -0.09249506636175525],
  [5.86145544294642, -12.92096931784711, 8.159367898576159, -0.071584973281401, -0.028269050394068383],
  [0.09646076681806523, 0.01, 0.4798896504144996, 1.379008574103742, -3.290069515436081, 2.324710524099774],
];
const C = [0, 0.161, 0.327, 0.9, 0.9800255409045097, 1, 1];
const ERROR = [-0.00178001105222577714, -0.0008164344596567469, 0.007880878010261995, -0.1447110071732629, 0.5823571654525552, -0.45808210592918697, 0.015151515151515152];
const DENSE = [
  [1, -2.763706197274826, 2.9132554618219126, -1.0530884977290216],
  [0, 0.13169999999999998, -0.2234, 0.1017],
  [0, 3.9302962368947516, -5.941033872131505, 2.490627285651253],
  [0, -12.411077166933676, 30.33818863028232, -16.548102889244902],
  [0, 37.50931341651104, -88.1789048947664, 47.37952196281928],
  [0, -27.896526289197286, 65.09189467479366, -34.87065786149661],
  [0, 1.5, -4, 2.5],
];
const ORDER = 5, SAFETY = 0.9, PROPORTIONAL = 0.7 / ORDER, INTEGRAL = 0.4 / ORDER, SHRINK = 0.2, GROW = 10, FLOOR = 1e-10, FIRST_ERROR = 1e-4;
const COMPILED = { norms: ["post_ln", "ngpt", "sqrt_scaling"], weights: ["softmax", "unnormalized"] }; // what Python moves in angles, in the plane

const HOPELESS = 3000; // steps
const SHORT = 1e3, SWITCH = 64; // horizons that are explicit all the way; where others become implicit

// The state in its chart, with its stages.
class System {
  constructor(model, start, tokens, until) {
    const { dim, norm } = model;
    this.model = model;
    this.tokens = tokens;
    this.force = new Force(model, tokens, horizonOfSight(tokens, until));
    this.angles = dim === 2 && COMPILED.norms.includes(norm.kind) && COMPILED.weights.includes(model.weighting) && model.mask.kind !== "matrix";
    this.width = this.angles ? 1 : model.width;
    this.y = new Float64Array(tokens * this.width);
    for (let k = 0; k < tokens; k++) {
      if (this.angles) this.y[k] = Math.atan2(start[2 * k + 1], start[2 * k]);
      else for (let a = 0; a < this.width; a++) this.y[k * this.width + a] = a < dim ? start[k * dim + a] : 1;
    }
    this.next = this.y.slice();
    this.inner = this.y.slice();
    this.stages = A.map(() => new Float64Array(this.y.length));
    this.out = new Float64Array(tokens * dim);
  }

  rate(t, y, out) { if (this.angles) this.force.spin(t, y, out); else this.force.velocity(t, y, out); }

  // Root mean square over tokens of a change, in units of the tolerance; a radius is measured relative to itself.
  size(change, other) {
    const { width, tokens, y, model } = this, radius = width > model.dim;
    let total = 0;
    for (let k = 0; k < tokens; k++) {
      const last = (k + 1) * width - (radius ? 1 : 0);
      for (let i = k * width; i < last; i++) total += (change(i) / TOLERANCE) ** 2;
      if (radius) total += (change(last) / (ATOL + RTOL * Math.max(Math.abs(y[last]), Math.abs(other[last])))) ** 2;
    }
    return Math.sqrt(total / tokens);
  }

  begin(t) { this.rate(t, this.y, this.stages[0]); }

  firstStep(horizon) {
    const { y, next, stages } = this, [slope, bent] = stages, speed = this.size((i) => slope[i], y);
    if (!Number.isFinite(speed)) return Number.MIN_VALUE;
    const trial = TOLERANCE * speed > 1e-10 ? Math.min(0.01 / (TOLERANCE * speed), horizon) : Math.min(1e-6, horizon);
    for (let i = 0; i < y.length; i++) next[i] = y[i] + trial * slope[i];
    this.rate(trial, next, bent);
    const largest = Math.max(speed, this.size((i) => bent[i] - slope[i], y) / trial);
    const wanted = largest <= 1e-15 ? Math.max(1e-6, 1e-3 * trial) : (0.01 / largest) ** (1 / ORDER);
    return Math.min(100 * trial, wanted, horizon);
  }

  // The other stages of a step; the size of its error, NaN for a step that must not be taken.
  advance(t, h, latest) {
    const { y, next, stages: [k0, k1, k2, k3, k4, k5, k6], stages, width, model } = this, size = y.length;
    for (let s = 1; s < 7; s++) {
      const [a0, a1 = 0, a2 = 0, a3 = 0, a4 = 0, a5 = 0] = A[s];
      for (let i = 0; i < size; i++) {
        let v = a0 * k0[i];
        if (s > 1) v += a1 * k1[i];
        if (s > 2) v += a2 * k2[i];
        if (s > 3) v += a3 * k3[i];
        if (s > 4) v += a4 * k4[i];
        if (s > 5) v += a5 * k5[i];
        next[i] = y[i] + h * v;
      }
      this.rate(Math.min(t + C[s] * h, latest), next, stages[s]);
    }
    if (width > model.dim) for (let i = model.dim; i < size; i += width) if (!(next[i] > 0)) return NaN;
    const [e0, e1, e2, e3, e4, e5, e6] = ERROR;
    return this.size((i) => h * (e0 * k0[i] + e1 * k1[i] + e2 * k2[i] + e3 * k3[i] + e4 * k4[i] + e5 * k5[i] + e6 * k6[i]), next);
  }

  // Directions (n x d) at the fraction u of the step just made, from its quartic.
  between(h, u, out) {
    const { y, inner, stages: [k0, k1, k2, k3, k4, k5, k6] } = this;
    const [w0, w1, w2, w3, w4, w5, w6] = DENSE.map((row) => h * u * (row[0] + u * (row[1] + u * (row[2] + u * row[3]))));
    for (let i = 0; i < y.length; i++) inner[i] = y[i] + w0 * k0[i] + w1 * k1[i] + w2 * k2[i] + w3 * k3[i] + w4 * k4[i] + w5 * k5[i] + w6 * k6[i];
    this.directions(inner, out);
  }

  directions(y, out) {
    const { tokens, width, angles, model: { dim } } = this;
    for (let k = 0; k < tokens; k++) {
      if (angles) { const angle = y[k]; out[2 * k] = Math.cos(angle); out[2 * k + 1] = Math.sin(angle); continue; }
      let square = 0;
      for (let a = 0; a < dim; a++) { const v = y[k * width + a]; out[k * dim + a] = v; square += v * v; }
      const length = Math.sqrt(square);
      for (let a = 0; a < dim; a++) out[k * dim + a] /= length;
    }
  }

  accept() {
    const { next, width, tokens, model: { dim } } = this;
    if (!this.angles) for (let k = 0; k < tokens; k++) {
      let square = 0;
      for (let a = 0; a < dim; a++) square += next[k * width + a] ** 2;
      const inverse = 1 / Math.sqrt(square);
      for (let a = 0; a < dim; a++) next[k * width + a] *= inverse;
    }
    this.next = this.y; this.y = next;
    const [kept] = this.stages; // first same as last
    this.stages[0] = this.stages[6]; this.stages[6] = kept;
  }
}

// What a run leaves: states at the first `frames` of its times (frames x tokens x dim), and how it went.
export class Record {
  constructor(setting, times) {
    this.times = times;
    this.states = new Float64Array(times.length * setting.tokens * setting.dim);
    this.size = setting.tokens * setting.dim;
    this.frames = 0;
    this.status = "success"; this.message = ""; this.accepted = 0; this.rejected = 0; this.t = 0;
    this.radius = null;
    this.add(setting.start.x);
  }
  add(state) { this.states.set(state, this.frames * this.size); this.frames++; }
  state(frame) { return this.states.subarray(frame * this.size, (frame + 1) * this.size); }
  get final() { return this.last ?? this.state(this.frames - 1); }
  get method() { return this.step ? "sde" : this.switched ? `tsit5 to t = ${this.switched}, then rodas` : "tsit5"; }
}

// Run a setting over `times` into `record`; yields after every step.
export function* integrate(setting, times, record) {
  if (setting.step) yield* shake(setting, times, record);
  else yield* march(setting, times, record);
}

function* march(setting, times, record) {
  const { model, tokens } = setting, until = times[times.length - 1], system = new System(model, setting.start.x, tokens, until);
  const implicit = until > SHORT && followable(setting, system.force.plain), refusal = implicit ? beyondRange(setting) : null;
  const goesOn = implicit && !refusal; // once clusters have formed
  const stops = goesOn ? [SWITCH] : model.norm.jump > 0 && model.norm.jump < until ? [model.norm.jump, until] : [until];
  // Where explicit steps cannot reach the end (stability holds them below 3 over the size of V), nobody waits for all of them.
  // Where the package takes them all the same, because its implicit method refuses, there are as many as there.
  const most = refusal ? stepsAllowed(tokens, model.width) : !goesOn && until * sizeOfValue(model) > 3 * LIMITS.steps ? HOPELESS : LIMITS.steps;
  let t = 0, previous = FIRST_ERROR, rejectedBefore = false, h = 0;
  system.begin(0);
  h = system.firstStep(stops[0]);
  for (const stop of stops) {
    const latest = stop === until || goesOn ? stop : stop * (1 - 2 ** -53);
    while (t < stop) {
      if (record.accepted + record.rejected >= most) { halt(record, "max_steps", refusal ? `stopped after ${most} steps at t = ${Number(t.toPrecision(6))}; raise max_steps; or go implicitly, which is refused here: ${refusal}` : `stopped at t = ${Number(t.toPrecision(4))}: the browser takes explicit steps, and not more than ${most}; \`metastable explore\` goes on with implicit ones`); break; }
      const lands = t + 1.0001 * h >= stop, step = lands ? stop - t : h, error = system.advance(t, step, latest);
      if (!(error <= 1)) {
        record.rejected++;
        rejectedBefore = true;
        h = step * (Number.isFinite(error) ? Math.max(SHRINK, SAFETY * error ** (-1 / ORDER)) : SHRINK);
        if (!(t + h > t)) { halt(record, "diverged", system.force.overflow ? `unnormalised attention overflows: a logit reaches ${system.force.overflow.toPrecision(4)}; lower beta or use softmax weights` : `the solution leaves double precision near t = ${Number(t.toPrecision(6))}`); break; }
        yield;
        continue;
      }
      const end = lands ? stop : t + step;
      for (; record.frames < times.length && times[record.frames] < end; ) { system.between(step, (times[record.frames] - t) / step, system.out); record.add(system.out); }
      system.accept();
      if (record.frames < times.length && times[record.frames] === end) { system.directions(system.y, system.out); record.add(system.out); }
      record.accepted++;
      let factor = Math.min(GROW, Math.max(SHRINK, SAFETY * Math.max(error, FLOOR) ** -PROPORTIONAL * Math.max(previous, FLOOR) ** INTEGRAL));
      if (rejectedBefore) factor = Math.min(factor, 1);
      // A step cut short by a stop says nothing against the longer one that was planned.
      h = lands && factor >= 1 ? Math.max(h, step * factor) : step * factor;
      previous = error; rejectedBefore = false; t = record.t = end;
      yield;
    }
    if (record.status !== "success") break;
    if (stop !== until && !goesOn) { system.begin(t); previous = FIRST_ERROR; }
  }
  if (goesOn && record.status === "success") {
    record.switched = t;
    yield* follow(setting, times, record, system.y, t, t / record.accepted);
  }
  record.last = system.out.slice();
  system.directions(system.y, record.last);
  if (model.norm.hasRadius) record.radius = Float64Array.from({ length: tokens }, (_, k) => system.y[k * system.width + model.dim]);
}

// How many steps a run of the explorer may take (`metastable.explorer.limits.steps_allowed`).
const DENSE_BYTES = 512 * 2 ** 20;
const stepsAllowed = (tokens, width) => Math.max(100, Math.min(LIMITS.steps, Math.floor(DENSE_BYTES / (40 * tokens * width))));

// Sum over the heads of the norms of V, the inverse of the shortest time scale.
const sizeOfValue = ({ heads, dim }) => heads.reduce((sum, { value }) => sum + (value ? spectralNorm(value, dim) : 1), 0);

const halt = (record, status, message) => { record.status = status; record.message = message; };

// ------------------------------------------------------------------------------------------------------------- noise

// Half a step of Brownian motion, a step of the drift (Heun), half a step of Brownian motion.
function* shake(setting, times, record) {
  const { model, tokens, step, dim } = setting, { width } = model, force = new Force(model, tokens);
  const variance = 0.5 * step * model.noise ** 2, noise = new Noise(setting.start.seed), draws = new Float64Array(tokens * 2 * dim);
  const y = new Float64Array(tokens * width).fill(1), slope = new Float64Array(y.length), bent = new Float64Array(y.length), probe = new Float64Array(y.length), out = new Float64Array(tokens * dim);
  for (let k = 0; k < tokens; k++) for (let a = 0; a < dim; a++) y[k * width + a] = setting.start.x[k * dim + a];
  record.step = step;
  const wanted = Array.from(times, (t) => Math.round(t / step)), steps = wanted.at(-1), move = brownian(dim, variance);
  // Heun's method over h; no slope is taken behind `last`, where the norm jumps.
  const heun = (t, h, last) => {
    force.velocity(Math.min(t, last), y, slope);
    for (let i = 0; i < y.length; i++) probe[i] = y[i] + h * slope[i];
    force.velocity(Math.min(t + h, last), probe, bent);
    for (let i = 0; i < y.length; i++) y[i] += 0.5 * h * (slope[i] + bent[i]);
    for (let k = 0; k < tokens; k++) normalize(y, k * width, dim);
  };
  for (let number = 0; number < steps; number++) {
    noise.fill(number, draws);
    move(y, draws, 0, tokens, width);
    const t = number * step, { jump } = model.norm;
    if (t < jump && jump <= t + step) { heun(t, jump - t, before(jump)); if (t + step > jump) heun(jump, t + step - jump, Infinity); }
    else heun(t, step, Infinity);
    move(y, draws, dim, tokens, width);
    if (!y.every(Number.isFinite)) { halt(record, "diverged", `the solution left the range of double precision at t = ${Number(((number + 1) * step).toPrecision(6))}`); break; }
    let lost = model.norm.hasRadius ? 0 : tokens;
    while (lost < tokens && y[lost * width + dim] > 0) lost++;
    if (lost < tokens) { halt(record, "diverged", `token ${lost} reached radius zero, which has no direction, near t = ${Number(((number + 1) * step).toPrecision(6))}`); break; }
    record.accepted++;
    record.t = (number + 1) * step;
    if (number + 1 === wanted[record.frames]) { for (let k = 0; k < tokens; k++) for (let a = 0; a < dim; a++) out[k * dim + a] = y[k * width + a]; record.add(out); }
    if (number % 4 === 0) yield;
  }
}

// The largest number below a positive one.
function before(number) {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, number);
  view.setBigUint64(0, view.getBigUint64(0) - 1n);
  return view.getFloat64(0);
}

function normalize(y, at, dim) {
  let square = 0;
  for (let a = at; a < at + dim; a++) square += y[a] * y[a];
  const length = Math.sqrt(square);
  for (let a = at; a < at + dim; a++) y[a] /= length;
}

const LONGEST_VARIANCE = 0.02;

// The move of unit rows by a Brownian motion of that variance, from normal numbers that begin at `offset` of each token's 2 dim. On the
// circle the exact wrapped Gaussian; beyond, the angle is T(r) = r sqrt(t / (1 + (d - 2) t / 6)), the law of the heat kernel to a
// relative error of order t^2 (exp(-a^2/2t) (a/sin a)^((d-2)/2) sin^(d-2) a, to first order in a^2).
export function brownian(dim, variance) {
  const root = dim === 2 ? Math.sqrt(Math.min(variance, 1e3)) : Math.sqrt(variance / (1 + ((dim - 2) * variance) / 6));
  if (dim > 2 && dim * variance > LONGEST_VARIANCE) throw new Error(`noise this strong needs the exact law of Brownian motion on the sphere, which the browser has not; \`metastable explore\` has it`);
  const tangent = new Float64Array(dim);
  return (y, draws, offset, tokens, width) => {
    for (let k = 0; k < tokens; k++) {
      const at = k * width, from = 2 * dim * k + offset;
      if (dim === 2) {
        const angle = root * (y[at] * draws[from + 1] - y[at + 1] * draws[from]), c = Math.cos(angle), s = Math.sin(angle), x0 = y[at];
        y[at] = c * x0 - s * y[at + 1];
        y[at + 1] = c * y[at + 1] + s * x0;
        continue;
      }
      let along = 0, square = 0;
      for (let a = 0; a < dim; a++) along += y[at + a] * draws[from + a];
      for (let a = 0; a < dim; a++) { tangent[a] = draws[from + a] - along * y[at + a]; square += tangent[a] ** 2; }
      const length = Math.sqrt(square), angle = root * length, c = Math.cos(angle), s = Math.sin(angle) / (length || 1);
      for (let a = 0; a < dim; a++) y[at + a] = s * tangent[a] + c * y[at + a];
    }
  };
}
