// What the page asks for, checked and made ready to compute with: the browser's side of `metastable.explorer.setting`. The model that
// comes out is plain: heads with matrices as flat arrays (null for the identity), visible ranges, the laws of norm and weights.

import { normals } from "./random.js";
import { draw, FIELDS as STARTS, normalizeRow } from "./starts.js";

export const LIMITS = { tokens: 2000, dim: 32, numbers: 8000, appended: 64, frozen: 64, beta: 1e4, low: 1e-3, high: 1e60, frames: 361, steps: 20000 };
const UNIT_TOLERANCE = 1e-6;
const PACKAGE = "the metastable package does it: run `metastable explore`";

// `until`: the longest horizon that is possible, where that is what was wrong.
export class SettingError extends Error {
  constructor(text, until) { super(text); this.until = until; }
}
const refuse = (text, until) => { throw new SettingError(text, until); };

export function number(value, name, low = -Infinity, high = Infinity) {
  if (typeof value !== "number" || !Number.isFinite(value)) refuse(`${name} must be a number, not ${JSON.stringify(value)}`);
  if (value < low || value > high) refuse(`${name} must be ${high === Infinity ? `at least ${low}` : `between ${low} and ${high}`}, not ${value}`);
  return value;
}
export function count(value, name, low = 1, high = Infinity) {
  if (!Number.isInteger(value)) refuse(`${name} must be a whole number, not ${JSON.stringify(value)}`);
  return number(value, name, low, high);
}

// ------------------------------------------------------------------------------------------------------------- clock

// The moments of a run, as `Clock.times` has them: evenly spaced in t or in log t, whole multiples of `step` where there is one.
export function timesOf(clock, step) {
  const until = number(clock?.until, "the horizon", LIMITS.low, LIMITS.high), frames = LIMITS.frames;
  const times = new Float64Array(frames);
  if (clock.log) {
    const from = Math.log10(Math.min(0.01, until / 100)), width = (Math.log10(until) - from) / (frames - 2);
    for (let i = 2; i < frames; i++) times[i] = 10 ** (from + (i - 1) * width);
    times[1] = Math.min(0.01, until / 100);
  } else for (let i = 1; i < frames; i++) times[i] = (i * until) / (frames - 1);
  times[frames - 1] = until;
  if (!step) return times;
  return Float64Array.from(new Set(Array.from(times, (t) => roundEven(t / step))), (multiple) => multiple * step);
}
function roundEven(value) {
  const floor = Math.floor(value), rest = value - floor;
  return rest < 0.5 || (rest === 0.5 && floor % 2 === 0) ? floor : floor + 1;
}

// ------------------------------------------------------------------------------------------------------------- model

function flat(rows, dim, name) {
  if (!Array.isArray(rows) || rows.length !== dim || !rows.every((row) => Array.isArray(row) && row.length === dim)) refuse(`${name} must be a matrix of ${dim} x ${dim} numbers`);
  const matrix = Float64Array.from(rows.flat());
  rows.flat().forEach((entry) => { if (typeof entry !== "number" || !Number.isFinite(entry)) refuse(`${name} has an entry that is not a number: ${JSON.stringify(entry)}`); });
  return matrix;
}

// A matrix as the page writes it: null (identity), rows, { eigenvalues } or { gaussian: seed }. The identity is null, however it was given.
export function matrixOf(value, dim, name) {
  if (value === null || value === undefined) return null;
  const matrix = Array.isArray(value) ? flat(value, dim, name) : abbreviated(value, dim, name);
  return matrix.every((entry, i) => entry === (i % (dim + 1) === 0 ? 1 : 0)) ? null : matrix;
}
function abbreviated(value, dim, name) {
  if (typeof value === "object" && "gaussian" in value) return normals(count(value.gaussian, `${name}.gaussian (a seed)`, 0, 2 ** 32 - 1), dim * dim);
  if (typeof value === "object" && Array.isArray(value.eigenvalues)) return fromEigenvalues(value.eigenvalues, dim, name);
  return refuse(`${name} must be a matrix, null, {"eigenvalues": [[re, im], ...]} or {"gaussian": seed}`);
}

