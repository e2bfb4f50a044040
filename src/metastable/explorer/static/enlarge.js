// Any chart, large and interactive: zoom, hover, choose lines, save. Plotly draws it, from the installed Python package, in a frame of its
// own (frame.js): it needs inline styles, which this page does not allow. It is fetched when a chart is enlarged; the page never waits for it.

import { hasServer } from "./socket.js";
import { $, el } from "./dom.js";
import { heat } from "./colors.js";
import { HEIGHTS, heightsFor, heightOf } from "./lines.js";

const MOST_POINTS = 60_000; // of world lines; with more, moments are left out evenly
const DASHES = ["solid", "dash"];
const COUNTS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000];
const CONFIG = { responsive: true, displaylogo: false, modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]] };

const side = (runs, panel) => (runs.filter(Boolean).length > 1 ? [" (left)", " (right)"][panel] : "");
const line = (name, x, y, color, panel, options = {}) => ({ type: "scatter", mode: "lines", name, x: Array.from(x), y, line: { color, width: 2, dash: DASHES[panel] }, ...options });

// One trace per final cluster, the lines of its tokens one after the other.
function worldLines(run, palette, view) {
  const kinds = heightsFor(run.components), kind = kinds.includes(view.height) ? view.height : kinds[0];
  const every = Math.max(1, Math.ceil((run.tokens * run.have) / MOST_POINTS)), frames = [];
  for (let f = 0; f < run.have; f += every) frames.push(f);
  if (frames.at(-1) !== run.last) frames.push(run.last);
  const clusters = new Map();
  for (let k = 0; k < run.tokens; k++) {
    const leader = run.leader(run.last, k);
    if (!clusters.has(leader)) clusters.set(leader, []);
    clusters.get(leader).push(k);
  }
  const traces = [...clusters].map(([leader, members]) => {
    const x = [], y = [], text = [];
    for (const k of members) {
      let before = null;
      for (const f of frames) {
        const value = heightOf(kind, run, f, k);
        if (kind === "angle" && before !== null && Math.abs(value - before) > Math.PI) { x.push(null); y.push(null); text.push(""); }
        x.push(run.times[f]); y.push(value); text.push(`token ${k}`); before = value;
      }
      x.push(null); y.push(null); text.push("");
    }
    const name = members.length > 1 ? `${members.length} tokens, first ${leader}` : `token ${leader}`;
    return { type: "scatter", mode: "lines", name, x, y, text, hovertemplate: "%{text}<br>t = %{x:.4~g}<br>%{y:.4f}<extra>%{fullData.name}</extra>", line: { color: palette[leader], width: 1 } };
  });
  const { name, low, high, ticks } = HEIGHTS[kind];
  return { traces, layout: { yaxis: { title: { text: name }, range: [low, high], tickvals: ticks.map(([v]) => v), ticktext: ticks.map(([, text]) => text) } } };
}

function clusters(runs, theme) {
  const traces = [];
  runs.forEach((run, panel) => {
    if (!run?.curves) return;
    const where = side(runs, panel);
    traces.push(line(`clusters${where}`, run.times, run.curves.clusters, theme.accent, panel, { line: { color: theme.accent, width: 2, dash: DASHES[panel], shape: "hv" } }));
    if (run.facts?.law) traces.push(line(`law N(t)${where}`, run.times, run.facts.law, theme.theory, panel));
    const ends = [run.times[0], run.times[run.last]];
    const expected = run.facts?.expected ?? {};
    if (expected.renyi) traces.push(line(`Rényi centers expected${where}`, ends, [expected.renyi, expected.renyi], theme.soft, 1));
    if (expected.strong) traces.push(line(`strong centers expected${where}`, ends, [expected.strong, expected.strong], theme.strong, 1));
  });
  return { traces, layout: { yaxis: { title: { text: "clusters" }, type: "log", tickmode: "array", tickvals: COUNTS, ticktext: COUNTS.map(String), hoverformat: ".4~g" } } };
}

function capture(runs, theme) {
  const traces = runs.flatMap((run, panel) => (run?.curves ? [
    line(`Rényi centers${side(runs, panel)}`, run.times, run.curves.renyi, theme.ink, panel),
    line(`strong centers${side(runs, panel)}`, run.times, run.curves.strong, theme.strong, panel),
  ] : []));
  return { traces, layout: { yaxis: { title: { text: "share of tokens near a center" }, range: [-0.02, 1.02], tickformat: ".0%" } } };
}

function energy(runs, theme) {
  const traces = runs.flatMap((run, panel) => (run?.curves?.energy ? [line(`energy${side(runs, panel)}`, run.times, run.curves.energy, theme.accent, panel)] : []));
  return { traces, layout: { yaxis: { title: { text: "energy (1: all in one place)" } } } };
}

