// What is written around the pictures: the tip of a token, the legend, what cannot be shown, the words for whoever does not see the
// picture, and the marks under the slider of time.

import { fractionOf } from "./chart.js";
import { $, el } from "./dom.js";
import { plural } from "./text.js";

const LATE = 24; // merges that are marked under the slider

// The tip stays with its token, and goes when the token does. `pointed`: { panel, token } or null.
export function drawTip(pointed, stages, clock) {
  const tip = $("#tip"), { panel, token } = pointed ?? {}, stage = pointed && stages[panel], run = stage?.run;
  const shown = Boolean(run && token < run.tokens && !stage.held?.moved && stage.screen[3 * token + 2] >= 0);
  tip.hidden = !shown;
  if (!shown) return;
  const { nearest } = clock.placeOf(run), leader = run.leader(nearest, token);
  let size = 0;
  for (let k = 0; k < run.tokens; k++) if (run.leader(nearest, k) === leader) size++;
  tip.textContent = (run.facts?.words ? `“${run.facts.words[token].trim()}”, token ${token + 1} of the text` : `token ${token}`) + (size > 1 ? `, in a cluster of ${size}${leader === token ? ", its first" : ` led by token ${leader}`}` : "");
  tip.style.left = `${stage.figure.offsetLeft + stage.screen[3 * token]}px`;
  tip.style.top = `${stage.figure.offsetTop + stage.screen[3 * token + 1]}px`;
}

export function showProblem({ figure }, text) {
  const node = figure.querySelector(".problem");
  node.hidden = !text;
  node.replaceChildren(...(text ? [el("b", {}, "This cannot be shown"), text] : []));
}

// A finished run in words.
export function describeStage({ canvas }, run) {
  if (!run?.curves) return;
  canvas.setAttribute("aria-label", `${plural(run.tokens, "token")} on the ${run.components === 2 ? "circle" : "sphere"}, ${plural(run.curves.clusters.at(-1), "cluster")} at the end. ${run.end.reached.text}`);
}

// Only of what is in the picture.
export function drawLegend(runs, ghosts, stages, view) {
  for (const item of [$("#legend-renyi"), $("#legend-strong")]) item.hidden = !view.centers;
  $("#legend-first").hidden = runs.every((run) => !run || run.facts?.words);
  $("#legend-frozen").hidden = !partsOf(runs).some((part) => part.frozen);
  $("#legend-ghost").hidden = !ghosts.some(Boolean);
  $("#legend-joint").hidden = !runs.some((run) => run?.joints.length);
  const spaces = new Set(runs.filter(Boolean).flatMap((run) => run.parts.map((part) => part.leading?.length ?? 0).filter((size) => size && size < run.components)));
  $("#legend-leading").hidden = !spaces.size;
  $("#legend-leading span").textContent = [...spaces].map((size) => (size === 1 ? "leading eigenvector ±ξ" : "leading plane L")).join(", ");
}
const partsOf = (runs) => runs.filter(Boolean).flatMap((run) => run.parts);

// What is on show at a time, which is not always what was asked for.
export function headingOf(run, time) {
  return run.at(time).heading + (run.dim > 3 && run.view ? ` · ${run.setting.recorded ? "" : "shown: "}${run.view.name}` : "");
}

// Under the slider: a mark for each of the last merges.
export function drawMarks(run, theme) {
  const canvas = $("#marks"), box = canvas.getBoundingClientRect(), ctx = canvas.getContext("2d");
  canvas.width = Math.round(2 * box.width); canvas.height = Math.round(2 * box.height);
  ctx.scale(2, 2);
  ctx.fillStyle = theme.muted;
  for (const { time } of (run?.curves?.merges ?? []).slice(-LATE)) ctx.fillRect(8 + (box.width - 16) * fractionOf(run.times, time, run.clock.log) - 0.75, 0, 1.5, 5);
}
