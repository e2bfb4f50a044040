// The page: wires state, connection, pictures and charts together, and runs the clock.

import { Attention } from "./attention.js";
import { Camera } from "./camera.js";
import { theme as readTheme } from "./colors.js";
import { fractionOf } from "./chart.js";
import { buildForm } from "./controls.js";
import { Capture, Clusters } from "./curves.js";
import { $, el, options, reducedMotion } from "./dom.js";
import { startEnlarge } from "./enlarge.js";
import { startKeys } from "./keys.js";
import { HEIGHTS, Lines, heightsFor } from "./lines.js";
import { Panels } from "./panels.js";
import { picture } from "./picture.js";
import { Connection } from "./socket.js";
import { Spectrum } from "./spectrum.js";
import { Stage } from "./stage.js";
import { active, activeSetting, change, decode, fromPreset, isOwnHash, saveSoon, store, watch } from "./store.js";
import { declare, describe, editable, parseNumber, plain, plural, scientific } from "./text.js";
import { fillPresets, notice, startTools } from "./tools.js";
import { drawVerdict } from "./verdict.js";

const DURATION = 14; // seconds from start to end at speed 1
const LATE = 24; // merges that are marked under the slider
const DRIFT = 0.045; // radians per second, while playing

const page = { presets: [], syncForm: () => {}, theme: null, dirty: true, stale: new Set(), firstDrawn: false, drawn: 0, drawnSince: performance.now(), held: null };
const camera = new Camera();
const redraw = () => { page.dirty = true; };
const stale = (...names) => { for (const name of names) page.stale.add(name); page.dirty = true; };
const ALL = ["lines", "curves", "attention", "spectrum", "verdict"];

// ------------------------------------------------------------------------------------------------------- pictures

const panels = new Panels({
  asked: (panel) => { stageOf(panel).figure.removeAttribute("data-done"); },
  arrived: (panel, what) => {
    const run = panels.arriving[panel];
    if (what === "error") showProblem(panel);
    if (what === "begin") { showProblem(panel); page.syncForm(); }
    if (what === "facts") { stale("curves", "spectrum", "verdict"); if (page.warming) { page.warming = false; notice(""); } }
    if (what === "curves") stale("curves");
    if (what === "positions" && run.have < run.frames && run.have > 1) stale("lines");
    if (what === "end") { stale("lines", ...ALL); stageOf(panel).figure.dataset.done = run.id; describeStage(panel); }
    if (what === "begin") stale("verdict");
    redraw();
  },
  attention: (message) => { if (message.panel === active()) charts.attention.show(message, page.theme); },
});

const seek = (at) => { pause(); setAt(at); };
const chartEvents = (name) => ({ seek, stale: () => stale(name) });
const charts = {
  lines: [new Lines($("#lines"), chartEvents("lines")), new Lines($("#lines-b"), chartEvents("lines"))],
  clusters: new Clusters($("#clusters"), chartEvents("curves")),
  capture: new Capture($("#capture"), chartEvents("curves")),
  attention: new Attention($("#attention"), chartEvents("attention")),
  spectrum: new Spectrum($("#spectrum"), { ...chartEvents("spectrum"), moved: moveEigenvalues }),
};
const stages = [...document.querySelectorAll(".stage")].map((figure, panel) => new Stage(figure, camera, {
  redraw,
  turned: () => { store.state.view.camera = [...camera.quaternion]; saveSoon(); redraw(); },
  tip: (what) => showTip(panel, what),
  selected: (token) => { stages.forEach((stage) => { stage.selected = token < (stage.run?.tokens ?? 0) ? token : -1; }); stale("lines"); },
  dragged: (token, direction) => moveToken(panel, token, direction),
  dropped: () => { page.held = null; },
  placed: (direction) => appendToken(panel, direction),
}));
const stageOf = (panel) => stages[panel];

function showProblem(panel) {
  const node = stageOf(panel).figure.querySelector(".problem"), text = panels.problems[panel];
  node.hidden = !text;
  node.replaceChildren(...(text ? [el("b", {}, "This cannot be shown"), text] : []));
}

