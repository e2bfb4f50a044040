// The state of the page: everything that a link restores. One object, changed through `change`, watched by subscribers.

export const store = {
  state: {
    panels: [],
    clock: { until: 200, log: false },
    view: { at: 0, playing: true, speed: 1, camera: null, color: "cluster", trails: true, centers: true, height: "auto", active: 0, preset: null },
  },
  watchers: [],
};

export const DEFAULT_VIEW = structuredClone(store.state.view);

export function watch(callback) { store.watchers.push(callback); }

// `what`: "panel" (a setting or the clock changed: runs must follow), "view" (only how it is looked at).
export function change(what, mutate, details = {}) {
  mutate(store.state);
  for (const callback of store.watchers) callback(what, details);
  saveSoon();
}

export const active = () => Math.min(store.state.view.active, store.state.panels.length - 1);
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

// The state in a link, the preset it names, or null. Whatever is in it is checked again by the server.
export function decode(hash, presets) {
  const named = /^#preset=([\w-]+)$/.exec(hash);
  if (named) {
    const preset = presets.find((item) => item.name === named[1]);
    return preset ? fromPreset(preset) : null;
  }
  if (!hash.startsWith("#s=")) return null;
  try {
    const data = JSON.parse(fromBase64(hash.slice(3)));
    if (!Array.isArray(data.panels) || data.panels.length < 1 || data.panels.length > 2) return null;
    if (!data.panels.every((panel) => panel?.model && panel?.start) || typeof data.clock !== "object") return null;
    const view = { ...structuredClone(DEFAULT_VIEW) };
    for (const name of Object.keys(view)) if (data.view && name in data.view && sound(name, data.view[name])) view[name] = data.view[name];
    return { panels: data.panels, clock: data.clock, view };
  } catch {
    return null;
  }
}

function sound(name, value) {
  if (name === "camera") return Array.isArray(value) && value.length === 4 && value.every(Number.isFinite) && Math.hypot(...value) > 0.5;
  if (name === "preset") return value === null || typeof value === "string";
  if (name === "at") return Number.isFinite(value) && value >= 0 && value <= 1;
  return typeof value === typeof DEFAULT_VIEW[name];
}

export function fromPreset(preset) {
  const view = structuredClone(DEFAULT_VIEW);
  view.preset = preset.name;
  return { ...structuredClone(preset.state), view };
}

let timer = 0;
let lastSaved = "";
export function saveSoon() {
  clearTimeout(timer);
  timer = setTimeout(saveNow, 250);
}
export function saveNow() {
  clearTimeout(timer);
  if (!store.state.panels.length) return;
  lastSaved = encode();
  history.replaceState(null, "", lastSaved);
}
export const isOwnHash = (hash) => hash === lastSaved;
