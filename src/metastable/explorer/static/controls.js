// The setting: every control writes into the state of the active panel, and shows what is there.

import { el } from "./dom.js";
import { byHand, clearHand, setTokens } from "./edit.js";
import { choice, enter, group, matrix, number, scales, slider, toggle, when } from "./fields.js";
import { conjugate } from "./spectrum.js";
import { active, activeSetting, change, store } from "./store.js";
import { editable, kindOf, variants } from "./text.js";
import { notice } from "./tools.js";
import { show } from "./typing.js";

const identity = (dim) => Array.from({ length: dim }, (_, i) => Array.from({ length: dim }, (_, j) => (i === j ? 1 : 0)));
const TABLE = 8; // dimensions up to which eigenvalues are listed; beyond, the plane is enough
const italic = (text) => el("i", {}, text);

function edit(mutate, details = {}) {
  change("panel", (state) => {
    const setting = state.panels[active()];
    mutate(setting, setting.model);
    state.view.preset = null;
  }, { panel: active(), ...details });
}
const look = (name) => [() => store.state.view[name], (value) => change("view", (state) => { state.view[name] = value; })];
const model = () => activeSetting()?.model ?? {};

// --------------------------------------------------------------------------------------------- tokens and matrices

// Tokens placed by hand belong to their dimension: whoever loses some is told so.
export function setDim(setting, dim, lost) {
  const { model: table, start } = setting;
  if (dim !== table.dim && byHand(start)) { lost(table.dim); clearHand(start); }
  table.dim = dim;
  if (start.kind === "equally_spaced" && dim > 3) delete start.kind;
  for (const head of table.heads ?? []) if (head.value?.eigenvalues) head.value = { eigenvalues: fitEigenvalues(head.value.eigenvalues, dim) };
  for (const name of ["query", "key"]) if (Array.isArray(table[name])) table[name] = identity(dim);
  if (Array.isArray(table.value)) table.value = identity(dim);
  if (table.value?.eigenvalues) table.value = { eigenvalues: fitEigenvalues(table.value.eigenvalues, dim) };
  if (table.frozen) frozenCount(table, table.frozen.tokens.length, table.frozen.weights?.[0] ?? 1);
}

function fitEigenvalues(list, dim) {
  const kept = [];
  let used = 0;
  for (const pair of list) {
    const size = pair[1] > 0 ? 2 : 1;
    if (pair[1] < 0 || used + size > dim) continue;
    kept.push(pair); used += size;
  }
  const least = Math.min(0, ...kept.map((pair) => pair[0]));
  while (used < dim) { kept.push([least, 0]); used += 1; }
  return kept;
}

// Anchors spread evenly: on the circle, or along a spiral on the sphere.
function frozenCount(table, count, weight) {
  if (!count || table.dim > 3) { delete table.frozen; return; }
  const tokens = Array.from({ length: count }, (_, k) => {
    if (table.dim === 2) { const angle = (2 * Math.PI * k) / count + 0.3; return [Math.cos(angle), Math.sin(angle)]; }
    const z = 1 - (2 * k + 1) / count, r = Math.sqrt(1 - z * z), angle = 2.399963 * k;
    return [r * Math.cos(angle), r * Math.sin(angle), z];
  });
  table.frozen = { tokens, weights: tokens.map(() => weight) };
}

const matrixKind = (value) => (value === null || value === undefined ? "identity" : Array.isArray(value) ? "matrix" : value.eigenvalues ? "eigenvalues" : "gaussian");
function makeMatrix(kind, dim, current, spectrum) {
  if (kind === "identity") return null;
  if (kind === "matrix") return Array.isArray(current) ? current : identity(dim);
  if (kind === "gaussian") return { gaussian: 0 };
  return { eigenvalues: fitEigenvalues(spectrum?.length ? spectrum : identity(dim).map(() => [1, 0]), dim) };
}