function showTip(panel, what) {
  const tip = $("#tip"), run = panels.runs[panel];
  tip.hidden = !what;
  if (!what || !run) return;
  const { nearest } = run.place(store.state.view.at, store.state.clock.log), leader = run.leader(nearest, what.token);
  let size = 0;
  for (let k = 0; k < run.tokens; k++) if (run.leader(nearest, k) === leader) size++;
  tip.textContent = `token ${what.token}` + (size > 1 ? `, in a cluster of ${size}${leader === what.token ? ", its first" : ` led by token ${leader}`}` : "");
  const figure = stageOf(panel).figure;
  tip.style.left = `${figure.offsetLeft + what.x}px`;
  tip.style.top = `${figure.offsetTop + what.y}px`;
}

function describeStage(panel) {
  const run = panels.runs[panel], canvas = stageOf(panel).canvas;
  if (!run?.curves) return;
  canvas.setAttribute("aria-label", `${plural(run.tokens, "token")} on the ${run.components === 2 ? "circle" : "sphere"}, ${plural(run.curves.clusters.at(-1), "cluster")} at the end. ${run.end.reached.text}`);
}

// ------------------------------------------------------------------------------------------- tokens and eigenvalues

function moveToken(panel, token, direction) {
  const setting = store.state.panels[panel], run = panels.runs[panel];
  if (setting.model.dim > 3 || !run) return;
  if (!page.held) {
    page.held = { panel, token };
    panels.before[panel] = structuredClone(setting);
    panels.ghosts[panel] = run;
    pause();
  }
  store.state.view.at = 0;
  const position = direction.slice(0, setting.model.dim).map((c) => Number(c.toFixed(5)));
  run.positions.set(position, token * run.components);
  change("panel", (state) => {
    const start = state.panels[panel].start;
    start.placed = [...(start.placed ?? []).filter(([k]) => k !== token), [token, position]];
    state.view.preset = null;
  }, { panel, hand: true });
}

function appendToken(panel, direction) {
  const setting = store.state.panels[panel], dim = setting.model.dim;
  stages.forEach((stage) => { stage.placing = false; stage.canvas.classList.remove("place"); });
  notice("");
  panels.before[panel] = structuredClone(setting);
  panels.ghosts[panel] = panels.runs[panel];
  change("panel", (state) => {
    const start = state.panels[panel].start;
    if (dim > 3) start.tokens += 1;
    else start.appended = [...(start.appended ?? []), direction.slice(0, dim).map((c) => Number(c.toFixed(5)))];
    state.view.preset = null;
  }, { panel, hand: true });
}

// With the keyboard the token goes to the middle of the picture (or to a new angle); with a pointer one shows where.
function startAppend(byKeyboard) {
  const panel = active(), setting = activeSetting();
  if (setting.model.dim > 3) { appendToken(panel, null); return; }
  if (byKeyboard) {
    const angle = 2.4 * (1 + (setting.start.appended?.length ?? 0));
    appendToken(panel, setting.model.dim === 2 ? [Math.cos(angle), Math.sin(angle)] : camera.inverse(0.3 * Math.cos(angle), 0.3 * Math.sin(angle), 0.95));
    return;
  }
  pause();
  stageOf(panel).placing = true;
  stageOf(panel).canvas.classList.add("place");
  notice("Click where the new token begins. Escape leaves it.");
}

function moveEigenvalues(list) {
  change("panel", (state) => {
    state.panels[active()].model.value = { eigenvalues: list };
    state.view.preset = null;
  }, { panel: active() });
}

// The eigenvalues as the state has them, or as the server found them: [re, im >= 0].
function eigenvalues() {
  const { value } = activeSetting().model;
  if (value?.eigenvalues) return value.eigenvalues.filter(([, im]) => im >= 0);
  const found = panels.runs[active()]?.facts?.spectrum?.[0] ?? [];
  return found.filter(([, im]) => im >= -1e-9).map(([re, im]) => [Number(re.toFixed(6)), Number(Math.max(0, im).toFixed(6))]);
}

