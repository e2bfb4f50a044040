// Pictures to take away: PNG, SVG, a moving GIF, and the page itself in a frame of another one; and the picture alone on the screen.

import { headingOf } from "./around.js";
import { $, saveFile } from "./dom.js";
import { Gif, count, palette } from "./gif.js";
import { saveNow, store } from "./store.js";
import { SvgContext } from "./svg.js";
import { momentOf } from "./text.js";
import { makers } from "./tools.js";

const GAP = 24, FOOT = 58;
const SHARP = 3; // pixels of a PNG for each of the page
const FILM = { width: 560, moments: 60, hundredths: 8, pause: 120 };

// The pictures with their captions on the page's own paper, drawn anew at this size: nothing is enlarged.
function compose(ctx, [width, height], { stages, theme, clock }, at) {
  const { panels, view } = store.state, shown = stages.slice(0, panels.length).filter((stage) => stage.run);
  ctx.fillStyle = theme().paper;
  ctx.fillRect(0, 0, width, height);
  const side = (width - GAP * (shown.length + 1)) / shown.length;
  shown.forEach((stage, panel) => {
    const x = GAP + panel * (side + GAP), place = at === null ? clock.placeOf(stage.run) : stage.run.place(at);
    ctx.save(); ctx.translate(x, GAP / 2);
    stage.drawOn(ctx, [side, height - GAP - FOOT], place, view, theme());
    ctx.restore();
    ctx.globalAlpha = 1;
    ctx.textAlign = "center"; ctx.textBaseline = "alphabetic"; ctx.fillStyle = theme().ink; ctx.font = `18px ${theme().serif}`;
    ctx.fillText(momentOf(stage.run, place.time), x + side / 2, height - 34);
    ctx.fillStyle = theme().muted; ctx.font = `12.5px ${theme().sans}`;
    ctx.fillText(headingOf(stage.run, place.time), x + side / 2, height - 14);
  });
}

function sizeOf({ stages }) {
  const shown = stages.slice(0, store.state.panels.length);
  return [shown.reduce((sum, stage) => sum + stage.size[0] + GAP, GAP), Math.max(...shown.map((stage) => stage.size[1])) + GAP + FOOT];
}

function canvasOf(width, height, ratio) {
  const canvas = document.createElement("canvas");
  canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  const ctx = canvas.getContext("2d", { willReadFrequently: true });
  ctx.scale(ratio, ratio);
  return [canvas, ctx];
}

function png(page) {
  const size = sizeOf(page), [canvas, ctx] = canvasOf(...size, SHARP);
  compose(ctx, size, page, null);
  return new Promise((resolve) => { canvas.toBlob(resolve, "image/png"); });
}

function svg(page) {
  const size = sizeOf(page), ctx = new SvgContext(...size);
  compose(ctx, size, page, null);
  return new Blob([String(ctx)], { type: "image/svg+xml" });
}

const breathe = () => new Promise((resolve) => { setTimeout(resolve); });

// The whole run, its moments paced as on the page.
async function gif(page) {
  const { clock, notice } = page, runs = clock.runs;
  const [wide, high] = sizeOf(page), width = FILM.width * (runs.length > 1 ? 1.6 : 1), ratio = width / wide;
  const [canvas, ctx] = canvasOf(wide, high, ratio), moments = paced(runs[0], FILM.moments, clock.furthest);
  const draw = (at) => { compose(ctx, [wide, high], page, at); return ctx.getImageData(0, 0, canvas.width, canvas.height).data; };
  let counts;
  for (const part of [0, 0.3, 0.6, 1]) counts = count(draw(part * clock.furthest), counts);
  const film = new Gif(canvas.width, canvas.height, palette(counts));
  for (const [k, at] of moments.entries()) {
    if (clock.runs.length !== runs.length || clock.runs.some((run, i) => run !== runs[i])) { notice("The run has changed, so its film was not finished.", "", 6); return null; }
    film.add(draw(at), k === moments.length - 1 ? FILM.pause : FILM.hundredths);
    if (k % 6 === 0) { notice(`Drawing the film: ${Math.round((100 * k) / moments.length)} % …`); await breathe(); }
  }
  notice("");
  return film.blob();
}

// Moments between which about equally much moves.
function paced(run, many, end) {
  const weight = Array.from({ length: run.frames - 1 }, (_, f) => Math.min(2.4, Math.max(0.22, run.motion[f])));
  const stop = Math.round(end * run.frame), total = weight.slice(0, stop).reduce((a, b) => a + b, 0), moments = [];
  let sum = 0, f = 0;
  for (let k = 0; k < many; k++) {
    while (f < stop && sum + weight[f] < (k / (many - 1)) * total - 1e-9) sum += weight[f++];
    moments.push(Math.min(end, (f + (f < stop ? ((k / (many - 1)) * total - sum) / weight[f] : 0)) / run.frame));
  }
  return moments;
}

function embed() {
  saveNow();
  const local = location.protocol === "file:" || ["127.0.0.1", "localhost", "[::1]"].includes(location.hostname);
  $("#embed code").textContent = `<iframe src="${location.href}" title="metastable explorer" width="960" height="680" style="border:0" loading="lazy" allow="fullscreen"></iframe>`;
  $("#embed p").textContent = local ? "This address is on your own machine. For others, put the page on a server as static files (metastable explore --export site/) and use its address." : "Put this into any page.";
  $("#embed").showModal();
}

export function startPictures(page) {
  const offer = (name, make) => { makers[name] = async () => { const made = page.clock.runs.length ? await make(page) : null; if (made) saveFile(made, `metastable.${name}`); }; };
  offer("png", png); offer("svg", svg); offer("gif", gif);
  makers.embed = embed;
  const button = $("#fullscreen"), look = $("#look");
  button.hidden = !document.fullscreenEnabled;
  button.addEventListener("click", () => { if (document.fullscreenElement) document.exitFullscreen(); else look.requestFullscreen().catch(() => {}); });
  document.addEventListener("fullscreenchange", () => {
    const alone = Boolean(document.fullscreenElement), said = $("#notice");
    button.setAttribute("aria-pressed", String(alone));
    if (alone) look.prepend(said); else $("main").before(said); // what is said is seen there too
  });
}

const NUDGE = 0.06;

// The start of a token moved a little in the plane of the screen.
export function tokenDirection(stage, token, [dx, dy]) {
  const [x, y, z = 0] = stage.startOf(token);
  if (stage.flat) {
    const angle = Math.atan2(y, x) + NUDGE * (dx ? -dx : dy);
    return [Math.cos(angle), Math.sin(angle)];
  }
  const right = stage.camera.inverse(1, 0, 0), up = stage.camera.inverse(0, 1, 0);
  const moved = [x, y, z].map((value, i) => value + NUDGE * (dx * right[i] + dy * up[i])), length = Math.hypot(...moved);
  return moved.map((value) => value / length);
}
