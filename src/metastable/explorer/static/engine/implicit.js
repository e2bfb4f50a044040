// Long horizons on the circle: Rodas5P (G. Steinebach, BIT 63:27, 2023) with the step control of `metastable.integrate.rodas.control`.
//
// Token k depends on tokens 1..k only, so with the stages of the earlier tokens known all eight stages of token k follow from row k of the
// Jacobian alone. The system does not depend on t: a step may be shorter than the spacing of numbers at t.

import { exponential } from "./force.js";
import { LIMITS } from "./setting.js";

const STAGES = 8, GAMMA = 0.21193756319429014;
const LAST = [-7.502846399306121, 2.561846144803919, -11.627539656261098, -0.18268767659942256, 0.030198172008377946];
const A = [
  [], [3], [2.849394379747939, 0.45842242204463923], [-6.954028509809101, 2.489845061869568, -10.358996098473584],
  [2.8029986275628964, 0.5072464736228206, -0.3988312541770524, -0.04721187230404641], LAST, [...LAST, 1], [...LAST, 1, 1],
];
const C = [
  [], [-14.155112264123755], [-17.97296035885952, -2.859693295451294], [147.12150275711716, -1.41221402718213, 71.68940251302358],
  [165.43517024871676, -0.4592823456491126, 42.90938336958603, -5.961986721573306],
  [24.854864614690072, -3.0009227002832186, 47.4931110020768, 5.5814197821558125, -0.6610691825249471],
  [30.91273214028599, -3.1208243349937974, 77.79954646070892, 34.28646028294783, -19.097331116725623, -28.087943162872662],
  [37.80277123390563, -3.2571969029072276, 112.26918849496327, 66.9347231244047, -40.06618937091002, -54.66780262877968, -9.48861652309627],
];
const WEIGHTS = [...LAST, 1, 1, 1];
const DENSE = [
  [25.948786856663858, -2.5579724845846235, 10.433815404888879, -2.3679251022685204, 0.524948541321073, 1.1241088310450404, 0.4272876194431874, -0.17202221070155493],
  [-9.91568850695171, -0.9689944594115154, 3.0438037242978453, -24.495224566215796, 20.176138334709044, 15.98066361424651, -6.789040303419874, -6.710236069923372],
  [11.419903575922262, 2.8879645146136994, 72.92137995996029, 80.12511834622643, -52.072871366152654, -59.78993625266729, -0.15582684282751913, 4.883087185713722],
];
const CAP = 0.5, OVERSHOOT = 1.1, UNSTABLE = 0.2, STEEPNESS = 8, SAFETY = 0.9, UNSTABLE_SAFETY = 0.93, SHRINK = 0.05, GROW = 10, REJECT = 0.1, FLOOR = 1e-2;
const TOLERANCE = 1e-6 + 1e-9;

// True where these steps are possible: Q = K = V = I, softmax, Post-LN, on the circle, and nobody sees a later token.
export const followable = ({ model }, plain) => plain && model.dim === 2 && model.norm.kind === "post_ln" && model.ranges.every((range, k) => range.at(-1) <= k + 1);

const LOGIT_SPREAD = 700; // logits that differ by more than double precision can exponentiate

// Why these steps cannot be taken all the same, in the words of the package (`rodas.check_range`); null where they can.
export function beyondRange({ model: { heads: [{ beta }] } }) {
  if (2 * beta <= LOGIT_SPREAD) return null;
  return `beta = ${Number(beta.toPrecision(6))} is beyond the underflow limit of method='rodas', beta <= ${LOGIT_SPREAD / 2}: the force between antipodes, exp(-2 beta), leaves double precision; lower beta, or use method='tsit5' for short horizons`;
}