// ----------------------------------------------------------------------------------------------------------- clock

const playButton = $("#play"), scrub = $("#scrub");
const shownRuns = () => store.state.panels.map((_, panel) => panels.runs[panel]).filter(Boolean);
const furthest = () => Math.min(1, ...shownRuns().map((run) => run.last / (run.frames - 1)));
const finished = () => shownRuns().every((run) => run.end);

function setAt(at) {
  store.state.view.at = Math.min(1, Math.max(0, at));
  scrub.value = store.state.view.at;
  saveSoon(); redraw();
}
function pause() { if (store.state.view.playing) change("view", (state) => { state.view.playing = false; }); }
function togglePlay() {
  change("view", (state) => {
    state.view.playing = !state.view.playing;
    if (state.view.playing && state.view.at >= furthest() - 1e-6 && finished()) state.view.at = 0;
  });
}
function advance(seconds) {
  const { view } = store.state;
  const end = furthest(), next = view.at + (seconds * view.speed) / DURATION;
  if (next < end) view.at = next;
  else {
    view.at = Math.min(Math.max(view.at, end), 1);
    if (finished() && shownRuns().length) pause();
  }
  if (!reducedMotion() && !view.camera && shownRuns().some((run) => run.components === 3)) camera.drift(DRIFT * seconds);
  redraw();
}

let last = performance.now();
function tick(now) {
  const seconds = Math.min(0.1, (now - last) / 1000);
  last = now;
  if (store.state.view.playing && shownRuns().length) advance(seconds);
  if (!reducedMotion() && !stages.some((stage) => stage.held) && camera.coast(seconds)) { store.state.view.camera = [...camera.quaternion]; saveSoon(); redraw(); }
  if (page.dirty) { page.dirty = false; draw(); }
  charts.lines.forEach((chart) => { if (chart.paint()) redraw(); });
  measure(now);
  requestAnimationFrame(tick);
}

// Frames per second while playing and the time to the first picture, for whoever wants to know (the tests do).
function measure(now) {
  if (now - page.drawnSince < 1000) return;
  document.documentElement.dataset.fps = (1000 * page.drawn / (now - page.drawnSince)).toFixed(1);
  page.drawn = 0; page.drawnSince = now;
}

// ------------------------------------------------------------------------------------------------------------ draw

function draw() {
  const { view, clock, panels: settings } = store.state, theme = page.theme;
  const runs = settings.map((_, panel) => panels.runs[panel]);
  let drawn = false;
  runs.forEach((run, panel) => {
    if (!run) return;
    const stage = stageOf(panel), place = run.place(view.at, clock.log);
    stage.use(run);
    drawn = stage.draw(place, view, theme) || drawn;
    stage.figure.querySelector(".now").textContent = `t = ${scientific(place.time)}`;
    stage.figure.querySelector(".count").textContent = run.curves ? plural(run.curves.clusters[Math.min(place.nearest, run.curves.clusters.length - 1)], "cluster") : "";
    if (panel === active() && charts.attention.visible) panels.askAttention(panel, place.nearest);
  });
  drawClock(runs[0], view, clock);
  drawCharts(runs.filter(Boolean).length ? runs : [], view, clock, theme);
  if (drawn) { page.drawn++; firstPicture(); }
}

function firstPicture() {
  if (page.firstDrawn) return;
  page.firstDrawn = true;
  document.documentElement.dataset.firstFrame = performance.now().toFixed(0);
}

function drawClock(run, view, clock) {
  scrub.value = view.at;
  playButton.setAttribute("aria-label", view.playing ? "Pause" : "Play");
  if (!run) return;
  const { time } = run.place(view.at, clock.log);
  $("#clock").textContent = `t = ${scientific(time)}`;
  scrub.setAttribute("aria-valuetext", `t = ${scientific(time)}`);
}

