// Form fields that know how to show a value and how to change it.

import { el, options } from "./dom.js";
import { editable, parseNumber } from "./text.js";
import { notice } from "./tools.js";
import { show, typing } from "./typing.js";

const STEPS = 1000;

// What is not a number is marked and said, and changes nothing: the state, its link and its history keep the last one that was.
export function refuse(field, text, why = "is not a number") {
  field.setAttribute("aria-invalid", "true");
  notice(`“${text.trim().slice(0, 40)}” ${/^[-+]?\d[\d.]*e\+?\d+$/i.test(text.trim()) ? "is too large a number" : why}; nothing was changed.`, "bad", 8);
}

// The number that was entered into a field, given to `set`; without a change the field is put in order.
export function enter(field, get, set) {
  const value = parseNumber(field.value.replace("−", "-"));
  if (Number.isNaN(value)) refuse(field, field.value);
  else { set(value); if (get() !== undefined) show(field, editable(get())); }
}

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
  box.addEventListener("change", () => enter(box, get, (value) => set(limits.whole ? Math.round(value) : value, true)));
  const sync = () => {
    const value = get();
    if (auto) auto.setAttribute("aria-pressed", String(limits.auto.is()));
    if (value === undefined || value === null) { show(box, ""); return; }
    show(box, editable(value));
    if (!typing(range)) range.value = Math.round(STEPS * Math.min(1, Math.max(0, scale.to(value))));
    range.setAttribute("aria-valuetext", editable(value));
  };
  return { node, sync };
}

export function number(label, name, get, set) {
  const box = el("input", { type: "text", inputmode: "decimal", name, spellcheck: "false" });
  box.addEventListener("change", () => enter(box, get, set));
  const node = el("label", { class: "field choice" }, el("span", {}, label), box);
  return { node, sync: () => { if (get() !== undefined) show(box, editable(get())); } };
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

// A matrix as text: rows on lines, numbers between spaces. Whether it fits is said by whoever computes.
export function matrix(label, name, get, set) {
  const area = el("textarea", { name, rows: 3, spellcheck: "false", "aria-label": label });
  area.addEventListener("change", () => {
    const cells = area.value.trim().split(/[\n;]+/).map((row) => row.trim().split(/[\s,]+/).filter(Boolean)), rows = cells.map((row) => row.map((cell) => parseNumber(cell.replace("−", "-"))));
    const wrong = cells.flat().find((_, k) => Number.isNaN(rows.flat()[k]));
    if (wrong === undefined) set(rows); else refuse(area, wrong, "is not a number, and a matrix has real numbers only");
  });
  const node = el("div", { class: "field block" }, area);
  return { node, sync: () => {
    const rows = get();
    if (typing(area) || !Array.isArray(rows)) return;
    show(area, rows.map((row) => row.map((v) => editable(v)).join("  ")).join("\n"));
    area.rows = Math.min(10, Math.max(3, rows.length));
  } };
}

export function when(field, visible) {
  return { node: field.node, sync: () => { const shown = visible(); field.node.hidden = !shown; if (shown) field.sync(); } };
}

export function group(legend, ...fields) {
  return { node: el("fieldset", {}, el("legend", {}, legend), ...fields.map((field) => field.node)), sync: () => fields.forEach((field) => field.sync()) };
}
