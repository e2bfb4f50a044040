// The sphere: a shaded ball with hidden lines, tokens in order of depth, fading trails, centers and anchors.

const GRID = [];
for (let k = 0; k < 6; k++) GRID.push({ kind: "meridian", angle: (k * Math.PI) / 6 });
for (const latitude of [-60, -30, 0, 30, 60]) GRID.push({ kind: "parallel", angle: (latitude * Math.PI) / 180 });

export function drawBall(ctx, { cx, cy, R, theme, camera }) {
  const glow = ctx.createRadialGradient(cx - 0.35 * R, cy - 0.42 * R, 0.05 * R, cx, cy, R);
  if (theme.dark) {
    glow.addColorStop(0, "#242c37"); glow.addColorStop(0.72, "#171d25"); glow.addColorStop(1, "#10141a");
  } else {
    glow.addColorStop(0, "#ffffff"); glow.addColorStop(0.75, "#f4f3ef"); glow.addColorStop(1, "#e4e2dc");
  }
  ctx.fillStyle = glow;
  ctx.beginPath(); ctx.arc(cx, cy, R, 0, 2 * Math.PI); ctx.fill();
  drawGrid(ctx, cx, cy, R, theme, camera.matrix);
  ctx.strokeStyle = theme.dark ? "#3b4552" : "#c9c6be";
  ctx.lineWidth = 1.2;
  ctx.beginPath(); ctx.arc(cx, cy, R, 0, 2 * Math.PI); ctx.stroke();
}

function drawGrid(ctx, cx, cy, R, theme, m) {
  const color = theme.dark ? "rgb(190 205 225 / " : "rgb(40 46 56 / ";
  ctx.lineWidth = 0.7;
  for (const front of [false, true]) {
    ctx.strokeStyle = color + (front ? "0.15)" : "0.06)");
    ctx.beginPath();
    for (const { kind, angle } of GRID) curve(ctx, cx, cy, R, m, front, (u) => kind === "meridian"
      ? [Math.cos(angle) * Math.cos(u), Math.sin(angle) * Math.cos(u), Math.sin(u)]
      : [Math.cos(angle) * Math.cos(u), Math.cos(angle) * Math.sin(u), Math.sin(angle)]);
    ctx.stroke();
  }
}

function curve(ctx, cx, cy, R, m, front, point) {
  let down = false;
  for (let s = 0; s <= 64; s++) {
    const [x, y, z] = point((s / 64) * 2 * Math.PI);
    const depth = m[6] * x + m[7] * y + m[8] * z;
    if (depth >= 0 !== front) { down = false; continue; }
    const px = cx + R * (m[0] * x + m[1] * y + m[2] * z), py = cy - R * (m[3] * x + m[4] * y + m[5] * z);
    if (down) ctx.lineTo(px, py); else ctx.moveTo(px, py);
    down = true;
  }
}

// The leading space L: a great circle for a plane, two marks for a line.
export function drawLeading(ctx, { cx, cy, R, theme, camera }, axes) {
  if (!axes || axes.length > 2) return;
  const m = camera.matrix;
  ctx.strokeStyle = theme.muted; ctx.lineWidth = 1.4;
  if (axes.length === 2) {
    const [a, b] = axes;
    for (const front of [false, true]) {
      ctx.globalAlpha = front ? 0.95 : 0.35;
      ctx.setLineDash([6, 5]);
      ctx.beginPath();
      curve(ctx, cx, cy, R, m, front, (u) => a.map((c, i) => c * Math.cos(u) + b[i] * Math.sin(u)));
      ctx.stroke();
    }
  } else {
    for (const sign of [1, -1]) {
      const [x, y, z] = axes[0].map((c) => sign * c);
      const depth = m[6] * x + m[7] * y + m[8] * z;
      const px = m[0] * x + m[1] * y + m[2] * z, py = -(m[3] * x + m[4] * y + m[5] * z);
      ctx.globalAlpha = depth >= 0 ? 0.95 : 0.4;
      ctx.setLineDash([6, 5]);
      ctx.beginPath(); ctx.moveTo(cx + R * px, cy + R * py); ctx.lineTo(cx + 1.16 * R * px, cy + 1.16 * R * py); ctx.stroke();
      ctx.setLineDash([]);
      ctx.fillStyle = theme.soft; ctx.font = `italic ${Math.round(R * 0.055 + 8)}px ${theme.serif}`; ctx.textAlign = "center"; ctx.textBaseline = "middle";
      ctx.fillText(sign > 0 ? "ξ" : "−ξ", cx + 1.22 * R * px, cy + 1.22 * R * py);
    }
  }
  ctx.setLineDash([]); ctx.globalAlpha = 1;
}

