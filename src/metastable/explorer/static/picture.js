// The picture as a file, and a token's start moved a little in the plane of the screen.

import { scientific } from "./text.js";

// A PNG of what is on show: the pictures with their captions on the page's own paper.
export function picture(stages, state, theme, describe) {
  const shown = stages.slice(0, state.panels.length), gap = 24, foot = 58, ratio = 2;
  const width = shown.reduce((sum, stage) => sum + stage.size[0], gap * (shown.length - 1)) + 2 * gap;
  const height = Math.max(...shown.map((stage) => stage.size[1])) + gap + foot;
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  const ctx = canvas.getContext("2d");
  ctx.scale(ratio, ratio);
  ctx.fillStyle = theme.paper;
  ctx.fillRect(0, 0, width, height);
  let x = gap;
  shown.forEach((stage, panel) => {
    ctx.drawImage(stage.canvas, x, gap / 2, ...stage.size);
    ctx.textAlign = "center"; ctx.fillStyle = theme.ink; ctx.font = `18px ${theme.serif}`;
    const { time } = stage.run.place(state.view.at, state.clock.log);
    ctx.fillText(`t = ${scientific(time)}`, x + stage.size[0] / 2, height - 34);
    ctx.fillStyle = theme.muted; ctx.font = `12.5px ${theme.sans}`;
    ctx.fillText(describe(state.panels[panel]), x + stage.size[0] / 2, height - 14);
    x += stage.size[0] + gap;
  });
  return new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
}

const NUDGE = 0.06;

export function tokenDirection(stage, run, token, [dx, dy]) {
  const c = run.components, at = token * c, [x, y, z = 0] = run.positions.subarray(at, at + c);
  if (stage.flat) {
    const angle = Math.atan2(y, x) + NUDGE * (dx ? -dx : dy);
    return [Math.cos(angle), Math.sin(angle)];
  }
  const right = stage.camera.inverse(1, 0, 0), up = stage.camera.inverse(0, 1, 0);
  const moved = [x, y, z].map((value, i) => value + NUDGE * (dx * right[i] + dy * up[i])), length = Math.hypot(...moved);
  return moved.map((value) => value / length);
}
