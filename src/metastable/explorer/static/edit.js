// Changes by hand: tokens that are moved, added and taken out.
//
// What is changed is always where a token begins. Who takes hold of a token at time t turns its start by as much as the pointer turns the
// token; the moment stays, and the run before stays visible as a ghost.

import { $ } from "./dom.js";
import { active, activeSetting, change, store } from "./store.js";

const MOST = 64; // tokens moved, appended or taken out, as the server allows
const rounded = (direction, dim) => direction.slice(0, dim).map((c) => Number(c.toFixed(5)));

// The token of the drawn and appended ones that the k-th token on show is: those taken out are not on show.
export function indexOf(start, k) {
  const out = new Set(start.removed ?? []);
  for (let index = 0; ; index++) if (!out.has(index) && k-- === 0) return index;
}

// Another number of drawn tokens: what was changed by hand stays, as far as its tokens are there.
export function setTokens(start, count) {
  const before = start.tokens, moved = (index) => (index < before ? index : index - before + count);
  const kept = (index) => index >= before || index < count;
  start.tokens = count;
  if (start.placed) start.placed = start.placed.filter(([k]) => kept(k)).map(([k, position]) => [moved(k), position]);
  if (start.removed) start.removed = start.removed.filter(kept).map(moved);
}

export const byHand = (start) => Boolean(start?.placed?.length || start?.appended?.length || start?.removed?.length);
export function clearHand(start) { delete start.placed; delete start.appended; delete start.removed; }

// The vector `v` turned by the rotation that takes `a` to `b` the short way.
export function turned(a, b, v) {
  const pad = (u) => [u[0], u[1], u[2] ?? 0];
  const [p, q, r] = [pad(a), pad(b), pad(v)];
  const axis = [p[1] * q[2] - p[2] * q[1], p[2] * q[0] - p[0] * q[2], p[0] * q[1] - p[1] * q[0]];
  const dot = p[0] * q[0] + p[1] * q[1] + p[2] * q[2];
  if (dot < -0.99999) return r.map((c) => -c);
  const cross = [axis[1] * r[2] - axis[2] * r[1], axis[2] * r[0] - axis[0] * r[2], axis[0] * r[1] - axis[1] * r[0]];
  const along = (axis[0] * r[0] + axis[1] * r[1] + axis[2] * r[2]) / (1 + dot);
  return r.map((c, i) => dot * c + cross[i] + along * axis[i]);
}

export class Editor {
  // `page`: { panels, stages, notice, pause, redraw }.
  constructor(page) {
    Object.assign(this, page);
    this.on = false;
    this.held = null;
    this.fixed = Boolean(globalThis.METASTABLE?.player); // one recorded run: nothing of it can be changed
    $("#edit").addEventListener("click", () => this.toggle());
    $("#delete").addEventListener("click", () => this.remove());
  }

  toggle(on = !this.on) {
    if (this.fixed) return;
    this.on = on;
    document.body.classList.toggle("editing", on);
    $("#edit").setAttribute("aria-pressed", String(on));
    $("#edit-hint").hidden = !on;
    this.stages.forEach((stage) => { stage.editing = on; if (!on) stage.stopPlacing(); });
    if (on) this.pause();
    this.redraw();
  }

  // Remember what was before: its run stays as a ghost, and the server says what became different.
  begin(panel) {
    this.panels.before[panel] = structuredClone(store.state.panels[panel]);
    this.panels.ghosts[panel] = this.panels.runs[panel];
    this.pause();
  }

  change(panel, mutate, final = true) {
    change("panel", (state) => { mutate(state.panels[panel].start); state.view.preset = null; }, { panel, hand: true, final });
  }

  // Take hold of a token: `from` is where it is on the picture, or its start itself.
  grab(panel, token, from) {
    if (this.fixed) return;
    const run = this.panels.runs[panel], c = run.components;
    this.held = { panel, token, from, start: Array.from(run.positions.subarray(token * c, (token + 1) * c)), index: indexOf(run.setting.start, token), begun: false };
  }

  drag(direction) {
    const { held } = this, run = this.panels.runs[held?.panel], setting = store.state.panels[held?.panel];
    if (!run || run.dim > 3) return;
    if (!held.begun) { this.begin(held.panel); held.begun = true; }
    const position = rounded(turned(held.from, direction, held.start), run.dim);
    this.stages[held.panel].handle = { token: held.token, position };
    this.place(held.panel, held.index, position, false);
    if (setting.start.placed.length > MOST) this.notice(`Up to ${MOST} tokens can be moved by hand.`, "bad", 4);
  }

  drop() {
    const held = this.held;
    this.held = null;
    if (held?.begun) this.change(held.panel, () => {});
  }

  // Put the start of a token somewhere.
  place(panel, index, position, final = true) {
    this.change(panel, (start) => { start.placed = [...(start.placed ?? []).filter(([k]) => k !== index), [index, position]]; }, final);
  }

  // With the keyboard: from where its start is now.
  nudge(panel, token, direction) {
    const run = this.panels.runs[panel];
    if (this.fixed || run.dim > 3) return;
    this.begin(panel);
    this.stages[panel].handle = { token, position: rounded(direction, run.dim) };
    this.place(panel, indexOf(run.setting.start, token), rounded(direction, run.dim));
  }

  append(panel, direction) {
    const { dim } = store.state.panels[panel].model;
    this.stages.forEach((stage) => stage.stopPlacing());
    this.notice("");
    if ((store.state.panels[panel].start.appended?.length ?? 0) >= MOST) { this.notice(`Up to ${MOST} tokens can be added by hand.`, "bad", 4); return; }
    this.begin(panel);
    this.change(panel, (start) => {
      if (dim > 3) setTokens(start, start.tokens + 1);
      else start.appended = [...(start.appended ?? []), rounded(direction, dim)];
    });
  }

  // With the keyboard the token goes to the middle of the picture (or to a new angle); with a pointer one shows where.
  startAppend(byKeyboard) {
    const panel = active(), setting = activeSetting(), stage = this.stages[panel];
    if (this.fixed) return;
    if (setting.model.dim > 3) { this.append(panel, null); return; }
    if (byKeyboard) {
      const angle = 2.4 * (1 + (setting.start.appended?.length ?? 0));
      this.append(panel, setting.model.dim === 2 ? [Math.cos(angle), Math.sin(angle)] : stage.camera.inverse(0.3 * Math.cos(angle), 0.3 * Math.sin(angle), 0.95));
      return;
    }
    this.pause();
    stage.startPlacing();
    this.notice("Click where the new token begins. Escape leaves it.");
  }

  // Take the chosen token out.
  remove() {
    const panel = active(), stage = this.stages[panel], run = this.panels.runs[panel], token = stage.selected;
    if (this.fixed) return;
    if (token < 0 || !run) { this.notice("Choose a token first: click it.", "", 3); return; }
    const { start } = store.state.panels[panel], index = indexOf(run.setting.start, token);
    if (start.removed?.includes(index)) return; // it is still on show, and was taken out a moment ago
    if (start.tokens + (start.appended?.length ?? 0) - (start.removed?.length ?? 0) < 2) { this.notice("The last token stays: a picture of none is empty.", "", 4); return; }
    if ((start.removed?.length ?? 0) >= MOST) { this.notice(`Up to ${MOST} tokens can be taken out by hand.`, "bad", 4); return; }
    this.begin(panel);
    this.change(panel, (now) => {
      now.removed = [...(now.removed ?? []), index];
      if (now.placed) now.placed = now.placed.filter(([k]) => k !== index);
    });
    stage.events.selected(-1);
  }
}