function attention({ data }, theme) {
  if (!data) return { traces: [], layout: {} };
  const { size, tokens, values } = data, rows = [];
  for (let row = 0; row < size; row++) rows.push(Array.from(values.subarray(row * size, (row + 1) * size)));
  const at = rows.map((_, i) => Math.floor((i * tokens) / size));
  const colorscale = [0, 0.1, 0.25, 0.5, 1].map((u) => [u, `rgb(${heat(u ** 0.42, theme.dark).join(",")})`]);
  const trace = { type: "heatmap", z: rows, x: at, y: at, colorscale, zmin: 0, zmax: Math.max(...values), hovertemplate: "token %{y} looks at %{x}: %{z:.3f}<extra></extra>", colorbar: { title: { text: "weight" }, outlinewidth: 0 } };
  return { traces: [trace], layout: { xaxis: { title: { text: "token looked at (from 0)" }, constrain: "domain" }, yaxis: { title: { text: "token (from 0)" }, autorange: "reversed", scaleanchor: "x", constrain: "domain" } }, time: false };
}

function spectrum(runs, theme) {
  const dots = (panel, name, values, color, size) => ({
    type: "scatter", mode: "markers", x: values.map(([re]) => re), y: values.map(([, im]) => im), name: `${name}${side(runs, panel)}`,
    marker: { size, color, symbol: panel ? "diamond-open" : "circle" }, hovertemplate: "%{x:.4f} %{y:+.4f} i<extra>%{fullData.name}</extra>",
  });
  const traces = runs.flatMap((run, panel) => {
    const each = run?.facts?.spectrum ?? [], color = (k) => [theme.strong, theme.accent, theme.theory, theme.soft][(k + 2 * panel) % 4];
    if (each.length < 2) return each.map((values) => dots(panel, "V", values, color(0), 11));
    return [dots(panel, "all heads, added", run.facts.total, color(0), 11), ...each.map((values, head) => dots(panel, `head ${head + 1}`, values, color(head + 1), 7))];
  });
  return { traces, layout: { xaxis: { title: { text: "Re λ" }, zeroline: true }, yaxis: { title: { text: "Im λ" }, scaleanchor: "x", zeroline: true } }, time: false };
}

function styled(layout, clock, theme, time) {
  const axis = { gridcolor: theme.hair, zerolinecolor: theme.faint, linecolor: theme.faint, zeroline: false, automargin: true };
  const depth = time ? { title: { text: "depth t" }, type: clock.log ? "log" : "linear", ...(clock.log ? { exponentformat: "power" } : {}) } : {};
  return {
    ...layout, xaxis: { ...axis, ...depth, ...layout.xaxis }, yaxis: { ...axis, ...layout.yaxis },
    paper_bgcolor: theme.panel, plot_bgcolor: theme.panel, font: { family: theme.sans, size: 13, color: theme.ink }, margin: { l: 60, r: 16, t: 34, b: 50 },
    hovermode: "closest", legend: { orientation: time ? "v" : "h", itemsizing: "constant" },
  };
}

// `scene()`: what is on show, { runs, palettes, charts, view, clock, theme }.
function build(id, { runs, palettes, charts, view, clock, theme }) {
  const makers = {
    lines: () => worldLines(runs[0], palettes[0], view), "lines-b": () => worldLines(runs[1], palettes[1], view),
    clusters: () => clusters(runs, theme), capture: () => capture(runs, theme), energy: () => energy(runs, theme), attention: () => attention(charts.attention, theme), spectrum: () => spectrum(runs, theme),
  };
  const { traces, layout, time = true } = makers[id]();
  return { traces, layout: styled(layout, clock, theme, time) };
}

// A page without a server has no Plotly: the chart itself is drawn large until the dialog is closed.
function borrow(figure, place, dialog) {
  const plot = figure.querySelector(".plot"), gap = el("div", { class: "plot" });
  plot.replaceWith(gap);
  place.replaceChildren(plot);
  place.classList.toggle("square", figure.classList.contains("square"));
  dialog.addEventListener("close", () => gap.replaceWith(plot), { once: true });
  dialog.showModal();
}

export function startEnlarge(scene, notice) {
  const dialog = $("#large"), place = $("#large .drawing");
  let order = null;
  const open = (figure) => {
    const now = scene();
    if (!now.runs[figure.id === "lines-b" ? 1 : 0]?.curves) { notice("The run is not finished yet; try again in a moment.", "", 3); return; }
    $("#large-title").textContent = figure.querySelector("figcaption span").textContent;
    if (!hasServer()) { borrow(figure, place, dialog); return; }
    order = { ...build(figure.id, now), config: CONFIG };
    place.replaceChildren(el("iframe", { src: "/static/frame.html", title: "Interactive chart" }));
    dialog.showModal();
  };
  window.addEventListener("message", (event) => {
    const frame = place.querySelector("iframe");
    if (event.origin !== location.origin || event.source !== frame?.contentWindow) return;
    const { ready, drawn, close, failed } = event.data;
    if (ready) frame.contentWindow.postMessage(order, location.origin);
    if (drawn !== undefined) place.dataset.drawn = drawn;
    if (close || failed) dialog.close();
    if (failed) notice(failed, "bad", 6);
  });
  dialog.addEventListener("close", () => { place.replaceChildren(); delete place.dataset.drawn; place.classList.remove("square"); order = null; });
  for (const figure of document.querySelectorAll(".chart")) {
    const name = figure.querySelector("figcaption span").textContent;
    const button = el("button", { type: "button", class: "enlarge", "aria-label": `Enlarge: ${name}`, title: globalThis.METASTABLE ? "Larger" : "Large and interactive: zoom, hover, save" }, "⤢");
    button.addEventListener("click", () => open(figure));
    figure.querySelector("figcaption").append(button);
  }
}
