// The state of the page: everything that a link restores. One object, changed through `change`, watched by subscribers. Every change of a
// setting is an entry of the browser's history, so that Back undoes it.

export const store = {
  state: {
    panels: [],
    clock: { until: 200, log: false },
    view: { at: 0, playing: true, speed: 1, camera: null, color: "cluster", trails: true, centers: true, numbers: true, height: "auto", active: 0, preset: null, origin: null, story: null, longer: null },
  },
  watchers: [],
};

const STORY_STEPS = 6;
const HEIGHT_KINDS = ["auto", "angle", "distance", "x1", "x2", "x3"];

export const DEFAULT_VIEW = structuredClone(store.state.view);

export function watch(callback) { store.watchers.push(callback); }

// `what`: "panel" (a setting or the clock changed: runs must follow), "view" (only how it is looked at).
// `details.final`: false while a hand still holds what it changes; the history has one entry for the whole movement. `details.amend`: a
// correction of the last change, no change of its own.
export function change(what, mutate, details = {}) {
  if (what === "panel" && globalThis.METASTABLE?.player && store.state.panels.length) return; // one recorded run: there is no other
  const { panels, clock } = store.state, before = what === "panel" ? structuredClone({ panels, clock }) : null;
  const held = committed !== null && committed !== settings(); // by a hand, and not written down yet
  mutate(store.state);
  if (before?.panels.length && !isReadable(store.state)) { Object.assign(store.state, before); what = "view"; } // no link could restore it
  for (const callback of store.watchers) callback(what, details);
  if (what === "panel" && details.amend) { if (!held) amend(); }
  else if (what === "panel" && details.final !== false) commit();
  else saveSoon();
}

export const active = () => Math.max(0, Math.min(store.state.view.active, store.state.panels.length - 1));
export const activeSetting = () => store.state.panels[active()];

// ------------------------------------------------------------------------------------------------------- links

const toBase64 = (text) => btoa(String.fromCharCode(...new TextEncoder().encode(text))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
const fromBase64 = (text) => new TextDecoder().decode(Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0)));

export function encode() {
  const { panels, clock, view } = store.state;
  const short = {};
  for (const [name, value] of Object.entries(view)) {
    if (JSON.stringify(value) !== JSON.stringify(DEFAULT_VIEW[name])) short[name] = typeof value === "number" ? Number(value.toPrecision(6)) : value;
  }
  return "#s=" + toBase64(JSON.stringify({ panels, clock, view: short }));
}

const isTable = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isClock = (clock) => isTable(clock) && Number.isFinite(clock.until) && ["boolean", "undefined"].includes(typeof clock.log);
const missing = (value) => value === undefined || value === null;
const isNumber = (value) => missing(value) || Number.isFinite(value);
const isVariant = (value) => missing(value) || typeof value === "string" || (isTable(value) && ["string", "undefined"].includes(typeof value.kind));
const isList = (value) => missing(value) || Array.isArray(value);
const isRows = (value) => Array.isArray(value) && value.every((row) => Array.isArray(row) && row.every(Number.isFinite));
const isMatrix = (value) => missing(value) || isRows(value) || (isTable(value) && (missing(value.eigenvalues) || isRows(value.eigenvalues)));
const isHead = (head) => isTable(head) && isNumber(head.beta) && [head.query, head.key, head.value].every(isMatrix);
const isModel = (model) => isTable(model) && isHead(model) && Number.isFinite(model.dim) && isNumber(model.noise) && [model.mask, model.norm, model.weights].every(isVariant)
  && (missing(model.heads) || (Array.isArray(model.heads) && model.heads.every(isHead))) && (missing(model.frozen) || (isTable(model.frozen) && isRows(model.frozen.tokens) && isList(model.frozen.weights)));
// What the page itself reads of a setting has the form that it reads.
const isSetting = (panel) => isTable(panel) && isTable(panel.start) && isNumber(panel.delta) && isNumber(panel.radius)
  && (panel.recorded ? isTable(panel.model) : isModel(panel.model) && Number.isFinite(panel.start.tokens) && isNumber(panel.start.seed) && [panel.start.placed, panel.start.appended, panel.start.removed].every(isList));

const allFinite = (value) => (typeof value === "number" ? Number.isFinite(value) : typeof value !== "object" || value === null || Object.values(value).every(allFinite));
// True for settings that a link can restore: JSON has no number that is not finite.
const isReadable = ({ panels, clock }) => panels.every(isSetting) && isClock(clock) && allFinite([panels, clock]);

// What a link asks for: `state`, or null with a `problem` where it asks for something that cannot be read. What can be read is checked
// again by whoever computes.
export function decode(hash, presets) {
  const named = /^#preset=(.*)$/.exec(hash);
  if (named) {
    const preset = presets.find((item) => item.name === named[1]);
    return preset ? { state: fromPreset(preset) } : { state: null, problem: `There is no preset “${named[1].slice(0, 40)}”` };
  }
  if (!hash.startsWith("#s=")) return { state: null };
  const unreadable = { state: null, problem: "This link cannot be read: it is incomplete, or was changed on its way" };
  try {
    const data = JSON.parse(fromBase64(hash.slice(3)));
    if (!isTable(data) || !Array.isArray(data.panels) || data.panels.length < 1 || data.panels.length > 2) return unreadable;
    if (!data.panels.every(isSetting) || !isClock(data.clock)) return unreadable;
    const view = { ...structuredClone(DEFAULT_VIEW) };
    for (const name of Object.keys(view)) if (isTable(data.view) && name in data.view && sound(name, data.view[name], data.panels.length)) view[name] = data.view[name];
    return { state: { panels: data.panels, clock: { log: false, ...data.clock }, view } };
  } catch {
    return unreadable;
  }
}

