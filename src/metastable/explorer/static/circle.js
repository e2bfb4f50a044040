// The circle: tokens pile up outwards where they meet, and their recent past winds inwards.

export function drawRing(ctx, { cx, cy, R, theme }) {
  const fill = ctx.createRadialGradient(cx, cy, 0.2 * R, cx, cy, R);
  if (theme.dark) { fill.addColorStop(0, "#12171d"); fill.addColorStop(1, "#171d25"); } else { fill.addColorStop(0, "#fdfdfb"); fill.addColorStop(1, "#f3f1ec"); }
  ctx.fillStyle = fill;
  ctx.beginPath(); ctx.arc(cx, cy, R, 0, 2 * Math.PI); ctx.fill();
  ctx.strokeStyle = theme.dark ? "#3b4552" : "#c9c6be"; ctx.lineWidth = 1.3;
  ctx.beginPath(); ctx.arc(cx, cy, R, 0, 2 * Math.PI); ctx.stroke();
}

export const HIGHEST = 1.42; // how far out the highest pile reaches, in radii

// How far outside the circle each token is drawn: it sits on the tokens already there. Screen positions into `out` (x, y, 1).
export class Pile {
  constructor(tokens) {
    this.order = Int32Array.from({ length: tokens }, (_, k) => k);
    this.angle = new Float64Array(tokens);
    this.level = new Int16Array(tokens);
    this.top = new Int16Array(1440);
  }
  lay(points, tokens, { cx, cy, R }, radius, out) {
    const { angle, level, top } = this;
    const bins = Math.max(24, Math.min(1440, Math.floor((2 * Math.PI * R) / (1.7 * radius))));
    top.fill(0);
    let highest = 0;
    for (let k = 0; k < tokens; k++) {
      angle[k] = Math.atan2(points[3 * k + 1], points[3 * k]);
      const bin = Math.min(bins - 1, Math.floor(((angle[k] + Math.PI) / (2 * Math.PI)) * bins));
      level[k] = top[bin]++;
      highest = Math.max(highest, level[k]);
    }
    const gap = Math.min(1.75 * radius, (0.4 * R) / Math.max(1, highest));
    for (let k = 0; k < tokens; k++) {
      const r = R + radius * 0.2 + gap * level[k];
      out[3 * k] = cx + r * Math.cos(angle[k]);
      out[3 * k + 1] = cy - r * Math.sin(angle[k]);
      out[3 * k + 2] = 1;
    }
  }
}

// World lines in polar form: the rim is now, the inside is the past.
export function drawPast(ctx, { cx, cy, R }, run, place, points, colorOf, memory) {
  const { tokens, positions } = run;
  const first = Math.max(0, place.frame - memory), span = Math.max(1, memory);
  if (first >= place.frame) return;
  const stride = tokens > 300 && !run.held ? 2 : 1;
  ctx.lineWidth = Math.max(0.8, Math.min(1.6, 160 / tokens)); ctx.lineJoin = "round"; ctx.lineCap = run.held ? "round" : "butt"; // dots are lines without a length
  for (const group of [0, 1, 2]) {
    const from = first + Math.floor(((place.frame - first) * group) / 3), to = first + Math.floor(((place.frame - first) * (group + 1)) / 3);
    ctx.globalAlpha = [0.16, 0.34, 0.6][group];
    for (let k = 0; k < tokens; k++) {
      ctx.strokeStyle = colorOf(k);
      ctx.beginPath();
      let before = 0, deep = 0;
      for (let f = from; ; f = Math.min(to, f + stride)) {
        const o = (f * tokens + k) * 2, depth = 0.985 - 0.62 * ((place.frame + place.fraction - f) / span);
        const px = cx + R * depth * positions[o], py = cy - R * depth * positions[o + 1];
        if (run.held && (f === from || run.leaps(f - 1, k))) ctx.moveTo(px, py); // nobody knows the way: a dot
        else if (f > from && positions[o] * positions[before] + positions[o + 1] * positions[before + 1] < 0.97) bend(ctx, cx, cy, R, positions, before, o, deep, depth);
        ctx.lineTo(px, py);
        before = o; deep = depth;
        if (f >= to) break;
      }
      if (group === 2) ctx.lineTo(cx + R * 0.985 * points[3 * k], cy - R * 0.985 * points[3 * k + 1]);
      ctx.stroke();
    }
  }
  ctx.globalAlpha = 1;
}

// A jump between two moments goes around the circle, not across it.
function bend(ctx, cx, cy, R, positions, from, to, deep, depth) {
  const start = Math.atan2(positions[from + 1], positions[from]);
  let turn = Math.atan2(positions[to + 1], positions[to]) - start;
  turn -= 2 * Math.PI * Math.round(turn / (2 * Math.PI));
  const pieces = Math.ceil(Math.abs(turn) / 0.15);
  for (let s = 1; s < pieces; s++) {
    const r = R * (deep + (s / pieces) * (depth - deep)), angle = start + (s / pieces) * turn;
    ctx.lineTo(cx + r * Math.cos(angle), cy - r * Math.sin(angle));
  }
}

export function drawDots(ctx, tokens, screen, colorOf, radius) {
  for (let k = tokens - 1; k >= 0; k--) {
    ctx.fillStyle = colorOf(k);
    ctx.beginPath(); ctx.arc(screen[3 * k], screen[3 * k + 1], radius, 0, 2 * Math.PI); ctx.fill();
  }
}

export function drawLeadingMarks(ctx, { cx, cy, R, theme }, axes) {
  if (!axes || axes.length !== 1) return;
  ctx.strokeStyle = theme.muted; ctx.fillStyle = theme.soft; ctx.lineWidth = 1.4;
  ctx.font = `italic ${Math.round(R * 0.05 + 9)}px ${theme.serif}`; ctx.textAlign = "center"; ctx.textBaseline = "middle";
  for (const sign of [1, -1]) {
    const x = sign * axes[0][0], y = -sign * axes[0][1];
    ctx.setLineDash([5, 4]);
    ctx.beginPath(); ctx.moveTo(cx + 0.1 * R * x, cy + 0.1 * R * y); ctx.lineTo(cx + 0.3 * R * x, cy + 0.3 * R * y); ctx.stroke();
    ctx.setLineDash([]);
    ctx.fillText(sign > 0 ? "ξ" : "−ξ", cx + 0.37 * R * x, cy + 0.37 * R * y);
  }
}
