// One run with everything that is shown about it, as the messages that the server sends (`metastable.explorer.job`). Generators: they yield
// { message } or nothing, whenever somebody else may have a turn.

import { floatText, predict, predictionText, reached, theoremApplies } from "./atlas.js";
import { centers, closerThan, consumed, distance, Linker, merges } from "./clusters.js";
import { Force } from "./force.js";
import { eigenvalues, principalAxes } from "./linear.js";
import { integrate, Record } from "./march.js";
import { Setting } from "./setting.js";
import { clusterLaw, expectedCenters } from "./theory.js";

const CHUNK = 60, FIRST_CHUNK = 12, ATTENTION_SIZE = 96, CHANGED = 0.02, CACHE = 3, CONSUMED = 0.1;
const POSITIONS = 1, LEADERS = 2, ATTENTION = 3, HEADER = 24;

// ------------------------------------------------------------------------------------------------------------- messages

function packet(kind, { panel, run }, first, frames, tokens, components, bytes) {
  const buffer = new ArrayBuffer(HEADER + bytes), view = new DataView(buffer);
  view.setUint16(0, 0x4d53, false);
  view.setUint8(2, kind); view.setUint8(3, panel);
  [run, first, frames, tokens, components].forEach((value, i) => view.setUint32(4 + 4 * i, value, true));
  return buffer;
}

export function packPositions(tag, first, frames, tokens, components, positions, distances) {
  const buffer = packet(POSITIONS, tag, first, frames, tokens, components, 4 * frames * tokens * (components + 1));
  new Float32Array(buffer, HEADER).set(positions);
  new Float32Array(buffer, HEADER + 4 * frames * tokens * components).set(distances);
  return buffer;
}
export function packLeaders(tag, first, frames, tokens, leaders) {
  const buffer = packet(LEADERS, tag, first, frames, tokens, 1, 2 * frames * tokens);
  new Uint16Array(buffer, HEADER).set(leaders);
  return buffer;
}
function packAttention(tag, frame, tokens, matrix, size) {
  const buffer = packet(ATTENTION, tag, frame, 1, tokens, size, 4 * size * size);
  new Float32Array(buffer, HEADER).set(matrix);
  return buffer;
}

// ----------------------------------------------------------------------------------------------------------------- runs

const kept = new Map(); // the last runs, by what they are known by

export function* runOf(setting, clock, progress = null) {
  const key = setting.key(clock), times = setting.times(clock);
  let entry = kept.get(key);
  if (!entry) {
    const record = new Record(setting, times), steps = integrate(setting, times, record);
    entry = { record, steps, done: false };
    kept.set(key, entry);
    while (kept.size > CACHE) kept.delete(kept.keys().next().value);
  }
  while (!entry.done) { // a run that was left for another wish is taken up where it was
    if (entry.steps.next().done) entry.done = true;
    else if (progress) yield* progress(entry.record);
    else yield null;
  }
  return entry.record;
}

