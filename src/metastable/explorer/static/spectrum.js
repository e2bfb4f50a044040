// The spectrum of V in the complex plane, with eigenvalues that can be moved. Pulled off the real axis, an eigenvalue takes the nearest
// other real one with it (they must be conjugate); put back on the axis, the pair splits. The server decides what follows from it.

import { Chart } from "./chart.js";
import { plain } from "./text.js";

const SNAP = 0.06;
const RINGS = 3;
const round = (value) => Math.round(value * 100) / 100;

// Eigenvalue `index` of a list becomes re + i im, im >= 0. Off the real axis it takes the nearest other real one with it (they must be
// conjugate); back on the axis the pair splits. The new list and its place there; null where there is no other real one.
export function conjugate(pairs, index, re, im) {
  const list = pairs.map((pair) => [...pair]), was = list[index][1];
  list[index] = [re, im];
  if (im > 0 && was === 0) {
    let partner = -1;
    list.forEach((pair, k) => { if (k !== index && pair[1] === 0 && (partner < 0 || Math.abs(pair[0] - re) < Math.abs(list[partner][0] - re))) partner = k; });
    if (partner < 0) return null;
    list.splice(partner, 1);
    if (partner < index) index -= 1;
  } else if (im === 0 && was > 0) list.splice(index + 1, 0, [re, 0]);
  return { list, index };
}

export class Spectrum extends Chart {
  constructor(figure, events) {
    super(figure, events);
    this.margin = { left: 4, right: 4, top: 4, bottom: 4 };
    this.list = [];
    this.chosen = -1;
    this.held = -1;
    this.reach = 1.6;
    this.listenPlane();
  }

  // `list`: [re, im] with im >= 0, an entry with im > 0 standing for a pair. `movable`: V is given by its eigenvalues. `of`: of which
  // matrix they are, where that is not V itself.
  show(list, leading, movable, theme, of = "") {
    this.figure.dataset.of = of;
    this.list = list; this.leading = leading; this.movable = movable; this.theme = theme;
    if (this.held < 0) this.reach = 1.3 * Math.max(0.8, ...list.map(([re, im]) => Math.max(Math.abs(re), im)));
    this.draw();
  }

  place([re, im]) {
    const { x, y, width, height } = this.inner, half = Math.min(width, height) / 2;
    return [x + width / 2 + (half * re) / this.reach, y + height / 2 - (half * im) / this.reach];
  }

  value(px, py) {
    const { x, y, width, height } = this.inner, half = Math.min(width, height) / 2;
    return [((px - x - width / 2) * this.reach) / half, ((y + height / 2 - py) * this.reach) / half];
  }

  draw() {
    if (!this.size[0] || !this.theme) return;
    const { ctx, theme } = this, { x, y, width, height } = this.inner;
    this.clear(theme);
    const [ox, oy] = this.place([0, 0]);
    ctx.fillStyle = theme.hair; ctx.globalAlpha = 0.75; ctx.fillRect(ox, y, x + width - ox, height); ctx.globalAlpha = 1;
    ctx.strokeStyle = theme.edge; ctx.lineWidth = 1;
    ctx.beginPath(); ctx.moveTo(x, oy + 0.5); ctx.lineTo(x + width, oy + 0.5); ctx.moveTo(ox + 0.5, y); ctx.lineTo(ox + 0.5, y + height); ctx.stroke();
    ctx.fillStyle = theme.muted; ctx.textBaseline = "top"; ctx.textAlign = "center";
    const unit = this.reach > 4 ? Math.round(this.reach / 2) : 1;
    for (const v of [-unit, unit]) { const [px] = this.place([v, 0]); ctx.fillText(String(v).replace("-", "−"), px, oy + this.clearOf(px, oy, [9, 18, -20, 27])); ctx.fillRect(px, oy - 2, 1, 5); }
    ctx.textAlign = "left"; ctx.fillText("push", x + 6, y + 5); ctx.textAlign = "right"; ctx.fillText("pull", x + width - 6, y + 5);
    const seen = new Map();
    this.list.forEach((pair, index) => {
      const lead = this.leading && Math.abs(pair[0] - this.leading[0]) < 1e-6;
      const key = `${round(pair[0])},${round(pair[1])}`, level = seen.get(key) ?? 0;
      seen.set(key, level + 1);
      for (const sign of pair[1] > 0 ? [1, -1] : [1]) {
        const [px, py] = this.place([pair[0], sign * pair[1]]);
        // Equal eigenvalues are shown as rings around one another, many of them as a number.
        if (level >= RINGS) continue;
        const r = 6 + 4 * level;
        ctx.beginPath(); ctx.arc(px, py, r, 0, 2 * Math.PI);
        ctx.lineWidth = index === this.chosen ? 3 : 1.8;
        ctx.strokeStyle = index === this.chosen ? theme.accent : lead ? theme.strong : theme.soft;
        if (level === 0) { ctx.fillStyle = lead ? theme.strong : theme.panel; ctx.fill(); }
        ctx.stroke();
      }
    });
    for (const [key, count] of seen) {
      if (count <= RINGS) continue;
      const [px, py] = this.place(key.split(",").map(Number));
      ctx.fillStyle = theme.soft; ctx.textAlign = "center"; ctx.textBaseline = "bottom"; ctx.fillText(`×${count}`, px, py - 18);
    }
    const text = this.chosen >= 0 && this.list[this.chosen] ? this.name(this.list[this.chosen]) : this.leading ? `λ max = ${plain(this.leading[0], 3)}${this.leading[1] ? ` ± ${plain(Math.abs(this.leading[1]), 3)}i` : ""}` : "";
    ctx.fillStyle = theme.soft; ctx.textAlign = "right"; ctx.textBaseline = "bottom"; ctx.fillText(text, x + width - 6, y + height - 5);
    if (this.figure.dataset.of) ctx.fillText(this.figure.dataset.of, x + width - 6, y + height - 20);
  }