class Circle {
  constructor({ model, tokens }, angles) {
    this.angles = angles;
    this.tokens = tokens;
    this.beta = model.heads[0].beta;
    const { frozen } = model, fixed = frozen?.count ?? 0;
    this.fixed = fixed;
    this.mass = frozen?.weights ?? [];
    // Frozen tokens are the first columns: they have no stages.
    this.ranges = model.ranges.map((range, k) => Int32Array.from([...(fixed ? [0, fixed] : []), ...Array.from(range, (end, i) => fixed + (i % 2 ? Math.min(end, k) : end))]));
    const columns = fixed + tokens, rows = () => Array.from({ length: STAGES }, () => new Float64Array(columns));
    this.cosine = rows(); this.sine = rows(); this.u = rows();
    this.row = new Float64Array(columns);
    for (let j = 0; j < fixed; j++) for (let i = 0; i < STAGES; i++) { this.cosine[i][j] = frozen.places[2 * j]; this.sine[i][j] = frozen.places[2 * j + 1]; }
  }

  // Force on a token at stage i; with `row`, its derivative by the others too. The sum of weights is in `total`.
  pull(i, k, c, s, row) {
    const { beta, ranges, fixed, mass } = this, cosine = this.cosine[i], sine = this.sine[i], range = ranges[k];
    let z = 1, force = 0;
    for (let q = 0; q < range.length; q += 2) for (let j = range[q]; j < range[q + 1]; j++) {
      const dot = c * cosine[j] + s * sine[j], turn = c * sine[j] - s * cosine[j];
      let w = exponential(Math.min(0, beta * (dot - 1)));
      if (j < fixed) w *= mass[j];
      z += w;
      force += w * turn;
      if (row) row[j] = w * (dot - beta * turn * turn);
    }
    force /= z;
    if (row) {
      let own = 0;
      for (let q = 0; q < range.length; q += 2) for (let j = range[q]; j < range[q + 1]; j++) {
        const dot = c * cosine[j] + s * sine[j], turn = c * sine[j] - s * cosine[j];
        let w = exponential(Math.min(0, beta * (dot - 1)));
        if (j < fixed) w *= mass[j];
        row[j] = (row[j] + force * beta * w * turn) / z;
        own -= row[j];
      }
      this.own = own;
    }
    return force;
  }

  // Try a step of size h: largest |u_8|, largest turn, largest rate of a moving unstable mode.
  attempt(h) {
    const { tokens, angles, fixed, cosine, sine, u, row, ranges } = this;
    this.error = 0; this.extent = 0; this.rate = 0;
    for (let k = 0; k < tokens; k++) {
      const at = fixed + k, range = ranges[k];
      let still = true;
      for (let i = 0; i < STAGES; i++) {
        let angle = angles[k], kept = 0;
        for (let j = 0; j < i; j++) { angle += A[i][j] !== undefined ? A[i][j] * u[j][at] : 0; kept += C[i][j] * u[j][at]; }
        const c = (cosine[i][at] = Math.cos(angle)), s = (sine[i][at] = Math.sin(angle));
        let right = this.pull(i, k, c, s, i === 0 ? row : null) + kept / h;
        for (let q = 0; q < range.length; q += 2) for (let j = Math.max(range[q], fixed); j < range[q + 1]; j++) right += row[j] * u[i][j];
        u[i][at] = right / (1 / (h * GAMMA) - this.own);
        still &&= u[i][at] === 0;
        this.extent = Math.max(this.extent, Math.abs(angle - angles[k]));
      }
      if (!still && this.own > this.rate) this.rate = this.own;
      if (this.rate * h > CAP * OVERSHOOT) return;
      const error = Math.abs(u[7][at]);
      if (!(error <= this.error)) this.error = error;
    }
  }

  // Angles at the fraction v of the attempted step.
  between(v, out) {
    const weights = WEIGHTS.map((weight, i) => v * (weight + (1 - v) * (DENSE[0][i] + v * (DENSE[1][i] + v * DENSE[2][i]))));
    for (let k = 0; k < this.tokens; k++) { let angle = this.angles[k]; for (let i = 0; i < STAGES; i++) angle += weights[i] * this.u[i][this.fixed + k]; out[k] = angle; }
  }

  commit() { for (let k = 0; k < this.tokens; k++) for (let i = 0; i < STAGES; i++) this.angles[k] += WEIGHTS[i] * this.u[i][this.fixed + k]; }
}