// How tokens are shown in two or three numbers; null while that needs the states of a run that is not there yet.
function viewOf(setting, prediction, record) {
  const { dim, projection } = setting, unit = (i) => Float64Array.from({ length: dim }, (_, a) => (a === i ? 1 : 0));
  if (dim <= 3) return { name: "the space itself", axes: Array.from({ length: dim }, (_, i) => unit(i)) };
  if (projection === "coordinates") return { name: "first three coordinates", axes: [0, 1, 2].map(unit) };
  if (!record) return null;
  const leading = prediction.subspace;
  if (projection === "leading" || (projection === "auto" && leading.length < dim)) {
    const basis = leading.slice(0, 3), missing = 3 - basis.length;
    return { name: missing ? `L and ${missing} principal axes` : "leading eigenspace L", axes: missing ? [...basis, ...principalAxes(moments(record, dim, basis), dim, missing)] : basis };
  }
  return { name: "principal axes", axes: principalAxes(moments(record, dim, []), dim, 3) };
}
// Sum over all tokens and frames of x x^T, less what lies along `basis`.
function moments(record, dim, basis) {
  const sum = new Float64Array(dim * dim), x = new Float64Array(dim);
  for (let at = 0; at < record.frames * record.size; at += dim) {
    x.set(record.states.subarray(at, at + dim));
    for (const axis of basis) { let part = 0; for (let a = 0; a < dim; a++) part += axis[a] * x[a]; for (let a = 0; a < dim; a++) x[a] -= part * axis[a]; }
    for (let a = 0; a < dim; a++) for (let b = 0; b < dim; b++) sum[a * dim + b] += x[a] * x[b];
  }
  return sum;
}
function project(view, states, dim) {
  const { axes } = view, rows = states.length / dim, out = new Float32Array(rows * axes.length);
  for (let k = 0; k < rows; k++) for (let j = 0; j < axes.length; j++) {
    let sum = 0;
    for (let a = 0; a < dim; a++) sum += axes[j][a] * states[k * dim + a];
    out[k * axes.length + j] = sum;
  }
  return out;
}
function positions(setting, record, view, tag, first, stop) {
  const { tokens, dim } = setting, { size, states } = record, part = states.subarray(first * size, stop * size), away = new Float32Array((stop - first) * tokens);
  for (let f = 0; f < stop - first; f++) for (let k = 0; k < tokens; k++) away[f * tokens + k] = distance(part, f * size + k * dim, part, f * size, dim);
  return packPositions(tag, first, stop - first, tokens, view.axes.length, project(view, part, dim), away);
}

// ------------------------------------------------------------------------------------------------------------- simulate

export function* simulate(order) {
  const tag = { panel: order.panel, run: order.run }, setting = new Setting(order.setting), times = setting.times(order.clock), { tokens, dim, model } = setting;
  const began = performance.now(), { x } = setting.start;
  yield { message: { type: "begin", ...tag, times: Array.from(times), tokens, dim, components: Math.min(dim, 3), delta: setting.delta, radius: setting.radius } };
  const prediction = predict(model), renyi = centers(x, tokens, dim, setting.delta, false), strong = centers(x, tokens, dim, setting.delta, true);
  let view = viewOf(setting, prediction, null), sent = 0;
  yield { message: factsOf(setting, times, prediction, renyi, strong, tag) };
  const show = function* (record, all) {
    if (!view || (record.frames < sent + (sent ? CHUNK : FIRST_CHUNK) && !all)) { yield null; return; }
    while (sent < record.frames) { const stop = Math.min(sent + CHUNK, record.frames); yield { message: positions(setting, record, view, tag, sent, stop) }; sent = stop; }
  };
  const record = yield* runOf(setting, order.clock, show), seconds = (performance.now() - began) / 1000;
  view = view ?? viewOf(setting, prediction, record);
  yield { message: { type: "view", ...tag, name: view.name, frozen: frozenShown(model, view), leading: leadingShown(prediction, view, dim) } };
  yield* show(record, true);
  const leaders = yield* leadersOf(setting, record, tag), { frames } = record, near = CONSUMED * setting.delta;
  const clusters = [], curve = { renyi: [], strong: [] };
  for (let frame = 0; frame < frames; frame++) {
    clusters.push(new Set(leaders.subarray(frame * tokens, (frame + 1) * tokens)).size);
    curve.renyi.push(consumed(record.state(frame), tokens, dim, renyi, near));
    curve.strong.push(consumed(record.state(frame), tokens, dim, strong, near));
    if (frame % 40 === 0) yield null;
  }
  yield { message: { type: "curves", ...tag, clusters, ...curve, merges: model.noise > 0 || frames < 2 ? [] : merges(leaders, frames, tokens, times) } };
  const changed = yield* changes(order.before, setting, order.clock, record);
  yield { message: {
    type: "end", ...tag, frames, reached: reached(setting, record, clusters.at(-1), prediction), status: record.status, message: record.message, method: record.method,
    engine: "browser", steps: record.accepted, until: record.t, seconds, changed,
  } };
}

