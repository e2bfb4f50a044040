// The story: six steps, each with a picture, a few sentences and one control, and then the page is free. Which step is told is part of the
// state (`view.story`), so links and Back lead to steps as well.

import { $, el } from "./dom.js";
import { prose } from "./glossary.js";
import { isRecorded, recordedState, sentence } from "./recordings.js";
import { DEFAULT_VIEW, change, store } from "./store.js";
import { plain, scientific } from "./text.js";
import { typing } from "./typing.js";

const SEEN = "story-seen";
const setting = (dim, beta, tokens, seed = 0) => ({ model: { dim, beta }, start: { tokens, seed } });
const own = (panel, until, log) => () => ({ panels: [panel()], clock: { until, log } });
const here = () => store.state.panels[0];
const edit = (mutate, final) => change("panel", (state) => { mutate(state.panels[0]); state.view.preset = null; }, { panel: 0, final });

// ------------------------------------------------------------------------------------------------------- controls

// A slider of `low` to `high`; `show` says its value in words.
function slider(label, { low, high, step, show }, get, set) {
  const shown = el("output", {}), range = el("input", { type: "range", id: "story-control", min: low, max: high, step });
  const say = () => { shown.textContent = show(Number(range.value)); range.setAttribute("aria-valuetext", shown.textContent); };
  range.addEventListener("input", () => { set(Number(range.value), false); say(); });
  range.addEventListener("change", () => set(Number(range.value), true));
  return { node: el("div", { class: "control" }, el("label", { for: "story-control" }, label), shown, range), sync: () => { const value = get(); if (value !== undefined && !typing(range)) range.value = value; say(); } };
}

// One of several, as radio buttons.
function choices(label, entries, get, set) {
  const boxes = entries.map(([value, text]) => [value, el("input", { type: "radio", name: "story-choice", value, onchange: () => set(value) }), text]);
  const node = el("fieldset", { class: "control" }, el("legend", {}, label), ...boxes.map(([, box, text]) => el("label", {}, box, el("span", {}, text))));
  return { node, sync: () => { for (const [value, box] of boxes) box.checked = value === get(); } };
}

function button(label, act) {
  return { node: el("div", { class: "control" }, el("button", { type: "button", id: "story-control", onclick: act }, label)), sync: () => {} };
}

// ---------------------------------------------------------------------------------------------------------- steps