function drawCharts(runs, view, clock, theme) {
  if (!runs.length) return;
  const names = page.stale;
  page.stale = new Set();
  const complete = runs.every((run) => run?.end);
  if (names.has("lines")) runs.forEach((run, panel) => {
    if (run) charts.lines[panel].begin(run, panels.ghosts[panel], stageOf(panel).palette(view, theme), view, theme, clock, stageOf(panel).selected);
  });
  if (names.has("curves")) { charts.clusters.draw(runs, clock, theme); charts.capture.draw(runs, clock, theme); }
  if (names.has("attention")) charts.attention.draw(theme);
  if (names.has("spectrum")) drawSpectrum(runs[active()], theme);
  if (names.has("verdict")) { drawVerdict($("#verdict"), panels, store.state.panels); drawLegend(runs); drawMarks(runs[0], theme); }
  const at = Math.min(view.at, furthest());
  charts.lines.forEach((chart, panel) => { if (runs[panel]) chart.cursor(at, theme, complete); });
  charts.clusters.cursor(at, theme, false);
  charts.capture.cursor(at, theme, false);
}

function drawSpectrum(run, theme) {
  const table = activeSetting().model, movable = !table.heads && (!table.value || Boolean(table.value.eigenvalues));
  charts.spectrum.show(eigenvalues(), run?.facts?.prediction?.eigenvalue ?? null, movable, theme);
  $("#spectrum .key").textContent = movable ? "drag" : table.heads ? "first head" : "";
}

function drawLegend(runs) {
  $("#legend-frozen").hidden = !runs.some((run) => run?.view?.frozen);
  const leading = runs.find((run) => run?.view?.leading?.length && run.view.leading.length < run.components)?.view.leading;
  $("#legend-leading").hidden = !leading;
  if (leading) $("#legend-leading span").textContent = leading.length === 1 ? "leading eigenvector ±ξ" : "leading plane L";
  runs.forEach((run, panel) => {
    const what = stageOf(panel).figure.querySelector(".what");
    what.textContent = describe(store.state.panels[panel]) + (run?.dim > 3 && run.view ? ` · shown: ${run.view.name}` : "");
  });
}

// Under the slider: a mark for each of the last merges.
function drawMarks(run, theme) {
  const canvas = $("#marks"), box = canvas.getBoundingClientRect(), ctx = canvas.getContext("2d");
  canvas.width = Math.round(2 * box.width); canvas.height = Math.round(2 * box.height);
  ctx.scale(2, 2);
  ctx.fillStyle = theme.muted;
  for (const { time } of (run?.curves?.merges ?? []).slice(-LATE)) ctx.fillRect(8 + (box.width - 16) * fractionOf(run.times, time, store.state.clock.log) - 0.75, 0, 1.5, 5);
}

// ------------------------------------------------------------------------------------------------------------ wiring

function syncAll() {
  const { panels: settings, clock, view } = store.state, pair = settings.length > 1;
  document.body.classList.toggle("pair", pair);
  stages[1].figure.hidden = !pair;
  $("#lines-b").hidden = !pair;
  $("#lines figcaption span").textContent = pair ? "World lines, left" : "World lines";
  $("#which").hidden = !pair;
  for (const tab of document.querySelectorAll("#which button")) tab.setAttribute("aria-selected", String(Number(tab.dataset.panel) === active()));
  $("#compare").setAttribute("aria-pressed", String(pair));
  $("#log").setAttribute("aria-pressed", String(clock.log));
  if (document.activeElement !== $("#until")) $("#until").value = editable(clock.until);
  $("#speed").value = String(view.speed);
  const preset = page.presets.find((item) => item.name === view.preset);
  $("#preset").value = preset?.name ?? "";
  $("#caption").textContent = preset?.text ?? "";
  const kinds = heightsFor(Math.min(3, settings[0].model.dim));
  options($("#height"), kinds.map((kind) => [kind, HEIGHTS[kind].name]), kinds.includes(view.height) ? view.height : kinds[0]);
  settings.forEach((setting, panel) => { stageOf(panel).figure.querySelector(".what").textContent = describe(setting); });
  page.syncForm();
}