function factsOf(setting, times, prediction, renyi, strong, tag) {
  const { model, dim, delta, tokens } = setting, identity = Float64Array.from({ length: dim * dim }, (_, i) => (i % (dim + 1) === 0 ? 1 : 0));
  return {
    type: "facts", ...tag, prediction: { text: predictionText(prediction), row: prediction.row, eigenvalue: [prediction.re, prediction.im] },
    spectrum: model.heads.map(({ value }) => eigenvalues(value ?? identity, dim)), centers: renyi, strong, expected: expectedCenters(delta, dim, tokens),
    law: theoremApplies(setting) && !model.frozen ? clusterLaw(times, setting.beta, dim, tokens) : null,
  };
}
function frozenShown({ frozen, dim }, view) {
  if (!frozen) return null;
  const shown = project(view, frozen.places, dim), size = view.axes.length;
  return Array.from({ length: frozen.count }, (_, k) => Array.from(shown.subarray(k * size, (k + 1) * size)));
}
function leadingShown({ subspace }, view, dim) {
  if (subspace.length >= dim || dim > 3) return null;
  return subspace.map((axis) => Array.from(project(view, axis, dim)));
}

function* leadersOf(setting, record, tag) {
  const { tokens, dim, radius } = setting, { frames } = record, linker = new Linker(tokens, dim), bound = closerThan(radius), all = new Uint16Array(frames * tokens);
  for (let first = 0; first < frames; first += CHUNK) {
    const stop = Math.min(first + CHUNK, frames);
    for (let frame = first; frame < stop; frame++) linker.leaders(record.state(frame), bound, all.subarray(frame * tokens, (frame + 1) * tokens));
    yield { message: packLeaders(tag, first, stop - first, tokens, all.subarray(first * tokens, stop * tokens)) };
  }
  return all;
}

// What became different from the run of the setting `before`, for the tokens that both have.
function* changes(before, setting, clock, record) {
  if (!before || before.model?.dim !== setting.dim) return null;
  const earlier = new Setting(before), other = yield* runOf(earlier, clock), { dim } = setting, shared = Math.min(earlier.tokens, setting.tokens);
  const moved = [];
  for (let k = 0; k < shared; k++) if (distance(earlier.start.x, k * dim, setting.start.x, k * dim, dim) > 0) moved.push(k);
  const first = moved[0] ?? shared;
  let elsewhere = 0, shift = 0, exact = true;
  for (let k = 0; k < shared; k++) {
    const gap = distance(other.final, k * dim, record.final, k * dim, dim);
    if (k < first) { shift = Math.max(shift, gap); for (let a = k * dim; a < (k + 1) * dim; a++) exact &&= other.final[a] === record.final[a]; } else if (gap > CHANGED) elsewhere++;
  }
  return { moved, added: setting.tokens - earlier.tokens, earlier: first, earlier_shift: shift, earlier_exact: exact, later: shared - first, elsewhere };
}

// ------------------------------------------------------------------------------------------------------------ attention

// Weights at one frame: of `order.state` where a recorded run is shown, else of the run, which is computed if it was forgotten.
export function* attention(order) {
  const tag = { panel: order.panel, run: order.run }, setting = new Setting(order.setting), { tokens } = setting;
  let state = order.state;
  if (!state) {
    const record = yield* runOf(setting, order.clock);
    if (order.frame >= record.frames) throw new Error(`the run stopped at t = ${floatText(record.t)}, before frame ${order.frame}`);
    state = record.state(order.frame);
  }
  const matrix = new Force(setting.model, tokens).matrix(state);
  if (tokens <= ATTENTION_SIZE) { yield { message: packAttention(tag, order.frame, tokens, matrix, tokens) }; return; }
  // Rows are averaged and columns added over blocks of tokens: every row still sums to what its tokens give to those they see.
  const edges = Array.from({ length: ATTENTION_SIZE + 1 }, (_, i) => Math.floor((i * tokens) / ATTENTION_SIZE)), blocks = new Float32Array(ATTENTION_SIZE ** 2);
  for (let a = 0; a < ATTENTION_SIZE; a++) for (let b = 0; b < ATTENTION_SIZE; b++) {
    let sum = 0;
    for (let k = edges[a]; k < edges[a + 1]; k++) for (let j = edges[b]; j < edges[b + 1]; j++) sum += matrix[k * tokens + j];
    blocks[a * ATTENTION_SIZE + b] = sum / (edges[a + 1] - edges[a]);
  }
  yield { message: packAttention(tag, order.frame, tokens, blocks, ATTENTION_SIZE) };
}

