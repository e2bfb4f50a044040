// One run with everything that is shown about it, as the messages that the server sends (`metastable.explorer.job`). Generators: they yield
// { message } or nothing, whenever somebody else may have a turn.

import { floatText, predict, predictionText, reached, theoremApplies, valueOf } from "./atlas.js";
import { centers, closerThan, consumed, distance, Linker, merges } from "./clusters.js";
import { Force } from "./force.js";
import { eigenvalues, principalAxes, spectralNorm } from "./linear.js";
import { integrate, Record } from "./march.js";
import { packAttention, packLeaders, packPositions } from "./packets.js";
import { Setting } from "./setting.js";
import { clusterLaw, expectedCenters } from "./theory.js";

const CHUNK = 60, FIRST_CHUNK = 12, ATTENTION_SIZE = 96, CHANGED = 0.02, CACHE = 3, CONSUMED = 0.1, ENERGY_TOKENS = 600;

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
  const linker = new Linker(tokens, dim), bound = closerThan(setting.radius), leaders = new Uint16Array(times.length * tokens);
  const show = function* (record, all) {
    if (!view || (record.frames < sent + (sent ? CHUNK : FIRST_CHUNK) && !all)) { yield null; return; }
    while (sent < record.frames) {
      const first = sent, stop = (sent = Math.min(sent + CHUNK, record.frames));
      yield { message: positions(setting, record, view, tag, first, stop) };
      for (let frame = first; frame < stop; frame++) linker.leaders(record.state(frame), bound, leaders.subarray(frame * tokens, (frame + 1) * tokens));
      yield { message: packLeaders(tag, first, stop - first, tokens, leaders.subarray(first * tokens, stop * tokens)) };
    }
  };
  const record = yield* runOf(setting, order.clock, show), seconds = (performance.now() - began) / 1000;
  view = view ?? viewOf(setting, prediction, record);
  yield { message: { type: "view", ...tag, name: view.name, frozen: frozenShown(model, view), leading: leadingShown(prediction, view, dim) } };
  yield* show(record, true);
  const { frames } = record, near = CONSUMED * setting.delta, energy = energyOf(setting);
  const clusters = [], curve = { renyi: [], strong: [], energy: energy ? [] : null };
  for (let frame = 0; frame < frames; frame++) {
    clusters.push(countOf(leaders.subarray(frame * tokens, (frame + 1) * tokens)));
    curve.renyi.push(consumed(record.state(frame), tokens, dim, renyi, near));
    curve.strong.push(consumed(record.state(frame), tokens, dim, strong, near));
    if (energy) curve.energy.push(energy(record.state(frame)));
    if (energy || frame % 20 === 0) yield null;
  }
  yield { message: { type: "curves", ...tag, clusters, ...curve, merges: model.noise > 0 || frames < 2 ? [] : merges(leaders, frames, tokens, times) } };
  const changed = yield* changes(order.before, setting, order.clock, record);
  yield { message: {
    type: "end", ...tag, frames, reached: reached(setting, record, clusters.at(-1), prediction), status: record.status, message: record.message, method: record.method,
    engine: "browser", steps: record.accepted, until: record.t, seconds, changed,
  } };
}