// Real eigenvalues on the diagonal in the order given, a block [[a, -b], [b, a]] for each conjugate pair (b > 0 is listed, or both are).
export function fromEigenvalues(pairs, dim, name) {
  if (pairs.length > dim) refuse(`${name} has ${pairs.length} eigenvalues, but the dimension is ${dim}`);
  for (const pair of pairs) {
    if (!Array.isArray(pair) || pair.length !== 2) refuse(`${name}.eigenvalues must be a list of pairs [re, im]`);
    pair.forEach((part) => number(part, `an eigenvalue of ${name}`, -1e6, 1e6));
  }
  const sorted = (sign) => pairs.filter(([, im]) => sign * im > 0).map(([re, im]) => [re, sign * im]).sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const lower = sorted(-1);
  if (lower.length && JSON.stringify(lower) !== JSON.stringify(sorted(1))) refuse(`the complex eigenvalues of ${name} must come in conjugate pairs a + ib, a - ib`);
  const matrix = new Float64Array(dim * dim);
  let row = 0;
  for (const [re, im] of pairs) {
    if (im < 0) continue;
    const size = im === 0 ? 1 : 2;
    if (row + size > dim) refuse(`the eigenvalues of ${name} need more than ${dim} dimensions; a pair takes two`);
    for (let i = row; i < row + size; i++) matrix[i * dim + i] = re;
    if (size === 2) { matrix[row * dim + row + 1] = -im; matrix[(row + 1) * dim + row] = im; }
    row += size;
  }
  if (row !== dim) refuse(`${name} needs ${dim} eigenvalues (a conjugate pair counts as two), not ${row}`);
  return matrix;
}

export function product(a, b, dim) {
  const out = new Float64Array(dim * dim);
  for (let i = 0; i < dim; i++) for (let k = 0; k < dim; k++) {
    const factor = a[i * dim + k];
    for (let j = 0; j < dim; j++) out[i * dim + j] += factor * b[k * dim + j];
  }
  return out;
}
function transpose(a, dim) {
  const out = new Float64Array(dim * dim);
  for (let i = 0; i < dim; i++) for (let j = 0; j < dim; j++) out[j * dim + i] = a[i * dim + j];
  return out;
}

// One head: beta, V, and the form M = Q^T K, each null for the identity.
function headOf(table, dim, where) {
  for (const name of ["output", "rotary", "query_bias", "key_bias", "value_bias"]) if (table[name] !== undefined && table[name] !== null) refuse(`heads with ${name.replace("_", " ")} are not computed in the browser; ${PACKAGE}`);
  const beta = number(table.beta, `${where}beta`), [query, key, value] = ["query", "key", "value"].map((name) => matrixOf(table[name], dim, where + name));
  if (Math.abs(beta) > LIMITS.beta) refuse(`the explorer goes up to beta = ${LIMITS.beta}, not ${beta}`);
  let form = query || key ? (query ? (key ? product(transpose(query, dim), key, dim) : transpose(query, dim)) : key) : null;
  if (form?.every((entry, i) => entry === (i % (dim + 1) === 0 ? 1 : 0))) form = null;
  return { beta, form, value };
}

function variant(value, fallback) {
  if (value === undefined || value === null) return { kind: fallback };
  if (typeof value === "string") return { kind: value };
  if (typeof value !== "object" || Array.isArray(value)) refuse(`a mask, a norm and weights are named by a word or a table, not ${JSON.stringify(value)}`);
  return { ...value, kind: value.kind ?? fallback };
}