// From the angles at time t to the end of `times`; states go into `record`. Yields after every step; returns the last angles.
export function* follow(setting, times, record, angles, begin, firstStep) {
  const system = new Circle(setting, angles), until = times[times.length - 1], { tokens } = setting, between = new Float64Array(tokens), state = new Float64Array(2 * tokens);
  const save = () => { for (let k = 0; k < tokens; k++) { state[2 * k] = Math.cos(between[k]); state[2 * k + 1] = Math.sin(between[k]); } record.add(state); };
  const plan = { t: begin, h: firstStep, hOld: firstStep, errorOld: FLOOR, rate: 0, growth: 1, reach: CAP, width: 0, rejected: false, first: true };
  while (plan.t < until) {
    if (record.accepted + record.rejected >= LIMITS.steps) { record.status = "max_steps"; record.message = `stopped at t = ${Number(plan.t.toPrecision(3))} after ${LIMITS.steps} steps`; break; }
    const h = propose(plan, until);
    if (!(h > 0)) { record.status = "diverged"; record.message = `the solution leaves double precision near t = ${plan.t}`; break; }
    system.attempt(h);
    const { rate } = system, error = system.error / TOLERANCE;
    yield;
    if (rate * h > CAP * OVERSHOOT) { Object.assign(plan, { h: (0.8 * CAP) / rate, rate, width: 0, reach: CAP }); record.rejected++; continue; }
    if (!(error <= 1 && system.extent < 1)) { refuse(plan, h, error, system.extent, rate); record.rejected++; continue; }
    const end = plan.t + h >= until || until - plan.t - h <= 1e-15 * until ? until : plan.t + h;
    for (; record.frames < times.length && times[record.frames] <= end; ) { system.between(Math.min(1, Math.max(0, (times[record.frames] - plan.t) / h)), between); save(); }
    system.commit();
    accept(plan, h, error, rate);
    plan.t = record.t = end;
    record.accepted++;
  }
  return system.angles;
}

// The planned step, inside the cap that the extrapolated rate sets, not beyond the end.
function propose(plan, until) {
  if (plan.rate > 0) {
    const expected = plan.rate / (1 - Math.min(plan.growth * plan.width * plan.rate, 0.9));
    if (plan.h * expected > plan.reach) plan.h = plan.reach / expected;
  }
  return 1.0001 * plan.h < until - plan.t ? plan.h : until - plan.t;
}
function refuse(plan, h, error, extent, rate) {
  plan.rejected = true;
  plan.width = 0;
  if (!(error < 1e300)) plan.h = REJECT * h;
  else if (error <= 1) plan.h = (0.5 * h) / Math.max(extent, 1);
  else if (rate * h > UNSTABLE) {
    const reach = Math.min(CAP, rate * h * error ** (-1 / STEEPNESS) * UNSTABLE_SAFETY);
    Object.assign(plan, { h: reach / rate, rate, reach: Math.max(UNSTABLE, reach) });
  } else plan.h = h * Math.max(REJECT, SAFETY * error ** -0.2);
}
function accept(plan, h, error, rate) {
  let factor = SAFETY * Math.max(error, 1e-12) ** -0.2;
  if (!plan.first) factor = Math.min(factor, SAFETY * (h / plan.hOld) * (plan.errorOld / Math.max(error, FLOOR) ** 2) ** 0.2);
  factor = Math.min(GROW, Math.max(SHRINK, factor));
  if (plan.rejected) factor = Math.min(factor, 1);
  if (rate * h > UNSTABLE) {
    plan.reach = Math.max(UNSTABLE, Math.min(CAP, rate * h * Math.max(error, 1e-4) ** (-1 / STEEPNESS) * UNSTABLE_SAFETY));
    factor = GROW;
  } else plan.reach = Math.min(CAP, 1.5 * plan.reach);
  const before = plan.rate;
  plan.growth = before > 0 && rate > 0 && plan.width > 0 ? Math.min(1.5, Math.max(0, (rate - before) / (plan.width * rate * before))) : 1;
  Object.assign(plan, { hOld: h, errorOld: Math.max(error, FLOOR), rate, width: h, rejected: false, h: h * factor, first: false });
}
