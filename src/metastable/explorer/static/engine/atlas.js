// Table 1: what is predicted from V, and where a run ended (`metastable.analysis.predict` and `classify`), in the page's words.

import { closerThan, distance, Linker } from "./clusters.js";
import { Force } from "./force.js";
import { leadingEigenvalue, spectralNorm } from "./linear.js";

const ROWS = { 1: "one point, x_1(0)", 2: "one point in L", 3: "two points, xi and -xi", 4: "a cloud of points around L", 5: "two clouds, around xi and -xi" };
const ROTATION = "one point rotating in L", APART = "token 1 rotating in L, the others apart from it", FIRST_ROTATES = "token 1 rotating in L";
const OTHER = "none of the atlas", UNSETTLED = "unsettled";
const RADIUS = 1e-2, CLOUD_ANGLE = Math.PI / 6, CLOUD_SPEED = 1e-3, DRIFT = 1e-3, SETTLED = 0.01;

export const pretty = (text) => text.replaceAll("x_1(0)", "x₁(0)").replaceAll("-xi", "−ξ").replaceAll("xi", "ξ").replaceAll("lambda_max", "λ max");

// %g of Python: six digits, no trailing zeros, an exponent for the very large and small.
export function general(value, digits = 6) {
  if (value === 0) return "0";
  const [mantissa, power] = value.toExponential(digits - 1).split("e"), exponent = Number(power);
  const clean = (text) => (text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  if (exponent >= -4 && exponent < digits) return clean(value.toFixed(Math.max(0, digits - 1 - exponent)));
  return `${clean(mantissa)}e${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
}

// Three digits, and powers of ten from 1e5 on: 37.2, 3.2·10⁷.
export function shortNumber(value) {
  if (value === 0 || (Math.abs(value) >= 1e-3 && Math.abs(value) < 1e5)) return Math.abs(value) < 1000 ? general(value, 3) : value.toFixed(0);
  const [mantissa, exponent] = value.toExponential(1).split("e"), power = "10" + [...String(Number(exponent))].map((c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]).join("");
  return mantissa === "1.0" ? power : `${mantissa.replace(/\.0$/, "")}·${power}`;
}

// The sum of the value matrices, flat.
export function valueOf(model) {
  const { dim } = model, sum = new Float64Array(dim * dim);
  for (const { value } of model.heads) for (let i = 0; i < sum.length; i++) sum[i] += value ? value[i] : i % (dim + 1) === 0 ? 1 : 0;
  return sum;
}

// ---------------------------------------------------------------------------------------------------------- prediction

const NORMS = { post_ln: () => "PostLN()", pre_ln: () => "PreLN()", mix_ln: ({ jump }) => `MixLN(tau=${floatText(jump)})`, peri_ln: () => "PeriLN()", ngpt: ({ laws }) => `NGPT(alpha=${floatText(laws[0].amplitude)})`, sqrt_scaling: () => "SqrtScaling()" };
const MASKS = { causal: (m) => `Causal(${m.include_self === false ? "include_self=False" : ""})`, full: (m) => `Full(${m.include_self === false ? "include_self=False" : ""})`, window: (m) => `Window(width=${m.width})`, sink: (m) => `Sink(sinks=${m.sinks}, width=${m.width})`, prefix: (m) => `Prefix(length=${m.length})`, matrix: () => "Mask(matrix)" };
// A float as Python writes it.
export const floatText = (value) => { const text = String(value); return /[.e]/.test(text) ? text.replace(/^(-?\d)e/, "$1e").replace(/e([+-])(\d)$/, "e$10$2") : `${text}.0`; };

const seesSelf = ({ ranges }) => ranges.every((range, k) => range.some((start, i) => i % 2 === 0 && start <= k && k < range[i + 1]));

// Why Table 1 does not cover a model, null where it does.
function obstacle(model, who, verb, parts) {
  const { heads, norm, mask, frozen } = model, lowest = Math.min(...heads.map(({ beta }) => beta)), says = (text) => `${who} ${verb} no ${text}`;
  if (model.weighting !== "softmax") return says(`${model.weighting} weights (only softmax)`);
  if (norm.kind !== "post_ln") return says(`${norm.hasRadius ? "norm with a radius:" : "norm"} ${NORMS[norm.kind](norm)} (only PostLN)`);
  if (mask.kind !== "causal") return says(`mask ${MASKS[mask.kind](mask)} (only Causal)`);
  if (heads.length > 1 && !parts.includes("heads")) return says(`sum over several heads, only one head (the model has ${heads.length})`);
  if (lowest < 0) return says(`repulsion (beta = ${general(lowest)} is below zero)`);
  if (heads.some(({ form }) => form) && !parts.includes("bilinear")) return says("query and key: Q^T K is not I, and it needs Q = K = V = I");
  if (heads.some(({ value }) => value) && !parts.includes("value")) return says("value matrix: V is not I, and it needs Q = K = V = I");
  if (frozen && !parts.includes("frozen")) return says("frozen tokens");
  if (model.noise > 0) return says(`noise (the model has noise=${general(model.noise)})`);
  if (!seesSelf(model)) return says(`mask under which a token does not see itself (${MASKS[mask.kind](mask)})`);
  const scaled = ({ beta, form }, i) => beta * (form ? form[i] : i % (model.dim + 1) === 0 ? 1 : 0);
  for (const head of heads.slice(1)) for (let i = 0; i < model.dim ** 2; i++) if (scaled(head, i) !== scaled(heads[0], i)) return `${who} covers no heads with different Q, K or beta (the spectrum is that of the sum of their V, which moves token 1)`;
  return null;
}

export const theoremApplies = (setting) => obstacle(setting.model, "section 5 of the paper", "has", ["frozen"]) === null && setting.beta > 0;

export function predict(model) {
  const { dim } = model, identity = Float64Array.from({ length: dim * dim }, (_, i) => (i % (dim + 1) === 0 ? 1 : 0));
  const origin = model.heads.reduce((sum, { value }) => sum + spectralNorm(value ?? identity, dim), 0), leading = leadingEigenvalue(valueOf(model), dim, origin);
  const says = (row, configuration, basis, reason) => ({ ...leading, row, configuration, basis, reason });
  const reason = obstacle(model, "the atlas", "covers", ["heads", "bilinear", "value"]), size = leading.subspace.length;
  if (reason) return says(null, OTHER, "none", reason);
  if (leading.im !== 0 || !leading.alone) {
    const [text, others] = leading.sign > 0 ? [ROTATION, "the others follow it"] : leading.sign < 0 ? [APART, "the others do not gather at it"] : [FIRST_ROTATES, "nothing is known of the others"];
    return says(null, text, "none", `the leading eigenvalues are complex: token 1 rotates for ever and ${others}`);
  }
  if (leading.sign === 0) return says(null, OTHER, "none", "the leading eigenvalue is 0 within the tolerance, which Table 1 leaves out");
  if (leading.sign > 0 && leading.geometric === dim) return says(1, ROWS[1], "theorem", "Theorem 4.1: V is a positive multiple of the identity");
  const row = leading.sign > 0 ? (size >= 2 ? 2 : 3) : size >= 2 ? 4 : 5;
  return says(row, ROWS[row], "conjecture", "");
}

export function predictionText({ basis, configuration, reason }) {
  if (basis !== "none") return pretty(`${configuration} (${basis})`);
  return pretty(configuration !== OTHER ? configuration : reason);
}

// --------------------------------------------------------------------------------------------------------------- ending

const median = (values) => { const sorted = Float64Array.from(values).sort(), half = sorted.length >> 1; return sorted.length % 2 ? sorted[half] : 0.5 * (sorted[half - 1] + sorted[half]); };

// The configuration that a final state fits.
function classify(setting, record, prediction) {
  const { model, tokens, dim } = setting, { final } = record, unit = spectralNorm(valueOf(model), dim) || 1, { width } = model;
  const y = new Float64Array(tokens * width), velocity = new Float64Array(tokens * width);
  for (let k = 0; k < tokens; k++) for (let a = 0; a < width; a++) y[k * width + a] = a < dim ? final[k * dim + a] : record.radius?.[k] ?? 1;
  new Force(model, tokens).velocity(record.t, y, velocity);
  const speeds = [], away = [];
  let toStart = 0, spread = 0, plus = false, minus = false;
  for (let k = 0; k < tokens; k++) {
    let square = 0, along = 0, across = 0;
    for (let a = 0; a < dim; a++) square += velocity[k * width + a] ** 2;
    speeds.push(Math.sqrt(square) / unit);
    const parts = prediction.subspace.map((axis) => axis.reduce((sum, value, a) => sum + value * final[k * dim + a], 0));
    for (const part of parts) along += part * part;
    for (let a = 0; a < dim; a++) across += (final[k * dim + a] - parts.reduce((sum, part, j) => sum + part * prediction.subspace[j][a], 0)) ** 2;
    away.push(Math.atan2(Math.sqrt(across), Math.sqrt(along)));
    if (parts.length === 1) { plus ||= parts[0] > 0; minus ||= parts[0] < 0; }
    toStart = Math.max(toStart, distance(final, k * dim, setting.start.x, 0, dim));
    spread = Math.max(spread, distance(final, k * dim, final, 0, dim));
  }
  const leaders = new Int32Array(tokens);
  new Linker(tokens, dim).leaders(final, closerThan(RADIUS), leaders);
  const size = prediction.subspace.length, inSpace = Math.max(...away) <= RADIUS, together = spread <= RADIUS, both = plus && minus;
  const found = (row, text) => ({ row, configuration: text });
  if (prediction.im !== 0 || [ROTATION, APART, FIRST_ROTATES].includes(prediction.configuration)) {
    const firstInSpace = away[0] <= RADIUS;
    if (firstInSpace && prediction.configuration === FIRST_ROTATES) return found(null, FIRST_ROTATES);
    if (together && inSpace) return found(null, ROTATION);
    if (firstInSpace && prediction.configuration === APART) return found(null, APART);
  }
  else if (size === dim) { if (together && toStart <= RADIUS) return found(1, ROWS[1]); }
  else if (inSpace && size === 1) return found(3, both ? ROWS[3] : "one point, xi or -xi");
  else if (inSpace && together) return found(2, ROWS[2]);
  if (prediction.re < 0 && median(away) <= CLOUD_ANGLE && median(speeds) <= CLOUD_SPEED && new Set(leaders).size > 1) return size > 1 ? found(4, ROWS[4]) : found(5, both ? ROWS[5] : "one cloud, around xi or -xi");
  const drift = Math.max(...speeds) * Math.max(record.t * unit, 1);
  return found(null, drift <= DRIFT && prediction.basis !== "theorem" ? OTHER : UNSETTLED);
}

// First moment from which every token stays near its last position; null if only at the very end.
function settlingTime(record, tokens, dim) {
  const { states, size, frames, times } = record, last = (frames - 1) * size;
  for (let frame = frames - 1; frame >= 0; frame--) for (let k = 0; k < tokens; k++) {
    if (distance(states, frame * size + k * dim, states, last + k * dim, dim) <= SETTLED) continue;
    return frame + 1 >= frames - 1 ? null : times[frame + 1];
  }
  return frames > 1 ? times[0] : null;
}

// What happened, in words, and whether it is what was predicted (null: nothing was, or not yet). `count`: clusters at the end.
export function reached(setting, record, count, prediction) {
  const { model, tokens, dim } = setting, clusters = count === 1 ? "one cluster" : `${count} clusters`, end = shortNumber(record.t);
  if (model.frozen) return nearFrozen(setting, record.state(record.frames - 1), clusters);
  if (model.noise > 0) return { text: `${clusters} at t = ${end}, under noise that never lets them rest`, agrees: null };
  const result = classify(setting, record, prediction), moment = settlingTime(record, tokens, dim);
  const when = moment === null || result.row === 4 || result.row === 5 ? "" : ` by t = ${shortNumber(moment)}`;
  const agrees = result.row !== null ? result.row === prediction.row : result.configuration === prediction.configuration;
  if (result.configuration !== OTHER && result.configuration !== UNSETTLED && prediction.configuration !== OTHER) return { text: pretty(result.configuration) + when, agrees };
  if (result.configuration === UNSETTLED) return { text: `${prediction.row !== null ? "not yet: " : ""}${clusters} at t = ${end}, still moving`, agrees: null };
  const unpredicted = prediction.row === null ? null : false;
  if (count === 1) return { text: `one point${when}`, agrees: unpredicted };
  // They may merge much later: clusters are never at rest.
  return { text: `${clusters} at t = ${end}${moment === null ? "" : `, nearly where they were at t = ${shortNumber(moment)}`}`, agrees: unpredicted };
}

// Theorem 5.2: every free token converges to the vicinity of some frozen one.
function nearFrozen(setting, final, clusters) {
  const { tokens, dim, width, model: { frozen } } = setting;
  let near = 0;
  for (let k = 0; k < tokens; k++) for (let j = 0; j < frozen.count; j++) if (distance(final, k * dim, frozen.places, j * dim, dim) <= width) { near++; break; }
  return { text: `${clusters}; ${near} of ${tokens} tokens within β^(−1/2) = ${shortNumber(width)} of a frozen one`, agrees: near === tokens && theoremApplies(setting) ? true : null };
}
