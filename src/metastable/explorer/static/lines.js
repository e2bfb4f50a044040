// World lines: one line per token against time, in the colour of the cluster it is in. Painted in slices, so that the picture keeps moving.

import { Chart } from "./chart.js";

export const HEIGHTS = {
  angle: { name: "angle θ", low: -Math.PI, high: Math.PI, ticks: [[-Math.PI, "−π"], [0, "0"], [Math.PI, "π"]] },
  distance: { name: "distance to the first token", low: 0, high: Math.PI, ticks: [[0, "0"], [Math.PI / 2, "π/2"], [Math.PI, "π"]] },
  x1: { name: "first axis", low: -1, high: 1, ticks: [[-1, "−1"], [0, "0"], [1, "1"]] },
  x2: { name: "second axis", low: -1, high: 1, ticks: [[-1, "−1"], [0, "0"], [1, "1"]] },
  x3: { name: "third axis", low: -1, high: 1, ticks: [[-1, "−1"], [0, "0"], [1, "1"]] },
};

export function heightsFor(components) {
  return components === 2 ? ["angle", "distance"] : ["distance", "x1", "x2", "x3"];
}

// Height of a token in a frame.
export function heightOf(kind, run, frame, token) {
  const at = frame * run.tokens + token;
  if (kind === "distance") return run.distance[at];
  const c = run.components;
  if (kind === "angle") return Math.atan2(run.positions[at * c + 1], run.positions[at * c]);
  return run.positions[at * c + Number(kind[1]) - 1];
}

const REACH = 12; // pixels from a line that mean it
const DOTTED = [1, 2.2];
const SLICE = 5; // milliseconds of painting per frame

export class Lines extends Chart {
  constructor(figure, events) {
    super(figure, events);
    this.front = this.ctx;
    this.buffer = document.createElement("canvas");
  }

  // A new painting begins on a canvas of its own and is shown when it is complete: the old one stays until then.
  begin(run, ghost, colors, view, theme, clock) {
    const kinds = heightsFor(run.components);
    this.kind = kinds.includes(view.height) ? view.height : kinds[0];
    this.job = { run, colors, color: view.color, theme, clock, token: run.tokens - 1, ghost, ghostToken: ghost ? ghost.tokens - 1 : -1 };
    this.buffer.width = this.canvas.width; this.buffer.height = this.canvas.height;
    this.ctx = this.buffer.getContext("2d");
    this.ctx.setTransform(this.front.getTransform());
    this.clear(theme);
    const { low, high, ticks } = HEIGHTS[this.kind];
    const { y, height } = this.inner;
    this.y = (value) => y + height * (1 - (value - low) / (high - low));
    this.valueAxis(ticks, this.y, theme);
    this.timeAxis(run, clock, theme);
  }

  // Paint for a few milliseconds; true while something is left to paint.
  paint() {
    const job = this.job;
    if (!job || !this.size[0]) return false;
    const until = performance.now() + SLICE;
    const { ctx } = this;
    ctx.save();
    this.clip();
    while (job.ghostToken >= 0 && performance.now() < until) this.line(job.ghost, job.ghostToken--, () => job.theme.muted, 0.5, 0.28);
    const thin = Math.max(0.55, Math.min(1.1, 110 / job.run.tokens));
    const paletteOf = (k) => job.colors[k];
    while (job.ghostToken < 0 && job.token >= 0 && performance.now() < until) {
      const k = job.token--;
      this.line(job.run, k, paletteOf, k === 0 ? thin + 1 : thin, k === 0 ? 1 : 0.85, job.color !== "cluster");
    }
    ctx.restore();
    const busy = job.token >= 0;
    if (!busy) {
      this.job = null;
      this.front.save(); this.front.resetTransform(); this.front.clearRect(0, 0, this.canvas.width, this.canvas.height);
      this.front.drawImage(this.buffer, 0, 0);
      this.front.restore();
      this.drawn = job.run;
    }
    return busy;
  }

  clip() {
    const { ctx } = this, { x, y, width, height } = this.inner;
    ctx.beginPath(); ctx.rect(x - 3, y - 2, width + 6, height + 4); ctx.clip();
  }

