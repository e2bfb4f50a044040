// One moving picture: draws a run at a moment, and turns pointer movements into rotations, chosen tokens and, where one edits, moved ones.

import { tokenColors } from "./colors.js";
import { HIGHEST, Pile, drawDots, drawLeadingMarks, drawPast, drawRing } from "./circle.js";
import { discOf, drawBall, drawLeading, drawTokens, drawTrails, project } from "./sphere.js";
import { drawCluster, drawGhosts, drawHandle, drawNumbers, drawWords } from "./marks.js";

const PICK = 15; // pixels around a token that mean it
const CAPTION = 24; // pixels
const SLIP = 4; // pixels that a click may move

export class Stage {
  constructor(figure, camera, events) {
    this.figure = figure;
    this.canvas = figure.querySelector("canvas");
    this.ctx = this.canvas.getContext("2d");
    this.camera = camera;
    this.events = events;
    this.run = null;
    this.ghost = null; // the run before a change by hand
    this.handle = null; // where the start of a token is being put: { token, position }
    this.selected = -1;
    this.hover = -1;
    this.editing = false;
    this.fixed = Boolean(globalThis.METASTABLE?.player); // one recorded run: its tokens can be chosen, not moved
    this.placing = false;
    this.held = null;
    this.size = [0, 0];
    new ResizeObserver(() => this.resize()).observe(figure);
    this.listen();
  }

  resize() {
    const box = this.figure.getBoundingClientRect(), ratio = Math.min(3, window.devicePixelRatio || 1);
    if (!box.width || !box.height) return;
    this.size = [box.width, box.height];
    this.ratio = ratio;
    this.canvas.width = Math.round(box.width * ratio);
    this.canvas.height = Math.round(box.height * ratio);
    this.events.redraw();
  }

  get flat() { return this.run?.components === 2; }
  // The token that other views show too.
  get lit() { return this.hover >= 0 ? this.hover : this.selected; }

  geometry(theme) {
    const [width, height] = this.size;
    // A small picture leaves room for the line above it and the one below.
    const room = height / 2 - CAPTION, R = Math.max(20, this.flat ? Math.min(0.345 * Math.min(width, height), room / HIGHEST) : Math.min(0.45 * Math.min(width, height), room));
    return { cx: width / 2, cy: height / 2, R, theme, camera: this.camera };
  }

  use(run, ghost) {
    this.ghost = ghost;
    this.figure.classList.toggle("flat", run?.components === 2);
    if (run === this.run) return;
    const resized = run?.tokens !== this.run?.tokens;
    this.run = run;
    this.colors = null;
    if (!run || !resized) return;
    this.points = new Float32Array(3 * run.tokens);
    this.screen = new Float32Array(3 * run.tokens);
    this.sizes = new Float32Array(run.tokens);
    this.order = Int32Array.from({ length: run.tokens }, (_, k) => k);
    this.pile = new Pile(run.tokens);
    if (this.selected >= run.tokens) this.selected = -1;
    if (this.hover >= run.tokens) this.hover = -1;
  }

  palette(view, theme) {
    const key = `${view.color}/${theme.dark}/${this.run.have > 0}/${Boolean(this.run.facts)}/${this.run.labelled === this.run.frames}`;
    if (!this.colors || this.colors.key !== key) {
      this.colors = tokenColors(this.run, view.color, theme.dark);
      this.colors.key = key;
    }
    return this.colors;
  }

  draw(place, view, theme) {
    const { ctx, run } = this;
    if (!run || !run.have || !this.size[0]) return false;
    ctx.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    ctx.clearRect(0, 0, ...this.size);
    this.paint(place, view, theme);
    return true;
  }

  // The same picture on another canvas (or on something that writes down what is drawn), `width` x `height` large.
  drawOn(ctx, [width, height], place, view, theme) {
    const { ctx: own, size, hover } = this;
    Object.assign(this, { ctx, size: [width, height], hover: -1 });
    try { this.paint(place, view, theme); } finally { Object.assign(this, { ctx: own, size, hover }); }
    this.events.redraw();
  }

