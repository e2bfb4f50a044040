// Files that a page without a server makes itself: the Python behind a picture, the table, the setting. Runs in zarr and films are the
// package's.

import { general } from "./atlas.js";
import { closerThan, Linker } from "./clusters.js";
import { runOf } from "./job.js";
import { fromEigenvalues, LIMITS, matrixOf, Setting } from "./setting.js";
import { FIELDS as STARTS } from "./starts.js";

const CSV_ROWS = 250_000;
const NAMES = ["left", "right"];
const CLASSES = { causal: "Causal", full: "Full", window: "Window", sink: "Sink", prefix: "Prefix", matrix: "Mask", post_ln: "PostLN", pre_ln: "PreLN", mix_ln: "MixLN", peri_ln: "PeriLN", ngpt: "NGPT", sqrt_scaling: "SqrtScaling" };
const DEFAULTS = { mask: "causal", norm: "post_ln", weights: "softmax" };

// ------------------------------------------------------------------------------------------------------------- numbers

// A number as Python writes it: whole ones as they came, others by the shortest digits that give them back.
function pythonNumber(value) {
  if (Number.isInteger(value) && Math.abs(value) < 1e16) return String(value);
  const [mantissa, exponent] = value.toExponential().split("e"), power = Number(exponent);
  if (power >= -4 && power < 16) return String(value);
  return `${mantissa}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
}
const places = (vector) => `[${vector.map(pythonFloat).join(", ")}]`;
const pythonFloat = (value) => { const text = pythonNumber(value); return /[.e]/.test(text) ? text : `${text}.0`; };
function python(value) {
  if (typeof value === "number") return pythonNumber(value);
  if (typeof value === "string") return `'${value}'`;
  if (typeof value === "boolean") return value ? "True" : "False";
  if (value === null) return "None";
  return Array.isArray(value) ? `[${value.map(python).join(", ")}]` : `{${Object.entries(value).map(([name, item]) => `'${name}': ${python(item)}`).join(", ")}}`;
}

// -------------------------------------------------------------------------------------------------------------- Python

function matrixCode(value, dim) {
  if (Array.isArray(value)) return python(value);
  if ("gaussian" in value) return `np.random.default_rng(${value.gaussian}).standard_normal((${dim}, ${dim}))`;
  const pairs = value.eigenvalues;
  if (pairs.every(([, im]) => im === 0)) return `np.diag([${pairs.map(([re]) => pythonFloat(re)).join(", ")}])`;
  const matrix = fromEigenvalues(pairs, dim, "value"), row = (i) => Array.from(matrix.subarray(i * dim, (i + 1) * dim), pythonFloat).join(", ");
  return `[${Array.from({ length: dim }, (_, i) => `[${row(i)}]`).join(", ")}]`;
}
const call = (name, fields) => `ms.${name}(${Object.entries(fields).map(([key, item]) => `${key}=${python(item)}`).join(", ")})`;
function valueCode(name, value, dim) {
  if (["query", "key", "value"].includes(name)) return matrixCode(value, dim);
  if (name === "weights") return python(typeof value === "string" ? value : value.kind);
  if (name === "mask" || name === "norm") { const { kind = DEFAULTS[name], ...rest } = typeof value === "string" ? { kind: value } : value; return call(CLASSES[kind], rest); }
  if (name === "frozen") return call("Frozen", value);
  if (name === "heads") return `(${value.map((head) => `ms.Head(${argumentsCode(head, dim)})`).join(", ")},)`;
  return python(value);
}
const argumentsCode = (table, dim) => Object.entries(table).filter(([, value]) => value !== null).map(([name, value]) => `${name}=${valueCode(name, value, dim)}`).join(", ");

function runCode(setting, clock, prefix) {
  const { data, dim, model } = setting, [m, s, r] = ["model", "start", "run"].map((name) => prefix + name), { start } = data;
  const line = argumentsCode(data.model, dim), pieces = Object.entries(data.model).filter(([, value]) => value !== null).map(([name, value]) => `    ${name}=${valueCode(name, value, dim)},\n`);
  const lines = [`${m} = ms.Attention(${line.length < 80 ? line : `\n${pieces.join("")}`})`, `${s} = ${drawCode(start, dim)}`];
  if (start.appended?.length) lines.push(`${s} = np.concatenate([${s}, ms.sphere.normalize(np.array([${start.appended.map(places).join(", ")}]))])`);
  for (const [index, place] of start.placed ?? []) lines.push(`${s}[${index}] = ms.sphere.normalize(${places(place)})`);
  if (start.removed?.length) lines.push(`${s} = np.delete(${s}, ${python([...new Set(start.removed)].sort((a, b) => a - b))}, axis=0)`);
  lines.push(simulateCode(setting, clock, m, s, r), "", `print(${r})`, `delta = ${pythonFloat(setting.delta)}`, `print("Renyi centers:", ms.renyi_centers(${s}, delta))`,
    `print("strong ones:", ms.renyi_centers(${s}, delta, strong=True))`, `print("clusters at the end:", ms.cluster_labels(${r}.final, radius=${pythonFloat(setting.radius)}).max() + 1)`);
  if (model.heads.length === 1) lines.push(`print("predicted:", ms.predict(${m}).configuration)`);
  lines.push(`print("reached:", ms.classify(${r}).configuration)`);
  return lines.join("\n");
}
function drawCode({ tokens, seed = 0, kind = "uniform", ...rest }, dim) {
  const numbers = STARTS[kind].map((name) => `, ${name}=${name === "centers" ? rest[name] : pythonFloat(rest[name])}`).join("");
  return `ms.${kind === "uniform" ? "sphere.uniform" : `starts.${kind}`}(${tokens}, dim=${dim}, seed=${seed}${numbers})`;
}
function simulateCode(setting, clock, model, start, run) {
  const until = pythonFloat(clock.until), step = setting.step;
  if (!step) return `${run} = ms.simulate(${model}, ${start}, until=${until}, max_steps=${maxSteps(setting)})`;
  const first = pythonFloat(Math.min(0.01, clock.until / 100));
  const grid = clock.log ? `times = np.concatenate([[0.0], np.geomspace(${first}, ${until}, ${LIMITS.frames - 1})])\ntimes[-1] = ${until}` : `times = np.linspace(0.0, ${until}, ${LIMITS.frames})`;
  return `${grid}\ntimes = np.unique(np.rint(times / ${step})) * ${step}\n${run} = ms.simulate(${model}, ${start}, times=times, seed=${setting.start.seed}, max_steps=20000)`;
}
// As many steps as the server would allow (dense output of at most 512 MiB).
const maxSteps = ({ tokens, model }) => Math.max(100, Math.min(LIMITS.steps, Math.floor((512 * 2 ** 20) / (40 * tokens * model.width))));

export function pythonCode(settings, clock) {
  const text = settings.map((setting, i) => runCode(setting, clock, settings.length > 1 ? `${NAMES[i]}_` : "")).join("\n\n") + "\n";
  return `${text.includes("np.") ? "import numpy as np\n\n" : ""}import metastable as ms\n\n${text}`;
}

// --------------------------------------------------------------------------------------------------------------- tables

function* csv(setting, clock) {
  const record = yield* runOf(setting, clock), { tokens, dim } = setting, { frames, times } = record;
  const stride = Math.max(1, Math.ceil((times.length * tokens) / CSV_ROWS)), linker = new Linker(tokens, dim), bound = closerThan(setting.radius), leaders = new Int32Array(tokens);
  const rows = [["time", "token", ...Array.from({ length: dim }, (_, a) => `x${a + 1}`), "cluster"].join(",")];
  for (let frame = 0; frame < frames; frame++) {
    if (frame % stride && frame !== frames - 1) continue;
    const x = record.state(frame), time = general(times[frame], 17);
    linker.leaders(x, bound, leaders);
    for (let k = 0; k < tokens; k++) rows.push(`${time},${k},${Array.from(x.subarray(k * dim, (k + 1) * dim), (value) => general(value, 17)).join(",")},${leaders[k]}`);
    yield null;
  }
  return { name: "run.csv", media: "text/csv; charset=utf-8", body: rows.join("\n") + "\n" };
}

// The setting for `metastable simulate`; tokens that are not just uniform are written out beside it.
function toml(setting, clock) {
  const { data, dim, tokens } = setting, byHand = setting.start.byHand || setting.start.kind !== "uniform";
  const rows = (flat, width) => `[\n${Array.from({ length: flat.length / width }, (_, i) => `    [${Array.from(flat.subarray(i * width, (i + 1) * width), pythonFloat).join(", ")}],\n`).join("")}]`;
  const own = (value) => (typeof value === "string" ? `"${value}"` : typeof value === "boolean" ? String(value) : pythonNumber(value));
  const lines = ["# metastable simulate run.toml", "[model]", `dim = ${dim}`], tables = [];
  const matrices = (table, to) => { for (const name of ["query", "key", "value"]) { const matrix = matrixOf(table[name], dim, name); if (matrix) to.push(`${name} = ${rows(matrix, dim)}`); } };
  if (!data.model.heads) { lines.push(`beta = ${pythonFloat(data.model.beta)}`); matrices(data.model, lines); }
  if (data.model.weights && data.model.weights !== "softmax") lines.push(`weights = ${own(typeof data.model.weights === "string" ? data.model.weights : data.model.weights.kind)}`);
  if (data.model.noise) lines.push(`noise = ${pythonFloat(data.model.noise)}`);
  if (data.model.tie_tolerance !== undefined) lines.push(`tie_tolerance = ${pythonFloat(data.model.tie_tolerance)}`);
  for (const name of ["mask", "norm"]) {
    const value = data.model[name], table = typeof value === "string" ? { kind: value } : value;
    if (table && (table.kind !== DEFAULTS[name] || Object.keys(table).length > 1)) tables.push("", `[model.${name}]`, ...Object.entries(table).filter(([key]) => key !== "allowed").map(([key, item]) => `${key} = ${own(item)}`), ...(table.allowed ? [`allowed = [${table.allowed.map((row) => `[${row.map(Boolean).join(", ")}]`).join(", ")}]`] : []));
  }
  const { frozen } = setting.model;
  if (frozen) tables.push("", "[model.frozen]", `tokens = ${rows(frozen.places, dim)}`, `weights = [${Array.from(frozen.weights, pythonFloat).join(", ")}]`);
  for (const head of data.model.heads ?? []) { tables.push("", "[[model.heads]]", `beta = ${pythonFloat(head.beta)}`); matrices(head, tables); }
  tables.push("", "[start]", ...(byHand ? ['file = "start.csv"'] : [`tokens = ${tokens}`, `seed = ${setting.start.seed}`]));
  tables.push("", "[run]", `until = ${pythonFloat(clock.until)}`, ...(setting.step ? [`step = ${pythonFloat(setting.step)}`, 'method = "sde"'] : [`max_steps = ${maxSteps(setting)}`]), "");
  const text = [...lines, ...tables].join("\n");
  if (!byHand) return { name: "run.toml", media: "application/toml; charset=utf-8", body: text };
  const start_csv = Array.from({ length: tokens }, (_, k) => Array.from(setting.start.x.subarray(k * dim, (k + 1) * dim), (value) => general(value, 17)).join(",")).join("\n") + "\n";
  return { name: "run.toml.zip", media: "application/zip", body: zip({ "run.toml": text, "start.csv": start_csv }) };
}

// A zip archive whose files are stored as they are.
function zip(files) {
  const encoder = new TextEncoder(), parts = [], directory = [];
  let offset = 0;
  for (const [name, text] of Object.entries(files)) {
    const title = encoder.encode(name), body = encoder.encode(text), sum = checksum(body);
    const fields = (view, at) => { [[20, 2], [0, 2], [0, 2], [0, 2], [0x21, 2], [sum, 4], [body.length, 4], [body.length, 4], [title.length, 2], [0, 2]].forEach(([value, bytes]) => { if (bytes === 2) view.setUint16(at, value, true); else view.setUint32(at, value, true); at += bytes; }); };
    const local = new DataView(new ArrayBuffer(30)), central = new DataView(new ArrayBuffer(46));
    local.setUint32(0, 0x04034b50, true); fields(local, 4);
    central.setUint32(0, 0x02014b50, true); central.setUint16(4, 20, true); fields(central, 6); central.setUint32(42, offset, true);
    parts.push(new Uint8Array(local.buffer), title, body);
    directory.push(new Uint8Array(central.buffer), title);
    offset += 30 + title.length + body.length;
  }
  const size = directory.reduce((sum, part) => sum + part.length, 0), count = directory.length / 2, end = new DataView(new ArrayBuffer(22));
  end.setUint32(0, 0x06054b50, true); end.setUint16(8, count, true); end.setUint16(10, count, true); end.setUint32(12, size, true); end.setUint32(16, offset, true);
  const all = new Uint8Array(offset + size + 22);
  let at = 0;
  for (const part of [...parts, ...directory, new Uint8Array(end.buffer)]) { all.set(part, at); at += part.length; }
  return all;
}
function checksum(bytes) {
  let sum = ~0;
  for (const byte of bytes) { sum ^= byte; for (let k = 0; k < 8; k++) sum = (sum >>> 1) ^ (sum & 1 ? 0xedb88320 : 0); }
  return ~sum >>> 0;
}

// The file of that name: "python" for { settings, clock }, others for { setting, clock }.
export function* file(name, { settings, setting, clock }) {
  if (name === "python") {
    const checked = settings.map((item) => new Setting(item));
    checked.forEach((item) => item.times(clock));
    return { name: "run.py", media: "text/plain; charset=utf-8", body: pythonCode(checked, clock) };
  }
  const elsewhere = { zarr: "a run as a zarr store", mp4: "a film" }[name];
  if (elsewhere) throw new Error(`${elsewhere} is made by the metastable package, not in the browser: take the Python of this page and add run.${name === "mp4" ? 'animate("run.mp4")' : 'save("run.zarr")'}`);
  const checked = new Setting(setting);
  checked.times(clock);
  return name === "csv" ? yield* csv(checked, clock) : toml(checked, clock);
}