// `state(page)`: what is shown. `view`: how. `charts`: what is shown beside it, and how to read it. `control(page)`: the one control.
const STEPS = [
  {
    title: "Attention pulls",
    text: [
      "A language model turns every piece of text, a [[token]], into a point on a [[sphere]]. Layer after layer moves the points. Read the layers as [[time]], and the points flow.",
      "What moves them is [[attention]]: a token looks at the tokens before it, most of all at those near it, and is pulled towards them.",
    ],
    invite: "Add tokens. Those that were there keep their paths, because [[causal|nobody looks ahead]]. The ringed one is the [[first|first token]]; it sees only itself and stays.",
    state: own(() => setting(3, 2, 8), 12, false),
    view: { centers: false, numbers: false },
    charts: { attention: "Each row is a token, coloured where it looks. Nobody looks ahead, so the upper half is empty." },
    control: () => slider("Tokens", { low: 2, high: 40, step: 1, show: String }, () => here().start.tokens, (value, final) => edit((panel) => { panel.start.tokens = value; }, final)),
  },
  {
    title: "Tokens gather",
    text: [
      "Four hundred tokens now. Each follows its nearest forerunners, so crowds draw together until a crowd is almost a point: a [[cluster]]. Tokens of one cluster wear one colour; [[numbers|the number]] is that of its first token.",
    ],
    invite: "[[beta|The number β]] says how picky attention is. Raise it: tokens hear only close neighbours, and more, smaller clusters form. Lower it: fewer.",
    state: own(() => setting(3, 36, 400), 1000, true),
    view: { centers: false },
    charts: { clusters: "How many clusters there are, through time. Equal steps to the right are equal factors of time." },
    control: () => slider("β", { low: 0, high: 1, step: 0.01, show: () => plain(here().model.beta, 3) }, () => Math.log(here().model.beta / 4) / Math.log(25), (u, final) => edit((panel) => { panel.model.beta = pick(u); }, final)),
  },
  {
    title: "Leaders hold",
    text: [
      "The same on a circle, where nothing hides: tokens in one place pile up outwards, and [[trails|lines inwards]] are their past.",
      "Who leads a cluster? Whoever comes first in a neighbourhood: the [[renyi|Rényi centers]], marked dark or red in a white ring.",
      "Red ones are [[strong|strong centers]]: no earlier token is near to pull them. They hold their place while later tokens fall towards them and are [[captured]].",
    ],
    invite: "Draw new starts. Other places, the same pattern: red holds, the rest gathers.",
    state: own(() => setting(2, 64, 200), 200, false),
    view: {},
    charts: { lines: "Every token's place on the circle, through time. Where lines join, tokens have met." },
    control: () => button("Draw new starts", () => edit((panel) => { panel.start.seed = (panel.start.seed ?? 0) + 1; }, true)),
  },
  {
    title: "Clusters merge",
    text: [
      "Now it looks finished, and it is not. Clusters still pull on later ones, but so faintly that it takes enormous times until they [[merge]].",
      "**A [[metastable]] cluster is a crowd of tokens that stands still for so long that it looks final, and yet will merge one day.**",
      "This clock runs over fifty [[decade|decades]], from 0.01 to 10⁴⁸; the universe is 4·10¹⁷ seconds old. A model has a few dozen layers, so what it could ever see of all this are the metastable clusters.",
    ],
    invite: "Move through time. Long rests, sudden merges; the last two clusters meet only at about 10⁴⁴.",
    state: own(() => setting(2, 52, 120), 1e48, true),
    view: {},
    charts: { lines: "Every token's place on the circle. Flat: a rest. Joined: a merge.", clusters: "Each flat stretch is a metastable state, each step down a merge." },
    control: (page) => slider("Time", { low: 0, high: 1, step: 0.002, show: () => page.moment() }, () => store.state.view.at, (at) => page.seek(at)),
    follows: true,
  },
  {
    title: "The value matrix decides",
    text: [
      "What is left in the end? So far everything meets in one point, where the first token stands.",
      "But a layer also has a [[value|value matrix]] V: along each of its directions it can pull, push away or turn. The [[spectrum|eigenvalues of V]] tell which, and with them the end.",
    ],
    invite: "Choose a V and watch the end change.",
    state: (page) => page.preset("figure-1a"),
    view: { centers: false, numbers: false },
    charts: { spectrum: "Each dot is a direction of V. Right of the middle it pulls, left it pushes, off the line it turns." },
    control: (page) => choices("The value matrix", [
      ["figure-1a", "pulls alike everywhere: one point"],
      ["figure-1c", "one direction wins: two opposite points"],
      ["figure-1d", "pushes everywhere: a spread-out cloud"],
      ["figure-1f", "turns: a rotation that never ends"],
    ], () => store.state.view.preset, (name) => page.show(page.preset(name), name)),
  },
  {
    title: "A real sentence in a real model",
    text: [
      `SmolLM2, a small real language model, reads: “${sentence}” You see its own 30 layers, recorded, in the three main ones of 576 directions (without the first word, a [[sink]]).`,
      "Attention alone pulls all words into one cluster within two layers. In the whole model the [[feedforward|feed-forward parts]] hold them apart, and equal words part as they take on their context.",
      "So theory shows one force in a model, not all of it: long-lived clusters as in step 4 have not been seen in this one.",
    ],
    invite: "Switch the other parts on and off.",
    state: () => recordedState("attention"),
    view: { centers: false, numbers: false, camera: [1, 0, 0, 0], speed: 0.5, trails: false },
    charts: { clusters: "How many groups of words there are after each layer." },
    control: (page) => choices("The layers", [["attention", "attention alone"], ["all", "the whole model"]], () => here().parts, (parts) => page.show(recordedState(parts))),
  },
];
const pick = (u) => Number((4 * 25 ** u).toPrecision(3));

