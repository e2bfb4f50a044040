// Clusters against time with the law N(t) and the expected counts; the share of tokens captured by centers; the energy of full attention.

import { Chart } from "./chart.js";
import { plain } from "./text.js";

// A line through the moments of a run, or steps where they are `held` until the next.
function trace(chart, run, values, place, color, dash = [], lineWidth = 1.8, held = run.held) {
  const { ctx } = chart, { x, width } = chart.inner, step = width / (run.frames - 1);
  ctx.strokeStyle = color; ctx.lineWidth = lineWidth; ctx.setLineDash(dash); ctx.lineJoin = "round";
  ctx.beginPath();
  let down = false, before = 0;
  values.forEach((value, f) => {
    const px = x + f * step;
    if (down && held) ctx.lineTo(px, before);
    if (value === null) { down = false; return; }
    const py = place(value);
    if (down) ctx.lineTo(px, py); else ctx.moveTo(px, py);
    down = true; before = py;
  });
  ctx.stroke(); ctx.setLineDash([]);
}

const LINE = 12; // pixels of a line of text
const DASHES = [[], [5, 3]];

export class Clusters extends Chart {
  // `bare`: the count alone, without what theory says.
  draw(runs, clock, theme, bare = false) {
    const shown = runs.filter(Boolean);
    if (!shown.length || !this.size[0]) return;
    this.clear(theme);
    const top = Math.max(2, ...shown.map((run) => run.tokens));
    const { y, height } = this.inner, span = Math.log(top * 1.1);
    const place = (count) => y + height * (1 - Math.log(Math.max(1, count) * 1.03) / span);
    const decades = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000].filter((v) => v <= top);
    const few = decades.filter((v) => top <= 60 || /^[1]/.test(String(v)) || v === decades.at(-1) || (top < 500 && /^5/.test(String(v))));
    this.valueAxis(few.map((v) => [v, String(v)]), place, theme);
    this.timeAxis(shown[0], clock, theme);
    let law = false;
    runs.forEach((run, panel) => {
      if (!run) return;
      const { facts, curves } = run;
      const expected = panel === 0 && facts?.expected && shown.length === 1 && !bare ? this.expected(facts.expected, place, theme, top) : [];
      if (facts?.law && !bare) { trace(this, run, facts.law, place, theme.theory, DASHES[panel], 1.5, false); law = true; }
      if (curves) trace(this, run, curves.clusters, place, theme.accent, DASHES[panel]);
      this.label(expected, [curves?.clusters, bare ? null : facts?.law].filter(Boolean), place, theme);
    });
    this.figure.querySelector(".key").textContent = `r = ${plain(shown[0].radius, 3)}`;
    if (!law) return;
    this.ctx.fillStyle = theme.theory; this.ctx.textAlign = "right"; this.ctx.textBaseline = "top";
    this.ctx.fillText("law N(t)", this.inner.x + this.inner.width, this.inner.y + 2);
  }

  // Lines at the expected numbers of centers: { text, color, y, below } of each.
  expected(expected, place, theme, top) {
    const { ctx } = this, { x, width } = this.inner;
    const lines = [["strong", expected.strong, theme.strong], ["Rényi", expected.renyi, theme.soft]].filter(([, v]) => v !== null && v > 1 && v < top);
    ctx.lineWidth = 1; ctx.globalAlpha = 0.75; ctx.setLineDash([2, 3]);
    const labels = lines.map(([name, value, color]) => {
      const y = place(value);
      ctx.strokeStyle = color;
      ctx.beginPath(); ctx.moveTo(x, y); ctx.lineTo(x + width, y); ctx.stroke();
      return { text: `${name} ${plain(value, 3)}`, color, y, below: name === "strong" && lines.length > 1 };
    });
    ctx.globalAlpha = 1; ctx.setLineDash([]);
    return labels;
  }

  // Their names, at the end of the lines that is further from the curves.
  label(labels, curves, place, theme) {
    const { ctx } = this, { x, width } = this.inner, wide = Math.max(0, ...labels.map(({ text }) => ctx.measureText(text).width));
    const room = (left) => Math.min(Infinity, ...labels.flatMap(({ y, below }) => curves.flatMap((values) => {
      const count = Math.ceil((values.length * wide) / width), part = left ? values.slice(0, count) : values.slice(-count);
      return part.filter((value) => value !== null).map((value) => Math.abs(place(value) - y - (below ? LINE : -LINE) / 2));
    })));
    const left = room(true) >= room(false);
    ctx.lineJoin = "round";
    for (const { text, color, y, below } of labels) {
      ctx.textAlign = left ? "left" : "right"; ctx.textBaseline = below ? "top" : "bottom";
      ctx.lineWidth = 3; ctx.strokeStyle = theme.panel; ctx.fillStyle = color;
      for (const how of ["strokeText", "fillText"]) ctx[how](text, left ? x + 3 : x + width, y + (below ? 2 : -1));
    }
  }
}

export class Capture extends Chart {
  draw(runs, clock, theme) {
    const shown = runs.filter(Boolean);
    if (!shown.length || !this.size[0]) return;
    this.clear(theme);
    const { y, height } = this.inner, place = (share) => y + height * (1 - share);
    this.valueAxis([[0, "0"], [0.5, "½"], [1, "1"]], place, theme);
    this.timeAxis(shown[0], clock, theme);
    runs.forEach((run, panel) => {
      if (!run?.curves) return;
      trace(this, run, run.curves.renyi, place, theme.ink, DASHES[panel]);
      trace(this, run, run.curves.strong, place, theme.strong, DASHES[panel]);
    });
    this.figure.querySelector(".key").textContent = shown[0].facts ? `δ = ${plain(shown[0].delta, 3)}` : "";
  }
}

// Under full attention with Q^T K = V symmetric all tokens climb one energy, in steps: a plateau for every metastable state.
export class Energy extends Chart {
  draw(runs, clock, theme) {
    const shown = runs.filter((run) => run?.curves?.energy);
    this.figure.hidden = !shown.length;
    if (!shown.length || !this.size[0]) return;
    this.clear(theme);
    const all = shown.flatMap((run) => run.curves.energy.filter((v) => v !== null)), low = Math.min(0, ...all), high = Math.max(...all, low + 1e-9);
    const { y, height } = this.inner, place = (value) => y + height * (1 - (value - low) / (1.04 * (high - low)));
    this.valueAxis([low, high].map((v) => [v, plain(v, 2)]), place, theme);
    this.timeAxis(shown[0], clock, theme);
    runs.forEach((run, panel) => { if (run?.curves?.energy) trace(this, run, run.curves.energy, place, theme.accent, DASHES[panel]); });
  }
}