function eigenTable() {
  const node = el("div", { class: "eigen" });
  const list = () => model().value?.eigenvalues ?? [];
  const set = (index, part, value) => {
    const [re, im] = list()[index], all = part === 0 ? list().map((pair, k) => (k === index ? [value, im] : pair)) : conjugate(list(), index, re, Math.abs(value))?.list;
    if (all) edit((setting, table) => { table.value = { eigenvalues: all }; });
    else notice("A complex eigenvalue comes with its conjugate, and there is no other real one that could become it; nothing was changed.", "bad", 8);
  };
  let shown = -1;
  const sync = () => {
    const pairs = list();
    if (pairs.length !== shown) {
      shown = pairs.length;
      node.replaceChildren(...pairs.flatMap((_, k) => {
        const box = (part, name) => el("input", { type: "text", inputmode: "decimal", name: `eigen-${k}-${name}`, "aria-label": `Eigenvalue ${k + 1}, ${name} part`,
          onchange: (event) => enter(event.target, () => list()[k]?.[part], (value) => set(k, part, value)) });
        return [el("span", {}, `λ${k + 1}`), box(0, "real"), el("span", {}, "±i"), box(1, "imaginary")];
      }));
    }
    [...node.querySelectorAll("input")].forEach((box, i) => { show(box, editable(pairs[i >> 1][i & 1])); });
  };
  return { node: el("div", { class: "field block" }, node), sync };
}

// A choice among the kinds of a family and a number for each of their fields, all as the package declares them.
function variantFields(family) {
  const offered = (variants(family) ?? []).filter(({ fields }) => fields !== null);
  const declared = (kind) => offered.find((entry) => entry.kind === kind)?.fields ?? [];
  const fresh = (kind) => Object.fromEntries([["kind", kind], ...declared(kind).map(({ name, suggestion }) => [name, suggestion])]);
  const put = (value) => edit((s, table) => { table[family] = family === "weights" && Object.keys(value).length === 1 ? value.kind : value; });
  const names = new Map(offered.flatMap(({ fields }) => fields.map((item) => [item.name, item])));
  return [
    choice(family, family, offered.map(({ kind, label }) => [kind, label]), () => kindOf(model(), family), (kind) => put(fresh(kind))),
    ...[...names.values()].map(({ name, label, symbol }) => when(
      number(el("span", {}, `${label} `, italic(symbol)), `${family}-${name}`, () => model()[family]?.[name], (v) => put({ ...fresh(kindOf(model(), family)), ...(model()[family]?.kind ? model()[family] : {}), [name]: v })),
      () => declared(kindOf(model(), family)).some((item) => item.name === name))),
  ];
}

// Where tokens begin, as the package offers it.
function startFields() {
  const offered = variants("start") ?? [], start = () => activeSetting()?.start ?? {}, kind = () => start().kind ?? "uniform";
  if (offered.length < 2) return [];
  const fieldsOf = (name) => offered.find((entry) => entry.kind === name)?.fields ?? [];
  const names = new Map(offered.flatMap(({ kind: own, fields }) => fields.map((item) => [`${own}-${item.name}`, { own, ...item }])));
  const put = (name) => edit((s) => {
    for (const entry of offered) for (const item of entry.fields) delete s.start[item.name];
    if (name === "uniform") delete s.start.kind; else Object.assign(s.start, { kind: name }, Object.fromEntries(fieldsOf(name).map((item) => [item.name, item.suggestion])));
  });
  return [
    choice("start", "start", () => offered.filter(({ kind: own }) => own !== "equally_spaced" || model().dim <= 3).map(({ kind: own, label }) => [own, label]), kind, put),
    ...[...names.values()].map(({ own, name, label, symbol }) => when(
      number(el("span", {}, `${label} `, italic(symbol)), `start-${own}-${name}`, () => start()[name], (v) => edit((s) => { s.start[name] = v; })),
      () => kind() === own)),
  ];
}