watch((what, details) => {
  if (!store.state.panels.length) return; // the server has not spoken yet
  if (what === "panel") {
    if (!details.hand) { panels.ghosts = [null, null]; panels.before = [null, null]; }
    if (details.panel === undefined) panels.requestAll(); else panels.request(details.panel);
    stale("spectrum");
  } else stale("lines", "spectrum");
  syncAll();
});

function load(state) {
  [0, 1].forEach((panel) => { panels.drop(panel); stageOf(panel).selected = -1; showProblem(panel); });
  camera.reset(state.view.camera ?? undefined);
  change("panel", (current) => { Object.assign(current, state); });
}

function setCompare(on) {
  change("panel", (state) => {
    if (on && state.panels.length < 2) { state.panels.push(structuredClone(state.panels[0])); state.view.active = 1; }
    if (!on && state.panels.length > 1) { state.panels = [state.panels[active()]]; state.view.active = 0; panels.drop(1); }
    state.view.preset = null;
  });
}
const toggleLog = () => change("panel", (state) => { state.clock.log = !state.clock.log; });

function start() {
  $("#preset").addEventListener("change", (event) => load(fromPreset(page.presets.find((item) => item.name === event.target.value))));
  $("#compare").addEventListener("click", () => setCompare(store.state.panels.length < 2));
  playButton.addEventListener("click", togglePlay);
  scrub.addEventListener("input", () => seek(Number(scrub.value)));
  $("#speed").addEventListener("change", (event) => change("view", (state) => { state.view.speed = Number(event.target.value); }));
  $("#log").addEventListener("click", toggleLog);
  $("#height").addEventListener("change", (event) => change("view", (state) => { state.view.height = event.target.value; }));
  $("#until").addEventListener("change", (event) => {
    const value = parseNumber(event.target.value);
    if (Number.isNaN(value)) event.target.value = editable(store.state.clock.until);
    else change("panel", (state) => { state.clock.until = value; if (value > 2000) state.clock.log = true; });
  });
  for (const tab of document.querySelectorAll("#which button")) tab.addEventListener("click", () => change("view", (state) => { state.view.active = Number(tab.dataset.panel); }));
  window.addEventListener("hashchange", () => { if (!isOwnHash(location.hash)) { const state = decode(location.hash, page.presets); if (state) load(state); } });
  startTools({ picture: () => picture(stages, store.state, page.theme, describe), redraw: () => { page.theme = readTheme(); stages.forEach((stage) => { stage.colors = null; }); stale(...ALL); } });
  startEnlarge(() => {
    const { view, clock, panels: settings } = store.state, runs = settings.map((_, panel) => panels.runs[panel]);
    return { runs, palettes: runs.map((run, panel) => run && stageOf(panel).palette(view, page.theme)), charts, view, clock, theme: page.theme };
  }, notice);
  startKeys({ togglePlay, seek, pause, setAt, toggleLog, setCompare, startAppend, moveToken, stages, panels, camera, redraw, page, notice, load });
  panels.connection = new Connection({
    ...panels.handlers(),
    hello: welcome,
    warming: (message) => { page.warming = true; notice(message.message); },
    lost: () => notice("The server is not answering. Trying again …", "bad"),
    full: (message) => notice(message.message, "bad"),
  });
  requestAnimationFrame(tick);
}

function welcome(message) {
  notice("");
  $("#version").textContent = `metastable ${message.version}`;
  $("#where").textContent = message.where;
  if (page.presets.length) { panels.requestAll(); return; }
  declare(message.variants);
  page.presets = message.presets.items;
  fillPresets($("#preset"), page.presets);
  page.syncForm = buildForm($("#form"), message.limits, { append: startAppend, spectrum: eigenvalues, delta: () => Number(plain(panels.runs[active()]?.delta ?? 0.5, 4)), radius: () => Number(plain(panels.runs[active()]?.radius ?? 0.1, 4)) });
  const first = page.presets.find((item) => item.name === message.presets.first);
  load(decode(location.hash, page.presets) ?? fromPreset(first));
  if (reducedMotion() && store.state.view.at === 0) pause();
}

start();