// True for a value that this field of the view can have, beside so many panels.
function sound(name, value, panels) {
  const within = (low, high) => Number.isInteger(value) && value >= low && value <= high;
  if (name === "camera") return value === null || (Array.isArray(value) && value.length === 4 && value.every(Number.isFinite) && Math.hypot(...value) > 0.5 && Math.hypot(...value) < 2);
  if (name === "preset" || name === "origin") return value === null || (typeof value === "string" && value.length <= 100);
  if (name === "story") return value === null || within(1, STORY_STEPS);
  if (name === "longer") return value === null || (Array.isArray(value) && value.length === 2 && value.every((until) => Number.isFinite(until) && until > 0)); // the horizon that was wanted, and what noise made of it
  if (name === "active") return within(0, panels - 1);
  if (name === "height") return HEIGHT_KINDS.includes(value);
  if (name === "speed") return [0.25, 0.5, 1, 2, 4].includes(value);
  if (name === "color") return ["cluster", "order", "origin"].includes(value);
  if (name === "at") return Number.isFinite(value) && value >= 0 && value <= 1;
  return typeof value === "boolean"; // playing, trails, centers, numbers
}

export function fromPreset(preset) {
  const view = structuredClone(DEFAULT_VIEW);
  view.preset = view.origin = preset.name;
  return { ...structuredClone(preset.state), view };
}

// ----------------------------------------------------------------------------------------------------- history

let timer = 0;
let committed = null; // the settings of the present entry
const settings = () => JSON.stringify([store.state.panels, store.state.clock]);

// Places count the entries since the page was opened. Beside what an entry itself says of its place, this tab remembers the last place there
// is and, of the present entry and its neighbours, the browser's keys and the addresses: a reload must not forget what can be redone, and an
// entry that lost its place on the way through the browser is known by its key. Browsers that give none leave where undo and redo lead, and
// the address while the number of entries is the same.
const MEMORY = `metastable ${location.pathname}`;
const remembered = recall();
const addresses = remembered?.addresses ?? {}, keys = remembered?.keys ?? {}; // by place
let entries = history.length;
let heading = null; // the place that undo or redo is on its way to
const found = whereIs(history.state, remembered?.place ?? null);
let place = found ?? 0, top = found === null ? 0 : Math.max(found, remembered?.top ?? 0); // of the present entry, of the last one

function recall() {
  try {
    const kept = JSON.parse(sessionStorage.getItem(MEMORY));
    return kept.entries === history.length ? kept : null;
  } catch { return null; } // nothing was kept, or a frame without a memory
}
function remember() {
  entries = history.length;
  addresses[place] = location.hash;
  keys[place] = keyNow();
  if (place === top) { delete addresses[place + 1]; delete keys[place + 1]; } // a new entry ends what could be redone
  const near = (of) => Object.fromEntries([place - 1, place, place + 1].map((at) => [at, of[at]]));
  try { sessionStorage.setItem(MEMORY, JSON.stringify({ place, top, entries, addresses: near(addresses), keys: near(keys) })); } catch { /* a frame without a memory */ }
}
function keyNow() { return globalThis.navigation?.currentEntry?.key; }

// The place of the entry that the page is at, coming from `from`; null for an address that somebody typed.
function whereIs(state, from) {
  if (Number.isInteger(state?.place)) return state.place;
  const key = keyNow();
  if (key) {
    const at = Object.keys(keys).find((other) => keys[other] === key);
    return at === undefined ? null : Number(at);
  }
  if (heading !== null) return heading;
  if (from === null || history.length !== entries) return null;
  return [from, from - 1, from + 1].find((at) => addresses[at] === location.hash) ?? null;
}

export function saveSoon() {
  clearTimeout(timer);
  timer = setTimeout(saveNow, 250);
}
// What a hand still holds is not written down: the entry before it must stay what it was.
export function saveNow() { if (committed === null || committed === settings()) write("replaceState"); }

function write(how) {
  clearTimeout(timer);
  if (!store.state.panels.length) return;
  try { history[how]({ place }, "", encode()); remember(); } catch { /* a frame without a history of its own: links are still made */ }
}

// The present entry was not quite what it should be.
function amend() { committed = settings(); saveNow(); }

// A new entry of the history where the settings differ from the present one's.
function commit() {
  const now = settings();
  if (committed === now) { saveSoon(); return; }
  const first = committed === null;
  committed = now;
  if (first) { saveNow(); return; } // at once: Back to an entry without its place would be taken for an address that somebody typed
  place += 1; top = place; heading = null;
  write("pushState");
}

const next = () => heading ?? place; // a second click may come before the browser has followed the first
export const canUndo = () => next() > 0;
export const canRedo = () => next() < top;
export const undo = () => { if (canUndo()) { saveNow(); heading = next() - 1; history.back(); } };
export const redo = () => { if (canRedo()) { saveNow(); heading = next() + 1; history.forward(); } };

// Back and forward: `restore(state)` for an entry of ours, `follow(hash)` for an address that somebody typed.
export function watchHistory(restore, follow) {
  window.addEventListener("popstate", (event) => {
    const at = whereIs(event.state, place), { state } = at === null ? { state: null } : decode(location.hash, []);
    if (!state || at === heading || Math.abs(at - heading) >= Math.abs(place - heading)) heading = null; // else a second step is on its way
    if (!state) {
      // An address that somebody typed: the next entry if it can be read. If not, what is on show stays, and the address says so again.
      committed = null;
      place += 1;
      follow(location.hash);
      if (committed === null) { committed = settings(); place -= 1; } else top = place;
      saveNow();
      return;
    }
    place = at;
    top = Math.max(top, place);
    committed = JSON.stringify([state.panels, state.clock]);
    restore(state);
    if (event.state?.place === at) remember(); else saveNow();
  });
}
