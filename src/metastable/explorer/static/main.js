// The page: wires state, connection, pictures and charts together, and runs the clock.

import { describeStage, drawLegend, drawMarks, drawTip, headingOf, showProblem } from "./around.js";
import { Attention } from "./attention.js";
import { Camera } from "./camera.js";
import { theme as readTheme } from "./colors.js";
import { Clock } from "./clock.js";
import { buildForm } from "./controls.js";
import { Capture, Clusters, Energy } from "./curves.js";
import { $, options, reducedMotion } from "./dom.js";
import { Editor } from "./edit.js";
import { startEnlarge } from "./enlarge.js";
import { enter } from "./fields.js";
import { markTerms, startGlossary } from "./glossary.js";
import { Heartbeat } from "./heartbeat.js";
import { startKeys } from "./keys.js";
import { HEIGHTS, Lines, heightsFor } from "./lines.js";
import { Panels } from "./panels.js";
import { startPictures } from "./picture.js";
import { Connection, hasServer } from "./socket.js";
import { Spectrum } from "./spectrum.js";
import { Stage } from "./stage.js";
import { followStory, startStory, syncStory } from "./story.js";
import { active, activeSetting, canRedo, canUndo, change, decode, fromPreset, redo, saveSoon, store, undo, watch, watchHistory } from "./store.js";
import { declare, editable, momentOf, plain, plural, scientific } from "./text.js";
import { fillPresets, notice, startTools } from "./tools.js";
import { letGo, show } from "./typing.js";
import { drawVerdict } from "./verdict.js";

const DRIFT = 0.045; // radians per second, while playing

const page = { presets: [], syncForm: () => {}, theme: null, dirty: true, stale: new Set(), firstDrawn: false, drawn: 0, drawnSince: performance.now(), tip: null };
const camera = new Camera();
const redraw = () => { page.dirty = true; };
const stale = (...names) => { for (const name of names) page.stale.add(name); page.dirty = true; };
const ALL = ["lines", "curves", "attention", "spectrum", "verdict"];

// ------------------------------------------------------------------------------------------------------- pictures

const panels = new Panels({
  redraw,
  ready: (panel, run) => clock.ready(run),
  waiting: (panel) => { const { dataset } = stageOf(panel).figure; delete dataset.done; dataset.busy = ""; },
  seen: (panel) => { const { dataset } = stageOf(panel).figure; if (!panels.busy(panel)) delete dataset.busy; dataset.seen = 1 + Number(dataset.seen ?? 0); },
  settled: (panel, run) => { const { dataset } = stageOf(panel).figure; delete dataset.busy; if (run.end) dataset.done = run.id; },
  shown: (panel, run, old) => { clock.shown(run, old); stageOf(panel).handle = null; stale(...ALL); },
  shorten,
  arrived: (panel, what, run) => {
    if (what === "error") { showProblem(stageOf(panel), panels.problems[panel]); delete stageOf(panel).figure.dataset.busy; }
    if (what === "begin") { showProblem(stageOf(panel), panels.problems[panel]); page.syncForm(); }
    if (what === "facts" && page.warming && !run.facts.browser) { page.warming = false; notice(""); }
    if (run && run !== panels.runs[panel]) return;
    if (what === "facts") stale("lines", "curves", "spectrum", "verdict");
    if (what === "curves") stale("curves");
    if (what === "positions") { clock.arrived(); if (run.have < run.frames && run.have > 1) stale("lines"); }
    if (what === "end") { clock.arrived(); stale(...ALL); if (!panels.wishes[panel]) stageOf(panel).figure.dataset.done = run.id; describeStage(stageOf(panel), panels.runs[panel]); if (!store.state.view.playing) announce(`Reached: ${run.end.reached.text}`); }
    redraw();
  },
  attention: (message) => { if (message.panel === active()) charts.attention.show(message, page.theme, lit(message.panel)); },
  noAttention: () => charts.attention.blank(page.theme),
});
const clock = new Clock({
  panels, redraw,
  moved: (at) => { scrub.value = at; },
  paused: () => { const [run] = clock.runs; if (run) announce(`Paused at ${momentOf(run, clock.placeOf(run).time)}, ${plural(run.clusters(clock.placeOf(run).nearest) ?? 0, "cluster")}`); },
  drift: (seconds) => { if (!reducedMotion() && !store.state.view.camera && clock.runs.some((run) => run.components === 3)) camera.drift(DRIFT * seconds); },
});

