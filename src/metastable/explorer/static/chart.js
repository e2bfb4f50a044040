// What all charts against time share: sharp canvases, a time axis that follows the run's moments, a cursor, and scrubbing.

import { plain, scientific, superscript } from "./text.js";

const GAP = 5; // pixels between two numbers of an axis
const MOMENT = 34; // pixels of a moment that is written there
const MOST_LINES = 20; // changes of the model that are lines over the whole chart

export class Chart {
  constructor(figure, events) {
    this.figure = figure;
    this.plot = figure.querySelector(".plot");
    [this.canvas, this.over] = figure.querySelectorAll("canvas");
    this.ctx = this.canvas.getContext("2d");
    this.margin = { left: 30, right: 8, top: 6, bottom: 20 };
    this.size = [0, 0];
    this.events = events;
    new ResizeObserver(() => { if (this.resize()) events.stale(); }).observe(this.plot);
    if (this.over) this.listen();
  }

  resize() {
    const box = this.plot.getBoundingClientRect(), ratio = Math.min(2, window.devicePixelRatio || 1);
    if (!box.width || (box.width === this.size[0] && box.height === this.size[1])) return false;
    this.size = [box.width, box.height];
    for (const canvas of [this.canvas, this.over]) {
      if (!canvas) continue;
      canvas.width = Math.round(box.width * ratio); canvas.height = Math.round(box.height * ratio);
      canvas.getContext("2d").setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    return true;
  }

  get inner() {
    const { left, right, top, bottom } = this.margin;
    return { x: left, y: top, width: this.size[0] - left - right, height: this.size[1] - top - bottom };
  }

  listen() {
    const seek = (event) => {
      const { x, width } = this.inner;
      this.events.seek(Math.min(1, Math.max(0, (event.clientX - this.over.getBoundingClientRect().left - x) / width)));
    };
    this.over.addEventListener("pointerdown", (event) => { this.over.setPointerCapture(event.pointerId); this.down = true; seek(event); });
    this.over.addEventListener("pointermove", (event) => {
      if (this.down) { seek(event); return; }
      const box = this.over.getBoundingClientRect();
      this.pointedAt?.(event.clientX - box.left, event.clientY - box.top);
    });
    this.over.addEventListener("pointerleave", () => { if (this.pointedAt) this.events.point(-1); });
    for (const name of ["pointerup", "pointercancel"]) this.over.addEventListener(name, () => { this.down = false; });
  }

  clear(theme) {
    const { ctx } = this;
    ctx.clearRect(0, 0, ...this.size);
    ctx.globalAlpha = 1; ctx.setLineDash([]);
    ctx.font = `11px ${theme.sans}`;
  }

  // The cursor at the present moment; the future is veiled where `veil` is set.
  cursor(at, theme, veil) {
    const ctx = this.over.getContext("2d"), { x, y, width, height } = this.inner;
    ctx.clearRect(0, 0, ...this.size);
    const px = x + at * width;
    if (veil) {
      ctx.fillStyle = theme.panel; ctx.globalAlpha = 0.72;
      ctx.fillRect(px, y - 2, x + width - px + 3, height + 4);
      ctx.globalAlpha = 1;
    }
    ctx.strokeStyle = theme.ink; ctx.lineWidth = 1;
    ctx.beginPath(); ctx.moveTo(px, y - 2); ctx.lineTo(px, y + height); ctx.stroke();
  }

  timeAxis(run, clock, theme) {
    const { ctx } = this, { x, y, width, height } = this.inner;
    ctx.strokeStyle = theme.edge; ctx.fillStyle = theme.muted; ctx.lineWidth = 1;
    ctx.beginPath(); ctx.moveTo(x, y + height + 0.5); ctx.lineTo(x + width, y + height + 0.5); ctx.stroke();
    ctx.textBaseline = "top"; ctx.textAlign = "center";
    let free = Infinity; // the last number has its place, and of the others those that leave room
    for (const { time, label } of (run.held ? moments(run, width / MOMENT) : timeTicks(run, clock, width)).reverse()) {
      const px = x + width * fractionOf(run.times, time, clock.log), half = ctx.measureText(label).width / 2;
      const middle = Math.min(this.size[0] - half, Math.max(half, px));
      if (middle + half > free) continue;
      free = middle - half - GAP;
      ctx.beginPath(); ctx.moveTo(px, y + height); ctx.lineTo(px, y + height + 4); ctx.stroke();
      ctx.fillText(label, middle, y + height + 6);
    }
    this.drawJoints(run, clock, theme);
  }

  // Thin lines where the model changes, ticks above where there are very many.
  drawJoints({ times, joints }, clock, theme) {
    const { ctx } = this, { x, y, width, height } = this.inner;
    ctx.strokeStyle = theme.muted; ctx.lineWidth = 0.8;
    for (const time of joints) {
      const px = x + width * fractionOf(times, time, clock.log);
      ctx.beginPath(); ctx.moveTo(px, y); ctx.lineTo(px, y + (joints.length > MOST_LINES ? 6 : height)); ctx.stroke();
    }
  }

  valueAxis(ticks, place, theme) {
    const { ctx } = this, { x, width } = this.inner;
    ctx.textAlign = "right"; ctx.textBaseline = "middle"; ctx.lineWidth = 1;
    for (const [value, label] of ticks) {
      const py = Math.round(place(value)) + 0.5;
      ctx.strokeStyle = theme.hair; ctx.beginPath(); ctx.moveTo(x, py); ctx.lineTo(x + width, py); ctx.stroke();
      ctx.fillStyle = theme.muted; ctx.fillText(label, x - 5, py);
    }
  }
}

// Where a time lies on the axis (0..1): moments are equally spaced there, whatever their times are.
export function fractionOf(times, time, log) {
  let low = 0, high = times.length - 1;
  if (time <= times[0]) return 0;
  if (time >= times[high]) return 1;
  while (high - low > 1) { const middle = (low + high) >> 1; if (times[middle] <= time) low = middle; else high = middle; }
  const a = times[low], b = times[high];
  const part = log && a > 0 ? Math.log(time / a) / Math.log(b / a) : (time - a) / (b - a);
  return (low + part) / (times.length - 1);
}

// Moments of a run that is held, evenly many apart, back from the last one: each has the same room on the axis, whatever the times are.
function moments({ times, frame: last }, room) {
  const apart = Math.ceil(last / room);
  return Array.from(times, (time) => ({ time, label: scientific(time) })).filter((_, f) => (last - f) % apart === 0);
}

function timeTicks(run, clock, width) {
  const last = run.times[run.frames - 1], room = Math.max(2, Math.floor(width / 52));
  const ticks = [];
  if (clock.log) {
    const low = Math.ceil(Math.log10(run.times[1]) - 1e-9), high = Math.floor(Math.log10(last) + 1e-9);
    const step = [1, 2, 3, 5, 10, 20].find((s) => (high - low) / s <= room) ?? 50;
    for (let e = Math.ceil(low / step) * step; e <= high; e += step) ticks.push({ time: 10 ** e, label: e === 0 ? "1" : e === 1 ? "10" : "10" + superscript(e) });
    return ticks;
  }
  const raw = last / room, unit = 10 ** Math.floor(Math.log10(raw));
  const step = unit * ([1, 2, 5, 10].find((s) => s * unit >= raw) ?? 10);
  for (let k = 0; k * step <= last * 1.0001; k++) ticks.push({ time: k * step, label: plain(k * step) });
  return ticks;
}