// Several heads: each has its temperature and its value matrix, and their pulls are added.
const MOST_HEADS = 4;
function headFields() {
  const heads = () => model().heads ?? null;
  const put = (index, field, value) => edit((s, table) => { table.heads[index] = { ...table.heads[index], [field]: value }; });
  const setCount = (count) => edit((s, table) => {
    if (count < 2) { if (table.heads) { Object.assign(table, { beta: table.heads[0].beta, value: table.heads[0].value ?? null }); delete table.heads; } return; }
    const first = { beta: table.beta ?? table.heads?.[0]?.beta ?? 1, ...(table.value ? { value: table.value } : {}) };
    const now = table.heads ?? [first];
    // A second head pulls another way: a Gaussian value matrix.
    table.heads = Array.from({ length: count }, (_, k) => now[k] ?? { beta: first.beta, value: { gaussian: k } });
    delete table.beta; delete table.value; delete table.query; delete table.key;
  });
  const kinds = [["identity", "V = I"], ["eigenvalues", "V = diag(1, …, −1)"], ["gaussian", "V Gaussian"]];
  const make = { identity: () => null, gaussian: (k) => ({ gaussian: k }), eigenvalues: () => ({ eigenvalues: Array.from({ length: model().dim }, (_, i) => [i === model().dim - 1 ? -1 : 1, 0]) }) };
  return [
    choice("heads", "heads", Array.from({ length: MOST_HEADS }, (_, k) => [String(k + 1), k ? `${k + 1} heads` : "one head"]), () => String(heads()?.length ?? 1), (v) => setCount(Number(v))),
    ...Array.from({ length: MOST_HEADS }, (_, k) => k).flatMap((k) => [
      when(slider(el("span", {}, `head ${k + 1}: `, italic("β")), `head-${k}-beta`, scales.log(0.1, 1000, 3), () => heads()?.[k]?.beta, (v, final) => edit((s, table) => { table.heads[k].beta = v; }, { final })), () => Boolean(heads()?.[k])),
      when(choice(el("span", { class: "sr" }, `head ${k + 1}: V`), `head-${k}-value`, kinds, () => matrixKind(heads()?.[k]?.value), (kind) => put(k, "value", make[kind](k))), () => Boolean(heads()?.[k])),
    ]),
  ];
}

// ------------------------------------------------------------------------------------------------------------ form