// Said to whoever does not see the picture, and only when it stands still.
const announce = (text) => { $("#announce").textContent = text; };
const lit = (panel) => { const stage = stageOf(panel); return stage.lit < (panels.runs[panel]?.tokens ?? 0) ? stage.lit : -1; };
const point = (panel) => (token) => { const stage = stageOf(panel); if (stage.run && token !== stage.hover) stage.setHover(token); };
const chartEvents = (name, panel = null) => ({ seek: (at) => clock.seek(at), stale: () => stale(name), point: (token) => point(panel ?? active())(token) });
const charts = {
  lines: [new Lines($("#lines"), chartEvents("lines", 0)), new Lines($("#lines-b"), chartEvents("lines", 1))],
  clusters: new Clusters($("#clusters"), chartEvents("curves")),
  capture: new Capture($("#capture"), chartEvents("curves")),
  energy: new Energy($("#energy"), chartEvents("curves")),
  attention: new Attention($("#attention"), chartEvents("attention")),
  spectrum: new Spectrum($("#spectrum"), { ...chartEvents("spectrum"), moved: moveEigenvalues }),
};
const stages = [...document.querySelectorAll(".stage")].map((figure, panel) => new Stage(figure, camera, {
  redraw,
  turned: () => { store.state.view.camera = [...camera.quaternion]; saveSoon(); redraw(); },
  hovered: (token) => { page.tip = token < 0 ? null : { panel, token }; stale("attention"); },
  selected: (token) => { stages.forEach((stage) => { stage.selected = token < (stage.run?.tokens ?? 0) ? token : -1; }); syncEdit(); stale("attention"); },
  grabbed: (token, from) => editor.grab(panel, token, from),
  dragged: (direction) => editor.drag(direction),
  dropped: () => editor.drop(),
  placed: (direction) => editor.append(panel, direction),
}));
const stageOf = (panel) => stages[panel];
const editor = new Editor({ panels, stages, notice, redraw, pause: () => clock.pause() });

function hideTip() { page.tip = null; stages.forEach((stage) => { stage.hover = -1; }); redraw(); }

function moveEigenvalues(list, final) {
  change("panel", (state) => {
    state.panels[active()].model.value = { eigenvalues: list };
    state.view.preset = null;
  }, { panel: active(), final });
}

// The eigenvalues as the state has them, or as the server found them, of the sum of all heads: [re, im >= 0].
function eigenvalues() {
  const { value } = activeSetting().model;
  if (value?.eigenvalues) return value.eigenvalues.filter(([, im]) => im >= 0);
  const found = holding(panels.runs[active()])?.total ?? [];
  return found.filter(([, im]) => im >= -1e-9).map(([re, im]) => [Number(re.toFixed(6)), Number(Math.max(0, im).toFixed(6))]);
}

// What holds of a run at the moment that is looked at.
const holding = (run) => run?.at(clock.placeOf(run).time);

// A horizon that is too long for the model (noise) is shortened, said, and restored when the reason is gone.
function shorten(until) {
  if (until >= store.state.clock.until) return false;
  const wanted = store.state.view.longer?.[0] ?? store.state.clock.until;
  change("panel", (state) => { state.clock.until = until; state.view.longer = [wanted, until]; }, { amend: true });
  notice(`With noise runs go up to t = ${scientific(until)} here, so the horizon was shortened.`, "", 6);
  return true;
}
function lengthen() {
  const { clock: now, panels: settings, view } = store.state;
  if (!view.longer || settings.some((setting) => setting.model.noise)) return;
  const [wanted, short] = view.longer;
  if (now.until === short) now.until = wanted;
  view.longer = null;
}

// ------------------------------------------------------------------------------------------------------------ draw