// Whom each token sees: an array of [start, stop, start, stop, ...] per token.
function rangesOf(mask, tokens) {
  const { kind } = mask, own = mask.include_self === false ? 0 : 1;
  const size = (name) => count(mask[name], `mask.${name}`);
  const rows = {
    causal: (k) => [0, k + own],
    full: (k) => (own ? [0, tokens] : [0, k, k + 1, tokens]),
    window: (k) => [Math.max(0, k + 1 - size("width")), k + 1],
    sink: (k) => { const sinks = Math.min(size("sinks"), k + 1); return [0, sinks, Math.max(sinks, k + 1 - size("width")), k + 1]; },
    prefix: (k) => [0, Math.max(k + 1, Math.min(size("length"), tokens))],
    matrix: (k) => runs(mask.allowed, k, tokens),
  }[kind];
  if (!rows) refuse(`the mask "${kind}" is not computed in the browser; ${PACKAGE}`);
  return Array.from({ length: tokens }, (_, k) => Int32Array.from(rows(k)));
}
function runs(allowed, k, tokens) {
  if (!Array.isArray(allowed) || allowed.length !== tokens || allowed[k]?.length !== tokens) refuse(`mask.allowed must be a matrix of ${tokens} x ${tokens}`);
  const found = [];
  for (let j = 0; j < tokens; j++) {
    if (!allowed[k][j]) continue;
    if (found.at(-1) === j) found[found.length - 1] = j + 1;
    else found.push(j, j + 1);
  }
  if (!found.length) refuse(`every token must see somebody, but row ${k} of the mask is empty`);
  return found;
}

// The numbers of d theta/dt = P U / r^p, dr/dt = rho <theta, U>, U = a (t + 1)^-c |A|^-q A (`metastable.model.norms`).
const law = (amplitude = 1, decay = 0, radiusPower = 0, lengthPower = 0, radial = 0) => ({ amplitude, decay, radiusPower, lengthPower, radial });
function normOf(table) {
  const { kind } = table, plain = { jump: Infinity, hasRadius: false };
  if (kind === "post_ln") return { ...plain, kind, laws: [law()] };
  if (kind === "pre_ln") return { ...plain, kind, laws: [law(1, 0, 1, 0, 1)], hasRadius: true };
  if (kind === "mix_ln") return { kind, laws: [law(), law(1, 0, 1, 0, 1)], hasRadius: true, jump: number(table.tau, "norm.tau", 0) };
  if (kind === "peri_ln") return { ...plain, kind, laws: [law(1, 0, 1, 1, 1)], hasRadius: true };
  if (kind === "ngpt") { if (!(number(table.alpha, "norm.alpha", 0) > 0)) refuse("norm.alpha must be greater than 0"); return { ...plain, kind, laws: [law(table.alpha, 0, 0, 1)] }; }
  if (kind === "sqrt_scaling") return { ...plain, kind, laws: [law(1, 0.5)] };
  return refuse(`the norm "${kind}" is not computed in the browser; ${PACKAGE}`);
}

const WEIGHTS = { softmax: { score: "exponential", total: "weights" }, unnormalized: { score: "exponential", total: "visible" }, hardmax: { score: "largest", total: "weights" } };

function frozenOf(table, dim) {
  if (!table) return null;
  const { tokens } = table;
  if (!Array.isArray(tokens) || !tokens.length || !tokens.every((token) => Array.isArray(token) && token.length === dim)) refuse(`frozen.tokens must be a list of vectors of dimension ${dim}`);
  if (tokens.length > LIMITS.frozen) refuse(`the explorer shows up to ${LIMITS.frozen} frozen tokens`);
  tokens.flat().forEach((entry) => number(entry, "a coordinate of a frozen token"));
  for (let k = 0; k < tokens.length; k++) if (Math.abs(Math.hypot(...tokens[k]) - 1) > UNIT_TOLERANCE) refuse(`frozen token ${k} must be a unit vector`);
  const places = Float64Array.from(tokens.flatMap((token) => token.map((entry) => entry / Math.hypot(...token))));
  const weights = Float64Array.from(table.weights ?? tokens.map(() => 1));
  if (weights.length !== tokens.length) refuse(`frozen.weights must have ${tokens.length} numbers`);
  weights.forEach((weight) => number(weight, "a weight of a frozen token", 0));
  return { count: tokens.length, places, weights };
}

const FIELDS = ["dim", "beta", "query", "key", "value", "heads", "mask", "weights", "norm", "frozen", "noise", "tie_tolerance"];
const ELSEWHERE = { feedforward: "a feed-forward layer", masses: "masses of moving tokens", bias: "a bias of the logits" };