export function buildForm(form, limits, actions) {
  const kinds = [["identity", "identity"], ["gaussian", "Gaussian"], ["matrix", "matrix"]];
  const matrixFields = (name, label) => [
    choice(italic(label), name, kinds, () => matrixKind(model()[name]), (kind) => edit((s, table) => { table[name] = makeMatrix(kind, table.dim, table[name]); })),
    when(number("seed", `${name}-seed`, () => model()[name]?.gaussian, (v) => edit((s, table) => { table[name] = { gaussian: v }; })), () => matrixKind(model()[name]) === "gaussian"),
    when(matrix(`${label} as a matrix`, `${name}-matrix`, () => model()[name], (rows) => edit((s, table) => { table[name] = rows; })), () => matrixKind(model()[name]) === "matrix"),
  ];
  const tokens = () => activeSetting()?.start.tokens;
  const automatic = (name) => ({ is: () => activeSetting()?.[name] === undefined || activeSetting()[name] === null, set: () => edit((s) => { delete s[name]; }) });
  const beta = (value, final) => edit((s, table) => { table.beta = value; }, { final });

  const buttons = el("div", { class: "buttons" },
    el("button", { type: "button", id: "append", onclick: (event) => actions.append(event.detail === 0) }, "Append a token"),
    el("button", { type: "button", id: "another", onclick: () => edit((s) => { s.start.seed = (s.start.seed ?? 0) + 1; }) }, "Another draw"),
    el("button", { type: "button", id: "undo-hand", onclick: () => edit((s) => clearHand(s.start)) }, "Without my changes"));
  const lost = (dim) => actions.notice(`The tokens that you placed belong to d = ${dim} and are gone; Undo brings them back.`, "", 6);

  const fields = [
    group("Tokens",
      slider(el("span", {}, "tokens ", italic("n")), "tokens", scales.log(2, limits.tokens, 0), tokens, (v, final) => edit((s) => setTokens(s.start, v), { final }), { whole: true, low: 1, high: limits.tokens }),
      slider(el("span", {}, "dimension ", italic("d")), "dim", scales.linear(2, limits.dim, 1), () => model().dim, (v, final) => edit((s) => setDim(s, v, lost), { final }), { whole: true, low: 2, high: limits.dim }),
      number("seed", "seed", () => activeSetting()?.start.seed ?? 0, (v) => edit((s) => { s.start.seed = v; })),
      ...startFields(),
      { node: buttons, sync: () => { buttons.querySelector("#undo-hand").hidden = !byHand(activeSetting()?.start); } }),
    group("Attention",
      when(slider(el("span", { title: "inverse temperature: how sharply tokens attend to what is near" }, "inv. temp. ", italic("β")), "beta", scales.log(0.1, 1000, 3), () => model().beta ?? 1, beta), () => !model().heads),
      ...headFields(),
      ...variantFields("mask"), ...variantFields("weights"), ...variantFields("norm"),
      slider(el("span", {}, "noise ", italic("σ")), "noise", scales.linear(0, 0.5, 0.005), () => model().noise ?? 0, (v, final) => edit((s, table) => { if (v > 0) table.noise = v; else delete table.noise; }, { final })),
      when(slider("frozen", "frozen", scales.linear(0, 12, 1), () => model().frozen?.tokens.length ?? 0, (v, final) => edit((s, table) => frozenCount(table, v, table.frozen?.weights?.[0] ?? 4), { final }), { whole: true, low: 0, high: 12 }), () => model().dim <= 3),
      when(number("weight", "frozen-weight", () => model().frozen?.weights?.[0], (v) => edit((s, table) => { table.frozen = { ...table.frozen, weights: table.frozen.tokens.map(() => v) }; })), () => Boolean(model().frozen))),
    when(group("Value matrix V",
      choice(italic("V"), "value", [["identity", "identity"], ["eigenvalues", "by its eigenvalues"], ["matrix", "matrix"], ["gaussian", "Gaussian"]], () => matrixKind(model().value), (kind) => edit((s, table) => { table.value = makeMatrix(kind, table.dim, table.value, actions.spectrum()); })),
      when(eigenTable(), () => matrixKind(model().value) === "eigenvalues" && model().dim <= TABLE),
      when(number("seed", "value-seed", () => model().value?.gaussian, (v) => edit((s, table) => { table.value = { gaussian: v }; })), () => matrixKind(model().value) === "gaussian"),
      when(matrix("V as a matrix", "value-matrix", () => model().value, (rows) => edit((s, table) => { table.value = rows; })), () => matrixKind(model().value) === "matrix")), () => !model().heads),
    when(group("Query and key", ...matrixFields("query", "Q"), ...matrixFields("key", "K")), () => !model().heads),
    group("Look",
      slider(el("span", { title: "Rényi centers are at least this far apart" }, "centers ", italic("δ")), "delta", scales.linear(0.02, 3.1, 0.01), () => activeSetting()?.delta ?? actions.delta(), (v, final) => edit((s) => { s.delta = v; }, { final }), { auto: automatic("delta") }),
      slider(el("span", { title: "Tokens linked closer than this are one cluster" }, "clusters ", italic("r")), "radius", scales.log(0.005, 1.5, 3), () => activeSetting()?.radius ?? actions.radius(), (v, final) => edit((s) => { s.radius = v; }, { final }), { auto: automatic("radius") }),
      choice("colour", "color", [["cluster", "by cluster"], ["order", "by order"], ["origin", "by origin"]], ...look("color")),
      when(choice("projection", "projection", [["auto", "best"], ["leading", "leading space L"], ["principal", "principal axes"], ["coordinates", "coordinates 1–3"]], () => activeSetting()?.projection ?? "auto", (v) => edit((s) => { if (v === "auto") delete s.projection; else s.projection = v; })), () => model().dim > 3),
      toggle("Trails", "trails", ...look("trails")),
      toggle("Rényi centers", "centers", ...look("centers")),
      toggle("Numbers of clusters", "numbers", ...look("numbers"))),
  ];
  form.replaceChildren(...fields.map((field) => field.node));
  form.addEventListener("submit", (event) => event.preventDefault());
  return () => fields.forEach((field) => field.sync());
}