let last = performance.now();
function tick(now) {
  const seconds = Math.min(0.1, (now - last) / 1000);
  last = now;
  if (store.state.view.playing && clock.runs.length) clock.advance(seconds);
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

function draw() {
  const { view, panels: settings } = store.state, theme = page.theme;
  const runs = settings.map((_, panel) => panels.runs[panel]);
  let drawn = false;
  runs.forEach((run, panel) => {
    if (!run) return;
    const stage = stageOf(panel), place = clock.placeOf(run), count = run.clusters(place.nearest);
    stage.use(run, panels.ghosts[panel]);
    drawn = stage.draw(place, view, theme) || drawn;
    stage.figure.querySelector(".now").textContent = momentOf(run, place.time);
    stage.figure.querySelector(".what").textContent = headingOf(run, place.time);
    if (panel === active() && page.holds !== run.at(place.time)) { page.holds = run.at(place.time); page.stale.add("spectrum"); }
    stage.figure.querySelector(".count").textContent = count === null ? "" : plural(count, "cluster");
    if (panel === active() && charts.attention.visible) panels.askAttention(panel, place.nearest);
    panels.painted(panel);
  });
  drawClock(runs[0], view);
  drawCharts(runs.filter(Boolean).length ? runs : [], view, theme);
  drawTip(page.tip, stages, clock);
  if (drawn) { page.drawn++; firstPicture(); }
}

function firstPicture() {
  if (page.firstDrawn) return;
  page.firstDrawn = true;
  document.documentElement.dataset.firstFrame = performance.now().toFixed(0);
}

const playButton = $("#play"), scrub = $("#scrub");
function drawClock(run, view) {
  scrub.value = view.at;
  playButton.setAttribute("aria-label", view.playing ? "Pause" : "Play");
  if (!run) return;
  const text = momentOf(run, clock.placeOf(run).time);
  followStory();
  $("#clock").textContent = text;
  if (!view.playing) scrub.setAttribute("aria-valuetext", text); // a slider that speaks thirty times a second says nothing
}

function drawCharts(runs, view, theme) {
  if (!runs.length) return;
  const names = page.stale, now = runs.find(Boolean).clock;
  page.stale = new Set();
  const complete = runs.every((run) => run?.end);
  if (names.has("lines")) runs.forEach((run, panel) => {
    if (run) { stageOf(panel).use(run, panels.ghosts[panel]); charts.lines[panel].begin(run, panels.ghosts[panel], stageOf(panel).palette(view, theme), view, theme, now); }
  });
  if (names.has("curves")) for (const chart of [charts.clusters, charts.capture, charts.energy]) chart.draw(runs, now, theme, view.story !== null);
  if (names.has("attention")) charts.attention.draw(theme, lit(active()));
  if (names.has("spectrum")) drawSpectrum(runs[active()], theme);
  if (names.has("verdict")) { drawVerdict($("#verdict"), panels, store.state.panels); drawLegend(runs, panels.ghosts, stages, view); drawMarks(runs[0], theme); }
  const at = Math.min(view.at, clock.furthest);
  charts.lines.forEach((chart, panel) => { if (runs[panel]) { chart.cursor(at, theme, complete); chart.light(runs[panel], lit(panel), theme); } });
  for (const chart of [charts.clusters, charts.capture, charts.energy]) chart.cursor(at, theme, false);
}

function drawSpectrum(run, theme) {
  const table = activeSetting().model, holds = holding(run), heads = holds?.heads ?? 1;
  const movable = !run?.view?.pieces && !table.heads && (!table.value || Boolean(table.value.eigenvalues));
  // Said in the chart itself: beside two pictures its caption has no room.
  const of = [store.state.panels.length > 1 ? (active() ? "right" : "left") : "", !movable && heads > 1 ? `sum of ${heads} heads` : ""].filter(Boolean).join(": ");
  charts.spectrum.show(eigenvalues(), holds?.eigenvalue ?? null, movable, theme, of);
  $("#spectrum .key").textContent = movable ? "drag" : "";
}

// ------------------------------------------------------------------------------------------------------------ wiring

function syncAll() {
  const { panels: settings, clock: now, view } = store.state, pair = settings.length > 1;
  document.body.classList.toggle("pair", pair);
  stages[1].figure.hidden = !pair;
  $("#lines-b").hidden = !pair;
  $("#lines figcaption span").textContent = pair ? "World lines, left" : "World lines";
  $("#which").hidden = !pair;
  for (const tab of document.querySelectorAll("#which button")) tab.setAttribute("aria-selected", String(Number(tab.dataset.panel) === active()));
  $("#compare").setAttribute("aria-pressed", String(pair));
  $("#log").setAttribute("aria-pressed", String(Boolean(now.log)));
  show($("#until"), editable(now.until));
  $("#speed").value = String(view.speed);
  const preset = page.presets.find((item) => item.name === view.preset), origin = page.presets.find((item) => item.name === view.origin);
  $("#preset").value = preset?.name ?? "";
  $("#caption").textContent = preset?.text ?? (origin ? `Changed from “${origin.title}”.` : "");
  $("#reset").hidden = Boolean(preset) || !origin;
  const kinds = heightsFor(Math.min(3, settings[0].model.dim));
  options($("#height"), kinds.map((kind) => [kind, HEIGHTS[kind].name]), kinds.includes(view.height) ? view.height : kinds[0]);
  page.syncForm();
  syncStory();
  syncEdit();
}

function syncEdit() {
  stages.forEach((stage) => stage.figure.classList.toggle("chosen", stage.selected >= 0));
  $("#undo").disabled = !canUndo();
  $("#redo").disabled = !canRedo();
  $("#delete").disabled = !(stages[active()]?.selected >= 0);
}

watch((what, details) => {
  if (!store.state.panels.length) return; // the server has not spoken yet
  if (what === "panel") {
    lengthen();
    clock.hold();
    if (!details.hand && !details.amend) { panels.ghosts = [null, null]; panels.before = [null, null]; }
    if (details.panel === undefined) panels.requestAll(details.final ?? true); else panels.request(details.panel, details.final ?? true);
    stale("spectrum");
  } else stale("lines", "spectrum", "curves", "verdict");
  syncAll();
  queueMicrotask(syncEdit); // the history has its entry by then
});

// Nothing of what was on show stays.
function showAnew(state) {
  letGo();
  if (state.view.story !== null) editor.toggle(false);
  [0, 1].forEach((panel) => { panels.drop(panel); stageOf(panel).selected = -1; stageOf(panel).handle = null; showProblem(stageOf(panel), panels.problems[panel]); });
  camera.reset(state.view.camera ?? undefined);
  clock.time = 0;
  clock.fresh = state.view.at === 0;
}
function load(state) {
  showAnew(state);
  change("panel", (current) => { Object.assign(current, state); });
}

// Back and forward: another setting, looked at as before.
function restore(state) {
  const { view } = store.state;
  letGo();
  // Another step of the story is another picture, with its own way to look at it.
  if (state.view.story !== view.story) { showAnew(state); Object.assign(store.state, state); panels.requestAll(); stale(...ALL); syncAll(); return; }
  if (state.panels.length < store.state.panels.length) panels.drop(1);
  clock.hold();
  Object.assign(store.state, { panels: state.panels, clock: state.clock, view: { ...view, preset: state.view.preset, origin: state.view.origin, longer: state.view.longer, active: Math.min(view.active, state.panels.length - 1) } });
  panels.ghosts = [null, null]; panels.before = [null, null];
  stages.forEach((stage) => { stage.handle = null; });
  panels.requestAll();
  stale("spectrum");
  syncAll();
}

function follow(hash) {
  const { state, problem } = decode(hash, page.presets);
  if (state) load(state);
  else if (problem) notice(`${problem}.`, "bad", 8);
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
  $("#reset").addEventListener("click", () => load(fromPreset(page.presets.find((item) => item.name === store.state.view.origin))));
  $("#undo").addEventListener("click", undo);
  $("#redo").addEventListener("click", redo);
  $("#compare").addEventListener("click", () => setCompare(store.state.panels.length < 2));
  playButton.addEventListener("click", () => clock.toggle());
  scrub.addEventListener("input", () => clock.seek(Number(scrub.value)));
  $("#speed").addEventListener("change", (event) => change("view", (state) => { state.view.speed = Number(event.target.value); }));
  $("#log").addEventListener("click", toggleLog);
  $("#height").addEventListener("change", (event) => change("view", (state) => { state.view.height = event.target.value; }));
  $("#until").addEventListener("change", (event) => enter(event.target, () => store.state.clock.until, (value) => change("panel", (state) => { state.clock.until = value; state.view.preset = null; if (value > 2000) state.clock.log = true; })));
  for (const tab of document.querySelectorAll("#which button")) tab.addEventListener("click", () => change("view", (state) => { state.view.active = Number(tab.dataset.panel); }));
  watchHistory(restore, follow);
  new ResizeObserver(() => stale("verdict")).observe($("#marks"));
  // Scrolled away on a phone, the picture stays as a small one.
  new IntersectionObserver((entries) => { document.body.classList.toggle("mini", !entries.at(-1).isIntersecting); }).observe($("#stages"));
  startTools({ redraw: () => { page.theme = readTheme(); stages.forEach((stage) => { stage.colors = null; }); stale(...ALL); } });
  startPictures({ stages, clock, camera, notice, theme: () => page.theme });
  startEnlarge(() => {
    const { view, panels: settings } = store.state, runs = settings.map((_, panel) => panels.runs[panel]);
    return { runs, palettes: runs.map((run, panel) => run && stageOf(panel).palette(view, page.theme)), charts, view, clock: runs.find(Boolean)?.clock ?? store.state.clock, theme: page.theme };
  }, notice);
  startGlossary();
  startStory({
    load, loadFirst: () => load(fromPreset(page.presets.find((item) => item.name === page.first))),
    preset: (name) => structuredClone(page.presets.find((item) => item.name === name).state),
    seek: (at) => clock.seek(at), time: () => (clock.runs[0] ? clock.placeOf(clock.runs[0]).time : 0),
  });
  startKeys({ clock, editor, toggleLog, setCompare, stages, panels, camera, redraw, page, notice, hideTip, undo, redo });
  const heart = new Heartbeat(() => panels.connection, () => store.state.panels.some((_, panel) => panels.busy(panel)), (yes) => notice(yes ? "The server is not answering. What you see is the last picture it sent." : "", yes ? "bad" : ""));
  panels.connection = new Connection(heart.listenIn({
    ...panels.handlers(),
    hello: welcome,
    pong: () => {},
    warming: (message) => { page.warming = true; notice(message.message); },
    lost: () => notice("The server is not answering. Trying again …", "bad"),
    full: (message) => notice(message.message, "bad"),
  }));
  requestAnimationFrame(tick);
}

function welcome(message) {
  notice("");
  $("#version").textContent = `metastable ${message.version}`;
  for (const node of document.querySelectorAll(".where")) node.textContent = message.where;
  if (page.presets.length) { panels.restart(); return; }
  declare(message.variants);
  for (const node of document.querySelectorAll(".served")) node.hidden = !hasServer();
  page.presets = message.presets.items;
  fillPresets($("#preset"), page.presets);
  const auto = (name) => () => { const value = panels.newest(active())?.[name]; return value === undefined ? undefined : Number(plain(value, 3)); };
  page.syncForm = buildForm($("#form"), message.limits, { append: (byKeyboard) => editor.startAppend(byKeyboard), spectrum: eigenvalues, delta: auto("delta"), radius: auto("radius"), notice });
  const first = page.presets.find((item) => item.name === message.presets.first), { state, problem } = decode(location.hash, page.presets);
  markTerms();
  page.first = first.name;
  load(state ?? fromPreset(first));
  if (problem) notice(`${problem}, so this is “${first.title}” instead.`, "bad", 12);
  if (reducedMotion() && store.state.view.at === 0) clock.pause();
}

start();