// Clusters are as many as tokens that lead themselves.
function countOf(leaders) {
  let count = 0;
  for (let k = 0; k < leaders.length; k++) if (leaders[k] === k) count++;
  return count;
}
function factsOf(setting, times, prediction, renyi, strong, tag) {
  const { model, dim, delta, tokens } = setting, identity = Float64Array.from({ length: dim * dim }, (_, i) => (i % (dim + 1) === 0 ? 1 : 0));
  return {
    type: "facts", ...tag, prediction: { text: predictionText(prediction), row: prediction.row, eigenvalue: [prediction.re, prediction.im] },
    spectrum: model.heads.map(({ value }) => eigenvalues(value ?? identity, dim)), total: eigenvalues(valueOf(model), dim), centers: renyi, strong, expected: expectedCenters(delta, dim, tokens),
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

// The energy that all tokens climb together under full attention with Q^T K = V symmetric, relative to that of tokens which are all in one
// place; null where they climb none.
function energyOf({ model, tokens, dim, start }) {
  const { heads: [{ beta, form, value }], frozen } = model;
  if (model.heads.length > 1 || model.mask.kind !== "full" || model.weighting === "hardmax" || !beta || tokens > ENERGY_TOKENS || !symmetric(form, value, dim)) return null;
  const own = model.mask.include_self !== false, top = Math.abs(beta) * (value ? spectralNorm(value, dim) : 1), turned = new Float64Array(tokens * dim);
  const pull = (x, i, y, j) => { let dot = 0; for (let a = 0; a < dim; a++) dot += x[i + a] * y[j + a]; return Math.exp(Math.min(beta * dot - top, 0)); };
  const sum = (x) => {
    let total = 0;
    for (let k = 0; k < tokens; k++) for (let a = 0; a < dim; a++) { let v = 0; if (value) for (let b = 0; b < dim; b++) v += value[a * dim + b] * x[k * dim + b]; else v = x[k * dim + a]; turned[k * dim + a] = v; }
    for (let i = 0; i < tokens; i++) for (let j = 0; j < i; j++) total += 2 * pull(x, i * dim, turned, j * dim);
    if (own) for (let i = 0; i < tokens; i++) total += pull(x, i * dim, turned, i * dim);
    if (frozen) for (let i = 0; i < tokens; i++) for (let j = 0; j < frozen.count; j++) total += 2 * frozen.weights[j] * pull(turned, i * dim, frozen.places, j * dim);
    return total;
  };
  const together = sum(Float64Array.from({ length: tokens * dim }, (_, i) => start.x[i % dim])), sign = Math.sign(beta);
  return together ? (x) => (sign * sum(x)) / together : null;
}
function symmetric(form, value, dim) {
  const entry = (matrix, i, j) => (matrix ? matrix[i * dim + j] : i === j ? 1 : 0);
  let largest = 0, off = 0;
  for (let i = 0; i < dim; i++) for (let j = 0; j < dim; j++) {
    largest = Math.max(largest, Math.abs(entry(form, i, j)), Math.abs(entry(value, i, j)));
    off = Math.max(off, Math.abs(entry(form, i, j) - entry(form, j, i)), Math.abs(entry(form, i, j) - entry(value, i, j)));
  }
  return off <= 1e-12 * largest;
}

// What became different from the run of the setting `before`, for the tokens that both have.
function* changes(before, setting, clock, record) {
  if (!before || before.model?.dim !== setting.dim) return null;
  const earlier = new Setting(before), other = yield* runOf(earlier, clock), { dim } = setting, places = new Map(earlier.start.indices.map((index, k) => [index, k]));
  const shared = [], moved = [], kept = new Set(setting.start.indices), gone = earlier.start.indices.filter((index) => !kept.has(index));
  let touched = Math.min(Infinity, ...gone);
  setting.start.indices.forEach((index, k) => {
    if (!places.has(index)) return;
    const was = places.get(index);
    shared.push([index, was, k]);
    if (distance(earlier.start.x, was * dim, setting.start.x, k * dim, dim) > 0) { moved.push(k); touched = Math.min(touched, index); }
  });
  let elsewhere = 0, shift = 0, exact = true, quiet = 0;
  for (const [index, was, k] of shared) {
    const gap = distance(other.final, was * dim, record.final, k * dim, dim);
    if (index < touched) { quiet++; shift = Math.max(shift, gap); for (let a = 0; a < dim; a++) exact &&= other.final[was * dim + a] === record.final[k * dim + a]; } else if (gap > CHANGED) elsewhere++;
  }
  return { moved, added: setting.tokens - shared.length, removed: gone.length, earlier: quiet, earlier_shift: shift, earlier_exact: exact, later: shared.length - quiet, elsewhere };
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