export function project(points, tokens, { cx, cy, R, camera }, out) {
  const m = camera.matrix;
  for (let k = 0; k < tokens; k++) {
    const x = points[3 * k], y = points[3 * k + 1], z = points[3 * k + 2];
    out[3 * k] = cx + R * (m[0] * x + m[1] * y + m[2] * z);
    out[3 * k + 1] = cy - R * (m[3] * x + m[4] * y + m[5] * z);
    out[3 * k + 2] = m[6] * x + m[7] * y + m[8] * z;
  }
}

const GROUPS = 3;

// Trails over the last `memory` frames, older parts paler; only what lies on one side of the ball at a time.
export function drawTrails(ctx, geometry, run, place, screen, colorOf, memory, front) {
  const { cx, cy, R, camera: { matrix: m } } = geometry;
  const { tokens, components: c, positions } = run;
  const first = Math.max(0, place.frame - memory);
  if (first >= place.frame) return;
  ctx.lineWidth = Math.max(1, R * 0.0052); ctx.lineJoin = "round"; ctx.lineCap = run.held ? "round" : "butt"; // dots are lines without a length
  let down = false;
  const go = (x, y, z) => {
    if (m[6] * x + m[7] * y + m[8] * z >= 0 !== front) { down = false; return; }
    const px = cx + R * (m[0] * x + m[1] * y + m[2] * z), py = cy - R * (m[3] * x + m[4] * y + m[5] * z);
    if (down) ctx.lineTo(px, py); else ctx.moveTo(px, py);
    down = true;
  };
  for (let k = 0; k < tokens; k++) {
    const i = (first * tokens + k) * c, j = (place.frame * tokens + k) * c;
    if (Math.abs(positions[i] - positions[j]) + Math.abs(positions[i + 1] - positions[j + 1]) + (c > 2 ? Math.abs(positions[i + 2] - positions[j + 2]) : 0) < 0.006) continue;
    ctx.strokeStyle = colorOf(k);
    let last = null;
    for (let group = 0; group < GROUPS; group++) {
      const from = first + Math.round(((place.frame - first) * group) / GROUPS), to = first + Math.round(((place.frame - first) * (group + 1)) / GROUPS);
      ctx.globalAlpha = (front ? 1 : 0.35) * [0.18, 0.4, 0.75][group];
      ctx.beginPath();
      down = false;
      for (let f = from; f <= to; f++) {
        const o = (f * tokens + k) * c, here = [positions[o], positions[o + 1], c > 2 ? positions[o + 2] : 0];
        if (run.held && (!last || run.leaps(f - 1, k))) { down = false; go(...here); } // nobody knows the way: a dot
        else if (last && run.dim === 3) arc(last, here, go);
        go(...here);
        last = here;
      }
      if (group === GROUPS - 1 && down && screen[3 * k + 2] >= 0 === front) ctx.lineTo(screen[3 * k], screen[3 * k + 1]);
      ctx.stroke();
    }
  }
  ctx.globalAlpha = 1;
}

// Between two moments that are far apart the trail stays on the sphere.
function arc([ax, ay, az], [bx, by, bz], go) {
  const pieces = Math.floor(Math.hypot(bx - ax, by - ay, bz - az) / 0.12);
  for (let s = 1; s <= pieces; s++) {
    const u = s / (pieces + 1), x = ax + u * (bx - ax), y = ay + u * (by - ay), z = az + u * (bz - az), scale = 1 / (Math.hypot(x, y, z) || 1);
    go(x * scale, y * scale, z * scale);
  }
}

// How large a token is drawn: a cluster's first token grows with the tokens it has gathered.
export const discOf = (R, radius, size, depth) => Math.min(0.085 * R, radius * Math.sqrt(size)) * (0.86 + 0.14 * depth);

// Tokens of one side, far ones first. `leaderOf`: who lies on the disc of its first token has no edge of its own.
export function drawTokens(ctx, { R, theme }, order, screen, sizes, colorOf, leaderOf, radius, front) {
  ctx.strokeStyle = theme.dark ? "#10141a" : "#ffffff";
  ctx.lineWidth = 1;
  for (const k of order) {
    const depth = screen[3 * k + 2];
    if (depth >= 0 !== front) continue;
    const r = discOf(R, radius, sizes[k], depth), first = leaderOf(k);
    const inside = first !== k && Math.hypot(screen[3 * k] - screen[3 * first], screen[3 * k + 1] - screen[3 * first + 1]) + r < discOf(R, radius, sizes[first], screen[3 * first + 2]);
    ctx.globalAlpha = front ? 1 : 0.34 + 0.12 * depth;
    ctx.fillStyle = colorOf(k);
    ctx.beginPath(); ctx.arc(screen[3 * k], screen[3 * k + 1], r, 0, 2 * Math.PI); ctx.fill();
    if (front && r > 2.4 && !inside) ctx.stroke();
  }
  ctx.globalAlpha = 1;
}
