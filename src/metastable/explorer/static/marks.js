// What is drawn over the tokens: numbers of clusters, the cluster that is pointed at, where clusters ended before a change, and the start of
// the chosen token.

const MOST_NUMBERS = 30;
const EDGE = 10; // pixels that a number keeps from the edge of the picture
const CAPTION = 28; // and from its upper edge, where the caption is

function label(ctx, text, x, y, theme) {
  ctx.lineWidth = 3; ctx.strokeStyle = theme.panel; ctx.fillStyle = theme.ink;
  ctx.strokeText(text, x, y); ctx.fillText(text, x, y);
}

// Every cluster of two or more tokens bears the number of its first token, so that colours are never all there is to tell them apart.
export function drawNumbers(stage, { cx, cy, R, theme }) {
  const { ctx, run, screen, sizes, radius } = stage;
  const leaders = [];
  for (let k = 0; k < run.tokens; k++) if (sizes[k] > 1 && stage.leaderOf(k) === k) leaders.push(k);
  if (!leaders.length || leaders.length > MOST_NUMBERS) return;
  ctx.font = `600 ${Math.round(Math.max(10.5, Math.min(13, 0.04 * R)))}px ${theme.sans}`;
  ctx.textAlign = "center"; ctx.textBaseline = "middle"; ctx.globalAlpha = 1; ctx.lineJoin = "round";
  if (!stage.flat) {
    for (const k of leaders) {
      if (screen[3 * k + 2] < 0) continue;
      const r = Math.min(0.085 * R, radius * Math.sqrt(sizes[k]));
      label(ctx, String(k), screen[3 * k] + r + 9, screen[3 * k + 1] - r - 3, theme);
    }
    return;
  }
  // On the circle beyond the pile of its tokens.
  const reach = new Map(leaders.map((k) => [k, 0]));
  for (let k = 0; k < run.tokens; k++) {
    const leader = stage.leaderOf(k);
    if (reach.has(leader)) reach.set(leader, Math.max(reach.get(leader), Math.hypot(screen[3 * k] - cx, screen[3 * k + 1] - cy)));
  }
  for (const [k, far] of reach) {
    const angle = Math.atan2(screen[3 * k + 1] - cy, screen[3 * k] - cx), r = far + radius + 11, [width, height] = stage.size;
    const inside = (value, size, least = EDGE) => Math.max(least, Math.min(size - EDGE, value));
    label(ctx, String(k), inside(cx + r * Math.cos(angle), width), inside(cy + r * Math.sin(angle), height, CAPTION), theme);
  }
}

// What a cluster of words says: "the ×4", or "cat, sat, on +16".
function saying(words) {
  const distinct = [...new Set(words)];
  if (distinct.length === 1) return distinct[0] + (words.length > 1 ? ` ×${words.length}` : "");
  const rest = words.length - 3;
  return distinct.slice(0, 3).join(", ") + (rest > 0 ? ` +${rest}` : "");
}

// The words of a text on its tokens, one label for each cluster, faint behind the ball. A label that would cover another moves up or down
// a line; those in front choose first.
export function drawWords(stage, { cx, R, theme }) {
  const { ctx, run, screen, radius } = stage, taken = [], size = Math.round(Math.max(12, Math.min(17, 0.05 * R))), members = new Map();
  for (let k = 0; k < run.tokens; k++) { const leader = stage.leaderOf(k); members.set(leader, [...(members.get(leader) ?? []), run.facts.words[k].trim()]); }
  ctx.font = `600 ${size}px ${theme.sans}`;
  ctx.textAlign = "left"; ctx.textBaseline = "middle"; ctx.globalAlpha = 1; ctx.lineJoin = "round";
  const behind = (k) => screen[3 * k + 2] < -0.05, order = [...members].sort(([a], [b]) => behind(a) - behind(b));
  for (const [k, words] of order) {
    ctx.globalAlpha = behind(k) ? 0.5 : 1;
    const text = saying(words), width = ctx.measureText(text).width, r = Math.min(0.085 * R, radius * Math.sqrt(words.length)) + 5;
    const x = screen[3 * k] + (screen[3 * k] >= cx + 0.6 * R ? -r - width : r);
    const free = (y) => !taken.some(([a, b, w]) => x < a + w + 4 && a < x + width + 4 && Math.abs(y - b) < size);
    const y = [0, size, -size, 2 * size, -2 * size].map((shift) => screen[3 * k + 1] + shift).find(free);
    if (y === undefined) continue;
    taken.push([x, y, width]);
    label(ctx, text, x, y, theme);
  }
  ctx.globalAlpha = 1;
}

// The tokens of the same cluster.
export function drawCluster(stage, { theme }, token) {
  const { ctx, run, screen, radius } = stage, leader = stage.leaderOf(token);
  ctx.strokeStyle = theme.accent; ctx.lineWidth = 1.3;
  ctx.beginPath();
  for (let k = 0; k < run.tokens; k++) {
    if (stage.leaderOf(k) !== leader || screen[3 * k + 2] < 0) continue;
    ctx.moveTo(screen[3 * k] + radius + 2, screen[3 * k + 1]);
    ctx.arc(screen[3 * k], screen[3 * k + 1], radius + 2, 0, 2 * Math.PI);
  }
  ctx.globalAlpha = 0.8; ctx.stroke(); ctx.globalAlpha = 1;
}

// A dashed ring wherever a cluster ended before something was changed by hand.
export function drawGhosts(stage, { R, theme }) {
  const { ctx, ghost, radius } = stage, { tokens, components: c } = ghost;
  if (c !== stage.run.components || !ghost.end) return;
  const frame = ghost.last, sizes = new Map();
  for (let k = 0; k < tokens; k++) { const leader = ghost.leader(frame, k); sizes.set(leader, (sizes.get(leader) ?? 0) + 1); }
  ctx.strokeStyle = theme.soft; ctx.lineWidth = 1.4; ctx.setLineDash([3, 3]);
  for (const [k, size] of sizes) {
    const at = (frame * tokens + k) * c, [x, y, front] = stage.onScreen(Array.from(ghost.positions.subarray(at, at + c)));
    ctx.globalAlpha = front ? 0.9 : 0.3;
    ctx.beginPath(); ctx.arc(x, y, Math.min(0.1 * R, radius * Math.sqrt(size)) + 4, 0, 2 * Math.PI); ctx.stroke();
  }
  ctx.setLineDash([]); ctx.globalAlpha = 1;
}

// Where the chosen token begins: the place that can be dragged.
export function drawHandle(stage, { theme }) {
  const { ctx, selected: token, run } = stage;
  if (run.dim > 3) return;
  const [x, y, front] = stage.onScreen(stage.startOf(token));
  ctx.globalAlpha = front ? 1 : 0.35; ctx.strokeStyle = theme.accent; ctx.fillStyle = theme.panel; ctx.lineWidth = 2;
  ctx.beginPath(); ctx.rect(x - 5, y - 5, 10, 10); ctx.fill(); ctx.stroke();
  ctx.globalAlpha = 1;
}