  paint(place, view, theme) {
    const { run } = this;
    this.holds = run.at(place.time);
    run.interpolate(place, this.points);
    const palette = this.palette(view, theme);
    const base = Math.min(place.nearest, Math.max(0, run.labelled - 1)) * run.tokens;
    const colorOf = view.color === "cluster" ? (k) => palette[run.leaders[base + k]] : (k) => palette[k];
    this.leaderOf = (k) => run.leaders[base + k];
    this.sizes.fill(0);
    for (let k = 0; k < run.tokens; k++) this.sizes[run.leaders[base + k]]++;
    for (let k = 0; k < run.tokens; k++) if (!this.sizes[k]) this.sizes[k] = 1;
    const geometry = this.geometry(theme);
    (this.flat ? this.drawCircle : this.drawSphere).call(this, geometry, place, view, colorOf);
    this.drawMarks(geometry, view);
  }

  drawSphere(geometry, place, view, colorOf) {
    const { ctx, run, screen } = this;
    const radius = geometry.R * Math.min(0.026, Math.max(0.0095, 0.19 / Math.sqrt(run.tokens)));
    const memory = Math.round(Math.min(34, Math.max(10, 9000 / run.tokens)));
    drawBall(ctx, geometry);
    drawLeading(ctx, geometry, this.holds.leading);
    project(this.points, run.tokens, geometry, screen);
    this.order.sort((a, b) => screen[3 * a + 2] - screen[3 * b + 2]);
    this.drawAnchors(geometry, false);
    for (const front of [false, true]) {
      if (view.trails) drawTrails(ctx, geometry, run, place, screen, colorOf, memory, front);
      drawTokens(ctx, geometry, this.order, screen, this.sizes, colorOf, this.leaderOf, radius, front);
    }
    this.radius = radius;
    this.drawAnchors(geometry, true);
  }

  drawCircle(geometry, place, view, colorOf) {
    const { ctx, run, screen } = this;
    const radius = geometry.R * Math.min(0.02, Math.max(0.0075, 0.24 / Math.sqrt(run.tokens)));
    const memory = Math.round(Math.min(90, Math.max(16, 16000 / run.tokens)));
    drawRing(ctx, geometry);
    if (view.trails) drawPast(ctx, geometry, run, place, this.points, colorOf, memory);
    drawLeadingMarks(ctx, geometry, this.holds.leading);
    this.pile.lay(this.points, run.tokens, geometry, radius, screen);
    drawDots(ctx, run.tokens, screen, colorOf, radius);
    this.radius = radius;
    this.drawAnchors(geometry, true);
  }

  drawMarks(geometry, view) {
    const { run, radius } = this, { R, theme } = geometry;
    if (this.ghost) drawGhosts(this, geometry);
    if (view.centers && run.facts) {
      const strong = new Set(run.facts.strong);
      for (const k of run.facts.centers) this.mark(k, Math.max(3, Math.min(0.016 * R, radius * 1.25)), strong.has(k) ? theme.strong : "#16191d");
    }
    if (!run.facts?.words) this.ring(0, theme.ink, Math.max(radius + 5.5, this.disc(0, R) + 3));
    if (run.facts?.words) drawWords(this, geometry);
    else if (view.numbers) drawNumbers(this, geometry);
    if (this.hover >= 0) { drawCluster(this, geometry, this.hover); this.ring(this.hover, theme.muted, Math.max(radius + 4, this.disc(this.hover, R) + 2)); }
    if (this.selected >= 0) { this.ring(this.selected, theme.accent, Math.max(radius + 7, this.disc(this.selected, R) + 5)); if (!this.fixed) drawHandle(this, geometry); }
    this.ctx.globalAlpha = 1;
  }

  disc(k, R) { return this.flat ? this.radius : discOf(R, this.radius, this.sizes[k], this.screen[3 * k + 2]); }