  // The first of these distances below a place on the axis where a number is not covered by an eigenvalue.
  clearOf(px, oy, distances) {
    const dots = this.list.flatMap(([re, im]) => [this.place([re, im]), this.place([re, -im])]), level = this.list.length > 1 ? 14 : 7;
    return distances.find((dy) => dots.every(([x, y]) => Math.abs(x - px) > level + 6 || Math.abs(y - oy - dy - 5) > level + 3)) ?? distances[0];
  }

  name([re, im]) { return im ? `${plain(re, 3)} ± ${plain(im, 3)}i` : plain(re, 3); }

  pick(px, py) {
    let best = -1, nearest = 18;
    this.list.forEach((pair, index) => {
      for (const sign of [1, -1]) {
        const [qx, qy] = this.place([pair[0], sign * pair[1]]), d = Math.hypot(px - qx, py - qy);
        if (d < nearest) { nearest = d; best = index; }
      }
    });
    return best;
  }

  // Move one eigenvalue to (re, im): pairs form and split as conjugation demands.
  move(index, re, im) {
    const limit = this.reach * 0.98;
    re = round(Math.max(-limit, Math.min(limit, re))); im = round(Math.min(limit, Math.abs(im)));
    if (im < SNAP * this.reach) im = 0;
    const moved = conjugate(this.list, index, re, im) ?? conjugate(this.list, index, re, 0);
    this.list = moved.list; this.chosen = moved.index;
    if (this.held >= 0) this.held = moved.index;
    this.draw();
    return moved.list;
  }

  listenPlane() {
    const { canvas } = this;
    const at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
    canvas.addEventListener("pointerdown", (event) => {
      const index = this.movable ? this.pick(...at(event)) : -1;
      this.chosen = index; this.held = index;
      if (index >= 0) canvas.setPointerCapture(event.pointerId);
      this.draw();
    });
    canvas.addEventListener("pointermove", (event) => {
      const [px, py] = at(event);
      if (this.held < 0) { canvas.classList.toggle("hand", this.movable && this.pick(px, py) >= 0); return; }
      this.events.moved(this.move(this.held, ...this.value(px, py)), false);
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => {
      if (this.held < 0) return;
      this.held = -1;
      this.events.moved(this.list, true);
    });
    canvas.addEventListener("keydown", (event) => {
      if (!this.movable || !this.list.length) return;
      const step = event.ctrlKey ? 0.5 : 0.1;
      const moves = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] };
      if (event.key === "," || event.key === ".") {
        this.chosen = (this.chosen + (event.key === "." ? 1 : this.list.length - 1) + (this.chosen < 0 && event.key === "," ? 1 : 0)) % this.list.length;
        this.draw();
      } else if (moves[event.key]) {
        if (this.chosen < 0) this.chosen = 0;
        const [re, im] = this.list[this.chosen], [dx, dy] = moves[event.key];
        const up = dy > 0 && im === 0 ? SNAP * this.reach + 0.02 : im + dy;
        this.events.moved(this.move(this.chosen, re + dx, dy ? Math.max(0, up) : im), true);
      } else return;
      event.preventDefault(); event.stopPropagation();
    });
  }
}