  // The line of one token, over all others.
  light(run, token, theme) {
    if (token < 0 || run !== this.drawn || !this.y) return;
    const own = this.ctx;
    this.ctx = this.over.getContext("2d");
    this.ctx.save();
    this.clip();
    this.line(run, token, () => theme.panel, 5, 0.9);
    this.line(run, token, () => theme.accent, 2.2, 1);
    this.ctx.restore();
    this.ctx = own;
  }

  // Whose line is under the pointer?
  pointedAt(px, py) {
    const run = this.drawn, { x, width } = this.inner;
    if (!run) return;
    const frame = Math.round(Math.min(1, Math.max(0, (px - x) / width)) * (run.frames - 1));
    let best = -1, nearest = REACH;
    for (let k = 0; frame < run.have && k < run.tokens; k++) {
      const away = Math.abs(this.y(heightOf(this.kind, run, frame, k)) - py);
      if (away < nearest) { nearest = away; best = k; }
    }
    this.events.point(best);
  }

  line(run, token, paletteOf, lineWidth, alpha, own = false) {
    if (run.held) { this.joins(run, token, paletteOf, lineWidth, alpha, own); return; }
    const { ctx } = this, { x, width } = this.inner, step = width / (run.frames - 1);
    ctx.lineWidth = lineWidth; ctx.globalAlpha = alpha; ctx.lineJoin = "round";
    let owner = -1, drawnY = 0, drawnFrame = 0, lastY = 0, lastValue = 0;
    for (let f = 0; f < run.have; f++) {
      const leader = own ? token : run.leader(f, token), value = heightOf(this.kind, run, f, token), py = this.y(value), px = x + f * step;
      const wraps = this.kind === "angle" && Math.abs(value - lastValue) > Math.PI;
      if (leader !== owner || wraps) {
        if (owner >= 0) { ctx.lineTo(px - step, lastY); ctx.lineTo(px, wraps ? this.y(lastValue > 0 ? Math.PI : -Math.PI) : py); ctx.stroke(); } // first to where it rested
        ctx.strokeStyle = paletteOf(leader);
        ctx.beginPath();
        if (owner >= 0 && wraps) { ctx.moveTo(px, this.y(lastValue > 0 ? -Math.PI : Math.PI)); ctx.lineTo(px, py); } else ctx.moveTo(px, py);
        owner = leader; drawnY = py; drawnFrame = f;
      } else if (Math.abs(py - drawnY) > 0.4) {
        // Straight stretches need no points: go on from where it last stood still.
        if (f - drawnFrame > 1) ctx.lineTo(px - step, lastY);
        ctx.lineTo(px, py); drawnY = py; drawnFrame = f;
      }
      lastY = py; lastValue = value;
    }
    if (owner >= 0) { ctx.lineTo(x + Math.max(0, run.have - 1) * step, lastY); ctx.stroke(); }
    ctx.globalAlpha = 1;
  }

  // The same of moments between which nobody knows the way: dots, and over what is more than a line may hide a dotted join, which only says
  // who is who.
  joins(run, token, paletteOf, lineWidth, alpha, own) {
    const { ctx } = this, { x, width } = this.inner, step = width / (run.frames - 1);
    const places = Array.from({ length: run.have }, (_, f) => heightOf(this.kind, run, f, token));
    ctx.lineWidth = lineWidth; ctx.globalAlpha = alpha;
    places.forEach((value, f) => {
      const px = x + f * step, next = places[f + 1], far = next !== undefined && run.leaps(f, token);
      ctx.fillStyle = ctx.strokeStyle = paletteOf(own ? token : run.leader(f, token));
      if (next === undefined || far || (f > 0 && run.leaps(f - 1, token))) { ctx.beginPath(); ctx.arc(px, this.y(value), lineWidth + 0.7, 0, 2 * Math.PI); ctx.fill(); }
      if (next === undefined) return;
      const edge = this.kind === "angle" && Math.abs(next - value) > Math.PI ? Math.sign(value) * 2 * Math.PI : 0; // the short way, over the edge
      ctx.setLineDash(far ? DOTTED : []); ctx.globalAlpha = far ? 0.4 * alpha : alpha;
      for (const shift of new Set([0, edge])) { ctx.beginPath(); ctx.moveTo(px, this.y(value - shift)); ctx.lineTo(px + step, this.y(next + edge - shift)); ctx.stroke(); }
      ctx.setLineDash([]); ctx.globalAlpha = alpha;
    });
    ctx.globalAlpha = 1;
  }
}