  mark(k, r, color) {
    const { ctx, screen } = this;
    ctx.globalAlpha = screen[3 * k + 2] >= 0 ? 1 : 0.3;
    ctx.fillStyle = color; ctx.strokeStyle = "#ffffff"; ctx.lineWidth = 1.4;
    ctx.beginPath(); ctx.arc(screen[3 * k], screen[3 * k + 1], r, 0, 2 * Math.PI); ctx.fill(); ctx.stroke();
  }

  ring(k, color, r) {
    const { ctx, screen } = this;
    ctx.globalAlpha = screen[3 * k + 2] >= 0 ? 1 : 0.35;
    ctx.strokeStyle = color; ctx.lineWidth = 1.8;
    ctx.beginPath(); ctx.arc(screen[3 * k], screen[3 * k + 1], r, 0, 2 * Math.PI); ctx.stroke();
  }

  drawAnchors({ cx, cy, R, theme, camera }, front) {
    const { ctx, holds: { frozen } } = this;
    if (!frozen) return;
    const m = camera.matrix, r = 0.034 * R + 2;
    ctx.lineWidth = 2.2; ctx.strokeStyle = theme.accent; ctx.fillStyle = theme.panel;
    for (const [x, y, z = 0] of frozen) {
      const depth = this.flat ? 1 : m[6] * x + m[7] * y + m[8] * z;
      if (depth >= 0 !== front) continue;
      const px = this.flat ? cx + R * x : cx + R * (m[0] * x + m[1] * y + m[2] * z);
      const py = this.flat ? cy - R * y : cy - R * (m[3] * x + m[4] * y + m[5] * z);
      ctx.globalAlpha = front ? 1 : 0.35;
      ctx.beginPath(); ctx.moveTo(px, py - r); ctx.lineTo(px + r, py); ctx.lineTo(px, py + r); ctx.lineTo(px - r, py); ctx.closePath();
      ctx.fill(); ctx.stroke();
    }
    ctx.globalAlpha = 1;
  }

  // Where a point of the space is on the screen: x, y, and whether it is in front.
  onScreen([x, y, z = 0]) {
    const { cx, cy, R, camera: { matrix: m } } = this.geometry(null);
    if (this.flat) return [cx + R * x, cy - R * y, true];
    return [cx + R * (m[0] * x + m[1] * y + m[2] * z), cy - R * (m[3] * x + m[4] * y + m[5] * z), m[6] * x + m[7] * y + m[8] * z >= 0];
  }

  // ---------------------------------------------------------------------------------------------------- pointer

  pick(x, y) {
    const { run, screen } = this;
    let best = -1, nearest = PICK * PICK;
    for (let k = 0; run?.have && k < run.tokens; k++) {
      if (screen[3 * k + 2] < 0) continue;
      const d = (screen[3 * k] - x) ** 2 + (screen[3 * k + 1] - y) ** 2;
      if (d < nearest) { nearest = d; best = k; }
    }
    return best;
  }

  // The direction in space under a point of the screen.
  direction(x, y) {
    const { cx, cy, R } = this.geometry(null);
    let u = (x - cx) / R, v = -(y - cy) / R;
    const r = Math.hypot(u, v) || 1;
    if (this.flat) return [u / r, v / r];
    if (r > 1) { u /= r; v /= r; }
    return this.camera.inverse(u, v, Math.sqrt(Math.max(0, 1 - u * u - v * v)));
  }

  onFigure(x, y) {
    const { cx, cy, R } = this.geometry(null), r = Math.hypot(x - cx, y - cy) / R;
    return this.flat ? r > 0.8 && r < 1.4 : r <= 1;
  }

  startOf(token) {
    const c = this.run.components;
    return this.handle?.token === token ? this.handle.position : Array.from(this.run.positions.subarray(token * c, (token + 1) * c));
  }

