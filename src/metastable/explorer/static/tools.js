// The buttons of the bar: Python, downloads, links, help, light and dark.

import { $, el, saveFile } from "./dom.js";
import { request } from "./socket.js";
import { active, saveNow, store } from "./store.js";

let noticeTimer = 0;
export function notice(text, kind = "", seconds = 0) {
  const node = $("#notice");
  clearTimeout(noticeTimer);
  node.textContent = text;
  node.dataset.kind = kind;
  node.hidden = !text;
  if (seconds) noticeTimer = setTimeout(() => { node.hidden = true; }, 1000 * seconds);
}

async function showPython() {
  const { panels, clock } = store.state;
  try {
    const text = await (await request("python", { settings: panels, clock })).blob.text();
    $("#code code").textContent = text;
    $("#code").showModal();
  } catch (reason) { notice(reason.message, "bad", 6); }
}

async function copy(text, button, otherwise = "Select and copy") {
  try { await navigator.clipboard.writeText(text); flash(button, "Copied"); }
  catch { flash(button, otherwise); } // not every address may write there
}
function flash(button, text) {
  const before = button.dataset.label ?? button.textContent;
  button.dataset.label = before;
  button.textContent = text;
  setTimeout(() => { button.textContent = before; }, 1400);
}

// What the page makes by itself: format -> a function that makes and saves it.
export const makers = {};

async function download(format) {
  const { panels, clock } = store.state;
  if (makers[format]) { await makers[format](); return; }
  notice(format === "mp4" ? "Drawing the film; this takes a minute …" : "Preparing the file …");
  try {
    const { name, blob } = await request(format, { setting: panels[active()], clock });
    saveFile(blob, name);
    notice(`${name} was saved.`, "", 3);
  } catch (reason) { notice(reason.message, "bad", 8); }
}

function menu() {
  const button = $("#download"), list = $("#download-menu"), items = [...list.querySelectorAll("button")];
  const open = (shown) => { list.hidden = !shown; button.setAttribute("aria-expanded", String(shown)); if (shown) items[0].focus(); };
  button.addEventListener("click", () => open(list.hidden));
  document.addEventListener("pointerdown", (event) => { if (!list.hidden && !event.target.closest(".menu")) open(false); });
  list.addEventListener("keydown", (event) => {
    const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (move) { items[(items.indexOf(document.activeElement) + move + items.length) % items.length].focus(); event.preventDefault(); event.stopPropagation(); }
    if (event.key === "Escape") { open(false); button.focus(); }
  });
  for (const item of items) item.addEventListener("click", () => { open(false); download(item.dataset.format); });
}

export function setTheme(name) {
  document.documentElement.dataset.theme = name;
}
function startTheme(redraw) {
  const wanted = matchMedia("(prefers-color-scheme: dark)");
  const own = () => { try { return localStorage.getItem("theme"); } catch { return null; } };
  const apply = () => { setTheme(own() ?? (wanted.matches ? "dark" : "light")); redraw(); };
  wanted.addEventListener("change", apply);
  $("#theme").addEventListener("click", () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem("theme", next); } catch { /* private mode: it lasts until the page is closed */ }
    setTheme(next); redraw();
  });
  apply();
}

export function startTools({ redraw }) {
  startTheme(redraw);
  menu();
  $("#python").addEventListener("click", showPython);
  for (const button of document.querySelectorAll("dialog .copy")) button.addEventListener("click", () => copy(button.closest("dialog").querySelector("code").textContent, button));
  $("#help").addEventListener("click", () => $("#about").showModal());
  $("#link").addEventListener("click", (event) => { saveNow(); copy(location.href, event.target, "See the address"); });
  for (const button of document.querySelectorAll("dialog .close")) button.addEventListener("click", () => button.closest("dialog").close());
}

export function fillPresets(select, presets) {
  const groups = new Map();
  for (const preset of presets) {
    if (!groups.has(preset.group)) groups.set(preset.group, el("optgroup", { label: preset.group }));
    groups.get(preset.group).append(el("option", { value: preset.name }, preset.title));
  }
  select.replaceChildren(el("option", { value: "", disabled: true }, "Own setting"), ...groups.values());
}
