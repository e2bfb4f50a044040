// Form fields that know how to show a value and how to change it.

import { el, options } from "./dom.js";
import { editable, parseNumber } from "./text.js";

const STEPS = 1000;

// A scale from a slider's position to a value and back.
export const scales = {
  linear: (low, high, step) => ({ to: (v) => (v - low) / (high - low), from: (u) => Math.round((low + u * (high - low)) / step) * step }),
  log: (low, high, digits) => ({
    to: (v) => Math.log(Math.max(v, low) / low) / Math.log(high / low),
    from: (u) => (digits === 0 ? Math.round(low * (high / low) ** u) : Number((low * (high / low) ** u).toPrecision(digits))),
  }),
};

// A slider with a number beside it. `get` reads the state, `set` writes it (`final`: the hand has let go).
export function slider(label, name, scale, get, set, limits = {}) {
  const title = typeof label === "string" ? label : label.textContent;
  const range = el("input", { type: "range", min: 0, max: STEPS, step: 1, "aria-label": title, name: `${name}-slider` });
  const box = el("input", { type: "text", inputmode: "decimal", "aria-label": `${title}, exact`, name, spellcheck: "false" });
  const node = el("div", { class: "field" }, el("span", {}, label), range, box);
  // A value that follows from others unless somebody sets it: a button leads back to that.
  const auto = limits.auto && el("button", { type: "button", class: "auto", name: `${name}-auto`, title: "Follows from the inverse temperature; click to let it follow again", onclick: () => limits.auto.set() }, "auto");
  if (auto) { node.classList.add("with-auto"); node.append(auto); }
  range.addEventListener("input", () => { const value = scale.from(range.value / STEPS); box.value = editable(value); range.setAttribute("aria-valuetext", box.value); set(value, false); });
  range.addEventListener("change", () => set(scale.from(range.value / STEPS), true));
  range.addEventListener("keydown", (event) => {
    // One step of the keyboard is one step of the value where that is a whole number.
    const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[event.key];
    if (!step || !limits.whole) return;
    event.preventDefault();
    set(Math.min(limits.high, Math.max(limits.low, get() + step)), true);
  });
  box.addEventListener("change", () => {
    const value = parseNumber(box.value);
    if (Number.isNaN(value)) box.value = editable(get());
    else set(limits.whole ? Math.round(value) : value, true);
  });
  const sync = () => {
    const value = get();
    if (auto) auto.setAttribute("aria-pressed", String(limits.auto.is()));
    if (value === undefined || value === null) { if (document.activeElement !== box) box.value = ""; return; }
    if (document.activeElement !== box) box.value = editable(value);
    range.value = Math.round(STEPS * Math.min(1, Math.max(0, scale.to(value))));
    range.setAttribute("aria-valuetext", editable(value));
  };
  return { node, sync };
}

export function number(label, name, get, set) {
  const box = el("input", { type: "text", inputmode: "decimal", name, spellcheck: "false" });
  box.addEventListener("change", () => { const value = parseNumber(box.value); if (Number.isNaN(value)) box.value = editable(get()); else set(value); });
  const node = el("label", { class: "field choice" }, el("span", {}, label), box);
  return { node, sync: () => { if (document.activeElement !== box && get() !== undefined) box.value = editable(get()); } };
}

export function choice(label, name, entries, get, set) {
  const select = el("select", { name });
  select.addEventListener("change", () => set(select.value));
  const node = el("label", { class: "field choice" }, el("span", {}, label), select);
  return { node, sync: () => options(select, typeof entries === "function" ? entries() : entries, get()) };
}

export function toggle(label, name, get, set) {
  const box = el("input", { type: "checkbox", name });
  box.addEventListener("change", () => set(box.checked));
  return { node: el("label", { class: "field switch" }, el("span", {}, label), box), sync: () => { box.checked = get(); } };
}

// A matrix as text: rows on lines, numbers between spaces. What is not a number is sent as it is, and the server says what is wrong.
export function matrix(label, name, get, set) {
  const area = el("textarea", { name, rows: 3, spellcheck: "false", "aria-label": label });
  const parse = () => area.value.trim().split(/[\n;]+/).map((row) => row.trim().split(/[\s,]+/).filter(Boolean).map((cell) => { const value = parseNumber(cell); return Number.isNaN(value) ? cell : value; }));
  area.addEventListener("change", () => set(parse()));
  const node = el("div", { class: "field block" }, area);
  return { node, sync: () => {
    const rows = get();
    if (document.activeElement === area || !Array.isArray(rows)) return;
    area.value = rows.map((row) => row.map((v) => (typeof v === "number" ? editable(v) : v)).join("  ")).join("\n");
    area.rows = Math.min(10, Math.max(3, rows.length));
  } };
}

export function when(field, visible) {
  return { node: field.node, sync: () => { const shown = visible(); field.node.hidden = !shown; if (shown) field.sync(); } };
}

export function group(legend, ...fields) {
  return { node: el("fieldset", {}, el("legend", {}, legend), ...fields.map((field) => field.node)), sync: () => fields.forEach((field) => field.sync()) };
}