  // What a drag from here would move: { token, from }, or null where it rotates. A token has to be chosen first, or one edits; then it or the
  // handle at its start can be taken.
  grip(x, y, picked) {
    if (!this.run || this.run.dim > 3 || this.fixed) return null;
    const { selected, screen } = this;
    if (selected >= 0) {
      const start = this.startOf(selected), [hx, hy, front] = this.onScreen(start);
      if (front && Math.hypot(hx - x, hy - y) < PICK) return { token: selected, from: start };
      if (screen[3 * selected + 2] >= 0 && Math.hypot(screen[3 * selected] - x, screen[3 * selected + 1] - y) < PICK) return { token: selected, from: this.direction(x, y) };
    }
    return this.editing && picked >= 0 ? { token: picked, from: this.direction(x, y) } : null;
  }

  startPlacing() { this.placing = true; this.canvas.classList.add("place"); }
  stopPlacing() { this.placing = false; this.canvas.classList.remove("place"); }

  listen() {
    const { canvas } = this;
    const at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      const [x, y] = at(event);
      canvas.setPointerCapture(event.pointerId);
      if (this.placing) { this.events.placed(this.direction(x, y)); return; }
      const picked = this.pick(x, y);
      this.held = { picked, grip: this.grip(x, y, picked), x, y, startX: x, startY: y, time: event.timeStamp, moved: false, touch: event.pointerType === "touch" };
      this.camera.spin = [0, 0];
    });
    canvas.addEventListener("pointermove", (event) => {
      const [x, y] = at(event), held = this.held;
      if (!held) { this.pointAt(x, y, event.pointerType === "touch"); return; }
      if (!held.moved && Math.hypot(x - held.startX, y - held.startY) > SLIP) {
        held.moved = true;
        canvas.classList.add("held");
        this.pointAt(-99, -99);
        if (held.grip) this.events.grabbed(held.grip.token, held.grip.from);
      }
      if (held.moved) this.drag(x, y, event.timeStamp);
    });
    const release = (event) => {
      const held = this.held;
      this.held = null;
      canvas.classList.remove("held");
      if (!held) return;
      if (event.timeStamp - held.time > 80) this.camera.spin = [0, 0];
      if (held.moved && held.grip) this.events.dropped();
      else if (!held.moved && event.type === "pointerup") this.click(held);
      this.events.redraw();
    };
    canvas.addEventListener("pointerup", release);
    canvas.addEventListener("pointercancel", release);
    canvas.addEventListener("pointerleave", () => { if (!this.held) this.pointAt(-99, -99); });
  }

  click({ picked, startX, startY, touch }) {
    if (picked < 0 && this.editing && this.run?.dim <= 3 && this.onFigure(startX, startY)) { this.events.placed(this.direction(startX, startY)); return; }
    const token = picked >= 0 && picked !== this.selected ? picked : -1;
    this.events.selected(token);
    if (touch) this.events.hovered(token); // a finger does not hover: whom it chooses says who it is
  }

  drag(x, y, time) {
    const held = this.held, [dx, dy] = [x - held.x, y - held.y];
    if (held.grip) this.events.dragged(this.direction(x, y));
    else if (!this.flat) {
      const { R } = this.geometry(null), seconds = Math.max(0.004, (time - held.time) / 1000);
      this.camera.rotate(dx / R, dy / R);
      this.camera.spin = [dx / R / seconds, dy / R / seconds].map((v) => Math.max(-6, Math.min(6, v)));
      this.events.turned();
    }
    held.x = x; held.y = y; held.time = time;
  }

  pointAt(x, y, byTouch = false) {
    const token = byTouch ? -1 : this.pick(x, y);
    this.canvas.classList.toggle("hand", token >= 0 && !this.placing);
    this.canvas.classList.toggle("movable", Boolean(this.run && this.grip(x, y, token)));
    if (token !== this.hover) this.setHover(token);
  }

  setHover(token) {
    this.hover = token;
    this.events.hovered(token);
    this.events.redraw();
  }
}