export function modelOf(table, tokens) {
  if (typeof table !== "object" || table === null) refuse("setting.model must be a table of fields");
  const dim = count(table.dim, "dim", 2);
  for (const [name, value] of Object.entries(table)) {
    if (value === null || FIELDS.includes(name)) continue;
    refuse(ELSEWHERE[name] ? `${ELSEWHERE[name]} is not computed in the browser; ${PACKAGE}` : `a model has no field "${name}"`);
  }
  if (table.heads && ["beta", "query", "key", "value"].some((name) => table[name] !== undefined && table[name] !== null)) refuse("give either heads or beta, query, key, value, not both");
  const heads = table.heads ? table.heads.map((head, i) => headOf(head, dim, `heads[${i}].`)) : [headOf(table, dim, "")];
  if (!heads.length) refuse("heads must hold at least one head");
  const { kind: weighting } = variant(table.weights, "softmax"), mask = variant(table.mask, "causal");
  if (!WEIGHTS[weighting]) refuse(`the weights "${weighting}" are not computed in the browser; ${PACKAGE}`);
  const norm = normOf(variant(table.norm, "post_ln"));
  return {
    dim, heads, mask, weighting, law: WEIGHTS[weighting], norm, frozen: frozenOf(table.frozen, dim), ranges: rangesOf(mask, tokens),
    noise: number(table.noise ?? 0, "noise", 0), tie: number(table.tie_tolerance ?? 1e-12, "tie_tolerance", 0), width: dim + (norm.hasRadius ? 1 : 0),
  };
}

// ------------------------------------------------------------------------------------------------------------- start

function checkSize(tokens, dim) {
  const elsewhere = "larger systems run in Python with metastable.simulate";
  if (tokens > LIMITS.tokens) refuse(`the explorer shows up to ${LIMITS.tokens} tokens, not ${tokens}; ${elsewhere}`);
  if (dim > LIMITS.dim) refuse(`the explorer shows up to ${LIMITS.dim} dimensions, not ${dim}; ${elsewhere}`);
  if (tokens * dim > LIMITS.numbers) refuse(`${tokens} tokens of dimension ${dim} are ${tokens * dim} numbers, and the explorer moves up to ${LIMITS.numbers}: take fewer tokens or a smaller dimension; ${elsewhere}`);
}
function direction(value, dim, name) {
  if (!Array.isArray(value) || value.length !== dim) refuse(`${name} must be a list of ${dim} numbers`);
  const largest = Math.max(...value.map((entry) => Math.abs(number(entry, `a coordinate of ${name}`))));
  if (!(largest > 1e-6 && largest < 1e6)) refuse(`${name} must be a direction, not (nearly) zero or huge`);
  const unit = Float64Array.from(value);
  normalizeRow(unit, 0, dim);
  return unit;
}
function startOf(table, dim) {
  if (typeof table !== "object" || table === null) refuse("setting.start must be a table of fields");
  const { appended = [], placed = [], removed = [], kind = "uniform" } = table;
  if (!STARTS[kind]) refuse(`the start "${kind}" is not drawn in the browser; ${PACKAGE}`);
  for (const name of Object.keys(table)) if (!["tokens", "seed", "placed", "appended", "removed", "kind", ...STARTS[kind]].includes(name)) refuse(`start has no field "${name}"`);
  const drawn = count(table.tokens, "the number of tokens"), seed = count(table.seed ?? 0, "seed", 0, 2 ** 32 - 1);
  for (const list of [appended, placed, removed]) if (!Array.isArray(list) || list.length > LIMITS.appended) refuse(`tokens placed by hand must be a list of at most ${LIMITS.appended}`);
  const all = drawn + appended.length;
  checkSize(all, dim);
  const x = new Float64Array(all * dim);
  x.set(draw(kind, { tokens: drawn, dim, seed, ...numbersOf(table, kind, drawn, dim) }));
  appended.forEach((place, i) => x.set(direction(place, dim, `appended token ${i}`), (drawn + i) * dim));
  for (const item of placed) {
    if (!Array.isArray(item) || item.length !== 2) refuse("start.placed must hold pairs [index, position]");
    const index = count(item[0], "the index of a moved token", 0, all - 1);
    x.set(direction(item[1], dim, `token ${index + 1}`), index * dim);
  }
  const out = new Set(removed.map((index) => count(index, "the index of a token that was taken out", 0, all - 1)));
  if (out.size >= all) refuse("every token was taken out; at least one must stay");
  const indices = Array.from({ length: all }, (_, k) => k).filter((k) => !out.has(k));
  const byHand = Boolean(placed.length || appended.length || out.size);
  return { x: out.size ? Float64Array.from(indices.flatMap((k) => Array.from(x.subarray(k * dim, (k + 1) * dim)))) : x, tokens: indices.length, seed, indices, byHand, kind };
}
// The numbers of a distribution, in the ranges that `metastable.starts` allows.
function numbersOf(table, kind, tokens, dim) {
  if (kind === "equally_spaced" && dim > 3) refuse(`points are equally spaced for dim 2 and 3, not ${dim}; take uniform ones`);
  const ranges = { concentration: [0, 1e6], correlation: kind === "chain" ? [-1, 1] : [0, 1] }, numbers = {};
  for (const name of STARTS[kind]) numbers[name] = name === "centers" ? count(table[name], name, 1, tokens) : number(table[name], name, ...ranges[name]);
  if (kind === "chain" && Math.abs(numbers.correlation) === 1) refuse("correlation must be between -1 and 1, the ends left out");
  return numbers;
}