// ---------------------------------------------------------------------------------------------------------- telling

const node = $("#story");
let told = null, control = null, page = null, byHand = false;

function remember() { try { localStorage.setItem(SEEN, "yes"); } catch { /* private mode: it is offered again */ } $("#offer").hidden = true; }
const known = () => { try { return localStorage.getItem(SEEN) !== null; } catch { return false; } };

function show(state, origin = null) {
  const step = STEPS[told], view = { ...structuredClone(DEFAULT_VIEW), ...step.view, story: told + 1, preset: origin, origin };
  page.load({ ...state, view });
}

function go(number) {
  remember();
  byHand = true;
  told = number;
  delete node.dataset.step; // told anew, also if it is the same one
  const origin = number === 4 ? "figure-1a" : null;
  show(STEPS[number].state(page), origin);
}

// The end: what is on show stays, unless it is a recording, which nobody can change.
function leave() {
  remember();
  if (isRecorded(here())) page.loadFirst();
  else change("view", (state) => { Object.assign(state.view, { story: null, centers: true, numbers: true }); });
  $("#tell").focus();
}

function render() {
  const step = STEPS[told], last = told === STEPS.length - 1;
  control = step.control(page);
  const heading = el("h2", { tabindex: "-1" }, step.title);
  node.replaceChildren(
    el("p", { class: "progress" }, el("span", {}, `Step ${told + 1} of ${STEPS.length}`), el("button", { type: "button", class: "link", id: "story-leave", onclick: leave }, "Leave the story")),
    heading,
    ...step.text.map((text) => el("p", {}, ...prose(text))),
    el("p", { class: "invite" }, ...prose(step.invite)),
    control.node,
    el("div", { class: "row" },
      el("button", { type: "button", id: "story-back", disabled: told === 0, onclick: () => go(told - 1) }, "Back"),
      el("ol", { "aria-label": "Steps" }, ...STEPS.map((item, k) => el("li", {}, el("button", { type: "button", class: "step", "aria-label": `Step ${k + 1}: ${item.title}`, "aria-current": k === told ? "step" : null, onclick: () => go(k) }, String(k + 1))))),
      el("button", { type: "button", id: "story-next", class: "main", onclick: () => (last ? leave() : go(told + 1)) }, last ? "Explore" : "Next")),
  );
  for (const chart of document.querySelectorAll("#charts .chart")) {
    chart.classList.toggle("told", chart.id in step.charts);
    chart.querySelector(".note")?.remove();
    if (chart.id in step.charts) chart.append(el("p", { class: "note" }, step.charts[chart.id]));
  }
  document.body.dataset.step = told + 1;
  if (byHand) { heading.focus({ preventScroll: true }); scrollTo(0, 0); byHand = false; }
}

// Follow the state: a step that a link, Back or a button asks for.
export function syncStory() {
  const wanted = store.state.view.story, number = Number.isInteger(wanted) && wanted >= 1 && wanted <= STEPS.length ? wanted - 1 : null;
  const telling = number !== null && store.state.panels.length === 1;
  document.body.classList.toggle("telling", telling);
  $("#tell").setAttribute("aria-pressed", String(telling));
  node.hidden = !telling;
  if (!telling) { told = null; delete document.body.dataset.step; return; }
  if (told !== number || !node.childElementCount || node.dataset.step !== String(number)) { told = number; node.dataset.step = number; render(); }
  control.sync();
}

// While the clock runs: the control that follows it.
export function followStory() { if (told !== null && STEPS[told].follows) control.sync(); }

// `actions`: { load(state), loadFirst(), preset(name), seek(at), time() }.
export function startStory(actions) {
  page = { ...actions, show, moment: () => `t = ${scientific(actions.time())}` };
  $("#tell").addEventListener("click", () => { if (document.body.classList.contains("telling")) leave(); else go(0); });
  $("#offer-yes").addEventListener("click", () => go(0));
  $("#offer-no").addEventListener("click", remember);
  $("#offer").hidden = known() || Boolean(globalThis.METASTABLE?.player);
}