// ----------------------------------------------------------------------------------------------------------- setting

const PROJECTIONS = ["auto", "leading", "principal", "coordinates"];
const SDE_STEP = 0.01, MAX_NOISE_STEPS = 20000;

export class Setting {
  constructor(data) {
    for (const name of Object.keys(data ?? {})) if (!["model", "start", "delta", "radius", "projection"].includes(name)) refuse(`setting has no field "${name}"`);
    const dim = count(data?.model?.dim, "dim", 2);
    checkSize(1, dim);
    this.data = data;
    this.start = startOf(data.start, dim);
    this.model = modelOf(data.model, this.start.tokens);
    this.tokens = this.start.tokens;
    this.dim = dim;
    const hottest = Math.max(...this.model.heads.map((head) => Math.abs(head.beta)));
    this.width = 1 / Math.sqrt(Math.max(1, hottest)); // of the attraction
    this.beta = Math.max(...this.model.heads.map((head) => head.beta));
    for (const name of ["delta", "radius"]) if (data[name] !== undefined && data[name] !== null && !(number(data[name], name, 0, Math.PI) > 0)) refuse(`${name} must be greater than 0`);
    this.delta = data.delta ?? Math.min(Math.PI, 4 * this.width);
    this.radius = data.radius ?? 0.5 * this.width;
    this.projection = data.projection ?? "auto";
    if (!PROJECTIONS.includes(this.projection)) refuse(`projection must be one of ${PROJECTIONS.join(", ")}`);
    this.step = this.model.noise > 0 ? this.noiseStep() : null;
  }

  // 0.01, halved until noise and drift can be taken in turns.
  noiseStep() {
    const still = this.model.heads.every(({ value }) => value && value.every((entry) => entry === 0));
    const rate = still ? 0 : this.model.noise ** 2 * (this.dim - 1);
    return rate * SDE_STEP <= 1 ? SDE_STEP : SDE_STEP * 2 ** -Math.ceil(Math.log2(rate * SDE_STEP));
  }

  times(clock) {
    const longest = MAX_NOISE_STEPS * this.step, until = clock?.until;
    if (this.step && !(until >= this.step && until <= longest)) refuse(`with noise the explorer takes steps of ${this.step} up to t = ${longest}, not to t = ${until}`, Math.min(Math.max(until, this.step), longest));
    return timesOf(clock, this.step);
  }

  // What a run is known by: everything that changes it.
  key(clock) { return JSON.stringify([this.data.model, this.data.start, clock]); }
}
